"""Weights of classes, and what a gradient at 0 says of how many rows a class has."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fco.core.layout import Vector
from flwr_fco.errors import ConfigurationError

#: Largest ratio of two weights: beyond it, the share of a class is rounding.
_WIDEST = 1e12


def weights_of_classes(given: Any, classes: NDArray[Any], counts: Vector | None = None) -> Vector | None:
    """Return the weight of each class; None if there are none, or balanced ones of unknown counts.

    Parameters
    ----------
    given : mapping, "balanced" or None
        What the user says: a number > 0 of each class, 1 if it is not named; or n / (k n_c), with n_c of all n rows in
        class c of k; 1 if nobody has that class.
    classes : ndarray, shape (k,)
        All classes, sorted.
    counts : ndarray of float64, shape (k,), optional
        The n_c.

    Raises
    ------
    ConfigurationError
        If it is something else, names another class, or a weight is no finite number > 0, or too small beside another.

    Examples
    --------
    >>> weights_of_classes("balanced", np.array(["no", "yes"]), np.array([30.0, 10.0])).round(6).tolist()
    [0.666667, 2.0]
    """
    if given is None:
        return None
    if isinstance(given, str) and given == "balanced":
        if counts is None:
            return None
        usual = counts.sum() / classes.size
        return np.asarray(usual / np.where(counts > 0.0, counts, usual))
    if not isinstance(given, Mapping):
        raise ConfigurationError(
            f"class_weight={given!r}; expected None, 'balanced', or a weight of each class, such as "
            f"{{{classes.tolist()[-1]!r}: 2.0}}"
        )
    known = classes.tolist()
    unknown = [label for label in given if label not in known]
    if unknown:
        raise ConfigurationError(f"class_weight names {unknown[:5]}, which are none of the classes {known}")
    for label, weight in given.items():
        if isinstance(weight, bool) or not isinstance(weight, Real) or not 0.0 < float(weight) < math.inf:
            raise ConfigurationError(
                f"class_weight[{label!r}]={weight!r}; expected a finite number > 0. Leave out the rows of a class that "
                "does not count"
            )
    weights = np.array([float(given.get(label, 1.0)) for label in known])
    if weights.min() < weights.max() / _WIDEST:
        raise ConfigurationError(
            f"class_weight={given!r}: weights from {weights.min():g} to {weights.max():g}; expected none below "
            f"{1.0 / _WIDEST:g} of another. Leave out the rows of a class that does not count"
        )
    return weights


def class_counts(slopes: Vector, rows: int, weights: Vector | None) -> Vector:
    """Return the rows of each class, from a logistic loss's derivatives by its intercepts at 0.

    There all chances are 1/k, and the derivatives are these less the classes' shares of the weights.

    Parameters
    ----------
    slopes : ndarray of float64, shape (k,), or (1,) of two classes
        The derivatives.
    rows : int
        Number of rows.
    weights : ndarray of float64, shape (k,), or None
        The weight of each class's rows; None for 1.

    Examples
    --------
    >>> class_counts(np.array([-0.25]), 8, None).tolist(), class_counts(np.array([-0.25]), 8, np.array([1.0, 3.0])).tolist()
    ([2.0, 6.0], [4.0, 4.0])
    """  # noqa: E501
    shares = 1.0 / slopes.size - slopes if slopes.size > 1 else np.array([0.5 + slopes[0], 0.5 - slopes[0]])
    each = shares if weights is None else shares / weights
    return np.asarray(np.rint(rows * np.clip(each / each.sum(), 0.0, 1.0)))

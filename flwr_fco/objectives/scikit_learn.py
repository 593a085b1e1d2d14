"""Strengths on scikit-learn's scale: ``alpha`` of its linear models, ``C`` of its logistic regression.

scikit-learn's objectives differ from this package's by a factor, so the same solution has a different strength there:

======================================  =================================  ============================
ours                                    scikit-learn's                     the same solution
======================================  =================================  ============================
scale mean (r_i^2) + strength psi0(w)   1/2 mean (r_i^2) + alpha psi0(w)   alpha = strength / (2 scale)
mean loss_i + strength psi0(w)          C sum loss_i + psi0(w)             C = 1 / (n strength)
======================================  =================================  ============================

where psi0 is the l1 norm or the elastic net's mixture, and means are over all n examples of all clients.

Here are also the weights of classes, ``class_weight``, and what a gradient at 0 says of how many rows a class has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fco.core.layout import Vector
from flwr_fco.core.validation import AT_LEAST_ONE, NON_NEGATIVE, POSITIVE, checked
from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives.base import Objective
from flwr_fco.objectives.classification import Logistic, MultinomialLogistic
from flwr_fco.objectives.regression import LeastSquares, TraceRegression

#: Largest ratio of two classes' weights: beyond it, the share of a class is rounding.
_WIDEST = 1e12


def sklearn_strength(strength: float, objective: Objective, num_examples: int | None = None) -> float:
    """Return scikit-learn's ``alpha`` (least squares) or ``C`` (logistic regression) for a strength in this package.

    Parameters
    ----------
    strength : float
        Strength of ``L1``, ``ElasticNet`` or ``L2Squared``; > 0 for a ``C``.
    objective : LeastSquares, TraceRegression, Logistic or MultinomialLogistic
        Any client's objective.
    num_examples : int, optional
        Number of examples of all clients; the objective's own by default. ``alpha`` does not depend on it.

    Raises
    ------
    ConfigurationError
        For another objective, or a strength without a counterpart.

    Examples
    --------
    >>> import numpy as np
    >>> sklearn_strength(0.1, LeastSquares(np.eye(2), np.ones(2)))
    0.05
    >>> sklearn_strength(0.1, Logistic(np.eye(2), np.ones(2)), num_examples=50)
    0.2
    """
    if isinstance(objective, LeastSquares | TraceRegression):
        return float(checked("strength", strength, float, NON_NEGATIVE)) / (2.0 * objective.scale)
    count = _count(objective, num_examples)
    if strength == 0.0:
        raise ConfigurationError("strength=0.0 is C = infinity in scikit-learn: its penalty=None")
    return 1.0 / (count * float(checked("strength", strength, float, NON_NEGATIVE)))


def strength_of_sklearn(value: float, objective: Objective, num_examples: int | None = None) -> float:
    """Return this package's strength for scikit-learn's ``alpha`` (least squares) or ``C`` (logistic regression).

    Parameters
    ----------
    value : float
        ``alpha`` >= 0, or ``C`` > 0.
    objective : LeastSquares, TraceRegression, Logistic or MultinomialLogistic
        Any client's objective.
    num_examples : int, optional
        Number of examples of all clients; the objective's own by default. ``alpha`` does not depend on it.

    Raises
    ------
    ConfigurationError
        For another objective, or a value out of range.

    Examples
    --------
    >>> import numpy as np
    >>> strength_of_sklearn(0.05, LeastSquares(np.eye(2), np.ones(2)))
    0.1
    """
    if isinstance(objective, LeastSquares | TraceRegression):
        return 2.0 * objective.scale * float(checked("alpha", value, float, NON_NEGATIVE))
    count = _count(objective, num_examples)
    return 1.0 / (count * float(checked("C", value, float, POSITIVE)))


def _count(objective: Objective, num_examples: int | None) -> int:
    if not isinstance(objective, Logistic | MultinomialLogistic):
        raise ConfigurationError(
            f"{type(objective).__name__} has no counterpart in scikit-learn that is known here; expected LeastSquares, "
            "TraceRegression, Logistic or MultinomialLogistic"
        )
    count = objective.num_examples if num_examples is None else num_examples
    return int(checked("num_examples", count, int, AT_LEAST_ONE))


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

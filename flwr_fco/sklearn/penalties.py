"""Penalties of features: factors, scales of all sites, and their units."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flwr_fco.core.layout import Vector
from flwr_fco.core.logs import printable
from flwr_fco.core.schema import differing_units
from flwr_fco.errors import ConfigurationError
from flwr_fco.regularizers import L1, ElasticNet, L2Squared, Regularizer, Zero

#: Ratio of a deviation to that at most sites above which there is a warning.
_UNITS = 5.0


def penalty_of(l1: float, l2: float, weights: Vector | None, scales: Vector | None) -> Regularizer:
    """Return sum_j weights_j (l1 |u_j| + l2/2 u_j^2) of u = scales * w."""
    if weights is not None and not weights.any():
        return Zero()
    if l1 > 0.0 and l2 > 0.0:
        return ElasticNet(l1 + l2, l1 / (l1 + l2), weights, scales)
    if scales is not None:
        weights = (1.0 if weights is None else weights) * (scales if l1 > 0.0 else scales**2)
    return L1(l1, weights) if l1 > 0.0 else L2Squared(l2, weights) if l2 > 0.0 else Zero()


def factors_of(given: Any, names: Any, d: int) -> Vector | None:
    """Return each feature's factor of the penalty, shape (d,), of a mapping of names or of an array.

    Raises
    ------
    ConfigurationError
        If a name is unknown, or the factors are not d finite numbers >= 0.
    """
    if given is None:
        return None
    # A Series goes by its index, whose order may be another one than the features'.
    given = given.to_dict() if hasattr(given, "to_dict") else given
    if isinstance(given, Mapping):
        if not len(names):
            raise ConfigurationError(
                f"penalty_factor={given!r} names features, but those of X have no names; give a data frame, "
                f"features=[...] with a grid, or an array of {d} factors"
            )
        unknown = [name for name in given if name not in set(names)]
        if unknown:
            raise ConfigurationError(
                f"penalty_factor names {unknown[:5]}, which X does not have; its features are {', '.join(names[:10])}"
                f"{', ...' if d > 10 else ''}"
            )
        given = [given.get(name, 1.0) for name in names]
    factors = np.asarray(given)
    if factors.shape != (d,) or factors.dtype.kind not in "fiu":
        raise ConfigurationError(
            f"penalty_factor has shape {factors.shape} and dtype {factors.dtype}; expected a number for each of the "
            f"{d} features, or a mapping of names to numbers"
        )
    wrong = np.flatnonzero(~(np.isfinite(factors) & (factors >= 0.0)))
    if wrong.size:
        where = names[wrong[0]] if len(names) else wrong[0]
        raise ConfigurationError(
            f"penalty_factor={factors[wrong[0]]:g} of feature {where}; expected finite numbers >= 0, where 0 leaves a "
            "feature without a penalty"
        )
    return factors.astype(np.float64)


def scales_of(moments: Sequence[tuple[float, Vector, Vector]]) -> Vector:
    """Return the standard deviations of the features of all clients, from weights, means and variances of each.

    Of a feature that is constant up to rounding it is 1, as in scikit-learn's ``StandardScaler``.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        mean = np.sum([weight * means for weight, means, _ in moments], axis=0)
        variance = np.sum([weight * (own + np.square(means - mean)) for weight, means, own in moments], axis=0)
        deviations = np.sqrt(variance)
    # A mean or a variance that overflows leaves no deviation, which is not one of 1.
    constant = deviations <= 10.0 * np.finfo(np.float64).eps * np.abs(mean)
    return np.asarray(np.where(constant & np.isfinite(deviations), 1.0, deviations))


def check_scales(
    scales: Vector, moments: Sequence[tuple[float, Vector, Vector]], sites: Sequence[str], names: Sequence[Any]
) -> None:
    """Warn of features whose standard deviation is far above that at most sites, which a single site can make it.

    Raises
    ------
    ConfigurationError
        If it is infinite.
    """
    own = np.sqrt([variances for _, _, variances in moments])
    usual = np.sort(own, axis=0)[(len(own) - 1) // 2]
    means = np.abs([each for _, each, _ in moments])
    for j in np.flatnonzero(~(scales <= _UNITS * usual) & ((usual > 0.0) | ~np.isfinite(scales)))[:5]:
        m = int(np.argmax(np.maximum(own[:, j], means[:, j])))
        text = (
            f"the standard deviation of {printable(str(names[j]))} over all sites is {scales[j]:.3g}, at most of them "
            f"up to {usual[j]:.3g}: {sites[m]} says a mean of {moments[m][1][j]:.3g} and a deviation of "
            f"{own[m, j]:.3g}. "
            "Its penalty is that of such a feature; check the unit at this site"
        )
        if not np.isfinite(scales[j]):
            raise ConfigurationError(text)
        warnings.warn(text, UserWarning, stacklevel=5)


def broadcast(each: Vector | None, outputs: int) -> Vector | None:
    """Return a number of each feature as it broadcasts to the coefficients, where it holds for all classes."""
    return each if each is None or outputs == 1 else each[:, None]


def warn_of_units(deviations: Mapping[str, Vector], names: Sequence[str]) -> None:
    """Warn of columns that seem to have other units at some sites."""
    text = differing_units(deviations, names)
    if text:
        warnings.warn(text, UserWarning, stacklevel=4)

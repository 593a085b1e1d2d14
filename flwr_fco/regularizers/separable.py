"""Regularizers that are sums over coordinates: none, l1, squared l2, elastic net."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from flwr_fco.errors import ConfigurationError
from flwr_fco.kernels import prox as kernels
from flwr_fco.regularizers.base import Array, FlatRegularizer, SeparableTerms
from flwr_fco.regularizers.validation import NON_NEGATIVE, POSITIVE, RATIO, WEIGHTS, amount, broadcastable, outside


def flat_weights(weights: Any, shape: tuple[int, ...]) -> Any:
    """Return weights as a contiguous vector, one for each coordinate of an array of this shape; None if it is None."""
    if weights is None:
        return None
    if weights.shape != shape:
        weights = np.broadcast_to(weights, shape)
    return weights.reshape(-1)


def in_range(square: float) -> bool:
    """Whether a sum of squares has neither overflowed nor underflowed; NaN passes."""
    return 1e-280 < square < 1e300 or square == 0.0 or math.isnan(square)


def times(strength: float, size: float) -> float:
    """Return strength * size; a strength of 0 gives 0 even if size is infinite."""
    return 0.0 if strength == 0.0 and math.isinf(size) else float(strength * size)


def half_squares(strength: float, flat: Array, weights: Array | None) -> float:
    """Return strength/2 * sum_i weights_i w_i^2 without intermediate overflow or underflow."""
    square = kernels.square_sum(flat, weights)
    if in_range(square) and (square != 0.0 or strength == 0.0):
        return float(0.5 * strength * square)
    if weights is not None:
        with np.errstate(over="ignore"):
            flat = np.sqrt(weights) * flat
    unit, root = kernels.scaled_norm(np.ascontiguousarray(flat))
    norm = unit * root
    return 0.0 if strength == 0.0 or norm == 0.0 else float((0.5 * strength * norm) * norm)


def threshold_max(gradient_at_zero: Array, weights: Array | None) -> float:
    """Return max_i |g_i| / weights_i with 0/0 = 0, because that coordinate is optimal at 0 for any strength."""
    size = np.abs(np.asarray(gradient_at_zero, dtype=np.float64))
    if weights is not None:
        heavy = np.broadcast_to(weights, size.shape)
        ratio = np.full(size.shape, np.inf)
        np.divide(size, heavy, out=ratio, where=heavy > 0)
        ratio[(heavy == 0) & (size == 0)] = 0.0
        size = ratio
    return float(size.max(initial=0.0))


@dataclass(frozen=True)
class Zero(FlatRegularizer):
    """No regularization: psi(w) = 0.

    The proximal map is ``prox(v, step) = v``.

    Examples
    --------
    >>> import numpy as np
    >>> Zero().prox(np.array([3.0, -0.5]), 1.0)
    array([ 3. , -0.5])
    """

    kind: ClassVar[str] = "zero"

    def value(self, w: Array) -> float:
        """Return 0."""
        return 0.0

    def solve(self, v: Array, step: float, out: Array, shape: tuple[int, ...]) -> None:
        np.add(v, v.dtype.type(0.0), out=out)

    def subgradient(self, w: Array) -> Array:
        """Return zeros."""
        return np.zeros_like(w)

    def separable_terms(self, shape: tuple[int, ...]) -> SeparableTerms:
        return SeparableTerms()


class Weighted(FlatRegularizer):
    """A sum over coordinates, optionally with ``weights``."""

    weights: Array | None

    def check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise unless the weights broadcast to the array."""
        if self.weights is not None:
            broadcastable(self, "weights", self.weights.shape, name, shape)


@dataclass(frozen=True)
class L1(Weighted):
    """The l1 norm, optionally within a box: psi(w) = strength * sum_i weights_i |w_i|, |w_i| <= bound.

    The proximal map soft-thresholds, then clips::

        argmin_w step * psi(w) + 1/2 ||w - v||^2 = clip(sign(v) max(|v| - step * strength * weights, 0), -bound, bound)

    Parameters
    ----------
    strength : float
        Finite, >= 0.
    weights : array, optional
        Non-negative numbers that broadcast to the array; 1 by default. A coordinate of weight 0 is free.
    bound : float, optional
        Half the side of the box (> 0); no box by default.

    Raises
    ------
    ConfigurationError
        If an argument is not as described.

    Examples
    --------
    >>> import numpy as np
    >>> L1(1.0).prox(np.array([3.0, -0.5, -2.0]), 1.0)
    array([ 2.,  0., -1.])
    >>> L1(1.0, bound=1.5).prox(np.array([3.0, -0.5, -2.0]), 1.0)
    array([ 1.5,  0. , -1. ])
    """

    kind: ClassVar[str] = "l1"
    strength: float = field(metadata=NON_NEGATIVE)
    weights: Array | None = field(default=None, metadata=WEIGHTS)
    bound: float | None = field(default=None, metadata=POSITIVE)

    def value(self, w: Array) -> float:
        """Return strength * sum_i weights_i |w_i|, inf outside the box."""
        flat = w.reshape(-1)
        if self.bound is not None and outside(float(np.abs(flat).max(initial=0.0)) - self.bound, self.bound, flat):
            return float(np.inf)
        return times(self.strength, kernels.absolute_sum(flat, flat_weights(self.weights, w.shape)))

    def solve(self, v: Array, step: float, out: Array, shape: tuple[int, ...]) -> None:
        bound = math.inf if self.bound is None else self.bound
        kernels.soft(v, amount(step, self.strength), flat_weights(self.weights, shape), 1.0, bound, out)

    def subgradient(self, w: Array) -> Array:
        """Return strength * weights * sign(w), with sign(0) = 0."""
        result = np.sign(w)
        result *= self.strength if self.weights is None else self.strength * self.weights
        return result

    def strength_max(self, gradient_at_zero: Array) -> float:
        """Return max_i |g_i| / weights_i, the smallest strength for which 0 is optimal."""
        return threshold_max(gradient_at_zero, self.weights)

    def separable_terms(self, shape: tuple[int, ...]) -> SeparableTerms:
        """Return the thresholds strength * weights and the box."""
        bound = math.inf if self.bound is None else self.bound
        threshold = self.strength if self.weights is None else self.strength * self.weights
        return SeparableTerms(threshold=threshold, lower=-bound, upper=bound)


@dataclass(frozen=True)
class L2Squared(Weighted):
    """Half the squared l2 norm (ridge): psi(w) = strength/2 * sum_i weights_i w_i^2.

    The proximal map shrinks::

        argmin_w step * psi(w) + 1/2 ||w - v||^2 = v / (1 + step * strength * weights)

    Parameters
    ----------
    strength : float
        Finite, >= 0.
    weights : array, optional
        Non-negative numbers that broadcast to the array; 1 by default.

    Raises
    ------
    ConfigurationError
        If an argument is not as described.

    Examples
    --------
    >>> import numpy as np
    >>> L2Squared(3.0).prox(np.array([4.0, -2.0]), 1.0)
    array([ 1. , -0.5])
    """

    kind: ClassVar[str] = "l2-squared"
    strength: float = field(metadata=NON_NEGATIVE)
    weights: Array | None = field(default=None, metadata=WEIGHTS)

    def value(self, w: Array) -> float:
        """Return strength/2 * sum_i weights_i w_i^2."""
        return half_squares(self.strength, w.reshape(-1), flat_weights(self.weights, w.shape))

    def solve(self, v: Array, step: float, out: Array, shape: tuple[int, ...]) -> None:
        shrinkage = amount(step, self.strength)
        if self.weights is None:
            kernels.soft(v, 0.0, None, 1.0 / (1.0 + shrinkage), math.inf, out)
        else:
            kernels.soft_scale_weighted(v, 0.0, shrinkage, flat_weights(self.weights, shape), out)

    def subgradient(self, w: Array) -> Array:
        """Return the gradient, strength * weights * w."""
        result: Array = w * w.dtype.type(self.strength)
        if self.weights is not None:
            result *= self.weights
        return result

    def separable_terms(self, shape: tuple[int, ...]) -> SeparableTerms:
        """Return the curvatures strength * weights."""
        return SeparableTerms(shrinkage=self.strength if self.weights is None else self.strength * self.weights)


@dataclass(frozen=True)
class ElasticNet(Weighted):
    """The elastic net: psi(w) = strength * sum_i weights_i (l1_ratio |u_i| + (1 - l1_ratio)/2 u_i^2), u = scales * w.

    The proximal map soft-thresholds, then shrinks::

        argmin_w step * psi(w) + 1/2 ||w - v||^2
            = soft(v, step * strength * l1_ratio * a) / (1 + step * strength * (1 - l1_ratio) * b),
        a = weights * scales,    b = weights * scales^2

    Parameters
    ----------
    strength : float
        Finite, >= 0 (scikit-learn's ``alpha``).
    l1_ratio : float, default 0.5
        Between 0 (ridge) and 1 (lasso), as in scikit-learn.
    weights : array, optional
        Non-negative numbers that broadcast to the array; 1 by default.
    scales : array, optional
        Likewise. With the standard deviations of the features, psi is about the coefficients of standardised ones.

    Raises
    ------
    ConfigurationError
        If an argument is not as described.

    Examples
    --------
    >>> import numpy as np
    >>> ElasticNet(2.0).prox(np.array([3.0, -0.5]), 1.0)
    array([1., 0.])
    """

    kind: ClassVar[str] = "elastic-net"
    strength: float = field(metadata=NON_NEGATIVE)
    l1_ratio: float = field(default=0.5, metadata=RATIO)
    weights: Array | None = field(default=None, metadata=WEIGHTS)
    scales: Array | None = field(default=None, metadata=WEIGHTS)

    def check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise unless weights and scales broadcast to the array."""
        super().check_shape(name, shape)
        if self.scales is not None:
            broadcastable(self, "scales", self.scales.shape, name, shape)

    def value(self, w: Array) -> float:
        """Return strength * sum_i weights_i (l1_ratio |u_i| + (1 - l1_ratio)/2 u_i^2)."""
        flat = w.reshape(-1)
        if self.scales is not None:
            flat = flat * flat_weights(self.scales, w.shape)
        weights = flat_weights(self.weights, w.shape)
        absolute = kernels.absolute_sum(flat, weights)
        square = kernels.square_sum(flat, weights)
        if in_range(square):
            return float(self.strength * (self.l1_ratio * absolute + 0.5 * (1.0 - self.l1_ratio) * square))
        # Summed separately, so that an overflowing square cannot give 0 * inf.
        total = times(self.strength * self.l1_ratio, absolute)
        return total + half_squares(self.strength * (1.0 - self.l1_ratio), flat, weights)

    def solve(self, v: Array, step: float, out: Array, shape: tuple[int, ...]) -> None:
        threshold = amount(step, self.strength * self.l1_ratio)
        shrinkage = amount(step, self.strength * (1.0 - self.l1_ratio))
        if self.scales is not None:
            thresholds, shrinkages = (flat_weights(np.asarray(own), shape) for own in self._scaled())
            kernels.soft(v, threshold, thresholds, 1.0, math.inf, out)
            out /= 1.0 + shrinkage * shrinkages
        elif self.weights is None:
            kernels.soft(v, threshold, None, 1.0 / (1.0 + shrinkage), math.inf, out)
        else:
            kernels.soft_scale_weighted(v, threshold, shrinkage, flat_weights(self.weights, shape), out)

    def subgradient(self, w: Array) -> Array:
        """Return strength * weights * scales * (l1_ratio * sign(w) + (1 - l1_ratio) * u), with sign(0) = 0."""
        u = w if self.scales is None else (w * self.scales).astype(w.dtype)
        result: Array = np.sign(w) * w.dtype.type(self.l1_ratio) + u * w.dtype.type(1.0 - self.l1_ratio)
        if self.scales is not None:
            result *= self.scales
        result *= self.strength if self.weights is None else self.strength * self.weights
        return result

    def strength_max(self, gradient_at_zero: Array) -> float:
        """Return max_i |g_i| / (l1_ratio * weights_i * scales_i), the smallest strength for which 0 is optimal."""
        if self.l1_ratio == 0.0:
            raise ConfigurationError(
                "ElasticNet(l1_ratio=0.0) is a ridge: no strength makes its solution 0. Use an l1_ratio > 0."
            )
        weights = self.weights if self.scales is None else self._scaled()[0]
        return threshold_max(gradient_at_zero, weights) / self.l1_ratio

    def separable_terms(self, shape: tuple[int, ...]) -> SeparableTerms:
        """Return the thresholds and curvatures."""
        thresholds, shrinkages = self._scaled()
        l1, l2 = self.strength * self.l1_ratio, self.strength * (1.0 - self.l1_ratio)
        return SeparableTerms(threshold=l1 * thresholds, shrinkage=l2 * shrinkages)

    def _scaled(self) -> tuple[Any, Any]:
        """Return weights * scales, and weights * scales^2."""
        weights = 1.0 if self.weights is None else self.weights
        return (weights, weights) if self.scales is None else (weights * self.scales, weights * self.scales**2)

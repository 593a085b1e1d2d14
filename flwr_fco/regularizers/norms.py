"""Norms that are no sums over coordinates, of a whole array or of a sequence's differences, and monotone sequences."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import numpy as np

from flwr_fco.errors import ConfigurationError
from flwr_fco.kernels import prox as kernels
from flwr_fco.kernels.total_variation import pool_adjacent_violators, total_variation
from flwr_fco.regularizers.base import Array, FlatRegularizer
from flwr_fco.regularizers.constraints import scratch
from flwr_fco.regularizers.validation import NON_NEGATIVE, amount, number, outside


@dataclass(frozen=True)
class L2(FlatRegularizer):
    """The l2 norm, not squared: psi(w) = strength * ||w||_2. It sets either the whole array or no coordinate to 0.

    The proximal map shrinks the array as a block::

        argmin_w step * psi(w) + 1/2 ||w - v||^2 = v * max(1 - step * strength / ||v||_2, 0)

    Parameters
    ----------
    strength : float
        Finite, >= 0.

    Raises
    ------
    ConfigurationError
        If the strength is not a finite number >= 0.

    Examples
    --------
    >>> import numpy as np
    >>> L2(1.0).prox(np.array([3.0, -4.0]), 2.5)
    array([ 1.5, -2. ])
    """

    kind: ClassVar[str] = "l2"
    strength: float = field(metadata=NON_NEGATIVE)

    def value(self, w: Array) -> float:
        """Return strength * ||w||_2."""
        unit, root = kernels.scaled_norm(w.reshape(-1))
        return self.strength * unit * root

    def solve(self, v: Array, step: float, out: Array, shape: tuple[int, ...]) -> None:
        unit, root = kernels.scaled_norm(v)
        threshold = amount(step, self.strength) / unit
        if root <= threshold:
            out.fill(0.0)
        else:
            kernels.scale_twice(v, 1.0, 1.0 - threshold / root, out)

    def subgradient(self, w: Array) -> Array:
        """Return strength * w / ||w||_2, 0 at 0."""
        unit, root = kernels.scaled_norm(w.reshape(-1))
        if root == 0.0:
            return np.zeros_like(w)
        result: Array = ((w / unit) * (self.strength / root)).astype(w.dtype)
        return result

    def strength_max(self, gradient_at_zero: Array) -> float:
        """Return the l2 norm of the gradient, the smallest strength for which 0 is optimal."""
        unit, root = kernels.scaled_norm(np.asarray(gradient_at_zero, dtype=np.float64).reshape(-1))
        return unit * root


@dataclass(frozen=True)
class LInfinity(FlatRegularizer):
    """The l-infinity norm: psi(w) = strength * max_i |w_i|. It makes the largest coordinates equal.

    The proximal map clips at a level theta (Moreau: v minus its projection onto an l1 ball)::

        argmin_w step * psi(w) + 1/2 ||w - v||^2 = clip(v, -theta, theta)

    where sum_i max(|v_i| - theta, 0) = step * strength; the result is 0 if ||v||_1 <= step * strength.

    Parameters
    ----------
    strength : float
        Finite, >= 0.

    Raises
    ------
    ConfigurationError
        If the strength is not a finite number >= 0.

    Examples
    --------
    >>> import numpy as np
    >>> LInfinity(1.0).prox(np.array([3.0, -2.5, 1.0]), 1.5)
    array([ 2., -2.,  1.])
    """

    kind: ClassVar[str] = "l-infinity"
    strength: float = field(metadata=NON_NEGATIVE)

    def value(self, w: Array) -> float:
        """Return strength * max_i |w_i|."""
        return self.strength * float(np.abs(w).max(initial=0.0))

    def solve(self, v: Array, step: float, out: Array, shape: tuple[int, ...]) -> None:
        """Write v, clipped at the level that an l1 projection gives, to `out`."""
        threshold = amount(step, self.strength)
        if threshold == 0.0:
            np.add(v, v.dtype.type(0.0), out=out)
            return
        inside, top, tau, correction = kernels.simplex_threshold(v, threshold, True, scratch(v, out))
        if inside:
            out.fill(0.0)
        else:
            kernels.level_clip(v, top, tau, correction, out)

    def subgradient(self, w: Array) -> Array:
        """Return strength * sign(w_i) at the first coordinate with the largest |w_i|, 0 elsewhere."""
        result = np.zeros_like(w)
        if w.size:
            place = int(np.argmax(np.abs(w)))
            result.flat[place] = self.strength * np.sign(w.flat[place])
        return result

    def strength_max(self, gradient_at_zero: Array) -> float:
        """Return the l1 norm of the gradient, the smallest strength for which 0 is optimal."""
        return float(np.abs(np.asarray(gradient_at_zero, dtype=np.float64)).sum())


#: Relative change at which Newton steps end: below it they are rounding and need not end by themselves.
_ROUNDING = 4.0 * float(np.finfo(np.float64).eps)


def p_norm(w: Array, p: float) -> float:
    """Return ||w||_p, from powers of w/max|w| that do not overflow."""
    size = np.abs(w.astype(np.float64))
    top = float(size.max(initial=0.0))
    if top == 0.0 or not math.isfinite(top):
        return top
    return top * float(((size / top) ** p).sum() ** (1.0 / p))


_INSIDE = {"range": (lambda p: 1.0 < p < 2.0, "a number above 1 and below 2; use L1 for p = 1 and L2 for p = 2")}


@dataclass(frozen=True)
class LpNorm(FlatRegularizer):
    """The lp norm for 1 < p < 2: psi(w) = strength * ||w||_p. Small coordinates become tiny, but none alone becomes 0.

    With t = step * strength and 1/p + 1/q = 1, the proximal map is 0 if ||v||_q <= t, and otherwise::

        argmin_w step * psi(w) + 1/2 ||w - v||^2 = sign(v) m y^(q-1),    m y_i^(q-1) + t y_i = |v_i|

    where m, which is ||w||_p, is the root of ||y||_q = 1. Both equations are solved by Newton steps: those for y
    descend on convex functions, those for m stay inside a bracket.

    Parameters
    ----------
    strength : float
        Finite, >= 0.
    p : float
        Above 1 and below 2; p = 1 is :class:`L1`, p = 2 is :class:`L2`.

    Raises
    ------
    ConfigurationError
        If an argument is not as described.

    Examples
    --------
    >>> import numpy as np
    >>> LpNorm(1.0, p=1.5).prox(np.array([3.0, -2.5, 1.0]), 1.0).round(4)
    array([ 2.1875, -1.7693,  0.5812])
    """

    kind: ClassVar[str] = "lp"
    strength: float = field(metadata=NON_NEGATIVE)
    p: float = field(metadata={"check": partial(number, within=_INSIDE)})

    @property
    def _dual(self) -> float:
        """The exponent q with 1/p + 1/q = 1."""
        return self.p / (self.p - 1.0)

    def value(self, w: Array) -> float:
        """Return strength * ||w||_p."""
        return self.strength * p_norm(w, self.p)

    def solve(self, v: Array, step: float, out: Array, shape: tuple[int, ...]) -> None:
        """Write v, shrunk as the two equations say, to `out`."""
        size = np.abs(v.astype(np.float64))
        top = float(size.max(initial=0.0))
        threshold = amount(step, self.strength) / (top or 1.0)
        if not math.isfinite(top):
            out.fill(np.nan)
        elif p_norm(size := size / (top or 1.0), self._dual) <= threshold:
            out.fill(0.0)
        elif threshold == 0.0:
            np.add(v, v.dtype.type(0.0), out=out)
        else:
            with np.errstate(over="ignore"):
                shrunk = self._shrunk(size, threshold)
            np.add(np.copysign(top * shrunk, v), 0.0, out=out, casting="same_kind")

    def _shrunk(self, size: Array, threshold: float) -> Array:
        """Return the map of sizes whose largest is 1, for a threshold below their q-norm."""
        q = self._dual
        low, high = 0.0, p_norm(size, self.p)
        length = high
        for _ in range(100):
            y = self._balanced(size, threshold, length)
            bent = y ** (q - 1.0)
            total = float(bent @ y)
            gap = math.log(total) / q if 0.0 < total < math.inf else math.inf
            low, high = (length, high) if gap > 0.0 else (low, length)
            slope = float(bent @ (bent / (length * (q - 1.0) * y ** (q - 2.0) + threshold))) / total
            trial = length + gap / slope if slope > 0.0 else low
            if not low < trial < high:
                trial = 0.5 * (low + high)
            done = abs(trial - length) <= _ROUNDING * length
            length = trial
            if done:
                break
        return np.asarray(length * self._balanced(size, threshold, length) ** (q - 1.0))

    def _balanced(self, size: Array, threshold: float, length: float) -> Array:
        """Return y with length * y^(q-1) + threshold * y = size."""
        q = self._dual
        # Both are above the root, and one is below twice of it.
        y = np.minimum(size / threshold, (size / length) ** (self.p - 1.0))
        for _ in range(100):
            power = length * y ** (q - 2.0)
            change = (power * y + threshold * y - size) / ((q - 1.0) * power + threshold)
            y = np.maximum(y - change, 0.0)
            if (change <= _ROUNDING * y).all():
                break
        return np.asarray(y)

    def subgradient(self, w: Array) -> Array:
        """Return strength * sign(w) (|w| / ||w||_p)^(p-1), 0 at 0."""
        norm = p_norm(w, self.p)
        result = np.zeros_like(w)
        if norm != 0.0:
            result[...] = self.strength * np.copysign((np.abs(w.astype(np.float64)) / norm) ** (self.p - 1.0), w)
        return result

    def strength_max(self, gradient_at_zero: Array) -> float:
        """Return the q-norm of the gradient, the smallest strength for which 0 is optimal."""
        return p_norm(np.asarray(gradient_at_zero), self._dual)


class _Sequence(FlatRegularizer):
    """Base class of regularizers that act on 1-D arrays."""

    def check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise unless the array is 1-D."""
        if len(shape) != 1:
            raise ConfigurationError(
                f"{type(self).__name__} acts on sequences, but the array {name!r} has shape {shape}; choose 1-D arrays "
                "with apply_to=, or give each array its own psi with PerParameter"
            )


def variation(w: Array) -> float:
    """Return sum_i |w_{i+1} - w_i|."""
    return float(np.abs(np.diff(w.astype(np.float64, copy=False))).sum())


def variation_subgradient(w: Array) -> Array:
    """Return D' sign(D w), with D the differences and sign(0) = 0."""
    result = np.zeros_like(w)
    signs = np.sign(np.diff(w))
    result[1:] += signs
    result[:-1] -= signs
    return result


@dataclass(frozen=True)
class TotalVariation(_Sequence):
    """Total variation of a sequence: psi(w) = strength * sum_i |w_{i+1} - w_i|. The result is piecewise constant.

    The proximal map is computed by an exact O(n) algorithm (dynamic programming, Johnson 2013)::

        argmin_w step * strength * sum_i |w_{i+1} - w_i| + 1/2 ||w - v||^2

    On every constant piece w is the mean of v there plus step * strength * (rise_right - rise_left) / length, where
    rise is +1 at a jump upwards, -1 downwards and 0 at the ends.

    Parameters
    ----------
    strength : float
        Finite, >= 0.

    Raises
    ------
    ConfigurationError
        If the strength is not a finite number >= 0.

    Examples
    --------
    >>> import numpy as np
    >>> TotalVariation(1.0).prox(np.array([1.0, 2.0, 9.0, 10.0]), 1.0)
    array([2., 2., 9., 9.])
    """

    kind: ClassVar[str] = "total-variation"
    strength: float = field(metadata=NON_NEGATIVE)

    def value(self, w: Array) -> float:
        """Return strength * sum_i |w_{i+1} - w_i|."""
        return self.strength * variation(w)

    def solve(self, v: Array, step: float, out: Array, shape: tuple[int, ...]) -> None:
        """Write the proximal map, computed by dynamic programming, to `out`."""
        self.check_shape("v", shape)
        total_variation(v, amount(step, self.strength), out)

    def subgradient(self, w: Array) -> Array:
        """Return strength * D' sign(D w), with D the differences and sign(0) = 0."""
        result = variation_subgradient(w)
        result *= self.strength
        return result


@dataclass(frozen=True)
class FusedLasso(_Sequence):
    """Sparse and piecewise constant: psi(w) = strength * ||w||_1 + difference_strength * sum_i |w_{i+1} - w_i|.

    The proximal map applies the total variation's, then soft-thresholds::

        argmin_w step * psi(w) + 1/2 ||w - v||^2 = soft(prox_{step * difference_strength TV}(v), step * strength)

    In this order it is exact: soft-thresholding never reverses the order of two coordinates (w_i < w_{i+1} is kept or
    becomes an equality), so a subgradient of the total variation remains one afterwards (Friedman et al. 2007).

    Parameters
    ----------
    strength : float
        Strength of the l1 norm; finite, >= 0.
    difference_strength : float
        Strength of the total variation; finite, >= 0.

    Raises
    ------
    ConfigurationError
        If a strength is not a finite number >= 0.

    Examples
    --------
    >>> import numpy as np
    >>> FusedLasso(2.5, 1.0).prox(np.array([1.0, 2.0, 9.0, 10.0]), 1.0)
    array([0. , 0. , 6.5, 6.5])
    """

    kind: ClassVar[str] = "fused-lasso"
    strength: float = field(metadata=NON_NEGATIVE)
    difference_strength: float = field(metadata=NON_NEGATIVE)

    def value(self, w: Array) -> float:
        """Return strength * ||w||_1 + difference_strength * sum_i |w_{i+1} - w_i|."""
        return float(self.strength * kernels.absolute_sum(w) + self.difference_strength * variation(w))

    def solve(self, v: Array, step: float, out: Array, shape: tuple[int, ...]) -> None:
        self.check_shape("v", shape)
        total_variation(v, amount(step, self.difference_strength), out)
        kernels.soft(out, amount(step, self.strength), None, 1.0, np.inf, out)

    def subgradient(self, w: Array) -> Array:
        """Return the sum of the two subgradients, with sign(0) = 0."""
        one = w.dtype.type
        result: Array = np.sign(w) * one(self.strength) + variation_subgradient(w) * one(self.difference_strength)
        return result

    def strength_max(self, gradient_at_zero: Array) -> float:
        """Return the smallest `strength` for which 0 is optimal, at this `difference_strength`.

        It is the largest |coordinate| of prox_{difference_strength TV}(gradient).
        """
        gradient = np.asarray(gradient_at_zero, dtype=np.float64)
        return float(np.abs(TotalVariation(self.difference_strength).prox(gradient, 1.0)).max(initial=0.0))


@dataclass(frozen=True)
class Monotone(_Sequence):
    """Monotone sequences, the isotonic cone {w : w_i <= w_{i+1} for every i}, or the same with >=.

    The proximal map is the projection, whatever the step: isotonic regression with equal weights, by an exact O(n)
    algorithm (pool adjacent violators, Ayer et al. 1955). The result is a mean of v on each of its constant pieces.

    Parameters
    ----------
    increasing : bool, default True
        Whether the sequence must not decrease; otherwise it must not increase.

    Raises
    ------
    ConfigurationError
        If `increasing` is not a boolean.

    Examples
    --------
    >>> import numpy as np
    >>> Monotone().prox(np.array([1.0, 4.0, 2.0, 6.0]), 1.0)
    array([1., 3., 3., 6.])
    """

    kind: ClassVar[str] = "monotone"
    constraint: ClassVar[bool] = True
    increasing: bool = field(default=True, metadata={"check": partial(number, within=None, kind=bool)})

    def value(self, w: Array) -> float:
        """Return 0.0 if the sequence is monotone, else inf."""
        with np.errstate(over="ignore"):
            rises = np.diff(w.astype(np.float64, copy=False))
        wrong = -rises if self.increasing else rises
        return outside(float(wrong.max(initial=0.0)), float(np.abs(w).max(initial=0.0)), w)

    def solve(self, v: Array, step: float, out: Array, shape: tuple[int, ...]) -> None:
        """Write the isotonic regression of v to `out`."""
        self.check_shape("v", shape)
        pool_adjacent_violators(v, out, self.increasing)

"""Sums over coordinates: penalties and boxes. A class says its terms; all else is read from them."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from flwr_fco.core.validation import FRACTION, POSITIVE, short
from flwr_fco.errors import ConfigurationError, in_words
from flwr_fco.kernels.prox import separable
from flwr_fco.regularizers import base
from flwr_fco.regularizers.base import WEIGHTS, Array, Ball, Penalty, Regularizer, Solver, Terms


class Separable(Regularizer):
    """A sum over coordinates; a subclass writes :meth:`terms`.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> import numpy as np
    >>> @dataclass(frozen=True)
    ... class NonNegativeL1(Separable):
    ...     kind = "non-negative-l1"
    ...     strength: float
    ...     def terms(self):
    ...         return Terms(threshold=self.strength, lower=0.0)
    >>> NonNegativeL1(1.0).prox(np.array([3.0, -2.0]), 0.5)
    array([2.5, 0. ])
    """

    @abstractmethod
    def terms(self) -> Terms:
        """Return the terms: numbers, or arrays that broadcast to the array's shape."""

    def value(self, w: Array) -> float:
        """Return the sum of the terms, or inf if a coordinate is beyond its bounds by more than rounding."""
        a, b, lower, upper = terms = self.terms()
        if terms.is_bounded:
            # A violation is measured relative to the bound; an open side stays infinite.
            slack = 16.0 * float(np.finfo(w.dtype).eps)
            inside = (w >= lower - slack * np.abs(lower)) & (w <= upper + slack * np.abs(upper))
            if not inside.all():
                return math.inf
        value = float((a * np.abs(w)).sum(dtype=np.float64))
        if not np.any(b):
            return value
        with np.errstate(over="ignore"):
            # In this order: a square may overflow where its product with a small factor does not.
            return value + 0.5 * float(((b * w) * w).sum(dtype=np.float64))

    def check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        """Refuse another shape, and terms of which psi would not be convex."""
        super().check_shape(name, shape)
        terms = self.terms()
        who = f"{type(self).__name__}.terms()"
        if not isinstance(terms, Terms):
            raise ConfigurationError(f"{who} returned {short(terms)}; expected Terms(threshold=...)")
        for term, value in terms._asdict().items():
            if term in ("threshold", "shrinkage") and not (least := np.min(value, initial=0.0)) >= 0.0:
                raise ConfigurationError(f"{who} has {term} {least:g}; expected numbers >= 0, of which psi is convex")
        if not np.all(np.less_equal(terms.lower, terms.upper)):
            raise ConfigurationError(f"{who} has lower > upper, or NaN; expected lower <= upper everywhere")

    def solver(self, shape: tuple[int, ...]) -> Solver:
        """Return the map clip(soft(v, step a) / (1 + step b), lower, upper)."""
        rows = self.terms().rows(shape)
        return lambda v, step, out: separable(v, step, rows, 1.0, out)

    def conjugate(self, u: Array) -> float:
        """Return the sum over coordinates of max_w u w - a |w| - b/2 w^2 over lower <= w <= upper."""
        a, b, lower, upper = self.terms().table(u.shape)
        u = u.reshape(-1)
        pull = np.sign(u) * np.maximum(np.abs(u) - a, 0.0)
        # Without curvature, a coordinate with a non-zero slope goes to its bound.
        best = np.where(pull == 0.0, 0.0, np.copysign(np.inf, pull))
        np.divide(pull, b, out=best, where=b > 0.0)
        best = np.clip(best, lower, upper)
        # At the end of the domain rounding decides nothing.
        best[np.isinf(best) & (np.abs(pull) <= base.ROUNDING * a)] = 0.0
        return float((u * best - a * np.abs(best) - 0.5 * b * best**2).sum()) if np.isfinite(best).all() else math.inf

    def largest_scaling(self, u: Array) -> float:
        a, b, lower, upper = self.terms().table(u.shape)
        u = u.reshape(-1)
        limited = (b == 0.0) & (u != 0.0) & np.isinf(np.where(u > 0.0, upper, lower))
        return float((a[limited] / np.abs(u[limited])).min(initial=math.inf))

    def subgradient(self, w: Array) -> Array:
        """Return a sign(w) + b w, with sign(0) = 0."""
        a, b, *_ = self.terms()
        return np.asarray(a * np.sign(w) + b * w, dtype=w.dtype)

    def strength_max(self, gradient_at_zero: Array) -> float:
        """Return max_i |g_i| / a_i of strength 1, with 0/0 = 0: that coordinate is optimal at 0 for any strength."""
        size = np.abs(np.asarray(gradient_at_zero, dtype=np.float64))
        unit = np.zeros(()) if not hasattr(self, "strength") else np.asarray(base.with_strength(self, 1.0).terms()[0])
        if not unit.any():
            return super().strength_max(size)
        least = np.where(size > 0.0, np.inf, 0.0)
        return float(np.divide(size, unit, out=least, where=unit > 0.0).max(initial=0.0))


@dataclass(frozen=True)
class Zero(Separable):
    """No regularization: psi(w) = 0.

    The proximal map is ``prox(v, step) = v``.

    Examples
    --------
    >>> import numpy as np
    >>> Zero().prox(np.array([3.0, -0.5]), 1.0)
    array([ 3. , -0.5])
    """

    kind: ClassVar[str] = "zero"

    def terms(self) -> Terms:
        return Terms()


@dataclass(frozen=True)
class L1(Penalty, Separable):
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
    """

    kind: ClassVar[str] = "l1"
    weights: Array | None = field(default=None, metadata=WEIGHTS)
    bound: float | None = field(default=None, metadata=POSITIVE)

    def terms(self) -> Terms:
        bound = math.inf if self.bound is None else self.bound
        return Terms(self.strength * (1.0 if self.weights is None else self.weights), 0.0, -bound, bound)


@dataclass(frozen=True)
class L2Squared(Penalty, Separable):
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
    weights: Array | None = field(default=None, metadata=WEIGHTS)

    def terms(self) -> Terms:
        return Terms(shrinkage=self.strength * (1.0 if self.weights is None else self.weights))


@dataclass(frozen=True)
class ElasticNet(Penalty, Separable):
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
    l1_ratio: float = field(default=0.5, metadata=FRACTION)
    weights: Array | None = field(default=None, metadata=WEIGHTS)
    scales: Array | None = field(default=None, metadata=WEIGHTS)

    def terms(self) -> Terms:
        weights: Any = 1.0 if self.weights is None else self.weights
        scales: Any = 1.0 if self.scales is None else self.scales
        l1 = self.strength * self.l1_ratio
        l2 = self.strength * (1.0 - self.l1_ratio)
        return Terms(l1 * (weights * scales), l2 * (weights * scales**2))


@dataclass(frozen=True)
class Box(Separable):
    """The box {w : lower <= w <= upper}, coordinate by coordinate.

    The proximal map is the projection, whatever the step: ``clip(v, lower, upper)``.

    Parameters
    ----------
    lower, upper : float or array
        Numbers or arrays that broadcast to the array; -inf and inf leave a side open.

    Raises
    ------
    ConfigurationError
        If a bound is NaN or a lower bound is above its upper bound.

    Examples
    --------
    >>> import numpy as np
    >>> Box(-1.0, 2.0).prox(np.array([3.0, -0.5, -2.0]), 1.0)
    array([ 2. , -0.5, -1. ])
    """

    kind: ClassVar[str] = "box"
    constraint: ClassVar[bool] = True
    lower: float | Array
    upper: float | Array

    def __post_init__(self) -> None:
        with in_words(f"{self!r}: expected numbers that broadcast to each other", ConfigurationError):
            sides = [np.array(side, dtype=np.float64) for side in (self.lower, self.upper)]
            # Also where one is NaN.
            empty = ~(sides[0] <= sides[1]) | (sides[0] == np.inf) | (sides[1] == -np.inf)
        if empty.any():
            raise ConfigurationError(f"{self!r} is empty: expected lower <= upper everywhere, with inf for open sides")
        for name, side in zip(("lower", "upper"), sides, strict=True):
            side.setflags(write=False)
            object.__setattr__(self, name, side if side.ndim else float(side))

    def terms(self) -> Terms:
        return Terms(lower=self.lower, upper=self.upper)


@dataclass(frozen=True)
class NonNegative(Separable):
    """The non-negative numbers {w : w >= 0}.

    The proximal map is the projection, whatever the step: ``max(v, 0)``.

    Examples
    --------
    >>> import numpy as np
    >>> NonNegative().prox(np.array([3.0, -0.5]), 1.0)
    array([3., 0.])
    """

    kind: ClassVar[str] = "non-negative"
    constraint: ClassVar[bool] = True

    def terms(self) -> Terms:
        return Terms(lower=0.0)


@dataclass(frozen=True)
class LInfinityBall(Ball, Separable):
    """The l-infinity ball {w : max |w_i| <= radius}.

    The proximal map is the projection, whatever the step: ``clip(v, -radius, radius)``.

    Parameters
    ----------
    radius : float
        Finite, > 0.

    Raises
    ------
    ConfigurationError
        If the radius is not a finite number > 0.

    Examples
    --------
    >>> import numpy as np
    >>> LInfinityBall(1.0).prox(np.array([3.0, -0.5]), 1.0)
    array([ 1. , -0.5])
    """

    kind: ClassVar[str] = "l-infinity-ball"

    def terms(self) -> Terms:
        return Terms(lower=-self.radius, upper=self.radius)

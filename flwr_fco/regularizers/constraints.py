"""Constraint sets: boxes, norm balls, the simplex and hard sparsity."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from flwr_fco.errors import ConfigurationError
from flwr_fco.kernels import prox as kernels
from flwr_fco.kernels.hard_sparsity import above_and_at, keep_largest, kth_largest
from flwr_fco.regularizers.base import Array, FlatRegularizer, SeparableTerms
from flwr_fco.regularizers.separable import Weighted, flat_weights
from flwr_fco.regularizers.validation import (
    COUNT,
    POSITIVE,
    SHARE,
    WEIGHTS,
    broadcastable,
    frozen_array,
    number,
    outside,
    tolerance,
)


@dataclass(frozen=True)
class Box(FlatRegularizer):
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
        for name in ("lower", "upper"):
            value = getattr(self, name)
            is_array = isinstance(value, np.ndarray | list | tuple) and np.ndim(value)
            side = frozen_array(self, name, value) if is_array else number(self, name, value)
            if np.isnan(side).any():
                raise ConfigurationError(f"Box({name}=...): expected numbers, got NaN")
            object.__setattr__(self, name, side)
        try:
            crossed = np.greater(self.lower, self.upper)
        except ValueError:
            raise ConfigurationError(
                f"Box: lower of shape {np.shape(self.lower)} and upper of shape {np.shape(self.upper)} do not "
                "broadcast to each other"
            ) from None
        if crossed.any() or np.equal(self.lower, np.inf).any() or np.equal(self.upper, -np.inf).any():
            raise ConfigurationError(
                f"Box(lower={self.lower!r}, upper={self.upper!r}) is empty: expected lower <= upper everywhere, "
                "with -inf and inf for open sides"
            )

    def value(self, w: Array) -> float:
        eps = tolerance(w)
        # A violation is measured relative to the bound; an open side stays infinite.
        inside = (w >= self.lower - eps * np.abs(self.lower)) & (w <= self.upper + eps * np.abs(self.upper))
        return 0.0 if bool(inside.all()) else float(np.inf)

    def solve(self, v: Array, step: float, out: Array, shape: tuple[int, ...]) -> None:
        if isinstance(self.lower, float) and isinstance(self.upper, float):
            kernels.clip(v, self.lower, self.upper, out)
        else:
            sides = (np.ascontiguousarray(np.broadcast_to(side, shape)) for side in (self.lower, self.upper))
            lower, upper = (side.reshape(-1) for side in sides)
            kernels.clip_arrays(v, lower, upper, out)

    def separable_terms(self, shape: tuple[int, ...]) -> SeparableTerms:
        return SeparableTerms(lower=self.lower, upper=self.upper)

    def check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise unless the bounds broadcast to the array."""
        broadcastable(self, "lower", np.shape(self.lower), name, shape)
        broadcastable(self, "upper", np.shape(self.upper), name, shape)


@dataclass(frozen=True)
class NonNegative(FlatRegularizer):
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

    def value(self, w: Array) -> float:
        """Return 0.0 if no coordinate is negative, else inf."""
        return 0.0 if bool((w >= 0.0).all()) else float(np.inf)

    def solve(self, v: Array, step: float, out: Array, shape: tuple[int, ...]) -> None:
        kernels.clip(v, 0.0, np.inf, out)

    def separable_terms(self, shape: tuple[int, ...]) -> SeparableTerms:
        return SeparableTerms(lower=0.0)


@dataclass(frozen=True)
class LInfinityBall(FlatRegularizer):
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
    constraint: ClassVar[bool] = True
    radius: float = field(metadata=POSITIVE)

    def value(self, w: Array) -> float:
        return outside(float(np.abs(w).max(initial=0.0)) - self.radius, self.radius, w)

    def solve(self, v: Array, step: float, out: Array, shape: tuple[int, ...]) -> None:
        kernels.clip(v, -self.radius, self.radius, out)

    def separable_terms(self, shape: tuple[int, ...]) -> SeparableTerms:
        return SeparableTerms(lower=-self.radius, upper=self.radius)


def scratch(v: Array, out: Array) -> Array:
    """Return an array of v's size that does not overlap v: `out` if possible, otherwise a new array."""
    return np.empty_like(v) if np.may_share_memory(v, out) else out


@dataclass(frozen=True)
class L1Ball(Weighted):
    """The (weighted) l1 ball {w : sum_i weights_i |w_i| <= radius}.

    The proximal map is the projection, whatever the step: ``v`` inside the ball, otherwise
    ``sign(v) max(|v| - theta * weights, 0)`` with the unique theta that puts it on the boundary. theta is found by
    Newton steps on the active set, exact to rounding even if v is many orders of magnitude larger than the radius.

    Parameters
    ----------
    radius : float
        Finite, > 0.
    weights : array, optional
        Non-negative numbers that broadcast to the array; 1 by default. A coordinate of weight 0 is free.

    Raises
    ------
    ConfigurationError
        If an argument is not as described.

    Examples
    --------
    >>> import numpy as np
    >>> L1Ball(1.0).prox(np.array([1.5, -1.0, 0.25]), 1.0)
    array([ 0.75, -0.25,  0.  ])
    """

    kind: ClassVar[str] = "l1-ball"
    constraint: ClassVar[bool] = True
    radius: float = field(metadata=POSITIVE)
    weights: Array | None = field(default=None, metadata=WEIGHTS)

    def value(self, w: Array) -> float:
        norm = kernels.absolute_sum(w.reshape(-1), flat_weights(self.weights, w.shape))
        return outside(norm - self.radius, self.radius, w)

    def solve(self, v: Array, step: float, out: Array, shape: tuple[int, ...]) -> None:
        if self.weights is not None:
            kernels.weighted_ball_project(v, flat_weights(self.weights, shape), self.radius, out)
        else:
            kernels.project(v, self.radius, True, scratch(v, out), out)


@dataclass(frozen=True)
class L2Ball(FlatRegularizer):
    """The l2 ball {w : ||w||_2 <= radius}.

    The proximal map is the projection, whatever the step: ``v * min(1, radius / ||v||_2)``.

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
    >>> L2Ball(1.0).prox(np.array([3.0, -4.0]), 1.0)
    array([ 0.6, -0.8])
    """

    kind: ClassVar[str] = "l2-ball"
    constraint: ClassVar[bool] = True
    radius: float = field(metadata=POSITIVE)

    def value(self, w: Array) -> float:
        unit, root = kernels.scaled_norm(w.reshape(-1))
        return outside(root - self.radius / unit, self.radius / unit, w)

    def solve(self, v: Array, step: float, out: Array, shape: tuple[int, ...]) -> None:
        unit, root = kernels.scaled_norm(v)
        if root <= self.radius / unit:
            np.add(v, v.dtype.type(0.0), out=out)
        elif not np.isfinite(root):
            out.fill(np.nan)
        else:
            kernels.scale_twice(v, unit, self.radius / root, out)


@dataclass(frozen=True)
class Simplex(FlatRegularizer):
    """The simplex {w : w >= 0, sum_i w_i = radius}.

    The proximal map is the projection, whatever the step: ``max(v - theta, 0)`` with the unique theta for which the sum
    equals the radius, found by Newton steps on the active set.

    Parameters
    ----------
    radius : float, default 1.0
        Finite, > 0.

    Raises
    ------
    ConfigurationError
        If the radius is not a finite number > 0.

    Examples
    --------
    >>> import numpy as np
    >>> Simplex().prox(np.array([1.5, -1.0, 1.0]), 1.0)
    array([0.75, 0.  , 0.25])
    """

    kind: ClassVar[str] = "simplex"
    constraint: ClassVar[bool] = True
    radius: float = field(default=1.0, metadata=POSITIVE)

    def value(self, w: Array) -> float:
        """Return 0.0 on the simplex (up to rounding), inf elsewhere."""
        if not bool((w >= -tolerance(w) * self.radius).all()):
            return float(np.inf)
        return outside(abs(kernels.absolute_sum(w.reshape(-1)) - self.radius), self.radius, w)

    def solve(self, v: Array, step: float, out: Array, shape: tuple[int, ...]) -> None:
        if v.size:
            kernels.project(v, self.radius, False, scratch(v, out), out)

    def check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise for an empty array, because its sum is 0 instead of the radius."""
        if 0 in shape:
            raise ConfigurationError(f"Simplex cannot act on the empty array {name!r} of shape {shape}")


@dataclass(frozen=True)
class HardSparsity(FlatRegularizer):
    """At most `count` non-zeros, or at most a share of all entries: {w : ||w||_0 <= count}. Not convex.

    The proximal map is a projection, whatever the step: the `count` coordinates with the largest |v_i| are kept and all
    others become 0. Ties are broken in favour of the first coordinate, so the result is the same on every machine. Dual
    averaging with it is iterative hard thresholding on a dual, which the papers' theory does not cover.

    Parameters
    ----------
    count : int, optional
        Maximum number of non-zeros, >= 1.
    density : float, optional
        Maximum share of non-zeros, 0 < density <= 1, instead of `count`. It is rounded to a whole number of entries, at
        least 1.

    Raises
    ------
    ConfigurationError
        If `count` is not a positive integer, `density` is not in (0, 1], or not exactly one of them is given.

    Examples
    --------
    >>> import numpy as np
    >>> HardSparsity(2).prox(np.array([1.0, -3.0, 2.0, -2.0]), 1.0)
    array([ 0., -3.,  2.,  0.])
    >>> HardSparsity(density=0.25).prox(np.array([1.0, -3.0, 2.0, -2.0]), 1.0)
    array([ 0., -3.,  0.,  0.])
    """

    kind: ClassVar[str] = "hard-sparsity"
    convex: ClassVar[bool] = False
    constraint: ClassVar[bool] = True
    count: int | None = field(default=None, metadata=COUNT)
    density: float | None = field(default=None, metadata=SHARE)

    def __post_init__(self) -> None:
        super().__post_init__()
        count, density = self.count, self.density
        if (count is None) == (density is None):
            raise ConfigurationError(f"HardSparsity(count={count!r}, density={density!r}): expected one of the two")

    def __repr__(self) -> str:
        option = f"count={self.count}" if self.density is None else f"density={self.density}"
        return f"{type(self).__name__}({option})"

    def count_of(self, size: int) -> int:
        """Return the maximum number of non-zeros in an array.

        Parameters
        ----------
        size : int
            The array's number of entries.
        """
        if self.density is None:
            return min(size, self.count or size)
        return min(size, max(1, round(self.density * size)))

    def value(self, w: Array) -> float:
        """Return 0.0 if w has at most `count` non-zeros, else inf."""
        return 0.0 if np.count_nonzero(w) <= self.count_of(w.size) else math.inf

    def solve(self, v: Array, step: float, out: Array, shape: tuple[int, ...]) -> None:
        """Keep the largest coordinates and set all others to 0."""
        count = self.count_of(v.size)
        if count >= v.size:
            np.add(v, v.dtype.type(0.0), out=out)
            return
        level = kth_largest([v], count)
        ties = count - above_and_at(v, level)[0]
        keep_largest(v, level, ties, out)

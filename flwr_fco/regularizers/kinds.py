"""Regularizers of one array: sums over coordinates, sets, norms of groups and singular values, others' operators."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from flwr_fco.core.layout import Vector
from flwr_fco.core.validation import AT_LEAST_ONE, CHANCE, FRACTION, POSITIVE, enter, short
from flwr_fco.errors import ConfigurationError, in_words
from flwr_fco.kernels.prox import grouped, keep_largest, magnitudes_between, on_simplex, scale
from flwr_fco.regularizers import base
from flwr_fco.regularizers.base import WEIGHTS, Array, Ball, Penalty, Regularizer, Separable, Solver, Terms, norm_of


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


# --- sets that are no boxes -------------------------------------------------------------------------------------------

#: From how many entries on the k-th largest is looked for among those that are near it in a sample of so many.
_LONG = 1 << 16
_SAMPLE = 1 << 12


@dataclass(frozen=True)
class L1Ball(Ball):
    """The (weighted) l1 ball {w : sum_i weights_i |w_i| <= radius}.

    The proximal map is the projection, whatever the step: ``v`` inside the ball, otherwise
    ``sign(v) max(|v| - theta * weights, 0)`` with the unique theta that puts it on the boundary, found by Newton steps
    on the active set.

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
    weights: Array | None = field(default=None, metadata=WEIGHTS)

    def value(self, w: Array) -> float:
        return base.outside(L1(1.0, self.weights).value(w) - self.radius, self.radius, w)

    def solver(self, shape: tuple[int, ...]) -> Solver:
        own = np.ones(1) if self.weights is None else self.weights
        # The smallest weight above 0, and the largest one.
        ends = float(own.min(where=own > 0.0, initial=math.inf)), float(own.max(initial=0.0))
        weights = 1.0 if self.weights is None else base.flat(self.weights, shape)
        return lambda v, step, out: on_simplex(v, weights, ends, self.radius, True, out)

    def conjugate(self, u: Array) -> float:
        return self.radius * L1(1.0, self.weights).strength_max(u)


@dataclass(frozen=True)
class L2Ball(Ball):
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

    def value(self, w: Array) -> float:
        unit, root = norm_of(w)
        return base.outside(root - self.radius / unit, self.radius / unit, w)

    def solver(self, shape: tuple[int, ...]) -> Solver:
        return self.solve

    def solve(self, v: Array, step: float, out: Array) -> None:
        unit, root = norm_of(v)
        if root <= self.radius / unit:
            scale(v, 1.0, out)
        else:  # an infinite one has no projection
            scale(v if unit == 1.0 else v / unit, self.radius / root if math.isfinite(root) else math.nan, out)

    def conjugate(self, u: Array) -> float:
        return self.radius * math.prod(norm_of(u))


@dataclass(frozen=True)
class Simplex(Ball):
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
    radius: float = field(default=1.0, metadata=POSITIVE)

    def value(self, w: Array) -> float:
        """Return 0.0 on the simplex (up to rounding), inf elsewhere."""
        off = abs(float(np.abs(w).sum(dtype=np.float64)) - self.radius)
        return base.outside(max(off, -float(w.min())), self.radius, w)

    def solver(self, shape: tuple[int, ...]) -> Solver:
        return lambda v, step, out: on_simplex(v, 1.0, (1.0, 1.0), self.radius, False, out)

    def conjugate(self, u: Array) -> float:
        return self.radius * float(u.max())


@dataclass(frozen=True)
class HardSparsity(Regularizer):
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
    count: int | None = field(default=None, metadata=AT_LEAST_ONE)
    density: float | None = field(default=None, metadata=CHANCE)

    def __post_init__(self) -> None:
        super().__post_init__()
        count, density = self.count, self.density
        if (count is None) == (density is None):
            raise ConfigurationError(f"HardSparsity(count={count!r}, density={density!r}): expected one of the two")

    def __repr__(self) -> str:
        option = f"count={self.count}" if self.density is None else f"density={self.density}"
        return f"{type(self).__name__}({option})"

    def count_of(self, size: int) -> int:
        """Return the maximum number of non-zeros in an array of so many entries."""
        return min(size, (self.count or size) if self.density is None else max(1, round(self.density * size)))

    def value(self, w: Array) -> float:
        """Return 0.0 if w has at most `count` non-zeros, else inf."""
        return 0.0 if np.count_nonzero(w) <= self.count_of(w.size) else math.inf

    def solver(self, shape: tuple[int, ...]) -> Solver:
        return self.solve

    def solve(self, v: Array, step: float, out: Array) -> None:
        """Keep the largest coordinates and set all others to 0."""
        count = self.count_of(v.size)
        keep_largest(v, kth_largest(v, count) if count < v.size else 0.0, count, out)


@dataclass(frozen=True)
class NofM(Regularizer):
    """At most `n` of `m` neighbours are not 0: with n = 2, m = 4 the sparsity that tensor cores run. Not convex.

    Neighbours are m entries in a row along the second axis, the input features or channels of PyTorch's layers, as
    ``torch.sparse.to_sparse_semi_structured`` and NVIDIA's ASP read a layer. The proximal map is a projection, whatever
    the step: in each row of m the n largest |v_i| are kept, among equal ones the first. An array of fewer than m inputs
    (the first convolution of an image) is left whole.

    Parameters
    ----------
    n : int, default 2
        Maximum number of non-zeros of m neighbours, 1 <= n <= m.
    m : int, default 4
        Number of neighbours.

    Raises
    ------
    ConfigurationError
        If n and m are not such integers; where psi acts on a vector, or on an array of m inputs or more whose number is
        no multiple of m.

    Examples
    --------
    >>> import numpy as np
    >>> NofM(2, 4).prox(np.array([[1.0, -3.0, 2.0, -2.0, 0.1, 0.0, 0.0, 0.2]]), 1.0)
    array([[ 0. , -3. ,  2. ,  0. ,  0.1,  0. ,  0. ,  0.2]])
    """

    kind: ClassVar[str] = "n-of-m"
    convex: ClassVar[bool] = False
    constraint: ClassVar[bool] = True
    n: int = field(default=2, metadata=AT_LEAST_ONE)
    m: int = field(default=4, metadata=AT_LEAST_ONE)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n > self.m:
            raise ConfigurationError(f"NofM(n={self.n}, m={self.m}): expected n <= m")

    def value(self, w: Array) -> float:
        """Return 0.0 if of each m neighbours at most n are not 0, else inf."""
        return 0.0 if np.array_equal(self.prox(w, 1.0), w) else math.inf

    def solve(self, v: Array, step: float, out: Array) -> None:
        """Keep the n largest of each m neighbours and set the others to 0."""
        out[...] = np.where(self.kept(v), v, 0.0) + 0.0

    def kept(self, v: Any) -> Any:
        """Return which entries are the n largest of m neighbours, or NaN, of an array or a tensor; of few inputs all.

        Parameters
        ----------
        v : ndarray or Tensor
            Inputs are along the second axis.
        """
        if v.shape[1] < self.m:
            return (v == v) | (v != v)
        rows = abs(v).swapaxes(1, -1)
        sizes = rows.reshape(-1, self.m)
        kept = sizes == sizes
        for i in range(self.m):
            own = sizes[:, i : i + 1]
            # Of equal ones the first stay; nothing is larger than NaN.
            ahead = (sizes[:, :i] >= own).sum(1) + (sizes[:, i + 1 :] > own).sum(1)
            kept[:, i] = ahead < self.n
        return kept.reshape(rows.shape).swapaxes(1, -1)

    def check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise unless the array has inputs, fewer than m or a multiple of it."""
        if len(shape) < 2:
            prefix = f"the array {name!r} has the shape {shape}; it reads the second axis of matrices and kernels"
            raise ConfigurationError(f"{self!r}: {prefix}. Name those in apply_to=... of Arrays")
        if shape[1] > self.m and shape[1] % self.m:
            prefix = f"the array {name!r} of shape {shape} has {shape[1]} inputs, no multiple of {self.m}"
            whole = f"PerParameter({{{name!r}: Zero(), '*': {self!r}}})"
            raise ConfigurationError(f"{self!r}: {prefix}; leave it whole with regularizer={whole}")


def kth_largest(v: Array, count: int) -> float:
    """Return exactly the `count`-th largest magnitude of a vector, 1 <= count <= size; NaN is the largest."""
    if v.size >= _LONG:
        # What is above the largest of a sample is near it, too.
        sample = np.append(np.sort(np.abs(v[:: v.size // _SAMPLE])), np.inf)
        # Three standard deviations to either side of where the sample has it.
        share = 1.0 - count / v.size
        slack = 3.0 * math.sqrt(sample.size * share * (1.0 - share)) + 1.0
        sides = np.clip([sample.size * share - slack, sample.size * share + slack], 0, sample.size - 1).astype(int)
        near, above = magnitudes_between(v, *sample[sides])
        if above < count <= above + near.size:
            v = near
            count = count - above
    sizes = np.abs(v)
    sizes.partition(sizes.size - count)
    return float(sizes[sizes.size - count])


# --- norms of groups --------------------------------------------------------------------------------------------------

#: Maximum number of group numbers per coordinate.
_SPARSEST = 16


class Grouped(Penalty):
    """strength * (l1_ratio ||w||_1 + (1 - l1_ratio) sum_g weights_g ||w_g||_2), with groups that cover the array."""

    groups: Array
    weights: Array | None
    l1_ratio: float = 0.0

    def __post_init__(self) -> None:
        given: Any = self.groups
        name = f"{type(self).__name__}(groups={short(given)})"
        # Those of a matrix's coordinates are an array, no list of one list of indices for each group.
        listed = isinstance(given, list | tuple) and any(np.size(members) > 1 for members in given)
        if listed or np.ndim(given) == 0:
            prefix = "expected an array, the number of each coordinate's group: [0, 0, 1] for the groups {0, 1} and {2}"
            raise ConfigurationError(f"{name}: {prefix}, np.arange(d) // k for k consecutive ones of d")
        super().__post_init__()
        # A table has a row for each number up to the largest, including unused numbers.
        count = int(self.groups.max(initial=-1)) + 1
        if not 0 < count <= max(_SPARSEST * self.groups.size, 1024):
            prefix = f"the largest group number is {count - 1} for {self.groups.size} coordinates"
            raise ConfigurationError(f"{name}: {prefix}; number the groups 0, 1, 2, ... without large gaps")
        if self.weights is not None and (self.weights.ndim != 1 or self.weights.size < count):
            prefix = f"expected one number for each of the {count} groups, got an array of shape {self.weights.shape}"
            raise ConfigurationError(f"{type(self).__name__}(weights=...): {prefix}")

    def groups_of(self, shape: tuple[int, ...]) -> tuple[float, Array, Vector]:
        groups = base.flat(self.groups, shape)
        count = int(self.groups.max()) + 1
        weights = np.sqrt(np.bincount(groups, minlength=count)) if self.weights is None else self.weights
        return self.strength * self.l1_ratio, groups, self.strength * (1.0 - self.l1_ratio) * weights

    def value(self, w: Array) -> float:
        """Return the sum of the norms."""
        l1, groups, strengths = self.groups_of(w.shape)
        absolute = l1 * np.abs(w).sum(dtype=np.float64) if l1 else 0.0
        return float(absolute + strengths @ _norms(w, groups, strengths.size))

    def solver(self, shape: tuple[int, ...]) -> Solver:
        """Return the map that soft-thresholds, then shrinks each group."""
        l1, groups, strengths = self.groups_of(shape)
        return lambda v, step, out: grouped(v, step * l1, groups, step * strengths, out)

    def conjugate(self, u: Array) -> float:
        """Return 0 up to the strength in the dual norm, inf beyond."""
        return 0.0 if self.strength_max(u) <= self.strength * (1.0 + base.ROUNDING) else math.inf

    def largest_scaling(self, u: Array) -> float:
        size = self.strength_max(u)
        return self.strength / size if size > 0.0 else math.inf

    def subgradient(self, w: Array) -> Array:
        """Return the sum of the gradients of the norms, 0 for norms that are 0."""
        l1, groups, strengths = self.groups_of(w.shape)
        norms = _norms(w, groups, strengths.size)
        factors = np.divide(strengths, norms, out=np.zeros(norms.size), where=norms > 0.0)
        return np.asarray(l1 * np.sign(w) + w * factors[groups].reshape(w.shape), dtype=w.dtype)

    def strength_max(self, gradient_at_zero: Array) -> float:
        """Return the smallest strength for which 0 is optimal, the maximum over the groups.

        Without an l1 term it is ||gradient_g||_2 / weights_g; with one, the root of ||soft(g, s * l1_ratio)||_2 =
        s (1 - l1_ratio) weights_g, whose left side decreases and right side increases with s: by bisection, to the last
        bit, of all groups at once.
        """
        l1, groups, pulls = base.with_strength(self, 1.0).groups_of(np.shape(gradient_at_zero))
        size = np.abs(np.asarray(gradient_at_zero, dtype=np.float64)).reshape(-1)
        norms = _norms(size, groups, pulls.size)
        if l1 == 0.0:
            return float(np.divide(norms, pulls, out=np.where(norms > 0.0, np.inf, 0.0), where=pulls > 0.0).max())
        low, high = np.zeros((2, pulls.size))
        np.maximum.at(high, groups, size / l1)
        while (between := (pulls > 0.0) & (low < (middle := 0.5 * (low + high))) & (middle < high)).any():
            above = _norms(np.maximum(size - middle[groups] * l1, 0.0), groups, pulls.size) > middle * pulls
            low = np.where(between & above, middle, low)
            high = np.where(between & ~above, middle, high)
        return float(high.max())

    def check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise unless the group numbers broadcast to the array."""
        base.fits(self, "groups", self.groups.shape, name, shape)


def _norms(w: Array, groups: Array, count: int) -> Vector:
    """Return the Euclidean norms of the groups."""
    unit = norm_of(w)[0]
    return np.asarray(unit * np.sqrt(np.bincount(groups, np.square(w.reshape(-1) / unit), count)))


@dataclass(frozen=True)
class L2(Grouped):
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
    groups: ClassVar[Array] = np.zeros((), dtype=np.int64)  # type: ignore[misc]
    weights: ClassVar[Array] = np.ones(1)  # type: ignore[misc]

    def __post_init__(self) -> None:
        Regularizer.__post_init__(self)

    def value(self, w: Array) -> float:
        """Return strength * ||w||_2."""
        return self.strength * math.prod(norm_of(w))

    def solver(self, shape: tuple[int, ...]) -> Solver:
        def solve(v: Array, step: float, out: Array) -> None:
            unit, root = norm_of(v)
            limit = step * self.strength / unit
            scale(v, 0.0 if root <= limit else 1.0 - limit / root, out)

        return solve


@dataclass(frozen=True)
class GroupLasso(Grouped):
    """The group lasso: psi(w) = strength * sum_g weights_g ||w_g||_2. Groups become 0 as a whole.

    The proximal map shrinks each group as a block::

        argmin_w step * psi(w) + 1/2 ||w - v||^2 : w_g = v_g * max(1 - step * strength * weights_g / ||v_g||_2, 0)

    Parameters
    ----------
    strength : float
        Finite, >= 0.
    groups : array of int
        Group number (0, 1, ...) of each coordinate; broadcasts to the array, so ``np.arange(m)[:, None]`` makes every
        row of an (m, n) array a group.
    weights : array, shape (number of groups,), optional
        Non-negative; the square root of each group's size by default. More weights than groups are allowed: the
        last groups are then empty.

    Raises
    ------
    ConfigurationError
        If an argument is not as described.

    Examples
    --------
    >>> import numpy as np
    >>> psi = GroupLasso(1.0, groups=np.array([0, 0, 1, 1]), weights=np.ones(2))
    >>> psi.prox(np.array([3.0, 4.0, 0.5, 0.5]), 2.5)
    array([1.5, 2. , 0. , 0. ])
    """

    kind: ClassVar[str] = "group-lasso"
    groups: Array = field(metadata=base.array(np.int64))
    weights: Array | None = field(default=None, metadata=WEIGHTS)


@dataclass(frozen=True)
class SparseGroupLasso(Grouped):
    """Sparse group lasso: psi(w) = strength * (l1_ratio ||w||_1 + (1 - l1_ratio) sum_g weights_g ||w_g||_2).

    The proximal map soft-thresholds, then shrinks each group: with u = soft(v, step * strength * l1_ratio)::

        w_g = u_g * max(1 - step * strength * (1 - l1_ratio) * weights_g / ||u_g||_2, 0)

    It is the composition of the two maps, in this order, because shrinking a group changes no signs: every subgradient
    of the l1 norm at u is also one at w.

    Parameters
    ----------
    strength : float
        Finite, >= 0.
    groups : array of int
        Group number (0, 1, ...) of each coordinate; broadcasts to the array.
    l1_ratio : float, default 0.5
        Between 0 (group lasso) and 1 (lasso).
    weights : array, shape (number of groups,), optional
        Non-negative weights of the group norms; the square root of each group's size by default.

    Raises
    ------
    ConfigurationError
        If an argument is not as described.

    Examples
    --------
    >>> import numpy as np
    >>> psi = SparseGroupLasso(2.0, groups=np.array([0, 0, 1, 1]), weights=np.ones(2))
    >>> psi.prox(np.array([4.0, 5.0, 1.5, 0.5]), 1.0)
    array([2.4, 3.2, 0. , 0. ])
    """

    kind: ClassVar[str] = "sparse-group-lasso"
    groups: Array = field(metadata=base.array(np.int64))
    l1_ratio: float = field(default=0.5, metadata=FRACTION)
    weights: Array | None = field(default=None, metadata=WEIGHTS)


# --- singular values --------------------------------------------------------------------------------------------------


Reshape = Literal["first", "last"]
#: Largest condition number of the kept part for which the Gram matrix is used. Squaring costs accuracy: the smallest
#: kept singular value has a relative error of eps * condition^2, about 2e-10 here.
GRAM_CONDITION = 1e3


def noise_of(largest: float, shape: tuple[int, ...]) -> float:
    """Return the size below which a result's singular value is noise: twice the threshold of the numerical rank."""
    return 128.0 * float(np.finfo(np.float64).eps) * max(shape) * largest


class Spectral(Regularizer):
    """A psi of the singular values of a 2-D array, or of one with more dimensions and ``reshape``.

    With V = P diag(s) Q' the proximal map is ``P diag(prox(s)) Q'`` with the prox of :meth:`of_values`. Subclasses have
    a field ``reshape``: ``"first"`` (``"last"``) keeps the first (last) axis and flattens all others; None accepts only
    2-D arrays.
    """

    reshape: Reshape | None

    @abstractmethod
    def of_values(self) -> Regularizer:
        """Return the regularizer of the vector of singular values."""

    def matrix(self, w: Array) -> Array:
        """Return the array as the matrix that psi reads."""
        self.check_shape("w", w.shape)
        if self.reshape == "first":
            return w.reshape(w.shape[0], math.prod(w.shape[1:]))
        return w.reshape(math.prod(w.shape[:-1]), w.shape[-1])

    def _values(self, w: Array) -> Vector:
        """Return the singular values in float64; NaN if an entry is not finite."""
        matrix = np.asarray(self.matrix(w), dtype=np.float64)
        if not np.isfinite(matrix).all():
            return np.full(1, np.nan)
        return np.asarray(np.linalg.svd(matrix, compute_uv=False)) if matrix.size else np.zeros(1)

    def value(self, w: Array) -> float:
        """Return psi of the singular values; a bound holds up to the rounding of a product of matrices."""
        values = self._values(w)
        inner = self.of_values()
        value = inner.value(values)
        slack = 16.0 * float(np.finfo(w.dtype).eps) * math.sqrt(max(w.shape))
        return value if value < math.inf else inner.value(values / (1.0 + slack))

    def solve(self, v: Array, step: float, out: Array) -> None:
        """Write the proximal point by the cheapest method with a relative error of 1e-9 in every singular value.

        No method depends on earlier calls, so equal inputs give equal bits. Singular values of the result below 128 eps
        max(m, n) times its largest are set to 0: they are rounding errors, and without them every method of computing
        the numerical rank gives the same one.
        """
        matrix = np.asarray(self.matrix(v), dtype=np.float64)
        inner = self.of_values()
        unit, norm = norm_of(matrix)
        cut = step * float(getattr(self, "strength", 0.0)) / unit
        if not cut < norm < math.inf:
            out[...] = 0.0 if norm < math.inf else math.nan
            return
        left, values, right = _factors(matrix / unit if unit != 1.0 else matrix, cut, norm)
        values = values * unit
        if self.constraint and inner.value(values) == 0.0:
            np.add(v, 0.0, out=out)
            return
        shrunk = inner.prox(values, step)
        rank = int((shrunk > noise_of(float(shrunk.max(initial=0.0)), matrix.shape)).sum())
        # Adding 0.0 turns the negative zeros of a product with zeros into zeros.
        product = ((left[:, :rank] * shrunk[:rank]) @ right[:rank]).reshape(v.shape)
        np.add(product, 0.0, out=out, casting="same_kind")

    def conjugate(self, u: Array) -> float:
        return self.of_values().conjugate(self._values(u))

    def largest_scaling(self, u: Array) -> float:
        return self.of_values().largest_scaling(self._values(u))

    def subgradient(self, w: Array) -> Array:
        """Return P diag(subgradient(s)) Q' over the non-zero singular values (0 where W is 0)."""
        if self.constraint or not np.isfinite(w).all():
            return np.where(np.isfinite(w).all(), np.zeros_like(w), w.dtype.type(np.nan))
        left, values, right = np.linalg.svd(self.matrix(w), full_matrices=False)
        noise = 64.0 * np.finfo(w.dtype).eps * max(left.shape[0], right.shape[1]) * values.max(initial=0.0)
        slopes = self.of_values().subgradient(np.where(values > noise, values, 0.0))
        return np.asarray((left * slopes) @ right, dtype=w.dtype).reshape(w.shape)

    def strength_max(self, gradient_at_zero: Array) -> float:
        """Return that of the singular values: for a nuclear norm, the largest one."""
        if not hasattr(self, "strength"):
            return super().strength_max(gradient_at_zero)
        return self.of_values().strength_max(self._values(np.asarray(gradient_at_zero)))

    def check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise unless the array is a matrix, or has two or more dimensions and ``reshape`` is given."""
        if len(shape) < 2 or (len(shape) > 2 and self.reshape is None):
            prefix = f"{type(self).__name__} acts on matrices, but the array {name!r} has shape {shape}"
            raise ConfigurationError(f"{prefix}; choose arrays (apply_to=), or keep one axis of more: reshape='first'")


def _factors(matrix: Array, cut: float, norm: float) -> tuple[Array, Vector, Array]:
    """Return U, s and V' of the matrix, or of its part with singular values above the cut if that is cheaper.

    Every kept singular value is above the cut. Where that bounds the condition number of the kept part, eigenvectors of
    the smaller Gram matrix are accurate enough.
    """
    tall = matrix.shape[0] >= matrix.shape[1]
    wide = matrix.T if tall else matrix
    if cut * GRAM_CONDITION**2 > norm:
        squares, vectors = np.linalg.eigh(wide @ wide.T)
        vectors = vectors[:, squares > cut * cut][:, ::-1]
        rows = vectors.T @ wide
        # The length of u'A is a Rayleigh quotient of A itself, which is more accurate than the root of the eigenvalue.
        values = np.sqrt(np.einsum("ij,ij->i", rows, rows))
        if not values.size or values.min() * GRAM_CONDITION >= values.max():
            order = np.argsort(-values, kind="stable")
            vectors, values, rows = vectors[:, order], values[order], (rows / values[:, None])[order]
            # They are orthogonal to eps * condition^2 only; a Newton-Schulz step squares that.
            rows = 1.5 * rows - 0.5 * (rows @ rows.T) @ rows
            return (rows.T, values, vectors.T) if tall else (vectors, values, rows)
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    return left, values, right


@dataclass(frozen=True)
class Nuclear(Penalty, Spectral):
    """The nuclear norm, optionally within a spectral ball: psi(W) = strength * sum_i s_i(W), s_1(W) <= bound.

    The proximal map soft-thresholds the singular values, then clips them: with V = P diag(s) Q'::

        argmin_W step * psi(W) + 1/2 ||W - V||_F^2 = P diag(min(max(s - step * strength, 0), bound)) Q'

    Parameters
    ----------
    strength : float
        Finite, >= 0.
    bound : float, optional
        The largest singular value allowed (> 0); no bound by default.
    reshape : {"first", "last"}, optional
        How an array with more than two dimensions becomes a matrix: the first (last) axis is kept and all others are
        flattened. By default such arrays raise an error.

    Raises
    ------
    ConfigurationError
        If an argument is not as described.

    Examples
    --------
    >>> import numpy as np
    >>> Nuclear(1.0).prox(np.diag([3.0, 0.5]), 1.0)
    array([[2., 0.],
           [0., 0.]])
    """

    kind: ClassVar[str] = "nuclear"
    bound: float | None = field(default=None, metadata=POSITIVE)
    reshape: Reshape | None = None

    def of_values(self) -> Regularizer:
        return L1(self.strength, bound=self.bound)


@dataclass(frozen=True)
class NuclearBall(Ball, Spectral):
    """The nuclear-norm ball {W : sum_i s_i(W) <= radius}.

    The proximal map is the projection, whatever the step: it projects the singular values onto the l1 ball. With
    V = P diag(s) Q' it is ``P diag(max(s - theta, 0)) Q'`` for the unique theta that puts it on the boundary.

    Parameters
    ----------
    radius : float
        Finite, > 0.
    reshape : {"first", "last"}, optional
        How an array with more than two dimensions becomes a matrix; by default such arrays raise an error.

    Raises
    ------
    ConfigurationError
        If an argument is not as described.

    Examples
    --------
    >>> import numpy as np
    >>> NuclearBall(2.0).prox(np.diag([3.0, 1.5]), 1.0)
    array([[1.75, 0.  ],
           [0.  , 0.25]])
    """

    kind: ClassVar[str] = "nuclear-ball"
    reshape: Reshape | None = None

    def of_values(self) -> Regularizer:
        return L1Ball(self.radius)


@dataclass(frozen=True)
class SpectralBall(Ball, Spectral):
    """The spectral-norm ball {W : s_1(W) <= radius}.

    The proximal map is the projection, whatever the step: it clips the singular values. With V = P diag(s) Q' it is
    ``P diag(min(s, radius)) Q'``.

    Parameters
    ----------
    radius : float
        Finite, > 0.
    reshape : {"first", "last"}, optional
        How an array with more than two dimensions becomes a matrix; by default such arrays raise an error.

    Raises
    ------
    ConfigurationError
        If an argument is not as described.

    Examples
    --------
    >>> import numpy as np
    >>> SpectralBall(2.0).prox(np.diag([3.0, 1.5]), 1.0)
    array([[2. , 0. ],
           [0. , 1.5]])
    """

    kind: ClassVar[str] = "spectral-ball"
    reshape: Reshape | None = None

    def of_values(self) -> Regularizer:
        return LInfinityBall(self.radius)


# --- operators of other libraries -------------------------------------------------------------------------------------

#: Named factories of operators; see Adapter.register.
FACTORIES: dict[str, Callable[..., Any]] = {}


@dataclass(frozen=True)
class Adapter(Regularizer):
    """Any object with pyproximal's interface as psi: psi(w) = operator(w), and its ``operator.prox``.

    The proximal map is the operator's::

        argmin_w step * psi(w) + 1/2 ||w - v||^2 = operator.prox(v, step)

    and as exact as the operator's. The operator receives the array as one vector (a copy), and its value may be boolean
    (inside or outside), as for pyproximal's indicators. At step 0 the map returns v without calling ``operator.prox``,
    unless the value is boolean.

    Parameters
    ----------
    name : str
        Name of a factory of operators registered with :meth:`register`; only the name and the `arguments` are sent. An
        operator has ``operator(x) -> float | bool`` and ``operator.prox(x, tau) -> array``.
    arguments : mapping of str to number, string or array, optional
        Keyword arguments of the factory.

    Raises
    ------
    ConfigurationError
        If the name is not registered, or the operator lacks the two methods.

    Examples
    --------
    >>> import numpy as np
    >>> class Huber:
    ...     def __init__(self, sigma):
    ...         self.sigma = sigma
    ...     def __call__(self, x):
    ...         return float(np.where(abs(x) > self.sigma, abs(x) - self.sigma / 2, x**2 / (2 * self.sigma)).sum())
    ...     def prox(self, x, tau):
    ...         return x - tau * x / np.maximum(abs(x), tau + self.sigma)
    >>> _ = Adapter.register("huber", Huber)
    >>> psi = Adapter("huber", {"sigma": 1.0})
    >>> psi.prox(np.array([3.0, 0.5]), 1.0)
    array([2.  , 0.25])
    >>> Regularizer.from_spec(psi.to_spec()) == psi
    True
    """

    kind: ClassVar[str] = "adapter"
    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.name not in FACTORIES or not isinstance(self.arguments, Mapping):
            prefix = f"Adapter({self.name!r}, {self.arguments!r}): expected a registered name and a mapping"
            advice = f"call Adapter.register({self.name!r}, factory) in a module of both ServerApp and ClientApp"
            raise ConfigurationError(f"{prefix}; known here: {', '.join(sorted(FACTORIES)) or 'none'}; {advice}")
        operator = FACTORIES[self.name](**self.arguments)
        if not callable(operator) or not callable(getattr(operator, "prox", None)):
            raise ConfigurationError(f"Adapter: {operator!r}; expected operator(x) and operator.prox(x, tau)")
        vars(self).update(arguments=dict(self.arguments), _operator=operator)

    def __reduce__(self) -> tuple[type[Adapter], tuple[str, Mapping[str, Any]]]:
        """Pickle by constructor: the operator is made again."""
        return type(self), (self.name, self.arguments)

    @staticmethod
    def register(name: str, factory: Callable[..., Any]) -> Callable[..., Any]:
        """Register a factory of operators under a name, so that the adapter can be sent to clients.

        Call it in a module that both the ServerApp and the ClientApp import: only the name and the arguments are sent,
        never code.

        Parameters
        ----------
        name : str
            A name of your choice.
        factory : callable
            A class or function that returns an operator; called with the arguments given to :class:`Adapter`.

        Returns
        -------
        callable
            The factory.

        Raises
        ------
        ConfigurationError
            If the name is already registered for another factory.
        """
        enter(FACTORIES, name, factory, "the name is taken: an operator called")
        return factory

    def value(self, w: Array) -> float:
        """Return operator(w); an indicator's True and False become 0.0 and inf."""
        result = self._operator(w.reshape(-1).copy())  # type: ignore[attr-defined]
        if isinstance(result, bool | np.bool_):
            return 0.0 if result else float(np.inf)
        return float(result)

    def solve(self, v: Array, step: float, out: Array) -> None:
        """Write operator.prox(v, step)."""
        point = v.reshape(-1).copy()
        operator = self._operator  # type: ignore[attr-defined]
        if step > 0.0 or isinstance(operator(point.copy()), bool | np.bool_):
            # An indicator ignores the step, but may divide by it.
            point = np.asarray(operator.prox(point, step or 1.0))
        np.add(point.reshape(v.shape), 0.0, out=out, casting="same_kind")

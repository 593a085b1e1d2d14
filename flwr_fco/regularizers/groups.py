"""Regularizers of groups of coordinates: the l2 norm of the whole array, group lasso and sparse group lasso."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from flwr_fco.core.layout import Vector
from flwr_fco.core.validation import FRACTION, NON_NEGATIVE, short
from flwr_fco.errors import ConfigurationError
from flwr_fco.kernels.prox import grouped, scale
from flwr_fco.regularizers.base import ROUNDING, WEIGHTS, Array, Groups, Regularizer, Solver, fits, flat, with_strength
from flwr_fco.regularizers.base import array as an_array

#: Maximum number of group numbers per coordinate.
_SPARSEST = 16


def norm_of(v: Array) -> tuple[float, float]:
    """Return (unit, root) with ||v||_2 = unit * root; the unit is 1.0 unless squares over- or underflow."""
    values = np.asarray(v, dtype=np.float64)
    # vdot does not warn if the sum overflows; dot does.
    square = float(np.vdot(values, values))
    if 1e-280 < square < 1e300 or math.isnan(square):
        return 1.0, math.sqrt(square)
    unit = float(np.abs(values).max(initial=0.0))
    if unit == 0.0 or math.isinf(unit):
        return 1.0, unit
    values = values / unit
    return unit, math.sqrt(np.vdot(values, values))


class Grouped(Regularizer):
    """strength * (l1_ratio ||w||_1 + (1 - l1_ratio) sum_g weights_g ||w_g||_2), with groups that cover the array."""

    strength: float
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

    def groups_of(self, shape: tuple[int, ...]) -> Groups:
        groups = flat(self.groups, shape)
        weights = self.weights
        if weights is None:
            weights = np.sqrt(np.bincount(groups, minlength=int(self.groups.max()) + 1))
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
        return 0.0 if self.strength_max(u) <= self.strength * (1.0 + ROUNDING) else math.inf

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
        l1, groups, pulls = with_strength(self, 1.0).groups_of(np.shape(gradient_at_zero))
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
        fits(self, "groups", self.groups.shape, name, shape)


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
    strength: float = field(metadata=NON_NEGATIVE)

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
    strength: float = field(metadata=NON_NEGATIVE)
    groups: Array = field(metadata=an_array(np.int64))
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
    strength: float = field(metadata=NON_NEGATIVE)
    groups: Array = field(metadata=an_array(np.int64))
    l1_ratio: float = field(default=0.5, metadata=FRACTION)
    weights: Array | None = field(default=None, metadata=WEIGHTS)

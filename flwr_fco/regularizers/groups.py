"""Regularizers of groups of coordinates: the l2 norm of the whole array, group lasso and sparse group lasso."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from flwr_fco.errors import ConfigurationError
from flwr_fco.kernels import prox as kernels
from flwr_fco.regularizers.base import Array, FlatRegularizer
from flwr_fco.regularizers.separable import flat_weights
from flwr_fco.regularizers.validation import (
    NON_NEGATIVE,
    RATIO,
    amount,
    broadcastable,
    frozen_array,
    non_negative_array,
)

#: Maximum number of group numbers per coordinate.
_SPARSEST = 16


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


class _Grouped(FlatRegularizer):
    """Base class of the group regularizers: the groups and their weights."""

    strength: float
    groups: Array
    weights: Array | None
    l1_ratio: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self).__name__
        if _are_index_lists(self.groups):
            raise ConfigurationError(
                f"{name}(groups={_shortened(self.groups)}): these look like one list of indices for each group; "
                "expected the number of each coordinate's group, such as [0, 0, 1] for the groups {0, 1} and {2}. "
                "Make it with `for number, indices in enumerate(lists): groups[indices] = number`"
            )
        if np.ndim(self.groups) == 0:
            raise ConfigurationError(
                f"{name}(groups={self.groups!r}): expected an array, the number of each coordinate's group; "
                "for groups of k consecutive coordinates of d that is np.arange(d) // k"
            )
        if np.asarray(self.groups).dtype.kind not in "iu":
            raise ConfigurationError(
                f"{name}(groups=...): expected an array of integers, the number of each coordinate's group, got dtype "
                f"{np.asarray(self.groups).dtype}"
            )
        groups = frozen_array(self, "groups", self.groups, np.int64)
        if groups.size == 0 or groups.min() < 0:
            raise ConfigurationError(
                f"{name}(groups=...): expected group numbers 0, 1, ..., got "
                f"{'an empty array' if groups.size == 0 else int(groups.min())}"
            )
        # A table has a row for each number up to the largest, including unused numbers.
        if groups.max() >= max(_SPARSEST * groups.size, 1024):
            raise ConfigurationError(
                f"{name}(groups=...): the largest group number is {int(groups.max())} for {groups.size} coordinates; "
                "number the groups 0, 1, 2, ... without large gaps"
            )
        object.__setattr__(self, "groups", groups)
        if self.weights is None:
            return
        weights = non_negative_array(self, "weights", self.weights)
        if weights.ndim != 1 or weights.size <= groups.max():
            raise ConfigurationError(
                f"{name}(weights=...): expected one number for each of the {int(groups.max()) + 1} groups, got an "
                f"array of shape {weights.shape}"
            )
        object.__setattr__(self, "weights", weights)

    def _resolve(self, shape: tuple[int, ...]) -> tuple[Array, Array]:
        """Return each coordinate's group number and each group's weight for an array of this shape."""
        groups = flat_weights(self.groups, shape)
        if self.weights is not None:
            return groups, self.weights
        return groups, np.sqrt(np.bincount(groups, minlength=int(self.groups.max()) + 1))

    def _norms(self, w: Array) -> tuple[Array, Array, Array]:
        """Return each coordinate's group number, and the weights and norms of the groups."""
        groups, weights = self._resolve(w.shape)
        return groups, weights, kernels.group_norms(w.reshape(-1), groups, weights.size)

    def group_terms(self, shape: tuple[int, ...]) -> tuple[float, Array, Array]:
        """Return the strength of the l1 norm, each coordinate's group number and each group's strength.

        Parameters
        ----------
        shape : tuple of int
            The array's shape.
        """
        groups, weights = self._resolve(shape)
        l1, strength = self._strengths
        return l1, groups, strength * weights

    @property
    def _strengths(self) -> tuple[float, float]:
        """Strengths of the l1 norm and of the group norms."""
        return self.strength * self.l1_ratio, self.strength * (1.0 - self.l1_ratio)

    def value(self, w: Array) -> float:
        """Return strength * (l1_ratio ||w||_1 + (1 - l1_ratio) sum_g weights_g ||w_g||_2)."""
        _, weights, norms = self._norms(w)
        absolute = self.l1_ratio * kernels.absolute_sum(w.reshape(-1)) if self.l1_ratio else 0.0
        return float(self.strength * (absolute + (1.0 - self.l1_ratio) * float(weights @ norms)))

    def solve(self, v: Array, step: float, out: Array, shape: tuple[int, ...]) -> None:
        (groups, weights), (l1, strength) = self._resolve(shape), self._strengths
        if self.l1_ratio:
            kernels.soft(v, amount(step, l1), None, 1.0, np.inf, out)
            v = out
        norms = kernels.group_norms(v, groups, weights.size)
        kernels.group_shrink(v, groups, norms, amount(step, strength), weights, out)

    def check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise unless the group numbers broadcast to the array."""
        broadcastable(self, "groups", self.groups.shape, name, shape)


@dataclass(frozen=True)
class GroupLasso(_Grouped):
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
    groups: Array
    weights: Array | None = None

    def subgradient(self, w: Array) -> Array:
        """Return strength * weights_g * w_g / ||w_g||_2, 0 for groups that are 0."""
        groups, weights, norms = self._norms(w)
        factors = np.divide(self.strength * weights, norms, out=np.zeros(weights.size), where=norms > 0)
        return (w.reshape(-1) * factors[groups]).reshape(w.shape).astype(w.dtype)

    def strength_max(self, gradient_at_zero: Array) -> float:
        """Return max_g ||gradient_g||_2 / weights_g, the smallest strength for which 0 is optimal."""
        gradient = np.asarray(gradient_at_zero, dtype=np.float64)
        _, weights, norms = self._norms(gradient)
        needed = np.divide(norms, weights, out=np.where(norms > 0, np.inf, 0.0), where=weights > 0)
        return float(needed.max())


@dataclass(frozen=True)
class SparseGroupLasso(_Grouped):
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
    groups: Array
    l1_ratio: float = field(default=0.5, metadata=RATIO)
    weights: Array | None = None

    def subgradient(self, w: Array) -> Array:
        """Return the sum of the two subgradients; where one is not unique, it is 0."""
        groups, weights, norms = self._norms(w)
        factors = np.divide(weights, norms, out=np.zeros(weights.size), where=norms > 0)
        group_part = (w.reshape(-1) * factors[groups]).reshape(w.shape)
        result: Array = self.strength * (self.l1_ratio * np.sign(w) + (1.0 - self.l1_ratio) * group_part)
        return result.astype(w.dtype)

    def strength_max(self, gradient_at_zero: Array) -> float:
        """Return the smallest strength for which 0 is optimal, the maximum over the groups.

        For one group it is the root of ||soft(g, s * l1_ratio)||_2 = s (1 - l1_ratio) weights_g, found by bisection
        to the last bit: with s the left side decreases and the right side increases.
        """
        gradient = np.abs(np.asarray(gradient_at_zero, dtype=np.float64))
        groups, weights = self._resolve(gradient.shape)
        flat = gradient.reshape(-1)
        largest = 0.0
        for group, weight in enumerate(weights):
            entries = flat[groups == group]
            largest = max(largest, self._group_strength(entries, float(weight)))
        return largest

    def _group_strength(self, size: Array, weight: float) -> float:
        norm = float(np.linalg.norm(size))
        if norm == 0.0:
            return 0.0
        pull = (1.0 - self.l1_ratio) * weight
        # Either term alone would set the group to 0 at its own threshold.
        high = min(
            norm / pull if pull > 0.0 else math.inf,
            float(size.max()) / self.l1_ratio if self.l1_ratio > 0.0 else math.inf,
        )
        if not math.isfinite(high):
            return high
        low = 0.0
        while low < (middle := 0.5 * (low + high)) < high:
            rest = float(np.linalg.norm(np.maximum(size - middle * self.l1_ratio, 0.0)))
            if rest > middle * pull:
                low = middle
            else:
                high = middle
        return high


def _are_index_lists(groups: Any) -> bool:
    """Whether this is a list of index sequences: they contain every coordinate once, or differ in length."""
    if not isinstance(groups, list | tuple) or not groups or not all(np.ndim(members) == 1 for members in groups):
        return False
    indices = np.concatenate([np.asarray(members).reshape(-1) for members in groups])
    if len({len(members) for members in groups}) > 1:
        return True
    # Lists of one number each are a column of group numbers.
    return indices.size > len(groups) and bool(np.array_equal(np.sort(indices), np.arange(indices.size)))


def _shortened(groups: Any) -> str:
    text = repr(groups)
    return text if len(text) <= 60 else f"{text[:57]}..."

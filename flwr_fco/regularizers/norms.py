"""Norms of groups of coordinates and of singular values, and balls of these: each is read from another regularizer."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from flwr_fco.core.layout import Vector
from flwr_fco.core.validation import FRACTION, POSITIVE, short
from flwr_fco.errors import ConfigurationError
from flwr_fco.kernels.prox import grouped, scale
from flwr_fco.regularizers import base
from flwr_fco.regularizers.base import WEIGHTS, Array, Ball, Penalty, Regularizer, Solver
from flwr_fco.regularizers.separable import L1, LInfinityBall
from flwr_fco.regularizers.sets import L1Ball

Reshape = Literal["first", "last"]

#: Maximum number of group numbers per coordinate.
_SPARSEST = 16
#: Largest condition number of the kept part for which the Gram matrix is used. Squaring costs accuracy: the smallest
#: kept singular value has a relative error of eps * condition^2, about 2e-10 here.
GRAM_CONDITION = 1e3


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
    unit = base.norm_of(w)[0]
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
        return self.strength * math.prod(base.norm_of(w))

    def solver(self, shape: tuple[int, ...]) -> Solver:
        def solve(v: Array, step: float, out: Array) -> None:
            unit, root = base.norm_of(v)
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
        if not np.isfinite(matrix).all():
            out[...] = np.nan
            return
        unit, norm = base.norm_of(matrix)
        cut = step * float(getattr(self, "strength", 0.0)) / unit
        if norm <= cut or not matrix.size:
            out[...] = 0.0
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

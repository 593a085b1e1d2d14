"""Constraint sets that are no boxes: norm balls, the simplex and hard sparsity."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from flwr_fco.core.validation import AT_LEAST_ONE, CHANCE, POSITIVE
from flwr_fco.errors import ConfigurationError
from flwr_fco.kernels.prox import keep_largest, magnitudes_between, on_simplex, scale
from flwr_fco.regularizers.base import WEIGHTS, Array, Ball, Regularizer, Solver, flat, norm_of, outside
from flwr_fco.regularizers.separable import L1

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
        return outside(L1(1.0, self.weights).value(w) - self.radius, self.radius, w)

    def solver(self, shape: tuple[int, ...]) -> Solver:
        own = np.ones(1) if self.weights is None else self.weights
        # The smallest weight above 0, and the largest one.
        ends = float(own.min(where=own > 0.0, initial=math.inf)), float(own.max(initial=0.0))
        weights = 1.0 if self.weights is None else flat(self.weights, shape)
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
        return outside(root - self.radius / unit, self.radius / unit, w)

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
        return outside(max(off, -float(w.min())), self.radius, w)

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
        np.add(v, 0.0, out=out)
        if v.shape[1] >= self.m:
            rows = np.moveaxis(v, 1, -1)
            np.moveaxis(out, 1, -1)[~self.largest(np.abs(rows.reshape(-1, self.m))).reshape(rows.shape)] = 0.0

    def largest(self, sizes: Any) -> Any:
        """Return which of m magnitudes in a row are the n largest, and every NaN; of an array or a tensor.

        Parameters
        ----------
        sizes : ndarray or Tensor, shape (rows, m)
            Magnitudes.
        """
        kept = sizes == sizes
        for i in range(self.m):
            own = sizes[:, i : i + 1]
            # Of equal ones the first stay; nothing is larger than NaN.
            ahead = (sizes[:, :i] >= own).sum(1) + (sizes[:, i + 1 :] > own).sum(1)
            kept[:, i] = ahead < self.n
        return kept

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

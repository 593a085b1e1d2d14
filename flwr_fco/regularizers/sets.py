"""Other constraints: affine subspaces and hard sparsity."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from flwr_fco.errors import ConfigurationError
from flwr_fco.kernels.hard_sparsity import above_and_at, keep_largest, kth_largest
from flwr_fco.regularizers.base import Array
from flwr_fco.regularizers.flat import FlatRegularizer
from flwr_fco.regularizers.validation import frozen_array, tolerance


@dataclass(frozen=True)
class AffineSubspace(FlatRegularizer):
    """The affine subspace {w : A w = b}, on the array read as one vector.

    The proximal map is the projection, whatever the step: ``v - pinv(A) (A v - b)``. An orthonormal basis of the rows
    of A is computed once, at construction; A may have dependent rows if the equations agree.

    Parameters
    ----------
    matrix : array, shape (k, n)
        A.
    target : array, shape (k,)
        b.

    Raises
    ------
    ConfigurationError
        If the shapes do not fit, a number is not finite, or the equations have no solution.

    Examples
    --------
    >>> import numpy as np
    >>> AffineSubspace(np.ones((1, 3)), np.array([6.0])).prox(np.array([1.0, 0.0, 2.0]), 1.0)
    array([2., 1., 3.])
    """

    kind: ClassVar[str] = "affine-subspace"
    constraint: ClassVar[bool] = True
    matrix: Array
    target: Array

    def __post_init__(self) -> None:
        matrix = frozen_array(self, "matrix", self.matrix)
        target = frozen_array(self, "target", self.target)
        if matrix.ndim != 2 or target.shape != matrix.shape[:1] or not matrix.size:
            raise ConfigurationError(
                f"AffineSubspace: matrix of shape {matrix.shape} and target of shape {target.shape}; expected (k, n) "
                "and (k,)"
            )
        if not (np.isfinite(matrix).all() and np.isfinite(target).all()):
            raise ConfigurationError("AffineSubspace: matrix and target must be finite")
        left, values, right = np.linalg.svd(matrix, full_matrices=False)
        rank = int((values > np.finfo(np.float64).eps * max(matrix.shape) * values[0]).sum())
        # {w : A w = b} = {w : basis w = offsets} with orthonormal rows.
        basis = right[:rank]
        offsets = (left[:, :rank].T @ target) / values[:rank]
        miss = np.abs(matrix @ (basis.T @ offsets) - target)
        if (miss > 1e-9 * (np.abs(matrix) @ np.abs(basis.T @ offsets) + np.abs(target))).any():
            raise ConfigurationError(
                f"AffineSubspace: the equations have no solution (the best point misses one by {miss.max():.2e}); "
                "remove the equations that contradict the others"
            )
        object.__setattr__(self, "matrix", matrix)
        object.__setattr__(self, "target", target)
        object.__setattr__(self, "_basis", basis)
        object.__setattr__(self, "_offsets", offsets)

    def value(self, w: Array) -> float:
        """Return 0.0 if A w = b (up to rounding), inf elsewhere."""
        flat = w.reshape(-1).astype(np.float64, copy=False)
        miss = np.abs(self.matrix @ flat - self.target)
        scale = np.abs(self.matrix) @ np.abs(flat) + np.abs(self.target)
        return 0.0 if bool((miss <= tolerance(w) * scale).all()) else math.inf

    def solve(self, v: Array, step: float, out: Array, shape: tuple[int, ...]) -> None:
        """Project twice: the second projection removes the rounding error of the first when v is far away."""
        self.check_shape("v", shape)
        basis: Array = self._basis  # type: ignore[attr-defined]
        offsets: Array = self._offsets  # type: ignore[attr-defined]
        w = v.astype(np.float64)
        for _ in range(2):
            w -= basis.T @ (basis @ w - offsets)
        np.add(w, 0.0, out=out, casting="same_kind")

    def check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise unless the array has as many elements as A has columns."""
        if math.prod(shape) != self.matrix.shape[1]:
            raise ConfigurationError(
                f"AffineSubspace has a matrix with {self.matrix.shape[1]} columns, but the array {name!r} of shape "
                f"{shape} has {math.prod(shape)} elements"
            )


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
    count: int | None = None
    density: float | None = None

    def __post_init__(self) -> None:
        count, density = self.count, self.density
        if (count is None) == (density is None):
            raise ConfigurationError(f"HardSparsity(count={count!r}, density={density!r}): expected one of the two")
        if density is not None:
            if isinstance(density, bool) or not isinstance(density, float | int | np.number) or not 0 < density <= 1:
                raise ConfigurationError(f"HardSparsity(density={density!r}): expected a number > 0 and <= 1")
            object.__setattr__(self, "density", float(density))
        elif isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1:
            raise ConfigurationError(f"HardSparsity(count={count!r}): expected an integer >= 1")
        else:
            object.__setattr__(self, "count", int(count))

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

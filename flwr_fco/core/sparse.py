"""Vectors that are zero in most coordinates, for clients with few of the model's features; and their sums."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fco.errors import ConfigurationError


@dataclass(frozen=True, eq=False, slots=True)
class SparseVector:
    """The coordinates of a vector that may be non-zero, and its values there.

    Parameters
    ----------
    indices : ndarray of int32, shape (k,)
        Ascending without duplicates, from 0 to size - 1.
    values : ndarray of float64 or float32, shape (k,)
        The vector at these coordinates.
    size : int
        Length of the vector.

    Raises
    ------
    ConfigurationError
        If the indices violate this description.

    Examples
    --------
    >>> SparseVector(np.array([0, 3], dtype=np.int32), np.array([1.0, -2.0]), 5).to_dense()
    array([ 1.,  0.,  0., -2.,  0.])
    """

    indices: NDArray[np.int32]
    values: NDArray[Any]
    size: int

    def __post_init__(self) -> None:
        indices = self.indices
        k = self.indices.size
        if indices.dtype != np.int32 or indices.shape != (k,) or self.values.shape != (k,):
            prefix = f"indices {indices.dtype}{list(indices.shape)} and values {list(self.values.shape)}"
            raise ConfigurationError(f"a sparse vector has {prefix}; expected one int32 for each value")
        if k and not (indices[0] >= 0 and indices[-1] < self.size and (indices[1:] > indices[:-1]).all()):
            prefix = f"the indices of a sparse vector must ascend from 0 to {self.size - 1}"
            raise ConfigurationError(f"{prefix}, none of them twice")

    @property
    def shape(self) -> tuple[int]:
        """Shape of the whole vector."""
        return (self.size,)

    @property
    def parts(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Values and indices, the parts in messages."""
        return self.values, self.indices

    @property
    def nbytes(self) -> int:
        """Bytes of both parts."""
        return self.values.nbytes + self.indices.nbytes

    def astype(self, dtype: str, copy: bool = True) -> SparseVector:
        """Return the vector with values of another dtype."""
        return replace(self, values=self.values.astype(dtype, copy=copy))

    def to_dense(self) -> NDArray[Any]:
        """Return the whole vector."""
        whole = np.zeros(self.size, dtype=self.values.dtype)
        whole[self.indices] = self.values
        return whole

    def at(self, indices: NDArray[Any]) -> NDArray[Any]:
        """Return the vector at some coordinates."""
        if not self.indices.size:
            return np.zeros(indices.size, dtype=self.values.dtype)
        nearest = np.searchsorted(self.indices, indices).clip(max=self.indices.size - 1)
        return np.where(self.indices[nearest] == indices, self.values[nearest], 0.0)


class NonZeros(SparseVector):
    """A vector given by all of its non-zeros; a SparseVector from the server holds a client's coordinates.

    Examples
    --------
    >>> NonZeros.of(np.array([0.0, 2.0, 0.0, 3.0])).at(np.array([0, 1]))
    array([0., 2.])
    """

    __slots__ = ()

    @classmethod
    def of(cls, vector: NDArray[np.float64]) -> NonZeros:
        """Return a vector by its non-zeros, including -0.0, so that all bits are kept."""
        indices = np.flatnonzero(vector.view(np.int64)).astype(np.int32)
        return cls(indices, vector[indices], vector.size)


def dense(vector: NDArray[Any] | SparseVector) -> NDArray[np.float64]:
    """Return a vector as a float64 array, without a copy if it is one."""
    whole = vector.to_dense() if isinstance(vector, SparseVector) else vector
    return whole.astype(np.float64, copy=False)


def is_shorter(count: int, size: int) -> bool:
    """Whether this many values with their indices take fewer bytes than all values.

    Examples
    --------
    >>> is_shorter(6, 10), is_shorter(7, 10)
    (True, False)
    """
    return 12 * count < 8 * size

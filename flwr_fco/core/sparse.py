"""A vector that is zero in most places: what a client with few of the model's features has to say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fco.errors import ConfigurationError


@dataclass(frozen=True, eq=False, slots=True)
class SparseVector:
    """The places of a vector that may not be zero, and its values there.

    Parameters
    ----------
    indices : ndarray of int32, shape (k,)
        Ascending, none of them twice, from 0 to size - 1.
    values : ndarray of float64 or float32, shape (k,)
    size : int
        Length of the vector.

    Raises
    ------
    ConfigurationError
        If the indices are not as said here.

    Examples
    --------
    >>> SparseVector(np.array([0, 3], dtype=np.int32), np.array([1.0, -2.0]), 5).to_dense()
    array([ 1.,  0.,  0., -2.,  0.])
    """

    indices: NDArray[np.int32]
    values: NDArray[Any]
    size: int

    def __post_init__(self) -> None:
        indices, k = self.indices, self.indices.size
        if indices.dtype != np.int32 or indices.shape != (k,) or self.values.shape != (k,):
            raise ConfigurationError(
                f"a sparse vector has indices {indices.dtype}{list(indices.shape)} and values "
                f"{list(self.values.shape)}; expected one int32 for each value"
            )
        if k and not (indices[0] >= 0 and indices[-1] < self.size and (indices[1:] > indices[:-1]).all()):
            raise ConfigurationError(
                f"the indices of a sparse vector must ascend from 0 to {self.size - 1}, none of them twice"
            )

    @property
    def shape(self) -> tuple[int]:
        """That of the whole vector."""
        return (self.size,)

    @property
    def parts(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Values and indices: what travels."""
        return self.values, self.indices

    def astype(self, dtype: str, copy: bool = True) -> SparseVector:
        """Return the vector with values of another dtype."""
        return SparseVector(self.indices, self.values.astype(dtype, copy=copy), self.size)

    def to_dense(self) -> NDArray[Any]:
        """Return the whole vector."""
        whole = np.zeros(self.size, dtype=self.values.dtype)
        whole[self.indices] = self.values
        return whole


def dense(vector: NDArray[Any] | SparseVector) -> NDArray[Any]:
    """Return a vector as an array, which it may be already.

    Parameters
    ----------
    vector : ndarray or SparseVector
    """
    return vector.to_dense() if isinstance(vector, SparseVector) else vector


def is_shorter(count: int, size: int) -> bool:
    """Whether so many values and their indices take fewer bytes than all values do.

    Parameters
    ----------
    count : int
    size : int

    Examples
    --------
    >>> is_shorter(6, 10), is_shorter(7, 10)
    (True, False)
    """
    return 12 * count < 8 * size

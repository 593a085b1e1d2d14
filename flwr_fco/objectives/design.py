"""The design matrix of a linear model: rows are examples, columns are features.

Everything that the package does with the features of a linear model goes through :class:`Design`, so that there is only
one place that knows how they are stored. Vectors are flat, as in the rest of the package: the coefficients in C order,
one column per output, then one intercept per output if the model has intercepts.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flwr_fco.core.layout import Vector, all_finite
from flwr_fco.errors import ConfigurationError
from flwr_fco.kernels.losses import add_rows, margins

#: Rows or columns that are widened to float64 at a time.
CHUNK = 4096
#: Bytes of the rows that are in work at a time where they are read twice: they stay in the cache in between. It also
#: keeps products with ten columns below the million multiplications up to which OpenBLAS does not copy its factors,
#: which for such narrow ones is half of the time.
BLOCK = 2**19
SMALLEST_BLOCK = 64

Rows = NDArray[np.int64]


class Design:
    """A dense matrix of features.

    Parameters
    ----------
    matrix : ndarray of float64 or float32, shape (n, d), C-contiguous
        Finite numbers; :meth:`of` checks what a user passes.

    Attributes
    ----------
    matrix : ndarray
        As given.
    shape : tuple of int
        (n, d).
    rows : ndarray of int64, shape (n,)
        All row numbers.

    Examples
    --------
    >>> design = Design.of([[1.0, 0.0], [0.0, 2.0]])
    >>> design.predict(np.array([1.0, 3.0, 0.5]))
    array([1.5, 6.5])
    """

    def __init__(self, matrix: NDArray[Any]) -> None:
        self.matrix = matrix
        self.shape: tuple[int, int] = matrix.shape
        self.rows: Rows = np.arange(matrix.shape[0])

    @classmethod
    def of(cls, features: ArrayLike, name: str = "features", ndim: int = 2) -> Design:
        """Return the design matrix of what a user passes, the same memory where that is possible.

        Parameters
        ----------
        features : array-like, shape (n, ...)
            float32 and float64 are used as they are, other dtypes and orders are converted once.
        name : str, default "features"
            For error messages.
        ndim : {2, 3}, default 2
            Dimensions that are expected; each example is flattened in C order.

        Raises
        ------
        ConfigurationError
            If they are not finite numbers of such a shape, or there are none.
        """
        require_dense(name, features)
        # asarray also turns a memory map into an ordinary view of it, which kernels accept faster.
        array = np.asarray(features)
        if array.dtype.kind not in "fiub":
            raise ConfigurationError(f"{name} have dtype {array.dtype}; expected numbers{_what_is_none(name, array)}")
        if array.ndim != ndim:
            wanted = "(examples, features)" if ndim == 2 else "(examples, rows, columns)"
            raise ConfigurationError(f"{name} have shape {array.shape}; expected {wanted}. Reshape them first.")
        if 0 in array.shape:
            raise ConfigurationError(
                f"{name} have shape {array.shape}; expected at least one example and one feature. "
                "A client without data should not take part."
            )
        # A byte order or a precision of its own is converted once, here.
        dtype = np.dtype(np.float32) if array.dtype == np.float32 else np.dtype(np.float64)
        array = np.require(array, dtype, ["C", "A"])
        check_finite(name, array)
        return cls(array if ndim == 2 else array.reshape(array.shape[0], -1))

    def predict(
        self, w: Vector, rows: Rows | None = None, num_outputs: int = 1, size: int | None = None
    ) -> NDArray[np.float64]:
        """Return x_i' W + b for the given rows.

        Parameters
        ----------
        w : ndarray of float64, shape (d * num_outputs,) or ((d + 1) * num_outputs,)
            Without or with intercepts.
        rows : ndarray of int64, shape (b,), optional
            All by default.
        num_outputs : int, default 1
        size : int, optional
            Rows at a time, as in :meth:`blocks`: another number may change the last bits of several outputs.

        Returns
        -------
        ndarray of float64, shape (b,) or (b, num_outputs) if there are several outputs
        """
        if num_outputs == 1:
            return np.asarray(margins(self.matrix, self.rows if rows is None else rows, w))
        end = self.shape[1] * num_outputs
        coefficients, intercept = w[:end].reshape(-1, num_outputs), w[end:]
        scores = np.empty((self.shape[0] if rows is None else rows.size, num_outputs))
        for part, block in self.blocks(rows, size):
            np.matmul(block, coefficients, out=scores[part])
        if intercept.size:
            scores += intercept
        return scores

    def add_rows(self, coefficients: NDArray[np.float64], out: Vector, rows: Rows | None = None) -> None:
        """Add sum_i (x_i, 1) coefficients_i' to `out` in place.

        Parameters
        ----------
        coefficients : ndarray of float64, shape (b,) or (b, num_outputs)
            One row for each of `rows`.
        out : ndarray of float64, shape (d * num_outputs,) or ((d + 1) * num_outputs,)
            Without or with intercepts.
        rows : ndarray of int64, shape (b,), optional
            All by default.
        """
        if coefficients.ndim == 1:
            add_rows(self.matrix, self.rows if rows is None else rows, coefficients, out)
            return
        size = self.shape[1] * coefficients.shape[1]
        matrix = out[:size].reshape(self.shape[1], -1)
        for part, block in self.blocks(rows):
            matrix += block.T @ coefficients[part]
        if out.size > size:
            out[size:] += coefficients.sum(axis=0)

    def blocks(self, rows: Rows | None = None, size: int | None = None) -> Iterator[tuple[slice, NDArray[np.float64]]]:
        """Yield a few rows at a time as float64, without a copy where they are that already.

        Parameters
        ----------
        rows : ndarray of int64, shape (b,), optional
            All by default.
        size : int, optional
            Rows at a time; by default as many as a processor's cache holds.

        Yields
        ------
        slice
            Which of `rows` these are.
        ndarray of float64, shape (at most size, d)

        Raises
        ------
        IndexError
            If a row number is outside 0 .. n - 1.
        """
        n, d = self.shape
        if rows is not None and rows.size and (int(rows.min()) < 0 or int(rows.max()) >= n):
            raise IndexError("a row number of the batch is outside 0 .. num_examples - 1")
        step = max(SMALLEST_BLOCK, BLOCK // (8 * d)) if size is None else size
        count = n if rows is None else rows.size
        for start in range(0, count, step):
            part = slice(start, min(start + step, count))
            block = self.matrix[part] if rows is None else self.matrix[rows[part]]
            yield part, block.astype(np.float64, copy=False)

    def gram(self, intercept: bool = False) -> NDArray[np.float64]:
        """Return A'A, A being the matrix, with a column of ones for an intercept.

        Parameters
        ----------
        intercept : bool, default False

        Returns
        -------
        ndarray of float64, shape (d, d) or (d + 1, d + 1)

        Raises
        ------
        ConfigurationError
            If the features are so large that their products overflow.
        """
        n, d = self.shape
        gram = np.zeros((d + intercept, d + intercept))
        with np.errstate(over="ignore", invalid="ignore"):
            for part in self._widened(axis=0):
                gram[:d, :d] += part.T @ part
                if intercept:
                    gram[:d, d] += part.sum(axis=0)
        self._check_products(gram)
        if intercept:
            gram[d, :d] = gram[:d, d]
            gram[d, d] = n
        return gram

    def gram_of_rows(self, intercept: bool = False) -> NDArray[np.float64]:
        """Return AA', A being the matrix, with a column of ones for an intercept.

        Parameters
        ----------
        intercept : bool, default False

        Returns
        -------
        ndarray of float64, shape (n, n)

        Raises
        ------
        ConfigurationError
            If the features are so large that their products overflow.
        """
        gram = np.full((self.shape[0], self.shape[0]), float(intercept))
        with np.errstate(over="ignore", invalid="ignore"):
            for part in self._widened(axis=1):
                gram += part @ part.T
        self._check_products(gram)
        return gram

    def _check_products(self, gram: NDArray[np.float64]) -> None:
        if not all_finite(gram):
            raise ConfigurationError(
                f"features of up to {np.abs(self.matrix).max():.3g} are too large: their products overflow. Scale "
                "them, to unit variance for example"
            )

    def mean_squares(self) -> Vector:
        """Return the mean square of each column, shape (d,)."""
        return np.asarray(np.einsum("ij,ij->j", self.matrix, self.matrix, dtype=np.float64) / self.shape[0])

    def support(self, rows: Rows | None = None) -> NDArray[np.int64]:
        """Return the columns in which any of the rows is not zero, in ascending order.

        Parameters
        ----------
        rows : ndarray of int64, shape (b,), optional
            All by default.
        """
        return np.flatnonzero((self.matrix if rows is None else self.matrix[rows]).any(axis=0))

    def _widened(self, axis: int) -> Iterator[NDArray[np.float64]]:
        """Yield slices along an axis as float64, a limited number of rows or columns at a time."""
        step = self.shape[axis] if self.matrix.dtype == np.float64 else CHUNK
        for start in range(0, self.shape[axis], step):
            block = self.matrix[start : start + step] if axis == 0 else self.matrix[:, start : start + step]
            yield block.astype(np.float64, copy=False)


class LinearData(NamedTuple):
    """An objective that is linear in its data: factor * mean_i loss(x_i' W + b; y_i) + l2/2 ||W||^2.

    Parameters
    ----------
    design : Design
        The x_i.
    link : {"identity", "logistic", "softmax"}
        The loss of a prediction m: 1/2 (m - y)^2, log(1 + exp(-y m)), or the cross entropy of softmax(m).
    targets : ndarray, shape (n,)
        The y_i: numbers, signs -1.0 and +1.0, or classes as int64.
    intercept : bool
        Whether the model has an intercept b.
    l2 : float
        Strength of the ridge term, which leaves the intercept alone.
    factor : float, default 1.0
    num_outputs : int, default 1
        Columns of W.
    """

    design: Design
    link: Literal["identity", "logistic", "softmax", "hinge"]
    targets: NDArray[Any]
    intercept: bool
    l2: float
    factor: float = 1.0
    num_outputs: int = 1


def _is_sparse(features: Any) -> bool:
    # Whoever has such a matrix has loaded its module: a client without one is spared that, in a process a message.
    sparse = sys.modules.get("scipy.sparse")
    return sparse is not None and bool(sparse.issparse(features))


def require_dense(name: str, features: Any) -> None:
    """Raise :class:`ConfigurationError` for a sparse matrix of SciPy's, which NumPy would take for a single object."""
    if _is_sparse(features):
        size = 8e-6 * math.prod(features.shape)
        raise ConfigurationError(
            f"{name}: a sparse {type(features).__name__} of shape {features.shape}; expected a dense array. Give its "
            f".toarray(), which takes {size:.3g} MB (half of that as float32)"
        )


def _what_is_none(name: str, array: NDArray[Any]) -> str:
    """Return the first entry that is no number, and what to do, for an error message."""
    for place in np.ndindex(array.shape):
        entry: Any = array[place]
        if not isinstance(entry, int | float | np.number | np.bool_):
            # Not the entry itself: a client's error goes to the server.
            found = f"{name}{list(place)} is a {type(entry).__name__}"
            return f": {found}. Encode such columns as numbers (the same way on every client), or leave them out"
    return ". All of its entries are: give .astype(float) of it"


def check_finite(name: str, array: NDArray[Any]) -> None:
    """Raise :class:`ConfigurationError`, with the place, if an array has a NaN or an infinity."""
    for start in range(0, array.shape[0], CHUNK):
        finite = np.isfinite(array[start : start + CHUNK])
        if not finite.all():
            place = np.argwhere(~finite)[0]
            value = array[start : start + CHUNK][tuple(place)]
            place[0] += start
            raise ConfigurationError(
                f"{name}{place.tolist()} is {value}; expected finite numbers. Impute or drop such examples first."
            )

"""The design matrix of a linear model: rows are examples, columns are features.

All operations on a linear model's features go through :class:`Design`, so that only this module depends on how they are
stored. Vectors are flat, as in the rest of the package: the coefficients in C order, one column per output, then one
intercept per output if the model has intercepts.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import date, time, timedelta
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from flwr_fco.core.layout import Vector, all_finite
from flwr_fco.core.schema import Names, names_of
from flwr_fco.errors import ConfigurationError, PublicError
from flwr_fco.kernels.losses import add_rows, margins
from flwr_fco.kernels.passes import deviations
from flwr_fco.kernels.sparse import add_sparse_rows, row_scores

#: Number of rows or columns converted to float64 at a time.
CHUNK = 4096
#: Bytes of rows processed at a time if they are read twice, so that they stay in the cache in between. It also keeps
#: products with ten columns below a million multiplications: above that, OpenBLAS copies its factors, which takes half
#: of the time for so few columns.
BLOCK = 2**19
SMALLEST_BLOCK = 64
#: The fewest rows for which columns have deviations.
FEWEST_ROWS = 20
#: The fewest values of a column that has a unit, among so many rows; 4 times the variance of a deviation's logarithm.
_FEWEST_VALUES, _LOOKED_AT, _VARIANCE = 6, 64, 0.1

Rows = NDArray[np.int64]
#: One number a row, or one for each output.
Scores = NDArray[np.float64]


class Design:
    """A dense matrix of features.

    Parameters
    ----------
    matrix : ndarray of float64 or float32, shape (n, d), C-contiguous
        Finite numbers; :meth:`of` checks user input.

    Attributes
    ----------
    matrix : ndarray
        The same memory, read-only.
    shape : tuple of int
        (n, d).
    rows : ndarray of int64, shape (n,)
        All row numbers.
    names : tuple of str or None
        Names of the columns, if they come from a data frame.

    Examples
    --------
    >>> design = Design.of([[1.0, 0.0], [0.0, 2.0]])
    >>> design.predict(np.array([1.0, 3.0, 0.5]))
    array([1.5, 6.5])
    """

    names: Names = None
    #: Whether :meth:`blocks` are all rows at once.
    _at_once: ClassVar[bool] = False

    def __init__(self, matrix: NDArray[Any]) -> None:
        # Always read-only, as a memory map may be, so that kernels are compiled for only one of the two types.
        self.matrix: Any = read_only(matrix)
        self.shape: tuple[int, int] = matrix.shape
        self.rows: Rows = np.arange(matrix.shape[0])

    @classmethod
    def of(cls, features: ArrayLike, name: str = "features", ndim: int = 2) -> Design:
        """Return the design matrix of user input, without a copy if possible.

        Parameters
        ----------
        features : array-like, shape (n, ...), or sparse, shape (n, d)
            float32 and float64 are used as they are; other dtypes and memory orders are converted once. A SciPy sparse
            matrix or array in any format, or a pandas frame of sparse columns, becomes a :class:`SparseDesign`.
        name : str, default "features"
            Name of the argument, for error messages.
        ndim : {2, 3}, default 2
            Required number of dimensions; each example is flattened in C order.

        Raises
        ------
        ConfigurationError
            If the features are not finite numbers of this shape, or are empty.
        """
        design = cls._of(features, name, ndim)
        design.names = names_of(getattr(features, "columns", None))
        return design

    @classmethod
    def _of(cls, features: ArrayLike, name: str, ndim: int) -> Design:
        if is_sparse(features):
            if ndim == 2:
                return SparseDesign(canonical_rows(name, features))
            raise ConfigurationError(f"{name}: {_sparse_kind(features)}; expected a dense array of three dimensions")
        refuse_text(features, name)
        # asarray also turns a memory map into a plain array view, which kernels accept faster.
        array = np.asarray(features)
        if array.dtype.kind not in "fiub":
            raise ConfigurationError(f"{name} have dtype {array.dtype}; expected numbers{_what_is_none(name, array)}")
        if array.ndim != ndim:
            wanted = "(examples, features)" if ndim == 2 else "(examples, rows, columns)"
            raise ConfigurationError(f"{name} have shape {array.shape}; expected {wanted}. Reshape them first.")
        _require_some(name, array.shape)
        # Other byte orders and precisions are converted once, here.
        dtype = np.dtype(np.float32) if array.dtype == np.float32 else np.dtype(np.float64)
        array = np.require(array, dtype, ["C", "A"])
        check_finite(name, array)
        return cls(array if ndim == 2 else array.reshape(array.shape[0], -1))

    def predict(self, w: Vector, rows: Rows | None = None, num_outputs: int = 1, size: int | None = None) -> Scores:
        """Return x_i' W + b for the given rows.

        Parameters
        ----------
        w : ndarray of float64, shape (d * num_outputs,) or ((d + 1) * num_outputs,)
            Without or with intercepts.
        rows : ndarray of int64, shape (b,), optional
            Row numbers; all by default.
        num_outputs : int, default 1
            Number of columns of W.
        size : int, optional
            Rows at a time, as in :meth:`blocks`. With several outputs, another size may change the last bits.

        Returns
        -------
        ndarray of float64, shape (b,) or (b, num_outputs)
            Of two dimensions if there are several outputs.
        """
        if num_outputs == 1:
            return np.asarray(margins(self.matrix, self.rows if rows is None else rows, w))
        coefficients, intercept = self._split(w, num_outputs)
        scores = np.empty((self.shape[0] if rows is None else rows.size, num_outputs))
        for part, block in self.blocks(rows, size):
            np.matmul(block, coefficients, out=scores[part])
        if intercept.size:
            scores += intercept
        return scores

    def add_rows(self, coefficients: Scores, out: Vector, rows: Rows | None = None) -> None:
        """Add sum_i (x_i, 1) coefficients_i' to `out` in place.

        Parameters
        ----------
        coefficients : ndarray of float64, shape (b,) or (b, num_outputs)
            One row for each of `rows`.
        out : ndarray of float64, shape (d * num_outputs,) or ((d + 1) * num_outputs,)
            Without or with intercepts.
        rows : ndarray of int64, shape (b,), optional
            Row numbers; all by default.
        """
        if coefficients.ndim == 1:
            add_rows(self.matrix, self.rows if rows is None else rows, coefficients, out)
            return
        matrix, intercept = self._split(out, coefficients.shape[1])
        for part, block in self.blocks(rows):
            matrix += block.T @ coefficients[part]
        if intercept.size:
            intercept += coefficients.sum(axis=0)

    def _split(self, w: Vector, num_outputs: int) -> tuple[NDArray[np.float64], Vector]:
        """Return views of the coefficients, a column for each output, and of the intercepts."""
        end = self.shape[1] * num_outputs
        if w.size not in (end, end + num_outputs):
            raise ValueError("the vector w has another length than the objective's layout")
        return w[:end].reshape(-1, num_outputs), w[end:]

    @cached_property
    def _single(self) -> Any:
        return self.matrix.astype(np.float32, copy=False)

    def blocks(
        self, rows: Rows | None = None, size: int | None = None, dtype: DTypeLike = np.float64
    ) -> Iterator[tuple[slice, Any]]:
        """Yield a few rows at a time in a precision, without a copy if they are already; all at once if sparse.

        Parameters
        ----------
        rows : ndarray of int64, shape (b,), optional
            Row numbers; all by default.
        size : int, optional
            Rows at a time; by default as many as fit in a processor's cache.
        dtype : dtype, default float64
            Single precision is converted once, and kept.

        Yields
        ------
        slice
            Their positions in `rows`.
        ndarray, shape (at most size, d)
            These rows.

        Raises
        ------
        IndexError
            If a row number is outside 0 .. n - 1.
        """
        n, d = self.shape
        matrix = self._single if dtype == np.float32 else self.matrix
        if rows is not None and rows.size and (int(rows.min()) < 0 or int(rows.max()) >= n):
            raise IndexError("a row number of the batch is outside 0 .. num_examples - 1")
        count = n if rows is None else rows.size
        if self._at_once:
            size = max(count, 1)
        # Of a sparse matrix without entries there may be no columns left.
        step = max(SMALLEST_BLOCK, BLOCK // (8 * d)) if size is None else size
        for start in range(0, count, step):
            part = slice(start, min(start + step, count))
            # Of a sparse matrix a slice is a copy.
            block = matrix[part if rows is None else rows[part]] if rows is not None or step < n else matrix
            yield part, block.astype(dtype, copy=False)

    def gram(self, intercept: bool = False) -> NDArray[np.float64]:
        """Return A'A, where A is the matrix, with a column of ones for an intercept; of shape (d, d) or (d + 1, d + 1).

        Raises
        ------
        ConfigurationError
            If the features are so large that their products overflow.
        """
        n, d = self.shape
        gram = np.zeros((d + intercept, d + intercept))
        with np.errstate(over="ignore", invalid="ignore"):
            for part in self._widened(axis=0):
                gram[:d, :d] += dense(part.T @ part)
                if intercept:
                    gram[:d, d] += part.sum(axis=0)
        self._check_products(gram)
        if intercept:
            gram[d, :d] = gram[:d, d]
            gram[d, d] = n
        return gram

    def gram_of_rows(self, intercept: bool = False) -> NDArray[np.float64]:
        """Return AA', where A is the matrix, with a column of ones for an intercept; of shape (n, n).

        Raises
        ------
        ConfigurationError
            If the features are so large that their products overflow.
        """
        gram = np.full((self.shape[0], self.shape[0]), float(intercept))
        with np.errstate(over="ignore", invalid="ignore"):
            for part in self._widened(axis=1):
                gram += dense(part @ part.T)
        self._check_products(gram)
        return gram

    def _check_products(self, gram: NDArray[np.float64]) -> None:
        if not all_finite(gram):
            raise ConfigurationError(
                f"features of up to {abs(self.matrix).max():.3g} are too large: their products overflow. Scale "
                "them, to unit variance for example"
            )

    def mean_squares(self, weights: Vector | None = None) -> Vector:
        """Return the mean square of each column, shape (d,), by weights of the rows, shape (n,), of mean 1."""
        if weights is not None:
            return np.asarray(sum(weights[part] @ block**2 for part, block in self.blocks()) / self.shape[0])
        return np.asarray(np.einsum("ij,ij->j", self.matrix, self.matrix, dtype=np.float64) / self.shape[0])

    def deviations(self) -> Vector:
        """Return the standard deviation of each column, shape (d,); 0 where it says more of the rows than of a unit.

        That is so in fewer than 20 rows; of a column of fewer than six values, as a constant, an indicator or a dark
        pixel has; of one that is mostly zero, as a pixel's at the edge is; and where a few rows make the deviation: its
        logarithm has a standard error of sqrt((k - 1) / 4n) with k the kurtosis, and is not said above .16.
        """
        n, d = self.shape
        return np.zeros(d) if n < FEWEST_ROWS else self._deviations(_far_apart(n))

    def _deviations(self, rows: NDArray[np.int64]) -> Vector:
        """Return the standard deviation of each column; 0 of few values in some rows, mostly zeros, or heavy tails."""
        return deviations(self.matrix, rows, _FEWEST_VALUES, _VARIANCE)  # type: ignore[no-any-return]

    def moments(self, weights: Vector | None = None) -> tuple[Vector, Vector]:
        """Return mean and variance of each column, shape (d,) each, by weights of the rows, shape (n,), of mean 1."""
        n = self.shape[0]
        shares = np.full(n, 1.0 / n) if weights is None else weights / n
        means = np.asarray(sum(shares[part] @ block for part, block in self.blocks()), dtype=np.float64)
        return means, np.asarray(sum(shares[part] @ np.square(block - means) for part, block in self.blocks()))

    def row_squares(self) -> Vector:
        """Return ||x_i||^2 of each row, shape (n,)."""
        return np.concatenate([np.square(block).sum(axis=1) for _, block in self.blocks()])

    def largest_square(self) -> float:
        """Return the largest square of an entry."""
        return float(np.square(np.abs(self.matrix).max(), dtype=np.float64))

    def support(self, rows: Rows | None = None) -> NDArray[np.int64]:
        """Return the columns with a non-zero entry in any of the rows, in ascending order.

        Parameters
        ----------
        rows : ndarray of int64, shape (b,), optional
            Row numbers; all by default.
        """
        return np.flatnonzero((self.matrix if rows is None else self.matrix[rows]).any(axis=0))

    def _widened(self, axis: int) -> Iterator[Any]:
        """Yield slices along an axis as float64, a limited number of rows or columns at a time."""
        step = self.shape[axis] if self.matrix.dtype == np.float64 else CHUNK
        for start in range(0, self.shape[axis], step):
            block = self.matrix[start : start + step] if axis == 0 else self.matrix[:, start : start + step]
            yield block.astype(np.float64, copy=False)


class SparseDesign(Design):
    """A sparse matrix of features; the cost of an operation is proportional to the number of non-zeros.

    Parameters
    ----------
    matrix : csr_array of float64 or float32, shape (n, d)
        A matrix from :func:`canonical_rows`, with sorted and unique columns in each row.

    Attributes
    ----------
    matrix : csr_array
        The matrix, with column indices as int32.
    starts : ndarray of int64, shape (n + 1,)
        Index of each row's first entry.

    Examples
    --------
    >>> from scipy.sparse import csr_array
    >>> design = Design.of(csr_array([[1.0, 0.0, 0.0], [0.0, 0.0, 2.0]]))
    >>> design.predict(np.array([1.0, 7.0, 3.0, 0.5]))
    array([1.5, 6.5])
    >>> design.columns, design.compact.shape
    (array([0, 2], dtype=int32), (2, 2))
    """

    _at_once: ClassVar[bool] = True

    def __init__(self, matrix: Any) -> None:
        super().__init__(matrix)
        self.starts = matrix.indptr.astype(np.int64)

    @cached_property
    def columns(self) -> NDArray[np.int32]:
        """The columns with at least one non-zero entry, in ascending order."""
        return np.unique(self.matrix.indices)

    @cached_property
    def compact(self) -> SparseDesign:
        """The same rows, restricted to :attr:`columns`."""
        return self.on(self.columns)

    def on(self, columns: NDArray[Any]) -> SparseDesign:
        """Return the same rows restricted to some columns, which must include all columns with non-zeros.

        Parameters
        ----------
        columns : ndarray of int, shape (c,)
            Column numbers, ascending.
        """
        from scipy.sparse import csr_array

        local = np.searchsorted(columns, self.matrix.indices).astype(np.int32)
        parts = (self.matrix.data, local, self.matrix.indptr)
        return SparseDesign(csr_array(parts, shape=(self.shape[0], len(columns))))

    def predict(self, w: Vector, rows: Rows | None = None, num_outputs: int = 1, size: int | None = None) -> Scores:
        rows = self.rows if rows is None else rows
        scores = np.empty((rows.size, num_outputs))
        weights, offsets = self._split(w, num_outputs)
        row_scores(*self.rows_data, rows, weights, offsets, scores)
        return scores.reshape(-1) if num_outputs == 1 else scores

    def add_rows(self, coefficients: Scores, out: Vector, rows: Rows | None = None) -> None:
        rows = self.rows if rows is None else rows
        if coefficients.shape[0] != rows.size:
            raise ValueError("there must be one coefficient a row")
        slopes = np.ascontiguousarray(coefficients).reshape(rows.size, -1)
        weights, offsets = self._split(out, slopes.shape[1])
        add_sparse_rows(*self.rows_data, rows, slopes, weights, offsets)

    @property
    def rows_data(self) -> tuple[Any, Any, Any]:
        """The arrays for kernels: row starts, columns and values."""
        return self.starts, read_only(self.matrix.indices), read_only(self.matrix.data)

    def _widened(self, axis: int) -> Iterator[Any]:
        yield self.matrix.astype(np.float64, copy=False)

    def mean_squares(self, weights: Vector | None = None) -> Vector:
        squares = self._squares if weights is None else self._squares * np.repeat(weights, np.diff(self.starts))
        return np.asarray(np.bincount(self.matrix.indices, squares, self.shape[1]) / self.shape[0])

    def _deviations(self, rows: NDArray[np.int64]) -> Vector:
        with np.errstate(over="ignore", invalid="ignore"):
            (deviations, kurtosis), (n, d) = self._spread(), self.shape
            few = 2 * np.bincount(self.matrix.indices, self.matrix.data != 0.0, d) < n
            few |= self._num_values(rows) < _FEWEST_VALUES
            return np.asarray(np.where(few | (kurtosis - 1.0 > _VARIANCE * n), 0.0, deviations))

    def _num_values(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many different values each column has in some rows."""
        part = self.matrix[rows]
        order = np.lexsort((part.data, part.indices))
        values, columns = part.data[order], part.indices[order]
        new = np.ones(values.size, dtype=np.bool_)
        new[1:] = (np.diff(values) != 0.0) | (np.diff(columns) != 0)
        d = self.shape[1]
        # What is not stored is 0.
        return np.asarray(np.bincount(columns[new], minlength=d) + (np.bincount(columns, minlength=d) < rows.size))

    def _spread(self) -> tuple[Vector, Vector]:
        """Return standard deviation and kurtosis of each column."""
        n, d = self.shape
        values, columns = self.matrix.data.astype(np.float64), self.matrix.indices
        empty = n - np.bincount(columns, minlength=d)
        means = np.bincount(columns, values, d) / n
        squares = np.bincount(columns, np.square(values - means[columns]), d) + empty * np.square(means)
        deviations = np.sqrt(squares / n)
        units = np.where(deviations > 0.0, deviations, 1.0)
        fourth = np.bincount(columns, ((values - means[columns]) / units[columns]) ** 4, d)
        return deviations, np.asarray((fourth + empty * (means / units) ** 4) / n)

    def moments(self, weights: Vector | None = None) -> tuple[Vector, Vector]:
        n, d = self.shape
        values, columns, counts = self.matrix.data.astype(np.float64), self.matrix.indices, np.diff(self.starts)
        shares = np.repeat(np.full(n, 1.0 / n) if weights is None else weights / n, counts)
        means = np.asarray(np.bincount(columns, shares * values, d), dtype=np.float64)
        squares = np.bincount(columns, shares * np.square(values - means[columns]), d)
        # What is not stored is 0.
        return means, squares + np.maximum(1.0 - np.bincount(columns, shares, d), 0.0) * np.square(means)

    def row_squares(self) -> Vector:
        rows = np.repeat(self.rows, np.diff(self.starts))
        return np.asarray(np.bincount(rows, self._squares, self.shape[0]), dtype=np.float64)

    def largest_square(self) -> float:
        return float(self._squares.max(initial=0.0))

    @property
    def _squares(self) -> Vector:
        return np.asarray(np.square(self.matrix.data, dtype=np.float64))

    def support(self, rows: Rows | None = None) -> NDArray[np.int64]:
        return np.unique(self.matrix.indices if rows is None else self.matrix[rows].indices).astype(np.int64)


class LinearData(NamedTuple):
    """The data of an objective with linear predictions: factor * mean_i a_i loss(x_i' W + b; y_i) + l2/2 ||W||^2.

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
        Strength of the ridge term, which does not act on the intercept.
    factor : float, default 1.0
        Factor of the mean loss.
    num_outputs : int, default 1
        Number of columns of W.
    weights : ndarray of float64, shape (n,), optional
        The a_i, of mean 1; None if all are 1.

    Examples
    --------
    >>> from flwr_fco.objectives import LeastSquares
    >>> data = LeastSquares(np.eye(2), np.array([1.0, 2.0]), intercept=False).linear_data()
    >>> data.link, data.targets
    ('identity', array([1., 2.]))
    """

    design: Design
    link: Literal["identity", "logistic", "softmax"]
    targets: NDArray[Any]
    intercept: bool
    l2: float
    factor: float = 1.0
    num_outputs: int = 1
    weights: Vector | None = None


def refuse_text(features: Any, name: str = "features") -> None:
    """Refuse a frame's columns of text or categories, whose codes each site would choose for itself, and of dates.

    The values are not shown: the error goes to the server, and a category can be that of one row.

    Parameters
    ----------
    features : array-like
        A data frame, or anything else, which is not looked at.
    name : str, default "features"
        Name of the argument, for the error.

    Raises
    ------
    ConfigurationError
        If there is such a column; it names them.
    """
    kinds = getattr(features, "dtypes", None)
    if not hasattr(features, "columns") or kinds is None:
        return
    for begins, types, what in _NO_NUMBERS:
        columns = [
            f"{own}"
            for j, (own, kind) in enumerate(zip(features.columns, kinds, strict=True))
            if _holds(features, j, str(kind).lower(), begins, *types)
        ]
        if columns:
            more = " and more" if len(columns) > 5 else ""
            raise PublicError(f"{name}: the columns {columns[:5]}{more} hold {what.format(columns[0])}")


#: How the types of columns that are no numbers begin, the types of entries, and what to do: texts, dates and times.
_NO_NUMBERS: tuple[tuple[tuple[str, ...], tuple[type, ...], str], ...] = (
    (
        ("category", "string", "str", "utf8", "enum", "categorical"),
        (str,),
        "texts or categories; expected numbers. Agree on the categories at all sites, and give a column for each, such "
        'as pandas.get_dummies(X[{!r}].astype(pandas.CategoricalDtype(["agreed", ...])), dtype=float)',
    ),
    (
        ("date", "time", "period", "duration"),
        (date, time, timedelta),
        "dates or times; expected numbers, such as days since a day that all sites agree on",
    ),
)


def _holds(frame: Any, column: int, kind: str, kinds: tuple[str, ...], *types: type) -> bool:
    """Whether a column's type begins in one of these ways; one of objects needs a single entry of these types."""
    if kind == "object" and hasattr(frame, "iloc"):
        return any(isinstance(entry, types) for entry in frame.iloc[:, column])
    return kind.startswith(kinds)


def is_sparse(features: Any) -> bool:
    """Whether `features` is a SciPy sparse matrix or array, or a pandas frame of sparse columns."""
    # A sparse matrix exists only if its module is loaded; this check saves clients without one the import.
    sparse = sys.modules.get("scipy.sparse")
    is_frame = hasattr(getattr(features, "sparse", None), "to_coo")
    return is_frame or (sparse is not None and bool(sparse.issparse(features)))


def canonical_rows(name: str, features: Any) -> Any:
    """Return a sparse matrix by rows: sorted and unique columns, no stored zeros, 32-bit indices.

    Parameters
    ----------
    name : str
        Name of the argument, for error messages.
    features : sparse matrix or array, or a frame of sparse columns, shape (n, d)
        Not changed; its memory is shared if it is already in this form.

    Raises
    ------
    ConfigurationError
        If the matrix is damaged, has an entry that is not finite, has no examples or features, or is too wide.
    """
    from scipy.sparse import csr_array

    if not hasattr(features, "tocsr"):
        try:
            features = features.sparse.to_coo()
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"{name}: a frame of sparse columns that cannot be read: {error}") from error
    if features.ndim != 2:
        raise ConfigurationError(
            f"{name}: {_sparse_kind(features)}; expected (examples, features). Reshape them first."
        )
    if features.dtype.kind not in "fiub":
        raise ConfigurationError(f"{name} have dtype {features.dtype}; expected numbers")
    _require_some(name, features.shape)
    if features.shape[1] >= 2**31 - 1:
        raise ConfigurationError(f"{name}: {_sparse_kind(features)}; expected fewer than 2147483647 features")
    dtype = np.dtype(np.float32) if features.dtype == np.float32 else np.dtype(np.float64)
    matrix = features.tocsr()
    # A new object: the given one's sorted flag may be out of date, and user input must not be sorted in place.
    rows = csr_array((matrix.data.astype(dtype, copy=False), matrix.indices, matrix.indptr), shape=matrix.shape)
    try:
        rows.check_format(full_check=True)
    except ValueError as error:
        raise ConfigurationError(f"{name}: {_sparse_kind(features)} that is damaged: {error}") from error
    if not rows.has_canonical_format or not rows.data.all():
        rows = rows.copy()
        rows.sum_duplicates()
        rows.eliminate_zeros()
    finite = np.isfinite(rows.data)
    if not finite.all():
        place = int(np.argmin(finite))
        row = int(np.searchsorted(rows.indptr, place, side="right")) - 1
        raise ConfigurationError(
            f"{name}[{row}, {rows.indices[place]}] is {rows.data[place]}; expected finite numbers. Impute or drop such "
            "examples first."
        )
    rows.indices = rows.indices.astype(np.int32, copy=False)
    if rows.nnz < 2**31:
        # SciPy and scikit-learn require both index arrays to have the same type.
        rows.indptr = rows.indptr.astype(np.int32, copy=False)
    return rows


def _sparse_kind(features: Any) -> str:
    return f"a sparse {type(features).__name__} of shape {features.shape}"


def _require_some(name: str, shape: tuple[int, ...]) -> None:
    if 0 in shape:
        raise ConfigurationError(
            f"{name} have shape {shape}; expected at least one example and one feature. "
            "A client without data should not take part."
        )


def _what_is_none(name: str, array: NDArray[Any]) -> str:
    """Describe the first entry that is not a number, and the remedy, for an error message."""
    for place in np.ndindex(array.shape):
        entry: Any = array[place]
        if not isinstance(entry, int | float | np.number | np.bool_):
            # Do not show the entry: a client's error message goes to the server.
            description = f"{name}{list(place)} is a {type(entry).__name__}"
            return f": {description}. Encode such columns as numbers (the same way on every client), or leave them out"
    return ". All of its entries are: give .astype(float) of it"


def dense(matrix: Any) -> NDArray[Any]:
    """Return a matrix as an array, whether it is sparse or not."""
    return np.asarray(matrix.toarray() if hasattr(matrix, "toarray") else matrix)


def read_only(array: Any) -> Any:
    """Return a read-only view of an array; a sparse matrix is returned unchanged."""
    if not isinstance(array, np.ndarray):
        return array
    view = array.view()
    view.flags.writeable = False
    return view


@lru_cache(maxsize=64)
def _far_apart(n: int) -> NDArray[np.int64]:
    """Return numbers of rows that are far apart, because rows may be sorted."""
    return np.unique(np.linspace(0, n - 1, _LOOKED_AT).astype(np.int64))


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

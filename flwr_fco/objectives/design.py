"""Rows of features, dense or compressed sparse: checked once, and the few operations that see how they are stored."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import date, time, timedelta
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray
from scipy.sparse import csr_array, hstack, issparse

from flwr_fco.core.layout import Vector
from flwr_fco.core.schema import is_missing, listed, undated
from flwr_fco.core.validation import of_type
from flwr_fco.errors import ConfigurationError, PublicError, in_words

#: A matrix of features, shape (n, d): an ndarray or a csr_array, of float64 or float32.
Features = Any
Rows = NDArray[np.int64]
#: Bytes of rows processed at a time if they are read twice, so that they stay in the cache in between. It also keeps
#: products with ten columns below a million multiplications: above that, OpenBLAS copies its factors, which takes half
#: of the time for so few columns.
BLOCK = 2**19
SMALLEST_BLOCK = 64
#: Rows without which a column's deviation is not said, and the fewest different values of a column that has a unit,
#: among so many rows; 4 times the variance of a deviation's logarithm.
_FEWEST_ROWS = 20
_FEWEST_VALUES = 6
_LOOKED_AT = 64
_VARIANCE = 0.1


def as_rows(features: Any, name: str = "features") -> Features:
    """Return user input as a matrix with a row for each example, without a copy if possible.

    float32 and float64 are used as they are; other types and memory orders are converted once. More than two dimensions
    are flattened in C order. A SciPy sparse matrix or array in any format, or a pandas frame of sparse columns, becomes
    a csr_array with sorted and unique columns in each row, no stored zeros and 32-bit columns.

    Parameters
    ----------
    features : array-like, shape (n, ...), or sparse, shape (n, d)
        Not changed.
    name : str, default "features"
        Name of the argument, for error messages.

    Raises
    ------
    ConfigurationError
        If the features are not finite numbers in two dimensions or more, or are empty.

    Examples
    --------
    >>> as_rows([[1, 0], [0, 2]])
    array([[1., 0.],
           [0., 2.]])
    """
    refuse_text(features, name)
    given: Any = _in_rows(features, name) if is_sparse(features) else _read(features, name)
    if given.dtype == object and hasattr(features, "columns"):
        # A frame of numbers beside booleans, as of pandas.get_dummies, or of numbers that could be missing.
        with suppress(TypeError, ValueError):
            given = given.astype(np.float64)
    if given.dtype.kind not in "fiub":
        advice = "Encode texts, categories or dates as numbers, the same way on every client, or leave them out"
        raise ConfigurationError(f"{name} have dtype {given.dtype}; expected numbers. {advice}")
    if given.ndim < 2:
        raise ConfigurationError(f"{name} have shape {given.shape}; expected (examples, features). Reshape them first")
    if 0 in given.shape:
        prefix = f"{name} have shape {given.shape}; expected at least one example and one feature"
        raise ConfigurationError(f"{prefix}. A client without data should not take part")
    dtype = np.dtype(np.float32) if given.dtype == np.float32 else np.dtype(np.float64)
    if not isinstance(given, np.ndarray):
        return _canonical(given.astype(dtype, copy=False), name)
    array = np.require(given, dtype, ["C", "A"])
    check_finite(name, array)
    return array.reshape(len(array), -1).view(np.ndarray)


#: How the types of a frame's columns begin that are no numbers, and the types of such entries.
_NO_NUMBERS = ("categor", "dictionary", "enum", "large_string", "str", "utf8", "date", "time", "period", "duration")
_UNREAD = ("interval", "list", "array")
_NO_NUMBER = (str, date, time, timedelta, np.datetime64, np.timedelta64)


def refuse_unread(table: Any, name: str) -> None:
    """Refuse what is no rows yet, as an iterator, what has a mask, and tables of pyarrow, whose names are not read."""
    known = isinstance(table, Sequence) or hasattr(table, "shape") or hasattr(table, "__array__")
    # Columns would be taken by their places, which may be others elsewhere. Of a frame in pandas this may be a column.
    if not known or hasattr(type(table), "column_names"):
        raise PublicError(f"{name} is {of_type(table)}; give an array, list(...), .collect() or .to_pandas()")
    # NumPy takes the numbers that a mask hides, but not those of pandas. That of a structured array has fields.
    if np.ma.isMaskedArray(table) and np.ascontiguousarray(np.ma.getmask(table)).view(bool).any():
        raise PublicError(f"{name} has entries that are masked; leave such rows out, or fill them in")


def refuse_text(features: Any, name: str = "features") -> None:
    """Refuse a frame's columns of text or categories, whose codes each site would choose for itself, and of dates.

    The values are not shown: the error goes to the server, and a category can be that of one row.

    Parameters
    ----------
    features : Any
        A data frame, or anything else, which is not looked at.
    name : str, default "features"
        Name of the argument, for the error.

    Raises
    ------
    ConfigurationError
        If there is such a column; it names them. Or if it cannot be read.
    """
    refuse_unread(features, name)
    dtype: Any = getattr(features, "dtype", None)
    if dtype is not None and getattr(dtype, "kind", "O") == "O":
        dtype = undated(features).dtype
    if getattr(dtype, "kind", "O") in "mM":
        prefix = f"{name} holds dates or times, which have several units, of dtype {dtype}; expected numbers"
        raise PublicError(f"{prefix}, such as days. Encode them in the same way at every site")
    if getattr(dtype, "names", None):
        raise PublicError(f"{name} has the fields {listed(dtype.names)}; expected columns, as of pandas.DataFrame(...)")
    if not (hasattr(features, "columns") and hasattr(features, "dtypes")):
        return
    columns = [
        f"{column}"
        for place, (column, kind) in enumerate(zip(features.columns, features.dtypes, strict=True))
        if f"{kind}".lower().startswith(_NO_NUMBERS + _UNREAD)
        # A single entry is enough in a column of objects, which are pandas' only.
        or (f"{kind}" == "object" and any(isinstance(entry, _NO_NUMBER) for entry in features.iloc[:, place]))
    ]
    if columns:
        prefix = f"{name}: the columns {listed(columns)} hold texts, categories, dates or times; expected numbers"
        raise PublicError(
            f"{prefix}. For numbers with a decimal comma, pandas.read_csv(..., decimal=','). For categories, agree on "
            f"them at all sites, and give a column for each, such as pandas.get_dummies(X[{columns[0]!r}].astype("
            'pandas.CategoricalDtype(["agreed", ...])), dtype=float). For dates, days since a day agreed on'
        )


def is_sparse(features: Any) -> bool:
    """Whether `features` is a SciPy sparse matrix or array, or a pandas frame of sparse columns."""
    return bool(issparse(features)) or hasattr(getattr(features, "sparse", None), "to_coo")


def _in_rows(features: Any, name: str) -> Any:
    """Return sparse features as a csr_array that shares their memory, or one of another type than float as a copy."""
    with in_words(f"{name}: a sparse {type(features).__name__} that cannot be read", ConfigurationError):
        rows = (features if hasattr(features, "tocsr") else features.sparse.to_coo()).tocsr()
        # A new object: the given one's sorted flag may be out of date, and user input must not be sorted in place.
        rows = csr_array((rows.data, rows.indices, rows.indptr), shape=rows.shape)
        rows.check_format(full_check=True)
    return rows


def _canonical(rows: Any, name: str) -> Any:
    if not rows.has_canonical_format or not rows.data.all():
        rows = rows.copy()
        rows.sum_duplicates()
        rows.eliminate_zeros()
    finite = np.isfinite(rows.data)
    if not finite.all():
        place = int(np.argmin(finite))
        raise _not_finite(name, [int(each[place]) for each in rows.nonzero()], rows.data[place])
    index = np.int32 if rows.nnz < 2**31 else np.int64
    # Kernels are compiled for one of the types.
    rows.indices, rows.indptr = rows.indices.astype(np.int32, copy=False), rows.indptr.astype(index, copy=False)
    return rows


def check_finite(name: str, array: NDArray[Any]) -> None:
    """Raise :class:`ConfigurationError`, with the place, if an array has a NaN or an infinity."""
    # A minimum of numbers of which one is NaN is NaN.
    if not np.isfinite([array.min(initial=0.0), array.max(initial=0.0)]).all():
        place = np.unravel_index(np.argmin(np.isfinite(array)), array.shape)
        raise _not_finite(name, [int(k) for k in place], array[place])


def _not_finite(name: str, place: list[int], value: Any) -> ConfigurationError:
    return ConfigurationError(f"{name}{place} is {value}; expected finite numbers. Impute or drop such examples first")


def as_numbers(
    name: str, values: ArrayLike, shape: tuple[int, ...], least: float = -math.inf, expected: str = "numbers >= 0"
) -> NDArray[np.float64]:
    """Return finite float64 numbers, none below `least`, of a shape whose first entry is the number of examples."""
    array = with_rows(name, values, shape)
    if array.dtype.kind not in "fiub":
        raise ConfigurationError(f"{name} have dtype {array.dtype}; expected numbers")
    # Kernels treat a read-only array as another type, but selected rows of it are not read-only.
    array = np.require(array, np.float64, ["C", "W"])
    check_finite(name, array)
    if array.min(initial=math.inf) < least:
        row = int(np.argmin(array))
        raise ConfigurationError(f"{name}[{row}] is {array[row]:g}; expected {expected}")
    return array


def as_weights(weights: ArrayLike | None, num_examples: int) -> Vector:
    """Return weights of rows as numbers > 0, ones if there are none."""
    if weights is None:
        return np.ones(num_examples)
    expected = "numbers > 0. Leave out rows that do not count"
    found = as_numbers("sample_weight", weights, (num_examples,), math.ulp(0.0), expected)
    if math.isinf(num_examples * (largest := float(found.max(initial=0.0)))):
        prefix = f"sample_weight[{found.argmax()}] is {largest:g}"
        raise ConfigurationError(f"{prefix}; expected numbers whose sum is finite. Divide all of them by the largest")
    return found


def _read(values: Any, name: str) -> NDArray[Any]:
    """Return an array of entries that are all there: under a mask NumPy would take the numbers that it hides."""
    array = np.asarray(values)
    missing = array.dtype == object and any(is_missing(own) for own in array.ravel().tolist() if not np.ndim(own))
    # Of a frame it would be a column.
    if missing or (not hasattr(values, "columns") and np.ma.is_masked(values)):
        raise ConfigurationError(f"{name} have missing entries; expected none. Impute or drop such examples first")
    return array


def with_rows(name: str, values: ArrayLike, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return an argument as an array of a shape whose first entry is the number of examples."""
    own = _read(values, name)
    if own.shape != shape:
        raise ConfigurationError(f"{name} have shape {own.shape}, but there are {shape[0]} examples; expected {shape}")
    return own


def blocks(
    features: Features, batch: Rows | None = None, least: int = 0, dtype: DTypeLike = np.float64
) -> Iterable[tuple[Any, Any]]:
    """Return some rows at a time, with their numbers: as many as fit in a processor's cache.

    Parameters
    ----------
    features : ndarray or csr_array, shape (n, d)
        All rows; of a sparse matrix they come at once.
    batch : ndarray of int64, shape (b,), optional
        Numbers of rows; all by default.
    least : int, default 0
        So many rows at a time, or more.
    dtype : dtype, default float64
        Of the rows.

    Returns
    -------
    iterable of (slice or ndarray of int64, ndarray or csr_array)
        Numbers of rows, and these rows, without a copy if they are already in this precision.
    """
    n, d = features.shape
    count = n if batch is None else batch.size
    if batch is not None and count and (batch.dtype == np.bool_ or int(batch.min()) < 0 or int(batch.max()) >= n):
        raise IndexError("a batch is row numbers 0 .. num_examples - 1; np.flatnonzero makes them of a mask")
    step = max(SMALLEST_BLOCK, BLOCK // (8 * max(d, 1)), least)
    # Of a sparse matrix a slice is a copy.
    if count <= step or not isinstance(features, np.ndarray):
        part = slice(0, n) if batch is None else batch
        return ((part, (features if batch is None else features[batch]).astype(dtype, copy=False)),)
    parts = (slice(start, start + step) for start in range(0, count, step))
    numbers = parts if batch is None else (batch[part] for part in parts)
    return ((rows, features[rows].astype(dtype, copy=False)) for rows in numbers)


def dense(matrix: Any) -> NDArray[Any]:
    """Return a matrix as an array, whether it is sparse or not."""
    return np.asarray(matrix.toarray() if hasattr(matrix, "toarray") else matrix)


def columns_of(block: Any, columns: NDArray[np.int64]) -> Any:
    """Return some columns of rows, with 1 in the place of an intercept's, which comes after the features."""
    own = columns[columns < block.shape[1]]
    found = block if own.size == block.shape[1] else block[:, own]
    if own.size == columns.size:
        return found
    if isinstance(found, np.ndarray):
        return np.hstack([found, np.ones((len(found), 1))])
    return hstack([found, csr_array(np.ones((found.shape[0], 1), found.dtype))], format="csr")


def product_of(left: Any, weights: Vector, right: Any) -> NDArray[np.float64]:
    """Return left' diag(weights) right, of dense or of sparse columns."""
    # Of a symmetric product BLAS computes a half; between two outputs the same columns may have weights below 0.
    if left is right and isinstance(left, np.ndarray) and weights.min() >= 0.0:
        if np.ptp(weights) == 0.0:
            return np.asarray(left.T @ left * weights[0])
        half = left * np.sqrt(weights)[:, None]
        return np.asarray(half.T @ half)
    if isinstance(left, np.ndarray):
        return np.asarray((left.T * weights) @ right)
    return dense(left.T @ right.multiply(weights[:, None]).tocsr())


def square_lengths(features: Features, centre: Vector | None = None) -> Vector:
    """Return the squared distance of each row from a centre, by default from 0."""
    if centre is not None and isinstance(features, np.ndarray):
        # Far from 0 rounding of the squares would be more than what is left of them.
        return np.concatenate([np.square(block - centre).sum(axis=1) for _, block in blocks(features)])
    lengths = np.concatenate([np.asarray((block**2).sum(axis=1)).reshape(-1) for _, block in blocks(features)])
    return lengths if centre is None else np.maximum(lengths - 2.0 * (features @ centre) + centre @ centre, 0.0)


@np.errstate(over="ignore", invalid="ignore")
def moments(features: Features, shares: Vector) -> tuple[Vector, Vector, Vector]:
    """Return mean, variance and fourth central moment of each column, by shares of the rows of sum 1, shape (n,)."""
    means = sum(shares[rows] @ block for rows, block in blocks(features))
    sums: Any = sum(_powers(block, means, shares[rows]) for rows, block in blocks(features))
    # Of a constant column rounding of the mean would be left, which grows with the rows.
    return means + sums[0], np.maximum(sums[1] - np.square(sums[0]), 0.0), sums[2]


def _powers(block: Any, means: Vector, shares: Vector) -> NDArray[np.float64]:
    """Return the sums of the columns' deviations from their means, of squares and of fourth powers, by shares."""
    if isinstance(block, np.ndarray):
        # A power of an array takes a hundred times as long as its square.
        raised = block - means
        return np.array([shares @ (np.square(raised, out=raised) if power else raised) for power in range(3)])
    each = np.repeat(shares, np.diff(block.indptr))
    at = block.indices
    # What is not stored is 0.
    absent = np.where(np.bincount(at, minlength=means.size) < block.shape[0], 1.0, 0.0)
    absent *= np.maximum(shares.sum() - np.bincount(at, each, means.size), 0.0)
    apart = block.data - means[at]
    return np.array([np.bincount(at, each * apart**k, means.size) + absent * (-means) ** k for k in (1, 2, 4)])


@np.errstate(over="ignore", invalid="ignore")
def scales_of(features: Features) -> tuple[Vector, float]:
    """Return the standard deviation of each column, shape (d,), and how far from 0 the columns are together.

    That is a power of two below the length of the vector of what three quarters of some entries of each column are
    beyond, on one side of 0, so that no mean follows from it, and 0 in fewer than 20 rows. A deviation is 0 where
    it says more of the rows than of a unit: in fewer than 20 rows; of a column of fewer than six values, as a
    constant, an indicator or a dark pixel has; of one that is mostly zero, as a pixel's at the edge is; and where a
    few rows make the deviation: its logarithm has a standard error of sqrt((k - 1) / 4n) with k the kurtosis, and
    is not said above .16.

    Parameters
    ----------
    features : ndarray or csr_array, shape (n, d)
        From :func:`as_rows`.
    """
    n, d = features.shape
    if n < _FEWEST_ROWS:
        return np.zeros(d), 0.0
    _, variances, fourth = moments(features, np.full(n, 1.0 / n))
    # Rows that are far apart, because rows may be sorted.
    rows = np.arange(min(n, _LOOKED_AT)) * (n - 1) // (min(n, _LOOKED_AT) - 1)
    ordered = np.sort(dense(features[rows]).astype(np.float64), axis=0)
    few = 1 + (ordered[1:] != ordered[:-1]).sum(axis=0) < _FEWEST_VALUES
    few |= 2 * np.asarray((features != 0).sum(axis=0)).reshape(-1) < n
    # A column without variance has few values.
    units = np.where(variances > 0.0, variances, 1.0)
    few |= fourth / units**2 - 1.0 > _VARIANCE * n
    quarter = len(ordered) // 4
    # Without overflow, unlike a root of squares.
    digits, power = np.frexp(np.hypot.reduce(np.maximum(0.0, np.maximum(ordered[quarter], -ordered[-1 - quarter]))))
    return np.where(few, 0.0, np.sqrt(variances)), float(np.ldexp(np.ceil(digits), power - 1))

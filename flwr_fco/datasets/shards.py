"""A client's examples as memory-mapped files, which are prepared once and read by many short-lived processes."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fco.core.files import read_npy, write_npy
from flwr_fco.datasets.base import Samples
from flwr_fco.errors import ConfigurationError, DataNotFoundError

_DENSE, _SPARSE, _TARGETS = "features", ("data", "indices", "indptr", "shape"), "targets"


def memmap(folder: str | os.PathLike[str], make: Callable[[], Samples] | None = None) -> Samples:
    """Return a client's examples as memory maps of the files in a folder, which are created first if necessary.

    In a deployment every message starts a new process. With memory maps the process reads only the pages it needs,
    which stay in the system's cache from one message to the next, instead of preparing all examples again.

    Parameters
    ----------
    folder : path-like
        A separate folder for each client, such as ``Path(node_config["data-path"]) / "0"``.
    make : callable, optional
        Returns the examples: features (dense, or SciPy's sparse rows) and targets. It is called if the folder does not
        exist. If several processes call it at the same time, the files of one of them are used, never a mixture.

    Returns
    -------
    Samples
        Read-only arrays with the same numbers as from `make`.

    Raises
    ------
    DataNotFoundError
        If there are no files and `make` is not given.
    ConfigurationError
        If the folder contains other files.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> with tempfile.TemporaryDirectory() as place:
    ...     samples = memmap(f"{place}/0", lambda: Samples(np.eye(3), np.array([1.0, 2.0, 3.0])))
    ...     again = memmap(f"{place}/0")
    ...     (again.features == samples.features).all(), again.features.flags.writeable
    (np.True_, False)
    """
    path = Path(folder)
    if not path.exists():
        if make is None:
            raise DataNotFoundError(f"{path} does not exist; expected a folder that memmap(folder, make) has made")
        _write(path, make())
    names = (_DENSE,) if (path / f"{_DENSE}.npy").exists() else _SPARSE
    try:
        parts = {name: read_npy(path / f"{name}.npy", mapped=True) for name in (*names, _TARGETS)}
        if names == (_DENSE,):
            return Samples(np.asarray(parts[_DENSE]), np.asarray(parts[_TARGETS]))
        data, indices, starts = (np.asarray(parts[name]) for name in _SPARSE[:3])
        rows, columns = map(int, parts["shape"])
        _check_csr(data, indices, starts, rows, columns, "the matrix of features")
    except (OSError, ValueError, TypeError) as error:
        raise ConfigurationError(
            f"{path} is no folder of memmap's: {error}. Remove it, or name another one, and it is made again"
        ) from error
    from scipy.sparse import csr_array

    features = csr_array((data, indices, starts), shape=(rows, columns), copy=False)
    return Samples(features, np.asarray(parts[_TARGETS]))


def _write(path: Path, samples: Samples) -> None:
    """Write a folder atomically."""
    features: Any = samples.features
    sparse = sys.modules.get("scipy.sparse")
    if sparse is not None and sparse.issparse(features):
        rows = sparse.csr_array(features)
        rows.sum_duplicates()
        parts = {"data": rows.data, "indices": rows.indices, "indptr": rows.indptr, "shape": np.array(rows.shape)}
    else:
        parts = {_DENSE: np.ascontiguousarray(features)}
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        for name, array in {**parts, _TARGETS: np.asarray(samples.targets)}.items():
            if array.dtype.hasobject:
                raise ConfigurationError(f"the {name} have dtype {array.dtype}; expected numbers")
            write_npy(partial / f"{name}.npy", array)
        try:
            partial.rename(path)
        except OSError:
            # Another process wrote the same files first.
            if not path.exists():
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _check_csr(
    data: NDArray[Any], indices: NDArray[Any], indptr: NDArray[Any], rows: int, columns: int, name: str
) -> None:
    """Reject parts that are no matrix in CSR: compiled code would read and write beyond their ends."""
    if any(part.ndim != 1 for part in (data, indices, indptr)) or {indices.dtype.kind, indptr.dtype.kind} - set("iu"):
        raise ValueError(f"{name} has parts that are no vectors, or indices that are no whole numbers")
    if rows < 0 or columns < 0 or data.dtype.kind not in "biufc":
        raise ValueError(f"{name} is {data.dtype}[{rows}, {columns}], expected numbers in a matrix")
    if indptr.size != rows + 1 or data.size != indices.size:
        what = f"{name} has {rows} rows, {indptr.size} row ends, {data.size} entries and {indices.size} columns of them"
        raise ValueError(f"{what}; expected one end more than rows, and a column for each entry")
    # Differences of unsigned numbers would never be negative.
    if indptr[0] != 0 or int(indptr[-1]) != data.size or (indptr[1:] < indptr[:-1]).any():
        raise ValueError(f"{name} has row ends that do not ascend from 0 to {data.size}")
    if indices.size and not (indices.min() >= 0 and int(indices.max()) < columns):
        wrong = int(indices.min() if indices.min() < 0 else indices.max())
        raise ValueError(f"{name} has a column {wrong}, expected 0 to {columns - 1}")
    falls = np.flatnonzero(indices[1:] <= indices[:-1]) + 1
    # They may fall where a row begins.
    if falls.size and not np.isin(falls, indptr).all():
        raise ValueError(f"{name} has a row whose columns do not ascend")

"""A client's examples as files that are mapped into memory: prepared once, read by many short-lived processes."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from flwr_fco.datasets.base import Samples
from flwr_fco.errors import ConfigurationError, DataNotFoundError

_DENSE, _SPARSE, _TARGETS = "features", ("data", "indices", "indptr", "shape"), "targets"


def memmap(folder: str | os.PathLike[str], make: Callable[[], Samples] | None = None) -> Samples:
    """Return a client's examples as memory maps of the files in a folder, which are made first if there are none.

    In a deployment every message is a new process. Where it maps its examples it reads the pages that it needs, which
    stay in the system's cache from one message to the next, instead of preparing all of them again.

    Parameters
    ----------
    folder : path-like
        One folder for each client, such as ``Path(node_config["data-path"]) / "0"``.
    make : callable, optional
        Returns the examples: features (dense, or SciPy's sparse rows) and targets. It is called if the folder does not
        exist. Processes that do so at the same time end with the files of one of them, never with a mixture.

    Returns
    -------
    Samples
        Read-only arrays, the same numbers as those of `make`.

    Raises
    ------
    DataNotFoundError
        If there are no files, and no `make`.
    ConfigurationError
        If what is in the folder is something else.

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
        parts = {name: np.load(path / f"{name}.npy", mmap_mode="r") for name in (*names, _TARGETS)}
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{path} is no folder of memmap's: {error}. Remove it, or name another one, and it is made again"
        ) from error
    if names == (_DENSE,):
        return Samples(np.asarray(parts[_DENSE]), np.asarray(parts[_TARGETS]))
    from scipy.sparse import csr_array

    data, indices, starts = (np.asarray(parts[name]) for name in _SPARSE[:3])
    features = csr_array((data, indices, starts), shape=tuple(parts["shape"].tolist()), copy=False)
    return Samples(features, np.asarray(parts[_TARGETS]))


def _write(path: Path, samples: Samples) -> None:
    """Write a folder, whole or not at all."""
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
            np.save(partial / f"{name}.npy", array, allow_pickle=False)
        try:
            partial.rename(path)
        except OSError:
            # Another process was first: its files are the same.
            if not path.exists():
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)

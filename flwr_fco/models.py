"""A trained model outside Flower: a plain ``.npz`` file, and SciPy's sparse matrices.

Besides, the one reader and the one writer of files, for what builds on the package.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import Result as FlowerResult
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array

from flwr_fco.core.files import json_object, parse_json, read_json, read_npz, read_text, write_file, write_npz
from flwr_fco.core.validation import of_type, printable
from flwr_fco.errors import ConfigurationError

__all__ = ["json_object", "load_npz", "parse_json", "printable", "read_json", "read_npz", "read_text", "save_npz"]
__all__ += ["to_sparse", "write_file", "write_npz"]

Model = FlowerResult | ArrayRecord | Mapping[str, ArrayLike]


def save_npz(source: Model, path: str | os.PathLike[str]) -> None:
    """Write a model to an ``.npz`` file of its arrays, which ``np.load`` reads too.

    Parameters
    ----------
    source : Result, ArrayRecord or mapping of str to array
        The model.
    path : path-like
        The file; it is replaced atomically.

    Raises
    ------
    ConfigurationError
        If the source is not a model, or one of its arrays is not of numbers.
    """
    write_npz(path, arrays_of(source))


def load_npz(path: str | os.PathLike[str]) -> dict[str, NDArray[Any]]:
    """Read a model that :func:`save_npz` wrote, for ``initial_arrays``; the file may come from anybody.

    Parameters
    ----------
    path : path-like
        The file.

    Returns
    -------
    dict of str to ndarray
        In the order of the file.

    Raises
    ------
    ConfigurationError
        If it is no such file, or is damaged.
    FileNotFoundError
        If there is no such file.

    Examples
    --------
    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/model.npz"
    >>> save_npz({"coefficients": [0.0, 2.0], "intercept": [1.0]}, path)
    >>> load_npz(path)
    {'coefficients': array([0., 2.]), 'intercept': array([1.])}
    """
    return arrays_of(read_npz(path))


def to_sparse(source: Model) -> dict[str, csr_array]:
    """Return a model's arrays as SciPy's sparse matrices, for ``scipy.sparse.save_npz`` or fast predictions.

    Parameters
    ----------
    source : Result, ArrayRecord or mapping of str to array
        The model.

    Returns
    -------
    dict of str to scipy.sparse.csr_array
        A vector is one row; an array of more than two dimensions is the matrix of its first axis and all others.

    Raises
    ------
    ConfigurationError
        If the source is not a model, or one of its arrays is not of numbers.

    Examples
    --------
    >>> to_sparse({"coefficients": np.eye(1, 1000)[0]})["coefficients"].nnz
    1
    """
    arrays = arrays_of(source).items()
    return {name: csr_array(w.reshape(w.shape[0] if w.ndim > 1 else 1, -1)) for name, w in arrays}


def arrays_of(source: Any) -> dict[str, NDArray[Any]]:
    """Return a model as arrays; they may share memory with it."""
    source = getattr(source, "arrays", source)
    if not isinstance(source, Mapping):
        raise ConfigurationError(f"{source!r} is {of_type(source)}; expected a Result, an ArrayRecord or named arrays")
    arrays = {name: value.numpy() if isinstance(value, Array) else np.asarray(value) for name, value in source.items()}
    for name, array in arrays.items():
        if array.dtype.kind not in "biufc":
            raise ConfigurationError(f"the array {name!r} has dtype {array.dtype}; expected an array of numbers")
    return arrays

"""A trained model outside Flower: small files, PyTorch's state dicts, and the way back as initial arrays."""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import Result as FlowerResult
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array

from flwr_fco.errors import ConfigurationError

__all__ = ["arrays_from", "load_npz", "save_npz", "state_dict"]

_DENSE, _SPARSE = "dense/", "csr/"
_PARTS = ("data", "indices", "indptr", "shape")


def save_npz(
    source: FlowerResult | ArrayRecord | Mapping[str, ArrayLike], path: str | os.PathLike[str]
) -> dict[str, str]:
    """Write a model to an ``.npz`` file: each array dense or in CSR, whichever is smaller.

    CSR is used for float32 and float64 only. Plain NumPy reads the file: ``dense/<name>``, or ``csr/<name>/data``,
    ``/indices``, ``/indptr`` and ``/shape``. In CSR, an array with more than two dimensions is stored as the matrix of
    its first axis and all others, and a one-dimensional array as a row.

    Parameters
    ----------
    source : Result, ArrayRecord or mapping of str to array
        The model. Tensors of dtypes that NumPy does not have (bfloat16) become float32.
    path : path-like
        The file; it is replaced atomically.

    Returns
    -------
    dict of str to {"dense", "csr"}
        How each array was written.

    Raises
    ------
    ConfigurationError
        If the source is not a model, or one of its arrays is not numeric.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "model.npz")
    >>> save_npz({"coefficients": np.eye(1, 1000)[0], "intercept": np.ones(1)}, path)
    {'coefficients': 'csr', 'intercept': 'dense'}
    >>> load_npz(path)["coefficients"].shape
    (1000,)
    """
    target = Path(path)
    written: dict[str, Any] = {}
    forms = {}
    for name, array in _arrays_of(source).items():
        parts = _csr_parts(array)
        forms[name] = "csr" if parts and sum(part.nbytes for part in parts.values()) < array.nbytes else "dense"
        if forms[name] == "dense":
            written[_DENSE + name] = array
        else:
            written.update({f"{_SPARSE}{name}/{part}": value for part, value in parts.items()})
    partial = target.with_name(f".{target.name}.partial")
    with partial.open("wb") as file:
        np.savez(file, **written)
    partial.replace(target)
    return forms


def load_npz(path: str | os.PathLike[str]) -> dict[str, NDArray[Any]]:
    """Read a model that :func:`save_npz` wrote: dense arrays in their shapes and dtypes.

    Raises
    ------
    ConfigurationError
        If :func:`save_npz` did not write the file.
    """
    arrays: dict[str, NDArray[Any]] = {}
    if not zipfile.is_zipfile(path) and Path(path).is_file():
        raise ConfigurationError(f"{os.fspath(path)} is no .npz file, or a damaged one; expected one of save_npz")
    with np.load(path, allow_pickle=False) as file:
        for key in file.files:
            name = key.removeprefix(_DENSE)
            if key.startswith(_DENSE):
                arrays[name] = file[key]
            elif key.startswith(_SPARSE) and key.endswith("/data"):
                stem = key.removesuffix("/data")
                data, indices, indptr, shape = (file[f"{stem}/{part}"] for part in _PARTS)
                length = math.prod(shape.tolist()) // max(1, indptr.size - 1)
                matrix = csr_array((data, indices, indptr), shape=(indptr.size - 1, length))
                arrays[stem.removeprefix(_SPARSE)] = matrix.toarray().reshape(shape)
            elif not key.startswith(_SPARSE):
                raise ConfigurationError(
                    f"{os.fspath(path)} holds an array {key!r}; expected a file that save_npz wrote, whose names begin "
                    f"with {_DENSE!r} or {_SPARSE!r}"
                )
    return arrays


def state_dict(source: FlowerResult | ArrayRecord | Mapping[str, ArrayLike]) -> dict[str, Any]:
    """Return a model as tensors, for ``torch.nn.Module.load_state_dict``.

    Parameters
    ----------
    source : Result, ArrayRecord or mapping of str to array
        A run's result, or arrays under their names.

    Returns
    -------
    dict of str to torch.Tensor
        They share no memory with the source.

    Raises
    ------
    ConfigurationError
        If PyTorch is not installed.
    """
    try:
        torch = import_module("torch")
    except ImportError as error:
        raise ConfigurationError("state_dict needs PyTorch: pip install torch") from error
    native = {name: array.astype(array.dtype.newbyteorder("=")) for name, array in _arrays_of(source).items()}
    return {name: torch.from_numpy(array) for name, array in native.items()}


def arrays_from(source: Any) -> ArrayRecord:
    """Return initial arrays for ``start`` or ``simulate`` from a model of any supported kind.

    Parameters
    ----------
    source : Result, ArrayRecord, mapping of str to array or tensor, object with ``state_dict()``, or path-like
        An earlier run's result, arrays under their names, a PyTorch module or its state dict, or a file that
        :func:`save_npz` wrote.

    Raises
    ------
    ConfigurationError
        If the source is none of these.

    Examples
    --------
    >>> arrays_from({"coefficients": [0.0, 1.0]})["coefficients"].numpy()
    array([0., 1.])
    """
    if isinstance(source, str | os.PathLike):
        source = load_npz(source)
    elif not isinstance(source, FlowerResult | ArrayRecord | Mapping) and hasattr(source, "state_dict"):
        source = source.state_dict()
    return ArrayRecord({name: Array(array) for name, array in _arrays_of(source).items()})


def _csr_parts(array: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Return the CSR parts of an array; empty for dtypes that SciPy matrices do not support."""
    if not array.size or array.dtype not in (np.float32, np.float64):
        return {}
    matrix = csr_array(array.reshape(1, -1) if array.ndim < 2 else array.reshape(array.shape[0], -1))
    return dict(zip(_PARTS, (matrix.data, matrix.indices, matrix.indptr, np.array(array.shape)), strict=True))


def _arrays_of(source: Any) -> dict[str, NDArray[Any]]:
    """Return a model as arrays; they may share memory with it."""
    if isinstance(source, FlowerResult):
        source = source.arrays
    if isinstance(source, ArrayRecord):
        return {name: array.numpy() for name, array in source.items()}
    if isinstance(source, Mapping):
        return {str(name): _array(str(name), value) for name, value in source.items()}
    raise ConfigurationError(
        f"{source!r} is a {type(source).__name__}; expected a Result, an ArrayRecord or a mapping of names to arrays"
    )


def _array(name: str, value: Any) -> NDArray[Any]:
    if isinstance(value, Array):
        return value.numpy()
    if hasattr(value, "detach"):
        # np.asarray rejects tensors that require a gradient or are on another device.
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":
            value = value.float()
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ConfigurationError(f"the array {name!r} is none: {error}") from error
    if array.dtype.kind not in "biufc":
        # An array of objects would be pickled, and not be read back.
        raise ConfigurationError(
            f"the array {name!r} is of {type(value).__name__} with dtype {array.dtype}; expected an array of numbers"
        )
    return array

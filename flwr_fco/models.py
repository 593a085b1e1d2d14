"""A trained model outside Flower: small files, PyTorch's state dicts, and the way back as initial arrays.

Besides, the one reader and the one writer of files, for what builds on the package.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import Result as FlowerResult
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array

from flwr_fco.core.files import (
    append_text,
    check_csr,
    json_object,
    open_log,
    parse_json,
    read_json,
    read_npy,
    read_npz,
    read_text,
    shown,
    write_file,
    write_npy,
    write_npz,
)
from flwr_fco.core.logs import printable
from flwr_fco.errors import ConfigurationError

__all__ = [
    "append_text",
    "arrays_from",
    "json_object",
    "load_npz",
    "open_log",
    "parse_json",
    "printable",
    "read_json",
    "read_npy",
    "read_npz",
    "read_text",
    "save_npz",
    "state_dict",
    "write_file",
    "write_npy",
    "write_npz",
]

_DENSE, _SPARSE = "dense/", "csr/"
_PARTS = ("data", "indices", "indptr", "shape")
#: Bytes that sparse arrays may take without a word when they are dense: 33 million float64 numbers.
_DENSE_BYTES = 2**28
#: Maximum number of an array's dimensions.
_AXES = 32


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
    >>> path = tempfile.mkdtemp() + "/model.npz"
    >>> save_npz({"coefficients": np.eye(1, 1000)[0], "intercept": np.ones(1)}, path)
    {'coefficients': 'csr', 'intercept': 'dense'}
    >>> load_npz(path)["coefficients"].shape
    (1000,)
    """
    written: dict[str, Any] = {}
    forms = {}
    for name, array in _arrays_of(source).items():
        parts = _csr_parts(array)
        forms[name] = "csr" if parts and sum(part.nbytes for part in parts.values()) < array.nbytes else "dense"
        sparse = {f"{_SPARSE}{name}/{part}": value for part, value in parts.items()}
        written |= sparse if forms[name] == "csr" else {_DENSE + name: array}
    write_npz(path, written)
    return forms


def load_npz(path: str | os.PathLike[str], *, max_bytes: int = _DENSE_BYTES) -> dict[str, NDArray[Any]]:
    """Read a model that :func:`save_npz` wrote: dense arrays in their shapes and dtypes.

    Parameters
    ----------
    path : path-like
        The file, which may come from anybody.
    max_bytes : int, default 268435456
        Maximum number of bytes that arrays which the file holds as CSR take together when they are dense. A file of a
        few hundred bytes can say that it holds a vector of any length.

    Returns
    -------
    dict of str to ndarray
        In the order of the file.

    Raises
    ------
    ConfigurationError
        If :func:`save_npz` did not write the file, or it is damaged, or holds a larger model.
    FileNotFoundError
        If there is no such file.

    Examples
    --------
    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/model.npz"
    >>> _ = save_npz({"w": np.zeros(10**6)}, path)
    >>> load_npz(path)["w"].sum(), load_npz(path, max_bytes=10**6)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    flwr_fco.errors.ConfigurationError: ...: its sparse arrays take 8000000 bytes when dense, expected at most 1...
    """
    parts, where = read_npz(path), shown(path)
    arrays: dict[str, NDArray[Any]] = {}
    total = 0
    for key, value in parts.items():
        name = key.removeprefix(_DENSE)
        if key.startswith(_DENSE):
            arrays[name] = value
            continue
        stem, _, part = key.removeprefix(_SPARSE).rpartition("/")
        if not key.startswith(_SPARSE) or part not in _PARTS:
            what = f"{where} holds an array {key!r}; expected a file that save_npz wrote"
            raise ConfigurationError(f"{what}, whose names begin with {_DENSE!r} or {_SPARSE!r}")
        if stem in arrays:
            continue
        own = [parts.get(f"{_SPARSE}{stem}/{name}") for name in _PARTS]
        try:
            shape = _shape_of(stem, own)
            total += math.prod(shape) * parts[f"{_SPARSE}{stem}/{_PARTS[0]}"].itemsize
            if total <= max_bytes:
                arrays[stem] = _dense(stem, own, shape)
        except ValueError as error:
            raise ConfigurationError(f"{where} is damaged, or is no file that save_npz wrote: {error}") from error
        if stem not in arrays:
            raise ConfigurationError(
                f"{where}: its sparse arrays take {total} bytes when dense, expected at most {max_bytes}; if you know "
                "the file and have the memory, read it by load_npz(path, max_bytes=...)"
            )
    return arrays


def _shape_of(name: str, parts: Sequence[Any]) -> tuple[int, ...]:
    """Return the shape of an array in CSR."""
    if any(part is None for part in parts):
        raise ValueError(f"{name!r} lacks one of {', '.join(_PARTS)}")
    shape = parts[-1]
    if shape.ndim != 1 or not 1 <= shape.size <= _AXES or shape.dtype.kind not in "iu" or shape.min() < 0:
        raise ValueError(f"{name!r} has the shape {shape.tolist()}, expected one to {_AXES} whole numbers >= 0")
    return tuple(shape.tolist())


def _dense(name: str, parts: Sequence[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Return an array in CSR as a dense one, after checking that it is one."""
    data, indices, indptr, _ = parts
    rows, columns = (shape[0], math.prod(shape[1:])) if len(shape) > 1 else (1, shape[0])
    check_csr(data, indices, indptr, rows, columns, repr(name))
    whole = np.zeros((rows, columns), data.dtype)
    whole[np.repeat(np.arange(rows), np.diff(indptr.astype(np.int64))), indices] = data
    return whole.reshape(shape)


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
        raise ConfigurationError("state_dict needs PyTorch: pip install torch (the extra [torch])") from error
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
    what = f"{source!r} is a {type(source).__name__}"
    raise ConfigurationError(f"{what}; expected a Result, an ArrayRecord or a mapping of names to arrays")


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
        what = f"the array {name!r} is of {type(value).__name__} with dtype {array.dtype}"
        raise ConfigurationError(f"{what}; expected an array of numbers")
    return array

"""Reads arrays from bytes whose header is checked first, and the model with the user's names, shapes and dtypes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fnmatch import fnmatchcase
from io import BytesIO
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from flwr_fco.core.files import npy_header
from flwr_fco.core.layout import COUNTERS, Entry, Layout, Vector, all_finite, euclidean_norm
from flwr_fco.core.sparse import NonZeros, SparseVector
from flwr_fco.errors import ConfigurationError, ProtocolError
from flwr_fco.wire import flower as _flower
from flwr_fco.wire.flower import NUMPY, Form, form_of
from flwr_fco.wire.keys import INDICES, NO_ARRAYS, NONZEROS, OWN_ARRAYS

#: Why an array with NaN or infinite values is left out.
NOT_FINITE = "NaN or infinite values"
#: Why a reply with more or fewer arrays is left out.
OTHER_NAMES = "the arrays' names differ from the model's"


def vectors_of(content: RecordDict) -> Mapping[str, Array]:
    """Return the arrays of the one ArrayRecord that holds a message's vectors."""
    records = [
        record
        for key, record in content.items()
        if type(record) not in NO_ARRAYS and isinstance(record, ArrayRecord) and key not in OWN_ARRAYS
    ]
    if len(records) != 1:
        raise ProtocolError(f"expected exactly one ArrayRecord, got {len(records)}")
    return dict(records[0].items())


def from_array(name: str, array: Array, dtypes: tuple[str, ...], shape: tuple[int, ...]) -> NDArray[Any]:
    """Return the data read-only after checking dtype and shape; a view if the header has the usual form."""
    if array.dtype not in dtypes or tuple(array.shape) != shape:
        what = f"array {name!r} is {array.dtype}{list(array.shape)}"
        raise ProtocolError(f"{what}, expected {' or '.join(dtypes)}{list(shape)}")
    if array.stype != NUMPY:
        raise ProtocolError(f"array {name!r} is serialised as {array.stype!r}, expected {NUMPY!r}")
    form, data = form_of(array.dtype, shape), array.data
    if len(data) == form.size and data.startswith(form.header):
        value = np.frombuffer(data, dtype=form.dtype, offset=len(form.header))
        return value if len(shape) == 1 else value.reshape(shape)
    return _other_header(name, data, form, shape)


def _other_header(name: str, data: bytes, form: Form, shape: tuple[int, ...]) -> NDArray[Any]:
    """Read an array whose header differs from this package's only in memory order or padding.

    ``np.load`` never sees a client's bytes: it opens archives, and allocates whatever size a header claims.
    """
    file = BytesIO(data)
    try:
        found, columns_first, dtype = npy_header(file)
    except Exception as error:  # what is no header may raise anything
        raise ProtocolError(f"array {name!r} cannot be read: {error}") from error
    if (found, dtype) != (shape, form.dtype):
        raise ProtocolError(f"array {name!r} holds {dtype}{list(found)}, its label says {form.name}{list(shape)}")
    left, wanted = len(data) - file.tell(), math.prod(shape) * form.dtype.itemsize
    if left != wanted:
        what = f"array {name!r} cannot be read: it has {left} bytes of data"
        raise ProtocolError(f"{what}, {form.name}{list(shape)} takes {wanted}")
    value = np.frombuffer(data, dtype=form.dtype, offset=file.tell())
    return np.ascontiguousarray(value.reshape(shape, order="F")) if columns_first and shape else value.reshape(shape)


#: Allowed dtypes in a plan's arrays and a client's memory.
_INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
_LABELS = ("float64", "float32", "float16", "bool", *_INTEGERS)


def labelled(name: str, array: Array) -> NDArray[Any]:
    """Return an array whose dtype and shape are known from its label only."""
    shape = tuple(array.shape)
    if array.dtype not in _LABELS or any(size < 0 for size in shape):
        raise ProtocolError(f"array {name!r} is {array.dtype!r}{list(shape)}, expected numbers and sizes >= 0")
    return from_array(name, array, (array.dtype,), shape)


def floating(dtype: str) -> tuple[str, ...]:
    """Return the dtypes in which a floating-point array may return: its own first; scikit-learn returns float64."""
    return (dtype, *(other for other in ("float64", "float32", "float16") if other != dtype))


def finite(name: str, array: NDArray[Any], what: str = "array") -> NDArray[Any]:
    """Return an array after checking that it has no NaN or infinite values."""
    if not all_finite(array):
        bad = int(array.size - np.isfinite(array).sum())
        raise ProtocolError(f"{what} {name!r} holds {bad} {NOT_FINITE}")
    return array


def read_vectors(
    arrays: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]], dtype: str
) -> tuple[dict[str, Any], dict[str, float]]:
    """Return a client's vectors as received, and their Euclidean norms, infinite if the sum of squares overflows."""
    vectors: dict[str, Any] = {}
    norms = {}
    # Not float16: values below 6e-8 would become 0.
    dtypes = (dtype, "float32" if dtype == "float64" else "float64")
    for name, shape in shapes.items():
        indices = arrays.get(INDICES + name)
        if indices is not None and (len(shape) != 1 or len(indices.shape) != 1 or indices.shape[0] > shape[0]):
            raise ProtocolError(f"the places of array {name!r} have shape {list(indices.shape)}, of {list(shape)}")
        value = from_array(name, arrays[name], dtypes, shape if indices is None else tuple(indices.shape))
        # A finite norm implies a vector without NaN and infinity, in one pass, and the bounds need the norm anyway.
        norm = norms[name] = euclidean_norm(value)
        vectors[name] = value if math.isfinite(norm) else finite(name, value)
        if indices is not None:
            vectors[name] = sparse_vector(name, indices, value, shape[0])
    return vectors, norms


def arrays_of(vectors: Mapping[str, Any], *, downlink: bool = False) -> dict[str, Any]:
    """Return the arrays that represent vectors in a message; for a sparse vector, its values and coordinates.

    Only the vectors of a downlink may come by their non-zeros; elsewhere these are coordinates like any others.
    """
    arrays = dict(vectors)
    for name, vector in vectors.items():
        if isinstance(vector, SparseVector):
            kind = NONZEROS if downlink and isinstance(vector, NonZeros) else INDICES
            arrays[name], arrays[kind + name] = vector.parts
    return arrays


def sparse_vector(
    name: str, indices: Array, values: NDArray[Any], size: int, kind: type[SparseVector] = SparseVector
) -> SparseVector:
    """Return a vector of which only some coordinates were sent."""
    try:
        return kind(from_array(name, indices, ("int32",), values.shape), values, size)
    except ConfigurationError as error:
        raise ProtocolError(f"array {name!r}: {error}") from error


def read_pass_through(entry: Entry, array: Array) -> NDArray[Any]:
    """Return an array that is not optimised; counters may arrive as floats, because FedAvg averages them."""
    if array.dtype != entry.dtype and fnmatchcase(entry.name, COUNTERS):
        counts = finite(entry.name, from_array(entry.name, array, ("float64", "float32"), entry.shape))
        return np.asarray(np.rint(np.clip(counts, 0.0, 2.0**53)), dtype=np.int64)
    if np.dtype(entry.dtype).kind != "f":
        return from_array(entry.name, array, (entry.dtype,), entry.shape)
    value = from_array(entry.name, array, floating(entry.dtype), entry.shape)
    return finite(entry.name, value.astype(entry.dtype, copy=False))


_BLOCK = 1 << 16


def layout_of(arrays: ArrayRecord, **options: Any) -> Layout:
    """Describe the user's initial arrays (see :meth:`Layout.from_arrays`).

    FedAvg also averages the counters of batch normalisation, so they are float64 in its models and in checkpoints of
    them. Here they become whole numbers again, as clients send them.
    """
    model = {name: array.numpy() for name, array in arrays.items()}
    counters = {name: np.zeros(array.shape, np.int64) for name, array in model.items() if fnmatchcase(name, COUNTERS)}
    return Layout.from_arrays({**model, **counters}, **options)


def primal_record(
    layout: Layout, primal: Vector, pass_through: Mapping[str, NDArray[Any]] | None = None
) -> ArrayRecord:
    """Return a primal vector under the user's names, in the user's dtypes and order.

    Parameters
    ----------
    primal : ndarray of float64, shape (layout.size,)
        The model.
    pass_through : mapping of str to ndarray, optional
        The arrays that are not optimised.
    """
    arrays = {}
    for entry in layout.entries:
        if entry.optimized:
            array = primal[entry.block].astype(entry.dtype, copy=False).reshape(entry.shape)
        else:
            array = (pass_through or {})[entry.name]
        arrays[entry.name] = array
    return _flower.array_record(arrays)


def config_of_round(config: ConfigRecord, server_round: int) -> ConfigRecord:
    """Return a copy of the user's config with the round in it."""
    copied = config.copy()
    copied["server-round"] = server_round
    return copied


def primal_vector(layout: Layout, arrays: Mapping[str, Array]) -> tuple[Vector, dict[str, NDArray[Any]]]:
    """Return the flat vector and the pass-through arrays of a primal model.

    Raises
    ------
    ProtocolError
        If names, shapes or dtypes are not the layout's, or a value is NaN or infinite.
    """
    _check_names(layout, arrays)
    vector = np.empty(layout.size)
    for entry in layout.optimized:
        array = from_array(entry.name, arrays[entry.name], floating(entry.dtype), entry.shape)
        vector[entry.block] = finite(entry.name, array).reshape(-1)
    return vector, {e.name: read_pass_through(e, arrays[e.name]) for e in layout.passed_through}


def primal_increment(
    layout: Layout, arrays: Mapping[str, Array], sent: Vector
) -> tuple[NDArray[Any], dict[str, NDArray[Any]], float]:
    """Return a primal model minus the one that was sent, its pass-through arrays, and the difference's norm.

    The difference of single-precision models is also in single precision: this loses less than the models have lost
    already, and halves the size.

    Raises
    ------
    ProtocolError
        As in :func:`primal_vector`.
    """
    _check_names(layout, arrays)
    single = all(arrays[entry.name].dtype == entry.dtype == "float32" for entry in layout.optimized)
    kind = np.float32 if single else np.float64
    increment = np.empty(layout.size, kind)
    for entry in layout.optimized:
        array = from_array(entry.name, arrays[entry.name], floating(entry.dtype), entry.shape).reshape(-1)
        # In blocks that stay in the cache: casts instead of whole arrays.
        for begin in range(0, entry.size, _BLOCK):
            part = slice(entry.offset + begin, entry.offset + min(begin + _BLOCK, entry.size))
            start = sent[part].astype(kind, copy=False)
            np.subtract(array[begin : begin + _BLOCK], start, out=increment[part])
    norm = euclidean_norm(increment)
    for entry in layout.optimized if not math.isfinite(norm) else ():
        finite(entry.name, from_array(entry.name, arrays[entry.name], floating(entry.dtype), entry.shape))
        finite(entry.name, increment[entry.block], "the change of")
    return increment, {e.name: read_pass_through(e, arrays[e.name]) for e in layout.passed_through}, norm


def _check_names(layout: Layout, arrays: Mapping[str, Array]) -> None:
    if set(arrays) != set(layout.names):
        missing = sorted(set(layout.names) - set(arrays))
        extra = sorted(set(arrays) - set(layout.names))
        raise ProtocolError(f"{OTHER_NAMES}: missing {missing}, unexpected {extra}")


def primal_request(
    arrays: ArrayRecord, config: ConfigRecord, *, arrayrecord_key: str, configrecord_key: str
) -> RecordDict:
    """Return a primal model and a config as ``FedAvg`` sends them, in new records.

    Parameters
    ----------
    arrays : ArrayRecord
        The model; its arrays are shared, the record is copied.
    config : ConfigRecord
        Copied.
    arrayrecord_key, configrecord_key : str
        The strategy's record keys.
    """
    return RecordDict({arrayrecord_key: arrays.copy(), configrecord_key: config.copy()})

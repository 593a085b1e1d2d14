"""Arrays and models in Flower's records: a peer's bytes are compared with what is expected, and never unpickled."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from fnmatch import fnmatchcase
from functools import lru_cache
from hashlib import sha256
from types import MappingProxyType
from typing import Any
from zlib import crc32

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.lib import format as npy
from numpy.typing import NDArray

from flwr_fco.core.files import npy_header
from flwr_fco.core.layout import COUNTERS, Layout, NonZeros, SparseVector, Vector, all_finite
from flwr_fco.errors import FormError, ProtocolError, in_words

#: Flower's name of NumPy's format.
NUMPY = "numpy.ndarray"
#: Prefixes of the indices of a sparse vector, of those of all its non-zeros, and of an array that passes through.
INDICES = "indices:"
NONZEROS = "nonzeros:"
PASS = "pass:"
#: Why an array, or a reply with other arrays, is left out.
NOT_FINITE = "NaN or infinite values"
OTHER_NAMES = "the arrays' names are not those of the model that `start` was given"
#: Floating-point dtypes, in any of which a model's array may return.
FLOATS = ("float64", "float32", "float16")
_DTYPES = frozenset(np.dtype(code).name for code in "?bhiqBHIQefd")
NOTHING: Mapping[str, tuple[int, ...]] = MappingProxyType({})
#: Bytes that a header may have: what it says takes a hundred, the rest is padding.
_LONGEST_HEADER = 4096
_EMPTY = ArrayRecord()


@lru_cache(maxsize=64)
def name_of(dtype: np.dtype[Any]) -> str:
    """Return the name of a dtype, which NumPy computes each time."""
    return dtype.name


@lru_cache(maxsize=256)
def _blank(dtype: str, shape: tuple[int, ...]) -> Array:
    """Return an array of Flower's that has a header, and no numbers yet."""
    header = io.BytesIO()
    npy.write_array_header_1_0(header, {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape})
    return Array(dtype, shape, NUMPY, header.getvalue())


def to_array(value: NDArray[Any]) -> Array:
    """Return Flower's array of a NumPy array: what ``Array(value)`` makes with three copies of the data."""
    if not (value.flags.c_contiguous and value.dtype.isnative):
        value = np.ascontiguousarray(value, value.dtype.newbyteorder("=")).reshape(value.shape)
    # A copy takes half the time of Flower's constructor.
    array = copy(_blank(name_of(value.dtype), value.shape))
    array.data = b"".join((array.data, value.data))
    return array


def from_array(name: str, array: Array) -> NDArray[Any]:
    """Return a read-only view of an array's bytes.

    They must be exactly those of NumPy's format for the dtype and the shape of the array's label.

    Parameters
    ----------
    name : str
        For the error.
    array : flwr.app.Array
        From a peer.

    Raises
    ------
    ProtocolError
        If they are not.
    """
    label = array.dtype
    shape = tuple(array.shape)
    data = array.data
    sizes = {*map(type, shape)} <= {int} and min(shape, default=0) >= 0
    if label not in _DTYPES or array.stype != NUMPY or not sizes:
        prefix = f"array {name!r} is {label!r:.50}{list(shape)} in {array.stype!r:.50}"
        raise ProtocolError(f"{prefix}, expected numbers in native byte order and sizes >= 0, in {NUMPY!r}")
    dtype = np.dtype(label)
    header = _blank(label, shape).data
    begin, columns_first = len(header), False
    if not data.startswith(header):
        # Of another version, padding or memory order: an expression in Python, which a peer can fill with anything.
        with in_words(f"array {name!r} cannot be read"):
            file = io.BytesIO(data[:_LONGEST_HEADER])
            said, columns_first, held = npy_header(file)
        begin = file.tell()
        if said != shape or held != dtype:
            raise ProtocolError(f"array {name!r} holds {held!s:.50}{list(said)}, its label says {dtype}{list(shape)}")
    if (size := len(data) - begin) != math.prod(shape) * dtype.itemsize:
        raise ProtocolError(f"array {name!r} cannot be read: {size} bytes are no {label}{list(shape)}")
    value = np.frombuffer(data, dtype, offset=begin)
    return value if len(shape) == 1 else value.reshape(shape, order="F" if columns_first else "C")


def check_array(name: str, array: Any, dtypes: Sequence[str], shape: tuple[int, ...], *, finite: bool = True) -> None:
    """Check that an array, or a sparse vector, is of one of some dtypes, of a shape, and `finite`.

    Raises
    ------
    FormError
        If its dtype or shape is another one.
    ProtocolError
        If an entry is not finite.
    """
    held = array.values if isinstance(array, SparseVector) else array
    if array.shape != shape or name_of(held.dtype) not in dtypes:
        expected = f"expected {' or '.join(dict.fromkeys(dtypes))}{list(shape)}"
        raise FormError(f"array {name!r} is {held.dtype}{list(array.shape)}, {expected}")
    if finite and held.dtype.kind == "f" and not all_finite(held):
        raise ProtocolError(f"array {name!r} holds {held.size - np.isfinite(held).sum()} {NOT_FINITE}")


def check_passed(layout: Layout, passed: Mapping[str, NDArray[Any]]) -> None:
    """Check that arrays that pass through are some of those of a model, as :func:`check_array` checks them."""
    entries = {entry.name: entry for entry in layout.passed_through} if passed else {}
    if wrong := sorted(passed.keys() - entries.keys()):
        raise FormError(f"the message has the arrays {wrong}, which the plan does not")
    for name, array in passed.items():
        check_array(name, array, (entries[name].dtype,), entries[name].shape)


def pack(vectors: Mapping[str, Any]) -> dict[str, Array]:
    """Return Flower's arrays of vectors, of which sparse ones have their indices beside them."""
    arrays = {}
    for name, vector in vectors.items():
        if isinstance(vector, SparseVector):
            kind = NONZEROS if isinstance(vector, NonZeros) else INDICES
            arrays[name], arrays[kind + name] = to_array(vector.values), to_array(vector.indices)
        else:
            arrays[name] = to_array(np.asarray(vector))
    return arrays


def unpack(arrays: Mapping[str, Array], size: int, shapes: Mapping[str, tuple[int, ...]] = NOTHING) -> dict[str, Any]:
    """Return what :func:`pack` has packed.

    Parameters
    ----------
    arrays : mapping of str to Array
        From a peer.
    size : int
        Length of the sparse vectors.
    shapes : mapping of str to tuple of int
        Of those that have another length.

    Raises
    ------
    ProtocolError
        If an array cannot be read, or indices do not fit.
    """
    vectors: dict[str, Any] = {name: from_array(name, array) for name, array in arrays.items()}
    for prefix, kind in ((INDICES, SparseVector), (NONZEROS, NonZeros)):
        for entry in [name for name in vectors if name.startswith(prefix)]:
            name = entry.removeprefix(prefix)
            indices, values = vectors.pop(entry), vectors.get(name)
            if not isinstance(values, np.ndarray):
                raise ProtocolError(f"{entry!r:.100} have no values of their own beside them, or indices of two kinds")
            with in_words(f"array {name!r}", passing=ProtocolError):
                vectors[name] = kind(indices, values, math.prod(shapes.get(name, (size,))))
    return vectors


def split_passed(vectors: dict[str, Any], layout: Layout | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the vectors of a message, and its arrays that pass through, checked if the layout is given."""
    passed = {name.removeprefix(PASS): vectors.pop(name) for name in list(vectors) if name.startswith(PASS)}
    if layout is not None:
        check_passed(layout, passed)
    return vectors, passed


def digest_of(vectors: Mapping[str, Any], elapsed: float | None) -> str:
    """Return what names a client's reply, which has the same name in a message, where `elapsed` is one of Python's.

    Examples
    --------
    >>> of = [digest_of({"increment": np.zeros(2)}, elapsed) for elapsed in (1.0, 1.5, np.float64(1.0), 1)]
    >>> [own == of[0] for own in of]
    [True, False, True, True]
    """
    # Processors have instructions for it: it takes half the time of BLAKE2.
    digest = sha256(repr(None if elapsed is None else float(elapsed)).encode())
    for name, part in _parts(vectors):
        digest.update(f"{name} {part.dtype.str}".encode())
        digest.update(part.data)
    return digest.hexdigest()[:32]


def stamp_of(digest: str, number: int, memory: Mapping[str, Any]) -> str:
    """Return what names the memory after a reply of a round: equal replies may leave different memories."""
    check = 0
    for _, part in _parts(memory):
        check = crc32(np.ascontiguousarray(part).data, check)
    return f"{digest}-{number}-{check:08x}"


def _parts(vectors: Mapping[str, Any]) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the arrays that vectors are made of, by name."""
    for name in sorted(vectors):
        vector = vectors[name]
        for part in vector.parts if isinstance(vector, SparseVector) else (vector,):
            yield name, part


# --- models -----------------------------------------------------------------------------------------------------------


def layout_of(arrays: Mapping[str, Array], apply_to: Any, pass_through: Any) -> Layout:
    """Return the layout of a model under the user's names."""
    model = {name: array.numpy() for name, array in arrays.items()}
    # Counters of batches pass through, in whatever dtype a framework holds them.
    counters = {n: np.zeros(a.shape, np.int64) for n, a in model.items() if fnmatchcase(n, COUNTERS)}
    return Layout.from_arrays({**model, **counters}, apply_to=apply_to, pass_through=pass_through)


def model_record(layout: Layout, primal: Vector, passed: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    """Return a model under the user's names and in the user's dtypes."""
    arrays = {**passed, **layout.unflatten(primal)}
    return record_of({name: to_array(arrays[name]) for name in layout.names})


def record_of(arrays: Mapping[str, Array]) -> ArrayRecord:
    """Return a record of arrays as they are: Flower's constructor makes new ones."""
    record = _EMPTY.copy()
    for name, array in arrays.items():
        record[name] = array
    return record


def model_vector(layout: Layout, arrays: Mapping[str, Array]) -> tuple[Vector, dict[str, NDArray[Any]]]:
    """Return a model as one vector, and its arrays that pass through.

    Parameters
    ----------
    layout : Layout
        Of the model.
    arrays : mapping of str to Array
        Under the user's names; floating-point arrays may be of another floating dtype.

    Raises
    ------
    ProtocolError
        If names, shapes or dtypes differ, or an entry is not finite.
    """
    if set(arrays) != set(layout.names):
        missing, more = (sorted(each) for each in (set(layout.names) - set(arrays), set(arrays) - set(layout.names)))
        raise FormError(f"{OTHER_NAMES}: missing {missing}, unexpected {more}")
    vector = np.empty(layout.size)
    passed = {}
    for entry in layout.entries:
        value = from_array(entry.name, arrays[entry.name])
        floating = entry.dtype in FLOATS or fnmatchcase(entry.name, COUNTERS)
        check_array(entry.name, value, (entry.dtype, *(FLOATS if floating else ())), entry.shape)
        if entry.optimized:
            vector[entry.block] = value.reshape(-1)
            continue
        if value.dtype.kind == "f" and entry.dtype[0] in "iu":
            # FedAvg averages the counters of batch normalisation.
            value = np.rint(np.clip(value, 0.0, 2.0**53))
        passed[entry.name] = value.astype(entry.dtype, copy=False)
    return vector, passed

"""Flower's records and messages: made by its own constructors, copied, and turned into bytes."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from functools import lru_cache
from inspect import signature
from io import BytesIO
from math import prod
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, Metadata, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict
from flwr.serverapp import Grid
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from flwr_fco.core.sparse import SparseVector

try:
    from flwr.supercore.task_identity import TaskIdentity
except ImportError:  # releases before TaskIdentity take the run from the grid
    TaskIdentity = None  # type: ignore[assignment, misc]

#: Records by key: type and items; an ArrayRecord may also have NumPy arrays.
Records = Mapping[str, tuple[type[Any], dict[str, Any]]]

_LOGGER = "flwr"
#: Flower's name of NumPy's serialisation format.
NUMPY = "numpy.ndarray"
#: What a message's metadata are made of, in this release.
_METADATA = tuple(signature(Metadata).parameters)


@contextmanager
def identity(run_id: int) -> Iterator[None]:
    """Make this process the ServerApp of a run, as ``Message(...)`` requires."""
    if TaskIdentity is None:
        yield
        return
    before: dict[str, Any] = {}
    for name, number in {"run_id": run_id, "node_id": 1, "task_id": 1}.items():
        try:
            before[name] = getattr(TaskIdentity, name)
        except RuntimeError:  # it has none yet
            before[name] = None
        setattr(TaskIdentity, name, number)
    try:
        yield
    finally:
        for name, number in before.items():
            setattr(TaskIdentity, name, number)


def polls(grid: Grid) -> bool:
    """Whether a grid waits for replies with Flower's own loop of pulls and pauses."""
    return str(getattr(grid.send_and_receive, "__module__", "")).startswith("flwr.")


def to_bytes(content: RecordDict) -> bytes:
    """Return records as the bytes in which Flower sends them."""
    return bytes(recorddict_to_proto(content).SerializeToString())


def from_bytes(content: bytes) -> RecordDict:
    """Return records from the bytes in which Flower sends them.

    Raises
    ------
    ValueError
        If the bytes are not records.
    """
    try:
        return recorddict_from_proto(ProtoRecordDict.FromString(content))
    except DecodeError as error:
        raise ValueError(f"no records of Flower's: {error}") from error


def new_context(run_id: int, node_id: int, node_config: dict[str, Any], run_config: dict[str, Any]) -> Context:
    """Return a node's context; made with keywords, as the order of its arguments differs between releases."""
    return Context(run_id=run_id, node_id=node_id, node_config=node_config, state=RecordDict(), run_config=run_config)


@contextmanager
def quiet(level: int = logging.WARNING) -> Iterator[None]:
    """Raise Flower's logger to `level` and restore it."""
    logger = logging.getLogger(_LOGGER)
    before = logger.level
    logger.setLevel(max(level, before))
    try:
        yield
    finally:
        logger.setLevel(before)


def packed(records: Records) -> RecordDict:
    """Return a RecordDict of these records; NumPy arrays are serialised."""
    return RecordDict({k: array_record(v) if kind is ArrayRecord else kind(v) for k, (kind, v) in records.items()})


def array_record(arrays: Mapping[str, Array | NDArray[Any]]) -> ArrayRecord:
    """Return an ArrayRecord; NumPy arrays are serialised."""
    record = ArrayRecord()
    for name, array in arrays.items():
        # `ArrayRecord(arrays)` would copy those that are serialised already.
        record[name] = array if isinstance(array, Array) else serialised(array)
    return record


# --- arrays ----------------------------------------------------------------------------------------------------------


class Form(NamedTuple):
    """Serialisation of an array with a given dtype and shape."""

    name: str
    dtype: np.dtype[Any]
    header: bytes
    size: int


@lru_cache(maxsize=256)
def form_of(dtype: str | np.dtype[Any], shape: tuple[int, ...]) -> Form:
    """Return the form of a dtype and shape; cached, as it takes longer to make than to use."""
    plain = np.dtype(dtype)
    buffer = BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": plain.str, "fortran_order": False, "shape": shape})
    header = buffer.getvalue()
    return Form(plain.name, plain, header, len(header) + prod(shape) * plain.itemsize)


def bytes_of(vectors: Iterable[Mapping[str, Any]]) -> int:
    """Return the number of bytes that these vectors would take in messages."""
    total, like, bytes_like = 0, None, 0
    last, bytes_last = None, 0
    for named in vectors:
        # Most clients of a round are sent the same.
        if named is last:
            total += bytes_last
            continue
        before, last = total, named
        for vector in named.values():
            for array in vector.parts if isinstance(vector, SparseVector) else (vector,):
                # Most vectors of a round have the same form.
                form = array.dtype, array.shape
                if form != like:
                    like, bytes_like = form, form_of(*form).size
                total += bytes_like
        bytes_last = total - before
    return total


def serialised(array: NDArray[Any]) -> Array:
    """Return ``Array(array)``, byte for byte, with one copy of the data instead of three."""
    shape = array.shape
    form = form_of(array.dtype, shape)
    if not (array.flags.c_contiguous and form.dtype.isnative):
        array, form = np.ascontiguousarray(array, dtype=form.name), form_of(form.name, shape)
    return Array(form.name, shape, NUMPY, b"".join((form.header, array.data)))


def isolated(content: RecordDict) -> RecordDict:
    """Return a copy that shares only immutable parts (bytes, numbers) with the original."""
    copies = RecordDict()
    for key, record in content.items():
        twin = copies[key] = record.copy()
        for name, item in record.items():
            if isinstance(item, Array | list):
                twin[name] = copy(item)  # type: ignore[assignment]
    return copies


# --- messages --------------------------------------------------------------------------------------------------------


def numbered(message: Message, number: str) -> Message:
    """Return a message with an id, as the SuperLink gives it one; the original does not change."""
    fields = {name: getattr(message.metadata, name) for name in _METADATA} | {"message_id": number}
    body = {"content": message.content} if message.has_content() else {"error": message.error}
    make: Any = Message
    twin: Message = make(**body, metadata=Metadata(**fields))
    return twin


def with_content(message: Message, content: RecordDict) -> Message:
    """Return a message with the same metadata and other content; the original does not change."""
    twin = copy(message)
    twin.content = content
    return twin

"""All uses of Flower's private names, which speed and the in-process grid depend on.

Flower checks each item that is put into a record, which takes about 5 us per item: half of a simulated round. The
functions here assemble records, arrays and messages from parts that are known to be valid. If the result would differ
from what Flower's own constructors make, they use Flower's public API instead; this is decided once per process. Tested
against the lowest and the newest supported release.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from functools import lru_cache
from inspect import signature
from io import BytesIO
from math import prod
from typing import Any, NamedTuple, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, Metadata, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
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

_Record = TypeVar("_Record", ArrayRecord, ConfigRecord, MetricRecord, RecordDict)

#: Records by key: type and items; an ArrayRecord may also have NumPy arrays.
Records = Mapping[str, tuple[type[Any], dict[str, Any]]]

_LOGGER = "flwr"
#: Flower's name of NumPy's serialisation format.
NUMPY = "numpy.ndarray"


@contextmanager
def identity(run_id: int) -> Iterator[None]:
    """Make this process the ServerApp of a run, as ``Message(...)`` requires."""
    if TaskIdentity is None:
        yield
        return
    cls: Any = TaskIdentity
    before = (cls._run_id, cls._node_id, cls._task_id)
    cls.run_id, cls.node_id, cls.task_id = run_id, 1, 1
    try:
        yield
    finally:
        cls._run_id, cls._node_id, cls._task_id = before


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
    state = filled(RecordDict, {})
    return Context(run_id=run_id, node_id=node_id, node_config=node_config, state=state, run_config=run_config)


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


def _without_items(kind: type[Any]) -> dict[str, Any] | None:
    """Return the attributes of a new record except its items; None if this release keeps the items elsewhere."""
    attributes = dict(kind().__dict__)
    return attributes if attributes.pop("_data", None) == {} else None


#: Attributes shared by all records of a type: a fifth of the cost of calling the type.
_ATTRIBUTES = {kind: _without_items(kind) for kind in (ArrayRecord, ConfigRecord, MetricRecord, RecordDict)}


def items_of(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the items of a record for reading: its own dict if this release has one."""
    data: Mapping[str, Any] | None = record.__dict__.get("_data")
    return record if data is None else data


def held(records: Sequence[Any], key: str) -> list[Any]:
    """Return what records hold under a key, None where there is nothing; :func:`items_of` of each takes longer."""
    return [record.__dict__.get("_data", record).get(key) for record in records]


def filled(kind: type[_Record], items: dict[str, Any]) -> _Record:
    """Return a record that takes over these items, whose types must be right."""
    attributes = _ATTRIBUTES[kind]
    if attributes is None:
        record = kind()
        for key, value in items.items():
            record[key] = value
        return record
    record = kind.__new__(kind)
    fields = record.__dict__
    fields.update(attributes)
    fields["_data"] = items
    return record


def packed(records: Records) -> RecordDict:
    """Return a RecordDict that takes over these records; NumPy arrays are serialised."""
    content: dict[str, Any] = {}
    for key, (kind, items) in records.items():
        content[key] = array_record(items) if kind is ArrayRecord else filled(kind, items)
    return filled(RecordDict, content)


def array_record(arrays: Mapping[str, Array | NDArray[Any]]) -> ArrayRecord:
    """Return an ArrayRecord; NumPy arrays are serialised."""
    items = {name: each if isinstance(each, Array) else serialised(each) for name, each in arrays.items()}
    return filled(ArrayRecord, items)


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
    copies: dict[str, Any] = {}
    for key, record in items_of(content).items():
        # A negative `isinstance` takes four times as long as a look-up.
        own: type[Any] = type(record)
        kind: Any = own if own in _ATTRIBUTES else next(kind for kind in _ATTRIBUTES if isinstance(record, kind))
        items = items_of(record).items()
        copies[key] = filled(kind, {k: copy(each) if isinstance(each, Array | list) else each for k, each in items})
    return filled(RecordDict, copies)


# --- ClientApps ------------------------------------------------------------------------------------------------------

#: Value in place of a lifespan in a ClientApp that has none.
_NO_LIFESPAN = ClientApp().__dict__.get("_lifespan")


def handler_of(app: ClientApp, message_type: str) -> Callable[[Message, Context], Message | None] | None:
    """Return the handler, with mods, that a ClientApp without a lifespan calls for a plain message type."""
    # Another callable may not even have a `__dict__`.
    fields: dict[str, Any] = app.__dict__ if type(app) is ClientApp else {}
    # An old-style app with a single function has none.
    handlers = fields.get("_registered_funcs") if fields.get("_lifespan") is _NO_LIFESPAN else None
    # Flower checks a type letter by letter before it adds the name of the default action.
    return None if handlers is None else handlers.get(f"{message_type}.default")


def call(app: ClientApp, message: Message, context: Context) -> Message | None:
    """Return ``app(message, context)``; without a lifespan, the handler of a plain message type is called directly."""
    handler = handler_of(app, message.metadata.message_type)
    return (app if handler is None else handler)(message, context)


# --- messages --------------------------------------------------------------------------------------------------------


def set_message_id(message: Message, message_id: str) -> None:
    """Give a message an id, as the SuperLink does when it accepts one."""
    metadata: Any = message.metadata
    if "_message_id" in getattr(metadata, "__dict__", ()):
        metadata.__dict__["_message_id"] = message_id
        return
    try:
        metadata.message_id = message_id
    except AttributeError:
        # Read-only: the message is initialised again in place with new metadata, so that all references to it see it.
        fields = {name: getattr(metadata, name) for name in signature(Metadata).parameters} | {"message_id": message_id}
        body: Any = {"content": message.content} if message.has_content() else {"error": message.error}
        make_again: Any = Message.__init__
        make_again(message, metadata=Metadata(**fields), **body)


def with_content(message: Message, content: RecordDict) -> Message:
    """Return a message with the same metadata and other content; the original does not change."""
    twin = copy(message)
    twin.content = content
    return twin

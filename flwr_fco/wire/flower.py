"""All uses of Flower's private names, which speed and the in-process grid depend on.

Flower checks each item that is put into a record, which takes about 5 us per item: half of a simulated round. The
functions here assemble records, arrays and messages from parts that are known to be valid. If the result would differ
from what Flower's own constructors make, they use Flower's public API instead; this is decided once per process. Tested
against the lowest and the newest supported release.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from functools import cache, lru_cache
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


#: Flower's record type that a class is or derives from.
_RECORD_TYPES: dict[type[Any], type[Any]] = {kind: kind for kind in (ArrayRecord, ConfigRecord, MetricRecord)}


def record_type(record: Any) -> type[Any]:
    """Return which of Flower's three record types a record has; a negative ``isinstance`` takes four times as long."""
    kind = type(record)
    result = _RECORD_TYPES.get(kind)
    if result is None:
        bases = (base for base in (ArrayRecord, ConfigRecord, MetricRecord) if issubclass(kind, base))
        result = _RECORD_TYPES[kind] = next(bases, kind)
    return result


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
    return new_array(form.name, shape, NUMPY, b"".join((form.header, array.data)))


def new_array(dtype: str, shape: tuple[int, ...], stype: str, data: bytes) -> Array:
    """Return ``Array(dtype, shape, stype, data)``; the types of the arguments must be right."""
    if not _arrays_are_known():
        return Array(dtype, shape, stype, data)
    array = Array.__new__(Array)
    # Into __dict__: setting attributes one by one would clear caches that a new object does not have.
    array.__dict__.update(dtype=dtype, shape=shape, stype=stype, data=data)
    return array


#: Number of attributes of an array; arrays that Flower has sent have more.
_NUM_FIELDS = 4


@cache
def _arrays_are_known() -> bool:
    """Whether our arrays equal those of Flower's constructor; checked once per process."""
    fields = ("float64", (1,), "numpy.ndarray", b"x")
    try:
        attributes = dict(vars(Array(*fields)))
        # Flower takes an array without this mark for a new one, as this package's arrays are.
        attributes.pop("_is_dirty", None)
        return attributes == dict(zip(("dtype", "shape", "stype", "data"), fields, strict=True))
    except Exception:
        # A later release may have changed anything: its public API remains.
        return False


def _same_array(array: Array) -> Array:
    """Return a new Array that shares the bytes."""
    fields = array.__dict__
    if len(fields) == _NUM_FIELDS and type(fields.get("shape")) is tuple and _arrays_are_known():
        twin = Array.__new__(Array)
        twin.__dict__.update(fields)
        return twin
    return new_array(array.dtype, tuple(array.shape), array.stype, array.data)


def isolated(content: RecordDict) -> RecordDict:
    """Return a copy that shares only immutable parts (bytes, numbers) with the original."""
    copies: dict[str, Any] = {}
    for key, record in items_of(content).items():
        kind = _RECORD_TYPES.get(type(record)) or record_type(record)
        items: dict[str, Any] = {**items_of(record)}
        if kind is ArrayRecord:
            for name, array in items.items():
                items[name] = _same_array(array)
        elif list in map(type, items.values()):
            items = {name: value.copy() if type(value) is list else value for name, value in items.items()}
        copies[key] = filled(kind, items)
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
    if not _messages_are_known():
        _set_message_id_publicly(message, message_id)
        return
    message.metadata.__dict__["_message_id"] = message_id


def _set_message_id_publicly(message: Message, message_id: str) -> None:
    metadata: Any = message.metadata
    try:
        metadata.message_id = message_id
    except AttributeError:
        # The attribute is read-only today. The message is initialised again in place with new metadata, so that all
        # references to it see the id.
        fields = {name: getattr(metadata, name) for name in signature(Metadata).parameters}
        fields["message_id"] = message_id
        body: Any = {"content": message.content} if message.has_content() else {"error": message.error}
        make_again: Any = Message.__init__
        make_again(message, metadata=Metadata(**fields), **body)


def content_of(message: Message) -> RecordDict | None:
    """Return the content of a message; None if it is an error."""
    fields = message.__dict__
    if "_content" in fields:
        content: RecordDict | None = fields["_content"]
        return content
    return message.content if message.has_content() else None


def sender_and_group(message: Message) -> tuple[int, str]:
    """Return the node id that a message comes from, and its group id."""
    fields = message.metadata.__dict__
    if "_src_node_id" in fields and "_group_id" in fields:
        return fields["_src_node_id"], fields["_group_id"]
    return message.metadata.src_node_id, message.metadata.group_id


def with_content(message: Message, content: RecordDict) -> Message:
    """Return a message with the same metadata and other content; the original does not change."""
    if not _messages_are_known():
        twin = copy(message)
        twin.content = content
        return twin
    twin = Message.__new__(Message)
    twin.__dict__.update(message.__dict__)
    twin.__dict__["_content"] = content
    return twin


def _message(metadata: dict[str, Any], content: RecordDict) -> Message:
    """Return a message with these attributes as its metadata."""
    message, record = Message.__new__(Message), Metadata.__new__(Metadata)
    record.__dict__.update(metadata)
    message.__dict__.update(_metadata=record, _content=content, _error=None)
    return message


def readdressed(message: Message, content: RecordDict, dst_node_id: int) -> Message:
    """Return a copy of a new message, addressed to another node, in a third of the time of a new one."""
    if not _messages_are_known():
        metadata = message.metadata
        return Message(content, dst_node_id, metadata.message_type, group_id=metadata.group_id)
    return _message({**message.metadata.__dict__, "_dst_node_id": dst_node_id}, content)


def reply_to(message: Message, content: RecordDict) -> Message:
    """Return ``Message(content, reply_to=message)`` in a third of the time."""
    if not _messages_are_known():
        return Message(content, reply_to=message)
    return _message(_reply_metadata(message.metadata.__dict__), content)


def answer(message: Message, records: Records) -> Message:
    """Return the reply to a message with these records, as :func:`packed` makes them."""
    return reply_to(message, packed(records))


def _reply_metadata(asked: dict[str, Any]) -> dict[str, Any]:
    created_at = time.time()
    fields = {
        **asked,
        "_message_id": "",
        "_reply_to_message_id": asked["_message_id"],
        "_created_at": created_at,
        "_ttl": asked["_created_at"] + asked["_ttl"] - created_at,
        "_delivered_at": "",
    }
    for ours, theirs in _SWAPPED:
        if ours in asked:
            fields[ours] = asked[theirs]
    return fields


#: Metadata that swap their values in a reply; releases before 1.41 have no tasks.
_SWAPPED = (
    ("_src_node_id", "_dst_node_id"),
    ("_dst_node_id", "_src_node_id"),
    ("_src_task_id", "_dst_task_id"),
    ("_dst_task_id", "_src_task_id"),
)


@cache
def _messages_are_known() -> bool:
    """Whether our messages equal those of Flower's constructor; checked once per process."""
    try:
        values = (1, "2", 3, 4, "5", "6", time.time(), 7.0, "train", 8, 9)
        question = Message(  # type: ignore[call-overload]
            metadata=Metadata(*values[: len(signature(Metadata).parameters)]),  # type: ignore[arg-type]
            content=RecordDict(),
        )
        theirs = Message(RecordDict(), reply_to=question)
        ours = _message(_reply_metadata(question.metadata.__dict__), RecordDict())
        attributes = [{**reply.__dict__, "_metadata": None} for reply in (theirs, ours)]
        moment = {"_created_at": None, "_ttl": None}
        metadata = [{**reply.metadata.__dict__, **moment} for reply in (theirs, ours)]
        expiries = [reply.metadata.created_at + reply.metadata.ttl for reply in (theirs, ours)]
        return attributes[0] == attributes[1] and metadata[0] == metadata[1] and abs(expiries[0] - expiries[1]) < 1e-3
    except Exception:
        # A later release may have changed anything: its public API remains.
        return False

"""The private names of Flower that speed or an in-process grid cannot do without, all in one place.

Flower checks each item that is put into a record, at about 5 us an item: half of a simulated round. The functions here
fill records whose items are known to be good in one go, and fall back to the public way where a name is not there.
Tested against the lowest and the newest supported release.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

try:
    from flwr.supercore.task_identity import TaskIdentity
except ImportError:  # releases before TaskIdentity take the run from the grid
    TaskIdentity = None  # type: ignore[assignment, misc]

__all__ = ["filled", "identity", "isolated", "new_array", "new_context", "quiet", "set_message_id", "with_content"]

_Record = TypeVar("_Record", ArrayRecord, ConfigRecord, MetricRecord, RecordDict)

_LOGGER = "flwr"


@contextmanager
def identity(run_id: int) -> Iterator[None]:
    """Let this process be the ServerApp of a run, as ``Message(...)`` wants to know it."""
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


def set_message_id(message: Message, message_id: str) -> None:
    """Give a message a number, as the SuperLink does when it takes it."""
    message.metadata.__dict__["_message_id"] = message_id


def new_context(run_id: int, node_id: int, node_config: dict[str, Any], run_config: dict[str, Any]) -> Context:
    """Return the context of a node; by keyword, the order of the arguments is not fixed."""
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


def filled(kind: type[_Record], items: dict[str, Any]) -> _Record:
    """Return a record of these items, which the caller knows to be of the right types."""
    record = kind()
    data = record.__dict__.get("_data")
    if isinstance(data, dict):
        data.update(items)
    else:
        for key, value in items.items():
            record[key] = value
    return record


def new_array(dtype: str, shape: tuple[int, ...], stype: str, data: bytes) -> Array:
    """Return ``Array(dtype, shape, stype, data)`` for arguments that the caller knows to be of the right types."""
    array = Array.__new__(Array)
    # Into __dict__: setting attributes one by one would clear caches that a new object does not have.
    array.__dict__.update(dtype=dtype, shape=shape, stype=stype, data=data)
    return array


def with_content(message: Message, content: RecordDict) -> Message:
    """Return a message with the same metadata and another content; the given one stays as it is."""
    twin = Message.__new__(Message)
    twin.__dict__.update(message.__dict__)
    twin.__dict__["_content"] = content
    return twin


def isolated(content: RecordDict) -> RecordDict:
    """Return records that share nothing that can change with the given ones; bytes and numbers cannot."""
    return filled(RecordDict, {key: _isolated_record(record) for key, record in content.items()})


def _isolated_record(record: ArrayRecord | ConfigRecord | MetricRecord) -> ArrayRecord | ConfigRecord | MetricRecord:
    if isinstance(record, ArrayRecord):
        return filled(ArrayRecord, {n: new_array(a.dtype, tuple(a.shape), a.stype, a.data) for n, a in record.items()})
    copy = record.copy()
    for name, value in record.items():
        if isinstance(value, list):
            copy[name] = value.copy()  # type: ignore[assignment]
    return copy

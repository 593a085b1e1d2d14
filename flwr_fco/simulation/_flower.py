"""The private names of Flower that an in-process grid cannot do without, all in one place.

Tested against the lowest and the newest supported release.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flwr.app import Context, Message, RecordDict

try:
    from flwr.supercore.task_identity import TaskIdentity
except ImportError:  # releases before TaskIdentity take the run from the grid
    TaskIdentity = None  # type: ignore[assignment, misc]

__all__ = ["identity", "new_context", "quiet", "set_message_id"]

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

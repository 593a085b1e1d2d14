"""Messages, their delivery and their content apart from algorithms: handshake, reports of missing data, byte counts."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any, Literal

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from flwr_fco.core.schema import Names, names_of
from flwr_fco.errors import FOR_A_MODEL, OLD_CLIENT, ProtocolError
from flwr_fco.wire import flower as _flower
from flwr_fco.wire.keys import FCO, METRICS, NO_ARRAYS, OWN_ARRAYS, SCHEMA, UNITS
from flwr_fco.wire.protocol import Downlink

#: Message type of the question 'which partition are you?' that precedes the first round.
HANDSHAKE = "query.partition"
#: Message type of questions about the clients' losses.
QUESTION = "query.question"
#: Message type of the question for the names of columns and classes, after two clients have said that theirs differ.
NAMES = "query.names"
_PLAN_MISSING, _STATE_MISSING = "plan-missing", "state-missing"
_PARTITION = "partition-id"
#: Metrics that clients must not set themselves.
OWN_METRICS = frozenset({"num-examples", "elapsed", "local-steps", _PLAN_MISSING, _STATE_MISSING, UNITS})


def advice_on(text: str, content: RecordDict) -> str:
    """Return what to do after a client's error whose cause is known; else an empty string.

    Known are a ClientApp of FedAvg that got a dual, a NumPyClient of Flower's earlier interface, and a ClientApp
    without a function for the message.

    Parameters
    ----------
    text : str
        The error: PyTorch names the arrays that its ``state_dict`` does not have.
    content : RecordDict
        The message that the client got.
    """
    if any(name in text for name in _OLD_RECORDS):
        return OLD_CLIENT
    for kind, advice in _NO_FUNCTION.items():
        if f"No {kind} function registered" in text:
            return advice
    if "state_dict" not in text or FCO not in content:
        return ""
    names = {name for key, record in content.array_records.items() if key not in OWN_ARRAYS for name in record}
    return FOR_A_MODEL if any(f'"{name}"' in text or f"'{name}'" in text for name in names) else ""


#: Records that the clients of Flower's earlier interface look for in a message.
_OLD_RECORDS = ("fitins.parameters", "evaluateins.parameters", "getparametersins.config")
#: What to do if a ClientApp has no function of a kind.
_NO_FUNCTION = {
    "train": "The ClientApp has no @app.train(), which the server calls in each round: add one",
    "evaluate": "The ClientApp has no @app.evaluate(), which the server calls after each round: add one, or give the "
    "strategy fraction_evaluate=0.0",
}


class PlanMissingError(ProtocolError):
    """The client was sent the hash of a plan that it does not have (lost with its SuperNode)."""


class StateMissingError(ProtocolError):
    """The client was told to continue from a state that it does not have (lost with its SuperNode)."""


class StateAlteredError(StateMissingError):
    """The server accepted another uplink than this client sent, so their memories differ."""


class RoundCache:
    """Serialised arrays and records of a round by the identity of their sources, so that each is made only once."""

    def __init__(self) -> None:
        # The sources are kept too: an id is unique only as long as its object lives.
        self._arrays: dict[int, tuple[NDArray[Any], Array]] = {}
        self._contents: dict[tuple[int, bool], tuple[Downlink, RecordDict]] = {}

    def array(self, array: NDArray[Any], wire_dtype: str | None = None) -> Array:
        """Return an array serialised in its own or another precision; made at the first call."""
        entry = self._arrays.get(id(array))
        if entry is None:
            sent = array if wire_dtype is None else array.astype(wire_dtype, copy=False)
            entry = self._arrays[id(array)] = (array, _flower.serialised(sent))
        return entry[1]

    def content(self, downlink: Downlink, informed: bool) -> RecordDict | None:
        """Return the records of a downlink in a new RecordDict over shared records; None if not made yet."""
        entry = self._contents.get((id(downlink), informed))
        return None if entry is None else entry[1].copy()

    def keep(self, downlink: Downlink, informed: bool, content: RecordDict) -> None:
        """Keep the records of a downlink for the next node with the same content."""
        self._contents[id(downlink), informed] = (downlink, content)


def addressed(grid: object, contents: Iterable[tuple[int, RecordDict]], message_type: str, stamp: str) -> list[Message]:
    """Return the messages of a round.

    Parameters
    ----------
    grid : flwr.serverapp.Grid
        Grid that will send them. A grid with a method ``identity()``, such as :class:`InProcessGrid`, also provides the
        ServerApp's identity, without which Flower creates no messages.
    contents : iterable of (int, RecordDict)
        Node ids and the contents for them.
    stamp : str
        The round.
    """
    with getattr(grid, "identity", nullcontext)():
        return [Message(content, node_id, message_type, group_id=stamp) for node_id, content in contents]


def reply(message: Message, content: RecordDict) -> Message:
    """Return the answer to a message."""
    return Message(content, reply_to=message)


def content_of(message: Message) -> RecordDict | None:
    """Return the content of a message; None if it is an error."""
    return message.content if message.has_content() else None


def sender_and_group(message: Message) -> tuple[int, str]:
    """Return the node id that a message comes from, and its group id."""
    return message.metadata.src_node_id, message.metadata.group_id


def count_bytes(contents: Iterable[RecordDict]) -> int:
    """Return the number of bytes of array data in these contents: a round's traffic."""
    return sum(
        len(array.data)
        for content in contents
        for record in content.values()
        if type(record) not in NO_ARRAYS and isinstance(record, ArrayRecord)
        for array in record.values()
    )


def missing_reply(message: Message, error: PlanMissingError | StateMissingError) -> Message:
    """Return the answer of a client that lacks something, which makes the server resend the message with it."""
    key = _STATE_MISSING if isinstance(error, StateMissingError) else _PLAN_MISSING
    record = MetricRecord({key: 2 if isinstance(error, StateAlteredError) else 1})
    return reply(message, RecordDict({METRICS: record}))


def _metric(content: RecordDict, name: str) -> Any:
    metrics = content.get(METRICS)
    return metrics.get(name) if isinstance(metrics, MetricRecord) else None


def was_altered(content: RecordDict) -> bool:
    """Whether a client without its state reports that the server accepted other bytes than the client sent."""
    return bool(_metric(content, _STATE_MISSING) == 2)


def what_is_missing(content: RecordDict) -> Literal["plan", "state"] | None:
    """Return what a client lacked if it could not answer; None for an answer."""
    if _metric(content, _PLAN_MISSING) is not None:
        return "plan"
    return None if _metric(content, _STATE_MISSING) is None else "state"


def partition_reply(context: Context) -> RecordDict:
    """Return a client's answer to the handshake."""
    partition = context.node_config.get(_PARTITION)
    return RecordDict({METRICS: MetricRecord({} if partition is None else {_PARTITION: int(partition)})})


def partition_of(content: RecordDict) -> int | None:
    """Return the partition id in a handshake's answer, a whole number >= 0; None if missing or invalid."""
    value = _metric(content, _PARTITION)
    return value if isinstance(value, int) and value >= 0 else None


def names_reply(columns: Names, classes: Names) -> RecordDict:
    """Return a client's answer to the question for its names."""
    return RecordDict({SCHEMA: ConfigRecord({"columns": [*(columns or ())], "classes": [*(classes or ())]})})


def names_in(content: RecordDict) -> tuple[Names, Names]:
    """Return the names of columns and of classes in such an answer; None if missing or invalid."""
    record = content.get(SCHEMA)
    if not isinstance(record, ConfigRecord):
        return None, None
    return names_of(record.get("columns")), names_of(record.get("classes"))


#: Seconds between two checks for replies: a fraction of the time waited so far, within bounds. A round of 20 s, which
#: is common over a SuperLink, ends at most .2 s late.
_SHARE, _SHORTEST, _LONGEST = 0.01, 0.01, 1.0


def send_and_receive(grid: Grid, messages: Iterable[Message], timeout: float | None) -> list[Message]:
    """Send messages and return the replies that arrive within `timeout` seconds, as ``grid.send_and_receive`` does.

    None waits for all replies. Flower's grids check for replies every 3 s (over HTTP) or every .1 s (in a simulation).
    Here the pauses grow with the time waited so far, from 10 ms to 1 s. A grid that overrides ``send_and_receive`` uses
    its own method.
    """
    if not _flower.polls(grid):
        return list(grid.send_and_receive(messages, timeout=timeout))
    replies: list[Message] = []
    waiting, began = {number for number in grid.push_messages(messages) if number}, time.monotonic()
    while waiting:
        arrived = list(grid.pull_messages(waiting))
        replies += arrived
        waiting -= {reply.metadata.reply_to_message_id for reply in arrived}
        waited = time.monotonic() - began
        left = _LONGEST if timeout is None else timeout - waited
        if not waiting or left <= 0.0:
            break
        pause = max(_SHORTEST, _SHARE * waited)
        # At least the resolution of the clock.
        time.sleep(max(1e-4, min(pause, _LONGEST, left)))
    return replies

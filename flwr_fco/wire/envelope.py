"""Messages and what is said outside of an algorithm: the handshake, what a client lacks, how many bytes there were."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any, Literal

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from flwr_fco.errors import ProtocolError
from flwr_fco.wire import flower as _flower
from flwr_fco.wire.keys import METRICS
from flwr_fco.wire.protocol import Downlink

__all__ = [
    "HANDSHAKE",
    "OWN_METRICS",
    "QUESTION",
    "PlanMissingError",
    "RoundCache",
    "StateAlteredError",
    "StateMissingError",
    "content_of",
    "count_bytes",
    "messages",
    "missing_reply",
    "partition_of",
    "partition_reply",
    "reply",
    "sender_and_group",
    "was_altered",
    "what_is_missing",
]

#: Message type of the question 'which partition are you?' that precedes the first round.
HANDSHAKE = "query.partition"
#: Message type of questions about the clients' losses.
QUESTION = "query.question"
_PLAN_MISSING, _STATE_MISSING = "plan-missing", "state-missing"
_PARTITION = "partition-id"
#: Metrics that are not the client's to choose.
OWN_METRICS = frozenset({"num-examples", "elapsed", "local-steps", _PLAN_MISSING, _STATE_MISSING})


class PlanMissingError(ProtocolError):
    """The client was told a plan's hash and does not have that plan (its state died with its SuperNode)."""


class StateMissingError(ProtocolError):
    """The client was told to go on from a state that it does not have (it died with its SuperNode)."""


class StateAlteredError(StateMissingError):
    """The uplink that counted is not the one that this client has sent, so its memory is not the server's."""


class RoundCache:
    """What a round has serialised, by the identity of what it was made from: made once for all nodes."""

    def __init__(self) -> None:
        # The sources are kept too: an id is unique only as long as its object lives.
        self._arrays: dict[int, tuple[NDArray[Any], Array]] = {}
        self._contents: dict[tuple[int, bool], tuple[Downlink, RecordDict]] = {}

    def array(self, array: NDArray[Any], wire_dtype: str | None = None) -> Array:
        """Return the serialised form of an array, made at the first call, in its own precision or in another one."""
        found = self._arrays.get(id(array))
        if found is None:
            sent = array if wire_dtype is None else array.astype(wire_dtype, copy=False)
            found = self._arrays[id(array)] = (array, _flower.serialised(sent))
        return found[1]

    def content(self, downlink: Downlink, informed: bool) -> RecordDict | None:
        """Return the records of a downlink as a RecordDict of one's own over shared records; None if not yet made."""
        found = self._contents.get((id(downlink), informed))
        return None if found is None else found[1].copy()

    def keep(self, downlink: Downlink, informed: bool, content: RecordDict) -> None:
        """Remember the records of a downlink for the next node that is told the same."""
        self._contents[id(downlink), informed] = (downlink, content)


def messages(grid: object, contents: Iterable[tuple[int, RecordDict]], message_type: str, stamp: str) -> list[Message]:
    """Return the messages of a round.

    Parameters
    ----------
    grid : flwr.serverapp.Grid
        Where they will be sent. A grid with a method ``identity()``, such as :class:`InProcessGrid`, is the ServerApp's
        identity as well, without which Flower makes no message.
    contents : iterable of (int, RecordDict)
        Node ids, and what those nodes are sent.
    message_type : str
    stamp : str
        The round.
    """
    made: list[Message] = []
    with getattr(grid, "identity", nullcontext)():
        for node_id, content in contents:
            if made:
                made.append(_flower.readdressed(made[0], content, node_id))
            else:
                made.append(Message(content, node_id, message_type, group_id=stamp))
    return made


def reply(message: Message, content: RecordDict) -> Message:
    """Return the answer to a message."""
    return _flower.reply_to(message, content)


#: What a reply says on its envelope, and what is in it.
content_of, sender_and_group = _flower.content_of, _flower.sender_and_group


def count_bytes(contents: Iterable[RecordDict]) -> int:
    """Return the number of bytes of array data in these contents (what a round's traffic consists of)."""
    return sum(
        len(array.data)
        for content in contents
        for record in content.values()
        if isinstance(record, ArrayRecord)
        for array in record.values()
    )


def missing_reply(message: Message, error: PlanMissingError | StateMissingError) -> Message:
    """Return the answer of a client that lacks something: the server sends the message again, with it."""
    missing = {_PLAN_MISSING: 1}
    if isinstance(error, StateMissingError):
        missing = {_STATE_MISSING: 2 if isinstance(error, StateAlteredError) else 1}
    return _flower.answer(message, {METRICS: (MetricRecord, missing)})


def was_altered(content: RecordDict) -> bool:
    """Whether a client that lacks its state says that other bytes counted than those that it sent."""
    metrics = content.get(METRICS)
    return isinstance(metrics, MetricRecord) and metrics.get(_STATE_MISSING) == 2


def what_is_missing(content: RecordDict) -> Literal["plan", "state"] | None:
    """Return what a client that could not answer lacks; None for an answer."""
    metrics = content.get(METRICS)
    if not isinstance(metrics, MetricRecord):
        return None
    return "plan" if _PLAN_MISSING in metrics else "state" if _STATE_MISSING in metrics else None


def partition_reply(context: Context) -> RecordDict:
    """Return a client's answer to the handshake."""
    record = MetricRecord()
    partition = context.node_config.get(_PARTITION)
    if partition is not None:
        record[_PARTITION] = int(partition)
    return RecordDict({METRICS: record})


def partition_of(content: RecordDict) -> int | None:
    """Return the partition id that a handshake's answer names, None if it names none."""
    metrics = content.get(METRICS)
    value = metrics.get(_PARTITION) if isinstance(metrics, MetricRecord) else None
    return value if isinstance(value, int) else None

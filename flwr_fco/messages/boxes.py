"""What ``configure_train`` returns and ``aggregate_train`` takes: Flower's messages, made when somebody looks at them.

A grid of this package takes an outbox's tasks as they are, and returns an inbox with the replies themselves. Flower's
grids, its mods, other ClientApps and the hooks of a subclass open them, and get messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

from flwr.app import Context, Message, MetricRecord, RecordDict

from flwr_fco.messages.protocol import Downlink, Node, Uplink
from flwr_fco.messages.records import METRICS, encode_uplink

#: A client and its task; a client and its reply, None if its memory is lost.
Task = tuple[Node, Downlink]
Reply = tuple[Node, Uplink | None]
#: Types of messages: which partition a client has, what its table is, or its names only, and questions about its loss.
PARTITION, TABLE, NAMES_ONLY, QUESTIONS = "query.partition", "query.table", "query.names", "query.question"


def addressed(grid: Any, contents: Iterable[tuple[int, RecordDict]], kind: str, number: int) -> list[Message]:
    """Return messages to nodes; the round travels as their group, which survives every way that Flower has.

    Parameters
    ----------
    grid : flwr.serverapp.Grid
        A grid of this package says whose messages these are.
    contents : iterable of (int, RecordDict)
        Node ids, and what each is sent.
    kind : str
        Flower's message type.
    number : int
        The round.
    """
    with getattr(grid, "identity", nullcontext)():
        return [
            Message(content, dst_node_id=node_id, message_type=kind, group_id=str(number))
            for node_id, content in contents
        ]


class Outbox(Sequence[Message]):
    """The messages of a training round.

    Parameters
    ----------
    number : int
        The round.
    tasks : sequence of (Node, Downlink)
        The clients with their tasks.
    make : callable
        Makes the messages, in the order of the tasks.

    Attributes
    ----------
    opened : bool
        Whether messages were made: from then on they count, as somebody may have changed them.
    """

    def __init__(self, number: int, tasks: Sequence[Task], make: Callable[[], list[Message]]) -> None:
        self.number, self.tasks, self.opened = number, tasks, False
        self._make, self._messages = make, list[Message]()

    @property
    def messages(self) -> list[Message]:
        """The messages."""
        if not self.opened:
            self._messages, self.opened = self._make(), True
        return self._messages

    def __len__(self) -> int:
        return len(self._messages) if self.opened else len(self.tasks)

    def __getitem__(self, index: Any) -> Any:
        return self.messages[index]

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)


class Inbox(Sequence[Message]):
    """The replies to an outbox that nobody has opened.

    Parameters
    ----------
    outbox : Outbox
        The tasks.
    replies : sequence of (Node, Uplink or None)
        The clients with their replies.

    Attributes
    ----------
    opened : bool
        Whether messages were made.
    """

    def __init__(self, outbox: Outbox, replies: Sequence[Reply]) -> None:
        self.outbox, self.replies, self.opened = outbox, replies, False
        self._messages: list[Message] = []

    @property
    def messages(self) -> list[Message]:
        """The replies as messages."""
        if not self.opened:
            asked = {message.metadata.dst_node_id: message for message in self.outbox}
            self._messages = [Message(encode_uplink(up), reply_to=asked[node.node_id]) for node, up in self.replies]
            self.opened = True
        return self._messages

    def __len__(self) -> int:
        return len(self._messages) if self.opened else len(self.replies)

    def __getitem__(self, index: Any) -> Any:
        return self.messages[index]

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)


def partition_reply(message: Message, context: Context) -> Message:
    """Answer the question which partition a client has."""
    partition = context.node_config.get("partition-id")
    record = MetricRecord({} if partition is None else {"partition-id": int(partition)})
    return Message(RecordDict({METRICS: record}), reply_to=message)

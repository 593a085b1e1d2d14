"""All nodes in this process: a Flower Grid that takes tasks from our strategies, and messages from all others."""

from __future__ import annotations

import secrets
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from copy import copy
from dataclasses import KW_ONLY, dataclass
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict
from flwr.serverapp import Grid

from flwr_fco.client_apps.client import Client, TaskApp
from flwr_fco.core.computing import single_threaded_blas, temporarily
from flwr_fco.core.validation import checked, of_type
from flwr_fco.errors import ClientError, ConfigurationError, advice_on
from flwr_fco.messages.protocol import Described, Downlink, Node, Received, ReceivedVectors, Uplink
from flwr_fco.messages.records import FCO, NAMES_ONLY, TABLE, Inbox, Outbox, Reply, Task, isolated
from flwr_fco.messages.short import SHORT

try:
    from flwr.supercore.task_identity import TaskIdentity
except ImportError:  # releases before TaskIdentity take the run from the grid
    TaskIdentity = None  # type: ignore[assignment, misc]

#: Flower's error code in a reply whose ClientApp raised an exception.
CLIENT_APP_RAISED = 2
#: The first node id: 1 is the SuperLink.
_FIRST = 2


def _own(message: Message) -> Message:
    """Return a copy of a message, so that its sender sees no change that a node makes."""
    own = copy(message)
    own.content = isolated(message.content)
    return own


class _RunConfig(dict[str, Any]):
    """A node's ``context.run_config``, which says where an entry that is missing would come from."""

    def __missing__(self, key: str) -> Any:
        raise KeyError(f"no {key!r} in context.run_config; give simulate or the grid run_config={{{key!r}: ...}}")


_IDENTITY = ("run_id", "node_id", "task_id")
_identities: list[Any] = []


def identity(run_id: int) -> AbstractContextManager[None]:
    """Make this process the ServerApp of a run, as ``Message(...)`` requires."""
    if TaskIdentity is None:
        return nullcontext()
    return temporarily(_identities, _identity, _identify, (run_id, 1, 1))


def _identity() -> list[Any]:
    before: dict[str, Any] = dict.fromkeys(_IDENTITY)
    for name in before:
        with suppress(RuntimeError):
            before[name] = getattr(TaskIdentity, name)
    return [*before.values()]


def _identify(values: Sequence[Any]) -> None:
    for name, value in zip(_IDENTITY, values, strict=True):
        setattr(TaskIdentity, name, value)


@dataclass(eq=False, repr=False)
class InProcessGrid(Grid):
    """Grid of nodes in this process: breakpoints work, and a run with the same seed gives the same bits.

    Records of every message are copied in both directions (the bytes of arrays are immutable and shared), so no client
    can change another client's input or the server's.

    Parameters
    ----------
    client_app : flwr.clientapp.ClientApp
        Called for each message.
    num_nodes : int
        Number of nodes; node m has partition id m.
    run_config : mapping, optional
        ``context.run_config`` of the nodes.
    node_config : callable, optional
        ``partition_id -> mapping``: entries of a node's ``context.node_config`` in addition to ``partition-id``, and to
        ``num-partitions`` if the nodes are some of more.
    raise_errors : bool, default True
        Raise a client's exception as :class:`ClientError` with node and round; if False, turn it into an error reply,
        as Flower's simulation does.
    run_id : int, optional
        Id of this grid's run; random by default, as in Flower.

    Attributes
    ----------
    contexts : dict of int to Context
        The contexts of the nodes that were used, by node id.
    partition_ids : dict of int to int
        The nodes' partition ids by node id.
    report : callable
        Called with the number of each round of training that has been delivered.

    Examples
    --------
    >>> grid = InProcessGrid(ClientApp(), 3)
    >>> list(grid.partition_ids.values())
    [0, 1, 2]
    """

    client_app: ClientApp
    num_nodes: int
    _: KW_ONLY
    run_config: Mapping[str, Any] | None = None
    node_config: Callable[[int], Mapping[str, Any]] | None = None
    raise_errors: bool = True
    run_id: int = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self.run_id = secrets.randbits(62) if self.run_id is None else self.run_id
        # A copy: nodes are made one by one, and may not differ in what their owner changes meanwhile.
        self.run_config = dict(self.run_config or {})
        self.partition_ids = {partition + _FIRST: partition for partition in range(self.num_nodes)}
        self.contexts: dict[int, Context] = {}
        self.report: Callable[[int], object] = lambda number: None
        self._replies: dict[str, Message] = {}

    def context(self, node_id: int) -> Context:
        """Return a node's context, made when it is first used.

        Raises
        ------
        ConfigurationError
            If `node_config` returns no mapping, or another partition.
        """
        found = self.contexts.get(node_id)
        if found is None:
            partition = self.partition_ids[node_id]
            settings: Any = {} if self.node_config is None else self.node_config(partition)
            checked(f"node_config({partition})", settings, Mapping)
            config = {"num-partitions": self.num_nodes, **settings, "partition-id": partition}
            if config != {**config, **settings}:
                own = f"node_config({partition}) has partition-id={settings['partition-id']!r}"
                raise ConfigurationError(f"{own}; node m has m here: leave it out, and name the data by another entry")
            # With keywords: the order of the arguments differs between releases.
            about: Any = {"node_config": config, "run_config": _RunConfig(self.run_config or {})}
            found = self.contexts[node_id] = Context(run_id=self.run_id, node_id=node_id, state=RecordDict(), **about)
        return found

    def states(self) -> dict[int, bytes]:
        """Return the clients' memories by node id, in the bytes in which Flower sends records."""
        used = {node_id: context.state for node_id, context in sorted(self.contexts.items()) if context.state}
        return {node_id: recorddict_to_proto(state).SerializeToString() for node_id, state in used.items()}

    def restore(self, states: Mapping[int, bytes]) -> None:
        """Give the clients the memories that :meth:`states` returned; all others have none.

        Raises
        ------
        ConfigurationError
            If they are of other nodes.
        """
        for node_id in self.contexts.keys() | states.keys():
            state = states.get(node_id, b"")
            self.context(node_id).state = recorddict_from_proto(ProtoRecordDict.FromString(state))

    # --- Flower's interface ---------------------------------------------------------------------------------------

    def identity(self) -> Any:
        """Return a context in which this process is the ServerApp of the grid's run."""
        return identity(self.run_id)

    def set_run(self, run: Any) -> None:
        """Do nothing: the grid has one run."""

    @property
    def run(self) -> Any:
        """The run; there is no record of one outside a SuperLink."""
        raise AttributeError("an in-process grid has no Run record; its number is `run_id`")

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        with self.identity():
            return Message(content, dst_node_id=dst_node_id, message_type=message_type, group_id=group_id, ttl=ttl)

    def get_node_ids(self) -> list[int]:
        return list(self.partition_ids)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Deliver messages at once; their replies wait for :meth:`pull_messages`."""
        replies = self.replies([_own(message) for message in messages])
        numbers = [secrets.token_hex(8) for _ in replies]
        self._replies |= {number: reply for number, reply in zip(numbers, replies, strict=True) if reply is not None}
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self._replies.pop(number) for number in message_ids if number in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Sequence[Message]:
        """Deliver messages and return the replies; an outbox that nobody has opened goes without messages."""
        if isinstance(messages, Outbox) and not messages.opened and self.raise_errors and self.direct is not None:
            inbox = Inbox(messages, self.uplinks(messages.number, messages.tasks))
            self.report(messages.number)
            return inbox
        # Of messages that are made here nobody else has the records.
        made_here = isinstance(messages, Outbox) and not messages.opened
        messages = list(messages) if made_here else [_own(message) for message in messages]
        replies = [reply for reply in self.replies(messages) if reply is not None]
        if messages and messages[0].metadata.message_type == "train" and messages[0].metadata.group_id.isdigit():
            self.report(int(messages[0].metadata.group_id))
        return replies

    @property
    def foreign(self) -> bool:
        """Whether the ClientApp is Flower's own, which knows nothing of this package's tasks."""
        return isinstance(self.client_app, ClientApp) and not isinstance(self.client_app, TaskApp)

    @property
    def direct(self) -> Client | None:
        """The client that tasks go to without messages, if the ClientApp is of this package and has no mods."""
        return getattr(self.client_app, "direct", None)

    # --- the nodes ------------------------------------------------------------------------------------------------

    def uplinks(self, number: int, tasks: Sequence[Task]) -> list[Reply]:
        """Return the clients' replies to tasks, without messages.

        Parameters
        ----------
        number : int
            The round.
        tasks : sequence of (Node, Downlink)
            Most of a round are one object.
        """
        received = dict[int, Downlink]()

        def answer(client: Client, context: Context, down: Downlink) -> Uplink | None:
            if id(down) not in received:
                received[id(down)] = down.as_received()
            task = received[id(down)]
            # Mappings of its own: no client changes what another one reads.
            vectors, numbers = ReceivedVectors(task.vectors), Received(task.numbers)
            return client.answer(context, number, task._replace(vectors=vectors, numbers=numbers))

        with single_threaded_blas():
            return [(node, self._asked(node, f"{number}", "train", answer, down)) for node, down in tasks]

    def described(self, nodes: Sequence[Node], scales: bool) -> list[Described]:
        """Return what clients say of their tables, `scales` or names only, without messages."""
        return [self._asked(node, "", "its table", Client.described, scales) for node in nodes]

    def _asked(self, node: Node, number: str, kind: str, call: Callable[..., Any], given: Any) -> Any:
        """Return what a client does with its context and what it is given."""
        context = self.context(node.node_id)
        try:
            return call(self.direct, context, given)
        except (Exception, SystemExit) as error:
            raise self._raised(error, node.node_id, number, kind) from error

    def replies(self, messages: Sequence[Message]) -> list[Message | None]:
        """Return the nodes' replies to messages that they may change, in their order; None of a node that is silent."""
        return [self.reply(message) for message in messages]

    def reply(self, message: Message) -> Message | None:
        """Return a node's reply to a message, of which it keeps nothing; the message is the node's to change."""
        about, content = message.metadata, message.content
        context = self.context(about.dst_node_id)
        state = context.state if self.raise_errors else isolated(context.state)
        try:
            reply: Message | None = self.client_app(message, context)
            if reply is not None and not isinstance(reply, Message):
                raise TypeError(f"the ClientApp returned {of_type(reply)}; expected a Message")
        except (Exception, SystemExit) as error:
            # Who does not say what its table is has none; an error in loading it comes with its task again.
            if self.raise_errors and about.message_type not in (TABLE, NAMES_ONLY):
                foreign = self.foreign and FCO in content
                where = about.dst_node_id, about.group_id, about.message_type
                raise self._raised(error, *where, foreign=foreign, short=SHORT in message.content) from error
            context.state = state
            reason = f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-3)}"
            reply = Message(Error(CLIENT_APP_RAISED, reason), reply_to=message)
        # A ClientApp should return a message; one that returns nothing is silent in Flower, and also here.
        if reply is not None and reply.has_content():
            reply.content = isolated(reply.content)
        return reply

    def _raised(
        self, error: BaseException, node_id: int, number: str, kind: str, *, foreign: bool = False, short: bool = False
    ) -> ClientError:
        where = f"node {node_id} (partition {self.partition_ids[node_id]})"
        when = f" in round {number}" * (number not in {"", "0"})
        text = f"{where} raised {type(error).__name__}{when} ({kind.removeprefix('query.')}): {error}"
        text += advice_on(f"{type(error).__name__}: {error}", foreign=foreign, short=short)
        return ClientError(text, node_id=node_id, server_round=number)

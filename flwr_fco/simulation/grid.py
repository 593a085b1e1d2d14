"""A Flower Grid in this process: nodes are contexts, a message is a function call."""

from __future__ import annotations

import itertools
import secrets
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import numpy as np
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from numpy.typing import NDArray

from flwr_fco.client_apps.app import training_handler
from flwr_fco.core.computing import single_threaded_blas
from flwr_fco.core.spec import Spec
from flwr_fco.errors import ClientError, ConfigurationError
from flwr_fco.wire import flower as _flower
from flwr_fco.wire.downlink import precision_of, received
from flwr_fco.wire.envelope import advice_on
from flwr_fco.wire.protocol import Downlink, Node
from flwr_fco.wire.uplink import Sent

#: Flower's error code in a reply whose ClientApp raised an exception.
CLIENT_APP_RAISED = 2
#: The first node id: 1 is the SuperLink.
_FIRST = 2
_Value = TypeVar("_Value")


class ByNode(MutableMapping[int, _Value]):
    """Values by node id, made on first access, because there may be a million nodes.

    Parameters
    ----------
    make : callable
        ``(node id) -> value``.
    """

    def __init__(self, ids: range, make: Callable[[int], _Value]) -> None:
        self._ids, self._make = ids, make
        self.made: dict[int, _Value] = {}
        self._gone: set[int] = set()
        #: Whether all values are as they were made, and no node has been added or removed.
        self.untouched = True

    def __getitem__(self, node_id: int) -> _Value:
        """Return the value of a node."""
        value = self.made.get(node_id)
        if value is None:
            if node_id not in self:
                raise KeyError(node_id)
            value = self.made[node_id] = self._make(node_id)
        return value

    def __setitem__(self, node_id: int, value: _Value) -> None:
        """Set the value of a node, which may be new."""
        self.made[node_id] = value
        self._gone.discard(node_id)
        self.untouched = False

    def __delitem__(self, node_id: int) -> None:
        """Remove a node."""
        if node_id not in self:
            raise KeyError(node_id)
        self.made.pop(node_id, None)
        if node_id in self._ids:
            self._gone.add(node_id)
        self.untouched = False

    def __contains__(self, node_id: object) -> bool:
        """Whether the node exists."""
        return node_id in self.made or (node_id in self._ids and node_id not in self._gone)

    def __iter__(self) -> Iterator[int]:
        """Return the node ids."""
        yield from (i for i in self._ids if i not in self._gone)
        yield from (i for i in self.made if i not in self._ids)

    def __len__(self) -> int:
        """Return the number of nodes."""
        return len(self._ids) - len(self._gone) + sum(i not in self._ids for i in self.made)


class InProcessGrid(Grid):
    """Grid of nodes in this process: breakpoints work, and a run with the same seed gives the same bits.

    Every message's content is copied in both directions (the bytes of arrays are immutable and shared), so no client
    can modify another client's input or the server's.

    Parameters
    ----------
    client_app : flwr.clientapp.ClientApp
        Called for each message.
    num_nodes : int
        Number of nodes; node m has partition id m.
    run_config : mapping, optional
        ``context.run_config`` of the nodes.
    node_config : callable, optional
        ``partition_id -> mapping``: entries of a node's ``context.node_config`` in addition to ``partition-id`` and
        ``num-partitions``.
    raise_errors : bool, default True
        Raise a client's exception as :class:`ClientError` with node and round; if False, turn it into an error reply
        and discard the handler's changes to its state, as Flower's simulation does.
    run_id : int, optional
        Id of this grid's run; random by default, as in Flower.

    Attributes
    ----------
    contexts : mapping of int to Context
        The nodes' contexts by node id; made on first use.
    partition_ids : mapping of int to int
        The nodes' partition ids by node id.

    Examples
    --------
    >>> grid = InProcessGrid(ClientApp(), 3)
    >>> list(grid.partition_ids.values())
    [0, 1, 2]
    """

    def __init__(
        self,
        client_app: ClientApp,
        num_nodes: int,
        *,
        run_config: Mapping[str, Any] | None = None,
        node_config: Callable[[int], Mapping[str, Any]] | None = None,
        raise_errors: bool = True,
        run_id: int | None = None,
    ) -> None:
        self.client_app = client_app
        self.raise_errors = raise_errors
        self.run_id = secrets.randbits(62) if run_id is None else run_id

        def context_of(node_id: int) -> Context:
            partition = node_id - _FIRST
            settings: Any = {} if node_config is None else node_config(partition)
            if not isinstance(settings, Mapping):
                what = f"node_config({partition}) is a {type(settings).__name__}"
                raise ConfigurationError(f"{what}; expected a mapping, such as {{}}")
            config = {**settings, "partition-id": partition, "num-partitions": num_nodes}
            return _flower.new_context(self.run_id, node_id, config, dict(run_config or {}))

        ids = range(_FIRST, num_nodes + _FIRST)
        self._ids, self._contexts = ids, ByNode(ids, context_of)
        self._partition_ids = ByNode(ids, lambda node_id: node_id - _FIRST)
        self.contexts: MutableMapping[int, Context] = self._contexts
        self.partition_ids: MutableMapping[int, int] = self._partition_ids
        #: Called after each round of training.
        self.report: Callable[[int], object] | None = None
        self._plan: tuple[Spec, str, AbstractSet[int]] | None = None
        self._numbers = itertools.count(1)
        self._replies: dict[str, Message] = {}

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the nodes' memories: the bytes of each ``context.state``, one after another."""
        states = self.states()
        return {
            "num_nodes": np.array(len(self.contexts), dtype=np.int64),
            "ids": np.array(list(states), dtype=np.uint64),
            "sizes": np.array([len(state) for state in states.values()], dtype=np.int64),
            "states": np.frombuffer(b"".join(states.values()), dtype=np.uint8),
        }

    def from_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore the memories that :meth:`to_arrays` returned.

        Raises
        ------
        ValueError
            If the arrays are from other nodes.
        """
        ids = arrays["ids"].tolist()
        if int(arrays["num_nodes"]) != len(self.contexts) or not all(i in self.contexts for i in ids):
            raise ValueError(f"it is of {int(arrays['num_nodes'])} nodes, and there are {len(self.contexts)}")
        ends = arrays["sizes"].cumsum().tolist()
        starts = [0, *ends][:-1]
        self.restore({i: arrays["states"][a:b].tobytes() for i, a, b in zip(ids, starts, ends, strict=True)})

    def states(self) -> dict[int, bytes]:
        """Return the nodes' memories by node id; nodes that were never used have none."""
        made = self._contexts.made
        return {i: _flower.to_bytes(made[i].state) for i in sorted(made) if made[i].state}

    def restore(self, states: Mapping[int, bytes]) -> None:
        """Restore the memories that :meth:`states` returned; all other nodes have none."""
        for node_id in self._contexts.made.keys() | states.keys():
            state = states.get(node_id)
            self.contexts[node_id].state = RecordDict() if state is None else _flower.from_bytes(state)

    def identity(self) -> AbstractContextManager[None]:
        """Return a context in which this process is the ServerApp of the grid's run, as Flower's messages require."""
        return _flower.identity(self.run_id)

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

    def get_node_ids(self) -> Sequence[int]:
        """Return the node ids: a range that starts with partition 0, as long as no node is added or removed."""
        untouched = self._contexts.untouched and self._partition_ids.untouched
        return self._ids if untouched else list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Deliver messages at once; their replies wait for :meth:`pull_messages`."""
        messages = [self._numbered(message) for message in messages]
        replies = self._deliver_all(messages)
        numbers = [message.metadata.message_id for message in messages]
        self._replies.update({n: reply for n, reply in zip(numbers, replies, strict=True) if reply is not None})
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self._replies.pop(number) for number in message_ids if number in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Deliver messages one after the other and return their replies; nothing can time out."""
        messages = [self._numbered(message) for message in messages]
        replies = self._deliver_all(messages)
        if self.report is not None and messages and messages[0].metadata.message_type == "train":
            number = messages[0].metadata.group_id
            self.report(int(number) if number.isdigit() else 0)
        return [reply for reply in replies if reply is not None]

    def introduce(self, plan: Spec, digest: str, strangers: AbstractSet[int]) -> None:
        """Set which nodes of the next :meth:`exchange` must get the plan first.

        Parameters
        ----------
        plan : Spec
            The plan of the run.
        digest : str
            Its hash.
        strangers : set of int
            Ids of these nodes.
        """
        self._plan = plan, digest, strangers

    def exchange(self, letters: Sequence[tuple[Node, Downlink]], server_round: int, digest: str) -> list[Sent] | None:
        """Deliver downlinks without messages and return the answers, bit-identical to those of messages.

        Parameters
        ----------
        letters : sequence of (Node, Downlink)
            The nodes, and what each is sent.
        server_round : int
            The round.
        digest : str
            Hash of the plan, which the nodes already have unless they are to be introduced.

        Returns
        -------
        list of Sent, or None
            In the order of the letters. None, before any client is called, if messages are needed: the ClientApp is not
            from this package or has mods, a client lacks something or would reject its message, or the grid overrides
            hooks.
        """
        introduced, self._plan = self._plan, None
        handler = training_handler(self.client_app)
        if not (type(self) is InProcessGrid and self.raise_errors and handler is not None):
            return None
        contexts = [self.contexts[node.node_id] for node, _ in letters]
        if introduced is not None:
            plan, plan_digest, strangers = introduced
            new = [context for context in contexts if context.node_id in strangers]
            if new:
                try:
                    handler.learn(new, plan, plan_digest, plan.to_json())
                except Exception as error:
                    raise self._raised(error, new[0].node_id, f"{server_round}", "train") from error
        tasks = received([downlink for _, downlink in letters], digest, contexts)
        if tasks is None:
            return None
        answers: list[Sent] = []
        try:
            with single_threaded_blas():
                for answer in handler.exchange(contexts, tasks, server_round, precision_of(letters[0][1])):
                    answers.append(answer)
        except Exception as error:
            # The error is from the client that was to answer next.
            raise self._raised(error, contexts[len(answers)].node_id, f"{server_round}", "train") from error
        if self.report is not None:
            self.report(server_round)
        return answers

    def _raised(
        self, error: Exception, node_id: int, number: str, kind: str, content: RecordDict | None = None
    ) -> ClientError:
        raised = f"{type(error).__name__} in round {number or '?'} ({kind}): {error}"
        text = f"node {node_id} (partition {self.partition_ids[node_id]}) raised {raised}"
        advice = "" if content is None else advice_on(f"{error}", content)
        return ClientError(f"{text}. {advice}" if advice else text, node_id, number)

    def _deliver_all(self, messages: Sequence[Message]) -> list[Message | None]:
        return [self._deliver(message) for message in messages]

    def _numbered(self, message: Message) -> Message:
        return _flower.numbered(message, f"{next(self._numbers)}")

    def _deliver(self, message: Message) -> Message | None:
        return self.answer(message)

    def answer(self, message: Message) -> Message | None:
        """Return a node's answer to a message."""
        node_id = message.metadata.dst_node_id
        context = self.contexts[node_id]
        request = _flower.with_content(message, _flower.isolated(message.content))
        state = context.state if self.raise_errors else _flower.isolated(context.state)
        try:
            app: Any = self.client_app
            reply: Message | None = app(request, context)
            if reply is not None and not isinstance(reply, Message):
                raise TypeError(f"the ClientApp returned a {type(reply).__name__}; expected a Message")
        except Exception as error:
            if self.raise_errors:
                about = message.metadata
                raise self._raised(error, node_id, about.group_id, about.message_type, message.content) from error
            context.state = state
            reason = f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-3)}"
            reply = Message(Error(CLIENT_APP_RAISED, reason), reply_to=message)
        # A ClientApp should return a message; one that returns nothing is silent in Flower, and also here.
        if reply is None:
            return None
        if reply.has_content():
            reply.content = _flower.isolated(reply.content)
        return reply

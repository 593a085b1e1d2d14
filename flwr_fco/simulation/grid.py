"""A Flower Grid in this process: nodes are contexts, a message is a function call."""

from __future__ import annotations

import itertools
import secrets
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from numpy.typing import NDArray

from flwr_fco.client_apps.training import TrainingHandler
from flwr_fco.errors import FOR_A_MODEL, ClientError, ConfigurationError
from flwr_fco.wire import flower as _flower
from flwr_fco.wire.downlink import received
from flwr_fco.wire.protocol import Downlink, Node
from flwr_fco.wire.uplink import Sent

#: Flower's code of an error reply for 'the ClientApp raised an exception'.
CLIENT_APP_RAISED = 2


class InProcessGrid(Grid):
    """Nodes in this process: breakpoints work, and a run with the same seed gives the same bits.

    Every message's content is copied on the way out and on the way back (the bytes of arrays cannot change and are
    shared), so no client can touch another's input or the server's.

    Parameters
    ----------
    client_app : flwr.clientapp.ClientApp
        Called for each message.
    num_nodes : int
        Number of nodes; node m has partition id m.
    run_config : mapping, optional
        ``context.run_config`` of the nodes.
    node_config : callable, optional
        ``partition_id -> mapping``: what a node's ``context.node_config`` holds in addition to ``partition-id`` and
        ``num-partitions``.
    raise_errors : bool, default True
        Raise a client's exception as :class:`ClientError` with node and round; False: turn it into an error reply
        and forget what the handler did to its state, as Flower's simulation does.

    Attributes
    ----------
    run_id : int
        Of this grid's run; random, as Flower's.
    contexts : dict of int to Context
        The nodes' contexts by node id.
    partition_ids : dict of int to int
        The nodes' partition ids by node id.
    """

    def __init__(
        self,
        client_app: ClientApp,
        num_nodes: int,
        *,
        run_config: Mapping[str, Any] | None = None,
        node_config: Callable[[int], Mapping[str, Any]] | None = None,
        raise_errors: bool = True,
    ) -> None:
        self.client_app = client_app
        self.raise_errors = raise_errors
        self.run_id = secrets.randbits(62)
        self.contexts: dict[int, Context] = {}
        self.partition_ids: dict[int, int] = {}
        for partition in range(num_nodes):
            node_id = partition + 2  # 1 is the SuperLink
            given: Any = {} if node_config is None else node_config(partition)
            if not isinstance(given, Mapping):
                raise ConfigurationError(
                    f"node_config({partition}) is a {type(given).__name__}; expected a mapping, such as {{}}"
                )
            own = dict(given)
            own.update({"partition-id": partition, "num-partitions": num_nodes})
            self.contexts[node_id] = _flower.new_context(self.run_id, node_id, own, dict(run_config or {}))
            self.partition_ids[node_id] = partition
        #: Called after each round of training.
        self.report: Callable[[int], object] | None = None
        self._numbers = itertools.count(1)
        self._replies: dict[str, Message] = {}

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return what the nodes remember: the bytes of their ``context.state``, one after the other."""
        states = [_flower.to_bytes(context.state) for context in self.contexts.values()]
        return {
            "ids": np.array(list(self.contexts), dtype=np.uint64),
            "sizes": np.array([len(state) for state in states], dtype=np.int64),
            "states": np.frombuffer(b"".join(states), dtype=np.uint8),
        }

    def from_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take back what :meth:`to_arrays` gave.

        Raises
        ------
        ValueError
            If it is of other nodes.
        """
        if arrays["ids"].tolist() != list(self.contexts):
            raise ValueError(f"it is of {arrays['ids'].size} nodes, and there are {len(self.contexts)}")
        ends = arrays["sizes"].cumsum()
        for context, size, end in zip(self.contexts.values(), arrays["sizes"], ends, strict=True):
            context.state = _flower.from_bytes(arrays["states"][end - size : end].tobytes())

    def identity(self) -> AbstractContextManager[None]:
        """Return a context in which this process is the ServerApp of the grid's run, as Flower's messages want it."""
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
        """Return a new message."""
        with self.identity():
            return Message(content, dst_node_id=dst_node_id, message_type=message_type, group_id=group_id, ttl=ttl)

    def get_node_ids(self) -> list[int]:
        """Return the node ids."""
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Deliver messages at once; their replies wait for :meth:`pull_messages`."""
        numbers = []
        for message in messages:
            reply = self._deliver(message)
            numbers.append(message.metadata.message_id)
            if reply is not None:
                self._replies[message.metadata.message_id] = reply
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies to these messages."""
        return [self._replies.pop(number) for number in message_ids if number in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Deliver messages one after the other and return their replies; nothing can time out."""
        messages = list(messages)
        replies = [self._deliver(message) for message in messages]
        if self.report is not None and messages and messages[0].metadata.message_type == "train":
            number = messages[0].metadata.group_id
            self.report(int(number) if number.isdigit() else 0)
        return [reply for reply in replies if reply is not None]

    def exchange(self, letters: Sequence[tuple[Node, Downlink]], server_round: int, digest: str) -> list[Sent] | None:
        """Tell nodes something without messages and return their answers, with the bits of messages.

        Parameters
        ----------
        letters : sequence of (Node, Downlink)
        server_round : int
        digest : str
            Of the plan, which the nodes have been told.

        Returns
        -------
        list of Sent, or None
            In the order of the letters. None, before any client is called, where messages must be made: the ClientApp
            is not of this package or has mods, a client lacks something or would not take its message as it is, or the
            grid has hooks of its own.
        """
        handler = _flower.handler_of(self.client_app, "train")
        if not (type(self) is InProcessGrid and self.raise_errors and isinstance(handler, TrainingHandler)):
            return None
        contexts = [self.contexts[node.node_id] for node, _ in letters]
        told = received([downlink for _, downlink in letters], digest, contexts)
        if told is None:
            return None
        found = []
        for context, (downlink, state) in zip(contexts, told, strict=True):
            try:
                found.append(handler.exchange(context, downlink, state, server_round))
            except Exception as error:
                raise self._raised(error, context.node_id, f"{server_round}", "train") from error
        if self.report is not None:
            self.report(server_round)
        return found

    def _raised(self, error: Exception, node_id: int, number: str, kind: str) -> ClientError:
        text = (
            f"node {node_id} (partition {self.partition_ids[node_id]}) raised "
            f"{type(error).__name__} in round {number or '?'} ({kind}): {error}"
        )
        return ClientError(f"{text}. {FOR_A_MODEL}" if "state_dict" in text else text, node_id, number)

    def _deliver(self, message: Message) -> Message | None:
        _flower.set_message_id(message, f"{next(self._numbers)}")
        node_id = message.metadata.dst_node_id
        context = self.contexts[node_id]
        request = _flower.with_content(message, _flower.isolated(message.content))
        state = context.state if self.raise_errors else _flower.isolated(context.state)
        try:
            reply = _flower.call(self.client_app, request, context)
            if reply is not None and not isinstance(reply, Message):
                raise TypeError(f"the ClientApp returned a {type(reply).__name__}; expected a Message")
        except Exception as error:
            if self.raise_errors:
                about = message.metadata
                raise self._raised(error, node_id, about.group_id, about.message_type) from error
            context.state = state
            reason = f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-3)}"
            reply = Message(Error(CLIENT_APP_RAISED, reason), reply_to=message)
        # A ClientApp is typed to return a message; one that forgets to is silent in Flower, and so it is here.
        if reply is None:
            return None
        content = _flower.content_of(reply)
        if content is not None:
            reply.content = _flower.isolated(content)
        _flower.set_message_id(reply, f"{next(self._numbers)}")
        return reply

"""The current round and its valid replies: reading, checking, leaving out, asking again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from logging import DEBUG, INFO, WARNING
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from flwr_fco.algorithms.contract import Problem
from flwr_fco.algorithms.contract.replies import Mean
from flwr_fco.core.layout import Layout
from flwr_fco.core.logs import log, printable
from flwr_fco.errors import ConfigurationError, ProtocolError
from flwr_fco.server.clients.schemas import NO_REPLY, Schemas
from flwr_fco.wire.envelope import advice_on, content_of, sender_and_group, was_altered, what_is_missing
from flwr_fco.wire.keys import SCHEMA
from flwr_fco.wire.metrics import without_metric
from flwr_fco.wire.protocol import Node, Uplink
from flwr_fco.work import Work

_Read = TypeVar("_Read")
#: Maximum length of a reason, because clients choose parts of it.
_LONGEST_REASON = 500
#: Maximum number of rows in the table of left-out replies.
MOST_ROWS = 100_000


class Reply(NamedTuple, Generic[_Read]):
    """A reply that passed all checks.

    Parameters
    ----------
    node : Node
        A node that was asked.
    value : Any
        The parsed value; in a training round, an :class:`Uplink` with the client's examples.
    content : RecordDict or dict
        The content that was read; for an answer without a message, its metrics.
    """

    node: Node
    value: _Read
    content: Any


class LeftOut(NamedTuple):
    """A reply that did not count: a row of the result's ``left_out``.

    Parameters
    ----------
    round : int
        Flower's round, from 1.
    node_id : int
        Id of the node that was asked, or of a node that answered without being asked.
    partition_id : int or None
        Partition of the node, if it is known.
    reason : str
        Why, with the value and what was expected.
    kind : {"train", "evaluate"}
        What was asked.
    """

    round: int
    node_id: int
    partition_id: int | None
    reason: str
    kind: str = "train"

    @property
    def first_line(self) -> str:
        """The first line of the reason: below an error's own line there is where a client has raised it."""
        return self.reason.partition("\\n")[0]


#: Flower's error code in the SuperLink's reply for a node without recent heartbeats.
_NODE_UNAVAILABLE = 5


@dataclass
class Round:
    """The server's record of a round between asking and aggregating.

    Parameters
    ----------
    number : int
        Flower's round, from 1; 0 before it.
    nodes : dict of int to Node
        The nodes that were asked, by node id, in the order in which replies are summed.
    messages : list of Message
        The messages to them.
    repeats : list of Message
        The messages to nodes that were asked again.
    config : ConfigRecord or None
        The user's train config with the round, if messages are made.
    bytes_down : int
        Bytes of arrays in the messages.
    restoring : set of int
        Ids of nodes that have lost their state.
    works : dict of int to Work
        The work requested from each node, by node id.
    left_out : list of LeftOut
        Replies that did not count, including duplicates and late replies.
    rows : int
        Number of its rows from this round, including rows that no longer fit.
    refused : int
        Number of nodes that are not asked because another node has their partition.
    kind : {"train", "evaluate", "question"}
        What is asked.
    caller : str
        Name in the log of the one who reads the replies.
    wire_dtype : {"float64", "float32"}
        Precision of the round's vectors in both directions, if the strategy chooses it.
    shapes : dict of str to tuple of int
        Name and shape of each vector that a client sends.
    problem : Problem or None
        The problem of the round.
    state : NamedTuple or None
        The server's state at the beginning of the round.
    answered : set of int
        Ids of nodes whose reply was good.
    answered_start : set of int
        Ids of nodes that have answered round 0 just before this round.
    checked : dict of int to (RecordDict, Any)
        Values read from replies that have been checked already, by the identity of their contents.
    possible : tuple
        The last valid claims of a client about its work, which need no second check.
    told : dict of (int, int) to tuple
        What clients remember after their answers and what these imply, by :attr:`Node.key`, as far as it was checked.
    """

    number: int
    nodes: dict[int, Node] = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)
    repeats: list[Message] = field(default_factory=list)
    config: ConfigRecord | None = None
    bytes_down: int = 0
    restoring: set[int] = field(default_factory=set)
    works: dict[int, Work] = field(default_factory=dict)
    answered: set[int] = field(default_factory=set)
    answered_start: AbstractSet[int] = frozenset()
    possible: tuple[Any, ...] = ()
    told: dict[tuple[int, int], tuple[Any, Any]] = field(default_factory=dict)
    wire_dtype: str = "float64"
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    problem: Problem | None = None
    state: Any = None
    left_out: list[LeftOut] = field(default_factory=list)
    rows: int = 0
    refused: int = 0
    kind: str = "train"
    caller: str = "aggregate_train"
    checked: dict[int, tuple[RecordDict, Any]] = field(default_factory=dict)

    def leave_out(self, node: Node, reason: str) -> None:
        """Record and log that a reply does not count.

        Parameters
        ----------
        node : Node
            The node that was asked, or that answered without being asked.
        reason : str
            Why, with the value and what was expected.
        """
        # A client's text: a line of its own in the log could be taken for the server's. Of a traceback the first line
        # says where, the last one what.
        lines = [line.strip()[:_LONGEST_REASON] for line in reason.splitlines() if line.strip()]
        short = " ... ".join(dict.fromkeys((lines[0], lines[-1]))) if lines else reason
        if len(reason) > _LONGEST_REASON:
            reason = f"{reason[:_LONGEST_REASON]} ... ({len(reason)} characters)"
        reason = printable(reason)
        log(WARNING, "%s: left out the reply of %s: %s", self.caller, node, printable(short))
        if len(lines) > 1:
            log(DEBUG, "%s: the whole of it: %s", self.caller, reason)
        self._note(node, reason)

    def _note(self, node: Node, reason: str) -> None:
        """Add a row to the table, and count it."""
        self.rows += 1
        if len(self.left_out) == MOST_ROWS:
            reason = f"there is more than fits into a table of {MOST_ROWS} rows; num-left-out counts on"
        if len(self.left_out) <= MOST_ROWS:
            self.left_out.append(LeftOut(self.number, *node, reason, self.kind))

    def without(self, good: Sequence[Reply[_Read]], objections: Mapping[int, str]) -> list[Reply[_Read]]:
        """Return the replies without objections; the others are left out.

        Parameters
        ----------
        good : sequence of Reply
            The replies that passed all checks.
        objections : mapping of int to str
            Reasons, by position in `good`.
        """
        for i, reason in sorted(objections.items()):
            self.leave_out(good[i].node, reason)
            self.answered.discard(good[i].node.node_id)
        return [reply for i, reply in enumerate(good) if i not in objections]

    def without_nodes(self, good: Sequence[Reply[_Read]], reasons: Mapping[Node, str]) -> list[Reply[_Read]]:
        """Return the replies of the nodes without a reason to leave out theirs, as :meth:`without` does."""
        return self.without(good, {i: reasons[reply.node] for i, reply in enumerate(good) if reply.node in reasons})

    def check_names(self, method: type, layout: Layout, names: Iterable[AbstractSet[str]]) -> None:
        """End a run whose first answers all hold the same other vectors than the method says, once for all clients.

        Parameters
        ----------
        method : type of Algorithm
            Whose `shapes` they were compared with.
        layout : Layout
            Answers with the model's arrays are of clients of another kind, which is their error.
        names : iterable of set of str
            The names of the vectors of each answer; empty if it has none.

        Raises
        ------
        ConfigurationError
            If several answers have the same names, and not those in `shapes`.
        """
        said = list(names)
        # One client alone may be wrong, or lie; several that say the same run what the method is.
        if self.state is None or self.state.round or len(said) < 2 or any(each != said[0] for each in said):
            return
        sent = said[0]
        if sent and sent not in (self.shapes.keys(), set(layout.names)):
            raise ConfigurationError(
                f"{method.__module__}.{method.__name__}: its clients send the vectors {sorted(sent)}, and its `shapes` "
                f"says {sorted(self.shapes)}; `shapes(problem, state)` returns name and shape of each vector to send"
            )

    def node_of(self, reply: Message) -> Node | None:
        """Return the node that a reply is from; the SuperLink answers for dead nodes under its own id."""
        node = self.nodes.get(reply.metadata.src_node_id)
        if node is None:
            for message in (*self.messages, *self.repeats):
                if message.metadata.message_id and message.metadata.message_id == reply.metadata.reply_to_message_id:
                    return self.nodes.get(message.metadata.dst_node_id)
        return node

    def good(self, replies: Iterable[Message], read: Callable[[Node, RecordDict], _Read]) -> list[Reply[_Read]]:
        """Return the good replies, sorted by partition; the others are left out and logged.

        Parameters
        ----------
        replies : iterable of Message
            The nodes' answers as they came.
        read : callable
            ``(node, content)``: checks a content and returns the parsed value, or raises :class:`ProtocolError` with
            the reason.
        """
        good: dict[int, Reply[_Read]] = {}
        answered, heard = set[int](), set[int]()
        failures, stamp = 0, str(self.number)
        for reply in replies:
            sender, group = sender_and_group(reply)
            content = content_of(reply)
            node = self.nodes.get(sender) or self.node_of(reply)
            if node is not None:
                heard.add(node.node_id)
            try:
                if content is None:
                    reason = f"error {reply.error.code}: {reply.error.reason}"
                    # Before the client's own text, which may be cut.
                    asked = (m.content for m in self.messages if m.metadata.dst_node_id == sender)
                    advice = next((found for each in asked if (found := advice_on(reason, each))), "")
                    raise ProtocolError(f"{advice}: {reason}" if advice else reason)
                if node is None:
                    raise ProtocolError("this node was not asked")
                if group != stamp:
                    raise ProtocolError(f"it answers round {group or 'without a stamp'}, this is {stamp}")
                if node.node_id in answered:
                    raise ProtocolError("it answered twice; the first answer counts")
                answered.add(node.node_id)
                known = self.checked.get(id(content))
                good[node.node_id] = Reply(node, read(node, content) if known is None else known[1], content)
            except ProtocolError as error:
                failures += 1
                lost = content is not None and what_is_missing(content) == "state"
                reason = "it has lost its state" if lost else str(error)
                self.leave_out(Node(sender, None) if node is None else node, reason)
        for node in self.nodes.values():
            if node.node_id not in heard:
                self._note(node, NO_REPLY)
        self.answered = set(good)
        log(INFO, "%s: Received %s results and %s failures", self.caller, len(good), failures)
        return [good[node_id] for node_id in self.nodes if node_id in good]

    def usable(self, replies: Sequence[Message], read: Callable[[Node, RecordDict], Any]) -> list[Message]:
        """Return the replies that may count; parsed values are kept for :meth:`good`.

        Parameters
        ----------
        replies : sequence of Message
            The nodes' answers as they came.
        read : callable
            As for :meth:`good`.
        """
        usable: list[Message] = []
        for reply in replies:
            node = self.node_of(reply)
            content = content_of(reply)
            if node is None or content is None or id(content) in self.checked or what_is_missing(content):
                usable.append(reply)
                continue
            try:
                if reply.metadata.group_id != str(self.number):
                    raise ProtocolError(f"it answers round {reply.metadata.group_id or 'without a stamp'}")
                self.checked[id(content)] = content, read(node, content)
                usable.append(reply)
            except ProtocolError as error:
                self.leave_out(node, f"{error}; it is asked again")
        return usable

    def to_ask_again(
        self, replies: Sequence[Message], *, state_lost: Callable[[Node, bool], bool], silent: bool
    ) -> tuple[list[Message], list[tuple[Node, str | None]]]:
        """Sort replies into those to keep and the nodes to ask again.

        Parameters
        ----------
        replies : sequence of Message
            The nodes' answers as they came.
        state_lost : callable
            ``(node, altered)``: whether a node that has lost its state, or whose answer was altered in transit, can get
            it again.
        silent : bool
            Whether silent nodes, and nodes that answered with an error, are asked again as well; a node that the
            SuperLink has given up is not, because the wait would be as long again.

        Returns
        -------
        kept : list of Message
        again : list of (Node, str or None)
            The nodes, with what each of them lacks: ``"plan"``, ``"state"`` or None.
        """
        kept, again = list[Message](), list[tuple[Node, str | None]]()
        answered, stamp = set[int](), str(self.number)
        for reply in replies:
            sender, group = sender_and_group(reply)
            content = content_of(reply)
            node = None if content is None else self.nodes.get(sender)
            if content is None and reply.error.code == _NODE_UNAVAILABLE:
                answered.update(gone.node_id for gone in [self.node_of(reply)] if gone is not None)
            if node is None or content is None:
                kept.append(reply)
                continue
            missing = what_is_missing(content)
            asks = missing is not None and node.node_id not in answered and group == stamp
            if asks and (missing != "state" or state_lost(node, was_altered(content))):
                again.append((node, missing))
            else:
                kept.append(reply)
            answered.add(node.node_id)
        if silent:
            again += [(node, None) for node_id, node in self.nodes.items() if node_id not in answered]
            asked = {node.node_id for node, _ in again}
            # If a node is asked again, its error reply must not count in addition to its second answer.
            kept = [reply for reply in kept if (node := self.node_of(reply)) is None or node.node_id not in asked]
        return kept, again


def weights_of(examples: Sequence[float], *, uniform: bool) -> list[float]:
    """Return the weights p_m of the replies, which sum to 1; empty if the total weight is zero.

    Examples
    --------
    >>> weights_of([30.0, 10.0], uniform=False), weights_of([0.0], uniform=False)
    ([0.75, 0.25], [])
    """
    if not examples:
        return []
    if uniform:
        return [1.0 / len(examples)] * len(examples)
    total = math.fsum(examples)
    return [number / total for number in examples] if total > 0 else []


def weighted(good: Sequence[Reply[Uplink]], weights: Sequence[float]) -> list[Uplink]:
    """Return the uplinks of good replies with their weights and nodes."""
    uplinks = []
    for (node, uplink, _), weight in zip(good, weights, strict=True):
        # `_replace` would take four times as long.
        vectors, elapsed, steps, _, _, examples, metrics, passed, digest, _, _ = uplink
        uplinks.append(Uplink(vectors, elapsed, steps, weight, node, examples, metrics, passed, digest))
    return uplinks


def averaged_pass_through(
    arrays: Mapping[str, NDArray[Any]], uplinks: Sequence[Uplink], *, aggregation: str = "mean", trim: float = 0.0
) -> dict[str, NDArray[Any]]:
    """Return the pass-through arrays after a round: the centre of floating-point ones, the lower median of the others.

    Only replies with the array count; without any, the array does not change.

    Parameters
    ----------
    arrays : mapping of str to ndarray
        The arrays before the round.
    uplinks : sequence of Uplink
        The uplinks, with weights.
    aggregation : {"mean", "trimmed", "median", "geometric-median"}, default "mean"
        Which centre.
    trim : float, default 0.0
        For ``"trimmed"``.
    """
    result = dict(arrays)
    for name, old in arrays.items():
        values = [(uplink.pass_through[name], uplink.weight) for uplink in uplinks if name in uplink.pass_through]
        if not values:
            continue
        if old.dtype.kind == "f":
            share = math.fsum(weight for _, weight in values)
            weights = [weight / share for _, weight in values]
            if aggregation == "mean":
                pairs = zip(values, weights, strict=True)
                mean = sum((value.astype(np.float64) * weight for (value, _), weight in pairs), np.zeros(old.shape))
            else:
                rows = [value.astype(np.float64).ravel() for value, _ in values]
                mean = Mean(aggregation=aggregation, trim=trim).of(rows, weights).reshape(old.shape)
            result[name] = np.asarray(mean).astype(old.dtype)
        else:
            result[name] = np.sort(np.array([value for value, _ in values]), axis=0)[(len(values) - 1) // 2]
    return result


def compared_metrics(
    current: Round, schemas: Schemas, grid: Grid | None, good: list[Reply[Mapping[str, Any]]]
) -> list[Reply[Mapping[str, Any]]]:
    """Return evaluations of sites whose columns and classes are those of the others, without what says so.

    Parameters
    ----------
    current : Round
        The evaluation.
    schemas : Schemas
        What sites have said before.
    grid : flwr.serverapp.Grid or None
        Flower's connection to the nodes, to ask for names.
    good : list of Reply
        Evaluations that are possible.

    Raises
    ------
    ConfigurationError
        If columns or classes differ.
    """
    said = {reply.node: reply.value[SCHEMA] for reply in good if isinstance(reply.value.get(SCHEMA), int | float)}
    if not said:
        return good
    reasons = schemas.compare(grid, said)
    kept: list[Reply[Mapping[str, Any]]] = []
    for node, metrics, content in current.without_nodes(good, reasons):
        others = {name: value for name, value in metrics.items() if name != SCHEMA}
        kept.append(Reply(node, others, without_metric(content, SCHEMA)))
    return kept

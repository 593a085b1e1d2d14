"""The parts of strategies whose clients remember vectors, or that run on a graph; bounds of what they remember."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from logging import WARNING
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fco.algorithms.contract import Algorithm, Change, ClientHalf, Implied, Problem, To, without_common
from flwr_fco.algorithms.contract.graph import Graph
from flwr_fco.core.layout import euclidean_norm
from flwr_fco.core.logs import log
from flwr_fco.core.sparse import SparseVector, dense
from flwr_fco.server.clients.memory import ClientMemories, Said, length_of
from flwr_fco.server.clients.participation import Absences
from flwr_fco.server.parts import Host, Part
from flwr_fco.wire.protocol import Downlink, Node, Uplink


class Remembering(Part):
    """Tracks clients that join, leave and lose their memory, and keeps the server's state consistent with the memories.

    Parameters
    ----------
    memories : ClientMemories
        The server's record of the memories.
    everyone : bool
        Whether all clients take part in every round.
    patience : int
        Number of rounds in a row in which a client may be asked in vain.
    """

    def __init__(self, memories: ClientMemories, *, everyone: bool, patience: int) -> None:
        self.memories, self.everyone, self.absences = memories, everyone, Absences(patience)

    def forget(self) -> None:
        self.memories.forget(0)
        self.absences.forget()

    def start(self, size: int) -> None:
        """Begin without memories."""
        self.memories.forget(size)
        self.absences.forget()

    @property
    def present(self) -> AbstractSet[tuple[int, int]]:
        """Keys of the clients that were there in the last round."""
        return self.memories.present

    def drop(self, host: Host, gone: AbstractSet[tuple[int, int]], reason: str) -> None:
        """Go on without some clients: all others begin anew.

        Parameters
        ----------
        host : Host
            The run.
        gone : set of (int, int)
            Their keys.
        reason : str
            Why, for the log.
        """
        for key in gone:
            self.memories.members.pop(key, None)
        self.memories.present = self.memories.present - gone
        self.changed(host, self.memories.new_epoch(reason))

    def before_round(self, host: Host, nodes: Sequence[Node]) -> Sequence[Node]:
        """Record the clients that have joined or left."""
        if self.everyone and not nodes:
            return nodes
        here = nodes if self.everyone else self.absences.there(host.nodes.ordered)
        self.changed(host, self.memories.notice(here))
        return nodes

    def after_round(self, host: Host, before: Any, uplinks: Sequence[Uplink]) -> None:
        """Record the replies that have counted."""
        algorithm, problem = host.algorithm, host.current.problem
        assert problem is not None
        half, checked = type(algorithm), host.current.told
        message = algorithm.downlink(problem, before, None)

        def after(memory: Mapping[str, Any], uplink: Uplink, begins: bool) -> Mapping[str, Any]:
            assert uplink.node is not None
            now, said = checked.get(uplink.node.key) or told(half, message, None if begins else memory, uplink)
            if said is not None:
                self.memories.member(uplink.node).note(said)
            return now

        self.changed(host, self.memories.commit(problem.round, uplinks, after))
        if not self.everyone:
            self.changed(host, self.memories.drop(self.absences.count(host, uplinks, self.memories.weighted)))

    def end_round(self, host: Host) -> None:
        """Void all memories now if one is lost for good, even if the round did not count."""
        if self.everyone and host.current.nodes:
            self.changed(host, self.memories.notice(list(host.current.nodes.values())))

    def changed(self, host: Host, change: Change | None) -> None:
        """Process a change of the clients' memories.

        Parameters
        ----------
        host : Host
            The run.
        change : Change or None
            What has changed; None: nothing.
        """
        if change is None:
            return
        if change.reason is not None:
            log(WARNING, "%s: all clients begin anew", change.reason)
        host.state = host.algorithm.restart(host.problem, host.state, change)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the record of the clients' memories."""
        return {**self.memories.to_arrays(), **self.absences.to_arrays()}

    def from_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self.absences.from_arrays(arrays)
        self.memories.from_arrays(arrays)
        for key in self.absences.left & self.memories.members.keys():
            self.memories.members[key].left = True

    def describe(self) -> list[tuple[str, str]]:
        """Return the line about the clients' memories."""
        return [("Client state", str(self.memories))]


def remembered(
    half: type[ClientHalf], message: Downlink, memory: Mapping[str, Any], uplink: Uplink, *, begins: bool
) -> Mapping[str, Any]:
    """Return a client's memory after a round that counted, as the client computes it.

    Parameters
    ----------
    half : type of ClientHalf
        The class of the method.
    message : Downlink
        The whole message of the round.
    memory : mapping of str to ndarray or SparseVector
        The client's memory before it.
    uplink : Uplink
        What the client sent.
    begins : bool
        Whether this is the client's first round.
    """
    sent = {name: vector.astype(np.float64, copy=False) for name, vector in uplink.vectors.items()}
    some = sent.get("increment")
    if not isinstance(some, SparseVector):
        return half.remember(message, {name: dense(vector) for name, vector in memory.items()}, sent, uplink.elapsed)
    # What the client knows is at the coordinates of its features; elsewhere its memory does not change.
    where = some.indices
    at = message._replace(vectors={name: vector[where] for name, vector in message.vectors.items()})
    values = {name: vector.values for name, vector in sent.items()}
    same = all(isinstance(vector, SparseVector) and np.array_equal(vector.indices, where) for vector in memory.values())
    here = {name: vector.values if same else dense(vector)[where] for name, vector in memory.items()}
    after = half.remember(without_common(half, at), here, values, uplink.elapsed)
    if same or begins:
        return {name: some.with_values(vector) for name, vector in after.items()}
    whole = {name: np.array(dense(memory[name])) for name in after}
    for name, vector in after.items():
        whole[name][where] = vector
    return whole


def told(
    half: type[Algorithm], message: Downlink, before: Mapping[str, Any] | None, uplink: Uplink
) -> tuple[Mapping[str, Any], Said | None]:
    """Return a client's memory after a round that counted, and what its answer implies; None where nothing adds up.

    Parameters
    ----------
    half : type of Algorithm
        The class of the method.
    message : Downlink
        The whole message of the round.
    before : mapping of str to ndarray or SparseVector, or None
        The client's memory before it; None for a client that begins.
    uplink : Uplink
        What the client sent.
    """
    after = remembered(half, message, half.fresh(message) if before is None else before, uplink, begins=before is None)
    implied = _implied(half, message, after, uplink)
    if implied is None:
        return after, None
    length = length_of(implied.gradient)
    if implied.point is None or before is None:
        return after, Said(length)
    last = _implied(half, message, before, uplink)
    assert last is not None
    assert last.point is not None
    moved = implied.point - last.point
    bent = implied.gradient - last.gradient - implied.convexity * moved
    return after, Said(length, float(moved @ bent), euclidean_norm(moved) * euclidean_norm(bent))


def told_on_graph(algorithm: Algorithm, problem: Problem, state: Any, node: Node, uplink: Uplink) -> Said | None:
    """Return what a node's answer implies, where the relay keeps what adds up; None where nothing does.

    Parameters
    ----------
    algorithm : Algorithm
        The method.
    problem : Problem
        Problem of the round.
    state : NamedTuple
        The state that the node was sent.
    node : Node
        The node.
    uplink : Uplink
        What the node sent.
    """
    message = algorithm.downlink(problem, state, To(node.key))
    implied = _implied(type(algorithm), message, {}, uplink)
    return None if implied is None else Said(length_of(implied.gradient))


def _implied(half: type[Algorithm], message: Downlink, memory: Mapping[str, Any], uplink: Uplink) -> Implied | None:
    """Return what an answer implies; of whole vectors, as a client may send others where the method has none."""
    sent = uplink.vectors
    if not half.sparse:
        memory, sent = ({name: dense(vector) for name, vector in each.items()} for each in (memory, sent))
    return half.implied(message, memory, sent, uplink.elapsed)


class Gossip(Part):
    """Assigns nodes to rows of a graph, and handles nodes that leave.

    Parameters
    ----------
    graph : Graph
        The weights with which neighbours average.
    patience : int
        Number of rounds in a row in which a node may be asked in vain.
    """

    def __init__(self, graph: Graph, patience: int) -> None:
        self.graph, self.absences = graph, Absences(patience)

    def forget(self) -> None:
        self.graph.forget()
        self.absences.forget()

    def nodes_needed(self, minimum: int) -> int:
        """Return the number of nodes that must be connected: before round 1, one for each row."""
        return self.graph.nodes_needed(minimum)

    def before_round(self, host: Host, nodes: Sequence[Node]) -> Sequence[Node]:
        """Return the nodes that have a row; the state then has a row for each node."""
        left = self.graph.notice(self.absences.there(host.nodes.ordered))
        host.state = host.algorithm.restart(host.problem, host.state, Change(None, None, math.nan, left))
        return self.graph.members(nodes)

    def after_round(self, host: Host, before: Any, uplinks: Sequence[Uplink]) -> None:
        """Note how long the nodes' first gradients are, and count who was asked in vain."""
        problem, firsts = host.current.problem, self.graph.firsts
        assert problem is not None
        for uplink in uplinks:
            if uplink.node is not None and not firsts.get(uplink.node.key):
                said = told_on_graph(host.algorithm, problem, before, uplink.node, uplink)
                if said is not None:
                    firsts[uplink.node.key] = said.length
        self.absences.count(host, uplinks)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the nodes' places in the graph, and who was asked in vain."""
        return {**self.graph.to_arrays(), **self.absences.to_arrays()}

    def from_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self.absences.from_arrays(arrays)
        self.graph.from_arrays(arrays)

    def describe(self) -> list[tuple[str, str]]:
        """Return the line about the graph."""
        return [("Graph", str(self.graph))]

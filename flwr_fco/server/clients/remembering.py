"""The parts of strategies whose clients remember vectors, or that run on a graph; bounds of what they remember."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
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
from flwr_fco.core.validation import saved_array
from flwr_fco.server.clients.memory import ClientMemories, Member, Said, length_of
from flwr_fco.server.parts import Host, Key, Part, array_of, saved_keys
from flwr_fco.server.replies.checks import Reply, Round
from flwr_fco.wire.protocol import Downlink, Node, Uplink


class Absences:
    """Counts, for each client, the rounds in a row in which it was asked and no answer of it counted.

    What such a client remembers would stay in the sums of all clients for ever, whatever it is. Rounds that do not
    count are not counted: then nothing was said about who is there.

    Parameters
    ----------
    patience : int
        Number of rounds in a row after which a client has left; it is asked on, and is back with its next answer.
    """

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.forget()

    def forget(self) -> None:
        """Return to the state before the first round."""
        self._missed: dict[Key, int] = {}
        #: Keys of the clients that count as having left.
        self.left: set[Key] = set()

    def count(self, host: Host, uplinks: Sequence[Uplink], weighted: Callable[[Key], bool] | None = None) -> set[Key]:
        """Count a round, and return the keys of the clients that count as having left from now on.

        Parameters
        ----------
        host : Host
            The run.
        uplinks : sequence of Uplink
            The replies that have counted.
        weighted : callable, optional
            Whether answers of a client can count at all.
        """
        current = host.current
        if current.number < 1:
            return set()
        here = {uplink.node.key for uplink in uplinks if uplink.node is not None}
        self._missed = {key: missed for key, missed in self._missed.items() if key not in here}
        self.left -= here
        gone = set()
        for node in current.nodes.values():
            if node.key in here or (weighted is not None and not weighted(node.key)):
                continue
            self._missed[node.key] = missed = self._missed.get(node.key, 0) + 1
            if missed >= self.patience and node.key not in self.left:
                gone.add(node.key)
                text = "%s was asked in %s rounds in a row without an answer that counts: what it remembers is dropped"
                log(WARNING, text, node, missed)
        self.left |= gone
        return gone

    def there(self, nodes: Sequence[Node]) -> Sequence[Node]:
        """Return the nodes of clients that have not left.

        Parameters
        ----------
        nodes : sequence of Node
            All connected nodes.
        """
        return [node for node in nodes if node.key not in self.left] if self.left else nodes

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the counts of missed rounds."""
        keys = sorted(self._missed)
        return {
            "missing": array_of(keys),
            "missed": np.array([self._missed[key] for key in keys], dtype=np.int64),
            "left": np.array([key in self.left for key in keys], dtype=np.bool_),
        }

    def from_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore what :meth:`to_arrays` returned."""
        keys = saved_keys(arrays, "missing")
        missed = saved_array(arrays, "missed", np.int64, (len(keys),), smallest=1)
        left = saved_array(arrays, "left", np.bool_, (len(keys),))
        self._missed = dict(zip(keys, missed.tolist(), strict=True))
        self.left = {key for key, gone in zip(keys, left.tolist(), strict=True) if gone}


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

    def __init__(self, memories: ClientMemories, everyone: bool, patience: int) -> None:
        self.memories, self.everyone, self.absences = memories, everyone, Absences(patience)

    def forget(self) -> None:
        self.memories.forget(0)
        self.absences.forget()

    def start(self, size: int) -> None:
        """Begin without memories."""
        self.memories.forget(size)

    def drop(self, host: Host, gone: AbstractSet[Key], reason: str) -> None:
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


# --- how long a gradient may be that answers imply, where answers add up in what is remembered ------------------------

# A client's variate stays in the mean of all variates while the client is silent, and a lie that is said again in every
# round makes it longer and longer.

#: Largest length of a gradient, as a multiple of the median of all clients' first ones, of the client's own first one,
#: and of the median of the round. Lies that build on each other drive the others' gradients too, so that the first ones
#: say what is usual; where all of them grow, none is a lie.
_USUAL, _OWN, _NOW = 10.0, 3.0, 3.0
#: Inner products of changes are negative beyond what inexact minimisations leave, as a share of what they could be.
_INEXACT = 1e-2


def variate_objections(algorithm: Algorithm, current: Round, good: Sequence[Reply[Uplink]]) -> dict[int, str]:
    """Return the replies that imply far too long a gradient, by position, with reasons.

    One honest loss may be sharper than all others, with a minimum far from theirs. So, where a reply implies the point
    of its gradient as well, it must have turned back too, as the gradients of no convex loss do; or, if the method
    needs strongly convex losses, have risen by less than those do.

    Parameters
    ----------
    algorithm : Algorithm
        The method.
    current : Round
        The round, which keeps what was computed.
    good : sequence of Reply
        The replies that passed all other checks.
    """
    if type(algorithm).implied is Algorithm.implied or not good:
        return {}
    problem, state = current.problem, current.state
    assert problem is not None
    memories: Any = problem.memories
    members: dict[Any, Member]
    if memories is None:
        if problem.graph is None:
            return {}
        members = {key: Member(first=first) for key, first in problem.graph.firsts.items()}
        found = [told_on_graph(algorithm, problem, state, node, uplink) for node, uplink, _ in good]
    else:
        if not memories.ledger:
            return {}
        members, message = memories.members, algorithm.downlink(problem, state, None)
        for node, uplink, _ in good:
            begins = memories.member(node).accepted < 0
            before = None if begins else memories.memory(node.key)
            current.told[node.key] = told(type(algorithm), message, before, uplink)
        found = [current.told[node.key][1] for node, _, _ in good]
    firsts = [member.first for member in members.values() if member.first > 0.0]
    lengths = [said.length for said in found if said is not None]
    if not firsts or len(lengths) < len(good):
        return {}
    usual, now, reasons = float(np.median(firsts)), sorted(lengths)[(len(lengths) - 1) // 2], dict[int, str]()
    for i, ((node, _, _), said) in enumerate(zip(good, found, strict=True)):
        member = members.get(node.key)
        assert said is not None
        if member is None or not member.first:
            continue
        if said.length > max(_USUAL * usual, _OWN * member.first, _NOW * now) and _turned(member, said):
            what = f"its control variate would be {said.length:.3g} long; expected at most {_USUAL:g} times {usual:.3g}"
            own = f"{_OWN:g} times {member.first:.3g}, its own first one"
            reasons[i] = f"{what}, the median of the clients' first ones, or {own}"
    return reasons


def _turned(member: Member, said: Said) -> bool:
    """Whether a gradient has turned back, on the whole; or nothing is known of its points."""
    product, most = member.product + said.product, member.most + said.most
    return not most or product < -_INEXACT * most

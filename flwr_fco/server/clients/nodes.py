"""Connected nodes: partition ids, waiting, sampling."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from logging import INFO, WARNING
from typing import Any

from flwr.app import RecordDict
from flwr.serverapp import Grid

from flwr_fco.algorithms.contract.choices import ChooseNodes
from flwr_fco.core.computing import random_generator
from flwr_fco.core.logs import log
from flwr_fco.errors import ConfigurationError
from flwr_fco.wire.envelope import HANDSHAKE, addressed, partition_of, send_and_receive
from flwr_fco.wire.protocol import Node

#: Seconds to wait for the nodes' answers to the question about their partition.
_HANDSHAKE_TIMEOUT = 120.0
#: Seconds to wait until the first of two nodes with the same partition id disconnects.
_TWINS_TIMEOUT = 120.0


def nap(deadline: float) -> None:
    """Sleep a second, or until a time of ``time.monotonic`` if that is sooner."""
    time.sleep(max(0.0, min(1.0, deadline - time.monotonic())))


class Numbered(Sequence[Node]):
    """Nodes whose i-th element has partition i, created on access because a million may be connected.

    Parameters
    ----------
    ids : range
        The node ids.
    """

    def __init__(self, ids: range) -> None:
        self.ids = ids
        self._made: dict[int, Node] = {}

    def __len__(self) -> int:
        """Return the number of nodes."""
        return len(self.ids)

    def __getitem__(self, i: Any) -> Any:
        """Return the i-th node."""
        if isinstance(i, slice):
            return [self[place] for place in range(len(self.ids))[i]]
        node = self._made.get(i)
        if node is None:
            place = range(len(self.ids))[i]
            node = self._made[place] = Node(self.ids[place], place)
        return node

    def __iter__(self) -> Iterator[Node]:
        """Return the nodes, one after the other."""
        return map(Node, self.ids, range(len(self.ids)))

    def __contains__(self, node: object) -> bool:
        """Whether this is one of the nodes."""
        if not isinstance(node, Node) or node.partition_id is None:
            return False
        return node.partition_id in range(len(self.ids)) and self[node.partition_id] == node


class Nodes:
    """The connected nodes of a run, sorted by partition id.

    Parameters
    ----------
    seed : int
        Seed of the samples.
    timeout : float
        Seconds to wait for enough nodes to connect.
    asks : bool, default True
        Whether nodes can be asked for their partition id (an unmodified client has no answer).

    Attributes
    ----------
    ordered : sequence of Node
        Nodes at the last update, sorted by partition id.
    informed : set of int
        Ids of the nodes that have the plan.
    refused : dict of int to Node
        Ids of nodes that claim the partition of an earlier node, with that node. They are not asked.
    """

    def __init__(self, seed: int, timeout: float, *, asks: bool = True) -> None:
        self.seed, self.timeout, self.asks = seed, timeout, asks
        self.ordered: Sequence[Node] = []
        self._available: Sequence[int] = []
        self.informed, self._waited_for = set[int](), set[int]()
        self._known, self.refused = dict[int, Node](), dict[int, Node]()

    def sample(
        self, grid: Grid, server_round: int, purpose: int, fraction: float, minimum: int, needed: int
    ) -> Sequence[Node]:
        """Draw nodes from (seed, round), sorted by partition id; wait until there are enough of them.

        Parameters
        ----------
        grid : flwr.serverapp.Grid
            Flower's connection to the nodes.
        server_round, purpose : int
            Inputs of the random draw, next to the seed.
        fraction : float
            Fraction of the connected nodes.
        minimum : int
            Minimum number of nodes to draw.
        needed : int
            Number of nodes to wait for.

        Raises
        ------
        ConfigurationError
            If there are too few nodes after the timeout.
        """
        deadline, told = time.monotonic() + self.timeout, -1
        while True:
            available = listed(grid)
            # 1e-9: 0.29 of 100 nodes is 29, not 28.
            size = max(int(fraction * len(available) + 1e-9), minimum)
            enough = max(size, needed)
            if len(available) >= enough:
                break
            if time.monotonic() > deadline:
                raise ConfigurationError(
                    f"only {len(available)} nodes connected within node_timeout={self.timeout} seconds, "
                    f"{enough} are needed; start more SuperNodes, or lower min_available_nodes and min_train_nodes"
                )
            if len(available) != told:
                text = "Waiting for nodes to connect: %d connected, %d needed; gives up after node_timeout=%g seconds"
                log(INFO, text, told := len(available), enough, self.timeout)
            nap(deadline)
        self.meet(grid, available)
        # The SuperLink lists a killed node next to its successor until it has missed the node's heartbeats. A node that
        # claims an occupied partition costs that waiting time once.
        patience = 0.0 if hasattr(grid, "partition_ids") else min(self.timeout, _TWINS_TIMEOUT)
        deadline = time.monotonic() + patience
        while new := [f"node {node_id}" for node_id in self.refused if node_id not in self._waited_for]:
            if time.monotonic() >= deadline:
                log(WARNING, "%s left out: another node has the same partition id", ", ".join(new))
                self._waited_for = set(self.refused)
                break
            log(INFO, "Waiting for the other nodes with the partition ids of %s to go", ", ".join(new))
            nap(deadline)
            self.meet(grid, listed(grid))
        size = min(size, len(self.ordered))
        if size == len(self.ordered):
            return self.ordered
        chosen = random_generator(self.seed, server_round, 0, purpose).choice(len(self.ordered), size, replace=False)
        return [self.ordered[i] for i in sorted(chosen.tolist())]

    def chosen(self, choose: ChooseNodes, server_round: int) -> list[Node]:
        """Return the user's choice of nodes for a round, sorted by partition id.

        Raises
        ------
        ConfigurationError
            If the function returns no nodes, a node that is not connected, or a node twice.
        """
        answer: Any = choose(server_round, tuple(self.ordered))
        some, what = "some of the nodes that it is given", ""
        if isinstance(answer, Node) or not isinstance(answer, Iterable):
            what = f"{answer!r} in round {server_round}; expected a list of {some}, such as nodes[:1]"
        elif not (chosen := list(answer)):
            what = f"no nodes in round {server_round}, so there would be nothing to do; return {some}"
        elif strangers := [node for node in chosen if not isinstance(node, Node) or node not in self.ordered]:
            what = f"{strangers[0]!r}, which is not one of the connected nodes in round {server_round}; return {some}"
        elif len(set(chosen)) < len(chosen):
            what = f"a node twice in round {server_round}; return {some}"
        if what:
            raise ConfigurationError(f"choose_nodes returned {what}")
        return sorted(chosen, key=lambda node: node.order)

    def meet(self, grid: Grid, available: Sequence[int]) -> None:
        """Get the partition ids of new nodes, from the grid if it knows them, otherwise by asking the nodes."""
        if available == self._available:
            return
        if isinstance(self.ordered, Numbered):
            self._known = {node.node_id: node for node in self.ordered}
        self._available = available
        if isinstance(available, range):
            self.ordered, self._known, self.refused = Numbered(available), {}, {}
            return
        present = set(available)
        if self._known.keys() == present:
            return
        self._known = {i: node for i, node in self._known.items() if i in present}
        new = [i for i in available if i not in self._known]
        partitions = self._partitions(grid, new) if new else {}
        for node_id in new:
            self._known[node_id] = Node(node_id, partitions.get(node_id))
        # Earlier nodes come first.
        keys: dict[tuple[int, int], Node] = {}
        firsts = [(node, keys.setdefault(node.key, node)) for node in self._known.values()]
        self.refused = {node.node_id: first for node, first in firsts if first is not node}
        self.ordered = sorted(keys.values(), key=lambda node: node.order)
        without = sum(node.partition_id is None for node in self._known.values())
        if new and without:
            text = (
                "%s of %s nodes have no partition id of their own, or do not tell it: another run with the same seed "
                "may differ, because Flower draws new node ids for it. Nothing has to be done"
            )
            log(WARNING, text, without, len(self._known))

    def _partitions(self, grid: Grid, node_ids: Sequence[int]) -> dict[int, int]:
        of_grid: Mapping[int, int] | None = getattr(grid, "partition_ids", None)
        if of_grid is not None:
            return {i: of_grid[i] for i in node_ids if i in of_grid}
        if not self.asks:
            return {}
        questions = addressed(grid, ((i, RecordDict()) for i in node_ids), HANDSHAKE, "0")
        answers = send_and_receive(grid, questions, _HANDSHAKE_TIMEOUT)
        partitions = {a.metadata.src_node_id: partition_of(a.content) for a in answers if a.has_content()}
        return {node_id: partition for node_id, partition in partitions.items() if partition is not None}


def listed(grid: Grid) -> Sequence[int]:
    """Return the ids of the connected nodes.

    Parameters
    ----------
    grid : flwr.serverapp.Grid
        Flower's connection to the nodes.

    Returns
    -------
    range, or list of int
        A range only for a grid that knows partitions: its nodes are those of partitions 0, 1, 2, ...
    """
    ids = grid.get_node_ids()
    return ids if isinstance(ids, range) and hasattr(grid, "partition_ids") else list(ids)

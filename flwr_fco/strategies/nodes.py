"""The connected nodes: known by partition, in a fixed order, and drawn with the run's seed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from logging import INFO, WARNING
from typing import Any

from flwr.app import RecordDict
from flwr.serverapp import Grid

from flwr_fco.algorithms.contract.choices import ChooseNodes
from flwr_fco.core.computing import random_generator
from flwr_fco.core.logs import log
from flwr_fco.core.validation import short
from flwr_fco.errors import ConfigurationError, ProtocolError
from flwr_fco.messages.boxes import PARTITION, addressed
from flwr_fco.messages.protocol import Node
from flwr_fco.messages.records import only_metrics

#: Seconds to wait for the nodes' answers to the question about their partition.
_HANDSHAKE_TIMEOUT = 120.0
#: What a draw is for: rounds of training, evaluations and questions are drawn apart from each other.
TRAINING, EVALUATION, ASKING = 2, 3, 4


class Nodes:
    """The connected nodes of a run.

    Parameters
    ----------
    seed : int
        Seed of the samples.
    timeout : float
        Seconds to wait for enough nodes to connect.
    asks : bool
        Whether nodes can be asked for their partition id: an unmodified client has no answer.

    Attributes
    ----------
    ordered : list of Node
        The nodes, sorted by partition id.
    refused : dict of int to Node
        Ids of nodes that claim the partition of another node, with that node; they are not asked.
    foreign : set of int
        Ids of nodes that were asked for their partition, and whose ClientApp has no answer to that.
    """

    def __init__(self, seed: int, timeout: float, asks: bool) -> None:
        self.seed, self.timeout, self.asks = seed, timeout, asks
        self.ordered: list[Node] = []
        self.refused: dict[int, Node] = {}
        self.foreign: set[int] = set()
        self._known: dict[int, Node] = {}
        self._available: list[int] = []

    def sample(self, grid: Grid, number: int, purpose: int, fraction: float, minimum: int, needed: int) -> list[Node]:
        """Wait until enough nodes are connected, and draw some with the bits of (seed, round, purpose).

        Parameters
        ----------
        grid : flwr.serverapp.Grid
            Flower's connection to the nodes.
        number, purpose : int
            The round, and what the draw is for.
        fraction : float
            Of the connected nodes.
        minimum, needed : int
            Nodes to draw at least, and nodes to wait for.

        Raises
        ------
        ConfigurationError
            If there are too few nodes after the timeout.
        """
        deadline, said = time.monotonic() + self.timeout, -1
        while True:
            available = list(grid.get_node_ids())
            # 1e-9: 0.29 of 100 nodes is 29, not 28.
            size = max(int(fraction * len(available) + 1e-9), minimum)
            enough = max(size, needed)
            if len(available) >= enough:
                break
            if time.monotonic() > deadline:
                raise ConfigurationError(
                    f"only {len(available)} nodes connected within node_timeout={self.timeout} seconds, {enough} are "
                    "needed; start more SuperNodes, or lower min_available_nodes and min_train_nodes"
                )
            if said != len(available):
                said = len(available)
                text = "Waiting for nodes to connect: %d connected, %d needed; gives up after node_timeout=%g seconds"
                log(INFO, text, said, enough, self.timeout)
            time.sleep(max(0.0, min(1.0, deadline - time.monotonic())))
        self._meet(grid, available)
        if size >= len(self.ordered):
            return self.ordered
        chosen = random_generator(self.seed, number, 0, purpose).choice(len(self.ordered), size, replace=False)
        return [self.ordered[i] for i in sorted(chosen.tolist())]

    def chosen(self, choose: ChooseNodes, number: int) -> list[Node]:
        """Return the user's choice of nodes for a round, sorted by partition id.

        Raises
        ------
        ConfigurationError
            If the function returns no nodes, a node that is not connected, or a node twice.
        """
        answer: Any = choose(number, tuple(self.ordered))
        some = "some of the nodes that it is given"
        what = f"{short(answer)} in round {number}; expected a list of {some}, such as nodes[:1]"
        if not isinstance(answer, Node) and isinstance(answer, Iterable):
            nodes = list(answer)
            if nodes and all(isinstance(node, Node) for node in nodes) and set(nodes) <= set(self.ordered):
                if len(set(nodes)) == len(nodes):
                    return sorted(nodes, key=lambda node: node.order)
                what = f"a node twice in round {number}; return {some}"
        raise ConfigurationError(f"choose_nodes returned {what}")

    def _meet(self, grid: Grid, available: list[int]) -> None:
        """Learn the partitions of new nodes, and forget those that have gone."""
        if available == self._available:
            return
        self._available, present = available, set(available)
        self._known = {node_id: node for node_id, node in self._known.items() if node_id in present}
        new = [node_id for node_id in available if node_id not in self._known]
        partitions = self._partitions(grid, new) if new else {}
        self._known |= {node_id: Node(node_id, partitions.get(node_id)) for node_id in new}
        first: dict[tuple[int, int], Node] = {}
        for node in self._known.values():
            first.setdefault(node.key, node)
        twins = {i: first[node.key] for i, node in self._known.items() if first[node.key] is not node}
        for node_id in twins.keys() - self.refused.keys():
            log(WARNING, "node %s left out: another node has the same partition id", node_id)
        self.refused, self.ordered = twins, sorted(first.values(), key=lambda node: node.order)
        without = sum(node.partition_id is None for node in self.ordered)
        if new and without:
            text = (
                "%s of %s nodes have no partition id of their own: Flower draws new node ids for each run, so another "
            )
            log(INFO, text + "run with the same seed may differ", without, len(self.ordered))

    def _partitions(self, grid: Grid, new: Sequence[int]) -> dict[int, int]:
        known = getattr(grid, "partition_ids", None)
        if known is not None:
            self.foreign |= set(new) if self.asks and getattr(grid, "foreign", False) else set()
            return {node_id: known[node_id] for node_id in new if node_id in known}
        if not self.asks:
            return {}
        questions = addressed(grid, [(node_id, RecordDict()) for node_id in new], PARTITION, 0)
        found: dict[int, int] = {}
        for answer in grid.send_and_receive(questions, timeout=_HANDSHAKE_TIMEOUT):
            self.foreign |= {answer.metadata.src_node_id} if answer.has_error() else set()
            try:
                said: Any = only_metrics(answer.content).get("partition-id") if answer.has_content() else None
            except ProtocolError:
                said = None
            if type(said) is int and 0 <= said < 2**63:
                found[answer.metadata.src_node_id] = said
        return found

"""A graph of nodes and its relay on the server: rows, neighbours, missing nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

from flwr_fco.algorithms.contract.replies import Mean, Replies
from flwr_fco.core.layout import Vector
from flwr_fco.core.logs import logger
from flwr_fco.errors import ConfigurationError
from flwr_fco.messages.protocol import Node, Uplink
from flwr_fco.topology import TOPOLOGIES, Mixing, Topology, effective_mixing

Matrix = NDArray[np.float64]


class Graph:
    """The row of each node, the missing nodes, and the gossip matrix of a round.

    Parameters
    ----------
    mixing : Topology, array of shape (M, M), or str
        The gossip matrix U, or the name of a topology for the number of nodes before round 1.

    Raises
    ------
    ConfigurationError
        If there is no topology of that name, or the matrix is not symmetric and doubly stochastic.
    """

    #: What changes from round to round: the topology follows from the rows.
    saved = ("rows", "gone")

    def __init__(self, mixing: Mixing) -> None:
        if isinstance(mixing, str) and mixing not in TOPOLOGIES:
            prefix = f"mixing={mixing!r}; expected one of {', '.join(map(repr, TOPOLOGIES))}"
            others = "a Topology of flwr_fco.topology, which takes networkx's graphs, or a gossip matrix"
            raise ConfigurationError(f"{prefix}, {others}")
        given: Any = mixing
        self.mixing: Topology | str = given if isinstance(given, Topology | str) else Topology("matrix", given)
        self.rows: dict[tuple[int, int], int] = {}
        self.gone: set[int] = set()
        #: The graph; None while only its name is known.
        self.topology: Topology | None = self.mixing if isinstance(self.mixing, Topology) else None

    # --- positions ------------------------------------------------------------------------------------------------

    def of_size(self, num_nodes: int) -> Topology:
        """Return the graph, if only its name is known that of so many nodes."""
        return self.topology or TOPOLOGIES[str(self.mixing)](num_nodes)

    @property
    def num_rows(self) -> int:
        """Number of rows of a state before the nodes are known: one for each node of a given graph, otherwise one."""
        return 1 if self.topology is None else self.topology.num_nodes

    def notice(self, connected: Sequence[Node]) -> list[int]:
        """Assign rows to nodes before round 1; return the rows of nodes that have left since the last round.

        Parameters
        ----------
        connected : sequence of Node
            All connected nodes, sorted by partition id.

        Raises
        ------
        ConfigurationError
            If the number of nodes is not that of the graph.
        """
        if not self.rows:
            if isinstance(self.mixing, Topology) and self.mixing.num_nodes != len(connected):
                prefix = f"mixing has {self.mixing.num_nodes} nodes, but {len(connected)} are connected"
                advice = "start as many SuperNodes as the graph has nodes, or name a topology (mixing='ring')"
                raise ConfigurationError(f"{prefix}; {advice}")
            if self.topology is None:
                self.topology = self.of_size(len(connected))
                logger.info("The graph: %s", self.topology)
            self.rows = {node.key: row for row, node in enumerate(connected)}
        present = {self.rows[node.key] for node in connected if node.key in self.rows}
        before, self.gone = self.gone, set(self.rows.values()) - present
        if left := sorted(self.gone - before):
            parts = connected_components(self.here(self.here(self.of_size(len(self.rows)).mixing).T))[0]
            apart = f"; the others are {parts} parts without an edge between them, and never agree" if parts > 1 else ""
            logger.warning("nodes %s of the graph have left, or do not answer%s", left, apart)
        return left

    def members(self, nodes: Sequence[Node]) -> list[Node]:
        """Return the nodes that have a row."""
        members = [node for node in nodes if node.key in self.rows]
        if len(members) < len(nodes):
            logger.warning("%s nodes have no place in the graph and are not asked", len(nodes) - len(members))
        return members

    def handed_on(self, trackers: Matrix, left: Sequence[int]) -> Matrix:
        """Return the trackers after nodes have left, with theirs handed on to their neighbours, so that the sum stays.

        Parameters
        ----------
        trackers : ndarray of float64, shape (M, d)
            One for each row of the graph.
        left : sequence of int
            Rows of the nodes that have left since the last round.
        """
        assert self.topology is not None
        trackers = trackers.copy()
        for row in left:
            heirs = [j for j in self.topology.neighbours(row) if j not in self.gone]
            heirs = heirs or [j for j in range(self.topology.num_nodes) if j not in self.gone]
            trackers[heirs] += trackers[row] / max(1, len(heirs))
            trackers[row] = 0.0
        return trackers

    def here(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the rows of the nodes that have not left; without a copy if none has."""
        return rows[[row for row in range(len(rows)) if row not in self.gone]] if self.gone else rows

    # --- a round ----------------------------------------------------------------------------------------------

    def rows_of(self, uplinks: Replies) -> tuple[list[int], Matrix]:
        """Return the rows of the uplinks, and the gossip matrix without the nodes that have not answered.

        A missing node keeps its state, and its neighbours keep the weight that they give it: the matrix is symmetric
        and doubly stochastic again.
        """
        topology = self.topology = self.of_size(len(uplinks))
        rows = [i if u.node is None else self.rows.get(u.node.key, i) for i, u in enumerate(uplinks)]
        return rows, effective_mixing(topology.mixing, set(range(topology.num_nodes)) - set(rows))

    def increments(self, uplinks: Iterable[Uplink], rows: Sequence[int], *, normalize: bool) -> tuple[Matrix, Vector]:
        """Return the nodes' increments as rows, scaled to equal work, and the elapsed time; zeros of missing nodes.

        Parameters
        ----------
        uplinks : sequence of Uplink
            Those of the round, with weights.
        rows : sequence of int
            Rows of the uplinks.
        normalize : bool
            Whether all nodes are scaled to the same work.
        """
        uplinks = list(uplinks)
        factors, _ = Mean(normalize).factors(uplinks)
        pairs = [*zip(factors, uplinks, strict=True)]
        increments = self.spread(rows, [factor * uplink.vectors["increment"] for factor, uplink in pairs])
        return increments, self.spread(rows, [factor * uplink.step_sizes for factor, uplink in pairs])

    def spread(self, rows: Sequence[int], values: Sequence[Any]) -> NDArray[np.float64]:
        """Return numbers or vectors of uplinks at their rows, and zeros of missing nodes."""
        whole = np.zeros((self.of_size(len(rows)).num_nodes, *np.shape(values[0])))
        whole[rows] = values
        return whole

    def __str__(self) -> str:
        return str(self.topology or f"{self.mixing}, of the nodes that are there before round 1")

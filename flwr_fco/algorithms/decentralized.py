"""Decentralised methods: dual averaging over a graph, with and without gradient tracking.

Algorithm 1 (DFedDA, DFedDA-GT) of Liang, Peng, Zhang, 'Gradient tracking for high dimensional federated optimization';
their symbols in brackets. Rows of a matrix are nodes, U is the gossip matrix `mixing`::

    start: every node's dual [z_0^m] = grad h(w_0), elapsed = 0
           tracker [c_0] = U G - G, G the gradients of a round 0 at w_0 (tracker_start="gradient"), or 0
    each round, each node: start at its dual; for k = 0, 1, ..., one minibatch each, with gradient g at
            primal = retrieve(dual, elapsed + client_lr * k)
            dual <- dual - client_lr (g + tracker)                                        (DFedDA: without tracker)
        send the increment [z_K - z_0] and its own elapsed [eta_c K]
    with move [Delta] = increment / elapsed, before any mixing:
        tracker <- tracker + move - U move
        dual    <- U (dual + server_lr increment);  elapsed <- U (elapsed + server_lr elapsed of the round)
        primal   = retrieve(dual, elapsed), for every node

    DReFedDA-GT in stages (algorithm 3 with general U): duals and trackers go back to 0, and the next reference is the
        sparsified mean of the stage's points, each the mean over the nodes. So does the authors' public code.

The trackers sum to 0 after every round. A node that misses a round keeps its state, and its neighbours keep the weight
that they give it: the effective U is symmetric and doubly stochastic again. A node that leaves for good hands its
tracker to its neighbours, so that the remaining nodes converge to their own optimum.

The relay. Flower has no channel between clients: the server holds every node's dual and tracker, mixes them, and sends
each node only its own mixture (and its own tracker, for GT). So clients have no state to lose; the server sees every
increment, which on a real graph only neighbours would see. It also has the mean over all nodes from which a stage
begins; on a real graph the nodes would have to gossip for it.

psi is an extension, which the paper's methods do not have. It composes through `retrieve` as in FedDualAvg.

The user sees the primal point of the nodes' mean dual; :meth:`DecentralizedDualAveraging.node_points` has all points.

Differs from the paper in: 1. the relay, see above; 2. nodes with more steps do not weigh more
(``normalize_local_work``); 3. psi, see above.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

from flwr_fco.algorithms.contract import Algorithm, Change, Client, Downlink, Memory, Moved, Problem, Replies, Sent, To
from flwr_fco.algorithms.contract.replies import Mean
from flwr_fco.algorithms.restricted_gradient_tracking import Staged
from flwr_fco.core.computing import logger
from flwr_fco.core.layout import Vector
from flwr_fco.errors import ConfigurationError
from flwr_fco.messages.protocol import Node
from flwr_fco.topology import TOPOLOGIES, Mixing, Topology, consensus_error, effective_mixing, root_mean_square_norm

Matrix = NDArray[np.float64]

# --- the graph and its relay: rows, neighbours, missing nodes ---------------------------------------------------------


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
            raise ConfigurationError(f"{prefix}, a topology such as topology.from_graph(graph), or a gossip matrix")
        self.mixing = mixing if isinstance(mixing, Topology | str) else Topology("matrix", np.asarray(mixing))
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
        """Return the nodes that have a row; one that is silent is asked again, and may answer."""
        members = [node for node in nodes if node.key in self.rows]
        if nodes and not members and len(self.gone) == len(self.rows):
            raise ConfigurationError("no node of the graph is left; expected those of round 1, by their partition-ids")
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

    def increments(self, uplinks: Replies, rows: Sequence[int], *, normalize: bool) -> tuple[Matrix, Vector]:
        """Return the nodes' increments as rows, scaled to equal work, and the elapsed time; zeros of missing nodes.

        Parameters
        ----------
        uplinks : Replies
            Those of the round, with weights.
        rows : sequence of int
            Rows of the uplinks.
        normalize : bool
            Whether all nodes are scaled to the same work.
        """
        factors, _ = Mean(normalize).factors([*uplinks])
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


# --- the methods ------------------------------------------------------------------------------------------------------

#: The fields of a state that have a row for each node.
_OF_NODES = ("dual", "elapsed", "trackers")


class GraphState(NamedTuple):
    """State of dual averaging on a graph; rows are nodes.

    Parameters
    ----------
    dual : ndarray of float64, shape (M, d)
        The nodes' duals Z. One row for all of them until the nodes are known.
    elapsed : ndarray of float64, shape (M,)
        The nodes' weights of psi.
    trackers : ndarray of float64, shape (M, d) or (0, d)
        C.
    round : int
        Number of successful rounds, r.
    started : int
        1 after the round 0 in which the trackers start.
    """

    dual: Matrix
    elapsed: Vector
    trackers: Matrix
    round: int = 0
    started: int = 0


@dataclass(frozen=True, kw_only=True)
class DecentralizedDualAveraging(Algorithm):
    """Dual averaging over a graph, algorithm 1 without tracking; a client does what it does without a graph.

    Parameters
    ----------
    normalize_local_work : bool, default True
        Whether all nodes are scaled to the same work.

    Examples
    --------
    >>> DecentralizedDualAveraging.name, DecentralizedDualAveraging.reads
    ('decentralized_dual_averaging', 'rows')
    """

    name = "decentralized_dual_averaging"
    sparse = True
    reads: ClassVar[Any] = "rows"
    #: Whether the relay keeps trackers.
    _tracking: ClassVar[bool] = False

    normalize_local_work: bool = True

    def local(self, client: Client, downlink: Downlink, memory: Memory | None) -> tuple[Sent, Moved]:
        """Send z_K - z_0; in round 0 a gradient. A tracker that is 0 is not in the message."""
        dual = downlink.vectors["dual"]
        if "gradient" in downlink.numbers:
            return client.gradient(dual)
        return client.dual_steps(dual, downlink.vectors.get("tracker", 0.0))

    def init(self, problem: Problem, primal: Vector) -> GraphState:
        """Return the state before round 1: every dual = grad h(primal), trackers 0."""
        trackers = np.zeros((1 if self._tracking else 0, primal.size))
        return GraphState(problem.h.gradient(primal)[None, :], np.zeros(1), trackers)

    def downlink(self, problem: Problem, state: GraphState, to: To | None) -> Downlink:
        """Return a node's own mixture, and its tracker."""
        row = 0 if to is None else problem.graph.rows[to.key]
        vectors = {"dual": state.dual[row]}
        if self._tracking and problem.round > 0 and (state.round > 0 or state.trackers[row].any()):
            vectors["tracker"] = state.trackers[row]
        numbers = {"gradient": 1.0} if problem.round == 0 else {}
        return Downlink(problem.plan, vectors, problem.client_lr, float(state.elapsed[row]), numbers)

    def aggregate(self, problem: Problem, state: GraphState, replies: Replies) -> GraphState:
        """Return Z = U (Z + server_lr increments), C = C + moves - U moves; after round 0, C = U G - G."""
        graph = problem.graph
        rows, mixing = graph.rows_of(replies)
        if problem.round == 0:
            gradients = graph.spread(rows, [uplink.vectors["increment"] for uplink in replies])
            return state._replace(trackers=mixing @ gradients - gradients, started=1)
        increments, elapsed = graph.increments(replies, rows, normalize=self.normalize_local_work)
        dual = mixing @ (state.dual + problem.server_lr * increments)
        time = mixing @ (state.elapsed + problem.server_lr * elapsed)
        trackers = state.trackers
        if self._tracking:
            moves = graph.spread(rows, [uplink.vectors["increment"] / uplink.step_sizes for uplink in replies])
            trackers = moves - mixing @ moves + trackers
        return state._replace(dual=dual, elapsed=time, trackers=trackers, round=state.round + 1)

    def retrieve(self, problem: Problem, state: GraphState) -> Vector:
        """Return the primal point of the mean dual of the connected nodes."""
        graph = problem.graph
        return problem.retrieve(graph.here(state.dual).mean(axis=0), float(graph.here(state.elapsed).mean()))

    def node_points(self, problem: Problem, state: GraphState) -> Matrix:
        """Return the primal points of all nodes, shape (M, d), in the order of their rows."""
        return np.array([problem.retrieve(z, float(t)) for z, t in zip(state.dual, state.elapsed, strict=True)])

    def restart(self, problem: Problem, state: GraphState, change: Change) -> GraphState:
        """Return the state with a row for each node; nodes that have left hand on their trackers."""
        count = problem.graph.num_rows
        rows: Any = {name: np.repeat(own, count, 0) for name in _OF_NODES if len(own := getattr(state, name)) == 1}
        state = state._replace(**rows)
        if not (change.left and self._tracking):
            return state
        return state._replace(trackers=problem.graph.handed_on(state.trackers, change.left))

    def metrics(self, problem: Problem, state: GraphState) -> dict[str, Any]:
        """Return the nodes' disagreement and, with tracking, the root mean square norm of their trackers."""
        trackers = problem.graph.here(state.trackers) if self._tracking else ()
        length = {"tracker-norm": root_mean_square_norm(trackers)} if len(trackers) else {}
        return {"consensus-error": consensus_error(problem.graph.here(state.dual)), **length}


@dataclass(frozen=True, kw_only=True)
class DecentralizedGradientTracking(DecentralizedDualAveraging):
    """Local steps z <- z - client_lr (g(retrieve(z, t)) + tracker), with a tracker that the relay stores.

    Parameters
    ----------
    tracker_start : {"gradient", "zero"}, default "zero"
        Whether a round 0 of one gradient each comes first, or trackers begin at 0.

    References
    ----------
    Liang, Peng, Zhang: Gradient tracking for high dimensional federated optimization, algorithm 1.

    Examples
    --------
    >>> DecentralizedGradientTracking.name, DecentralizedGradientTracking.reads
    ('tracked_dual_averaging', 'rows')
    """

    name = "tracked_dual_averaging"
    sparse = False
    _tracking: ClassVar[bool] = True

    tracker_start: str = "zero"


@dataclass(frozen=True, kw_only=True)
class DecentralizedRestricted(Staged, DecentralizedGradientTracking):
    """Decentralised gradient tracking around the start point, within a ball of the map's norm, also in stages.

    References
    ----------
    Liang, Peng, Zhang: Gradient tracking for high dimensional federated optimization, algorithms 2 and 3 with general
    U.

    Examples
    --------
    >>> DecentralizedRestricted.name, DecentralizedRestricted.reads
    ('tracked_dual_averaging', 'rows')
    """

    def _centre(self, problem: Problem, state: Any) -> Vector:
        """Return the nodes' mean."""
        return np.asarray(problem.graph.here(self.node_points(problem, state)).mean(axis=0))

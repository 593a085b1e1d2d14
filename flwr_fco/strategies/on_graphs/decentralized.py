"""Decentralised methods: dual averaging and mirror descent over a graph, with and without gradient tracking.

Algorithm 1 (DFedDA, DFedDA-GT) of Liang, Peng, Zhang, 'Gradient tracking for high dimensional federated optimization',
and the graph forms of FedMid and SCAFFOLD; their symbols in brackets. Rows of a matrix are nodes, U is the gossip
matrix `mixing`::

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

    DFedMid: each node takes proximal steps primal <- retrieve(grad h(primal) - client_lr g, client_lr); then
        primal <- retrieve(U (grad h(primal_0) + server_lr increment), server_lr elapsed of the round)

The trackers sum to 0 after any round. A node that is missing in a round keeps what it has, and the weight that its
neighbours give it stays with them: the effective U is symmetric and doubly stochastic again. A node that leaves for
good hands its tracker to its neighbours, so that the others go on to the optimum of those who are left.

The relay. Flower has no channel between clients: the server holds every node's dual and tracker, mixes, and sends a
node its own mixture (and its own tracker, for GT) and nothing else. So the clients have no state that could be lost;
the server sees every increment, which on a real graph only neighbours would.

psi is an extension: the paper's methods but DFedMid have none. It composes through `retrieve` as in FedDualAvg.

What the user sees is the primal point of the nodes' mean dual (`strategy.node_primals()` has all of them, also for
callbacks).

Differs from the paper in: 1. the relay, see above; 2. nodes with more steps do not weigh more
(``normalize_local_work``); 3. psi, see above; 4. DFedMid's second proximal map acts after mixing in the dual, which in
the Euclidean geometry is as printed.

Errata: DFedMid as printed applies psi in the local steps and again after mixing, so it solves the problem with twice
the strength, as FedMid does; ``server_prox=False`` counts psi once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flwr_fco.core.layout import Vector
from flwr_fco.mirror_maps import MirrorMap
from flwr_fco.server.algorithm import ConfigRecord, Grid
from flwr_fco.server.clients.graph import Graph, Matrix, Mixing, uniform_weighting
from flwr_fco.server.convergence import Biased, DoubledStrength, Exact, Limit
from flwr_fco.server.options import RateOptions, WorkOptions
from flwr_fco.server.strategy import CompositeStrategy
from flwr_fco.strategies.gradient_tracking.re_fed_da_gt import restricted_map
from flwr_fco.topology import consensus_error, root_mean_square_norm
from flwr_fco.wire.protocol import Downlink, Node, Option, Uplink

__all__ = ["DFedDA", "DFedDAGT", "DFedMid", "DReFedDAGT", "DScaffold", "GraphState", "PrimalGraphState"]


class GraphState(NamedTuple):
    """State of dual averaging on a graph; rows are nodes.

    Parameters
    ----------
    dual : ndarray of float64, shape (M, d)
        The nodes' duals Z. One row until the number of nodes is known.
    elapsed : ndarray of float64, shape (M,)
        The nodes' weights of psi.
    trackers : ndarray of float64, shape (M, d) or (0, d)
        C.
    round : int
        Number of successful rounds, r.
    total : ndarray of float64
        What the output averages; see :class:`PointAverage`.
    averaged : int
        Number of points in `total`.
    started : int
        1 after the round 0 in which the trackers start.
    """

    dual: Matrix
    elapsed: Vector
    trackers: Matrix
    round: int
    total: Vector
    averaged: int
    started: int


class PrimalGraphState(NamedTuple):
    """State of a method on a graph that mixes primal points; rows are nodes.

    Parameters
    ----------
    primal : ndarray of float64, shape (M, d)
        The nodes' points W. One row until the number of nodes is known.
    round : int
        Number of successful rounds, r.
    total : ndarray of float64
        What the output averages; see :class:`PointAverage`.
    averaged : int
        Number of points in `total`.
    """

    primal: Matrix
    round: int
    total: Vector
    averaged: int


@dataclass(repr=False, eq=False, kw_only=True)
class DFedDA(RateOptions, WorkOptions, CompositeStrategy):
    """Decentralised federated dual averaging, algorithm 1 without tracking.

    On a graph it is biased already for one local step, the more the nodes' gradients differ; :class:`DFedDAGT` is not.

    Parameters
    ----------
    mixing : Topology, array of shape (M, M), or str, default "complete"
        The gossip matrix U, or the name of a topology (``"chain"``, ``"ring"``, ``"star"``, ``"exponential"``,
        ``"complete"``) for as many nodes as there are before round 1. Row m belongs to the m-th node in the order of
        partition ids.
    weighting : {"uniform"}
        Gossip with a symmetric matrix agrees on the plain mean.

    References
    ----------
    Liang, Peng, Zhang: Gradient tracking for high dimensional federated optimization, algorithm 1.

    Examples
    --------
    >>> from flwr_fco.mirror_maps import PNorm
    >>> from flwr_fco.topology import chain
    >>> DFedDA(mixing=chain(16), mirror_map=PNorm(12.0), client_lr=0.1, local_steps=10).topology.num_nodes
    16
    """

    local_solver: ClassVar[str] = "dual_averaging"
    exact_elapsed: ClassVar[bool] = True
    needs_mean: ClassVar[str] = "gossip mixes with a doubly stochastic matrix, which keeps nothing but the mean"
    limit: ClassVar[Limit] = Biased("near the solution")
    source: ClassVar[str] = "[2], on a graph"
    #: Whether the relay keeps trackers.
    tracking: ClassVar[bool] = False

    mixing: Mixing = "complete"
    weighting: Literal["examples", "uniform"] = "uniform"

    def __post_init__(self) -> None:
        uniform_weighting(type(self).__name__, self.weighting)
        self.graph = Graph(self.mixing)
        super().__post_init__()

    def forget(self) -> None:
        """Return to the state before the first round."""
        super().forget()
        self.graph.forget()
        self._start_bytes: tuple[int, int] | None = None

    @property
    def topology(self) -> Any:
        """The graph; None while only its name is known."""
        return self.graph.topology

    @property
    def starts_from_gradients(self) -> bool:
        """Whether a round 0 asks every node for one gradient, from which the trackers start."""
        return False

    def client_rate(self, smoothness: float, steps: int) -> tuple[float, str]:
        """Return 1/(tau L K), with tracking 1/(tau^2 L K); tau is the graph's mixing time, at least 1."""
        time, power = self.graph.mixing_time(len(self.nodes.ordered)), 2 if self.tracking else 1
        formula = f"1/(tau{'^2' if self.tracking else ''} L K), tau = {time:.4g}"
        return 1.0 / (time**power * smoothness * steps), formula

    def solver_options(self) -> dict[str, Option]:
        """Return what local dual averaging wants to know."""
        return {"client-prox": True, "trajectory": False}

    def settings(self) -> list[tuple[str, str]]:
        """Return the line about the graph."""
        return [("Graph", str(self.graph))]

    # --- the mathematics --------------------------------------------------------------------------------------

    def init_state(self, primal: Vector) -> GraphState:
        """Return the state before round 1: every dual = grad h(primal), trackers 0."""
        state = GraphState(
            dual=self.h.gradient(primal)[None, :],
            elapsed=np.zeros(1),
            trackers=np.zeros((1 if self.tracking else 0, primal.size)),
            round=0,
            total=self.averaging.start(primal.size),
            averaged=0,
            started=0,
        )
        return self._expanded(state, self.graph.num_rows)

    def _expanded(self, state: GraphState, num_nodes: int) -> GraphState:
        """Return a state with a row for each node."""
        if state.dual.shape[0] == num_nodes:
            return state
        trackers = np.zeros((num_nodes if self.tracking else 0, state.dual.shape[1]))
        dual, elapsed = np.repeat(state.dual[:1], num_nodes, axis=0), np.repeat(state.elapsed[:1], num_nodes)
        return state._replace(dual=dual, elapsed=elapsed, trackers=trackers)

    def vectors(self, state: Any) -> dict[str, Vector]:
        """Return the first node's vectors; what a node is sent is up to :meth:`downlink`."""
        return self._vectors_of(state, 0)

    def _vectors_of(self, state: GraphState, row: int) -> dict[str, Vector]:
        vectors = {"dual": state.dual[row]}
        if self.tracking and self.current.number > 0 and (state.round > 0 or state.trackers[row].any()):
            vectors["tracker"] = state.trackers[row]
        return vectors

    def downlink(self, state: Any, node: Node) -> Downlink:
        """Return a node's own mixture, and its tracker."""
        row = self.graph.rows[node.key]
        numbers = {"gradient": 1.0} if self.current.number == 0 else {}
        return Downlink(
            self.plan, self._vectors_of(state, row), self.client_lr_now(), float(state.elapsed[row]), numbers
        )

    def aggregate(self, state: GraphState, uplinks: Sequence[Uplink]) -> GraphState:
        """Return Z = U (Z + server_lr increments), C = C + moves - U moves."""
        server_lr = self.rates()[1]
        rows, mixing = self.graph.places(uplinks)
        state = self._expanded(state, mixing.shape[0])
        increments, moves, elapsed = self.graph.increments(
            uplinks, rows, normalize=self.normalize_local_work, moves=self.tracking
        )
        # In place: these two matrices are our own.
        if server_lr != 1.0:
            increments *= server_lr
        increments += state.dual
        following = state._replace(
            dual=mixing @ increments,
            elapsed=mixing @ (state.elapsed + server_lr * elapsed),
            round=state.round + 1,
        )
        if self.tracking:
            moves -= mixing @ moves
            moves += state.trackers
            following = following._replace(trackers=moves)
        return self.averaging.add(following, lambda: self.retrieve(following))

    def retrieve(self, state: GraphState) -> Vector:
        """Return the primal point of the mean dual of the nodes that are there."""
        dual, elapsed = self.graph.here(state.dual).mean(axis=0), float(self.graph.here(state.elapsed).mean())
        return self.plan.point(dual, elapsed)

    def node_primals(self) -> Matrix:
        """Return the primal points of all nodes, shape (M, d), in the order of their rows."""
        state = self.state
        return np.array([self.plan.point(z, float(t)) for z, t in zip(state.dual, state.elapsed, strict=True)])

    # --- the life of a run ------------------------------------------------------------------------------------

    def nodes_needed(self) -> int:
        """Return how many nodes must be connected: before round 1, one for each row."""
        return self.graph.nodes_needed(super().nodes_needed())

    def before_round(
        self, grid: Grid, server_round: int, config: ConfigRecord, nodes: Sequence[Node]
    ) -> Sequence[Node]:
        """Give nodes their rows and hand on the trackers of those that have left; start the trackers: C = U G - G."""
        left = self.graph.notice(self.nodes.ordered)
        self.state = self._expanded(self.state, self.graph.num_rows)
        if left and self.tracking:
            self.state = self.state._replace(trackers=self.graph.handed_on(self.state.trackers, left))
        members = self.graph.members(nodes)
        if self.state.round == 0 and self.starts_from_gradients and not self.state.started:
            uplinks, *volume = self.ask_everybody(grid, config)
            self._start_bytes = (volume[0], volume[1])
            self.state = self.state._replace(started=1)
            if uplinks:
                rows, mixing = self.graph.places(uplinks)
                gradients = self.graph.increments([u._replace(elapsed=1.0) for u in uplinks], rows, normalize=False)
                trackers = mixing @ gradients.increments - gradients.increments
                self.state = self.state._replace(trackers=trackers)
        return members

    def round_metrics(self) -> dict[str, float | int]:
        """Return the nodes' disagreement and, with tracking, the root mean square norm of their trackers."""
        metrics: dict[str, float | int] = {"consensus-error": consensus_error(self.graph.here(self.state.dual))}
        if self.tracking and self.state.trackers.shape[0]:
            metrics["tracker-norm"] = root_mean_square_norm(self.graph.here(self.state.trackers))
        if self._start_bytes is not None and self.state.round == 1:
            metrics["bytes-down-round-0"], metrics["bytes-up-round-0"] = self._start_bytes
        return metrics

    def saved_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the nodes' places in the graph."""
        return self.graph.to_arrays()

    def restore_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take back what :meth:`saved_arrays` gave."""
        self.graph.from_arrays(arrays)


@dataclass(repr=False, eq=False, kw_only=True)
class DFedDAGT(DFedDA):
    """Decentralised federated dual averaging with gradient tracking, algorithm 1: exact on any connected graph.

    Parameters
    ----------
    tracker_start : {"gradient", "zero"}, default "gradient"
        ``"gradient"``: a round 0 asks every node for one gradient at the start point (one minibatch), as printed.
        ``"zero"``: trackers begin at 0, without that round.

    References
    ----------
    Liang, Peng, Zhang: Gradient tracking for high dimensional federated optimization, algorithm 1.

    Examples
    --------
    >>> DFedDAGT(mixing="ring", tracker_start="zero").local_solver
    'tracked_dual_averaging'
    """

    local_solver: ClassVar[str] = "tracked_dual_averaging"
    limit: ClassVar[Limit] = Exact("the solution, on any connected graph")
    tracking: ClassVar[bool] = True
    traffic: ClassVar[str] = "2 / 1"

    tracker_start: Literal["gradient", "zero"] = "gradient"

    @property
    def starts_from_gradients(self) -> bool:
        """Whether a round 0 asks every node for one gradient, from which the trackers start."""
        return self.tracker_start == "gradient"

    def solver_options(self) -> dict[str, Option]:
        """Return nothing: all that tracked dual averaging needs is in the message."""
        return {}

    def settings(self) -> list[tuple[str, str]]:
        """Return the lines about the graph and the trackers."""
        return [*super().settings(), ("Trackers", f"start at {self.tracker_start}")]


@dataclass(repr=False, eq=False, kw_only=True)
class DScaffold(DFedDA):
    """SCAFFOLD on a graph: :class:`DFedDAGT` with trackers that start at 0, in the Euclidean geometry by default.

    psi and other mirror maps are extensions: SCAFFOLD has none.

    References
    ----------
    Karimireddy and others: SCAFFOLD (ICML 2020), with gossip in the place of the server's mean.

    Examples
    --------
    >>> DScaffold(mixing="ring").local_solver
    'tracked_dual_averaging'
    """

    local_solver: ClassVar[str] = "tracked_dual_averaging"
    limit: ClassVar[Limit] = Exact("the solution, on any connected graph")
    tracking: ClassVar[bool] = True
    traffic: ClassVar[str] = "2 / 1"

    def solver_options(self) -> dict[str, Option]:
        """Return nothing: all that tracked dual averaging needs is in the message."""
        return {}


@dataclass(repr=False, eq=False, kw_only=True)
class DReFedDAGT(DFedDA):
    """ReFedDA-GT on a graph: :class:`DFedDAGT` around a reference point, within a ball of the map's norm.

    The trackers start at 0. The mirror map must be ``PNorm`` or ``Euclidean``.

    Parameters
    ----------
    radius_squared : float, optional
        Q: the primal points stay within sqrt(Q) of the start point, the reference; by default anywhere.

    References
    ----------
    Liang, Peng, Zhang: Gradient tracking for high dimensional federated optimization, algorithm 2 with U for 11'/M.

    Examples
    --------
    >>> from flwr_fco.mirror_maps import PNorm
    >>> DReFedDAGT(mixing="ring", mirror_map=PNorm(12.0), radius_squared=25_000.0).radius_squared
    25000.0
    """

    local_solver: ClassVar[str] = "tracked_dual_averaging"
    limit: ClassVar[Limit] = Exact("the solution, on any connected graph")
    tracking: ClassVar[bool] = True
    traffic: ClassVar[str] = "2 / 1"

    radius_squared: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        restricted_map(self.mirror_map, np.zeros(1), self.radius_squared)

    def solver_options(self) -> dict[str, Option]:
        """Return nothing: all that tracked dual averaging needs is in the message."""
        return {}

    def geometry(self, primal: Vector) -> MirrorMap:
        """Return the mirror map around the start point, within the ball."""
        return restricted_map(self.mirror_map, primal, self.radius_squared)


@dataclass(repr=False, eq=False, kw_only=True)
class DFedMid(RateOptions, WorkOptions, CompositeStrategy):
    """Federated mirror descent on a graph: local proximal steps, mixing of primal points, a proximal step.

    Parameters
    ----------
    mixing : Topology, array of shape (M, M), or str, default "complete"
        The gossip matrix U, or the name of a topology; see :class:`DFedDA`.
    weighting : {"uniform"}
        Gossip with a symmetric matrix agrees on the plain mean.
    client_prox, server_prox : bool, default True
        Where psi acts; with both, as printed, psi counts twice.

    References
    ----------
    Liang, Peng, Zhang: Gradient tracking for high dimensional federated optimization, section 7; Yuan, Zaheer, Reddi:
    Federated Composite Optimization (ICML 2021), algorithm 2.

    Examples
    --------
    >>> str(DFedMid(mixing="ring").limit)
    'doubled strength'
    """

    local_solver: ClassVar[str] = "mirror_descent"
    exact_elapsed: ClassVar[bool] = True
    needs_mean: ClassVar[str] = "gossip mixes with a doubly stochastic matrix, which keeps nothing but the mean"
    limit: ClassVar[Limit] = DoubledStrength("near the solution for twice the strength, as printed")
    source: ClassVar[str] = "[2], on a graph"
    sends: ClassVar[str] = "w_K - w_0"

    mixing: Mixing = "complete"
    weighting: Literal["examples", "uniform"] = "uniform"
    client_prox: bool = True
    server_prox: bool = True

    def __post_init__(self) -> None:
        uniform_weighting(type(self).__name__, self.weighting)
        self.graph = Graph(self.mixing)
        super().__post_init__()

    def forget(self) -> None:
        """Return to the state before the first round."""
        super().forget()
        self.graph.forget()

    @property
    def topology(self) -> Any:
        """The graph; None while only its name is known."""
        return self.graph.topology

    def client_rate(self, smoothness: float, steps: int) -> tuple[float, str]:
        """Return 1/(tau L K), as :class:`DFedDA` has; tau is the graph's mixing time, at least 1."""
        time = self.graph.mixing_time(len(self.nodes.ordered))
        return 1.0 / (time * smoothness * steps), f"1/(tau L K), tau = {time:.4g}"

    def solver_options(self) -> dict[str, Option]:
        """Return whether psi acts in the local steps."""
        return {"client-prox": self.client_prox}

    def settings(self) -> list[tuple[str, str]]:
        """Return the lines about the graph and where psi acts."""
        prox = f"client ({self.client_prox}) | server ({self.server_prox})"
        return [("Graph", str(self.graph)), ("Proximal steps", prox)]

    def init_state(self, primal: Vector) -> PrimalGraphState:
        """Return the state before round 1: everybody at the start point."""
        self.h.gradient(primal)  # raises where the map has no gradient, before anybody is asked to start there
        state = PrimalGraphState(primal[None, :], 0, self.averaging.start(primal.size), 0)
        return self._expanded(state, self.graph.num_rows)

    def _expanded(self, state: PrimalGraphState, num_nodes: int) -> PrimalGraphState:
        """Return a state with a row for each node."""
        if state.primal.shape[0] == num_nodes:
            return state
        return state._replace(primal=np.repeat(state.primal[:1], num_nodes, axis=0))

    def vectors(self, state: Any) -> dict[str, Vector]:
        """Return the first node's point; what a node is sent is up to :meth:`downlink`."""
        return {"primal": state.primal[0]}

    def downlink(self, state: Any, node: Node) -> Downlink:
        """Return a node's own point."""
        return Downlink(self.plan, {"primal": state.primal[self.graph.rows[node.key]]}, self.client_lr_now())

    def aggregate(self, state: PrimalGraphState, uplinks: Sequence[Uplink]) -> PrimalGraphState:
        """Return W = retrieve(U (grad h(W) + server_lr increments), server_lr elapsed), row by row."""
        server_lr = self.rates()[1]
        rows, mixing = self.graph.places(uplinks)
        state = self._expanded(state, mixing.shape[0])
        increments, _, elapsed = self.graph.increments(uplinks, rows, normalize=self.normalize_local_work)
        duals = mixing @ (np.array([self.h.gradient(point) for point in state.primal]) + server_lr * increments)
        weights = server_lr * (mixing @ elapsed)
        primal = state.primal.copy()
        for row in rows:
            if self.server_prox:
                self.h.retrieve(duals[row], float(weights[row]), self.psi, primal[row])
            else:
                self.h.conjugate_gradient(duals[row], primal[row])
        following = state._replace(primal=primal, round=state.round + 1)
        return self.averaging.add(following, lambda: self.retrieve(following))

    def retrieve(self, state: PrimalGraphState) -> Vector:
        """Return the mean of the points of the nodes that are there, taken in the dual."""
        duals = np.array([self.h.gradient(point) for point in self.graph.here(state.primal)])
        return self.h.conjugate_gradient(duals.mean(axis=0))

    def node_primals(self) -> Matrix:
        """Return the primal points of all nodes, shape (M, d), in the order of their rows."""
        return np.array(self.state.primal)

    def nodes_needed(self) -> int:
        """Return how many nodes must be connected: before round 1, one for each row."""
        return self.graph.nodes_needed(super().nodes_needed())

    def before_round(
        self, grid: Grid, server_round: int, config: ConfigRecord, nodes: Sequence[Node]
    ) -> Sequence[Node]:
        """Give nodes their rows."""
        self.graph.notice(self.nodes.ordered)
        self.state = self._expanded(self.state, self.graph.num_rows)
        return self.graph.members(nodes)

    def round_metrics(self) -> dict[str, float | int]:
        """Return the nodes' disagreement."""
        return {"consensus-error": consensus_error(self.graph.here(self.state.primal))}

    def saved_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the nodes' places in the graph."""
        return self.graph.to_arrays()

    def restore_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take back what :meth:`saved_arrays` gave."""
        self.graph.from_arrays(arrays)

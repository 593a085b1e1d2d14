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

The trackers sum to 0 after every round. A node that misses a round keeps its state, and its neighbours keep the weight
that they give it: the effective U is symmetric and doubly stochastic again. A node that leaves for good hands its
tracker to its neighbours, so that the remaining nodes converge to their own optimum.

The relay. Flower has no channel between clients: the server holds every node's dual and tracker, mixes them, and sends
each node only its own mixture (and its own tracker, for GT). So clients have no state to lose; the server sees every
increment, which on a real graph only neighbours would see.

psi is an extension: of the paper's methods only DFedMid has one. It composes through `retrieve` as in FedDualAvg.

The user sees the primal point of the nodes' mean dual (`strategy.node_primals()` returns all primal points, also for
callbacks).

Differs from the paper in: 1. the relay, see above; 2. nodes with more steps do not weigh more
(``normalize_local_work``); 3. psi, see above; 4. DFedMid's second proximal map acts after mixing in the dual, which
agrees with the paper in the Euclidean geometry.

Errata: DFedMid as printed applies psi in the local steps and again after mixing, so it solves the problem with twice
the strength, as FedMid does; ``server_prox=False`` counts psi once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from flwr_fco.core.layout import Vector
from flwr_fco.mirror_maps import MirrorMap
from flwr_fco.server.algorithm import Problem
from flwr_fco.server.clients.graph import Graph, Matrix
from flwr_fco.server.convergence import Biased, DoubledStrength, Exact, Limit
from flwr_fco.server.options import GraphOptions, RateOptions, TrackerOptions, WorkOptions
from flwr_fco.server.replies.replies import Replies
from flwr_fco.server.strategy import CompositeStrategy
from flwr_fco.strategies.gradient_tracking.re_fed_da_gt import restricted_map
from flwr_fco.topology import consensus_error, root_mean_square_norm
from flwr_fco.wire.protocol import Downlink, Node, Option

_State = TypeVar("_State")


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
    started : int
        1 after the round 0 in which the trackers start.
    """

    dual: Matrix
    elapsed: Vector
    trackers: Matrix
    round: int = 0
    started: int = 0


class PrimalGraphState(NamedTuple):
    """State of a method on a graph that mixes primal points; rows are nodes.

    Parameters
    ----------
    primal : ndarray of float64, shape (M, d)
        The nodes' points W. One row until the number of nodes is known.
    round : int
        Number of successful rounds, r.
    """

    primal: Matrix
    round: int = 0


@dataclass(repr=False, eq=False, kw_only=True)
class GraphStrategy(GraphOptions, RateOptions, WorkOptions, CompositeStrategy):
    """A strategy without a central model; the first field of its state has a row for each node."""

    personal: ClassVar[bool] = True
    exact_elapsed: ClassVar[bool] = True
    needs_mean: ClassVar[str] = "gossip mixes with a doubly stochastic matrix, which keeps nothing but the mean"
    source: ClassVar[str] = "[2], on a graph"
    #: Whether the relay keeps trackers.
    tracking: ClassVar[bool] = False

    @property
    def topology(self) -> Any:
        """The graph; None while only its name is known."""
        return None if self.graph is None else self.graph.topology

    def client_rate(self, problem: Problem, smoothness: float, steps: int) -> tuple[float, str]:
        """Return 1/(tau L K), or 1/(tau^2 L K) with tracking; tau is the graph's mixing time, at least 1."""
        time, power = _graph(problem).mixing_time(len(problem.asked)), 2 if self.tracking else 1
        formula = f"1/(tau{'^2' if self.tracking else ''} L K), tau = {time:.4g}"
        return 1.0 / (time**power * smoothness * steps), formula

    def metrics(self, problem: Problem, state: Any) -> dict[str, float | int]:
        """Return the nodes' disagreement."""
        return {"consensus-error": consensus_error(_graph(problem).here(state[0]))}


def _graph(problem: Problem) -> Graph:
    """Return the graph, which these methods always have."""
    assert problem.graph is not None
    return problem.graph


def with_rows(state: _State, num_nodes: int, *names: str) -> _State:
    """Return a state whose named fields have a row for each node: copies of the first row where rows are missing."""
    if getattr(state, names[0]).shape[0] == num_nodes:
        return state
    rows = {name: np.repeat(getattr(state, name)[:1], num_nodes, axis=0) for name in names}
    return state._replace(**rows)  # type: ignore[attr-defined,no-any-return]


@dataclass(repr=False, eq=False, kw_only=True)
class DFedDA(GraphStrategy):
    """Decentralised federated dual averaging, algorithm 1 without tracking.

    On a graph it is biased even with one local step, the more the nodes' gradients differ; :class:`DFedDAGT` is not.

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
    limit: ClassVar[Limit] = Biased("near the solution")

    def init(self, problem: Problem, primal: Vector) -> GraphState:
        """Return the state before round 1: every dual = grad h(primal), trackers 0."""
        trackers = np.zeros((1 if self.tracking else 0, primal.size))
        state = GraphState(problem.h.gradient(primal)[None, :], np.zeros(1), trackers)
        return self._expanded(state, _graph(problem).num_rows)

    def _expanded(self, state: GraphState, num_nodes: int) -> GraphState:
        """Return a state with a row for each node."""
        if state.dual.shape[0] == num_nodes:
            return state
        trackers = np.zeros((num_nodes if self.tracking else 0, state.dual.shape[1]))
        return with_rows(state._replace(trackers=trackers), num_nodes, "dual", "elapsed")

    def downlink(self, problem: Problem, state: GraphState, node: Node | None) -> Downlink:
        """Return a node's own mixture, and its tracker."""
        row = 0 if node is None else _graph(problem).rows[node.key]
        vectors = {"dual": state.dual[row]}
        if self.tracking and problem.round > 0 and (state.round > 0 or state.trackers[row].any()):
            vectors["tracker"] = state.trackers[row]
        numbers = {"gradient": 1.0} if problem.round == 0 else {}
        return Downlink(problem.plan, vectors, problem.client_lr, float(state.elapsed[row]), numbers)

    def aggregate(self, problem: Problem, state: GraphState, replies: Replies) -> GraphState:
        """Return Z = U (Z + server_lr increments), C = C + moves - U moves."""
        graph, server_lr = _graph(problem), problem.server_lr
        rows, mixing = graph.places(replies)
        state = self._expanded(state, mixing.shape[0])
        increments, moves, elapsed = graph.increments(
            replies, rows, normalize=self.normalize_local_work, moves=self.tracking
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
        return following

    def retrieve(self, problem: Problem, state: GraphState) -> Vector:
        """Return the primal point of the mean dual of the connected nodes."""
        graph = _graph(problem)
        return problem.retrieve(graph.here(state.dual).mean(axis=0), float(graph.here(state.elapsed).mean()))

    def node_points(self, problem: Problem, state: GraphState) -> Matrix:
        """Return the primal points of all nodes, shape (M, d), in the order of their rows."""
        return np.array([problem.retrieve(z, float(t)) for z, t in zip(state.dual, state.elapsed, strict=True)])

    def nodes_changed(self, problem: Problem, state: GraphState, left: Sequence[int]) -> GraphState:
        """Return the state with a row for each node; nodes that have left hand on their trackers."""
        graph = _graph(problem)
        state = self._expanded(state, graph.num_rows)
        return state._replace(trackers=graph.handed_on(state.trackers, left)) if left and self.tracking else state

    def start_trackers(self, problem: Problem, state: GraphState, replies: Replies) -> GraphState:
        """Return the state after round 0: C = U G - G."""
        state = state._replace(started=1)
        if not replies:
            return state
        rows, mixing = _graph(problem).places(replies)
        answers = [uplink._replace(elapsed=1.0) for uplink in replies]
        gradients = _graph(problem).increments(answers, rows, normalize=False).increments
        return state._replace(trackers=mixing @ gradients - gradients)

    def solver_options(self) -> dict[str, Option]:
        """Return the options of local dual averaging; tracked dual averaging finds everything in the message."""
        return {} if self.tracking else {"client-prox": True, "trajectory": False}

    def metrics(self, problem: Problem, state: GraphState) -> dict[str, float | int]:
        """Return the nodes' disagreement and, with tracking, the root mean square norm of their trackers."""
        metrics = super().metrics(problem, state)
        if self.tracking and state.trackers.shape[0]:
            metrics["tracker-norm"] = root_mean_square_norm(_graph(problem).here(state.trackers))
        return metrics


@dataclass(repr=False, eq=False, kw_only=True)
class DFedDAGT(TrackerOptions, DFedDA):
    """Decentralised federated dual averaging with gradient tracking, algorithm 1: exact on any connected graph.

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

    def describe(self) -> list[tuple[str, str]]:
        """Return the line about the trackers."""
        return [("Trackers", f"start at {self.tracker_start}")]


@dataclass(repr=False, eq=False, kw_only=True)
class DScaffold(DFedDA):
    """SCAFFOLD on a graph: :class:`DFedDAGT` with trackers that start at 0, in the Euclidean geometry by default.

    psi and other mirror maps are extensions: SCAFFOLD has none.

    References
    ----------
    Karimireddy and others: SCAFFOLD (ICML 2020), with gossip instead of the server's mean.

    Examples
    --------
    >>> DScaffold(mixing="ring").local_solver
    'tracked_dual_averaging'
    """

    local_solver: ClassVar[str] = "tracked_dual_averaging"
    limit: ClassVar[Limit] = Exact("the solution, on any connected graph")
    tracking: ClassVar[bool] = True
    traffic: ClassVar[str] = "2 / 1"


@dataclass(repr=False, eq=False, kw_only=True)
class DReFedDAGT(DFedDA):
    """ReFedDA-GT on a graph: :class:`DFedDAGT` around a reference point, within a ball of the map's norm.

    The trackers start at 0. The mirror map must be ``PNorm`` or ``Euclidean``.

    Parameters
    ----------
    radius_squared : float, optional
        Q: the primal points stay within sqrt(Q) of the start point, the reference; no limit by default.

    References
    ----------
    Liang, Peng, Zhang: Gradient tracking for high dimensional federated optimization, algorithm 2 with general U.

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

    def geometry(self, mirror_map: MirrorMap, primal: Vector) -> MirrorMap:
        """Return the mirror map around the start point, within the ball."""
        return restricted_map(mirror_map, primal, self.radius_squared)


@dataclass(repr=False, eq=False, kw_only=True)
class DFedMid(GraphStrategy):
    """Federated mirror descent on a graph: local proximal steps, mixing of primal points, and a proximal step.

    Parameters
    ----------
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
    limit: ClassVar[Limit] = DoubledStrength("near the solution for twice the strength, as printed")
    sends: ClassVar[str] = "w_K - w_0"

    client_prox: bool = True
    server_prox: bool = True

    def init(self, problem: Problem, primal: Vector) -> PrimalGraphState:
        """Return the state before round 1: every node at the start point."""
        problem.h.gradient(primal)  # raises where the map has no gradient, before any node starts there
        return with_rows(PrimalGraphState(primal[None, :]), _graph(problem).num_rows, "primal")

    def downlink(self, problem: Problem, state: PrimalGraphState, node: Node | None) -> Downlink:
        """Return a node's own point."""
        row = 0 if node is None else _graph(problem).rows[node.key]
        return Downlink(problem.plan, {"primal": state.primal[row]}, problem.client_lr)

    def aggregate(self, problem: Problem, state: PrimalGraphState, replies: Replies) -> PrimalGraphState:
        """Return W = retrieve(U (grad h(W) + server_lr increments), server_lr elapsed), row by row."""
        graph, h, server_lr = _graph(problem), problem.h, problem.server_lr
        rows, mixing = graph.places(replies)
        state = with_rows(state, mixing.shape[0], "primal")
        increments, _, elapsed = graph.increments(replies, rows, normalize=self.normalize_local_work)
        duals = mixing @ (np.array([h.gradient(point) for point in state.primal]) + server_lr * increments)
        weights = server_lr * (mixing @ elapsed)
        primal = state.primal.copy()
        for row in rows:
            if self.server_prox:
                primal[row] = problem.retrieve(duals[row], float(weights[row]))
            else:
                primal[row] = h.conjugate_gradient(duals[row])
        return PrimalGraphState(primal, state.round + 1)

    def retrieve(self, problem: Problem, state: PrimalGraphState) -> Vector:
        """Return the mean of the connected nodes' points, taken in the dual."""
        duals = np.array([problem.h.gradient(point) for point in _graph(problem).here(state.primal)])
        return problem.h.conjugate_gradient(duals.mean(axis=0))

    def node_points(self, problem: Problem, state: PrimalGraphState) -> Matrix:
        """Return the primal points of all nodes, shape (M, d), in the order of their rows."""
        return np.array(state.primal)

    def nodes_changed(self, problem: Problem, state: PrimalGraphState, left: Sequence[int]) -> PrimalGraphState:
        """Return the state with a row for each node."""
        return with_rows(state, _graph(problem).num_rows, "primal")

    def solver_options(self) -> dict[str, Option]:
        """Return whether psi acts in the local steps."""
        return {"client-prox": self.client_prox}

    def describe(self) -> list[tuple[str, str]]:
        """Return the line about where psi acts."""
        return [("Proximal steps", f"client ({self.client_prox}) | server ({self.server_prox})")]

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

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from logging import INFO, WARNING
from typing import Any, ClassVar, Literal, NamedTuple, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flwr_fco.errors import ConfigurationError
from flwr_fco.mirror_maps import MirrorMap
from flwr_fco.parameters import Vector
from flwr_fco.protocol import Downlink, Node, Option, Uplink
from flwr_fco.strategies.base import CompositeOptions, ConfigRecord, Grid, log
from flwr_fco.strategies.outputs import PointOutputs
from flwr_fco.strategies.re_fed_da_gt import restricted_map
from flwr_fco.topology import (
    TOPOLOGIES,
    Topology,
    consensus_error,
    effective_mixing,
    from_matrix,
    root_mean_square_norm,
)

__all__ = ["DFedDA", "DFedDAGT", "DFedMid", "DReFedDAGT", "DScaffold", "GraphState", "GraphStrategy"]

Matrix = NDArray[np.float64]
Key = tuple[int, int]


class GraphState(NamedTuple):
    """State of a method on a graph; rows are nodes.

    Parameters
    ----------
    points : ndarray of float64, shape (M, d)
        The nodes' duals Z, or for DFedMid their primal points W. One row until the number of nodes is known.
    elapsed : ndarray of float64, shape (M,)
        The nodes' weights of psi.
    trackers : ndarray of float64, shape (M, d) or (0, d)
        C.
    round : int
        Number of successful rounds, r.
    total : ndarray of float64
        What the output averages; see :class:`PointOutputs`.
    averaged : int
        Number of points in `total`.
    """

    points: Matrix
    elapsed: Vector
    trackers: Matrix
    round: int
    total: Vector
    averaged: int


class GraphStrategy(PointOutputs):
    """What all methods on a graph share: rows, neighbours, missing nodes, the relay.

    Parameters
    ----------
    mixing : Topology, array of shape (M, M), or str, default "complete"
        The gossip matrix U, or the name of a topology (``"chain"``, ``"ring"``, ``"star"``, ``"exponential"``,
        ``"complete"``) for as many nodes as there are before round 1. Row m belongs to the m-th node in the order of
        partition ids. Methods that have a centralised form take None for it: one row, the server's weighted mean.
    weighting : {"uniform"}
        Gossip with a symmetric matrix agrees on the plain mean.
    output : {"last", "average", "moving-average"}, default "last"
        See :class:`PointOutputs`, also for `window` and `sparsity`.
    **options
        See :class:`CompositeStrategy`.
    """

    #: Whether the relay keeps trackers.
    tracking: ClassVar[bool] = False

    def __init__(
        self,
        *,
        mixing: Topology | ArrayLike | str | None = "complete",
        window: int = 100,
        sparsity: int | None = None,
        **options: Unpack[CompositeOptions],
    ) -> None:
        self.central = mixing is None
        if not self.central:
            options.setdefault("weighting", "uniform")
        super().__init__(window=window, sparsity=sparsity, **options)
        if self.weighting != "uniform" and not self.central:
            raise ConfigurationError(
                f"weighting={self.weighting!r}: gossip with a symmetric matrix agrees on the plain mean of the nodes; "
                'leave weighting="uniform", or let a centralised strategy weigh by examples'
            )
        if isinstance(mixing, str):
            if mixing not in TOPOLOGIES:
                raise ConfigurationError(
                    f"mixing={mixing!r}; expected one of {', '.join(map(repr, TOPOLOGIES))}, a Topology of "
                    "flwr_fco.topology, or a gossip matrix"
                )
            self.mixing: Topology | str = mixing
        elif mixing is None:
            self.mixing = "complete"
        else:
            self.mixing = mixing if isinstance(mixing, Topology) else from_matrix(mixing)

    def _forget(self) -> None:
        super()._forget()
        self._topology: Topology | None = None
        self._rows: dict[Key, int] = {}
        self._gone: set[int] = set()
        self._effective: tuple[tuple[int, ...], Matrix] | None = None
        self._start_bytes: tuple[int, int] | None = None

    # --- rows -------------------------------------------------------------------------------------------------

    @property
    def topology(self) -> Topology | None:
        """The graph; None while only its name is known."""
        return self._topology if isinstance(self.mixing, str) else self.mixing

    def node_primals(self) -> Matrix:
        """Return the primal points of all nodes, shape (M, d), in the order of their rows."""
        return np.array([self.node_primal(self.state, m) for m in range(self.state.points.shape[0])])

    @abstractmethod
    def node_primal(self, state: GraphState, row: int) -> Vector:
        """Return the primal point of one node."""

    def missing_rows(self, uplinks: Sequence[Uplink]) -> tuple[list[int], tuple[int, ...]]:
        """Return the rows of the uplinks, and the rows without one."""
        present = [i if u.node is None else self._rows.get(u.node.key, i) for i, u in enumerate(uplinks)]
        missing = sorted(set(range(self._num_nodes(uplinks))) - set(present))
        return present, tuple(missing)

    def _num_nodes(self, uplinks: Sequence[Uplink]) -> int:
        if self.topology is None:
            self._topology = TOPOLOGIES[str(self.mixing)](len(uplinks))
        assert self.topology is not None
        return self.topology.num_nodes

    def effective(self, missing: tuple[int, ...]) -> Matrix:
        """Return the gossip matrix of a round without these nodes."""
        assert self.topology is not None
        if self._effective is None or self._effective[0] != missing:
            self._effective = (missing, effective_mixing(self.topology.mixing, missing))
        return self._effective[1]

    def expanded(self, state: GraphState, num_nodes: int) -> GraphState:
        """Return a state with a row for each node."""
        if state.points.shape[0] == num_nodes:
            return state
        trackers = np.zeros((num_nodes if self.tracking else 0, state.points.shape[1]))
        points, elapsed = np.repeat(state.points[:1], num_nodes, axis=0), np.repeat(state.elapsed[:1], num_nodes)
        return state._replace(points=points, elapsed=elapsed, trackers=trackers)

    def increments(self, uplinks: Sequence[Uplink], rows: Sequence[int]) -> tuple[Matrix, Matrix, Vector]:
        """Return increments with equal work, moves (increment / elapsed) and elapsed times, with rows of zeros."""
        num_nodes = self._num_nodes(uplinks)
        increments = np.zeros((num_nodes, uplinks[0].vectors["increment"].size))
        elapsed, own = np.zeros(num_nodes), np.ones((num_nodes, 1))
        first = uplinks[0].elapsed
        equal = all(uplink.elapsed == first for uplink in uplinks)
        mean = first if equal else float(np.mean([uplink.elapsed for uplink in uplinks]))
        for uplink, row in zip(uplinks, rows, strict=True):
            increments[row] = uplink.vectors["increment"]
            elapsed[row] = own[row] = uplink.elapsed
        moves = increments / own if self.tracking else np.zeros_like(increments)
        if self.normalize_local_work and not equal:
            increments *= mean / own
            elapsed[rows] = mean
        return increments, moves, elapsed

    # --- the life of a run ------------------------------------------------------------------------------------

    def nodes_needed(self) -> int:
        """Return how many nodes must be connected: before round 1, one for each row."""
        if isinstance(self.mixing, Topology) and not self._rows:
            return max(int(self.min_available_nodes), self.mixing.num_nodes)
        return super().nodes_needed()

    def before_round(
        self, grid: Grid, server_round: int, config: ConfigRecord, nodes: Sequence[Node]
    ) -> Sequence[Node]:
        """Give nodes their rows; hand on what nodes hold that have left."""
        if not self._rows:
            if isinstance(self.mixing, Topology) and self.mixing.num_nodes != len(self._ordered):
                raise ConfigurationError(
                    f"mixing has {self.mixing.num_nodes} nodes, but {len(self._ordered)} are connected; start as many "
                    "SuperNodes as the graph has nodes, or name a topology (mixing='ring')"
                )
            if self.topology is None:
                self._topology = TOPOLOGIES[str(self.mixing)](len(self._ordered))
                log(INFO, "The graph: %s", self.topology)
            self._rows = {node.key: row for row, node in enumerate(self._ordered)}
            self.state = self.expanded(self.state, len(self._rows))
        present = {self._rows[node.key] for node in self._ordered if node.key in self._rows}
        for row in sorted(set(self._rows.values()) - present - self._gone):
            self._leave(row)
        self._gone = set(self._rows.values()) - present
        known = [node for node in nodes if node.key in self._rows]
        if len(known) < len(nodes):
            log(WARNING, "%s nodes have no place in the graph and are not asked", len(nodes) - len(known))
        return known

    def _leave(self, row: int) -> None:
        """Hand the tracker of a node that has left to its neighbours that are still there."""
        assert self.topology is not None
        self._gone.add(row)
        log(WARNING, "node %s of the graph has left", row)
        if not self.tracking:
            return
        heirs = [j for j in self.topology.neighbours(row) if j not in self._gone]
        heirs = heirs or [j for j in range(self.topology.num_nodes) if j not in self._gone]
        trackers = self.state.trackers.copy()
        trackers[heirs] += trackers[row] / max(1, len(heirs))
        trackers[row] = 0.0
        self.state = self.state._replace(trackers=trackers)

    def staying(self, num_nodes: int) -> list[int]:
        """Return the rows of the nodes that have not left."""
        return [row for row in range(num_nodes) if row not in self._gone]

    def rows_here(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the rows of the nodes that have not left; without a copy if nobody has."""
        return rows[self.staying(rows.shape[0])] if self._gone else rows

    def round_metrics(self) -> dict[str, float | int]:
        """Return the nodes' disagreement and, with tracking, the root mean square norm of their trackers."""
        if self.central:
            return {}
        metrics: dict[str, float | int] = {"consensus-error": consensus_error(self.rows_here(self.state.points))}
        if self.tracking and self.state.trackers.shape[0]:
            metrics["tracker-norm"] = root_mean_square_norm(self.rows_here(self.state.trackers))
        if self._start_bytes is not None and self.state.round == 1:
            metrics["bytes-down-round-0"], metrics["bytes-up-round-0"] = self._start_bytes
        return metrics

    def saved_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the nodes' keys in the order of their rows, and who has left."""
        keys = sorted(self._rows, key=lambda key: self._rows[key])
        return {"rows": np.array(keys, dtype=np.int64).reshape(-1, 2), "gone": np.array(sorted(self._gone), np.int64)}

    def restore_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take back what :meth:`saved_arrays` gave."""
        self._rows = {(key[0], key[1]): row for row, key in enumerate(arrays["rows"].tolist())}
        self._gone = {int(row) for row in arrays["gone"]}
        if isinstance(self.mixing, str) and self._rows:
            self._topology = TOPOLOGIES[self.mixing](len(self._rows))

    def settings(self) -> list[tuple[str, str]]:
        """Return the line about the graph."""
        if self.central:
            return []
        return [("Graph", str(self.topology or f"{self.mixing}, of the nodes that are there before round 1"))]


class DFedDA(GraphStrategy):
    """Decentralised federated dual averaging, algorithm 1 without tracking.

    Biased on a graph, already for one local step, as far as the nodes' gradients differ: :class:`DFedDAGT` is not.

    Parameters
    ----------
    mixing : Topology, array of shape (M, M), or str, default "complete"
        See :class:`GraphStrategy`, also for `window` and `sparsity`.
    **options
        See :class:`CompositeStrategy`.

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
    limit: ClassVar[str] = "biased"

    def solver_options(self) -> dict[str, Option]:
        """Return what local dual averaging wants to know."""
        return {"client-prox": True, "trajectory": False}

    def init_state(self, primal: Vector) -> GraphState:
        """Return the state before round 1: every dual = grad h(primal), trackers 0."""
        state = GraphState(
            self.h.gradient(primal)[None, :],
            np.zeros(1),
            np.zeros((1 if self.tracking else 0, primal.size)),
            0,
            self.empty_sum(primal.size),
            0,
        )
        return self.expanded(state, self.mixing.num_nodes) if isinstance(self.mixing, Topology) else state

    def vectors(self, state: Any) -> dict[str, Vector]:
        """Return the first node's vectors; what a node is sent is up to :meth:`downlink`."""
        return self._vectors_of(state, 0)

    def _vectors_of(self, state: GraphState, row: int) -> dict[str, Vector]:
        vectors = {"dual": state.points[row]}
        if self.tracking and self._round.number > 0 and (state.round > 0 or state.trackers[row].any()):
            vectors["tracker"] = state.trackers[row]
        return vectors

    def downlink(self, state: Any, node: Node) -> Downlink:
        """Return a node's own mixture, and its tracker."""
        row = self._rows[node.key]
        numbers = {"gradient": 1.0} if self._round.number == 0 else {}
        return Downlink(self.plan, self._vectors_of(state, row), self.rates()[0], float(state.elapsed[row]), numbers)

    def aggregate(self, state: GraphState, uplinks: Sequence[Uplink]) -> GraphState:
        """Return Z = U (Z + server_lr increments), C = C + moves - U moves."""
        server_lr = self.rates()[1]
        rows, missing = self.missing_rows(uplinks)
        mixing = self.effective(missing)
        state = self.expanded(state, mixing.shape[0])
        increments, moves, elapsed = self.increments(uplinks, rows)
        # In place, as far as the matrices are our own.
        increments *= server_lr
        increments += state.points
        following = state._replace(
            points=mixing @ increments,
            elapsed=mixing @ (state.elapsed + server_lr * elapsed),
            round=state.round + 1,
        )
        if self.tracking:
            moves -= mixing @ moves
            moves += state.trackers
            following = following._replace(trackers=moves)
        if self.output == "last":
            return following
        total, averaged = self.summed(following, self.retrieve(following))
        return following._replace(total=total, averaged=averaged)

    def retrieve(self, state: GraphState) -> Vector:
        """Return the primal point of the mean dual of the nodes that are there."""
        dual, elapsed = self.rows_here(state.points).mean(axis=0), float(self.rows_here(state.elapsed).mean())
        return self.plan.point(dual, elapsed)

    def node_primal(self, state: GraphState, row: int) -> Vector:
        """Return retrieve(dual, elapsed) of one node."""
        return self.plan.point(state.points[row], float(state.elapsed[row]))


class DFedDAGT(DFedDA):
    """Decentralised federated dual averaging with gradient tracking, algorithm 1: exact on any connected graph.

    Parameters
    ----------
    mixing : Topology, array of shape (M, M), or str, default "complete"
        See :class:`GraphStrategy`, also for `window` and `sparsity`.
    tracker_start : {"gradient", "zero"}, default "gradient"
        ``"gradient"``: a round 0 asks every node for one gradient at the start point (one minibatch), as printed.
        ``"zero"``: trackers begin at 0, without that round.
    **options
        See :class:`CompositeStrategy`.

    References
    ----------
    Liang, Peng, Zhang: Gradient tracking for high dimensional federated optimization, algorithm 1.

    Examples
    --------
    >>> DFedDAGT(mixing="ring", tracker_start="zero").local_solver
    'tracked_dual_averaging'
    """

    local_solver: ClassVar[str] = "tracked_dual_averaging"
    limit: ClassVar[str] = "exact"
    tracking: ClassVar[bool] = True

    def __init__(
        self,
        *,
        mixing: Topology | ArrayLike | str = "complete",
        tracker_start: Literal["gradient", "zero"] = "gradient",
        window: int = 100,
        sparsity: int | None = None,
        **options: Unpack[CompositeOptions],
    ) -> None:
        super().__init__(mixing=mixing, window=window, sparsity=sparsity, **options)
        if tracker_start not in ("gradient", "zero"):
            raise ConfigurationError(f"tracker_start={tracker_start!r}; expected 'gradient' or 'zero'")
        self.tracker_start = tracker_start

    def solver_options(self) -> dict[str, Option]:
        """Return nothing: all that tracked dual averaging needs is in the message."""
        return {}

    def settings(self) -> list[tuple[str, str]]:
        """Return the lines about the graph and the trackers."""
        return [*super().settings(), ("Trackers", f"start at {self.tracker_start}")]

    def before_round(
        self, grid: Grid, server_round: int, config: ConfigRecord, nodes: Sequence[Node]
    ) -> Sequence[Node]:
        """Run round 0 before round 1 if the trackers start from gradients: C = U G - G."""
        nodes = super().before_round(grid, server_round, config, nodes)
        if self.state.round == 0 and self.tracker_start == "gradient" and self._start_bytes is None:
            uplinks, *volume = self._ask_everybody(grid, config)
            self._start_bytes = (volume[0], volume[1])
            if uplinks:
                rows, missing = self.missing_rows(uplinks)
                gradients, _, _ = self.increments([u._replace(elapsed=1.0) for u in uplinks], rows)
                self.state = self.state._replace(trackers=self.effective(missing) @ gradients - gradients)
        return nodes


class DScaffold(DFedDAGT):
    """SCAFFOLD on a graph: :class:`DFedDAGT` with trackers that start at 0, in the Euclidean geometry by default.

    Parameters
    ----------
    mixing : Topology, array of shape (M, M), or str, default "complete"
        See :class:`GraphStrategy`, also for `window` and `sparsity`.
    **options
        See :class:`CompositeStrategy`. psi and other mirror maps are extensions: SCAFFOLD has none.

    References
    ----------
    Karimireddy and others: SCAFFOLD (ICML 2020), with gossip in the place of the server's mean.

    Examples
    --------
    >>> DScaffold(mixing="ring").tracker_start
    'zero'
    """

    def __init__(
        self,
        *,
        mixing: Topology | ArrayLike | str = "complete",
        window: int = 100,
        sparsity: int | None = None,
        **options: Unpack[CompositeOptions],
    ) -> None:
        super().__init__(mixing=mixing, tracker_start="zero", window=window, sparsity=sparsity, **options)


class DReFedDAGT(DFedDAGT):
    """ReFedDA-GT on a graph: :class:`DFedDAGT` around a reference point, within a ball of the map's norm.

    Parameters
    ----------
    mixing : Topology, array of shape (M, M), or str, default "complete"
        See :class:`GraphStrategy`, also for `window` and `sparsity`.
    radius_squared : float, optional
        Q: the primal points stay within sqrt(Q) of the start point, the reference; by default anywhere.
    **options
        See :class:`CompositeStrategy`. The mirror map must be ``PNorm`` or ``Euclidean``.

    References
    ----------
    Liang, Peng, Zhang: Gradient tracking for high dimensional federated optimization, algorithm 2 with U for 11'/M.

    Examples
    --------
    >>> from flwr_fco.mirror_maps import PNorm
    >>> DReFedDAGT(mixing="ring", mirror_map=PNorm(12.0), radius_squared=25_000.0).radius_squared
    25000.0
    """

    def __init__(
        self,
        *,
        mixing: Topology | ArrayLike | str = "complete",
        radius_squared: float | None = None,
        window: int = 100,
        sparsity: int | None = None,
        **options: Unpack[CompositeOptions],
    ) -> None:
        super().__init__(mixing=mixing, tracker_start="zero", window=window, sparsity=sparsity, **options)
        restricted_map(self.mirror_map, np.zeros(1), radius_squared)
        self.radius_squared = radius_squared

    def geometry(self, primal: Vector) -> MirrorMap:
        """Return the mirror map around the start point, within the ball."""
        return restricted_map(self.mirror_map, primal, self.radius_squared)


class DFedMid(GraphStrategy):
    """Federated mirror descent on a graph: local proximal steps, mixing of primal points, a proximal step.

    Parameters
    ----------
    mixing : Topology, array of shape (M, M), or str, default "complete"
        See :class:`GraphStrategy`, also for `window` and `sparsity`.
    client_prox, server_prox : bool, default True
        Where psi acts; with both, as printed, psi counts twice.
    **options
        See :class:`CompositeStrategy`.

    References
    ----------
    Liang, Peng, Zhang: Gradient tracking for high dimensional federated optimization, section 7; Yuan, Zaheer, Reddi:
    Federated Composite Optimization (ICML 2021), algorithm 2.

    Examples
    --------
    >>> DFedMid(mixing="ring").limit
    'doubled strength'
    """

    local_solver: ClassVar[str] = "mirror_descent"
    limit: ClassVar[str] = "doubled strength"

    def __init__(
        self,
        *,
        mixing: Topology | ArrayLike | str = "complete",
        client_prox: bool = True,
        server_prox: bool = True,
        window: int = 100,
        sparsity: int | None = None,
        **options: Unpack[CompositeOptions],
    ) -> None:
        super().__init__(mixing=mixing, window=window, sparsity=sparsity, **options)
        self.client_prox, self.server_prox = client_prox, server_prox

    def solver_options(self) -> dict[str, Option]:
        """Return whether psi acts in the local steps."""
        return {"client-prox": self.client_prox}

    def settings(self) -> list[tuple[str, str]]:
        """Return the lines about the graph and where psi acts."""
        return [*super().settings(), ("Proximal steps", f"client ({self.client_prox}) | server ({self.server_prox})")]

    def init_state(self, primal: Vector) -> GraphState:
        """Return the state before round 1: everybody at the start point."""
        self.h.gradient(primal)  # raises where the map has no gradient, before anybody is asked to start there
        nothing = np.zeros((0, primal.size))
        state = GraphState(primal[None, :], np.zeros(1), nothing, 0, self.empty_sum(primal.size), 0)
        return self.expanded(state, self.mixing.num_nodes) if isinstance(self.mixing, Topology) else state

    def vectors(self, state: Any) -> dict[str, Vector]:
        """Return the first node's point; what a node is sent is up to :meth:`downlink`."""
        return {"primal": state.points[0]}

    def downlink(self, state: Any, node: Node) -> Downlink:
        """Return a node's own point."""
        return Downlink(self.plan, {"primal": state.points[self._rows[node.key]]}, self.rates()[0])

    def aggregate(self, state: GraphState, uplinks: Sequence[Uplink]) -> GraphState:
        """Return W = retrieve(U (grad h(W) + server_lr increments), server_lr elapsed), row by row."""
        server_lr = self.rates()[1]
        rows, missing = self.missing_rows(uplinks)
        mixing = self.effective(missing)
        state = self.expanded(state, mixing.shape[0])
        increments, _, elapsed = self.increments(uplinks, rows)
        duals = mixing @ (np.array([self.h.gradient(point) for point in state.points]) + server_lr * increments)
        weights = server_lr * (mixing @ elapsed)
        points = state.points.copy()
        for row in rows:
            if self.server_prox:
                self.h.retrieve(duals[row], float(weights[row]), self.psi, points[row])
            else:
                self.h.conjugate_gradient(duals[row], points[row])
        following = state._replace(points=points, round=state.round + 1)
        if self.output == "last":
            return following
        total, averaged = self.summed(following, self.retrieve(following))
        return following._replace(total=total, averaged=averaged)

    def retrieve(self, state: GraphState) -> Vector:
        """Return the mean of the points of the nodes that are there, taken in the dual."""
        here = self.staying(state.points.shape[0])
        duals = np.array([self.h.gradient(state.points[row]) for row in here])
        return self.h.conjugate_gradient(duals.mean(axis=0))

    def node_primal(self, state: GraphState, row: int) -> Vector:
        """Return the point of one node."""
        return np.asarray(state.points[row].copy())

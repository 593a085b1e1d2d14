"""Federated dual averaging with gradient tracking, centralised.

Algorithm 1 (FedDA, FedDA-GT) of Liang, Peng, Zhang, 'Gradient tracking for high dimensional federated optimization',
for U = 11'/M, and its equation (4) for partial participation; their symbols in brackets. `own` is a client's control
variate (its mean gradient when it last took part), `control` the weighted mean of `own` over all clients::

    server: dual [z_0] = grad h(primal [w_0]), elapsed = 0
    round 0 (tracker_start="gradient"): each client sends one gradient g at w_0: own [c_0^m] = g, control [c_0] = mean g
    each round, each client of the sample:
        tracker [c_r^m of algorithm 1; c_r - c_r^m of equation (4)] = control - own
        start at dual; for k = 0, 1, ..., one minibatch each, with gradient g at
            primal = retrieve(dual, elapsed + client_lr * k)
            dual <- dual - client_lr (g + tracker)
        send the increment [z_K - z_0] and its own elapsed [eta_c K]; with move [Delta] = increment / elapsed:
        own <- own - control - move                                                      (the mean of its g)
    server: control <- control + sum over the sample of p_m (-control - move_m)          (the mean of all clients' own)
            dual    <- dual + server_lr mean(increment);  elapsed <- elapsed + server_lr mean(elapsed)
            primal   = retrieve(dual, elapsed)

The weighted sum of all clients' trackers is 0 after every round, for any sample. Local steps follow the global
gradient, so the method converges to the optimum with any number of local steps.

Traffic. If all clients took part in the last round, control = (z_{r-1} - z_r) / (server_lr mean(elapsed)): a client
that remembers the last broadcast derives it from the next one, and the traffic is FedAvg's. Otherwise `control` is sent
down as one more vector. Nothing more is ever sent up.

psi is an extension that the paper does not have. It composes through `retrieve` as in FedDualAvg; without psi
(``Zero()``) this is the paper's algorithm.

Sparse features. In columns that are missing from a client's rows, its gradients and its `own` are 0, and its dual moves
by -elapsed control, as on every client. So it sends increment + elapsed control, which is 0 there, as a sparse vector
and stores `own` as one, and the server applies the rest: mean(increment) = mean(sent) - mean(elapsed) control.

Differs from the paper in: 1. client m has weight p_m, not 1/M (``weighting="uniform"`` is the paper's); 2. clients with
more steps do not weigh more (``normalize_local_work``); 3. psi, see above.

Errata: equation (4) as printed divides by |S_r| instead of M, so `control` is not the mean of the clients' own variates
when some are absent, and the method stalls. Here `control` is that mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from flwr_fco.core.layout import Vector
from flwr_fco.core.sparse import SparseVector, dense
from flwr_fco.errors import ConfigurationError
from flwr_fco.server.algorithm import Problem
from flwr_fco.server.clients.memory import Change
from flwr_fco.server.convergence import Biased, Exact, Limit
from flwr_fco.server.options import MemoryOptions, RateOptions, TrackerOptions, WorkOptions
from flwr_fco.server.replies.replies import Replies
from flwr_fco.server.strategy import CompositeStrategy
from flwr_fco.strategies.dual_averaging.fed_dual_avg import FedDualAvg
from flwr_fco.wire.protocol import Downlink, Node, Option


@dataclass(repr=False, eq=False, kw_only=True)
class FedDA(FedDualAvg):
    """Federated dual averaging as run by Liang, Peng and Zhang: :class:`FedDualAvg` under their name.

    Without tracking, unequal clients and several local steps leave a bias of order client_lr times the local work;
    :class:`FedDAGT` removes it. The paper uses the mirror map ``PNorm(p)`` and ``"uniform"`` weights; psi is
    FedDualAvg's.

    References
    ----------
    Liang, Peng, Zhang: Gradient tracking for high dimensional federated optimization, algorithm 1 without tracking and
    with U = 11'/M.

    Examples
    --------
    >>> from flwr_fco.mirror_maps import PNorm
    >>> FedDA(mirror_map=PNorm(12.0), client_lr=0.1, local_steps=10, batch_size=10).local_solver
    'dual_averaging'
    """

    limit: ClassVar[Limit] = Biased("as `FedDualAvg`, which it is")
    source: ClassVar[str] = "[2], algorithm 1 without tracking"


class TrackingState(NamedTuple):
    """State of gradient tracking.

    Parameters
    ----------
    dual : ndarray of float64, shape (d,)
        z_r.
    elapsed : float
        Weight of psi: server_lr times the mean of the clients' elapsed times, summed over the rounds.
    round : int
        Number of successful rounds, r.
    control : ndarray of float64, shape (d,)
        c_r, the weighted mean of all clients' own control variates.
    population : float
        Sum of the weights of all clients.
    advance : float
        Increase of `elapsed` in the last round.
    derivable : int
        1 if clients can derive `control` from the last two broadcasts.
    started : int
        1 after the round 0 in which the trackers start.
    """

    dual: Vector
    elapsed: float
    round: int
    control: Vector
    population: float = 0.0
    advance: float = 0.0
    derivable: int = 0
    started: int = 0


@dataclass(repr=False, eq=False, kw_only=True)
class FedDAGT(TrackerOptions, MemoryOptions, RateOptions, WorkOptions, CompositeStrategy):
    """Federated dual averaging with gradient tracking: no bias from unequal clients, at FedAvg's traffic.

    Parameters
    ----------
    sparse_wire : {"auto", False}, default "auto"
        As in :class:`FedDualAvg`: whether a client with sparse features sends, and stores, only the coordinates that
        occur in its rows.

    References
    ----------
    Liang, Peng, Zhang: Gradient tracking for high dimensional federated optimization, algorithm 1 with U = 11'/M, and
    equation (4) with its erratum for partial participation.

    Examples
    --------
    >>> from flwr_fco.mirror_maps import PNorm
    >>> strategy = FedDAGT(mirror_map=PNorm(12.0), client_lr=0.1, local_steps=10, batch_size=10)
    >>> str(strategy.limit)
    'exact'
    """

    local_solver: ClassVar[str] = "gradient_tracking"
    limit: ClassVar[Limit] = Exact()
    personal: ClassVar[bool] = True
    source: ClassVar[str] = "[2], algorithm 1"
    remembers: ClassVar[str] = "a tracker"
    exact_elapsed: ClassVar[bool] = True
    needs_mean: ClassVar[str] = "the weighted sum of all trackers is 0 only if every answer counts with its weight"
    traffic: ClassVar[str] = "1 / 1; with a sample 2 / 1"

    sparse_wire: Literal["auto", False] = "auto"

    @property
    def remembers_dual(self) -> bool:
        """Whether clients keep the last broadcast, to derive `control` from the next one."""
        return bool(self.fraction_train == 1.0 and self.choose_nodes is None)

    @property
    def variate_source(self) -> str:
        """Source of a client's own control variate: the mean of its gradients, or one full gradient."""
        return "average"

    def init(self, problem: Problem, primal: Vector) -> TrackingState:
        """Return the state before round 1: dual = grad h(primal), control = 0."""
        return TrackingState(problem.h.gradient(primal), 0.0, 0, np.zeros(primal.size))

    def downlink(self, problem: Problem, state: TrackingState, node: Node | None) -> Downlink:
        """Return the smallest message from which a node knows the dual and the control; without a node, the whole."""
        known = (state.derivable and self.remembers_dual) or not state.control.any()
        vectors, numbers = {"dual": state.dual}, {}
        if problem.round == 0:
            numbers = {"gradient": 1.0}
        if node is None or not known:
            vectors["control"] = state.control
        if node is not None and problem.round > 0:
            if node.node_id in problem.restoring:
                vectors = {"dual": state.dual, "control": state.control}
            elif self.remembers_dual and not known and node.node_id in problem.answered_start:
                # The dual has not moved since round 0, and this node keeps it: round 1 needs the control only.
                vectors = {"control": state.control}
            elif known and state.derivable:
                numbers = {"advance": state.advance}
        return Downlink(problem.plan, vectors, problem.client_lr, state.elapsed, numbers)

    def aggregate(self, problem: Problem, state: TrackingState, replies: Replies) -> TrackingState:
        """Return dual + server_lr mean(increment), control + sum p_m (-control - move_m)."""
        mean, elapsed = replies.mean()
        population = replies.population
        advance, dual = problem.server_lr * elapsed, state.dual + problem.server_lr * mean
        derivable = self._derivable(state, replies, population)
        if derivable:
            # Computed as the clients will derive it, so that the ledger matches their memories to the bit.
            control = (state.dual - dual) / advance
        else:
            control = state.control * (state.population or population)
            replies.changes(control)
            control /= population
        return state._replace(
            dual=dual,
            elapsed=state.elapsed + advance,
            round=state.round + 1,
            control=control,
            population=population,
            advance=advance,
            derivable=int(derivable),
        )

    def _derivable(self, state: TrackingState, replies: Replies, population: float) -> bool:
        """Whether the new control is the mean of the moves, so that clients can derive it from the duals."""
        if self.variate_source != "average" or not replies.everybody:
            return False
        return replies.comparable and (population == state.population or not state.control.any())

    def retrieve(self, problem: Problem, state: TrackingState) -> Vector:
        """Return retrieve(dual, elapsed), the primal point."""
        return problem.retrieve(state.dual, state.elapsed)

    # --- the clients' memories ------------------------------------------------------------------------------------

    def start_trackers(self, problem: Problem, state: TrackingState, replies: Replies) -> TrackingState:
        """Return the state after round 0: `control` is the mean of the clients' gradients."""
        population = replies.population
        control = replies.sum(over=population)
        return state._replace(control=control, population=population, started=1)

    def memories_changed(self, problem: Problem, state: TrackingState, change: Change) -> TrackingState:
        """Return the state with `control` as the mean over the current clients."""
        population = change.population
        control = state.control * (state.population / population) if change.means is None else change.means["own"]
        return state._replace(control=control, population=population, derivable=0)

    def uplink_shapes(self, problem: Problem) -> dict[str, tuple[int, ...]]:
        """Return the shape of the increment and, if it is not a function of the increment, of the variate's change."""
        shapes = super().uplink_shapes(problem)
        if self.variate_source == "gradient" and problem.round > 0:
            shapes["variate-increment"] = shapes["increment"]
        return shapes

    def solver_options(self) -> dict[str, Option]:
        """Return the variates' source, whether clients keep the last broadcast, and whether they omit the control."""
        options: dict[str, Option] = {"variate": self.variate_source, "remember": self.remembers_dual}
        if self.sparse_wire is not False:
            options["control-apart"] = True
        return options

    def client_rate(self, problem: Problem, smoothness: float, steps: int) -> tuple[float, str]:
        """Return 1/(L K): the graph's 1/(tau^2 L K) for a mean over all clients, where tau = 1."""
        return 1.0 / (smoothness * steps), "1/(L K)"

    def describe(self) -> list[tuple[str, str]]:
        """Return the line about the trackers."""
        return [("Trackers", f"start at {self.tracker_start}")]

    def trackers(self) -> dict[tuple[int, int], Vector]:
        """Return control - own for every current client, by :attr:`Node.key` (needs the ledger).

        Their sum, weighted by the clients' weights, is 0.
        """
        memories = self.problem.clients
        if not memories.ledger:
            raise ConfigurationError('only the clients know their trackers; client_state="ledger" keeps a copy')
        return {key: self.state.control - dense(memories.memory(key)["own"]) for key in sorted(memories.present)}

    def metrics(self, problem: Problem, state: TrackingState) -> dict[str, float | int]:
        """Return the trackers' root mean square norm over the round's clients."""
        memories = problem.clients
        if not (memories.ledger and problem.asked):
            return {}
        squares: list[float] = []
        total = None
        for node in problem.asked:
            own: Any = memories.memory(node.key)["own"]
            if isinstance(own, SparseVector):
                total = float(state.control @ state.control) if total is None else total
                control = state.control[own.indices]
                tracker = control - own.values
                squares.append(max(0.0, total - float(control @ control)) + float(tracker @ tracker))
                continue
            tracker = state.control - own
            squares.append(float(tracker @ tracker))
        return {"tracker-norm": float(np.sqrt(np.mean(squares)))}

"""Federated dual averaging with gradient tracking, centralised.

Algorithm 1 (FedDA, FedDA-GT) of Liang, Peng, Zhang, 'Gradient tracking for high dimensional federated optimization',
for U = 11'/M, and its equation (4) for partial participation; their symbols in brackets. `own` is a client's control
variate (what its gradients were like when it last took part), `control` the weighted mean of `own` over all clients::

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

The weighted sum of all clients' trackers is 0 after any round, whoever took part. Local steps go along the global
gradient, so the method converges to the optimum with any number of local steps.

Traffic. If everybody took part in the last round, control = (z_{r-1} - z_r) / (server_lr mean(elapsed)): a client that
remembers the last broadcast derives it from the next one, and the method sends what FedAvg sends. Otherwise `control`
travels as one more vector down. Nothing more ever goes up.

psi is an extension: the method has none. It composes through `retrieve` as in FedDualAvg; without psi (``Zero()``)
this is the paper's algorithm.

Differs from the paper in: 1. client m weighs p_m, not 1/M (``weighting="uniform"`` is the paper's); 2. clients with
more steps do not weigh more (``normalize_local_work``); 3. psi, see above.

Errata: equation (4) as printed divides by |S_r| where M belongs, so that `control` is not the mean of the clients' own
variates when some are absent, and the method stalls; here it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from logging import INFO, WARNING
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flwr_fco.core.layout import Vector
from flwr_fco.errors import ConfigurationError
from flwr_fco.server.algorithm import ConfigRecord, Grid, log
from flwr_fco.server.clients.memory import Change, ClientMemories
from flwr_fco.server.convergence import Biased, Exact, Limit
from flwr_fco.server.options import MemoryOptions, RateOptions, WorkOptions
from flwr_fco.server.replies.checks import mean_increment
from flwr_fco.server.strategy import CompositeStrategy
from flwr_fco.strategies.dual_averaging.fed_dual_avg import FedDualAvg
from flwr_fco.wire.protocol import ClientState, Downlink, Node, Option, Uplink

__all__ = ["FedDA", "FedDAGT", "TrackingState"]


@dataclass(repr=False, eq=False, kw_only=True)
class FedDA(FedDualAvg):
    """Federated dual averaging as Liang, Peng and Zhang run it: :class:`FedDualAvg` with their mirror map in mind.

    Without tracking, unequal clients and several local steps leave a bias of the order of client_lr times the local
    work; :class:`FedDAGT` removes it. The paper's mirror map is ``PNorm(p)``, its weights are ``"uniform"``; psi is
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
    total : ndarray of float64
        What the output averages; see :class:`PointAverage`.
    averaged : int
        Number of points in `total`.
    control : ndarray of float64, shape (d,)
        c_r, the weighted mean of all clients' own control variates.
    population : float
        Sum of the weights of all clients.
    advance : float
        What the last round added to `elapsed`.
    derivable : int
        1 if clients can derive `control` from the last two broadcasts.
    started : int
        1 after the round 0 in which the trackers start.
    """

    dual: Vector
    elapsed: float
    round: int
    total: Vector
    averaged: int
    control: Vector
    population: float
    advance: float
    derivable: int
    started: int


@dataclass(repr=False, eq=False, kw_only=True)
class FedDAGT(MemoryOptions, RateOptions, WorkOptions, CompositeStrategy):
    """Federated dual averaging with gradient tracking: no bias from unequal clients, at FedAvg's traffic.

    Parameters
    ----------
    tracker_start : {"gradient", "zero"}, default "gradient"
        ``"gradient"``: a round 0 asks everybody for one gradient at the start point (one minibatch), as printed.
        ``"zero"``: trackers begin at 0, without that round.

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
    source: ClassVar[str] = "[2], algorithm 1"
    remembers: ClassVar[str] = "a tracker"
    exact_elapsed: ClassVar[bool] = True
    needs_mean: ClassVar[str] = "the weighted sum of all trackers is 0 only if every answer counts with its weight"
    traffic: ClassVar[str] = "1 / 1; with a sample 2 / 1"

    tracker_start: Literal["gradient", "zero"] = "gradient"

    def __post_init__(self) -> None:
        self.memories: ClientMemories = ClientMemories(
            ("own",),
            self.remembered,
            client_state=self.client_state,
            ledger_bytes=self.ledger_bytes,
            weighting=self.weighting,
            client_weights=self.client_weights,
        )
        super().__post_init__()

    def forget(self) -> None:
        """Return to the state before the first round."""
        super().forget()
        self.memories.forget(0)
        self._start_bytes: tuple[int, int] | None = None
        self._start_duals: set[int] = set()

    @property
    def remembers_dual(self) -> bool:
        """Whether clients keep the last broadcast, to derive `control` from the next one."""
        return bool(self.fraction_train == 1.0 and self.choose_nodes is None)

    @property
    def variate_source(self) -> str:
        """Where a client's own control variate comes from: the mean of its gradients, or one full gradient."""
        return "average"

    def client_rate(self, smoothness: float, steps: int) -> tuple[float, str]:
        """Return 1/(L K): the graph's constant 1/(tau^2 L K) for a mean over all, where tau is 1."""
        return 1.0 / (smoothness * steps), "1/(L K)"

    def solver_options(self) -> dict[str, Option]:
        """Return where the variates come from, and whether clients keep the last broadcast."""
        return {"variate": self.variate_source, "remember": self.remembers_dual}

    def settings(self) -> list[tuple[str, str]]:
        """Return the lines about the trackers."""
        return [("Trackers", f"start at {self.tracker_start}"), ("Client state", str(self.memories))]

    # --- the mathematics --------------------------------------------------------------------------------------

    def init_state(self, primal: Vector) -> TrackingState:
        """Return the state before round 1: dual = grad h(primal), control = 0."""
        self.memories.forget(primal.size)
        return TrackingState(
            dual=self.h.gradient(primal),
            elapsed=0.0,
            round=0,
            total=self.averaging.start(primal.size),
            averaged=0,
            control=np.zeros(primal.size),
            population=0.0,
            advance=0.0,
            derivable=0,
            started=0,
        )

    def vectors(self, state: Any) -> dict[str, Vector]:
        """Return the dual, and `control` unless it is zero or can be derived."""
        if (state.derivable and self.remembers_dual) or not state.control.any():
            return {"dual": state.dual}
        return {"dual": state.dual, "control": state.control}

    def downlink(self, state: Any, node: Node) -> Downlink:
        """Return what a node is told: as little as it needs to know dual and control."""
        shared = super().downlink(state, node)
        restoring = node.node_id in self.current.restoring
        stamp = self.memories.stamp(node, restore=restoring)
        if self.current.number == 0:
            return shared._replace(numbers={"gradient": 1.0}, stamp=stamp)
        if restoring:
            return shared._replace(vectors={"dual": state.dual, "control": state.control}, stamp=stamp)
        if node.node_id in self._start_duals and "control" in shared.vectors:
            # The dual has not moved since round 0, and this node keeps it: round 1 needs the control only.
            return shared._replace(vectors={"control": state.control}, stamp=stamp)
        if "control" not in shared.vectors and state.derivable:
            return shared._replace(numbers={"advance": state.advance}, stamp=stamp)
        return shared._replace(stamp=stamp)

    def uplink_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the increment's shape, and that of the variate's change if it is not a function of the increment."""
        shapes = super().uplink_shapes()
        if self.variate_source == "gradient" and self.current.number > 0:
            shapes["variate-increment"] = shapes["increment"]
        return shapes

    def variate_change(self, state: TrackingState, uplink: Uplink) -> Vector:
        """Return what a client adds to its own control variate: -control - move."""
        if self.variate_source == "gradient":
            return uplink.vectors["variate-increment"]
        return np.asarray(-state.control - uplink.vectors["increment"] / uplink.step_sizes)

    def aggregate(self, state: TrackingState, uplinks: Sequence[Uplink]) -> TrackingState:
        """Return dual + server_lr mean(increment), control + sum p_m (-control - move_m)."""
        server_lr = self.rates()[1]
        mean, elapsed = mean_increment(uplinks, normalize=self.normalize_local_work)
        population = self.memories.population(uplinks)
        summed = state.control * (state.population or population)
        reweighed = self.memories.reweighed(uplinks)
        if reweighed:
            summed += reweighed["own"]
        for uplink in uplinks:
            summed += self.memories.weight_of(uplink) * self.variate_change(state, uplink)
        advance, dual = server_lr * elapsed, state.dual + server_lr * mean
        derivable = not reweighed and self._derivable(state, uplinks, population)
        following = state._replace(
            dual=dual,
            elapsed=state.elapsed + advance,
            round=state.round + 1,
            # As the clients will derive it, to the bit: so the ledger has the bits of what they remember.
            control=(state.dual - dual) / advance if derivable else summed / population,
            population=population,
            advance=advance,
            derivable=int(derivable),
        )
        return self.averaging.add(following, lambda: self.retrieve(following))

    def _derivable(self, state: TrackingState, uplinks: Sequence[Uplink], population: float) -> bool:
        """Whether the new control is the mean of the moves, so that it shows in the duals."""
        if self.variate_source != "average" or not self.memories.everybody(uplinks):
            return False
        if population != state.population and state.control.any():
            return False
        equal_work = all(uplink.elapsed == uplinks[0].elapsed for uplink in uplinks)
        return equal_work or bool(self.normalize_local_work)

    def retrieve(self, state: TrackingState) -> Vector:
        """Return retrieve(dual, elapsed), the primal point."""
        return self.h.retrieve(state.dual, state.elapsed, self.psi)

    # --- the clients' memories ----------------------------------------------------------------------------------

    def remembered(
        self, before: TrackingState, after: TrackingState, memory: ClientState, uplink: Uplink
    ) -> ClientState:
        """Return a client's own control variate after a round that counted."""
        if self.current.number == 0:
            return {"own": uplink.vectors["increment"]}
        if self.variate_source == "gradient":
            return {"own": np.asarray(memory["own"] + uplink.vectors["variate-increment"])}
        # In the client's order of operations, for its bits.
        return {"own": np.asarray(memory["own"] - before.control - uplink.vectors["increment"] / uplink.step_sizes)}

    def state_lost(self, node: Node) -> bool:
        """Whether a node that has lost its state can be sent it again; if not, a new epoch begins after the round."""
        return self.memories.lost(node)

    def after_change(self, change: Change | None) -> None:
        """Make `control` the mean over the clients that are there."""
        if change is None:
            return
        if change.reason is not None:
            log(WARNING, "%s: all clients begin anew (client_state='reset')", change.reason)
        population, state = self.memories.population(), self.state
        control = state.control * (state.population / population) if change.means is None else change.means["own"]
        self.state = state._replace(control=control, population=population, derivable=0)

    def before_round(
        self, grid: Grid, server_round: int, config: ConfigRecord, nodes: Sequence[Node]
    ) -> Sequence[Node]:
        """Run round 0 before round 1 if the trackers start from gradients."""
        self.after_change(self.memories.notice(self.nodes.ordered))
        self._start_duals.clear()
        if self.state.round == 0 and self.tracker_start == "gradient" and not self.state.started:
            uplinks, *volume = self.ask_everybody(grid, config)
            self._start_bytes = (volume[0], volume[1])
            self.after_round(self.state, uplinks)
            population = self.memories.population()
            weights = [self.memories.weight_of(uplink) / population for uplink in uplinks]
            control = sum(
                (w * u.vectors["increment"] for w, u in zip(weights, uplinks, strict=True)),
                np.zeros(self.state.dual.size),
            )
            self.state = self.state._replace(control=control, population=population, started=1)
            if self.remembers_dual:
                self._start_duals = {u.node.node_id for u in uplinks if u.node is not None}
            log(INFO, "Trackers start from the gradients of %s clients", len(uplinks))
        return nodes

    def after_round(self, before: Any, uplinks: Sequence[Uplink]) -> None:
        """Note whose reply has counted."""
        self.after_change(self.memories.note(self.current.number, before, self.state, uplinks))

    def saved_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the clients' memories."""
        return self.memories.to_arrays()

    def restore_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take back what :meth:`saved_arrays` gave."""
        self.memories.from_arrays(arrays)

    def trackers(self) -> dict[tuple[int, int], Vector]:
        """Return control - own for every client that is there, by :attr:`Node.key` (needs the ledger).

        Their sum, weighted by the clients' weights, is 0.
        """
        if not self.memories.ledger:
            raise ConfigurationError('only the clients know their trackers; client_state="ledger" keeps a copy')
        return {key: self.state.control - self.memories.memory(key)["own"] for key in sorted(self.memories.present)}

    def round_metrics(self) -> dict[str, float | int]:
        """Return the traffic of round 0 (once), and the trackers' root mean square norm over the round's clients."""
        metrics: dict[str, float | int] = {}
        if self._start_bytes is not None and self.state.round == 1:
            metrics["bytes-down-round-0"], metrics["bytes-up-round-0"] = self._start_bytes
        if self.memories.ledger and self.current.nodes:
            squares = []
            for node in self.current.nodes.values():
                tracker = self.state.control - self.memories.memory(node.key)["own"]
                squares.append(float(tracker @ tracker))
            metrics["tracker-norm"] = float(np.sqrt(np.mean(squares)))
        return metrics

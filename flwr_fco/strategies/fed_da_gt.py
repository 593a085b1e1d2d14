"""Federated dual averaging with gradient tracking, centralised.

Algorithm 1 (FedDA, FedDA-GT) of Liang, Peng, Zhang, 'Gradient tracking for high dimensional federated optimization',
for U = 11'/M, and its equation (4) for partial participation; their symbols in brackets::

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

from collections.abc import Sequence
from logging import INFO
from typing import Any, ClassVar, Literal, NamedTuple, Unpack

import numpy as np

from flwr_fco.errors import ConfigurationError
from flwr_fco.parameters import Vector
from flwr_fco.protocol import Downlink, Node, Option, Uplink
from flwr_fco.strategies.base import CompositeOptions, ConfigRecord, Grid, log, mean_increment
from flwr_fco.strategies.client_memory import ClientMemory
from flwr_fco.strategies.fed_dual_avg import FedDualAvg

__all__ = ["FedDA", "FedDAGT", "TrackingState"]


class FedDA(FedDualAvg):
    """Federated dual averaging as Liang, Peng and Zhang run it: :class:`FedDualAvg` with their mirror map in mind.

    Without tracking, unequal clients and several local steps leave a bias of the order of client_lr times the local
    work; :class:`FedDAGT` removes it.

    Parameters
    ----------
    output : {"last", "average", "shadow"}, default "last"
        See :class:`FedDualAvg`.
    **options
        See :class:`CompositeStrategy`. The paper's mirror map is ``PNorm(p)``, its weights are ``"uniform"``; psi is
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

    def __init__(self, **options: Unpack[CompositeOptions]) -> None:
        super().__init__(**options)


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
        What the output averages; see :class:`PointOutputs`.
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


class FedDAGT(ClientMemory):
    """Federated dual averaging with gradient tracking: no bias from unequal clients, at FedAvg's traffic.

    Parameters
    ----------
    tracker_start : {"gradient", "zero"}, default "gradient"
        ``"gradient"``: a round 0 asks everybody for one gradient at the start point (one minibatch), as printed.
        ``"zero"``: trackers begin at 0, without that round.
    client_state : {"ledger", "reset"}, optional
        See :class:`ClientMemory`.
    ledger_bytes : int, default 256 MiB
        See :class:`ClientMemory`.
    output : {"last", "average", "moving-average"}, default "last"
        See :class:`PointOutputs`, also for `window` and `sparsity`.
    **options
        See :class:`CompositeStrategy`.

    References
    ----------
    Liang, Peng, Zhang: Gradient tracking for high dimensional federated optimization, algorithm 1 with U = 11'/M, and
    equation (4) with its erratum for partial participation.

    Examples
    --------
    >>> from flwr_fco.mirror_maps import PNorm
    >>> strategy = FedDAGT(mirror_map=PNorm(12.0), client_lr=0.1, local_steps=10, batch_size=10)
    >>> strategy.limit
    'exact'
    """

    local_solver: ClassVar[str] = "gradient_tracking"
    limit: ClassVar[str] = "exact"
    #: Where a client's own control variate comes from: the mean of its gradients, or one full gradient.
    variate: str = "average"

    def __init__(
        self,
        *,
        tracker_start: Literal["gradient", "zero"] = "gradient",
        client_state: Literal["ledger", "reset"] | None = None,
        ledger_bytes: int = 256 * 2**20,
        window: int = 100,
        sparsity: int | None = None,
        **options: Unpack[CompositeOptions],
    ) -> None:
        super().__init__(
            client_state=client_state, ledger_bytes=ledger_bytes, window=window, sparsity=sparsity, **options
        )
        if tracker_start not in ("gradient", "zero"):
            raise ConfigurationError(f"tracker_start={tracker_start!r}; expected 'gradient' or 'zero'")
        self.tracker_start = tracker_start

    def _forget(self) -> None:
        super()._forget()
        self._start_bytes: tuple[int, int] | None = None
        self._start_duals: set[int] = set()

    @property
    def remembers_dual(self) -> bool:
        """Whether clients keep the last broadcast, to derive `control` from the next one."""
        return bool(self.fraction_train == 1.0)

    def solver_options(self) -> dict[str, Option]:
        """Return where the variates come from, and whether clients keep the last broadcast."""
        return {"variate": self.variate, "remember": self.remembers_dual}

    def settings(self) -> list[tuple[str, str]]:
        """Return the lines about the trackers."""
        return [("Trackers", f"start at {self.tracker_start}"), *super().settings()]

    # --- the mathematics --------------------------------------------------------------------------------------

    def init_state(self, primal: Vector) -> TrackingState:
        """Return the state before round 1: dual = grad h(primal), control = 0."""
        zeros = np.zeros(primal.size)
        return TrackingState(self.h.gradient(primal), 0.0, 0, self.empty_sum(primal.size), 0, zeros, 0.0, 0.0, 0)

    def vectors(self, state: Any) -> dict[str, Vector]:
        """Return the dual, and `control` unless it is zero or can be derived."""
        if (state.derivable and self.remembers_dual) or not state.control.any():
            return {"dual": state.dual}
        return {"dual": state.dual, "control": state.control}

    def downlink(self, state: Any, node: Node) -> Downlink:
        """Return what a node is told: as little as it needs to know dual and control."""
        shared = super().downlink(state, node)
        if self._round.number == 0:
            return shared._replace(numbers={"gradient": 1.0}, stamp=self.stamp(node))
        if node.node_id in self._round.restoring:
            return shared._replace(vectors={"dual": state.dual, "control": state.control}, stamp=self.stamp(node))
        if node.node_id in self._start_duals and "control" in shared.vectors:
            # The dual has not moved since round 0, and this node keeps it: round 1 needs the control only.
            return shared._replace(vectors={"control": state.control}, stamp=self.stamp(node))
        if "control" not in shared.vectors and state.derivable:
            return shared._replace(numbers={"advance": state.advance}, stamp=self.stamp(node))
        return shared._replace(stamp=self.stamp(node))

    def uplink_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the increment's shape, and that of the variate's change if it is not a function of the increment."""
        shapes = super().uplink_shapes()
        if self.variate == "gradient" and self._round.number > 0:
            shapes["variate-increment"] = shapes["increment"]
        return shapes

    def variate_change(self, state: TrackingState, uplink: Uplink) -> Vector:
        """Return what a client adds to its own control variate: -control - move."""
        if self.variate == "gradient":
            return uplink.vectors["variate-increment"]
        return np.asarray(-state.control - uplink.vectors["increment"] / uplink.elapsed)

    def aggregate(self, state: TrackingState, uplinks: Sequence[Uplink]) -> TrackingState:
        """Return dual + server_lr mean(increment), control + sum p_m (-control - move_m)."""
        server_lr = self.rates()[1]
        mean, elapsed = mean_increment(uplinks, normalize=self.normalize_local_work)
        population = self.population(uplinks)
        summed = state.control * (state.population or population)
        for uplink in uplinks:
            summed += self.weight_of(uplink) * self.variate_change(state, uplink)
        advance = server_lr * elapsed
        following = state._replace(
            dual=state.dual + server_lr * mean,
            elapsed=state.elapsed + advance,
            round=state.round + 1,
            control=summed / population,
            population=population,
            advance=advance,
            derivable=int(self._derivable(state, uplinks, population)),
        )
        total, averaged = self.summed(following, self.retrieve(following) if self.output != "last" else mean)
        return following._replace(total=total, averaged=averaged)

    def _derivable(self, state: TrackingState, uplinks: Sequence[Uplink], population: float) -> bool:
        """Whether the new control is the mean of the moves, so that it shows in the duals."""
        if self.variate != "average" or not self.everybody(uplinks):
            return False
        if population != state.population and state.control.any():
            return False
        equal_work = all(uplink.elapsed == uplinks[0].elapsed for uplink in uplinks)
        as_first_reported = self.weighting == "uniform" or all(self.weight_of(u) == u.examples for u in uplinks)
        return (equal_work or self.normalize_local_work) and as_first_reported

    def retrieve(self, state: TrackingState) -> Vector:
        """Return retrieve(dual, elapsed), the primal point."""
        return self.h.retrieve(state.dual, state.elapsed, self.psi)

    # --- the clients' memories ----------------------------------------------------------------------------------

    def remembered(self, before: TrackingState, memory: Vector, uplink: Uplink) -> Vector:
        """Return a client's own control variate after a round that counted."""
        if self._round.number == 0:
            return uplink.vectors["increment"]
        return np.asarray(memory + self.variate_change(before, uplink))

    def after_change(self, state: TrackingState, population: float, mean: Vector | None) -> TrackingState:
        """Return the state with `control` the mean over the clients that are there."""
        control = state.control * (state.population / population) if mean is None else mean
        return state._replace(control=control, population=population, derivable=0)

    def before_round(
        self, grid: Grid, server_round: int, config: ConfigRecord, nodes: Sequence[Node]
    ) -> Sequence[Node]:
        """Run round 0 before round 1 if the trackers start from gradients."""
        nodes = super().before_round(grid, server_round, config, nodes)
        self._start_duals.clear()
        if self.state.round == 0 and self.tracker_start == "gradient" and self._start_bytes is None:
            uplinks, *volume = self._ask_everybody(grid, config)
            self._start_bytes = (volume[0], volume[1])
            self.after_round(self.state, uplinks)
            population = self.population()
            weights = [self.weight_of(uplink) / population for uplink in uplinks]
            control = sum(
                (w * u.vectors["increment"] for w, u in zip(weights, uplinks, strict=True)),
                np.zeros(self.state.dual.size),
            )
            self.state = self.state._replace(control=control, population=population)
            if self.remembers_dual:
                self._start_duals = {u.node.node_id for u in uplinks if u.node is not None}
            log(INFO, "Trackers start from the gradients of %s clients", len(uplinks))
        return nodes

    def trackers(self) -> dict[tuple[int, int], Vector]:
        """Return control - own for every client that is there, by :attr:`Node.key` (needs the ledger).

        Their sum, weighted by the clients' weights, is 0.
        """
        if not self.ledger:
            raise ConfigurationError('only the clients know their trackers; client_state="ledger" keeps a copy')
        zeros = np.zeros(self.state.dual.size)
        found = {}
        for key in sorted(self._present):
            member = self._members.get(key)
            own = zeros if member is None or member.memory is None else member.memory
            found[key] = self.state.control - own
        return found

    def round_metrics(self) -> dict[str, float | int]:
        """Return the traffic of round 0 (once), and the trackers' root mean square norm over the round's clients."""
        metrics: dict[str, float | int] = {}
        if self._start_bytes is not None and self.state.round == 1:
            metrics["bytes-down-round-0"], metrics["bytes-up-round-0"] = self._start_bytes
        if self.ledger and self._round.nodes:
            squares = []
            for node in self._round.nodes.values():
                member = self._members.get(node.key)
                own = None if member is None else member.memory
                tracker = self.state.control if own is None else self.state.control - own
                squares.append(float(tracker @ tracker))
            metrics["tracker-norm"] = float(np.sqrt(np.mean(squares)))
        return metrics

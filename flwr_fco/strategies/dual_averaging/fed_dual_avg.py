"""Federated dual averaging: clients move a dual, the server averages duals, one proximal map gives the model.

Algorithm 3 (FedDualAvg) and algorithm 5 (FedDualAvg-OSP) of Yuan, Zaheer, Reddi (ICML 2021), their symbols in
brackets::

    server: dual [z_0] = grad h(primal [w_0]), elapsed [eta-tilde_0] = 0
    each round:
        each client: start at dual; for k = 0, 1, ..., one minibatch each, with gradient g at
            primal = retrieve(dual, elapsed + client_lr * k)                   OSP: conjugate_gradient(dual)
            dual <- dual - client_lr g
            send the increment [z_K - z_0] and its own elapsed [eta_c K]
        server: dual    <- dual + server_lr mean(increment)
                elapsed <- elapsed + server_lr mean(elapsed)
                primal   = retrieve(dual, elapsed)

where retrieve(z, t) = argmin_w -<z, w> + t psi(w) + h(w). The structure that psi promises (zeros, low rank,
feasibility) is exact in the server's model, because the proximal map comes last.

Differs from the paper in: 1. elapsed is the sum of the step sizes that clients report, not eta_s eta_c r K, so unequal
and changing local work keep psi in proportion (with equal K it is the paper's); 2. clients with more steps do not
weigh more (``normalize_local_work``); 3. the default output is the last primal, the theory's average of shadow points
is ``output="shadow"``; 4. ``client="unmodified"`` is an approximation that is not in the paper, and so is the schedule
of psi's weight that goes with it (``threshold_per_round``); 5. with ``density`` psi is not convex, and changes from
round to round; the dual fades where the model is 0, and what stays of it goes further or is lengthened.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from flwr_fco.core.layout import Layout, Vector
from flwr_fco.errors import ConfigurationError
from flwr_fco.mirror_maps import Euclidean
from flwr_fco.regularizers import Regularizer
from flwr_fco.server.algorithm import Problem
from flwr_fco.server.convergence import Biased, Limit, ToZero
from flwr_fco.server.options import MomentumOptions, PrivacyOptions, RateOptions, UnmodifiedOptions, WorkOptions
from flwr_fco.server.replies.replies import Replies
from flwr_fco.server.rounds.hooks import RoundHooks
from flwr_fco.server.rounds.sparse_training import SparseTraining
from flwr_fco.server.strategy import CompositeStrategy
from flwr_fco.strategies.dual_averaging.density import (
    FURTHER,
    keep_gain,
    psi_of,
    rounds_needed,
    rounds_of,
    sparse_step,
)
from flwr_fco.wire.protocol import Downlink, Node, Option

#: Largest dual-to-weight ratio sent as float32.
FLOAT32_LIMIT = 1e3


class DualState(NamedTuple):
    """State of federated dual averaging.

    Parameters
    ----------
    dual : ndarray of float64, shape (d,)
        z_r.
    elapsed : float
        Weight of psi: server_lr times the mean of the clients' elapsed times, summed over the rounds. With a density,
        whose psi is a constraint and has no weight, the number of rounds that have gone by.
    round : int
        Number of successful rounds, r.
    """

    dual: Vector
    elapsed: float = 0.0
    round: int = 0


@dataclass(repr=False, eq=False, kw_only=True)
class DualStrategy(CompositeStrategy):
    """A strategy whose clients start from a common dual and send their local increments to it."""

    def init(self, problem: Problem, primal: Vector) -> DualState:
        """Return the state before round 1: dual = grad h(primal), elapsed = 0."""
        return DualState(problem.h.gradient(primal))

    def downlink(self, problem: Problem, state: DualState, node: Node | None) -> Downlink:
        """Return the dual and its elapsed time."""
        return Downlink(problem.plan, {"dual": state.dual}, problem.client_lr, state.elapsed)

    def aggregate(self, problem: Problem, state: DualState, replies: Replies) -> DualState:
        """Return dual + server_lr mean(increment), elapsed + server_lr mean(elapsed)."""
        dual, elapsed = replies.mean()
        dual *= problem.server_lr
        dual += state.dual
        return DualState(dual, state.elapsed + problem.server_lr * elapsed, state.round + 1)

    def retrieve(self, problem: Problem, state: DualState) -> Vector:
        """Return retrieve(dual, elapsed), the primal point."""
        return problem.retrieve(state.dual, state.elapsed)

    def averaged_points(
        self, problem: Problem, before: DualState, after: DualState, replies: Replies
    ) -> Iterable[Vector]:
        """Return the last point of the round, or the points of all its local steps (shadow, ergodic)."""
        if self.output not in ("shadow", "ergodic"):
            yield self.retrieve(problem, after)
            return
        for k, moved in enumerate(replies.plain_mean("trajectory"), start=1):
            yield problem.retrieve(before.dual + moved, before.elapsed + problem.client_lr * k)


@dataclass(repr=False, eq=False, kw_only=True)
class FedDualAvg(PrivacyOptions, MomentumOptions, UnmodifiedOptions, RateOptions, WorkOptions, DualStrategy):
    """Federated dual averaging, algorithm 3: an exactly sparse (low-rank, feasible) global model.

    Parameters
    ----------
    client_prox : bool, default True
        Whether psi acts in the local steps; False is :class:`FedDualAvgOSP`.
    sparse_wire : {"auto", False}, default "auto"
        ``"auto"``: a client with sparse features sends only the coordinates that occur in its rows when that takes
        fewer bytes, which tells the server which features the client has. False: whole vectors, whose form does not
        reveal this (their zeros still do; see docs/sparse.md).
    output : {"last", "average", "moving-average", "shadow"}, default "last"
        The primal point that evaluation and the user see: the last one, the mean over all rounds, or the mean over the
        last `window` rounds (an average is neither sparse nor of low rank). ``"shadow"``: the mean over rounds r and
        local steps k of retrieve(mean_m z_{r,k}^m, t_r + client_lr k), which the theory analyses. For research: the
        uplink holds all local steps, so it needs `local_steps`.

    References
    ----------
    Yuan, Zaheer, Reddi: Federated Composite Optimization (ICML 2021), algorithm 3.

    Examples
    --------
    >>> from flwr_fco.regularizers import L1
    >>> strategy = FedDualAvg(fraction_train=0.5, regularizer=L1(0.01), client_lr=0.1, server_lr=1.0)
    >>> strategy.local_solver
    'dual_averaging'
    """

    local_solver: ClassVar[str] = "dual_averaging"
    limit: ClassVar[Limit] = Biased()
    outputs: ClassVar[tuple[str, ...]] = ("last", "average", "moving-average", "shadow")
    source: ClassVar[str] = "[1], algorithm 3"
    exact_elapsed: ClassVar[bool] = True
    needs_mean: ClassVar[str] = ""
    extrapolates: ClassVar[bool] = True

    client_prox: bool = True
    sparse_wire: Literal["auto", False] = "auto"

    def psi_at(self, layout: Layout, regularizer: Regularizer, state: DualState | None) -> Regularizer:
        """Return the regularizer, or with a density at most as many entries that are not 0 as the round is to have."""
        if self.density is None:
            return regularizer
        rounds = rounds_of(self.density_rounds, self.num_rounds)
        number, dual = (0.0, np.zeros(layout.size)) if state is None else (state.elapsed, state.dual)
        return psi_of(layout, regularizer, self.density, min(1.0, number / rounds), self.scope, dual)

    def aggregate(self, problem: Problem, state: DualState, replies: Replies) -> DualState:
        """Return the next dual and its elapsed time; with a density, the rounds that have gone by."""
        following = super().aggregate(problem, state, replies)
        if self.density is None:
            return following
        primal = problem.retrieve(state.dual, state.elapsed)
        further = FURTHER if self.client == "unmodified" else 1.0
        sparse_step(problem.psi, primal, state.dual, following.dual, further=further)
        following = following._replace(elapsed=float(problem.round))
        cut = self.psi_at(problem.layout, self.regularizer, following).bind(problem.layout, scope=self.scope)
        keep_gain(cut, primal, following.dual)
        return following

    # --- what else it says ----------------------------------------------------------------------------------------

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.output == "shadow":
            self._check_shadow()

    def _check_shadow(self) -> None:
        """Check that the clients' local steps are there to be averaged."""
        if self.server_momentum:
            raise ConfigurationError(
                f'output="shadow" is the mean of the clients\' duals in each local step, which server_momentum='
                f'{self.server_momentum:g} leaves; take output="average", or no momentum'
            )
        if self.client == "unmodified":
            raise ConfigurationError('output="shadow" needs the clients\' local steps; client="unmodified" has none')
        if self.aggregation != "mean":
            raise ConfigurationError(
                f'output="shadow" averages local steps; aggregation={self.aggregation!r} has no form for them'
            )
        if self.local_steps is None:
            raise ConfigurationError(
                'output="shadow" averages over the local steps, so all clients must take the same number: '
                "give local_steps instead of local_epochs"
            )

    def solver_options(self) -> dict[str, Option]:
        """Return whether psi acts in the local steps, and whether all local steps are sent."""
        options: dict[str, Option] = {"client-prox": self.client_prox, "trajectory": self.output == "shadow"}
        # Unmodified clients are sent no plan: these are there so that a state of another schedule is refused.
        if self.threshold_per_round is not None:
            options["threshold-per-round"] = self.threshold_per_round
        if self.density is not None:
            options["density"] = self.density
        if self.sparse_wire is False:
            options["sparse-wire"] = False
        return options

    def uplink_shapes(self, problem: Problem) -> dict[str, tuple[int, ...]]:
        """Return the shape of the increment and, for ``output="shadow"``, of all local steps."""
        shapes = super().uplink_shapes(problem)
        if self.output == "shadow":
            shapes["trajectory"] = (int(self.local_steps or 0), problem.layout.size)
        return shapes

    def short_wire(self, problem: Problem, state: DualState) -> bool:
        """Whether the dual may be rounded: for a Euclidean float32 model, up to 1,000 times the size of the weights.

        The error of float32 is 6e-8 of the dual, which is about the threshold plus the weight, so at most 6e-5 of the
        root mean square of the non-zero weights. The server's dual stays float64, and increments are relative to what
        was sent.
        """
        if not isinstance(self.mirror_map, Euclidean):
            return False
        if any(entry.dtype not in ("float32", "float16") for entry in problem.layout.optimized):
            return False
        primal, dual = self.retrieve(problem, state), state.dual
        count = np.count_nonzero(primal)
        size = np.sqrt(np.vdot(primal, primal) / count) if count else 0.0
        return bool(max(-dual.min(), dual.max()) <= FLOAT32_LIMIT * size)

    def watches(self) -> Sequence[RoundHooks]:
        """Return what looks after a network that becomes sparse while it is trained."""
        if self.density is None and self.threshold_per_round is None:
            return ()
        needed = 1 if self.density is None else rounds_needed(self.density)
        return (SparseTraining(needed, self.density_rounds),)

    def describe(self) -> list[tuple[str, str]]:
        """Return the line about the clients."""
        text = f"proximal steps ({self.client_prox})" if self.client == "composite" else self._schedule_text()
        found = [("Clients", f"{self.client}, {text}")]
        if self.density is not None:
            known = self.density_rounds or self.num_rounds
            rounds = (
                f"round {rounds_of(self.density_rounds, self.num_rounds)}" if known else "three quarters of the rounds"
            )
            found.append(("Density", f"{self.density:g} from {rounds} on, {self.density_scope}"))
        return found

    def _schedule_text(self) -> str:
        if self.threshold_per_round is not None:
            return f"threshold {self.threshold_per_round:g} a round"
        return "no weight of psi" if self.local_steps is None else f"{self.local_steps} steps of client_lr a round"


@dataclass(repr=False, eq=False, kw_only=True)
class FedDualAvgOSP(FedDualAvg):
    """Federated dual averaging, only server proximal, algorithm 5: psi acts in retrieval alone.

    Erratum: psi never acts on the dual, which is therefore FedAvg's iterate while the weight of psi grows, and the
    output tends to exactly 0. Only an early window of rounds is useful.

    References
    ----------
    Yuan, Zaheer, Reddi: Federated Composite Optimization (ICML 2021), algorithm 5.

    Examples
    --------
    >>> FedDualAvgOSP().client_prox
    False
    """

    limit: ClassVar[Limit] = ToZero()
    source: ClassVar[str] = "[1], algorithm 5"

    client_prox: bool = field(init=False, default=False)

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

where retrieve(z, t) = argmin_w -<z, w> + t psi(w) + h(w). Whatever psi promises (zeros, low rank, feasibility) holds
exactly for the server's model, because it comes out of the proximal map last.

Differs from the paper in: 1. elapsed is the sum of the step sizes that clients report, not eta_s eta_c r K, so unequal
and changing local work keep psi in proportion (with equal K it is the paper's); 2. clients with more steps do not
weigh more (``normalize_local_work``); 3. the default output is the last primal, the theory's average of shadow points
is ``output="shadow"``; 4. ``client="unmodified"`` is an approximation that is not in the paper, and so are the
schedules of psi's weight that go with it (``threshold_per_round``, ``density``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from flwr_fco.core.layout import Vector
from flwr_fco.errors import ConfigurationError
from flwr_fco.mirror_maps import Euclidean
from flwr_fco.regularizers import L1, Box, LInfinityBall, NonNegative, Zero
from flwr_fco.server.algorithm import ArrayRecord, Grid, RecordDict
from flwr_fco.server.convergence import Biased, Limit, ToZero
from flwr_fco.server.options import AT_LEAST_ONE, POSITIVE, RateOptions, WorkOptions
from flwr_fco.server.replies.bounds import check_elapsed, check_examples, check_steps
from flwr_fco.server.replies.checks import mean_increment
from flwr_fco.server.strategy import CompositeStrategy
from flwr_fco.wire import records
from flwr_fco.wire.protocol import Node, Option, Uplink
from flwr_fco.work import FirstOrder

__all__ = ["DualState", "FedDualAvg", "FedDualAvgOSP"]

#: How many times the weights that are not 0 the dual may be to travel as float32.
FLOAT32_LIMIT = 1e3
#: Of Adam: the decay of the moments, and what keeps a division by 0 away.
_FIRST, _SECOND, _EPSILON = 0.9, 0.99, 1e-8
_SHARE = {"range": (lambda value: 0.0 < value < 1.0, "a number between 0 and 1")}
_MOMENTUM = {"range": (lambda value: 0.0 <= value < 1.0, "a number >= 0 and < 1")}


class DualState(NamedTuple):
    """State of federated dual averaging.

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
    velocity : ndarray of float64, shape (d,) or (0,)
        The server's momentum of the dual, nothing without momentum.
    velocity_elapsed : float
        The same of `elapsed`.
    squares : ndarray of float64, shape (d,) or (0,)
        Adam's second moments, nothing without it.
    """

    dual: Vector
    elapsed: float
    round: int
    total: Vector
    averaged: int
    velocity: Vector = np.zeros(0)
    velocity_elapsed: float = 0.0
    squares: Vector = np.zeros(0)


@dataclass(repr=False, eq=False, kw_only=True)
class FedDualAvg(RateOptions, WorkOptions, CompositeStrategy):
    """Federated dual averaging, algorithm 3: an exactly sparse (low-rank, feasible) global model.

    Parameters
    ----------
    client_prox : bool, default True
        Whether psi acts in the local steps; False is :class:`FedDualAvgOSP`.
    client : {"composite", "unmodified"}, default "composite"
        ``"composite"``: the clients run :func:`flwr_fco.client_apps.client_app`. ``"unmodified"``: any FedAvg
        ClientApp that returns its new model (Euclidean geometry only). Then the server takes
        dual += server_lr mean(w_K - w) and must be told how fast the weight of psi grows, by one of
        `density`, `threshold_per_round` and `local_steps`; a constraint has no weight and needs none of them. With
        `local_steps`, elapsed += client_lr * local_steps, where `client_lr` is the clients' own learning rate (a
        client that reports ``local-steps`` or ``elapsed`` in its MetricRecord is believed instead). Exact for one
        local step; the error grows with the local work, faster than that of the full method, because local steps do
        not feel psi.
    threshold_per_round : float, optional
        For unmodified clients: how much the weight of psi, elapsed times its strength, grows in a round. It is the
        product strength * server_lr * client_lr * local_steps, which is all that matters of the four besides
        server_lr's effect on the dual. Without a regularizer it means ``L1(1.0)``.
    density : float, optional
        For unmodified clients with an l1 norm: the share of the regularized entries that are not 0 in the end. Each
        round elapsed is chosen so that the model has its density of that round: density ** (round / density_rounds)**2,
        from `density_rounds` on the one that is asked for. Strength and rates of the clients then have no effect.
        Without a regularizer it means ``L1(1.0)``.
    density_rounds : int, optional
        In how many rounds the density falls from 1 to `density`; by default half of the rounds that `start` is given.
    output : {"last", "average", "moving-average", "shadow"}, default "last"
        The primal point that evaluation and the user see: that of the last state, the mean over all rounds, or over
        the last `window` rounds (an average is neither sparse nor of low rank). ``"shadow"``: the mean over rounds r
        and local steps k of retrieve(mean_m z_{r,k}^m, t_r + client_lr k), which the theory is about. For research:
        the uplink holds all local steps, so it needs `local_steps`.
    server_momentum : float, default 0.0
        Momentum of the server, beta in [0, 1): velocity <- beta velocity + mean(increment), dual += server_lr velocity,
        and the same of `elapsed`, so that psi keeps its proportion. It makes the steps up to 1 / (1 - beta) times as
        large. An extension; 0 is the paper's method.
    server_adam : bool, default False
        Whether the server goes along the mean increment by Adam's rule (moments .9 and .99, steps of about `server_lr`
        in each coordinate, so take one of 0.01 or so). An extension, in the Euclidean geometry, without psi or with a
        constraint on each coordinate by itself (Box, NonNegative, LInfinityBall): steps of different size in different
        coordinates keep no proportion to the weight that psi has in all of them.

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
    client: Literal["composite", "unmodified"] = "composite"
    threshold_per_round: float | None = field(default=None, metadata=POSITIVE)
    density: float | None = field(default=None, metadata=_SHARE)
    density_rounds: int | None = field(default=None, metadata=AT_LEAST_ONE)
    server_momentum: float = field(default=0.0, metadata=_MOMENTUM)
    server_adam: bool = False

    def __post_init__(self) -> None:
        self._num_rounds: int | None = None
        super().__post_init__()
        self._check_schedule()
        if self.client == "unmodified" and not isinstance(self.mirror_map, Euclidean):
            raise ConfigurationError(
                f'client="unmodified" takes differences of models for gradients, which is Euclidean; '
                f"mirror_map={self.mirror_map!r} needs our ClientApp (flwr_fco.client_apps.client_app)"
            )
        if self.client == "unmodified" and self.certificate_every is not None:
            raise ConfigurationError(
                f"certificate_every={self.certificate_every}: client='unmodified' does not answer questions; evaluate "
                "on the server, or take our ClientApp"
            )
        if self.client == "unmodified" and "auto" in (self.client_lr, self.server_lr):
            raise ConfigurationError(
                "client='unmodified': such clients take steps of a size of their own, and do not answer questions; "
                "give client_lr and server_lr as numbers"
            )
        if self.server_adam:
            self._check_adam()
        if self.output == "shadow":
            if self.server_momentum:
                raise ConfigurationError(
                    f'output="shadow" is the mean of the clients\' duals in each local step, which server_momentum='
                    f'{self.server_momentum:g} leaves; take output="average", or no momentum'
                )
            if self.client == "unmodified":
                raise ConfigurationError(
                    'output="shadow" needs the clients\' local steps; client="unmodified" has none'
                )
            if self.aggregation != "mean":
                raise ConfigurationError(
                    f'output="shadow" averages local steps; aggregation={self.aggregation!r} has no form for them'
                )
            if self.local_steps is None:
                raise ConfigurationError(
                    'output="shadow" averages over the local steps, so all clients must take the same number: '
                    "give local_steps instead of local_epochs"
                )

    def _check_adam(self) -> None:
        """Check that Adam's steps have the optimum as their limit."""
        psi = self.regularizer
        if not isinstance(self.mirror_map, Euclidean):
            raise ConfigurationError(
                f"server_adam=True is for the Euclidean geometry; mirror_map={self.mirror_map!r} has steps of its own"
            )
        if not (isinstance(psi, Zero) or (psi.constraint and isinstance(psi, Box | NonNegative | LInfinityBall))):
            raise ConfigurationError(
                f"server_adam=True with {psi!r}: Adam's steps differ from coordinate to coordinate, and psi's weight "
                "does not, so the limit would not be the optimum. It goes with no psi, Box, NonNegative and "
                "LInfinityBall; take server_momentum with this one"
            )
        if self.server_momentum or self.output == "shadow" or self.server_lr == "auto":
            raise ConfigurationError(
                f"server_adam=True has moments and steps of its own: server_momentum={self.server_momentum:g}, "
                f"server_lr={self.server_lr!r}, output={self.output!r}; expected no momentum, a number such as 0.01, "
                "and another output than 'shadow'"
            )

    def _check_schedule(self) -> None:
        """Check that it is said, once and in a way that fits psi, how fast its weight grows."""
        given = [name for name in ("threshold_per_round", "density") if getattr(self, name) is not None]
        if self.client == "composite":
            if given or self.density_rounds is not None:
                raise ConfigurationError(
                    f"{' and '.join(given) or 'density_rounds'} is for client='unmodified': clients of ours say how "
                    "large their steps were. Leave it out and choose the regularizer's strength"
                )
            return
        if len(given) == 2 or (given and self.local_steps is not None):
            names = ", ".join([*given, "local_steps"] if self.local_steps is not None else given)
            raise ConfigurationError(f"{names}: each of them says how fast the weight of psi grows; give one of them")
        if given and isinstance(self.regularizer, Zero):
            self.regularizer = L1(1.0)
        if self.density is not None and not isinstance(self.regularizer, L1):
            raise ConfigurationError(
                f"density={self.density} schedules the threshold of an l1 norm; regularizer={self.regularizer!r} "
                "has another form. Give threshold_per_round or local_steps instead"
            )
        if given and not getattr(self.regularizer, "strength", 0.0) > 0.0:
            raise ConfigurationError(
                f"{given[0]} needs a regularizer with one strength > 0; this is {self.regularizer!r}. Give it "
                "another one, or give local_steps and the clients' learning rate as client_lr"
            )
        if self.density_rounds is not None and self.density is None:
            raise ConfigurationError(f"density_rounds={self.density_rounds} needs density=...")
        weightless = isinstance(self.regularizer, Zero) or self.regularizer.constraint
        if not given and self.local_steps is None and not weightless:
            raise ConfigurationError(
                f"client='unmodified' with {self.regularizer!r}: nobody says how fast the weight of psi grows. Give "
                "density=0.1 (l1 norm: the share of weights that are not 0 in the end), or threshold_per_round=... "
                "(how much the threshold grows in a round), or local_steps=... with the clients' learning rate as "
                "client_lr"
            )

    def start(self, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int = 3, *args: Any, **options: Any) -> Any:
        """Run the algorithm; see :meth:`CompositeStrategy.start`."""
        self._num_rounds = num_rounds
        return super().start(grid, initial_arrays, num_rounds, *args, **options)

    def forget(self) -> None:
        """Return to the state before the first round."""
        super().forget()
        self.nodes.asks = self.client == "composite"
        self._sent: tuple[DualState, ArrayRecord, Vector] | None = None

    def solver_options(self) -> dict[str, Option]:
        """Return whether psi acts in the local steps, and whether they are all sent."""
        options: dict[str, Option] = {"client-prox": self.client_prox, "trajectory": self.output == "shadow"}
        # Unmodified clients are sent no plan: these are there so that a state of another schedule is refused.
        if self.threshold_per_round is not None:
            options["threshold-per-round"] = self.threshold_per_round
        if self.density is not None:
            options["density"] = self.density
        return options

    def settings(self) -> list[tuple[str, str]]:
        """Return the lines about the clients."""
        momentum = [("Server momentum", f"{self.server_momentum:g}")] if self.server_momentum else []
        momentum += [("Server", "Adam")] if self.server_adam else []
        if self.client == "composite":
            return [("Clients", f"{self.client}, proximal steps ({self.client_prox})"), *momentum]
        return [("Clients", f"{self.client}, {self._schedule_text()}"), *momentum]

    def _schedule_text(self) -> str:
        if self.density is not None:
            known = self.density_rounds is not None or self._num_rounds is not None
            when = f"round {self._rounds_to_density()}" if known else "half of the rounds"
            return f"density {self.density:g} from {when} on"
        if self.threshold_per_round is not None:
            return f"threshold {self.threshold_per_round:g} a round"
        return "no weight of psi" if self.local_steps is None else f"{self.local_steps} steps of client_lr a round"

    def init_state(self, primal: Vector) -> DualState:
        """Return the state before round 1: dual = grad h(primal), elapsed = 0."""
        state = DualState(self.h.gradient(primal), 0.0, 0, self.averaging.start(primal.size), 0)
        if self.server_adam:
            return state._replace(velocity=np.zeros(primal.size), squares=np.zeros(primal.size))
        return state._replace(velocity=np.zeros(primal.size)) if self.server_momentum else state

    def vectors(self, state: Any) -> dict[str, Vector]:
        """Return the dual."""
        return {"dual": state.dual}

    def short_wire(self, state: DualState) -> bool:
        """Whether the dual may be rounded: of a Euclidean float32 model, while it is at most 1,000 times the weights.

        float32 errs by 6e-8 of the dual, which is about the threshold plus the weight; so by at most 6e-5 of the root
        mean square of the weights that are not 0. The server's dual is float64 all the same, and increments are
        counted from what was sent.
        """
        if not isinstance(self.mirror_map, Euclidean):
            return False
        if any(entry.dtype not in ("float32", "float16") for entry in self.plan.layout.optimized):
            return False
        primal, dual = self.retrieve(state), state.dual
        count = np.count_nonzero(primal)
        size = np.sqrt(np.vdot(primal, primal) / count) if count else 0.0
        return bool(max(-dual.min(), dual.max()) <= FLOAT32_LIMIT * size)

    def uplink_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the increment's shape, and that of all local steps for ``output="shadow"``."""
        shapes = super().uplink_shapes()
        if self.output == "shadow":
            shapes["trajectory"] = (int(self.local_steps or 0), self.plan.layout.size)
        return shapes

    def aggregate(self, state: DualState, uplinks: Sequence[Uplink]) -> DualState:
        """Return dual + server_lr mean(increment), elapsed + server_lr mean(elapsed)."""
        client_lr, server_lr = self.rates()
        mean, elapsed = self.centre(uplinks)
        if self.server_adam:
            first = _FIRST * state.velocity + (1.0 - _FIRST) * mean
            second = _SECOND * state.squares + (1.0 - _SECOND) * mean**2
            count = state.round + 1
            mean = first / (1.0 - _FIRST**count) / (np.sqrt(second / (1.0 - _SECOND**count)) + _EPSILON)
            state = state._replace(velocity=first, squares=second)
        if self.server_momentum:
            mean += self.server_momentum * state.velocity
            elapsed += self.server_momentum * state.velocity_elapsed
            state = state._replace(velocity=mean, velocity_elapsed=elapsed)
        following = state._replace(
            dual=state.dual + server_lr * mean, elapsed=state.elapsed + server_lr * elapsed, round=state.round + 1
        )
        if self.density is not None:
            following = following._replace(elapsed=self._elapsed_for(following, self.density_now()))
        if self.output != "shadow":
            return self.averaging.add(following, lambda: self.retrieve(following))
        trajectory, _ = mean_increment(uplinks, normalize=False, name="trajectory")
        for k, moved in enumerate(trajectory, start=1):
            point = self.h.retrieve(state.dual + moved, state.elapsed + client_lr * k, self.psi)
            following = self.averaging.add(following, point)
        return following

    def retrieve(self, state: DualState) -> Vector:
        """Return retrieve(dual, elapsed), the primal point."""
        return self.h.retrieve(state.dual, state.elapsed, self.psi)

    # --- a density instead of a strength --------------------------------------------------------------------------

    def density_now(self) -> float:
        """Return the density that the model is to have after the round under way.

        Slowly at first: a threshold that is ahead of the gradients sets a network's weights to 0 before it has learnt
        anything, and it never starts.
        """
        target = 1.0 if self.density is None else self.density
        way = min(1.0, max(self.server_round, 1) / self._rounds_to_density())
        return float(target ** (way * way))

    def _rounds_to_density(self) -> int:
        if self.density_rounds is not None:
            return self.density_rounds
        if self._num_rounds is None:
            raise ConfigurationError(
                "density=... without `start`: nobody says how many rounds there are; give density_rounds=..."
            )
        return max(1, self._num_rounds // 2)

    def _elapsed_for(self, state: DualState, density: float) -> float:
        """Return the smallest elapsed time at which the model of this dual has at most this density.

        Entry i leaves when elapsed * threshold_i reaches |dual_i|, so it is an order statistic of their ratios.
        """
        terms = self.psi.separable_terms(state.dual.shape)
        assert terms is not None  # it is an l1 norm
        threshold = np.broadcast_to(terms.threshold, state.dual.shape)
        acted_on = self.plan.layout.regularized_mask()
        leave = threshold > 0.0
        stay = int(np.count_nonzero(state.dual[acted_on & ~leave]))
        ratios = np.abs(state.dual[leave]) / threshold[leave]
        first_to_leave = ratios.size - 1 - max(0, round(density * int(acted_on.sum())) - stay)
        if first_to_leave < 0:
            return 0.0
        # A little more, so that rounding does not leave an entry that should be 0.
        return float(np.partition(ratios, first_to_leave)[first_to_leave]) * (1.0 + 1e-15)

    def round_metrics(self) -> dict[str, float | int]:
        """Return the density of the model, where the server schedules it."""
        if self.density is None or self.state.round == 0:
            return {}
        acted_on = self.plan.layout.regularized_mask()
        return {"density": float(np.count_nonzero(self.retrieve(self.state)[acted_on]) / acted_on.sum())}

    # --- clients that know nothing of duals -----------------------------------------------------------------------

    def content_for(self, node: Node, serialised: records.RoundCache) -> RecordDict:
        """Return what a node is sent: the dual, or for an unmodified client the model as ``FedAvg`` sends it."""
        if self.client == "composite":
            return super().content_for(node, serialised)
        return records.primal_request(
            self._sent_model()[0],
            self.current.config,
            arrayrecord_key=self.arrayrecord_key,
            configrecord_key=self.configrecord_key,
        )

    def read_reply(self, content: RecordDict) -> Uplink:
        """Return the checked uplink; of an unmodified client, its model minus the one it was sent."""
        if self.client == "composite":
            return super().read_reply(content)
        uplink = records.read_unmodified(
            content,
            self.plan.layout,
            sent=self._sent_model()[1],
            client_lr=self.rates()[0],
            local_steps=1 if self.local_steps is None else self.local_steps,
            weighted_by_key=self.weighted_by_key,
        )
        if self.threshold_per_round is None:
            return uplink if self.density is None else uplink._replace(elapsed=1.0)
        strength: float = getattr(self.regularizer, "strength")  # noqa: B009 (not every regularizer has one)
        return uplink._replace(elapsed=self.threshold_per_round / strength / self.rates()[1])

    def check_claims(self, node: Node, uplink: Uplink, num_examples: float | None) -> None:
        """Hold what a client says of itself against what the server knows; an unmodified one may have a schedule.

        It may take a thousand times as many steps as the server's options say, for it does not know them. One step is
        also what counts where it reports nothing but ``elapsed``.
        """
        if self.client == "composite":
            super().check_claims(node, uplink, num_examples)
            return
        check_examples(uplink.examples, self.max_examples)
        work = self.plan.work
        assert isinstance(work, FirstOrder)
        planned = max(1, work.num_draws(int(uplink.examples)))
        check_steps(uplink.steps, 1_000 * planned)
        steps = uplink.steps if uplink.steps > 1 else planned
        if (
            self.threshold_per_round is None and self.density is None
        ):  # else the server says how much psi's weight grows
            check_elapsed(uplink.step_sizes, steps, self.step_size(), exact=False)

    def _sent_model(self) -> tuple[ArrayRecord, Vector]:
        """Return the present model as records and as the vector that the user's dtypes make of it."""
        if self._sent is None or self._sent[0] is not self.state:
            arrays = records.primal_record(self.plan.layout, self.retrieve(self.state), self.pass_through_arrays)
            self._sent = (self.state, arrays, records.primal_vector(self.plan.layout, arrays)[0])
        return self._sent[1], self._sent[2]


@dataclass(repr=False, eq=False, kw_only=True)
class FedDualAvgOSP(FedDualAvg):
    """Federated dual averaging, only server proximal, algorithm 5: psi acts in retrieval alone.

    Erratum: its dual never feels psi, so it is FedAvg's iterate while the weight of psi grows, and the output tends
    to exactly 0. Only an early window of rounds is of use.

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

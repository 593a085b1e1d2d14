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
is ``output="shadow"``; 4. ``client="unmodified"`` is an approximation that is not in the paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

from flwr_fco import records
from flwr_fco.errors import ConfigurationError
from flwr_fco.mirror_maps import Euclidean
from flwr_fco.parameters import Vector
from flwr_fco.protocol import Node, Option, Uplink
from flwr_fco.strategies.base import CompositeStrategy
from flwr_fco.strategies.bounds import check_elapsed, check_examples, check_steps
from flwr_fco.strategies.contract import ArrayRecord, RecordDict
from flwr_fco.strategies.limits import Biased, Limit, ToZero
from flwr_fco.strategies.options import RateOptions, WorkOptions
from flwr_fco.strategies.replies import mean_increment
from flwr_fco.work import FirstOrder

__all__ = ["DualState", "FedDualAvg", "FedDualAvgOSP"]


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
    """

    dual: Vector
    elapsed: float
    round: int
    total: Vector
    averaged: int


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
        dual += server_lr mean(w_K - w), elapsed += client_lr * steps: tell it the clients' own learning rate as
        `client_lr` and their number of steps as `local_steps` (or let the clients report ``local-steps`` or
        ``elapsed`` in their MetricRecord). Exact for one local step; the error grows with the local work, faster
        than that of the full method, because local steps do not feel psi.
    output : {"last", "average", "moving-average", "shadow"}, default "last"
        The primal point that evaluation and the user see: that of the last state, the mean over all rounds, or over
        the last `window` rounds (an average is neither sparse nor of low rank). ``"shadow"``: the mean over rounds r
        and local steps k of retrieve(mean_m z_{r,k}^m, t_r + client_lr k), which the theory is about. For research:
        the uplink holds all local steps, so it needs `local_steps`.

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

    client_prox: bool = True
    client: Literal["composite", "unmodified"] = "composite"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.client == "unmodified" and not isinstance(self.mirror_map, Euclidean):
            raise ConfigurationError(
                f'client="unmodified" takes differences of models for gradients, which is Euclidean; '
                f"mirror_map={self.mirror_map!r} needs our ClientApp (flwr_fco.client_apps.client_app)"
            )
        if self.output == "shadow":
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

    def forget(self) -> None:
        """Return to the state before the first round."""
        super().forget()
        self.nodes.asks = self.client == "composite"
        self._sent: tuple[DualState, ArrayRecord, Vector] | None = None

    def solver_options(self) -> dict[str, Option]:
        """Return whether psi acts in the local steps, and whether they are all sent."""
        return {"client-prox": self.client_prox, "trajectory": self.output == "shadow"}

    def settings(self) -> list[tuple[str, str]]:
        """Return the lines about the clients."""
        return [("Clients", f"{self.client}, proximal steps ({self.client_prox})")]

    def init_state(self, primal: Vector) -> DualState:
        """Return the state before round 1: dual = grad h(primal), elapsed = 0."""
        return DualState(self.h.gradient(primal), 0.0, 0, self.averaging.start(primal.size), 0)

    def vectors(self, state: Any) -> dict[str, Vector]:
        """Return the dual."""
        return {"dual": state.dual}

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
        following = state._replace(
            dual=state.dual + server_lr * mean, elapsed=state.elapsed + server_lr * elapsed, round=state.round + 1
        )
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
        return records.read_unmodified(
            content,
            self.plan.layout,
            sent=self._sent_model()[1],
            client_lr=self.rates()[0],
            local_steps=self.local_steps,
            weighted_by_key=self.weighted_by_key,
        )

    def check_claims(self, uplink: Uplink, num_examples: float | None) -> None:
        """Hold what a client says of itself against what the server knows; an unmodified one may have a schedule.

        It may take a thousand times as many steps as the server's options say, for it does not know them. One step is
        also what counts where it reports nothing but ``elapsed``.
        """
        if self.client == "composite":
            super().check_claims(uplink, num_examples)
            return
        check_examples(uplink.examples, self.max_examples)
        work = self.plan.work
        assert isinstance(work, FirstOrder)
        planned = max(1, work.num_draws(int(uplink.examples)))
        check_steps(uplink.steps, 1_000 * planned)
        steps = uplink.steps if uplink.steps > 1 else planned
        check_elapsed(uplink.step_sizes, steps, self.step_size(), exact=False)

    def _sent_model(self) -> tuple[ArrayRecord, Vector]:
        """Return the present model as records and as the vector that the user's dtypes make of it."""
        if self._sent is None or self._sent[0] is not self.state:
            arrays = records.primal_record(self.plan.layout, self.retrieve(self.state), self._pass_through)
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

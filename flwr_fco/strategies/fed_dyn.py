"""FedDyn: dynamic regularization.

Acar and others (ICLR 2021), algorithm 1; their symbols in brackets::

    each client of the sample: local [theta_i] ~ argmin f_i(x) - <own [g_i], x> + alpha/2 ||x - theta||^2
                               own <- own - alpha (local - theta); send local - theta
    server: dual [h] <- dual - alpha sum over the sample of p_i (local - theta); theta <- mean(local) - dual / alpha

With everybody there, exact solves and zeros at the start, FedDyn(alpha) is FedPD(eta = 1/alpha) and
FedDR(eta = 1/alpha, alpha = 1), iterate by iterate.

Differs from the paper in: 1. client i weighs p_i, not 1/m; 2. the weights of all clients, over which `dual` is a mean,
follow clients that come and go; 3. the local minimisation is as exact as its stopping rule says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np

from flwr_fco.parameters import Vector
from flwr_fco.protocol import ClientState, Uplink
from flwr_fco.strategies.client_memory import Change
from flwr_fco.strategies.limits import Exact, Limit
from flwr_fco.strategies.minimise_options import MinimiseOptions
from flwr_fco.strategies.options import POSITIVE
from flwr_fco.strategies.primal_methods import NO_AVERAGE, RememberingStrategy, rescaled

__all__ = ["FedDyn", "FedDynState", "advance"]


class FedDynState(NamedTuple):
    """The server's state.

    Parameters
    ----------
    primal : ndarray of float64, shape (d,)
        theta.
    dual : ndarray of float64, shape (d,)
        h: the weighted mean of all clients' `own`.
    round : int
        Rounds that have counted.
    total : ndarray of float64
        What the output averages; see :class:`PointAverage`.
    averaged : int
        Number of points in `total`.
    population : float
        Sum of the weights of all clients behind `dual`; 0 before round 1.
    """

    primal: Vector
    dual: Vector
    round: int = 0
    total: Vector = NO_AVERAGE
    averaged: int = 0
    population: float = 0.0


def advance(state: FedDynState, mean: Vector, penalty: float, share: float = 1.0) -> FedDynState:
    """Return the state after a round.

    Parameters
    ----------
    state : FedDynState
    mean : ndarray of float64, shape (d,)
        Weighted mean of the sample's increments.
    penalty : float
        alpha.
    share : float, default 1.0
        Weight of the sample among all clients.
    """
    dual = state.dual - penalty * share * mean
    return state._replace(primal=state.primal + mean - dual / penalty, dual=dual, round=state.round + 1)


@dataclass(repr=False, eq=False, kw_only=True)
class FedDyn(MinimiseOptions, RememberingStrategy):
    """FedDyn: every client's loss gets a dynamic linear term, so that its minimiser tends to the pooled one.

    Parameters
    ----------
    penalty : float, default 0.1
        alpha.

    References
    ----------
    Acar, Zhao, Matas, Mattina, Whatmough, Saligrama: Federated learning based on dynamic regularization (ICLR 2021),
    algorithm 1.

    Examples
    --------
    >>> FedDyn(penalty=0.1, fraction_train=0.5).local_solver
    'fed_dyn'
    """

    local_solver: ClassVar[str] = "fed_dyn"
    limit: ClassVar[Limit] = Exact("the solution", problem="smooth")
    source: ClassVar[str] = "Acar and others 2021"
    sends: ClassVar[str] = "theta_i - theta"
    remembers: ClassVar[str] = "g_i, theta_i"
    memory_names: ClassVar[tuple[str, ...]] = ("own", "local")
    no_psi: ClassVar[str | None] = "its fixed points are zeros of the clients' mean gradient"

    penalty: float = field(default=0.1, metadata=POSITIVE)

    def init_state(self, primal: Vector) -> FedDynState:
        """Return the state before round 1."""
        self.memories.forget(primal.size)
        return FedDynState(primal, np.zeros(primal.size), total=self.averaging.start(primal.size))

    def numbers(self, state: FedDynState) -> dict[str, float]:
        """Return alpha."""
        return {"penalty": self.penalty}

    def aggregate(self, state: FedDynState, uplinks: Sequence[Uplink]) -> FedDynState:
        """Return the mean of the sample's points, corrected by the mean of all clients' linear terms."""
        population = self.memories.population(uplinks)
        share = sum(self.memories.weight_of(uplink) for uplink in uplinks) / population
        state = rescaled(state, "dual", population)
        reweighed = self.memories.reweighed(uplinks)
        if reweighed:
            state = state._replace(dual=state.dual + reweighed["own"] / population)
        following = advance(state, self.weighted_mean(uplinks), self.penalty, share)
        return self.averaging.add(following, following.primal)

    def remembered(
        self, before: FedDynState, after: FedDynState, memory: ClientState, uplink: Uplink
    ) -> dict[str, Vector]:
        """Return g_i and theta_i after a round that counted."""
        increment = uplink.vectors["increment"]
        return {"own": memory["own"] - self.penalty * increment, "local": before.primal + increment}

    def memories_changed(self, state: FedDynState, change: Change) -> FedDynState:
        """Return the state with the mean over the clients that are there."""
        population = self.memories.population()
        if change.means is None:
            return rescaled(state, "dual", population)
        return state._replace(dual=change.means["own"], population=population)

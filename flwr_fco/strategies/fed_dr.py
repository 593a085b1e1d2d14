"""FedDR: randomised Douglas-Rachford splitting.

Tran-Dinh, Pham, Phan, Nguyen (NeurIPS 2021), algorithm 1; their symbols in brackets::

    each client of the sample: center [y_i] <- center + alpha (primal [x-bar] - local [x_i])
                               local <- prox_{eta f_i}(center); send the change of 2 local - center [x-hat_i]
    server: mean [x-tilde] <- mean of all clients' last 2 local - center; primal <- prox_{eta psi}(mean)

Differs from the paper in: 1. client i weighs p_i, not 1/n; 2. centers and local points begin at 0, without the paper's
round that asks everybody for prox_{eta f_i}(x^0): the method converges from any start, and a client that was never
asked counts as 0; 3. the local minimisation is as exact as its stopping rule says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np

from flwr_fco.errors import ConfigurationError
from flwr_fco.parameters import Vector
from flwr_fco.protocol import ClientState, Uplink
from flwr_fco.regularizers.base import BoundRegularizer
from flwr_fco.strategies.client_memory import Change
from flwr_fco.strategies.limits import Exact, Limit
from flwr_fco.strategies.minimise_options import MinimiseOptions
from flwr_fco.strategies.options import POSITIVE
from flwr_fco.strategies.primal_methods import NO_AVERAGE, RememberingStrategy, rescaled

__all__ = ["FedDR", "FedDRState", "advance"]


class FedDRState(NamedTuple):
    """The server's state.

    Parameters
    ----------
    primal : ndarray of float64, shape (d,)
        What the clients are sent.
    mean : ndarray of float64, shape (d,)
        Weighted mean over all clients of 2 local - center.
    round : int
        Rounds that have counted.
    total : ndarray of float64
        What the output averages; see :class:`PointAverage`.
    averaged : int
        Number of points in `total`.
    population : float
        Sum of the weights of all clients behind `mean`; 0 before round 1.
    """

    primal: Vector
    mean: Vector
    round: int = 0
    total: Vector = NO_AVERAGE
    averaged: int = 0
    population: float = 0.0


def advance(state: FedDRState, change: Vector, step: float, psi: BoundRegularizer | None = None) -> FedDRState:
    """Return the state after a round.

    Parameters
    ----------
    state : FedDRState
    change : ndarray of float64, shape (d,)
        Sum of the clients' increments by their weights among all clients, absent ones included.
    step : float
        eta.
    psi : BoundRegularizer, optional
    """
    mean = state.mean + change
    primal = mean if psi is None else psi.prox(mean, step)
    return state._replace(primal=primal, mean=mean, round=state.round + 1)


@dataclass(repr=False, eq=False, kw_only=True)
class FedDR(MinimiseOptions, RememberingStrategy):
    """FedDR: randomised Douglas-Rachford splitting; psi acts on the server, and its zeros are exact.

    Parameters
    ----------
    regularizer : Regularizer, default Zero()
        psi.
    step : float, default 1.0
        eta, of the proximal steps of clients and server.
    relaxation : float, default 1.0
        alpha in (0, 2).

    References
    ----------
    Tran-Dinh, Pham, Phan, Nguyen: FedDR, randomized Douglas-Rachford splitting algorithms for nonconvex federated
    composite optimization (NeurIPS 2021), algorithm 1.

    Examples
    --------
    >>> from flwr_fco.regularizers import L1
    >>> FedDR(regularizer=L1(0.01), fraction_train=0.5).local_solver
    'fed_dr'
    """

    local_solver: ClassVar[str] = "fed_dr"
    limit: ClassVar[Limit] = Exact("the solution")
    source: ClassVar[str] = "Tran-Dinh and others 2021"
    sends: ClassVar[str] = "the change of 2 x_i - y_i"
    remembers: ClassVar[str] = "y_i, x_i"
    memory_names: ClassVar[tuple[str, ...]] = ("center", "local")

    step: float = field(default=1.0, metadata=POSITIVE)
    relaxation: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.relaxation < 2.0:
            raise ConfigurationError(f"relaxation={self.relaxation!r}; expected 0 < relaxation < 2")

    def init_state(self, primal: Vector) -> FedDRState:
        """Return the state before round 1."""
        self.memories.forget(primal.size)
        return FedDRState(primal, np.zeros(primal.size), total=self.averaging.start(primal.size))

    def numbers(self, state: FedDRState) -> dict[str, float]:
        """Return eta and alpha."""
        return {"step": self.step, "relaxation": self.relaxation}

    def aggregate(self, state: FedDRState, uplinks: Sequence[Uplink]) -> FedDRState:
        """Return the mean of all clients' points and prox_{eta psi} of it."""
        population = self.memories.population(uplinks)
        state = rescaled(state, "mean", population)
        change = self.weighted_sum(uplinks)
        reweighed = self.memories.reweighed(uplinks)
        if reweighed:
            change += 2.0 * reweighed["local"] - reweighed["center"]
        following = advance(state, change / population, self.step, self.psi)
        return self.averaging.add(following._replace(population=population), following.primal)

    def remembered(
        self, before: FedDRState, after: FedDRState, memory: ClientState, uplink: Uplink
    ) -> dict[str, Vector]:
        """Return y_i and x_i after a round that counted."""
        center = memory["center"] + self.relaxation * (before.primal - memory["local"])
        old = 2.0 * memory["local"] - memory["center"]
        return {"center": center, "local": 0.5 * (old + uplink.vectors["increment"] + center)}

    def memories_changed(self, state: FedDRState, change: Change) -> FedDRState:
        """Return the state with the mean over the clients that are there."""
        population = self.memories.population()
        if change.means is None:
            return rescaled(state, "mean", population)
        mean = 2.0 * change.means["local"] - change.means["center"]
        return state._replace(mean=mean, population=population)

"""FedDR: randomised Douglas-Rachford splitting.

Tran-Dinh, Pham, Phan, Nguyen (NeurIPS 2021), algorithm 1; their symbols in brackets::

    each client of the sample: center [y_i] <- center + alpha (primal [x-bar] - local [x_i])
                               local <- prox_{eta f_i}(center); send the change of 2 local - center [x-hat_i]
    server: mean [x-tilde] <- mean of all clients' last 2 local - center; primal <- prox_{eta psi}(mean)

Differs from the paper in: 1. client i has weight p_i, not 1/n; 2. centers and local points begin at 0, without the
paper's round that asks all clients for prox_{eta f_i}(x^0): the method converges from any start, and a client that was
never asked counts as 0; 3. the local minimisation is as exact as its stopping rule says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from flwr_fco.core.layout import Vector
from flwr_fco.regularizers.base import BoundRegularizer
from flwr_fco.server.algorithm import Problem
from flwr_fco.server.convergence import Exact, Limit
from flwr_fco.server.options import POSITIVE, MinimiseOptions
from flwr_fco.server.replies.replies import Replies
from flwr_fco.strategies.local_minimisation.mean_methods import MeanState, MeanStrategy, rescaled


def advance(state: MeanState, change: Vector, step: float, psi: BoundRegularizer | None = None) -> MeanState:
    """Return the state after a round.

    Parameters
    ----------
    state : MeanState
        Its mean is over 2 local - center.
    change : ndarray of float64, shape (d,)
        Sum of the clients' increments, weighted by their share of all clients, absent ones included.
    step : float
        eta.
    psi : BoundRegularizer, optional
    """
    mean = state.mean + change
    primal = mean if psi is None else psi.prox(mean, step)
    return state._replace(primal=primal, mean=mean, round=state.round + 1)


@dataclass(repr=False, eq=False, kw_only=True)
class FedDR(MinimiseOptions, MeanStrategy):
    """FedDR: randomised Douglas-Rachford splitting; psi acts on the server, and its zeros are exact.

    Parameters
    ----------
    regularizer : Regularizer, default Zero()
        psi.
    step : float, default 1.0
        eta, of the proximal steps of clients and server.
    relaxation : float, default 1.0
        alpha in (0, 2], in theory below 2: at 2 (Peaceman-Rachford) it converges only for some losses.

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

    step: float = field(default=1.0, metadata=POSITIVE)
    relaxation: float = field(default=1.0, metadata={"range": (lambda rho: 0.0 < rho <= 2.0, "0 < relaxation <= 2")})

    def part_of(self, remembered: Mapping[str, Vector]) -> Vector:
        """Return 2 x_i - y_i."""
        return 2.0 * remembered["local"] - remembered["center"]

    def numbers(self, state: MeanState) -> dict[str, float]:
        """Return eta and alpha."""
        return {"step": self.step, "relaxation": self.relaxation}

    def aggregate(self, problem: Problem, state: MeanState, replies: Replies) -> MeanState:
        """Return the mean of all clients' points and its prox_{eta psi}."""
        state = rescaled(state, replies.population)
        return advance(state, replies.sum() / state.population, self.step, problem.psi)

"""FedDyn: dynamic regularization.

Acar and others (ICLR 2021), algorithm 1; their symbols in brackets::

    each client of the sample: local [theta_i] ~ argmin f_i(x) - <own [g_i], x> + alpha/2 ||x - theta||^2
                               own <- own - alpha (local - theta); send local - theta
    server: dual [h] <- dual - alpha sum over the sample of p_i (local - theta); theta <- mean(local) - dual / alpha

With full participation, exact solves and zeros at the start, FedDyn(alpha) equals FedPD(eta = 1/alpha) and FedDR(eta =
1/alpha, alpha = 1), iterate by iterate.

Differs from the paper in: 1. client i has weight p_i, not 1/m; 2. `dual` is a mean over all clients, whose total weight
follows clients that join and leave; 3. the local minimisation is as exact as its stopping rule says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from flwr_fco.core.layout import Vector
from flwr_fco.server.algorithm import Problem
from flwr_fco.server.convergence import Exact, Limit
from flwr_fco.server.options import POSITIVE, MinimiseOptions
from flwr_fco.server.replies.replies import Replies
from flwr_fco.strategies.local_minimisation.mean_methods import MeanState, MeanStrategy, rescaled


def advance(state: MeanState, mean: Vector, penalty: float, share: float = 1.0) -> MeanState:
    """Return the state after a round.

    Parameters
    ----------
    state : MeanState
        Its mean is the dual h, over all clients' `own`.
    mean : ndarray of float64, shape (d,)
        Weighted mean of the sample's increments.
    penalty : float
        alpha.
    share : float, default 1.0
        Weight of the sample among all clients.
    """
    dual = state.mean - penalty * share * mean
    return state._replace(primal=state.primal + mean - dual / penalty, mean=dual, round=state.round + 1)


@dataclass(repr=False, eq=False, kw_only=True)
class FedDyn(MinimiseOptions, MeanStrategy):
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
    no_psi: ClassVar[str | None] = "its fixed points are zeros of the clients' mean gradient"

    penalty: float = field(default=0.1, metadata=POSITIVE)

    def part_of(self, remembered: Mapping[str, Vector]) -> Vector:
        """Return g_i: the mean is the dual h."""
        return remembered["own"]

    def numbers(self, state: MeanState) -> dict[str, float]:
        """Return alpha."""
        return {"penalty": self.penalty}

    def aggregate(self, problem: Problem, state: MeanState, replies: Replies) -> MeanState:
        """Return the mean of the sample's points, corrected by the mean of all clients' linear terms."""
        state, share = rescaled(state, replies.population), replies.weight / replies.population
        return advance(state, replies.sum() / replies.weight, self.penalty, share)

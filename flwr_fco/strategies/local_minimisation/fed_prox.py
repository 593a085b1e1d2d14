"""FedProx: every client minimises its loss with a proximal term around the model.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith (MLSys 2020), algorithm 2; their symbols in brackets::

    each client of the sample: local [w_k] ~ argmin F_k(w) + penalty/2 [mu/2] ||w - primal||^2; send local - primal
    server: primal [w] <- mean(local)

Its fixed points minimise the mean of the clients' Moreau envelopes, not the mean of their losses: unequal clients leave
a distance of order 1/penalty.

Differs from the paper in: 1. weights p_k with any sample, where the paper samples with these probabilities; 2. the
local minimisation is as exact as its stopping rule says, where the paper runs some epochs of SGD.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from flwr_fco.server.algorithm import Problem
from flwr_fco.server.convergence import Limit, ShiftedBy
from flwr_fco.server.options import POSITIVE, MinimiseOptions
from flwr_fco.server.replies.replies import Replies
from flwr_fco.strategies.primal_averaging.primal import PrimalState, PrimalStrategy


@dataclass(repr=False, eq=False, kw_only=True)
class FedProx(MinimiseOptions, PrimalStrategy):
    """FedProx: local minimisations around the model, averaged by the server.

    Parameters
    ----------
    penalty : float, default 0.1
        mu of the paper; a larger value gives a smaller bias and smaller steps.

    References
    ----------
    Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated optimization in heterogeneous networks (MLSys 2020),
    algorithm 2.

    Examples
    --------
    >>> FedProx(penalty=1.0, fraction_train=0.5).local_solver
    'local_minimization'
    """

    local_solver: ClassVar[str] = "local_minimization"
    limit: ClassVar[Limit] = ShiftedBy(
        "a point near the solution, at a distance of the order of 1/penalty",
        option="penalty",
        values=(3.0, 30.0),
        problem="smooth",
    )
    source: ClassVar[str] = "Li and others 2020"
    sends: ClassVar[str] = "w_k - w"
    no_psi: ClassVar[str | None] = "its clients' minimisations are smooth"

    penalty: float = field(default=0.1, metadata=POSITIVE)

    def numbers(self, state: PrimalState) -> dict[str, float]:
        """Return the penalty."""
        return {"penalty": self.penalty}

    def aggregate(self, problem: Problem, state: PrimalState, replies: Replies) -> PrimalState:
        """Return the mean of the clients' minimisers."""
        return PrimalState(state.primal + replies.sum(), state.round + 1)

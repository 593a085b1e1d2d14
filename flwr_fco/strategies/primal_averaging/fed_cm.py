"""FedCM: mixes the federation's last direction into every local step.

Xu, Wang, Wang, Yao (2021), algorithm 2; their symbols in brackets::

    each client of the sample, K times: x <- x - client_lr (alpha g(x) + (1 - alpha) direction [Delta])
                               send the increment
    server: direction <- -mean(increment) / (client_lr K); primal <- primal + server_lr mean(increment)

With alpha = 1 it is FedAvg. At a fixed step size it does not converge to the optimum of heterogeneous clients.

Differs from the paper in: 1. weights p_i; 2. unequal local work is normalised (``normalize_local_work``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np

from flwr_fco.core.layout import Vector
from flwr_fco.server.algorithm import Problem
from flwr_fco.server.convergence import Biased, Limit
from flwr_fco.server.options import RateOptions, WorkOptions
from flwr_fco.server.replies.replies import Replies
from flwr_fco.strategies.primal_averaging.primal import PrimalStrategy


class FedCMState(NamedTuple):
    """The server's state.

    Parameters
    ----------
    primal : ndarray of float64, shape (d,)
    direction : ndarray of float64, shape (d,)
        The mean direction of the last round's local steps.
    round : int
        Number of successful rounds.
    """

    primal: Vector
    direction: Vector
    round: int = 0


def advance(state: FedCMState, mean: Vector, elapsed: float, server_lr: float = 1.0) -> FedCMState:
    """Return the state after a round.

    Parameters
    ----------
    state : FedCMState
    mean : ndarray of float64, shape (d,)
        Weighted mean of the increments.
    elapsed : float
        Weighted mean of the clients' sums of step sizes, client_lr K.
    server_lr : float, default 1.0
    """
    return state._replace(primal=state.primal + server_lr * mean, direction=-mean / elapsed, round=state.round + 1)


@dataclass(repr=False, eq=False, kw_only=True)
class FedCM(RateOptions, WorkOptions, PrimalStrategy):
    """FedCM: every local step is mixed with the federation's last direction.

    Parameters
    ----------
    mix : float, default 0.1
        alpha in (0, 1]: the share of the client's own gradient.

    References
    ----------
    Xu, Wang, Wang, Yao: FedCM, federated learning with client-level momentum (2021), algorithm 2.

    Examples
    --------
    >>> FedCM(mix=0.1, client_lr=0.1, local_steps=5).local_solver
    'client_momentum'
    """

    local_solver: ClassVar[str] = "client_momentum"
    limit: ClassVar[Limit] = Biased(problem="smooth")
    source: ClassVar[str] = "Xu and others 2021"
    sends: ClassVar[str] = "x_K - x_0"
    traffic: ClassVar[str] = "2 / 1"
    no_psi: ClassVar[str | None] = "its local steps are plain gradient steps"

    mix: float = field(default=0.1, metadata={"range": (lambda alpha: 0.0 < alpha <= 1.0, "0 < mix <= 1")})

    def init(self, problem: Problem, primal: Vector) -> FedCMState:
        """Return the state before round 1."""
        return FedCMState(primal, np.zeros(primal.size))

    def vectors(self, state: FedCMState) -> dict[str, Vector]:
        """Return the model, and the direction if it is used."""
        return {"primal": state.primal} if self.mix == 1.0 else {"primal": state.primal, "direction": state.direction}

    def numbers(self, state: FedCMState) -> dict[str, float]:
        """Return alpha."""
        return {"mix": self.mix}

    def aggregate(self, problem: Problem, state: FedCMState, replies: Replies) -> FedCMState:
        """Return primal + server_lr mean(increment), and the new direction."""
        increment, elapsed = replies.mean()
        return advance(state, increment, elapsed, problem.server_lr)

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
from typing import NamedTuple

import numpy as np

from flwr_fco.algorithms import Client, Downlink, Memory, Moved, PrimalAveraging, Problem, Replies, Sent, To
from flwr_fco.objectives import Batch, Vector
from flwr_fco.strategies import StepStrategy, strategy


class FedCMState(NamedTuple):
    """The server's state.

    Parameters
    ----------
    primal : ndarray of float64, shape (d,)
        The averaged model.
    direction : ndarray of float64, shape (d,)
        The mean direction of the last round's local steps.
    round : int
        Number of successful rounds.
    """

    primal: Vector
    direction: Vector
    round: int = 0


@dataclass(frozen=True, kw_only=True)
class ClientMomentum(PrimalAveraging):
    """Gradient steps, each mixed with the federation's last direction.

    Parameters
    ----------
    mix : float
        alpha.

    References
    ----------
    Xu, Wang, Wang, Yao: FedCM (2021), algorithm 2.
    """

    name = "client_momentum"
    refuses = {
        **PrimalAveraging.refuses,
        "regularizer": "its local steps are plain gradient steps",
        "server_lr": "its clients' steps follow the last mean too",
    }

    mix: float = 0.1

    def local(self, client: Client, downlink: Downlink, memory: Memory | None) -> tuple[Sent, Moved]:
        """Take gradient steps, each mixed with the direction."""
        rate = client.rate * self.mix
        gradient_of = client.objective.gradient
        gradient = np.empty(client.plan.layout.size)
        drift = client.rate * (1.0 - self.mix) * downlink.vectors.get("direction", 0.0)

        def step(point: Vector, batch: Batch) -> None:
            point -= rate * gradient_of(point, batch, gradient)
            point -= drift

        return client.steps(downlink.vectors["primal"], step)

    def init(self, problem: Problem, primal: Vector) -> FedCMState:
        """Return the state before round 1."""
        return FedCMState(primal, np.zeros(primal.size))

    def downlink(self, problem: Problem, state: FedCMState, to: To | None) -> Downlink:
        """Return the model, and the direction if it is used."""
        used = {} if self.mix == 1.0 else {"direction": state.direction}
        return super().downlink(problem, state, to)._replace(vectors={"primal": state.primal, **used})

    def aggregate(self, problem: Problem, state: FedCMState, replies: Replies) -> FedCMState:
        """Return primal + server_lr mean(increment), and the new direction."""
        increment, elapsed = replies.mean()
        return FedCMState(state.primal + problem.server_lr * increment, -increment / elapsed, state.round + 1)


@strategy
class FedCM(StepStrategy):
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
    >>> from flwr_fco.strategies import Steps
    >>> FedCM(mix=0.2, client_lr=0.1, work=Steps(5))
    FedCM(work=Steps(5, batch_size=32), mix=0.2)
    """

    algorithm = ClientMomentum
    mix: float = field(default=0.1, metadata={"range": (lambda alpha: 0.0 < alpha <= 1.0, "0 < mix <= 1")})

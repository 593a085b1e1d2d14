"""FedPD: a primal-dual method in which every client keeps its own multiplier.

Zhang, Hong, Dhople, Yin, Liu (2021), algorithm 1; their symbols in brackets::

    each client: local [x_i] ~ argmin f_i(x) + <dual [lambda_i], x - x_0> + ||x - x_0||^2 / (2 eta)
                 dual <- dual + (local - x_0)/eta;  x_0 [x_{0,i}] <- local + eta dual;  send the change of x_0
    server: primal [x_0] <- mean(x_0)

With exact minimisations and zeros at the start, FedPD(eta) equals FedDR(eta, alpha = 1) and FedDyn(alpha = 1/eta),
iterate by iterate.

Differs from the paper in: 1. client i has weight p_i, not 1/N; 2. the paper averages with probability 1 - p after every
step, this implementation after every step: what a client remembers after several is no function of what it sends; 3.
the local minimisation is as exact as its stopping rule says.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from flwr_fco.algorithms import Client, Downlink, Memory, Moved, PrimalAveraging, PrimalState, Problem, Replies, Sent
from flwr_fco.strategies import POSITIVE, Everyone, Ledger, MinimiseStrategy, strategy


@dataclass(frozen=True, kw_only=True)
class PrimalDual(PrimalAveraging):
    """Minimise the augmented Lagrangian f(x) + <dual, x - x_0> + ||x - x_0||^2 / (2 eta), then update the dual.

    dual <- dual + (x - x_0)/eta; x_0 <- x + eta dual, which is sent. The message has the vector ``primal`` (x_0).
    Zhang, Hong, Dhople, Yin, Liu: FedPD (2021), algorithm 1.

    Parameters
    ----------
    step : float
        eta.
    """

    name = "fed_pd"
    memory = ("dual", "local")
    reads = "everyone"
    refuses = {**PrimalAveraging.refuses, "regularizer": "its fixed points are zeros of the clients' mean gradient"}

    step: float = 1.0

    def local(self, client: Client, downlink: Downlink, memory: Memory | None) -> tuple[Sent, Moved]:
        """Minimise; return the change of x_0 + eta dual."""
        primal = downlink.vectors["primal"]
        start, before = (primal, np.zeros_like(primal)) if memory is None else (memory["local"], memory["dual"])
        local, moved = client.minimise(start, shift=-before, center=primal, penalty=1.0 / self.step)
        dual = before + (local - primal) / self.step
        return {"increment": local + self.step * dual - primal}, moved

    def remember(self, downlink: Downlink, memory: Memory | None, sent: Memory, elapsed: float | None) -> Memory:
        """Return dual and x: x_0+ - x_0 = 2 (x - x_0) + eta dual."""
        before = np.zeros_like(sent["increment"]) if memory is None else memory["dual"]
        moved = 0.5 * (sent["increment"] - self.step * before)
        return {"dual": before + moved / self.step, "local": downlink.vectors["primal"] + moved}

    def aggregate(self, problem: Problem, state: PrimalState, replies: Replies) -> PrimalState:
        """Return the mean of the clients' x_0."""
        return PrimalState(state.primal + replies.sum() / replies.weight, state.round + 1)


@strategy
class FedPD(MinimiseStrategy):
    """FedPD: clients minimise their augmented Lagrangians and update their own multipliers.

    The multipliers are sums of sent values: on a float32 wire the method stalls at 1e-8.

    Parameters
    ----------
    step : float, default 1.0
        eta.

    References
    ----------
    Zhang, Hong, Dhople, Yin, Liu: FedPD, a federated learning framework with adaptivity to non-iid data (IEEE
    Transactions on Signal Processing, 2021), algorithm 1.

    Examples
    --------
    >>> FedPD(step=2.0)
    FedPD(step=2.0)
    """

    algorithm = PrimalDual
    participation: Everyone = field(default=Everyone())
    client_state: Ledger = field(default=Ledger())
    step: float = field(default=1.0, metadata=POSITIVE)

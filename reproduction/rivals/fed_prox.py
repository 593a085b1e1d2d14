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

from flwr_fco.algorithms import Client, Downlink, Memory, Moved, PrimalAveraging, PrimalState, Problem, Replies, Sent
from flwr_fco.strategies import POSITIVE, MinimiseStrategy, strategy


@dataclass(frozen=True, kw_only=True)
class ProximalPoint(PrimalAveraging):
    """Minimise f(theta) + penalty/2 ||theta - primal||^2, and send theta - primal.

    The message has the vector ``primal``.

    Parameters
    ----------
    penalty : float
        mu.
    """

    name = "fed_prox"
    reads = "sums"
    refuses = {**PrimalAveraging.refuses, "regularizer": "its clients' minimisations are smooth"}

    penalty: float = 0.1

    def local(self, client: Client, downlink: Downlink, memory: Memory | None) -> tuple[Sent, Moved]:
        """Minimise from the server's model."""
        primal = downlink.vectors["primal"]
        local, moved = client.minimise(primal, center=primal, penalty=self.penalty)
        return {"increment": local - primal}, moved

    def aggregate(self, problem: Problem, state: PrimalState, replies: Replies) -> PrimalState:
        """Return the mean of the clients' minimisers."""
        return PrimalState(state.primal + replies.sum(), state.round + 1)


@strategy
class FedProx(MinimiseStrategy):
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
    >>> FedProx(penalty=1.0, fraction_train=0.5)
    FedProx(fraction_train=0.5, penalty=1.0)
    """

    algorithm = ProximalPoint
    penalty: float = field(default=0.1, metadata=POSITIVE)

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

from dataclasses import dataclass

from flwr_fco.algorithms.contract import Downlink, Memory, Problem, Replies, Start
from flwr_fco.algorithms.primal_averaging import PrimalAveraging, PrimalState, no_psi


@dataclass(frozen=True, kw_only=True)
class ProximalPoint(PrimalAveraging):
    """Minimise f(theta) - <shift, theta> + penalty/2 ||theta - center||^2, and send theta - primal.

    The message has the vectors ``primal``, ``shift`` (default 0) and ``center`` (default `primal`), and the number
    ``penalty`` (default 0).

    Parameters
    ----------
    penalty : float
        mu.

    References
    ----------
    Li and others: Federated optimization in heterogeneous networks (MLSys 2020), algorithm 2.

    Examples
    --------
    >>> ProximalPoint.engine, ProximalPoint.memory, ProximalPoint.reads
    ('minimise', (), 'sums')
    >>> ProximalPoint(penalty=0.5).options({})
    {'penalty': 0.5}
    """

    name, engine, reads = "local_minimization", "minimise", "sums"
    refuses = no_psi("its clients' minimisations are smooth")

    penalty: float = 0.1

    @staticmethod
    def begin(downlink: Downlink, memory: Memory) -> Start:
        """Begin at the server's model."""
        vectors, primal = downlink.vectors, downlink.vectors["primal"]
        center, penalty = vectors.get("center", primal), downlink.numbers.get("penalty", 0.0)
        return Start(primal, vectors.get("shift"), center=center, penalty=penalty)

    def numbers(self, problem: Problem, state: PrimalState) -> dict[str, float]:
        """Return the penalty."""
        return {"penalty": self.penalty}

    def aggregate(self, problem: Problem, state: PrimalState, replies: Replies) -> PrimalState:
        """Return the mean of the clients' minimisers."""
        return PrimalState(state.primal + replies.sum(), state.round + 1)

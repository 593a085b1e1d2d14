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

import numpy as np

from flwr_fco.algorithms import Client, Downlink, MeanOfMemories, MeanState, Memory, Moved, Problem, Replies, rescaled
from flwr_fco.objectives import Vector
from flwr_fco.strategies import POSITIVE, Ledger, MinimiseStrategy, strategy


@dataclass(frozen=True, kw_only=True)
class DynamicRegularization(MeanOfMemories):
    """Minimise f(theta) - <own, theta> + alpha/2 ||theta - primal||^2; own <- own - alpha (theta - primal).

    `own` is the gradient of f at the client's last point. The message has the vector ``primal``. Acar and others:
    Federated learning based on dynamic regularization (ICLR 2021), algorithm 1.

    Parameters
    ----------
    penalty : float
        alpha.
    """

    name = "fed_dyn"
    memory = ("own", "local")
    refuses = {**MeanOfMemories.refuses, "regularizer": "its fixed points are zeros of the clients' mean gradient"}

    penalty: float = 0.1

    def local(self, client: Client, downlink: Downlink, memory: Memory | None) -> tuple[dict[str, Vector], Moved]:
        """Minimise from the client's last point."""
        primal = downlink.vectors["primal"]
        start, own = (primal, 0.0) if memory is None else (memory["local"], memory["own"])
        local, moved = client.minimise(start, shift=own, center=primal, penalty=self.penalty)
        return {"increment": local - primal}, moved

    def remember(self, downlink: Downlink, memory: Memory | None, sent: Memory, elapsed: float | None) -> Memory:
        """Return the gradient of f at the new point, and the point."""
        before = np.zeros_like(sent["increment"]) if memory is None else memory["own"]
        local = downlink.vectors["primal"] + sent["increment"]
        return {"own": before - self.penalty * sent["increment"], "local": local}

    def part_of(self, remembered: Mapping[str, Vector]) -> Vector:
        """Return g_i: the mean is the dual h."""
        return remembered["own"]

    def aggregate(self, problem: Problem, state: MeanState, replies: Replies) -> MeanState:
        """Return the mean of the sample's points, corrected by the mean of all clients' linear terms."""
        state = rescaled(state, replies.population)
        mean = replies.sum() / replies.weight
        dual = state.mean - self.penalty * (replies.weight / replies.population) * mean
        primal = state.primal + mean - dual / self.penalty
        return state._replace(primal=primal, mean=dual, round=state.round + 1)


@strategy
class FedDyn(MinimiseStrategy):
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
    >>> FedDyn(penalty=0.2, fraction_train=0.5)
    FedDyn(fraction_train=0.5, penalty=0.2)
    """

    algorithm = DynamicRegularization
    client_state: Ledger = field(default=Ledger())
    penalty: float = field(default=0.1, metadata=POSITIVE)

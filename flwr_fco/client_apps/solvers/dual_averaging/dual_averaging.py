"""Local dual averaging: the client half of FedDualAvg and FedDualAvg-OSP."""

from __future__ import annotations

from typing import Any

import numpy as np

from flwr_fco.client_apps.solvers.sparse_steps import shard_of
from flwr_fco.client_apps.solvers.steps import dual_steps, rate_of, take_whole_steps
from flwr_fco.client_apps.solvers.table import local_solver
from flwr_fco.objectives.base import Objective
from flwr_fco.wire.protocol import Downlink, Uplink


@local_solver("dual_averaging")
def dual_averaging(
    downlink: Downlink, objective: Objective, state: Any, rng: np.random.Generator
) -> tuple[Uplink, Any]:
    """Move the dual against the gradients at retrieved points: z <- z - client_lr g(retrieve(z, t + client_lr k)).

    Parameters
    ----------
    downlink : Downlink
        The server's message, with the vector ``dual`` and the elapsed time t. If the plan's option ``client-prox`` is
        False, psi does not act (OSP); ``trajectory`` requests all local steps.
    objective : Objective
    state : None
    rng : numpy.random.Generator

    Returns
    -------
    Uplink
        ``increment`` = z_K - z_0, sparse if the features are; ``elapsed`` = client_lr K; with ``trajectory`` also
        z_k - z_0 for k = 1..K.
    None
        No client state.

    References
    ----------
    Yuan, Zaheer, Reddi: Federated Composite Optimization (ICML 2021), algorithms 3 and 5.
    """
    client_lr, trajectory = downlink.client_lr, downlink.plan.options.get("trajectory", False)
    if not trajectory:
        shard = shard_of(downlink.plan, objective)
        if shard is not None:
            rate_of(downlink)
            return shard.answer(downlink, rng), state
    start = downlink.vectors["dual"]
    dual = start.copy()
    if trajectory:
        points = np.array([dual - start for _ in dual_steps(downlink, objective, dual, rng)])
        dual -= start
        return Uplink({"increment": dual, "trajectory": points}, client_lr * len(points), len(points)), state
    steps = take_whole_steps(downlink, objective, dual, rng)
    dual -= start
    return Uplink({"increment": dual}, client_lr * steps, steps), state

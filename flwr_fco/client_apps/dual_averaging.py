"""Local dual averaging: the client half of FedDualAvg and FedDualAvg-OSP."""

from __future__ import annotations

from typing import Any

import numpy as np

from flwr_fco.client_apps.local import local_solver, plan_minibatches
from flwr_fco.objectives.base import Objective
from flwr_fco.parameters import Vector
from flwr_fco.protocol import Downlink, Uplink

__all__ = ["dual_averaging"]


@local_solver("dual_averaging")
def dual_averaging(
    downlink: Downlink, objective: Objective, state: Any, rng: np.random.Generator
) -> tuple[Uplink, Any]:
    """Move the dual against the gradients at retrieved points: z <- z - client_lr g(retrieve(z, t + client_lr k)).

    Parameters
    ----------
    downlink : Downlink
        With the vector ``dual`` and the elapsed time t. The plan's option ``client-prox`` switches psi off (OSP),
        ``trajectory`` asks for all local steps.
    objective : Objective
    state : None
    rng : numpy.random.Generator

    Returns
    -------
    Uplink
        ``increment`` = z_K - z_0, ``elapsed`` = client_lr K; with ``trajectory`` also z_k - z_0 for k = 1..K.
    None
        No client state.

    References
    ----------
    Yuan, Zaheer, Reddi: Federated Composite Optimization (ICML 2021), algorithms 3 and 5.
    """
    plan, client_lr = downlink.plan, downlink.client_lr
    psi, h = plan.psi, plan.h
    client_prox = plan.options["client-prox"]
    start = downlink.vectors["dual"]
    dual, primal = start.copy(), np.empty_like(start)
    trajectory: list[Vector] | None = [] if plan.options["trajectory"] else None
    steps = 0
    for batch in plan_minibatches(plan, objective, rng):
        if client_prox:
            h.retrieve(dual, downlink.elapsed + client_lr * steps, psi, primal)
        else:
            h.conjugate_gradient(dual, primal)
        objective.add_gradient(primal, batch, -client_lr, dual)
        steps += 1
        if trajectory is not None:
            trajectory.append(dual - start)
    vectors = {"increment": dual - start}
    if trajectory is not None:
        vectors["trajectory"] = np.array(trajectory)
    return Uplink(vectors, client_lr * steps, steps), state

"""Local mirror descent: the client half of FedMid and FedMid-OSP."""

from __future__ import annotations

from typing import Any

import numpy as np

from flwr_fco.client_apps.solvers.steps import primal_steps
from flwr_fco.client_apps.solvers.table import local_solver
from flwr_fco.core.layout import Vector
from flwr_fco.objectives.base import Batch, Objective
from flwr_fco.wire.protocol import Downlink, Uplink

__all__ = ["mirror_descent"]


@local_solver("mirror_descent")
def mirror_descent(
    downlink: Downlink, objective: Objective, state: Any, rng: np.random.Generator
) -> tuple[Uplink, Any]:
    """Take proximal steps: w <- retrieve(grad h(w) - client_lr g(w), client_lr).

    Parameters
    ----------
    downlink : Downlink
        With the vector ``primal``. The plan's option ``client-prox`` switches psi off (OSP).
    objective : Objective
    state : None
    rng : numpy.random.Generator

    Returns
    -------
    Uplink
        ``increment`` = w_K - w_0, ``elapsed`` = client_lr K.
    None
        No client state.

    References
    ----------
    Yuan, Zaheer, Reddi: Federated Composite Optimization (ICML 2021), algorithms 2 and 4.
    """
    plan, client_lr = downlink.plan, downlink.client_lr
    h, client_prox = plan.h, plan.options.get("client-prox", True)

    def step(primal: Vector, batch: Batch) -> None:
        dual = h.gradient(primal)
        objective.add_gradient(primal, batch, -client_lr, dual)
        if client_prox:
            plan.point(dual, client_lr, primal)
        else:
            h.conjugate_gradient(dual, primal)

    return primal_steps(downlink, objective, rng, step), state

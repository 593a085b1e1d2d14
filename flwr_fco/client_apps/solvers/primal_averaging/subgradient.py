"""Local subgradient steps: the client half of FedAvgSubgradient."""

from __future__ import annotations

from typing import Any

import numpy as np

from flwr_fco.client_apps.solvers.steps import primal_steps
from flwr_fco.client_apps.solvers.table import local_solver
from flwr_fco.core.layout import Vector
from flwr_fco.objectives.base import Batch, Objective
from flwr_fco.wire.protocol import Downlink, Uplink

__all__ = ["subgradient"]


@local_solver("subgradient")
def subgradient(downlink: Downlink, objective: Objective, state: Any, rng: np.random.Generator) -> tuple[Uplink, Any]:
    """Take subgradient steps: w <- w - client_lr (g(w) + s(w)), s in the subdifferential of psi, sign(0) = 0.

    Parameters
    ----------
    downlink : Downlink
        With the vector ``primal``.
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
    Yuan, Zaheer, Reddi: Federated Composite Optimization (ICML 2021), section 5, 'FedAvg'.
    """
    psi, client_lr = downlink.plan.psi, downlink.client_lr

    def step(primal: Vector, batch: Batch) -> None:
        direction = psi.subgradient(primal)
        objective.add_gradient(primal, batch, 1.0, direction)
        primal -= client_lr * direction

    return primal_steps(downlink, objective, rng, step), state

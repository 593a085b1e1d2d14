"""The client halves of FedCM and FedSAM: gradient steps on the primal point, without a memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from flwr_fco.client_apps.solvers.steps import primal_steps
from flwr_fco.client_apps.solvers.table import local_solver
from flwr_fco.core.layout import Vector
from flwr_fco.objectives.base import Batch, Objective
from flwr_fco.wire.protocol import Downlink, Uplink

__all__ = ["client_momentum", "sharpness_aware"]


@local_solver("client_momentum")
def client_momentum(
    downlink: Downlink, objective: Objective, state: Any, rng: np.random.Generator
) -> tuple[Uplink, Any]:
    """Take steps along a mix of the client's gradients and the federation's last direction.

    x <- x - client_lr (alpha g(x) + (1 - alpha) direction); with alpha = 1 the local steps of FedAvg.

    Parameters
    ----------
    downlink : Downlink
        With the vectors ``primal`` and ``direction`` (not with alpha = 1) and the number ``mix`` (alpha).
    objective : Objective
    state : None
    rng : numpy.random.Generator

    Returns
    -------
    Uplink
        ``increment`` = x - primal.
    None
        No client state.

    References
    ----------
    Xu, Wang, Wang, Yao: FedCM (2021), algorithm 2.
    """
    client_lr, mix = downlink.client_lr, downlink.numbers.get("mix", 1.0)
    drift = None if mix == 1.0 else client_lr * (1.0 - mix) * downlink.vectors["direction"]
    gradient = np.empty_like(downlink.vectors["primal"])

    def step(point: Vector, batch: Batch) -> None:
        point -= (client_lr * mix) * objective.gradient(point, batch, gradient)
        if drift is not None:
            point -= drift

    return primal_steps(downlink, objective, rng, step), state


@local_solver("sharpness_aware")
def sharpness_aware(
    downlink: Downlink, objective: Objective, state: Any, rng: np.random.Generator
) -> tuple[Uplink, Any]:
    """Take steps along gradients at points a radius uphill: x <- x - client_lr g(x + radius g(x) / ||g(x)||).

    Parameters
    ----------
    downlink : Downlink
        With the vector ``primal`` and the number ``radius``; 0 is FedAvg.
    objective : Objective
    state : None
    rng : numpy.random.Generator

    Returns
    -------
    Uplink
        ``increment`` = x - primal; in its metrics ``gradient-evaluations``, two a step.
    None
        No client state.

    References
    ----------
    Qu and others: Generalized federated learning via sharpness aware minimization (ICML 2022), algorithm 1.
    """
    client_lr, radius = downlink.client_lr, downlink.numbers["radius"]
    gradients = 0

    def step(point: Vector, batch: Batch) -> None:
        nonlocal gradients
        gradient = objective.gradient(point, batch)
        norm = float(np.linalg.norm(gradient))
        gradients += 1
        if radius > 0.0 and norm > 0.0:
            gradient = objective.gradient(point + (radius / norm) * gradient, batch)
            gradients += 1
        point -= client_lr * gradient

    uplink = primal_steps(downlink, objective, rng, step)
    return uplink._replace(metrics={"gradient-evaluations": float(gradients)}), state

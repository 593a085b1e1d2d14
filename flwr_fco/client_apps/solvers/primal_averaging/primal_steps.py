"""Primal steps without client state: the client halves of LocalSGD, FedCM, FedSAM, FedMid and subgradient methods."""

from __future__ import annotations

from typing import Any

import numpy as np

from flwr_fco.client_apps.solvers.sparse_steps import shard_of
from flwr_fco.client_apps.solvers.steps import primal_steps, rate_of
from flwr_fco.client_apps.solvers.table import local_solver
from flwr_fco.core.layout import Vector
from flwr_fco.objectives.base import Batch, Objective
from flwr_fco.wire.protocol import Downlink, Uplink


@local_solver("client_momentum")
def client_momentum(
    downlink: Downlink, objective: Objective, state: Any, rng: np.random.Generator
) -> tuple[Uplink, Any]:
    """Take steps along a mix of the client's gradients and the federation's last direction.

    x <- x - client_lr (alpha g(x) + (1 - alpha) direction); with alpha = 1 these are the local steps of FedAvg.

    Parameters
    ----------
    downlink : Downlink
        The server's message, with the vectors ``primal`` and ``direction`` (not with alpha = 1) and the number ``mix``
        (alpha).
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
    shard = shard_of(downlink.plan, objective)
    if shard is not None and shard.coordinates.without_psi().own is None:
        start = downlink.vectors["primal"]
        moved = start.copy()
        steps = shard.dual_steps(downlink._replace(client_lr=rate_of(downlink) * mix), moved, rng, drift, psi=False)
        return Uplink({"increment": moved - start}, client_lr * steps, steps), state
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
        The server's message, with the vector ``primal`` and the number ``radius``; 0 gives FedAvg.
    objective : Objective
    state : None
    rng : numpy.random.Generator

    Returns
    -------
    Uplink
        ``increment`` = x - primal; its metrics contain ``gradient-evaluations``, two per step.
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


@local_solver("mirror_descent")
def mirror_descent(
    downlink: Downlink, objective: Objective, state: Any, rng: np.random.Generator
) -> tuple[Uplink, Any]:
    """Take proximal steps: w <- retrieve(grad h(w) - client_lr g(w), client_lr).

    Parameters
    ----------
    downlink : Downlink
        The server's message, with the vector ``primal``. If the plan's option ``client-prox`` is False, psi does not
        act (OSP).
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
    shard = shard_of(plan, objective)
    if shard is not None:
        start = downlink.vectors["primal"]
        point = start.copy()
        steps = shard.proximal_steps(downlink, point, rng)
        if steps is not None:
            return Uplink({"increment": point - start}, rate_of(downlink) * steps, steps), state

    def step(primal: Vector, batch: Batch) -> None:
        dual = h.gradient(primal)
        objective.add_gradient(primal, batch, -client_lr, dual)
        if client_prox:
            plan.point(dual, client_lr, primal)
        else:
            h.conjugate_gradient(dual, primal)

    return primal_steps(downlink, objective, rng, step), state


@local_solver("subgradient")
def subgradient(downlink: Downlink, objective: Objective, state: Any, rng: np.random.Generator) -> tuple[Uplink, Any]:
    """Take subgradient steps: w <- w - client_lr (g(w) + s(w)), s in the subdifferential of psi, sign(0) = 0.

    Parameters
    ----------
    downlink : Downlink
        The server's message, with the vector ``primal``.
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

"""Local dual averaging: the client half of FedDualAvg and FedDualAvg-OSP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from flwr_fco.client_apps.local import compiled_steps, local_solver
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
    start = downlink.vectors["dual"]
    dual = start.copy()
    if plan.options["trajectory"]:
        return _with_trajectory(downlink, objective, rng), state
    steps = compiled_steps(downlink, objective, dual, rng, psi=bool(plan.options["client-prox"]))
    if steps is None:
        steps = sum(1 for _ in _steps(downlink, objective, dual, rng))
    return Uplink({"increment": dual - start}, client_lr * steps, steps), state


def _steps(downlink: Downlink, objective: Objective, dual: Vector, rng: np.random.Generator) -> Iterator[None]:
    """Take the local steps one by one, changing `dual` in place."""
    plan, client_lr, elapsed = downlink.plan, downlink.client_lr, downlink.elapsed
    psi, h = plan.psi, plan.h
    client_prox = plan.options["client-prox"]
    primal = np.empty_like(dual)
    for k, batch in enumerate(objective.batches(rng, downlink.first_order)):
        if client_prox:
            h.retrieve(dual, elapsed + client_lr * k, psi, primal)
        else:
            h.conjugate_gradient(dual, primal)
        objective.add_gradient(primal, batch, -client_lr, dual)
        yield


def _with_trajectory(downlink: Downlink, objective: Objective, rng: np.random.Generator) -> Uplink:
    """Return the uplink with z_k - z_0 for all local steps k = 1..K."""
    start = downlink.vectors["dual"]
    dual = start.copy()
    trajectory = np.array([dual - start for _ in _steps(downlink, objective, dual, rng)])
    steps = len(trajectory)
    vectors = {"increment": dual - start, "trajectory": trajectory}
    return Uplink(vectors, downlink.client_lr * steps, steps)

"""Local mirror prox: the client half of FedMiP."""

from __future__ import annotations

from typing import Any

import numpy as np

from flwr_fco.client_apps.solvers.steps import primal_steps, rate_of
from flwr_fco.client_apps.solvers.table import local_solver
from flwr_fco.core.layout import Vector
from flwr_fco.objectives.base import Batch, Objective
from flwr_fco.wire.protocol import Downlink, Uplink

__all__ = ["mirror_prox"]


@local_solver("mirror_prox")
def mirror_prox(downlink: Downlink, objective: Objective, state: Any, rng: np.random.Generator) -> tuple[Uplink, Any]:
    """Take proximal steps along the operator at extrapolated points: two fresh batches a step.

    For k < K::

        half   = retrieve(grad h(primal) - client_lr g(primal), client_lr)
        primal <- retrieve(grad h(primal) - client_lr g(half), client_lr)

    Parameters
    ----------
    downlink : Downlink
        With the vector ``primal``. The plan's option ``trajectory`` asks for all half steps, K times the uplink.
    objective : Objective
        Its gradient is the operator g.
    state : None
    rng : numpy.random.Generator

    Returns
    -------
    Uplink
        ``increment`` = z_K - z_0, ``elapsed`` = client_lr K; with ``trajectory`` also z_{k+1/2} - z_0 for k = 0..K-1,
        of shape (K, d).
    None
        No client state.

    References
    ----------
    Bai, Bullins: Local Composite Saddle Point Optimization (ICLR 2024), algorithm 2 (appendix H).
    """
    plan, client_lr = downlink.plan, rate_of(downlink)
    start = downlink.vectors["primal"]
    half, halves = np.empty_like(start), []

    def step(primal: Vector, pair: Batch) -> None:
        dual = plan.h.gradient(primal)
        moved = dual.copy()
        objective.add_gradient(primal, pair[0], -client_lr, moved)
        plan.point(moved, client_lr, half)
        objective.add_gradient(half, pair[1], -client_lr, dual)
        plan.point(dual, client_lr, primal)
        if plan.options["trajectory"]:
            halves.append(half - start)

    uplink = primal_steps(downlink, objective, rng, step, in_pairs=True)
    if plan.options["trajectory"]:
        uplink = uplink._replace(vectors={**uplink.vectors, "trajectory": np.array(halves)})
    return uplink, state

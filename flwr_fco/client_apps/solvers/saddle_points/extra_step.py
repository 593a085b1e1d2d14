"""Local extragradient steps with subgradients: the client half of ExtraStepLocalSGD."""

from __future__ import annotations

from typing import Any

import numpy as np

from flwr_fco.client_apps.solvers.steps import primal_steps, rate_of
from flwr_fco.client_apps.solvers.table import local_solver
from flwr_fco.core.layout import Vector
from flwr_fco.objectives.base import Batch, Objective
from flwr_fco.wire.protocol import Downlink, Uplink

__all__ = ["extra_step"]


@local_solver("extra_step")
def extra_step(downlink: Downlink, objective: Objective, state: Any, rng: np.random.Generator) -> tuple[Uplink, Any]:
    """Take extragradient steps, projected onto psi's constraint: two fresh batches a step.

    For k < K, s a subgradient of the finite part of psi (sign(0) = 0) and P the projection::

        half   = P(primal - client_lr (g(primal) + s(primal)))
        primal <- P(primal - client_lr (g(half) + s(half)))

    Parameters
    ----------
    downlink : Downlink
        With the vector ``primal``. The geometry is Euclidean.
    objective : Objective
        Its gradient is the operator g.
    state : None
    rng : numpy.random.Generator

    Returns
    -------
    Uplink
        ``increment`` = z_K - z_0, ``elapsed`` = client_lr K.
    None
        No client state.

    References
    ----------
    Beznosikov, Samokhin, Gasnikov: Distributed saddle-point problems (2020), Extra Step Local SGD; with subgradients
    and projection as in section 6 of Bai, Bullins: Local Composite Saddle Point Optimization (ICLR 2024).
    """
    psi, client_lr = downlink.plan.psi, rate_of(downlink)

    def step(primal: Vector, pair: Batch) -> None:
        half = primal - client_lr * psi.subgradient(primal)
        objective.add_gradient(primal, pair[0], -client_lr, half)
        # At step 0 the proximal map of a sum of a norm and a constraint is the projection onto the constraint.
        psi.prox(half, 0.0, half)
        primal -= client_lr * psi.subgradient(half)
        objective.add_gradient(half, pair[1], -client_lr, primal)
        psi.prox(primal, 0.0, primal)

    return primal_steps(downlink, objective, rng, step, in_pairs=True), state

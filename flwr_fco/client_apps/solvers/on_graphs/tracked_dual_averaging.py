"""Local dual averaging with a tracker from a graph's relay: the client half of the decentralised strategies."""

from __future__ import annotations

import numpy as np

from flwr_fco.client_apps.solvers.gradient_tracking.gradient_tracking import descend, first_gradient
from flwr_fco.client_apps.solvers.table import local_solver
from flwr_fco.objectives.base import Objective
from flwr_fco.wire.protocol import Downlink, Uplink


@local_solver("tracked_dual_averaging")
def tracked_dual_averaging(
    downlink: Downlink, objective: Objective, state: None, rng: np.random.Generator
) -> tuple[Uplink, None]:
    """Take steps with the tracker c stored by a graph's relay: z <- z - client_lr (g(retrieve(z, t)) + c).

    Parameters
    ----------
    downlink : Downlink
        The server's message, with the vectors ``dual`` and ``tracker`` (omitted if zero); the number ``gradient``
        requests a single gradient at the start point instead (round 0).
    objective : Objective
    state : None
    rng : numpy.random.Generator

    Returns
    -------
    Uplink
        ``increment`` = z_K - z_0.
    None
        No client state.

    References
    ----------
    Liang, Peng, Zhang: Gradient tracking for high dimensional federated optimization, algorithm 1.
    """
    start = downlink.vectors["dual"]
    if "gradient" in downlink.numbers:
        return first_gradient(downlink, objective, start, rng), None
    dual = start.copy()
    steps = descend(downlink, objective, dual, downlink.vectors.get("tracker"), rng)
    return Uplink({"increment": dual - start}, downlink.client_lr * steps, steps), None

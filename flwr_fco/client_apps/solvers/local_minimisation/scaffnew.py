"""The client half of Scaffnew (ProxSkip)."""

from __future__ import annotations

import numpy as np

from flwr_fco.client_apps.solvers.steps import as_sent, primal_steps
from flwr_fco.client_apps.solvers.table import local_solver
from flwr_fco.core.layout import Vector
from flwr_fco.objectives.base import Batch, Objective
from flwr_fco.wire.protocol import ClientState, Downlink, Uplink


@local_solver("scaffnew")
def scaffnew(
    downlink: Downlink, objective: Objective, state: ClientState | None, rng: np.random.Generator
) -> tuple[Uplink, ClientState]:
    """Update the shift with the new average, then take steps until the next one: x <- x - client_lr (g(x) - shift).

    The first half completes the previous round: shift <- shift + p/client_lr (primal - local).

    Parameters
    ----------
    downlink : Downlink
        The server's message, with the vector ``primal`` and the numbers ``probability`` (p) and ``last-rate`` (the
        client_lr of the last round that was used); its work has the number of steps drawn by the server.
    objective : Objective
    state : mapping or None
        ``shift`` (h_i) and ``local`` (the last point before averaging); None means a shift of 0.
    rng : numpy.random.Generator

    Returns
    -------
    Uplink
        ``increment`` = x - primal.
    mapping
        The next state, a function of this one, the message and the increment.

    References
    ----------
    Mishchenko, Malinovsky, Stich, Richtarik: ProxSkip (ICML 2022), algorithm 2.
    """
    primal, client_lr = downlink.vectors["primal"], downlink.client_lr
    if state is None:
        shift = np.zeros_like(primal)
    else:
        gain = downlink.numbers["probability"] / downlink.numbers["last-rate"]
        shift = state["shift"] + gain * (primal - state["local"])

    def step(point: Vector, batch: Batch) -> None:
        gradient = objective.gradient(point, batch)
        gradient -= shift
        point -= client_lr * gradient

    uplink = primal_steps(downlink, objective, rng, step)
    increment = as_sent(uplink.vectors["increment"], downlink.plan)
    return uplink._replace(vectors={"increment": increment}), {"shift": shift, "local": primal + increment}

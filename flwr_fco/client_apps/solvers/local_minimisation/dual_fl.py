"""The client half of DualFL."""

from __future__ import annotations

import numpy as np

from flwr_fco.client_apps.solvers.local_minimisation.local_minimization import answer, solve
from flwr_fco.client_apps.solvers.steps import as_sent
from flwr_fco.client_apps.solvers.table import local_solver
from flwr_fco.objectives.base import Objective
from flwr_fco.wire.protocol import ClientState, Downlink, Uplink


@local_solver("dual_fl")
def dual_fl(
    downlink: Downlink, objective: Objective, state: ClientState | None, rng: np.random.Generator
) -> tuple[Uplink, ClientState]:
    """Update the control zeta with the new average, then minimise f(theta) + alpha/2 ||theta||^2 - nu <zeta, theta>.

    The first half completes the previous round, because the round's average arrives with this message::

        a+ <- zeta + primal - local                 zeta <- (1 + momentum) a+ - momentum a

    Parameters
    ----------
    downlink : Downlink
        The server's message, with the vector ``primal`` (the averaged theta) and the numbers ``duality`` (nu),
        ``momentum`` (beta) and ``regularization`` (alpha, default 0).
    objective : Objective
    state : mapping or None
        ``control`` (zeta), ``anchor`` (a) and ``local`` (theta_j, the starting point); None means zeta = a = 0.
    rng : numpy.random.Generator
        Not used.

    Returns
    -------
    Uplink
        ``increment`` = theta_j - primal.
    mapping
        The next state, a function of this one, the message and the increment.

    References
    ----------
    Park, Xu: DualFL, algorithm 1.
    """
    primal, numbers = downlink.vectors["primal"], downlink.numbers
    if state is None:
        control = anchor = np.zeros_like(primal)
        start = primal
    else:
        anchor = state["control"] + primal - state["local"]
        control = (1.0 + numbers["momentum"]) * anchor - numbers["momentum"] * state["anchor"]
        start = state["local"]
    found = solve(
        downlink,
        objective,
        shift=numbers["duality"] * control,
        penalty=numbers.get("regularization", 0.0),
        start=start,
    )
    increment = as_sent(found.point - primal, downlink.plan)
    return answer(increment, found), {"control": control, "anchor": anchor, "local": primal + increment}

"""The client halves of FedPD, FedDR and FedDyn: proximal steps with each client's own dual."""

from __future__ import annotations

import numpy as np

from flwr_fco.client_apps.solvers.local_minimisation.local_minimization import answer, solve
from flwr_fco.client_apps.solvers.steps import as_sent
from flwr_fco.client_apps.solvers.table import local_solver
from flwr_fco.objectives.base import Objective
from flwr_fco.wire.protocol import ClientState, Downlink, Uplink


@local_solver("fed_pd")
def fed_pd(
    downlink: Downlink, objective: Objective, state: ClientState | None, rng: np.random.Generator
) -> tuple[Uplink, ClientState]:
    """Minimise the augmented Lagrangian f(x) + <dual, x - x_0> + ||x - x_0||^2 / (2 eta), then update the dual.

    dual <- dual + (x - x_0)/eta; x_0 <- x + eta dual. This is repeated ``repeats`` times; the last x_0 is sent.

    Parameters
    ----------
    downlink : Downlink
        The server's message, with the vector ``primal`` (x_0) and the numbers ``step`` (eta) and ``repeats`` (default
        1).
    objective : Objective
    state : mapping or None
        ``dual`` (lambda) and ``local`` (x); None means a dual of 0.
    rng : numpy.random.Generator
        Not used.

    Returns
    -------
    Uplink
        ``increment`` = the last x_0 minus `primal`.
    mapping
        The next state: a function of this one, the message and the increment if `repeats` is 1.

    References
    ----------
    Zhang, Hong, Dhople, Yin, Liu: FedPD (2021), algorithm 1.
    """
    primal, step = downlink.vectors["primal"], downlink.numbers["step"]
    dual = np.zeros_like(primal) if state is None else state["dual"]
    local = primal if state is None else state["local"]
    center = primal
    repeats = int(downlink.numbers.get("repeats", 1.0))
    for _ in range(repeats):
        before = dual
        found = solve(downlink, objective, shift=-dual, center=center, penalty=1.0 / step, start=local)
        local = found.point
        dual = dual + (local - center) / step
        center = local + step * dual
    increment = as_sent(center - primal, downlink.plan)
    if repeats == 1:
        # Derive both from the sent increment, as the server's ledger does: x_0+ - x_0 = 2 (x - x_0) + eta lambda.
        moved = 0.5 * (increment - step * before)
        dual, local = before + moved / step, primal + moved
    return answer(increment, found), {"dual": dual, "local": local}


@local_solver("fed_dr")
def fed_dr(
    downlink: Downlink, objective: Objective, state: ClientState | None, rng: np.random.Generator
) -> tuple[Uplink, ClientState]:
    """Take a Douglas-Rachford step: y <- y + alpha (primal - x), x <- prox_{eta f}(y), send the change of 2 x - y.

    Parameters
    ----------
    downlink : Downlink
        The server's message, with the vector ``primal`` (x-bar) and the numbers ``step`` (eta) and ``relaxation``
        (alpha).
    objective : Objective
    state : mapping or None
        ``center`` (y) and ``local`` (x); None means zeros.
    rng : numpy.random.Generator
        Not used.

    Returns
    -------
    Uplink
        ``increment``, the change of 2 x - y.
    mapping
        The next state, a function of this one, the message and the increment.

    References
    ----------
    Tran-Dinh, Pham, Phan, Nguyen: FedDR (NeurIPS 2021), algorithm 1.
    """
    primal, numbers = downlink.vectors["primal"], downlink.numbers
    zeros = np.zeros_like(primal)
    before, local = (zeros, zeros) if state is None else (state["center"], state["local"])
    center = before + numbers["relaxation"] * (primal - local)
    start = primal if state is None else local
    found = solve(downlink, objective, center=center, penalty=1.0 / numbers["step"], start=start)
    old = 2.0 * local - before
    increment = as_sent(2.0 * found.point - center - old, downlink.plan)
    return answer(increment, found), {"center": center, "local": 0.5 * (old + increment + center)}


@local_solver("fed_dyn")
def fed_dyn(
    downlink: Downlink, objective: Objective, state: ClientState | None, rng: np.random.Generator
) -> tuple[Uplink, ClientState]:
    """Minimise f(theta) - <own, theta> + alpha/2 ||theta - primal||^2; own <- own - alpha (theta - primal).

    Parameters
    ----------
    downlink : Downlink
        The server's message, with the vector ``primal`` and the number ``penalty`` (alpha).
    objective : Objective
    state : mapping or None
        ``own`` (g_i, the gradient of f at the client's last point) and ``local``; None means own = 0.
    rng : numpy.random.Generator
        Not used.

    Returns
    -------
    Uplink
        ``increment`` = theta - primal.
    mapping
        The next state, a function of this one, the message and the increment.

    References
    ----------
    Acar and others: Federated learning based on dynamic regularization (ICLR 2021), algorithm 1.
    """
    primal, penalty = downlink.vectors["primal"], downlink.numbers["penalty"]
    own = np.zeros_like(primal) if state is None else state["own"]
    start = primal if state is None else state["local"]
    found = solve(downlink, objective, shift=own, center=primal, penalty=penalty, start=start)
    increment = as_sent(found.point - primal, downlink.plan)
    return answer(increment, found), {"own": own - penalty * increment, "local": primal + increment}

"""The client halves of APDA-Inexact and 5GCS: primal-dual methods with duals stored on the clients."""

from __future__ import annotations

import numpy as np

from flwr_fco.client_apps.solvers.local_minimisation.local_minimization import answer, solve
from flwr_fco.client_apps.solvers.steps import as_sent
from flwr_fco.client_apps.solvers.table import local_solver
from flwr_fco.objectives.base import Objective
from flwr_fco.wire.protocol import ClientState, Downlink, Uplink


@local_solver("apda_inexact")
def apda_inexact(
    downlink: Downlink, objective: Objective, state: ClientState | None, rng: np.random.Generator
) -> tuple[Uplink, ClientState]:
    """Project the dual using the new mean, take a proximal step, and send the point whose projection is the next dual.

    With V the last point sent and mean(V) its mean over clients, received from the server::

        y <- V - mean(V)                                                  x_hat ~ prox_{eta_x f}(x - eta_x y)
        x+ <- x - eta_x (grad f(x_hat) + y)                               x_bar = x+ + theta (x+ - x)
        V <- y - eta_y beta_y (y + grad f(x_hat)) + eta_y x_bar

    In the first round there is no V yet: y = 0, x = x_hat = x_bar = primal, and only V is computed.

    Parameters
    ----------
    downlink : Downlink
        The server's message, with the vectors ``primal`` (in the first round) and ``dual-mean`` (mean(V), afterwards)
        and the numbers ``primal-step`` (eta_x), ``dual-step`` (eta_y), ``damping`` (beta_y) and ``extrapolation``
        (theta).
    objective : Objective
    state : mapping or None
        ``sent`` (V) and ``local`` (x).
    rng : numpy.random.Generator
        Not used.

    Returns
    -------
    Uplink
        ``increment``, the change of V, and ``local-increment``, the change of x, which only informs the server of the
        model.
    mapping
        The next state.

    References
    ----------
    Sadiev, Kovalev, Richtarik: Communication acceleration of local gradient methods via an accelerated primal-dual
    algorithm with an inexact prox (NeurIPS 2022); reconstructed from the abstract and from Park and Xu's table 2.
    """
    numbers = downlink.numbers
    eta_x, eta_y = numbers["primal-step"], numbers["dual-step"]
    damping = eta_y * numbers["damping"]
    if state is None:
        point = downlink.vectors["primal"]
        sent = eta_y * point - damping * objective.gradient(point)
        increment = as_sent(sent, downlink.plan)
        uplink = Uplink({"increment": increment, "local-increment": np.zeros_like(point)}, None, 1)
        return uplink, {"sent": increment, "local": point.copy()}
    before, local = state["sent"], state["local"]
    dual = before - downlink.vectors["dual-mean"]
    found = solve(downlink, objective, center=local - eta_x * dual, penalty=1.0 / eta_x, start=local)
    gradient = objective.gradient(found.point)
    change = as_sent(-eta_x * (gradient + dual), downlink.plan)
    following = local + change
    extrapolated = following + numbers["extrapolation"] * change
    sent = dual - damping * (dual + gradient) + eta_y * extrapolated
    increment = as_sent(sent - before, downlink.plan)
    uplink = answer(increment, found, **{"local-increment": change})
    return uplink, {"sent": before + increment, "local": following}


@local_solver("five_gcs")
def five_gcs(
    downlink: Downlink, objective: Objective, state: ClientState | None, rng: np.random.Generator
) -> tuple[Uplink, ClientState]:
    """Minimise f(y) - mu/2 ||y||^2 + tau/2 ||y - (x_hat + u/tau)||^2; u <- u + tau (x_hat - y).

    The dual u is M times the paper's u_m, and tau is M times the paper's, so that clients need to know neither M nor
    their weights.

    Parameters
    ----------
    downlink : Downlink
        The server's message, with the vector ``primal`` (x_hat) and the numbers ``dual-step`` (tau) and ``convexity``
        (mu).
    objective : Objective
    state : mapping or None
        ``dual`` (u) and ``local`` (y); None means u = 0.
    rng : numpy.random.Generator
        Not used.

    Returns
    -------
    Uplink
        ``increment``, the change of u.
    mapping
        The next state, a function of this one, the message and the increment.

    References
    ----------
    Grudzien, Malinovsky, Richtarik: Can 5th generation local training methods support client sampling? Yes! (2022),
    algorithm 1.
    """
    primal, tau = downlink.vectors["primal"], downlink.numbers["dual-step"]
    dual = np.zeros_like(primal) if state is None else state["dual"]
    start = primal if state is None else state["local"]
    penalty = tau - downlink.numbers["convexity"]
    found = solve(downlink, objective, shift=dual + tau * primal, penalty=penalty, start=start)
    increment = as_sent(tau * (primal - found.point), downlink.plan)
    return answer(increment, found), {"dual": dual + increment, "local": primal - increment / tau}

"""Local minimisation: the client half of FedProx, and functions shared with other methods with exact local steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from flwr_fco.client_apps.minimisers import Minimum, minimise
from flwr_fco.client_apps.solvers.steps import as_sent
from flwr_fco.client_apps.solvers.table import local_solver
from flwr_fco.core.layout import Vector
from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives.base import Objective
from flwr_fco.wire.protocol import ClientState, Downlink, Uplink
from flwr_fco.work import Minimise


@local_solver("local_minimization")
def local_minimization(
    downlink: Downlink, objective: Objective, state: ClientState | None, rng: np.random.Generator
) -> tuple[Uplink, ClientState | None]:
    """Minimise f(theta) - <shift, theta> + penalty/2 ||theta - center||^2, with the terms from the server's message.

    With `shift` 0 and `center` the model this is the local step of FedProx.

    Parameters
    ----------
    downlink : Downlink
        The server's message, with the vectors ``primal``, to which the increment is relative, ``shift`` (default 0) and
        ``center`` (default `primal`), and the number ``penalty`` (default 0). Its work is a
        :class:`flwr_fco.work.Minimise`.
    objective : Objective
    state : mapping or None
        ``local``, the client's last solution, at which it starts.
    rng : numpy.random.Generator
        Not used.

    Returns
    -------
    Uplink
        ``increment`` = the minimiser minus `primal`; its metrics contain the numbers of iterations and gradients, the
        certified gap, and ``capped`` = 1.0 if the stopping rule was not met.
    mapping
        The next state.

    References
    ----------
    Li and others: Federated optimization in heterogeneous networks (MLSys 2020), algorithm 2.
    """
    vectors, primal = downlink.vectors, downlink.vectors["primal"]
    found = solve(
        downlink,
        objective,
        shift=vectors.get("shift"),
        center=vectors.get("center", primal),
        penalty=downlink.numbers.get("penalty", 0.0),
        start=primal if state is None else state["local"],
    )
    increment = as_sent(found.point - primal, downlink.plan)
    return answer(increment, found), {"local": primal + increment}


def solve(downlink: Downlink, objective: Objective, **terms: Any) -> Minimum:
    """Run the engine of the downlink's work.

    Parameters
    ----------
    downlink : Downlink
        Its number ``duality``, if present, is DualFL's nu, which the certified gap depends on.
    objective : Objective
    **terms
        shift, center, penalty and start, as in :func:`flwr_fco.client_apps.minimisers.minimise`.

    Raises
    ------
    ConfigurationError
        If the server requests gradient steps.
    """
    work = downlink.local_work
    if not isinstance(work, Minimise):
        raise ConfigurationError(
            f"the local solver {downlink.plan.solver!r} minimises, it cannot take {work}. Give the strategy "
            "work=Minimise(...)"
        )
    return minimise(objective, work, duality=downlink.numbers.get("duality", 0.0), **terms)


def answer(increment: Vector, found: Minimum, **others: Any) -> Uplink:
    """Return the uplink of a minimisation.

    Parameters
    ----------
    increment : ndarray of float64, shape (d,)
    found : Minimum
    **others : ndarray
        Additional vectors.
    """
    metrics = {name: value for name, value in found.metrics.items() if np.isfinite(value)}
    # A sufficiently good warm start needs no iteration, but 0 steps in a reply would mean that the client did no work.
    return Uplink({"increment": increment, **others}, None, max(found.iterations, 1), metrics=metrics)

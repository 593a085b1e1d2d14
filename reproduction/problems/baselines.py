"""Baselines: solutions without a federation that can replace a strategy."""

from __future__ import annotations

from typing import NamedTuple

from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives import Vector
from reproduction.pooled import centralized_solution
from reproduction.problems.tasks import Task

#: Names that can replace a strategy's: solutions without a federation.
BASELINES = {
    "centralized": "all data in one place, solved by proximal gradient, with a certificate",
    "local": "the data of one client (--set client=3), solved likewise",
}


class BaselineSolution(NamedTuple):
    """The result of a baseline.

    Parameters
    ----------
    w : ndarray of float64, shape (layout.size,)
    certificate : str
        Name of the measure of optimality.
    gap : float
        Its value: 0 at the minimiser for the baseline's data.
    """

    w: Vector
    certificate: str
    gap: float


def solve_baseline(task: Task, kind: str, *, client: int = 0, tol: float = 1e-6) -> BaselineSolution:
    """Return the solution without a federation, by accelerated proximal gradient on gathered data, and its certificate.

    Parameters
    ----------
    task : Task
    kind : {"centralized", "local"}
        The data of all clients, or of one client.
    client : int, default 0
        The client, for ``"local"``.
    tol : float, default 1e-6
        Relative norm of the proximal gradient mapping at which to stop.

    Returns
    -------
    BaselineSolution

    Raises
    ------
    ConfigurationError
        If there is no such client, the problem is a saddle-point problem (it has no minimum), or its minimum cannot be
        certified (for a network).

    Examples
    --------
    >>> from reproduction.problems.named import load_task
    >>> found = solve_baseline(load_task("lasso-small"), "centralized")
    >>> found.certificate, found.gap < 1e-4
    ('duality gap', True)
    """
    if not 0 <= client < len(task.clients):
        raise ConfigurationError(f"client={client}; expected 0 .. {len(task.clients) - 1}")
    # The data set's own loss may be another one, without the task's l2 term.
    clients = task.clients if kind == "centralized" else [task.clients[client]]
    if not task.convex:
        raise ConfigurationError(
            f"baseline={kind!r} solves a problem to a certified tolerance, which nobody can do for a network; expected "
            "a strategy such as FedDualAvg"
        )
    w = centralized_solution(clients, task.regularizer, tol=tol)
    name, gap = task.certificate(w, clients)
    return BaselineSolution(w, name, gap)

"""Local minimisation, by one of the interchangeable methods of :mod:`flwr_fco.engines.minimisers`."""

from __future__ import annotations

import numpy as np

from flwr_fco.algorithms.contract import Moved, Start
from flwr_fco.engines.client import LocalClient
from flwr_fco.engines.minimisers import minimise
from flwr_fco.errors import ConfigurationError
from flwr_fco.work import Minimise


def minimised(client: LocalClient, start: Start) -> Moved:
    """Minimise f(x) - <shift, x> + penalty/2 ||x - center||^2.

    The message's number ``duality`` is DualFL's nu, on which the certified gap depends.

    Raises
    ------
    ConfigurationError
        If the server requests gradient steps.
    """
    downlink = client.downlink
    work = downlink.local_work
    if not isinstance(work, Minimise):
        raise ConfigurationError(
            f"the local solver {downlink.plan.solver!r} minimises, it cannot take {work}. The strategy takes "
            "MinimiseOptions in the place of WorkOptions"
        )
    minimum = minimise(
        client.objective,
        work,
        shift=start.shift,
        center=start.center,
        penalty=start.penalty,
        start=start.point,
        duality=downlink.numbers.get("duality", 0.0),
    )
    metrics = {name: value for name, value in minimum.metrics.items() if np.isfinite(value)}
    moved = minimum.point - (start.point if start.base is None else start.base)
    # A sufficiently good warm start needs no iteration, but 0 steps in a reply would mean that the client did no work.
    return Moved(moved, None, max(minimum.iterations, 1), metrics)

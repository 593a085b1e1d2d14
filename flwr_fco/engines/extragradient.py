"""Steps of dual extrapolation: the operator at an extrapolated point moves the dual."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from flwr_fco.algorithms.contract import Moved, Start
from flwr_fco.core.clock import timed
from flwr_fco.core.layout import Vector
from flwr_fco.engines.client import LocalClient, pairs


def extrapolations(
    dual: Vector,
    batches: Iterable[tuple[Any, Any]],
    *,
    elapsed: float,
    step_size: float,
    retrieve: Callable[[Vector, float, Vector], Vector],
    add_operator: Callable[[Vector, Any, float, Vector], None],
    watch: Callable[[Vector], None] | None = None,
) -> Iterator[Vector]:
    """Take the steps of dual extrapolation one by one, changing `dual` in place.

    Parameters
    ----------
    dual : ndarray of float64, shape (d,)
        omega_0; after each step omega_k.
    batches : iterable of pairs
        The batches on which the operator is evaluated at z_k and at z_{k+1/2}.
    elapsed : float
        t: the weight of psi at the first step.
    retrieve : callable
        ``retrieve(z, t, out)`` writes argmin_w -<z, w> + t psi(w) + h(w).
    add_operator : callable
        ``add_operator(point, batch, scale, out)`` adds scale times the operator at a point to `out`.
    watch : callable, optional
        Called in each step with omega_{k+1/2} = omega_k - step_size g(z_k), a vector that is overwritten afterwards.

    Yields
    ------
    ndarray of float64, shape (d,)
        z_{k+1/2} = retrieve(omega_{k+1/2}, elapsed + step_size (k + 1)); `dual` is omega_{k+1}. The next step
        overwrites both.
    """
    primal, half = np.empty_like(dual), np.empty_like(dual)
    for k, (first, second) in enumerate(batches):
        retrieve(dual, elapsed + step_size * k, primal)
        half[:] = dual
        add_operator(primal, first, -step_size, half)
        if watch is not None:
            watch(half)
        # In place, so that arrays without psi are not copied again.
        retrieve(half, elapsed + step_size * (k + 1), half)
        add_operator(half, second, -step_size, dual)
        yield half


def extragradient(client: LocalClient, start: Start) -> Moved:
    """Take steps of dual extrapolation, with two new batches each.

    The plan's option ``trajectory`` asks for all omega_{k+1/2} - omega_0.

    Parameters
    ----------
    start : Start
        From the dual omega_0.
    """
    plan, rate, objective = client.plan, client.rate, client.objective
    dual, asked = start.point.copy(), plan.options.get("trajectory", False)
    trajectory: list[Vector] = []
    half_points = extrapolations(
        dual,
        pairs(timed(objective.batches(client.rng, client.downlink.first_order, per_step=2))),
        elapsed=client.downlink.elapsed,
        step_size=rate,
        retrieve=plan.point,
        add_operator=objective.add_gradient,
        watch=(lambda half: trajectory.append(half - start.point)) if asked else None,
    )
    steps = sum(1 for _ in half_points)
    dual -= start.point
    return Moved(dual, rate * steps, steps, trajectory=np.array(trajectory) if asked else None)

"""Local dual extrapolation: the client half of FeDualEx."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from flwr_fco.client_apps.quotas import timed
from flwr_fco.client_apps.solvers.steps import pairs, rate_of
from flwr_fco.client_apps.solvers.table import local_solver
from flwr_fco.core.layout import Vector
from flwr_fco.objectives.base import Objective
from flwr_fco.wire.protocol import Downlink, Uplink


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
    step_size : float
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


@local_solver("dual_extrapolation")
def dual_extrapolation(
    downlink: Downlink, objective: Objective, state: Any, rng: np.random.Generator
) -> tuple[Uplink, Any]:
    """Move the dual against the operator at extrapolated points, with two new batches per step.

    For k < K, with t = elapsed + client_lr k::

        half = retrieve(dual - client_lr g(retrieve(dual, t)), t + client_lr)
        dual <- dual - client_lr g(half)

    Parameters
    ----------
    downlink : Downlink
        The server's message, with the vector ``dual`` and the elapsed time t. The plan's option ``trajectory`` requests
        the duals of all half steps, K times the uplink.
    objective : Objective
        A saddle function or a convex loss, whose gradient is the operator g.
    state : None
    rng : numpy.random.Generator

    Returns
    -------
    Uplink
        ``increment`` = omega_K - omega_0, ``elapsed`` = client_lr K; with ``trajectory`` also omega_{k+1/2} - omega_0
        for k = 0..K-1, of shape (K, d).
    None
        No client state.

    References
    ----------
    Bai, Bullins: Local Composite Saddle Point Optimization (ICLR 2024), algorithm 1.
    """
    plan, client_lr = downlink.plan, rate_of(downlink)
    start = downlink.vectors["dual"]
    dual = start.copy()
    trajectory: list[Vector] = []
    half_points = extrapolations(
        dual,
        pairs(timed(objective.batches(rng, downlink.first_order, per_step=2))),
        elapsed=downlink.elapsed,
        step_size=client_lr,
        retrieve=plan.point,
        add_operator=objective.add_gradient,
        watch=(lambda half: trajectory.append(half - start)) if plan.options["trajectory"] else None,
    )
    steps = sum(1 for _ in half_points)
    vectors: dict[str, Vector] = {"trajectory": np.array(trajectory)} if plan.options["trajectory"] else {}
    dual -= start
    vectors["increment"] = dual
    return Uplink(vectors, client_lr * steps, steps), state

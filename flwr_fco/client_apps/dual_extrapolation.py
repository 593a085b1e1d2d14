"""Local dual extrapolation: the client half of FeDualEx."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from flwr_fco.client_apps.local import local_solver, rate_of
from flwr_fco.client_apps.pairs import plan_pairs
from flwr_fco.objectives.base import Objective
from flwr_fco.parameters import Vector
from flwr_fco.protocol import Downlink, Uplink

__all__ = ["HalfStep", "dual_extrapolation", "extrapolations"]


class HalfStep(NamedTuple):
    """The extrapolated point of a step; both arrays are overwritten by the next step.

    Parameters
    ----------
    dual : ndarray of float64, shape (d,)
        omega_{k+1/2} = omega_k - step_size g(z_k).
    primal : ndarray of float64, shape (d,)
        z_{k+1/2} = retrieve(dual, elapsed + step_size (k + 1)).
    """

    dual: Vector
    primal: Vector


def extrapolations(
    dual: Vector,
    batches: Iterable[tuple[Any, Any]],
    *,
    elapsed: float,
    step_size: float,
    retrieve: Callable[[Vector, float, Vector], Vector],
    add_operator: Callable[[Vector, Any, float, Vector], None],
) -> Iterator[HalfStep]:
    """Take the steps of dual extrapolation one by one, changing `dual` in place.

    Parameters
    ----------
    dual : ndarray of float64, shape (d,)
        omega_0; after each step omega_k.
    batches : iterable of pairs
        What the operator is asked with at z_k and at z_{k+1/2}.
    elapsed : float
        t: the weight of psi at the first step.
    step_size : float
    retrieve : callable
        ``retrieve(z, t, out)`` writes argmin_w -<z, w> + t psi(w) + h(w).
    add_operator : callable
        ``add_operator(point, batch, scale, out)`` adds scale times the operator at a point to `out`.

    Yields
    ------
    HalfStep
        Before the next step is taken, `dual` is omega_{k+1}.
    """
    primal, half = np.empty_like(dual), np.empty_like(dual)
    for k, (first, second) in enumerate(batches):
        retrieve(dual, elapsed + step_size * k, primal)
        half[:] = dual
        add_operator(primal, first, -step_size, half)
        retrieve(half, elapsed + step_size * (k + 1), primal)
        add_operator(primal, second, -step_size, dual)
        yield HalfStep(half, primal)


@local_solver("dual_extrapolation")
def dual_extrapolation(
    downlink: Downlink, objective: Objective, state: Any, rng: np.random.Generator
) -> tuple[Uplink, Any]:
    """Move the dual against the operator at extrapolated points: two fresh batches a step.

    For k < K, with t = elapsed + client_lr k::

        half = retrieve(dual - client_lr g(retrieve(dual, t)), t + client_lr)
        dual <- dual - client_lr g(half)

    Parameters
    ----------
    downlink : Downlink
        With the vector ``dual`` and the elapsed time t. The plan's option ``trajectory`` asks for the duals of all half
        steps, K times the uplink.
    objective : Objective
        Its gradient is the operator g; a convex loss is as good as a saddle function.
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
    half_steps = extrapolations(
        dual,
        plan_pairs(downlink, objective, rng),
        elapsed=downlink.elapsed,
        step_size=client_lr,
        retrieve=plan.point,
        add_operator=objective.add_gradient,
    )
    vectors: dict[str, Vector] = {}
    if plan.options["trajectory"]:
        vectors["trajectory"] = np.array([half.dual - start for half in half_steps])
        steps = len(vectors["trajectory"])
    else:
        steps = sum(1 for _ in half_steps)
    vectors["increment"] = dual - start
    return Uplink(vectors, client_lr * steps, steps), state

"""Steps of dual averaging: one by one, compiled, or on sparse features; and of dual extrapolation, in pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fco.algorithms.contract import Moved, Start
from flwr_fco.core.computing import check_time, timed
from flwr_fco.core.layout import Vector
from flwr_fco.engines.client import LocalClient, pairs
from flwr_fco.kernels.dual_averaging import NOTHING, Retrieval, dual_averaging
from flwr_fco.objectives.base import Objective, shuffled_epochs
from flwr_fco.objectives.design import LinearData, SparseDesign
from flwr_fco.wire.protocol import Downlink
from flwr_fco.work import FirstOrder


def dual_steps(client: LocalClient, start: Start) -> Moved:
    """Take steps z <- z - client_lr (g(retrieve(z, t + client_lr k)) + shift), in a compiled loop if possible.

    The message's number ``gradient`` asks for one stochastic gradient at the start instead, the plan's option
    ``trajectory`` for all z_k - z_0.

    Parameters
    ----------
    start : Start
        From the dual z_0.
    """
    downlink, rate = client.downlink, client.rate
    if "gradient" in downlink.numbers:
        work = FirstOrder(steps=1, batch_size=downlink.first_order.batch_size)
        batch = next(client.objective.batches(client.rng, work))
        return Moved(client.objective.gradient(client.point(start.point, downlink.elapsed), batch), rate, 1)
    dual, trajectory = start.point.copy(), None
    shift = None if start.shift is None else rate * start.shift
    if client.shard is not None:
        steps = client.shard.local_dual_steps(downlink, dual, client.rng, shift)
    elif downlink.plan.options.get("trajectory", False):
        each = one_by_one(downlink, client.objective, dual, client.rng, shift)
        trajectory = np.array([dual - start.point for _ in each])
        steps = len(trajectory)
    elif client.features is not None:
        steps = client.features.dual_steps(downlink, dual, client.rng, shift)
    elif (done := compiled_steps(downlink, client.objective, dual, client.rng, shift)) is not None:
        steps = done
    else:
        steps = sum(1 for _ in one_by_one(downlink, client.objective, dual, client.rng, shift))
    dual -= start.point
    return Moved(dual, rate * steps, steps, trajectory=trajectory)


def one_by_one(
    downlink: Downlink, objective: Objective, dual: Vector, rng: np.random.Generator, shift: Vector | None = None
) -> Iterator[None]:
    """Take the local steps of dual averaging one by one: z <- z - client_lr g(retrieve(z, t)) - shift.

    Parameters
    ----------
    downlink : Downlink
        The server's message, with the elapsed time t, to which each step adds its size. The plan's option
        ``client-prox`` (default True) determines whether psi acts.
    dual : ndarray of float64, shape (d,)
        Changed in place.
    shift : ndarray of float64, shape (d,), optional
        client_lr times a tracker.
    """
    plan, client_lr = downlink.plan, downlink.client_lr
    psi, primal = plan.options.get("client-prox", True), np.empty_like(dual)
    for k, batch in enumerate(timed(objective.batches(rng, downlink.first_order))):
        if psi:
            plan.point(dual, downlink.elapsed + client_lr * k, primal)
        else:
            plan.h.conjugate_gradient(dual, primal)
        objective.add_gradient(primal, batch, -client_lr, dual)
        if shift is not None:
            dual -= shift
        yield


def compiled_steps(
    downlink: Downlink, objective: Objective, dual: Vector, rng: np.random.Generator, shift: Vector | None = None
) -> int | None:
    """Take the local steps of dual averaging one epoch at a time, if psi, h and the objective allow it.

    Parameters
    ----------
    downlink, objective, dual, rng, shift
        As in :func:`one_by_one`.

    Returns
    -------
    int or None
        The number of steps; None, without a step, if the compiled loop does not support this problem.
    """
    plan, client_lr = downlink.plan, downlink.client_lr
    retrieval, work = plan.local_retrieval, plan.work if downlink.work is None else downlink.work
    if retrieval is None or not isinstance(work, FirstOrder) or work.batch_size is None:
        return None
    data = objective.linear_data()
    if data is None or data.link == "softmax" or isinstance(data.design, SparseDesign):
        return None
    # The loop itself cuts shuffled epochs into batches, so it cannot be used for an objective with its own batches.
    if type(objective).batches is not Objective.batches:
        return None
    move = NOTHING if shift is None else shift
    steps, rows = 0, len(data.targets)
    batch_size = min(work.batch_size, rows)
    for order in shuffled_epochs(rows, rng, work):
        if steps:
            check_time(steps)
        elapsed = downlink.elapsed + client_lr * steps
        steps += compiled_epoch(data, order, batch_size, retrieval, elapsed, client_lr, move, dual)
    return steps


def compiled_epoch(
    data: LinearData,
    order: NDArray[np.int64],
    batch_size: int,
    retrieval: Retrieval,
    elapsed: float,
    client_lr: float,
    shift: Vector,
    dual: Vector,
) -> int:
    """Take the steps of local dual averaging over an epoch in one kernel call.

    Parameters
    ----------
    data : LinearData
        The data of a loss with the link ``"identity"`` or ``"logistic"``.
    order : ndarray of int64
        Row numbers, cut into minibatches from the front.
    retrieval : Retrieval
        The map retrieve.
    elapsed : float
        The weight of psi at the first step.
    shift : ndarray of float64, shape (d,) or (0,)
        Subtracted from the dual in each step: client_lr times a tracker.
    dual : ndarray of float64, shape (d,)
        Changed in place.

    Returns
    -------
    int
        The number of steps.
    """
    design, link, targets, _, l2, factor, *_ = data
    logistic, fields = link == "logistic", tuple(retrieval)
    steps: int = dual_averaging(
        logistic, design.matrix, targets, order, batch_size, fields, elapsed, client_lr, factor, l2, shift, dual
    )
    return steps


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
        timed(pairs(objective.batches(client.rng, client.downlink.first_order, per_step=2))),
        elapsed=client.downlink.elapsed,
        step_size=rate,
        retrieve=plan.point,
        add_operator=objective.add_gradient,
        watch=(lambda half: trajectory.append(half - start.point)) if asked else None,
    )
    steps = sum(1 for _ in half_points)
    dual -= start.point
    return Moved(dual, rate * steps, steps, trajectory=np.array(trajectory) if asked else None)

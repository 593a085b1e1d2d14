"""Steps of dual averaging: one by one, compiled, or on sparse features; and of dual extrapolation, in pairs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from flwr_fco.algorithms.contract import Moved, Start
from flwr_fco.core.layout import Vector
from flwr_fco.engines.client import LocalClient, pairs
from flwr_fco.kernels.dual_averaging import NOTHING, Retrieval, dual_averaging
from flwr_fco.messages.protocol import Downlink
from flwr_fco.objectives.base import Objective, shuffled_epochs
from flwr_fco.objectives.design import LinearData, SparseDesign
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
        # A copy: an objective may use its array again.
        return Moved(np.array(client.objective.gradient(client.point(start.point, downlink.elapsed), batch)), rate, 1)
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
    moved = Moved(dual, rate * steps, steps)
    return moved if trajectory is None else moved._replace(trajectory=trajectory)


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
    retrieve = plan.point_in_loops
    for k, batch in enumerate(objective.batches(rng, downlink.first_order)):
        if psi:
            retrieve(dual, downlink.elapsed + client_lr * k, primal)
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
    if data is None or data.link == "softmax" or type(data.design) is SparseDesign:
        return None
    # The loop itself cuts shuffled epochs into batches, so it cannot be used for an objective with its own batches.
    if type(objective).batches is not Objective.batches:
        return None
    move = NOTHING if shift is None else shift
    steps, rows = 0, len(data.targets)
    batch_size = min(work.batch_size, rows)
    for order in shuffled_epochs(rows, rng, work):
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


def extragradient(client: LocalClient, start: Start) -> Moved:
    """Take steps of dual extrapolation, with two new batches each.

    A step goes from the dual omega_k to omega_{k+1/2} = omega_k - client_lr g(z_k), and with the operator at z_{k+1/2}
    from omega_k to omega_{k+1}. The plan's option ``trajectory`` asks for all omega_{k+1/2} - omega_0.

    Parameters
    ----------
    start : Start
        From the dual omega_0.
    """
    plan, rate, elapsed, add_operator = client.plan, client.rate, client.downlink.elapsed, client.objective.add_gradient
    retrieve, dual, asked = plan.point_in_loops, start.point.copy(), plan.options.get("trajectory", False)
    batches = client.objective.batches(client.rng, client.downlink.first_order, per_step=2)
    trajectory: list[Vector] = []
    primal, half, steps = np.empty_like(dual), np.empty_like(dual), 0
    for first, second in pairs(batches):
        retrieve(dual, elapsed + rate * steps, primal)
        half[:] = dual
        add_operator(primal, first, -rate, half)
        if asked:
            trajectory.append(half - start.point)
        steps += 1
        # In place, so that arrays without psi are not copied again.
        retrieve(half, elapsed + rate * steps, half)
        add_operator(half, second, -rate, dual)
    dual -= start.point
    return Moved(dual, rate * steps, steps, trajectory=np.array(trajectory) if asked else None)

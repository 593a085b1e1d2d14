"""Loops shared by several local solvers: primal steps and dual averaging steps, also compiled."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fco.client_apps.quotas import check_time, timed
from flwr_fco.client_apps.solvers.sparse_steps import has_sparse_rows, shard_of, tell_dense
from flwr_fco.core.layout import Vector
from flwr_fco.errors import ProtocolError
from flwr_fco.kernels.dual_averaging import NOTHING, Retrieval, dual_averaging
from flwr_fco.objectives.base import Batch, Objective, shuffled_epochs
from flwr_fco.objectives.design import LinearData, SparseDesign
from flwr_fco.wire.protocol import Downlink, Plan, Uplink
from flwr_fco.work import FirstOrder


def rate_of(downlink: Downlink) -> float:
    """Return the step size of a local solver that has one.

    Parameters
    ----------
    downlink : Downlink

    Raises
    ------
    ProtocolError
        If the server's message has no step size.
    """
    if math.isnan(downlink.client_lr):
        raise ProtocolError(
            f"the local solver {downlink.plan.solver!r} needs a learning rate; the server's message has no client-lr"
        )
    return downlink.client_lr


def as_sent(vector: Vector, plan: Plan) -> Vector:
    """Round to the wire's precision, so that the client stores the same numbers that the server receives."""
    # With "auto" a client with state sends all digits.
    rounded = vector.astype(np.float32) if plan.wire_dtype == "float32" else vector
    return rounded.astype(np.float64, copy=False)


def pairs(batches: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield batches in pairs.

    Parameters
    ----------
    batches : iterable
        An even number of batches.

    Examples
    --------
    >>> list(pairs("abcd"))
    [('a', 'b'), ('c', 'd')]
    """
    one_by_one = iter(batches)
    return zip(one_by_one, one_by_one, strict=True)


def primal_steps(
    downlink: Downlink,
    objective: Objective,
    rng: np.random.Generator,
    step: Callable[[Vector, Batch], None],
    *,
    in_pairs: bool = False,
) -> Uplink:
    """Take the local steps of a primal method and return the uplink with the increment.

    Parameters
    ----------
    downlink : Downlink
        The server's message, with the vector ``primal``.
    objective : Objective
    rng : numpy.random.Generator
    step : callable
        ``(primal, batch) -> None``: changes the point in place.
    in_pairs : bool, default False
        Whether a step takes two batches.
    """
    start, client_lr = downlink.vectors["primal"], rate_of(downlink)
    if has_sparse_rows(objective):
        tell_dense(downlink.plan, f"{downlink.plan.solver} moves all of them in every step")
    primal = start.copy()
    steps = 0
    drawn = timed(objective.batches(rng, downlink.first_order, per_step=2 if in_pairs else 1))
    for batch in pairs(drawn) if in_pairs else drawn:
        step(primal, batch)
        steps += 1
    return Uplink({"increment": primal - start}, client_lr * steps, steps)


def take_dual_steps(
    downlink: Downlink, objective: Objective, dual: Vector, rng: np.random.Generator, shift: Vector | None = None
) -> int:
    """Take the local steps of dual averaging, in a compiled loop if possible; return their number.

    Parameters
    ----------
    downlink, objective, dual, rng, shift
        As in :func:`dual_steps`.
    """
    shard = shard_of(downlink.plan, objective)
    if shard is not None:
        rate_of(downlink)
        return shard.dual_steps(downlink, dual, rng, shift)
    return take_whole_steps(downlink, objective, dual, rng, shift)


def take_whole_steps(
    downlink: Downlink, objective: Objective, dual: Vector, rng: np.random.Generator, shift: Vector | None = None
) -> int:
    """Take local steps of dual averaging on all coordinates; return their number.

    Parameters
    ----------
    downlink, objective, dual, rng, shift
        As in :func:`dual_steps`.
    """
    steps = compiled_steps(downlink, objective, dual, rng, shift)
    if steps is None:
        steps = sum(1 for _ in dual_steps(downlink, objective, dual, rng, shift))
    return steps


def dual_steps(
    downlink: Downlink, objective: Objective, dual: Vector, rng: np.random.Generator, shift: Vector | None = None
) -> Iterator[None]:
    """Take the local steps of dual averaging one by one: z <- z - client_lr g(retrieve(z, t)) - shift.

    Parameters
    ----------
    downlink : Downlink
        The server's message, with the elapsed time t, to which each step adds its size. The plan's option
        ``client-prox`` (default True) determines whether psi acts.
    objective : Objective
    dual : ndarray of float64, shape (d,)
        Changed in place.
    rng : numpy.random.Generator
    shift : ndarray of float64, shape (d,), optional
        client_lr times a tracker.
    """
    plan, client_lr = downlink.plan, rate_of(downlink)
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
        As in :func:`dual_steps`.

    Returns
    -------
    int or None
        The number of steps; None, without a step, if the compiled loop does not support this problem.
    """
    plan, client_lr = downlink.plan, rate_of(downlink)
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
    batch_size : int
    retrieval : Retrieval
        The map retrieve.
    elapsed : float
        The weight of psi at the first step.
    client_lr : float
    shift : ndarray of float64, shape (d,) or (0,)
        Subtracted from the dual in each step: client_lr times a tracker.
    dual : ndarray of float64, shape (d,)
        Changed in place.

    Returns
    -------
    int
        The number of steps.
    """
    design, link, targets, _, l2, factor, _ = data
    steps: int = dual_averaging(
        link == "logistic", design.matrix, targets, order, batch_size, *retrieval, elapsed, client_lr, factor, l2,
        shift, dual,
    )  # fmt: skip
    return steps

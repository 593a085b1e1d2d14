"""Steps of dual averaging: one by one, compiled, or on sparse features; and of dual extrapolation, in pairs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import numpy as np

from flwr_fco.core.layout import Vector
from flwr_fco.kernels.dual_averaging import NOTHING, dual_averaging
from flwr_fco.messages.protocol import Downlink
from flwr_fco.objectives.base import Objective, Place, shuffled_epochs
from flwr_fco.work import FirstOrder


def one_by_one(
    downlink: Downlink, objective: Objective, dual: Any, rng: np.random.Generator, shift: Any, place: Place
) -> Iterator[None]:
    """Take the local steps of dual averaging one by one: z <- z - client_lr g(retrieve(z, t)) - shift.

    Parameters
    ----------
    downlink : Downlink
        The server's message, with the elapsed time t, to which each step adds its size.
    dual : ndarray of float64, shape (d,)
        Changed in place. Or another kind of vector, that of the place; so are the next ones.
    shift : ndarray of float64, shape (d,), or None
        client_lr times a tracker.
    place : Place
        Where the vectors are.
    """
    client_lr, retrieve, primal = downlink.client_lr, place.retrieve, 1.0 * dual
    for k, batch in enumerate(objective.batches(rng, downlink.first_order)):
        retrieve(dual, downlink.elapsed + client_lr * k, primal)
        objective.add_gradient(primal, batch, -client_lr, dual)
        if shift is not None:
            dual -= shift
        yield


def compiled_steps(
    downlink: Downlink, objective: Objective, dual: Vector, rng: np.random.Generator, shift: Vector | None, psi: bool
) -> int | None:
    """Take the local steps of dual averaging one epoch at a time, if psi, h and the objective allow it.

    Parameters
    ----------
    downlink, objective, dual, rng, shift
        As in :func:`one_by_one`.
    psi : bool
        Whether psi acts.

    Returns
    -------
    int or None
        The number of steps; None, without a step, if the compiled loop does not support this problem.
    """
    plan, client_lr = downlink.plan, downlink.client_lr
    retrieval, work = plan.local_retrievals[psi], plan.work if downlink.work is None else downlink.work
    if retrieval is None or not isinstance(work, FirstOrder) or work.batch_size is None:
        return None
    loss = objective.compiled
    if loss is None or loss[0] < 0 or not isinstance(loss[2], np.ndarray):
        return None
    # The loop itself cuts shuffled epochs into batches, so it cannot be used for an objective with its own batches.
    if type(objective).batches is not Objective.batches:
        return None
    move = NOTHING if shift is None else shift
    steps, rows, kernel = 0, objective.num_examples, cast(Any, dual_averaging)
    batch_size = min(work.batch_size, rows)
    for order in shuffled_epochs(rows, rng, work):
        elapsed = downlink.elapsed + client_lr * steps
        steps += kernel(*loss, order, batch_size, tuple(retrieval), elapsed, client_lr, objective.l2, move, dual)
    return steps


def extragradient(
    downlink: Downlink,
    objective: Objective,
    dual: Any,
    rng: np.random.Generator,
    place: Place,
    halves: list[Vector] | None,
) -> int:
    """Take the steps of dual extrapolation, with two new batches each; return their number.

    A step goes from the dual omega_k to omega_{k+1/2} = omega_k - client_lr g(z_k), and with the operator at z_{k+1/2}
    from omega_k to omega_{k+1}.

    Parameters
    ----------
    downlink, objective, dual, rng, place
        As in :func:`one_by_one`.
    halves : list of ndarray, or None
        Gets all omega_{k+1/2}.
    """
    rate, elapsed, add_operator, steps = downlink.client_lr, downlink.elapsed, objective.add_gradient, 0
    retrieve, primal, half = place.retrieve, 1.0 * dual, 1.0 * dual
    batches = iter(objective.batches(rng, downlink.first_order, per_step=2))
    for first, second in zip(batches, batches, strict=True):
        retrieve(dual, elapsed + rate * steps, primal)
        half[:] = dual
        add_operator(primal, first, -rate, half)
        if halves is not None:
            halves.append(np.array(place.get(half)))
        steps += 1
        # In place, so that arrays without psi are not copied again.
        retrieve(half, elapsed + rate * steps, half)
        add_operator(half, second, -rate, dual)
    return steps

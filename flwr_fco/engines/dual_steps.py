"""Steps of dual averaging, and of dual extrapolation in pairs: one by one, or many in a compiled loop."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any, cast

import numpy as np

from flwr_fco.core.layout import Vector
from flwr_fco.kernels.dual_averaging import NOTHING, dual_averaging
from flwr_fco.messages.protocol import Downlink
from flwr_fco.objectives.base import Objective, Place
from flwr_fco.work import FirstOrder

_NO_ROWS = np.zeros(0, dtype=np.int64)


def one_by_one(
    downlink: Downlink,
    objective: Objective,
    dual: Any,
    rng: np.random.Generator,
    place: Place,
    shift: Any = None,
    pairs: bool = False,
) -> Iterator[Any]:
    """Take local steps one by one: z <- z - client_lr g(retrieve(z, t)) - shift; yield each z.

    In pairs they are those of dual extrapolation, with two new batches each: from the dual omega_k to omega_{k+1/2} =
    omega_k - client_lr g(z_k), which is yielded, and with the operator at z_{k+1/2} from omega_k to omega_{k+1}.

    Parameters
    ----------
    downlink : Downlink
        The server's message, with the elapsed time t, to which each step adds its size.
    dual : ndarray of float64, shape (d,)
        Changed in place. Or another kind of vector, that of the place; so is the shift.
    place : Place
        Where the vectors are.
    shift : ndarray of float64, shape (d,), optional
        client_lr times a tracker.
    pairs : bool, default False
        Whether a step takes two batches.
    """
    rate, retrieve, add_gradient = downlink.client_lr, place.retrieve, objective.add_gradient
    primal, half = 1.0 * dual, 1.0 * dual
    drawn = iter(objective.batches(rng, downlink.first_order, per_step=1 + pairs))
    for k, batch in enumerate(drawn):
        retrieve(dual, downlink.elapsed + rate * k, primal)
        if pairs:
            half[:] = dual
            add_gradient(primal, batch, -rate, half)
            yield half
            # In place, so that arrays without psi are not copied again.
            retrieve(half, downlink.elapsed + rate * (k + 1), half)
            add_gradient(half, next(drawn), -rate, dual)
            continue
        add_gradient(primal, batch, -rate, dual)
        if shift is not None:
            dual -= shift
        yield dual


def compiled_steps(
    downlink: Downlink,
    objective: Objective,
    dual: Vector,
    rng: np.random.Generator,
    shift: Vector | None = None,
    psi: bool = True,
    pairs: bool = False,
) -> int | None:
    """Take the steps of :func:`one_by_one` in a compiled loop; return their number.

    None, without a step, if psi, h or the objective is not for compiled loops.

    Parameters
    ----------
    downlink, objective, dual, rng, shift, pairs
        As in :func:`one_by_one`.
    psi : bool, default True
        Whether psi acts.
    """
    loop = _loop(downlink, objective, psi)
    if loop is None:
        return None
    (loss, retrieval, work, rows), kernel, steps = loop, cast(Any, dual_averaging), 0
    size, move, rate = min(work.batch_size, rows), NOTHING if shift is None else shift, downlink.client_lr
    orders = (rng.permutation(rows)[:used] for used in work.epoch_sizes(rows, 1 + pairs))
    # Two epochs at a time have whole pairs of batches.
    both = (np.concatenate([one, other]) for one, other in zip_longest(orders, orders, fillvalue=_NO_ROWS))
    for order in both if pairs else orders:
        elapsed = downlink.elapsed + rate * steps
        steps += kernel(loss, order, rows, size, pairs, retrieval, elapsed, rate, objective.l2, move, dual)
    return steps


def _loop(downlink: Downlink, objective: Objective, psi: bool) -> Any:
    """Return what compiled loops take: the loss, the map, the work and the number of rows; None if they cannot."""
    plan, loss = downlink.plan, objective.compiled
    retrieval, work = plan.local_retrievals[psi], plan.work if downlink.work is None else downlink.work
    if retrieval is None or not isinstance(work, FirstOrder) or work.batch_size is None:
        return None
    if loss is None or loss[0] < 0 or not isinstance(loss[2], np.ndarray):
        return None
    # The loops cut shuffled epochs into batches themselves.
    if type(objective).batches is not Objective.batches:
        return None
    return loss, tuple(retrieval), work, loss[2].shape[0]

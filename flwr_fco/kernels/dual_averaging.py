"""Local dual averaging in one compiled call, on dense and on sparse rows: retrieve, gradient step and tracker.

At 1,024 features a kernel call costs a third of a step, and a step written in Python needs two kernel calls and four
NumPy passes. Tuples are taken apart before the loop: in it they cost a fifth of a step of ten rows of 50 features.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fco.kernels import njit
from flwr_fco.kernels.losses import add_batch, slope
from flwr_fco.kernels.prox import at, p_norm_point, point, scale, separable

#: Stands for a vector of zeros where a kernel may do without.
NOTHING = np.zeros(0)
#: The terms of no psi.
NO_TERMS = NOTHING, 0.0, -np.inf, np.inf


#: The parameters of retrieve(z, t) in a compiled loop, psi's proximal map and then the mirror map: psi's thresholds, of
#: shape (d,), or (0,) for none, and its shrinkages, lower and upper bounds, as numbers or all as arrays of shape (d,),
#: for either of which the loop is compiled; of a p-norm map the exponent, 0 for the Euclidean map, the radius of its
#: ball, inf for none, and its center, empty for 0.
Retrieval = tuple[tuple[Any, ...], float, float, NDArray[np.float64]]


@njit(cache=True)
def dual_averaging(  # type: ignore[no-untyped-def]
    loss, order, epoch, batch_size, pairs, retrieval, elapsed, client_lr, l2, shift, dual
):
    """Run local dual averaging over the rows in `order`, one minibatch per step; return the number of steps.

    With `pairs`, dual extrapolation: a step to a half point, and the step itself with a second minibatch from there.

    Parameters
    ----------
    loss : tuple
        The first arguments of :func:`~flwr_fco.kernels.losses.add_batch`.
    order : ndarray of int64, shape (m,)
        Row numbers; the last minibatch may be smaller.
    epoch : int
        Number of rows after which a minibatch ends early.
    batch_size : int
        Rows of a minibatch.
    pairs : bool
        Whether a step takes two minibatches.
    retrieval : tuple
        A `Retrieval`.
    elapsed, client_lr, l2 : float
        The weight of psi at the first step, the step size, and the strength of the ridge term.
    shift : ndarray of float64, shape of dual or (0,)
        Subtracted from the dual in each step: client_lr * tracker; empty for none.
    dual : ndarray of float64, shape (d,) or (d + 1,)
        Changed in place.
    """
    (code, parameter, features, targets, weights, offset), (terms, p, radius, center) = loss, retrieval
    primal = np.empty_like(dual)
    half = np.empty(dual.shape[0] if pairs else 0)
    stop = 0
    edge = epoch
    count = order.shape[0]
    steps = 0
    # Whether a step ends with this batch, and whether it began with it: of a pair, the first moves the point between.
    ends = True
    while stop < count:
        begins = ends
        ends = not (pairs and begins)
        start = stop
        stop = min(stop + batch_size, edge, count)
        edge += epoch if stop == edge else 0
        given = dual if begins else half
        if terms[0].shape[0] > 0:
            separable(given, elapsed + client_lr * steps, terms, 1.0, primal)
        else:
            scale(given, 1.0, primal)
        if p > 0.0:
            p_norm_point(primal, p, radius, primal)
        for i in range(center.shape[0]):
            primal[i] += center[i]
        steps += 1 if begins else 0
        if not ends:
            scale(dual, 1.0, half)
        rows, moved = order[start:stop], dual if ends else half
        add_batch(code, parameter, features, targets, weights, offset, rows, primal, -client_lr, l2, moved)
        for i in range(shift.shape[0]):
            dual[i] -= shift[i]
    return steps


@njit(cache=True, error_model="numpy")
def lazy_dual_averaging(  # type: ignore[no-untyped-def]
    loss, stored, own, order, batch_size, terms, elapsed, client_lr, shift, dual
):
    """Run local dual averaging over the rows in `order`, retrieving only touched coordinates; return the step count.

    Like :func:`flwr_fco.kernels.dual_averaging.dual_averaging`, but with h(w) = sum_j metric_j/2 w_j^2 and a separable
    psi. A step neither reads nor writes a coordinate that is zero in all rows of its minibatch. The shift, which is the
    same in every step, is applied when a coordinate is touched next, and at the end.

    Parameters
    ----------
    loss : tuple
        Code and parameter of the link, targets, weights and offset, as in :func:`~flwr_fco.kernels.losses.add_batch`.
    stored : tuple of ndarray
        The starts, indices and values of :func:`row_scores`.
    own : tuple of float
        The terms of the last coordinate, which may be an intercept's, a column of ones.
    order : ndarray of int64, shape (m,)
        Row numbers; the last minibatch may be smaller.
    terms : tuple
        Thresholds, shrinkages, lower and upper bounds of psi, and h's weights: five floats for all coordinates but the
        last, or five arrays of the dual's length.
    elapsed, client_lr : float
        The weight of psi at the first step, the step size.
    shift : ndarray of float64, shape of dual or (0,)
        Subtracted from the dual in each step; empty for none.
    dual : ndarray of float64, shape (d,)
        The dual at the columns; changed in place.
    """
    (code, parameter, targets, weights, offset), (starts, indices, values) = loss, stored
    threshold, shrinkage, lower, upper, metric = terms
    last = np.zeros(shift.shape[0], np.int64)
    end = dual.shape[0] - 1
    slopes = np.empty(min(batch_size, order.shape[0]))
    steps = 0
    for start in range(0, order.shape[0], batch_size):
        rows = order[start : start + batch_size]
        t = elapsed + client_lr * steps
        for i in range(rows.shape[0]):
            row = rows[i]
            score = offset[row]
            if shift.shape[0] > 0:
                for j in indices[starts[row] : starts[row + 1]]:
                    dual[j] -= (steps - last[j]) * shift[j]
                    last[j] = steps
            for p in range(starts[row], starts[row + 1]):
                j = np.uintp(indices[p])
                if indices[p] == end:
                    score += values[p] * point(dual[j], t, own[0], own[1], own[2], own[3], own[4])
                    continue
                a, b, low, high = at(threshold, j), at(shrinkage, j), at(lower, j), at(upper, j)
                score += values[p] * point(dual[j], t, a, b, low, high, at(metric, j))
            slopes[i] = -client_lr / rows.shape[0] * weights[row] * slope(code, parameter, score, targets[row])
        for i in range(rows.shape[0]):
            for p in range(starts[rows[i]], starts[rows[i] + 1]):
                dual[np.uintp(indices[p])] += slopes[i] * values[p]
        steps += 1
    for j in range(last.shape[0]):
        dual[j] -= (steps - last[j]) * shift[j]
    return steps

"""Linear models on compressed sparse rows; the cost is proportional to the number of non-zeros in the rows.

A row's entries are ``starts[row] .. starts[row + 1]`` of ``indices`` (columns) and ``values``. As for dense rows, every
kernel first computes the rows' contributions at the point and only then writes.
"""

import numpy as np

from flwr_fco.kernels import njit
from flwr_fco.kernels.losses import check_rows, slope
from flwr_fco.kernels.prox import at, point


@njit(cache=True)
def row_scores(starts, indices, values, rows, weights, offsets, scores):  # type: ignore[no-untyped-def]
    """Write x_i' W + b for the given rows.

    Parameters
    ----------
    starts : ndarray of int, shape (n + 1,)
        Where the entries of each row start in `indices` and `values`, and where the last row ends.
    indices : ndarray of int32
        Less than the number of rows of `weights`; the caller must check this.
    rows : ndarray of int64, shape (b,)
        Numbers of the rows to use.
    weights : ndarray of float64, shape (d, k)
        W.
    offsets : ndarray of float64, shape (k,) or (0,)
        Intercepts; empty for none.
    scores : ndarray of float64, shape (b, k)
        Where to write the result.
    """
    check_rows(starts.shape[0] - 1, rows)
    outputs = weights.shape[1]
    for i in range(rows.shape[0]):
        for c in range(outputs):
            total = offsets[c] if offsets.shape[0] > 0 else 0.0
            for p in range(starts[rows[i]], starts[rows[i] + 1]):
                # Unsigned, so that it need not be compared with 0, which takes a quarter of the time.
                total += values[p] * weights[np.uintp(indices[p]), c]
            scores[i, c] = total


@njit(cache=True)
def add_sparse_rows(starts, indices, values, rows, slopes, weights, offsets):  # type: ignore[no-untyped-def]
    """Add sum_i x_i slopes_i' to the weights, and sum_i slopes_i to the offsets.

    Parameters
    ----------
    starts, indices, values, rows
        As in :func:`row_scores`.
    slopes : ndarray of float64, shape (b, k)
        One row for each of these rows.
    weights : ndarray of float64, shape (d, k)
        Changed in place.
    offsets : ndarray of float64, shape (k,) or (0,)
        Changed in place.
    """
    outputs = weights.shape[1]
    for i in range(rows.shape[0]):
        for p in range(starts[rows[i]], starts[rows[i] + 1]):
            for c in range(outputs):
                weights[np.uintp(indices[p]), c] += values[p] * slopes[i, c]
        for c in range(offsets.shape[0]):
            offsets[c] += slopes[i, c]


@njit(cache=True, error_model="numpy")
def lazy_dual_averaging(  # type: ignore[no-untyped-def]
    loss, stored, intercept, own, order, batch_size, terms, elapsed, client_lr, shift, dual
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
    intercept : bool
        Whether the last coordinate of the dual is an intercept.
    own : tuple of float
        The intercept's terms.
    order : ndarray of int64, shape (m,)
        Row numbers; the last minibatch may be smaller.
    terms : tuple
        Thresholds, shrinkages, lower and upper bounds of psi, and h's weights: five floats for all coordinates but the
        intercept, or five arrays of the dual's length.
    elapsed, client_lr : float
        The weight of psi at the first step, the step size.
    shift : ndarray of float64, shape of dual or (0,)
        Subtracted from the dual in each step; empty for none.
    dual : ndarray of float64, shape (d,) or (d + 1,)
        The dual at the columns, then at the intercept if there is one; changed in place.
    """
    (code, parameter, targets, weights, offset), (starts, indices, values) = loss, stored
    threshold, shrinkage, lower, upper, metric = terms
    tracked = shift.shape[0] > 0
    last = np.zeros(shift.shape[0], np.int64)
    columns = dual.shape[0] - 1
    slopes = np.empty(min(batch_size, order.shape[0]))
    steps = 0
    for start in range(0, order.shape[0], batch_size):
        rows = order[start : start + batch_size]
        t = elapsed + client_lr * steps
        base = 0.0
        if intercept:
            if tracked and steps > 0:
                dual[columns] -= shift[columns]
            base = point(dual[columns], t, own[0], own[1], own[2], own[3], own[4])
        for i in range(rows.shape[0]):
            row = rows[i]
            score = base + (offset[row] if offset.shape[0] > 0 else 0.0)
            if tracked:
                for j in indices[starts[row] : starts[row + 1]]:
                    dual[j] -= (steps - last[j]) * shift[j]
                    last[j] = steps
            for p in range(starts[row], starts[row + 1]):
                j = np.uintp(indices[p])
                a, b, low, high = at(threshold, j), at(shrinkage, j), at(lower, j), at(upper, j)
                score += values[p] * point(dual[j], t, a, b, low, high, at(metric, j))
            factor = -client_lr / rows.shape[0] * (weights[row] if weights.shape[0] > 0 else 1.0)
            slopes[i] = factor * slope(code, parameter, score, targets[row])
        for i in range(rows.shape[0]):
            for p in range(starts[rows[i]], starts[rows[i] + 1]):
                dual[np.uintp(indices[p])] += slopes[i] * values[p]
            if intercept:
                dual[columns] += slopes[i]
        steps += 1
    if tracked:
        if intercept:
            last[columns] = steps - 1
        for j in range(last.shape[0]):
            dual[j] -= (steps - last[j]) * shift[j]
    return steps

"""Linear models on compressed sparse rows; the cost is proportional to the number of non-zeros in the rows.

A row's entries are ``starts[row] .. starts[row + 1]`` of ``indices`` (columns) and ``values``. As for dense rows, every
kernel first computes the rows' contributions at the point and only then writes.
"""

import numpy as np

from flwr_fco.kernels import njit
from flwr_fco.kernels.losses import check_rows, slope
from flwr_fco.kernels.prox import clamp, point


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
            scores[i, c] = offsets[c] if offsets.shape[0] > 0 else 0.0
        for p in range(starts[rows[i]], starts[rows[i] + 1]):
            for c in range(outputs):
                scores[i, c] += values[p] * weights[indices[p], c]


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
    check_rows(starts.shape[0] - 1, rows)
    outputs = weights.shape[1]
    for i in range(rows.shape[0]):
        for p in range(starts[rows[i]], starts[rows[i] + 1]):
            for c in range(outputs):
                weights[indices[p], c] += values[p] * slopes[i, c]
        for c in range(offsets.shape[0]):
            offsets[c] += slopes[i, c]


@njit(cache=True)
def lazy_dual_averaging(  # type: ignore[no-untyped-def]
    code, parameter, rows, intercept, targets, order, batch_size, terms, elapsed, client_lr, shift, last, dual
):
    """Run local dual averaging over the rows in `order`, retrieving only touched coordinates; return the step count.

    Like :func:`flwr_fco.kernels.dual_averaging.dual_averaging`, but with h(w) = sum_j a_j/2 w_j^2 and a separable psi.
    A step neither reads nor writes a coordinate that is zero in all rows of its minibatch. The shift, which is the same
    in every step, is applied when a coordinate is touched next, and at the end.

    Parameters
    ----------
    code, parameter : int, float
        Of the link, as :func:`~flwr_fco.kernels.losses.slope` takes them.
    rows : tuple of ndarray
        The starts, indices and values of :func:`row_scores`, with columns numbered within the shard.
    targets : ndarray of float64, shape (n,)
        The y_i.
    order : ndarray of int64, shape (m,)
        Row numbers; the last minibatch may be smaller.
    terms : ndarray of float64, shape (5, 1) or (5, shape of dual)
        Thresholds, shrinkages, lower and upper bounds of psi, and the a_j. A single column applies to all coordinates
        but the intercept, which has no terms and a = 1; it must have no bounds.
    elapsed, client_lr : float
        The weight of psi at the first step, and the step size.
    shift : ndarray of float64, shape of dual or (0,)
        Subtracted from the dual in each step; empty for none.
    last : ndarray of int64, shape of dual or (0,)
        Scratch memory for the step up to which each coordinate's shifts are applied; empty without a shift.
    dual : ndarray of float64, shape (d,) or (d + 1,)
        The dual at the shard's columns, then at the intercept if there is one; changed in place.
    """
    starts, indices, values = rows
    check_rows(starts.shape[0] - 1, order)
    tracked, uniform, columns = shift.shape[0] > 0, terms.shape[1] == 1, dual.shape[0] - intercept
    if not uniform and terms.shape[1] != dual.shape[0]:
        raise ValueError("terms must have one column, or one for each entry of the dual")
    if tracked and (shift.shape[0] != dual.shape[0] or last.shape[0] != dual.shape[0]):
        raise ValueError("shift and last must be empty or as long as the dual")
    threshold = terms[0, 0]
    slopes = np.empty(min(batch_size, order.shape[0]))
    last[:] = 0
    steps = 0
    for start in range(0, order.shape[0], batch_size):
        stop = min(start + batch_size, order.shape[0])
        t = elapsed + client_lr * steps
        weight = -client_lr / (stop - start)
        high, divisor = t * threshold, terms[4, 0] + t * terms[1, 0]
        offset = 0.0
        if intercept:
            if tracked:
                dual[columns] -= (steps - last[columns]) * shift[columns]
                last[columns] = steps
            offset = dual[columns] if uniform else _retrieved(dual[columns], t, terms, columns)
        for i in range(start, stop):
            row = order[i]
            if tracked:
                _shift_row(starts, indices, row, steps, shift, last, dual)
            score = offset + _retrieved_score(starts, indices, values, row, t, terms, high, divisor, uniform, dual)
            slopes[i - start] = weight * slope(code, parameter, score, targets[row])
        for i in range(start, stop):
            row, change = order[i], slopes[i - start]
            for p in range(starts[row], starts[row + 1]):
                dual[indices[p]] += change * values[p]
            if intercept:
                dual[columns] += change
        steps += 1
    if tracked:
        for j in range(dual.shape[0]):
            dual[j] -= (steps - last[j]) * shift[j]
    return steps


@njit(cache=True, inline="always")
def _shift_row(starts, indices, row, steps, shift, last, dual):  # type: ignore[no-untyped-def]
    """Apply the shifts of the steps since the coordinates of a row were touched last."""
    for p in range(starts[row], starts[row + 1]):
        j = indices[p]
        if last[j] != steps:
            dual[j] -= (steps - last[j]) * shift[j]
            last[j] = steps


@njit(cache=True, inline="always")
def _retrieved_score(  # type: ignore[no-untyped-def]
    starts, indices, values, row, t, terms, high, divisor, uniform, dual
):
    """Return the score of a row at the retrieved coordinates, without the intercept."""
    score = 0.0
    if uniform:
        for p in range(starts[row], starts[row + 1]):
            v = dual[indices[p]]
            score += values[p] * (v - clamp(v, -high, high))
        score /= divisor
    else:
        for p in range(starts[row], starts[row + 1]):
            j = indices[p]
            score += values[p] * _retrieved(dual[j], t, terms, j)
    return score


@njit(cache=True, inline="always")
def _retrieved(z, t, terms, j):  # type: ignore[no-untyped-def]
    """Return clip(soft(z, t threshold) / (a + t shrinkage), lower, upper) of a coordinate."""
    return point(z, t, terms[0, j], terms[1, j], terms[2, j], terms[3, j], terms[4, j])

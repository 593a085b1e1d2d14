"""Gradients of linear losses on minibatches of rows: where a call from Python costs as much as the arithmetic.

Every kernel first computes each row's contribution at `w` for all rows and only then writes to `out`, so `out` may be
`w` itself, for a gradient step in place.

Features may be float32: they are converted as they are read, and all sums are in float64. Sums within a row are
re-associated into SIMD lanes, always in the same way, so equal calls give equal bits on one machine; this makes a step
three times faster. Several rows are processed at a time: each loaded element of `w` or `out` is used for all of them,
and rows that are not in the processor's cache are fetched in parallel (an epoch over uncached rows takes a twentieth
less time with eight scores at a time than with four).
"""

import math

import numpy as np

from flwr_fco.kernels import njit, prox


@njit(cache=True)
def check_rows(n, rows):  # type: ignore[no-untyped-def]
    """Refuse row numbers that are not below n: compiled code would read outside the arrays without noticing."""
    for row in rows:
        if row < 0 or row >= n:
            raise IndexError("a row number of the batch is outside 0 .. num_examples - 1")


@njit(cache=True, inline="always")
def slope(code, parameter, score, target):  # type: ignore[no-untyped-def]
    """Return the derivative of a row's loss by its score, for the `code` and `parameter` of a link."""
    if code == 0:
        return parameter * (score - target)
    if code == 1:
        # exp of a negative number only: it underflows to 0, exp of a large positive one would overflow.
        small = math.exp(-abs(score))
        return -target * (small if target * score > 0.0 else 1.0) / (1.0 + small)
    if code == 2:
        return prox.clamp(score - target, -parameter, parameter)
    if code == 3:
        return math.exp(prox.clamp(score, -np.inf, parameter)) - target
    return -2.0 * target * prox.clamp(1.0 - target * score, 0.0, np.inf)


@njit(cache=True, fastmath={"reassoc", "contract"})
def fill_scores(features, rows, w, result):  # type: ignore[no-untyped-def]
    """Write <x, w> + intercept of the given rows; the intercept is what w has beyond the features."""
    d, count = features.shape[1], rows.shape[0]
    by_eight = count - count % 8
    for i in range(0, by_eight, 8):
        x0, x1, x2, x3 = features[rows[i]], features[rows[i + 1]], features[rows[i + 2]], features[rows[i + 3]]
        x4, x5, x6, x7 = features[rows[i + 4]], features[rows[i + 5]], features[rows[i + 6]], features[rows[i + 7]]
        s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = 0.0
        for j in range(d):
            s0 += x0[j] * w[j]
            s1 += x1[j] * w[j]
            s2 += x2[j] * w[j]
            s3 += x3[j] * w[j]
            s4 += x4[j] * w[j]
            s5 += x5[j] * w[j]
            s6 += x6[j] * w[j]
            s7 += x7[j] * w[j]
        result[i], result[i + 1], result[i + 2], result[i + 3] = s0, s1, s2, s3
        result[i + 4], result[i + 5], result[i + 6], result[i + 7] = s4, s5, s6, s7
    for i in range(by_eight, count):
        x0 = features[rows[i]]
        s0 = 0.0
        for j in range(d):
            s0 += x0[j] * w[j]
        result[i] = s0
    if w.shape[0] > d:
        for i in range(count):
            result[i] += w[d]


@njit(cache=True)
def add_scaled(out, factor, vector):  # type: ignore[no-untyped-def]
    """Add a factor times a vector of either precision to the first numbers of a sum, without a vector in between."""
    # Loops compile in half of the time that expressions of arrays take.
    for j in range(vector.size):
        out[j] += factor * np.float64(vector[j])


@njit(cache=True)
def add_batch(code, parameter, features, targets, weights, offset, rows, w, scale, l2, out):  # type: ignore[no-untyped-def]
    """Add scale times the gradient of weighted mean loss over some rows, and of l2/2 ||w||^2, to out.

    Parameters
    ----------
    code, parameter : int, float
        Of the link, as :func:`slope` takes them. (With a function as argument, the kernel could not be cached on disk.)
    features : ndarray of float64 or float32, shape (n, d), C-contiguous
        The x_i.
    targets : ndarray of float64, shape (n,)
        The y_i.
    weights, offset : ndarray of float64, shape (n,)
        Of the rows.
    rows : ndarray of int64, shape (b,)
        Numbers of the rows to use.
    w : ndarray of float64, shape (d,) or (d + 1,)
        Coefficients, then the intercept if there is one.
    scale, l2 : float
        Factor of the gradient, and strength of the ridge term.
    out : ndarray of float64, shape of w
        May be `w`.
    """
    (n, d), count = features.shape, rows.shape[0]
    if w.shape[0] - d not in (0, 1) or out.shape[0] != w.shape[0]:
        raise ValueError("the vector w, or out, has another length than the objective's layout")
    check_rows(n, rows)
    slopes = np.empty(count)
    fill_scores(features, rows, w, slopes)
    mean = scale / max(count, 1)
    for i in range(count):
        row = rows[i]
        slopes[i] = mean * weights[row] * slope(code, parameter, slopes[i] + offset[row], targets[row])
    if l2 != 0.0:
        for j in range(d):
            out[j] += scale * l2 * w[j]
    by_four = count - count % 4
    for i in range(0, by_four, 4):
        x0, x1, x2, x3 = features[rows[i]], features[rows[i + 1]], features[rows[i + 2]], features[rows[i + 3]]
        c0, c1, c2, c3 = slopes[i], slopes[i + 1], slopes[i + 2], slopes[i + 3]
        for j in range(d):
            out[j] += (c0 * x0[j] + c1 * x1[j]) + (c2 * x2[j] + c3 * x3[j])
    for i in range(by_four, count):
        add_scaled(out, slopes[i], features[rows[i]])
    if w.shape[0] > d:
        out[d] += slopes.sum()


@njit(cache=True)
def slopes(code, parameter, scores, targets):  # type: ignore[no-untyped-def]
    """Return :func:`slope` of each row."""
    result = np.empty(scores.shape[0])
    for i in range(scores.shape[0]):
        result[i] = slope(code, parameter, scores[i], targets[i])
    return result


@njit(cache=True)
def cross_entropies(scores, labels):  # type: ignore[no-untyped-def]
    """Replace scores by the derivatives of their cross entropies, and return these.

    Parameters
    ----------
    scores : ndarray of float64, shape (b, outputs)
        Changed in place.
    labels : ndarray of int64, shape (b,)
        0 .. outputs - 1.
    """
    outputs = scores.shape[1]
    losses = np.empty(scores.shape[0])
    for i in range(scores.shape[0]):
        top = -np.inf
        for c in range(outputs):
            top = max(top, scores[i, c])
        own = scores[i, labels[i]]
        total = 0.0
        for c in range(outputs):
            scores[i, c] = math.exp(scores[i, c] - top)
            total += scores[i, c]
        losses[i] = math.log(total) + (top - own)
        for c in range(outputs):
            scores[i, c] /= total
        scores[i, labels[i]] -= 1.0
    return losses


@njit(cache=True)
def add_batch_of_classes(  # type: ignore[no-untyped-def]
    outputs, features, labels, weights, offset, rows, w, scale, l2, out
):
    """Add to out as :func:`add_batch`, for cross entropies; BLAS computes the products with the gathered rows.

    Parameters
    ----------
    outputs : int
        Number of classes.
    features, weights, rows, scale, l2
        As in :func:`add_batch`.
    labels : ndarray of int64, shape (n,)
        0 .. outputs - 1.
    offset : ndarray of float64, shape (n, outputs)
        Of the rows.
    w, out : ndarray of float64, shape (d * outputs,) or ((d + 1) * outputs,)
        W in C order, then any intercepts; `out` may be `w`.
    """
    (n, d), count = features.shape, rows.shape[0]
    size = d * outputs
    if w.shape[0] - size not in (0, outputs) or out.shape[0] != w.shape[0]:
        raise ValueError("the vector w, or out, has another length than the objective's layout")
    check_rows(n, rows)
    block = np.empty((count, d))
    for i in range(count):
        prox.scale(features[rows[i]], 1.0, block[i])
    slopes = np.dot(block, w[:size].reshape(d, outputs))
    for i in range(count):
        for c in range(outputs):
            slopes[i, c] += w[size + c] if w.shape[0] > size else 0.0
            slopes[i, c] += offset[rows[i], c]
    cross_entropies(slopes, labels[rows])
    for i in range(count):
        for c in range(outputs):
            slopes[i, c] *= scale / count * weights[rows[i]]
    product = np.dot(block.T, slopes).reshape(size)
    for j in range(size):
        out[j] += product[j] + scale * l2 * w[j]
    for c in range(w.shape[0] - size):
        out[size + c] += slopes[:, c].sum()


# --- compressed sparse rows: a row's entries are starts[row] .. starts[row + 1] of indices (columns) and values -------


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


# --- saddle functions -------------------------------------------------------------------------------------------------


@njit(cache=True, fastmath={"reassoc", "contract"})
def add_both_products(matrix, x, y, scale, towards_x, towards_y):  # type: ignore[no-untyped-def]
    """Add scale M'y to `towards_x` and -scale M x to `towards_y`, reading the matrix once: memory is what it costs.

    Parameters
    ----------
    matrix : ndarray of float64, shape (n, m), C-contiguous
        M.
    x, towards_x : ndarray of float64, shape (m,)
        Must not overlap.
    y, towards_y : ndarray of float64, shape (n,)
        Must not overlap.
    """
    n, m = matrix.shape
    for i in range(0, n, 2):
        # The last of an odd number of rows is read twice, and counts once.
        k = min(i + 1, n - 1)
        a = matrix[i]
        b = matrix[k]
        p = scale * y[i]
        q = scale * y[k] if k > i else 0.0
        e = f = 0.0
        for j in range(m):
            e += a[j] * x[j]
            f += b[j] * x[j]
            towards_x[j] += p * a[j] + q * b[j]
        towards_y[i] -= scale * e
        towards_y[k] -= scale * f if k > i else 0.0

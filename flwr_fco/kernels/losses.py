"""Losses of linear models: margins and fused stochastic gradients, dense rows.

Every kernel first computes each row's contribution at `w` (its margin or residual) for all rows and only then writes to
`out`, so `out` may be `w` itself, for a gradient step in place.

Features may be float32: they are converted as they are read, and all sums are in float64. Sums within a row are
re-associated into SIMD lanes, always in the same way, so equal calls give equal bits on one machine; this makes a step
three times faster. Several rows are processed at a time: each loaded element of `w` or `out` is used for all of them,
and rows that are not in the processor's cache are fetched in parallel (an epoch over uncached rows takes a seventh less
time with eight margins at a time than with four).
"""

import math

import numpy as np

from flwr_fco.kernels import njit

#: Rows that the multinomial gradient gathers for one pair of matrix products: they stay in the cache between the two.
CHUNK = 64


@njit(cache=True)
def check_rows(n, rows):  # type: ignore[no-untyped-def]
    """Refuse row numbers that are not below n."""
    for row in rows:
        if row < 0 or row >= n:
            raise IndexError("a row number of the batch is outside 0 .. num_examples - 1")


@njit(cache=True)
def _check(features, rows, w, out):  # type: ignore[no-untyped-def]
    """Refuse what would read or write outside the arrays: compiled code does not notice by itself."""
    d = features.shape[1]
    if w.shape[0] != d and w.shape[0] != d + 1:
        raise ValueError("the vector w has another length than the objective's layout")
    if out.shape[0] != w.shape[0]:
        raise ValueError("out has another length than w")
    check_rows(features.shape[0], rows)


@njit(cache=True, fastmath={"reassoc", "contract"})
def _fill_margins(features, rows, w, result):  # type: ignore[no-untyped-def]
    """Write <x, w> + intercept of the given rows; the intercept is what w has beyond the features."""
    d = features.shape[1]
    count = rows.shape[0]
    intercept = w[d] if w.shape[0] > d else 0.0
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
    by_two = count - count % 2
    for i in range(by_eight, by_two, 2):
        x0, x1 = features[rows[i]], features[rows[i + 1]]
        s0 = s1 = 0.0
        for j in range(d):
            s0 += x0[j] * w[j]
            s1 += x1[j] * w[j]
        result[i], result[i + 1] = s0, s1
    for i in range(by_two, count):
        x0 = features[rows[i]]
        s0 = 0.0
        for j in range(d):
            s0 += x0[j] * w[j]
        result[i] = s0
    if intercept != 0.0:
        for i in range(count):
            result[i] += intercept


@njit(cache=True)
def _add_rows(features, rows, coefficients, out):  # type: ignore[no-untyped-def]
    """Add sum_i coefficients_i (x_i, 1) to out."""
    d = features.shape[1]
    count = rows.shape[0]
    blocked = count - count % 4
    for i in range(0, blocked, 4):
        x0, x1, x2, x3 = features[rows[i]], features[rows[i + 1]], features[rows[i + 2]], features[rows[i + 3]]
        c0, c1, c2, c3 = coefficients[i], coefficients[i + 1], coefficients[i + 2], coefficients[i + 3]
        for j in range(d):
            out[j] += (c0 * x0[j] + c1 * x1[j]) + (c2 * x2[j] + c3 * x3[j])
    for i in range(blocked, count):
        x0 = features[rows[i]]
        c0 = coefficients[i]
        for j in range(d):
            out[j] += c0 * x0[j]
    if out.shape[0] > d:
        total = 0.0
        for i in range(count):
            total += coefficients[i]
        out[d] += total


@njit(cache=True)
def _add_shrinkage(d, w, shrinkage, out):  # type: ignore[no-untyped-def]
    """Add shrinkage times the coefficients (not the intercept) to out."""
    if shrinkage != 0.0:
        for j in range(d):
            out[j] += shrinkage * w[j]


@njit(cache=True)
def margins(features, rows, w):  # type: ignore[no-untyped-def]
    """Return <x_i, w> + intercept for the given rows, shape (b,).

    Parameters
    ----------
    features : ndarray of float64 or float32, shape (n, d), C-contiguous
        The x_i.
    rows : ndarray of int64, shape (b,)
        Numbers of the rows to use.
    w : ndarray of float64, shape (d,) or (d + 1,)
        Coefficients, then the intercept if there is one.
    """
    _check(features, rows, w, w)
    result = np.empty(rows.shape[0])
    _fill_margins(features, rows, w, result)
    return result


@njit(cache=True)
def add_rows(features, rows, coefficients, out):  # type: ignore[no-untyped-def]
    """Add sum_i coefficients_i (x_i, 1) to out.

    Parameters
    ----------
    features : ndarray of float64 or float32, shape (n, d), C-contiguous
        The x_i.
    rows : ndarray of int64, shape (b,)
        Numbers of the rows to use.
    coefficients : ndarray of float64, shape (b,)
        One for each of these rows.
    out : ndarray of float64, shape (d,) or (d + 1,)
        With a last element if there is an intercept.
    """
    _check(features, rows, out, out)
    if coefficients.shape[0] != rows.shape[0]:
        raise ValueError("there must be one coefficient a row")
    _add_rows(features, rows, coefficients, out)


@njit(cache=True)
def logistic_slopes(margins, signs, weight):  # type: ignore[no-untyped-def]
    """Replace each margin with weight times the derivative of its logistic loss; return the sum of the losses.

    Parameters
    ----------
    margins : ndarray of float64, shape (b,)
        Changed in place.
    signs : ndarray of float64, shape (b,)
        -1 or +1.
    """
    total = 0.0
    for i in range(margins.shape[0]):
        margin = signs[i] * margins[i]
        # exp of a negative number only: it underflows to 0, exp of a large positive one would overflow.
        small = math.exp(-abs(margin))
        total += math.log1p(small) + max(-margin, 0.0)
        margins[i] = -weight * signs[i] * (small if margin > 0.0 else 1.0) / (1.0 + small)
    return total


@njit(cache=True)
def softmax_slopes(margins, labels, weight):  # type: ignore[no-untyped-def]
    """Replace margins with weight times the derivatives of their cross entropies; return the sum of these entropies.

    Parameters
    ----------
    margins : ndarray of float64, shape (b, num_classes)
        Changed in place.
    labels : ndarray of int64, shape (b,)
        0 .. num_classes - 1.
    """
    num_classes = margins.shape[1]
    total = 0.0
    for i in range(margins.shape[0]):
        top = -np.inf
        for c in range(num_classes):
            top = max(top, margins[i, c])
        margin = margins[i, labels[i]]
        norm = 0.0
        for c in range(num_classes):
            margins[i, c] = math.exp(margins[i, c] - top)
            norm += margins[i, c]
        total += math.log(norm) + (top - margin)
        for c in range(num_classes):
            margins[i, c] *= weight / norm
        margins[i, labels[i]] -= weight
    return total


@njit(cache=True, inline="always")
def slope(logistic, score, target, weight):  # type: ignore[no-untyped-def]
    """Return weight times the derivative of 1/2 (score - target)^2, or of log(1 + exp(-target score))."""
    if not logistic:
        return weight * (score - target)
    margin = target * score
    # exp of a negative number only: it underflows to 0, exp of a large positive one would overflow.
    small = math.exp(-abs(margin))
    return -weight * target * (small if margin > 0.0 else 1.0) / (1.0 + small)


@njit(cache=True)
def add_scalar_gradient(logistic, features, targets, rows, w, factor, shrinkage, out):  # type: ignore[no-untyped-def]
    """Add factor * mean_i f'(m_i) (x_i, 1) + shrinkage * (w, 0) to out, m the margins and f' their :func:`slope`.

    Parameters
    ----------
    logistic : bool
        True for the logistic loss, False for least squares. (With a function as argument, the kernel could not be
        cached on disk.)
    features : ndarray of float64 or float32, shape (n, d), C-contiguous
        The x_i.
    targets : ndarray of float64, shape (n,)
        The y_i; -1 or +1 for the logistic loss.
    rows : ndarray of int64, shape (b,)
        Numbers of the rows to use.
    w : ndarray of float64, shape (d,) or (d + 1,)
        Coefficients, then the intercept if there is one.
    out : ndarray of float64, shape of w
        May be `w`.
    """
    _check(features, rows, w, out)
    slopes = np.empty(rows.shape[0])
    _fill_margins(features, rows, w, slopes)
    weight = factor / rows.shape[0]
    for i in range(rows.shape[0]):
        slopes[i] = slope(logistic, slopes[i], targets[rows[i]], weight)
    _add_shrinkage(features.shape[1], w, shrinkage, out)
    _add_rows(features, rows, slopes, out)


@njit(cache=True)
def add_multinomial_gradient(features, labels, rows, w, num_classes, factor, shrinkage, out):  # type: ignore[no-untyped-def]
    """Add factor * mean_i (x_i, 1) (softmax(m_i) - e_{y_i})' + shrinkage * (W, 0) to out, m_i = W' x_i + b.

    BLAS computes the products, for `CHUNK` gathered rows at a time.

    Parameters
    ----------
    features : ndarray of float64 or float32, shape (n, d), C-contiguous
        The x_i.
    labels : ndarray of int64, shape (n,)
        0 .. num_classes - 1.
    rows : ndarray of int64, shape (b,)
        Numbers of the rows to use.
    w : ndarray of float64, shape (d * num_classes,) or (d * num_classes + num_classes,)
        W in C order, then any intercepts.
    out : ndarray of float64, shape of w
        May be `w`.
    """
    n, d = features.shape
    size = d * num_classes
    if w.shape[0] != size and w.shape[0] != size + num_classes:
        raise ValueError("the vector w has another length than the objective's layout")
    if out.shape[0] != w.shape[0]:
        raise ValueError("out has another length than w")
    check_rows(n, rows)
    count = rows.shape[0]
    # Copies, because out may be w and later chunks still need the old values.
    coefficients = w[:size].copy().reshape(d, num_classes)
    intercept = w[size:].copy()
    _add_shrinkage(size, w, shrinkage, out)
    gathered = np.empty((min(CHUNK, count), d))
    weight = factor / count
    for start in range(0, count, CHUNK):
        part = rows[start : start + CHUNK]
        block = gathered[: part.shape[0]]
        for i in range(part.shape[0]):
            block[i] = features[part[i]]
        residuals = np.dot(block, coefficients)
        for i in range(part.shape[0]):
            for c in range(intercept.shape[0]):
                residuals[i, c] += intercept[c]
        softmax_slopes(residuals, labels[part], weight)
        product = np.dot(block.T, residuals).reshape(size)
        for j in range(size):
            out[j] += product[j]
        for i in range(part.shape[0]):
            for c in range(intercept.shape[0]):
                out[size + c] += residuals[i, c]


@njit(cache=True)
def softmax_curvature(chances, change, weight):  # type: ignore[no-untyped-def]
    """Replace each row c of `change` with weight (diag(p) - pp') c, where p is the row of `chances`.

    Parameters
    ----------
    chances : ndarray of float64 or float32, shape (n, k)
        Probabilities of the classes.
    change : ndarray of the same type and shape
        Margins of a direction; changed in place.
    """
    n, k = change.shape
    for i in range(n):
        mean = 0.0
        for c in range(k):
            mean += chances[i, c] * change[i, c]
        for c in range(k):
            change[i, c] = weight * chances[i, c] * (change[i, c] - mean)


@njit(cache=True)
def logistic_curvature(chances, change, weight):  # type: ignore[no-untyped-def]
    """Replace each entry c of `change` with weight p (1 - p) c, where p is the entry of `chances`.

    Parameters
    ----------
    chances : ndarray of float64 or float32, shape (n,)
        Probabilities of one of the two labels.
    change : ndarray of the same type and shape
        Margins of a direction; changed in place.
    """
    for i in range(change.shape[0]):
        change[i] = weight * chances[i] * (1.0 - chances[i]) * change[i]

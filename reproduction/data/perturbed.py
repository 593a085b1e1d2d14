"""The operator of a classifier against one perturbation of all its examples, in one pass over the rows of a batch."""

import math

import numpy as np
from numba import njit

#: Rows that are gathered and perturbed at a time.
_CHUNK = 64


@njit(cache=True)
def _replace_by_slopes(margins, labels, weight):  # type: ignore[no-untyped-def]
    """Replace margins with weight times the derivatives of their cross entropies."""
    num_classes = margins.shape[1]
    for i in range(margins.shape[0]):
        top = -np.inf
        for c in range(num_classes):
            top = max(top, margins[i, c])
        norm = 0.0
        for c in range(num_classes):
            margins[i, c] = math.exp(margins[i, c] - top)
            norm += margins[i, c]
        for c in range(num_classes):
            margins[i, c] *= weight / norm
        margins[i, labels[i]] -= weight


@njit(cache=True)
def add_adversarial_operator(features, labels, rows, w, num_classes, intercepts, scale, out):  # type: ignore[no-untyped-def]
    """Add scale * (mean_i (x_i + delta) r_i', mean_i r_i, -W mean_i r_i) to out, r_i = softmax(m_i) - e_{y_i}.

    Parameters
    ----------
    features : ndarray of float64 or float32, shape (n, d), C-contiguous
        The x_i.
    labels : ndarray of int64, shape (n,)
        0 .. num_classes - 1.
    rows : ndarray of int64, shape (b,)
        Numbers of the rows in the mean.
    w : ndarray of float64, shape (d * num_classes + intercepts + d,)
        W in C order, then any intercepts, then delta.
    intercepts : int
        num_classes, or 0.
    out : ndarray of float64, shape of w
        Must not be `w`.
    """
    n, d = features.shape
    size = d * num_classes
    split, count = size + intercepts, rows.shape[0]
    if w.shape[0] != split + d or out.shape[0] != split + d:
        raise ValueError("w or out has another length than the objective's layout")
    for i in range(count):
        if rows[i] < 0 or rows[i] >= n:
            raise ValueError("a row number is not that of an example")
    coefficients, intercept, shift = w[:size].reshape(d, num_classes), w[size:split], w[split:]
    gathered = np.empty((min(_CHUNK, count), d))
    total = np.zeros(num_classes)
    for start in range(0, count, _CHUNK):
        part = rows[start : start + _CHUNK]
        block = gathered[: part.shape[0]]
        for i in range(part.shape[0]):
            block[i] = features[part[i]]
            for j in range(shift.shape[0]):
                block[i, j] += shift[j]
        slopes = np.dot(block, coefficients)
        for i in range(part.shape[0]):
            for c in range(intercept.shape[0]):
                slopes[i, c] += intercept[c]
        _replace_by_slopes(slopes, labels[part], scale / count)
        product = np.dot(block.T, slopes).reshape(size)
        for j in range(product.shape[0]):
            out[j] += product[j]
        for i in range(part.shape[0]):
            for c in range(num_classes):
                total[c] += slopes[i, c]
    for c in range(intercepts):
        out[size + c] += total[c]
    # By BLAS: a sum over the classes, one after the other, would take a fifth of the operator's time.
    along = np.dot(coefficients, total)
    for j in range(d):
        out[split + j] -= along[j]

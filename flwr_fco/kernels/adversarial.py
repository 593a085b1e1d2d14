"""The operator of multinomial logistic regression against one perturbation of all examples."""

import numpy as np

from flwr_fco.kernels import njit
from flwr_fco.kernels.losses import CHUNK, softmax_slopes


@njit(cache=True)
def add_adversarial_operator(features, labels, rows, w, num_classes, intercepts, scale, out):  # type: ignore[no-untyped-def]
    """Add scale * (mean_i (x_i + delta) r_i', mean_i r_i, -W mean_i r_i) to out, r_i = softmax(m_i) - e_{y_i}.

    BLAS computes the products, for `CHUNK` gathered and perturbed rows at a time.

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
    split = size + intercepts
    if w.shape[0] != split + d or out.shape[0] != split + d:
        raise ValueError("w or out has another length than the objective's layout")
    for row in rows:
        if row < 0 or row >= n:
            raise IndexError("a row number of the batch is outside 0 .. num_examples - 1")
    count = rows.shape[0]
    coefficients = w[:size].reshape(d, num_classes)
    perturbation = w[split:]
    gathered = np.empty((min(CHUNK, count), d))
    weight = scale / count
    total = np.zeros(num_classes)
    for start in range(0, count, CHUNK):
        length = min(CHUNK, count - start)
        block = gathered[:length]
        for i in range(length):
            source = features[rows[start + i]]
            for j in range(d):
                block[i, j] = source[j] + perturbation[j]
        slopes = np.dot(block, coefficients)
        for i in range(length):
            for c in range(intercepts):
                slopes[i, c] += w[size + c]
        softmax_slopes(slopes, labels[rows[start : start + length]], weight)
        product = np.dot(block.T, slopes).reshape(size)
        for j in range(size):
            out[j] += product[j]
        for i in range(length):
            for c in range(num_classes):
                total[c] += slopes[i, c]
    for c in range(intercepts):
        out[size + c] += total[c]
    # By BLAS: a sum over the classes, one after the other, would take a fifth of the operator's time.
    along = np.dot(coefficients, total)
    for j in range(d):
        out[split + j] -= along[j]

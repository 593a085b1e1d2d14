"""Passes over long vectors, which are read once."""

from __future__ import annotations

import numpy as np

from flwr_fco.kernels import njit


@njit(cache=True)
def copy(source, out):  # type: ignore[no-untyped-def]
    """Write a vector to another: ``out[:] = source`` takes Numba two seconds to compile, for the text of its error."""
    for j in range(source.size):
        out[j] = source[j]


@njit(cache=True)
def add_scaled(out, factor, vector):  # type: ignore[no-untyped-def]
    """Add a factor times a vector of either precision to a sum, without a vector in between."""
    for j in range(out.size):
        out[j] += factor * np.float64(vector[j])


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

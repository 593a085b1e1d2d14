"""Passes over long vectors, which are read once: sums of replies, and whether all numbers are finite."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flwr_fco.kernels import njit

_REORDER = {"reassoc", "contract", "nsz"}


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


@njit(cache=True, fastmath=_REORDER)
def sum_of_squares(vector: NDArray[np.float32]) -> float:
    """Return the sum of the squares in float64; it is finite exactly if all numbers are."""
    total = 0.0
    for j in range(vector.size):
        value = np.float64(vector[j])
        total += value * value
    return total


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
    by_four = n - n % 4
    for i in range(0, by_four, 4):
        a = matrix[i]
        b = matrix[i + 1]
        c = matrix[i + 2]
        d = matrix[i + 3]
        p = scale * y[i]
        q = scale * y[i + 1]
        r = scale * y[i + 2]
        s = scale * y[i + 3]
        e = f = g = h = 0.0
        for j in range(m):
            e += a[j] * x[j]
            f += b[j] * x[j]
            g += c[j] * x[j]
            h += d[j] * x[j]
            towards_x[j] += (p * a[j] + q * b[j]) + (r * c[j] + s * d[j])
        towards_y[i] -= scale * e
        towards_y[i + 1] -= scale * f
        towards_y[i + 2] -= scale * g
        towards_y[i + 3] -= scale * h
    for i in range(by_four, n):
        a = matrix[i]
        e = 0.0
        p = scale * y[i]
        for j in range(m):
            e += a[j] * x[j]
            towards_x[j] += p * a[j]
        towards_y[i] -= scale * e

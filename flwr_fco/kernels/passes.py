"""Passes over long arrays, which are read once: sums of replies, products with a matrix, facts about its columns.

In a plain mean of ten replies of 1e7 numbers, half of the time is spent on the sum, which is read and written for every
reply. Here four replies are added at a time, to a block of the sum that stays in the cache until all have been added.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flwr_fco.kernels import njit

_REORDER = {"reassoc", "contract", "nsz"}


@njit(cache=True)
def add_four(out, a, b, c, d, factors, begin, end):  # type: ignore[no-untyped-def]
    """Add four vectors times their factors to a part of a sum, in order, bit for bit as in four single additions."""
    p, q, r, s = factors[0], factors[1], factors[2], factors[3]
    # Counted from 0, so that the compiler knows that no index is negative.
    part, e, f, g, h = out[begin:end], a[begin:end], b[begin:end], c[begin:end], d[begin:end]
    for j in range(part.size):
        total = part[j] + np.float64(e[j]) * p
        total += np.float64(f[j]) * q
        total += np.float64(g[j]) * r
        part[j] = total + np.float64(h[j]) * s


@njit(cache=True, fastmath=_REORDER)
def sum_of_squares(vector: NDArray[np.float32]) -> float:
    """Return the sum of the squares in float64; it is finite exactly if all numbers are."""
    total = 0.0
    for j in range(vector.size):
        value = np.float64(vector[j])
        total += value * value
    return total


@njit(cache=True, fastmath={"reassoc", "contract"})
def add_both_products(matrix, rows, columns, of_rows, of_columns, out_rows, out_columns):  # type: ignore[no-untyped-def]
    """Add of_rows * M columns to out_rows and of_columns * M' rows to out_columns.

    The matrix is read once, four rows at a time, because memory access determines the cost. Sums are re-associated into
    SIMD lanes, always in the same way: equal calls give equal bits on one machine.

    Parameters
    ----------
    matrix : ndarray of float64, shape (n, m), C-contiguous
        M.
    rows : ndarray of float64, shape (n,)
        The vector of the second product, one number per row of M.
    columns : ndarray of float64, shape (m,)
        The vector of the first product, one number per column of M.
    of_rows, of_columns : float
        Factors of the two products.
    out_rows : ndarray of float64, shape (n,)
        Must not overlap `rows` or `columns`.
    out_columns : ndarray of float64, shape (m,)
        Must not overlap `rows` or `columns`.
    """
    n, m = matrix.shape
    if rows.shape[0] != n or out_rows.shape[0] != n or columns.shape[0] != m or out_columns.shape[0] != m:
        raise ValueError("the vectors have other lengths than the matrix has rows and columns")
    blocked = n - n % 4
    for i in range(0, blocked, 4):
        a0, a1, a2, a3 = matrix[i], matrix[i + 1], matrix[i + 2], matrix[i + 3]
        c0, c1 = of_columns * rows[i], of_columns * rows[i + 1]
        c2, c3 = of_columns * rows[i + 2], of_columns * rows[i + 3]
        s0 = s1 = s2 = s3 = 0.0
        for j in range(m):
            x = columns[j]
            s0 += a0[j] * x
            s1 += a1[j] * x
            s2 += a2[j] * x
            s3 += a3[j] * x
            out_columns[j] += (c0 * a0[j] + c1 * a1[j]) + (c2 * a2[j] + c3 * a3[j])
        out_rows[i] += of_rows * s0
        out_rows[i + 1] += of_rows * s1
        out_rows[i + 2] += of_rows * s2
        out_rows[i + 3] += of_rows * s3
    for i in range(blocked, n):
        a0 = matrix[i]
        c0 = of_columns * rows[i]
        s0 = 0.0
        for j in range(m):
            s0 += a0[j] * columns[j]
            out_columns[j] += c0 * a0[j]
        out_rows[i] += of_rows * s0


@njit(cache=True)
def deviations(matrix, rows, fewest, variance):  # type: ignore[no-untyped-def]
    """Return each column's standard deviation, to the bit NumPy's; 0 of few values, mostly zeros or heavy tails.

    Parameters
    ----------
    matrix : ndarray, shape (n, d)
        Finite numbers.
    rows : ndarray of int64, shape (b,)
        Numbers of the rows in which a column must have as many different values as `fewest` says.
    variance : float
        The kurtosis less 1 is at most so many times the number of rows.
    """
    n, d = matrix.shape
    counts, found = np.zeros(d, np.int64), np.empty((fewest, d))
    for row in rows:
        for j in range(d):
            if counts[j] == fewest:
                continue
            value, k = np.float64(matrix[row, j]), 0
            while k < counts[j] and found[k, j] != value:
                k += 1
            if k == counts[j]:
                found[k, j] = value
                counts[j] += 1
    means, squares, fourth = np.zeros(d), np.zeros(d), np.zeros(d)
    zeros = np.zeros(d, np.int64)
    for i in range(n):
        for j in range(d):
            means[j] += matrix[i, j]
            zeros[j] += matrix[i, j] == 0.0
    means /= n
    for i in range(n):
        for j in range(d):
            squares[j] += (matrix[i, j] - means[j]) ** 2
    spread = np.sqrt(squares / n)
    for i in range(n):
        for j in range(d):
            if spread[j] > 0.0:
                fourth[j] += ((matrix[i, j] - means[j]) / spread[j]) ** 4
    for j in range(d):
        if counts[j] < fewest or 2 * zeros[j] > n or fourth[j] / n - 1.0 > variance * n:
            spread[j] = 0.0
    return spread

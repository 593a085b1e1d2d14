"""Facts about the columns of a dense matrix, row by row and without a copy."""

import numpy as np

from flwr_fco.kernels import njit


@njit(cache=True)
def deviations(matrix, rows, fewest, variance):  # type: ignore[no-untyped-def]
    """Return each column's standard deviation in float64, to the bit NumPy's; 0 of few values or heavy tails.

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
    for i in range(n):
        for j in range(d):
            means[j] += matrix[i, j]
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
        if counts[j] < fewest or fourth[j] / n - 1.0 > variance * n:
            spread[j] = 0.0
    return spread


@njit(cache=True)
def grades(deviations, per_octave):  # type: ignore[no-untyped-def]
    """Return `per_octave` times the logarithm to base 2 of each deviation, rounded; one more from 0 on, and 0 for 0.

    Parameters
    ----------
    deviations : ndarray of float64, shape (d,)
        Numbers >= 0; one that has overflowed counts as a large one.
    """
    found = np.zeros(deviations.size, np.int64)
    for j in range(deviations.size):
        if deviations[j] > 0.0:
            grade = np.int64(np.rint(per_octave * min(np.log2(deviations[j]), 1023.0)))
            found[j] = grade + (grade >= 0)
    return found


@njit(cache=True)
def num_zeros(matrix):  # type: ignore[no-untyped-def]
    """Return how many zeros each column has.

    Parameters
    ----------
    matrix : ndarray, shape (n, d)
        Any numbers.
    """
    n, d = matrix.shape
    counts = np.zeros(d, np.int64)
    for i in range(n):
        for j in range(d):
            counts[j] += matrix[i, j] == 0.0
    return counts

"""Sparse rows, in order and as users bring them."""

import numpy as np
from scipy import sparse

D = 30


def rows(n=25, d=D, seed=0, density=0.2):
    return sparse.random_array((n, d), density=density, rng=np.random.default_rng(seed), format="csr")


def as_users_bring_them(matrix):
    """Return the matrix with unsorted columns, entries in two parts, and a stored zero."""
    matrix = sparse.csr_array(matrix)
    data = []
    indices = []
    ends = [0]
    for i in range(matrix.shape[0]):
        part = slice(matrix.indptr[i], matrix.indptr[i + 1])
        own, columns = matrix.data[part], matrix.indices[part]
        order = np.random.default_rng(i).permutation(2 * own.size)
        data.append(np.r_[np.r_[0.25 * own, 0.75 * own][order], 0.0])
        indices.append(np.r_[np.r_[columns, columns][order], 3])
        ends.append(ends[-1] + data[-1].size)
    return sparse.csr_array((np.concatenate(data), np.concatenate(indices), ends), shape=matrix.shape)

"""Both products with a matrix in one pass over it, for bilinear saddle functions."""

from flwr_fco.kernels import njit


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

"""Both products of a matrix in one pass are those of BLAS, whatever its size."""

import numpy as np
import pytest

from flwr_fco.kernels.passes import add_both_products


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (4, 4), (5, 1), (8, 17), (301, 64)])
def test_both_products(shape):
    rng = np.random.default_rng(0)
    matrix, rows, columns = rng.normal(size=shape), rng.normal(size=shape[0]), rng.normal(size=shape[1])
    out_rows, out_columns = rng.normal(size=shape[0]), rng.normal(size=shape[1])
    expected = out_rows - 0.3 * matrix @ columns, out_columns + 2.0 * matrix.T @ rows
    add_both_products(matrix, rows, columns, -0.3, 2.0, out_rows, out_columns)
    np.testing.assert_allclose(out_rows, expected[0], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(out_columns, expected[1], rtol=1e-12, atol=1e-12)


def test_wrong_lengths_are_refused():
    with pytest.raises(ValueError, match="lengths"):
        add_both_products(np.ones((2, 3)), np.ones(3), np.ones(2), 1.0, 1.0, np.ones(3), np.ones(2))

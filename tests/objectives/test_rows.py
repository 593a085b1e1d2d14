"""What becomes of users' features, dense and sparse; and moments and deviations of their columns."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sparse_rows import as_users_bring_them, rows

from flwr_fco.objectives import LeastSquares
from flwr_fco.objectives.design import as_rows, deviations


def frame(matrix):
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame.sparse.from_spmatrix(sparse.csr_matrix(matrix))


FORMS = {
    "csr_array": sparse.csr_array,
    "csr_matrix": sparse.csr_matrix,
    "csc": sparse.csc_array,
    "coo": sparse.coo_matrix,
    "lil": sparse.lil_matrix,
    "messy": as_users_bring_them,
    "int64 indices": lambda m: sparse.csr_array((m.data, m.indices.astype(int), m.indptr.astype(int)), m.shape),
    "pandas": frame,
}


@pytest.mark.parametrize("form", FORMS)
def test_every_sparse_form_becomes_the_same_rows(form):
    given = FORMS[form](rows())
    before = given.copy()
    found = as_rows(given)
    assert_allclose(found.toarray(), rows().toarray(), rtol=1e-15)
    assert (found.indices.dtype, found.indptr.dtype, found.nnz) == (np.int32, np.int32, rows().nnz)
    if sparse.issparse(given) and given.format == "csr":
        assert_array_equal(given.data, before.data)
        assert_array_equal(given.indices, before.indices)


def test_rows_in_order_are_used_as_they_are_and_flags_are_not_believed():
    given = rows()
    assert np.shares_memory(as_rows(given).data, given.data)
    assert as_rows(given.astype(np.float32)).dtype == np.float32
    assert as_rows(given.astype(bool)).dtype == np.float64
    matrix = np.ones((3, 2, 2))
    assert np.shares_memory(as_rows(matrix), matrix)
    assert (as_rows(matrix).shape, as_rows(matrix).flags.writeable, matrix.flags.writeable) == ((3, 4), False, True)
    given = rows(1, density=0.9)
    assert given.has_canonical_format
    given.indices[:], given.data[:] = given.indices[::-1].copy(), given.data[::-1].copy()
    assert_array_equal(as_rows(given).toarray(), rows(1, density=0.9).toarray())


@pytest.mark.parametrize("dtype", [np.int32, np.bool_, np.float16, ">f8", ">f4"])
def test_other_dtypes_are_converted_once(dtype):
    objective = LeastSquares(np.array([[0, 1], [1, 1], [1, 0]]).astype(dtype), [0, 1, 2])
    assert objective.features.dtype in (np.float64, np.float32)
    assert_allclose(objective.gradient(np.zeros(3)), [-2.0, -2.0 / 3.0, -2.0])


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("count", [20, 300])
def test_deviations_are_numpys_but_of_columns_that_have_no_unit(count, dtype):
    rng = np.random.default_rng(0)
    matrix = rng.uniform(-1.0, 1.0, (count, 8)) * 10.0 ** np.arange(-3, 5) + 1e3
    # Some zeros; sorted; a few rows that make the deviation; few values, of which one is rare; indicators; a constant.
    matrix[: count // 3, 1] = 0.0
    matrix[:, 2] = np.sort(np.arange(count) * 6 // count)
    matrix[0, 3] = matrix[1, 3] = 1e9
    matrix[:, 4] = rng.permutation(count) % 5 + 1e3 * (np.arange(count) == 1) * (count > 64)
    matrix[:, 5] = rng.permutation(count) % 2
    matrix[:, 6] = np.where(np.arange(count) % 2, 5.0, -3.0)
    matrix[:, 7] = 4.0
    matrix = matrix.astype(dtype)
    expected = matrix.astype(np.float64).std(axis=0)
    expected[3:] = 0.0
    for form in (np.asarray, sparse.csr_array):
        assert_allclose(deviations(as_rows(form(matrix))), expected, rtol=1e-9)
        assert not deviations(as_rows(form(matrix[:19]))).any()

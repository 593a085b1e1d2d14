"""What becomes of users' features, dense and sparse; and moments and deviations of their columns."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sparse_rows import D, as_users_bring_them, rows

from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives import CoxRegression, LeastSquares, Logistic, TraceRegression
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


def test_rows_in_order_are_used_as_they_are():
    given = rows()
    assert np.shares_memory(as_rows(given).data, given.data)
    assert as_rows(given.astype(np.float32)).dtype == np.float32
    assert as_rows(given.astype(bool)).dtype == np.float64
    matrix = np.ones((3, 2, 2))
    assert np.shares_memory(as_rows(matrix), matrix)
    assert (as_rows(matrix).shape, as_rows(matrix).flags.writeable, matrix.flags.writeable) == ((3, 4), False, True)


def test_flags_of_sparse_matrices_are_not_believed():
    given = rows(1, density=0.9)
    assert given.has_canonical_format
    given.indices[:], given.data[:] = given.indices[::-1].copy(), given.data[::-1].copy()
    assert_array_equal(as_rows(given).toarray(), rows(1, density=0.9).toarray())


@pytest.mark.parametrize("dtype", [np.int32, np.bool_, np.float16, ">f8", ">f4"])
def test_other_dtypes_are_converted_once(dtype):
    objective = LeastSquares(np.array([[0, 1], [1, 1], [1, 0]]).astype(dtype), [0, 1, 2])
    assert objective.features.dtype in (np.float64, np.float32)
    assert_allclose(objective.gradient(np.zeros(3)), [-2.0, -2.0 / 3.0, -2.0])


def damaged():
    broken = rows()
    broken.indices[5] = D + 7
    return broken


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.ones(3), r"shape \(3,\)"),
        (np.ones((0, 2)), "at least one example"),
        ([[1.0, np.nan], [1.0, 2.0]], r"features\[0, 1\] is nan"),
        ([["a"], ["b"]], "dtype <U1; expected numbers"),
        (np.ones((2, 2), dtype="M8[s]"), "dtype datetime64.*Encode"),
        (sparse.csr_array((0, 4)), "at least one example"),
        (sparse.csr_array(np.array([[1.0, 0.0], [0.0, -np.inf]])), r"features\[1, 1\] is -inf"),
        (sparse.csr_array(np.ones((2, 2), dtype=complex)), "dtype complex128"),
        (damaged(), "cannot be read"),
        (sparse.csr_array((1, 2**31)), "fewer than 2147483647"),
    ],
)
def test_what_is_no_table_of_numbers_is_refused(given, message):
    with pytest.raises(ConfigurationError, match=message):
        as_rows(given)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LeastSquares(np.ones((3, 2)), np.ones(4)), "3 examples"),
        (lambda: LeastSquares(np.ones((3, 2)), np.ones((3, 1))), r"expected \(3,\)"),
        (lambda: LeastSquares(np.ones((2, 2)), [1.0, np.inf]), r"targets\[1\] is inf"),
        (lambda: LeastSquares(np.ones((2, 2)), ["a", "b"]), "dtype"),
        (lambda: LeastSquares(np.ones((2, 2)), np.ones(2), scale=np.nan), "scale"),
        (lambda: LeastSquares(np.ones((2, 2)), np.ones(2), l2=-1.0), "l2"),
        (lambda: TraceRegression(rows(), np.zeros(25)), "examples, rows, columns"),
    ],
)
def test_targets_and_options_are_looked_at(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()


@pytest.mark.parametrize("cls", [LeastSquares, Logistic, CoxRegression])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sample_weight": [1.0, 0.0]}, r"sample_weight\[1\] is 0; expected numbers > 0"),
        ({"sample_weight": np.ones(3)}, r"sample_weight have shape \(3,\), but there are 2 examples"),
        ({"sample_weight": [np.nan, 1.0]}, r"sample_weight\[0\] is nan"),
        ({"offset": np.ones((2, 2))}, "offset have shape"),
        ({"offset": [np.inf, 0.0]}, r"offset\[0\] is inf"),
        ({"offset": ["a", "b"]}, "offset have dtype"),
    ],
)
def test_what_is_no_weight_or_offset_is_refused(cls, options, message):
    more = ([1.0, 1.0],) if cls is CoxRegression else ()
    with pytest.raises(ConfigurationError, match=message):
        cls(np.eye(2), [0.0, 1.0] if cls is Logistic else [1.0, 1.0], *more, **options)


def test_wrong_vectors_and_batches_are_refused():
    for given in (np.ones((40, 6)), sparse.csr_array(np.ones((40, 6)))):
        objective = LeastSquares(given, np.ones(40), intercept=False)
        for ask in (objective.value, objective.gradient):
            with pytest.raises(ConfigurationError, match=r"shape \(7,\), expected \(6,\)"):
                ask(np.zeros(7))
        for batch in ([0, 40], [-1]):
            for ask in (objective.gradient, objective.value_and_gradient):
                with pytest.raises(IndexError, match="row number"):
                    ask(np.zeros(6), np.array(batch))
    dense = LeastSquares(np.ones((40, 6)), np.ones(40), intercept=False)
    for w, out in ((np.zeros(5), np.zeros(5)), (np.zeros(6), np.zeros(5))):
        with pytest.raises(ValueError, match="length"):
            dense.add_gradient(w, None, 1.0, out)
    with pytest.raises(ConfigurationError, match="norm"):
        dense.lipschitz("linf")


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

"""What becomes of users' rows, dense and sparse, and what is no data of a loss: it is refused in words."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from problems import as_users_bring_them, refused, rows
from scipy import sparse

from flwr_fco import objectives
from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives import BilinearSaddle, CoxRegression, LeastSquares, Linear, Logistic, Poisson, SiteIntercept
from flwr_fco.objectives.design import as_rows, scales_of

FORMS = {
    "csr_array": sparse.csr_array,
    "csr_matrix": sparse.csr_matrix,
    "csc": sparse.csc_array,
    "coo": sparse.coo_matrix,
    "lil": sparse.lil_matrix,
    "messy": as_users_bring_them,
    "int64 indices": lambda m: sparse.csr_array((m.data, m.indices.astype(int), m.indptr.astype(int)), m.shape),
    "pandas": lambda m: pd.DataFrame.sparse.from_spmatrix(sparse.csr_matrix(m)),
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


def test_rows_in_order_are_used_as_they_are_and_flags_are_not_believed(tmp_path):
    np.save(tmp_path / "features.npy", rows().toarray().astype(np.float32))
    mapped = np.load(tmp_path / "features.npy", mmap_mode="r")
    assert np.shares_memory(LeastSquares(mapped, np.ones(25)).features, mapped)
    assert_array_equal(as_rows(np.asfortranarray(mapped)), mapped)
    given = rows()
    assert np.shares_memory(as_rows(given).data, given.data)
    assert [as_rows(given.astype(kind)).dtype for kind in (np.float32, bool)] == [np.float32, np.float64]
    for dtype in (np.int32, np.bool_, np.float16, ">f8", ">f4"):
        assert_array_equal(as_rows(np.eye(2, dtype=dtype)), np.eye(2), strict=True)
    assert as_rows(pd.DataFrame({"_mask": [1.5], "b": [True], "c": pd.array([2])})).tolist() == [[1.5, 1.0, 2.0]]
    matrix = np.ones((3, 2, 2))
    assert np.shares_memory(as_rows(matrix), matrix)
    for own in (objective := LeastSquares(matrix, np.zeros(3)), objective.subset(np.arange(2))[0]):
        assert (own.features.shape[1], own.features.flags.writeable, matrix.flags.writeable) == (4, False, True)
    given = rows(1, density=0.9)
    assert given.has_canonical_format
    given.indices[:], given.data[:] = given.indices[::-1].copy(), given.data[::-1].copy()
    assert_array_equal(as_rows(given).toarray(), rows(1, density=0.9).toarray())


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
        (found, size), (few, none) = (scales_of(as_rows(form(own))) for own in (-matrix, matrix[:19]))
        assert_allclose([*found, size, *few, none], [*expected, 1024.0, *np.zeros(9)], rtol=1e-9)


# --- what is refused --------------------------------------------------------------------------------------------------

TWO = np.eye(2)
NAN = float("nan")
POINT = np.zeros(4)


def of_three(labels, num_classes=None):
    return lambda: objectives.MultinomialLogistic(np.ones((3, 2)), labels, num_classes=num_classes)


def cox(**change):
    return lambda: CoxRegression(np.eye(3), **{"times": [1.0, 2.0, 3.0], "events": [1, 0, 1], **change})


def functions(**options):
    given = {"grad_x": lambda x, y: y, "grad_y": lambda x, y: x, "x": 2, "y": 2, **options}
    return lambda: objectives.SaddleObjective.from_functions(**given)


WRONG = [
    # Features.
    (r"shape \(3,\)", lambda: as_rows(np.ones(3))),
    ("at least one example", lambda: as_rows(np.ones((0, 2)))),
    (r"is an Arrow; give .*\.to_pandas", lambda: as_rows(type("Arrow", (list,), {"column_names": ["age"]})())),
    (r"is a zip; give an array, list\(", lambda: as_rows(zip([1.0], [2.0], strict=True))),
    (r"features\[0, 1\] is nan", lambda: as_rows([[1.0, NAN], [1.0, 2.0]])),
    ("features have missing", lambda: as_rows(pd.DataFrame({"a": pd.array([1, None]), "column_names": [True, False]}))),
    ("targets have missing entries; expected none", lambda: LeastSquares(TWO, np.ma.masked_equal([1.0, 2.0], 2.0))),
    ("dtype datetime64.*Encode", lambda: as_rows(np.ones((2, 2), dtype="M8[s]"))),
    (r"features\[1, 1\] is -inf", lambda: as_rows(sparse.csr_array(np.diag([1.0, -np.inf])))),
    ("cannot be read", lambda: as_rows(sparse.csr_array((np.ones(1), [7], [0, 1]), shape=(1, 4)))),
    # Targets, options and vectors.
    (r"expected \(3,\)", lambda: LeastSquares(np.ones((3, 2)), np.ones((3, 1)))),
    (r"targets\[1\] is inf", lambda: LeastSquares(TWO, [1.0, np.inf])),
    ("dtype", lambda: LeastSquares(TWO, ["a", "b"])),
    (r"labels hold \(0.0, 0.0\); expected 0 and 1", lambda: Logistic(TWO, np.zeros(2, dtype="f8,f8"))),
    ("scale", lambda: LeastSquares(TWO, np.ones(2), scale=NAN)),
    ("l2", lambda: LeastSquares(TWO, np.ones(2), l2=-1.0)),
    ("intercept='no' is a str; expected True or False", lambda: Logistic(TWO, [0, 1], intercept="no")),
    ("norm", lambda: LeastSquares(TWO, np.ones(2)).lipschitz("linf")),
    ("examples, rows, columns", lambda: objectives.TraceRegression(rows(), np.zeros(25))),
    (r"counts\[1\] is -2; expected numbers >= 0", lambda: Poisson(TWO, [1.0, -2.0])),
    ("does not know its Lipschitz constant, for there is none", lambda: Poisson(TWO, np.ones(2)).lipschitz()),
    ("delta=0.0; expected a finite number > 0", lambda: objectives.Huber(TWO, [1.0, 2.0], delta=0.0)),
    (r"link=.* expected a Link", lambda: Linear(objectives.links.Squares, TWO, np.ones(2))),
    # Labels.
    *(
        (r"labels hold .*; expected 0 and 1, or -1 and \+1", lambda own=own: Logistic(np.ones((3, 2)), own))
        for own in ([0, 1, 2], [0, -1, 1], [0.5, 1, 0], [NAN, 0, 1], np.array(["1", 1, 0], object))
    ),
    ("hold 0, 2.*num_classes=", of_three([0, 2, 0])),
    ("num_classes=", of_three([0, 0, 0])),
    (r"integers 0 \.\. 1", of_three([0, 1, 2], 2)),
    *((f"num_classes={k}.*expected (at least 2|a whole number)", of_three([0, 1, 2], k)) for k in (1, 3.0)),
    *(("integers", of_three([wrong, 1, 0], 3)) for wrong in (-1, 0.5, NAN)),
    ("hold 'cat', 'dog'", of_three(["cat", "dog", "dog"])),
    # Times.
    (r"times\[0\] is -1; expected numbers >= 0", cox(times=[-1.0, 2.0, 3.0])),
    *((rf"{k} have shape \(2,\), but there are 3", cox(**{k: [1.0, 2.0]})) for k in ("times", "entry", "strata")),
    ("events hold 0, 1, 2; expected 1 for an event and 0 for a censored row", cox(events=[0, 1, 2])),
    (r"entry\[1\] is not before times\[1\]", cox(entry=[0.0, 2.0, 0.0])),
    ("strata have missing entries", cox(strata=["a", None, "b"])),
    ("ties='exact' is a str; expected 'efron' or 'breslow'", cox(ties="exact")),
    # Intercepts of sites.
    ("this site has fewer than 10", lambda: SiteIntercept(Logistic(np.ones((9, 2)), np.arange(9) % 2))),
    ("has no intercept of each site; a linear loss with one output", lambda: SiteIntercept(of_three([0, 1, 2], 3)())),
    ("has no intercept of each site", lambda: SiteIntercept(SiteIntercept(LeastSquares(TWO, np.ones(2))))),
    ("intercept=False", lambda: SiteIntercept(Logistic(TWO, [0, 1], intercept=False))),
    # Saddle functions.
    (r"matrix has shape \(3,\)", lambda: BilinearSaddle(np.ones(3))),
    (r"offset has shape \(2,\)", lambda: BilinearSaddle(np.ones((3, 2)), np.ones(2))),
    (r"matrix\[0, 0\] is nan", lambda: BilinearSaddle([[NAN]])),
    ("noise=-1.0", lambda: BilinearSaddle([[1.0]], noise=-1.0)),
    (r"shape \(3,\), expected \(2,\)", lambda: BilinearSaddle([[1.0]]).gradient(np.zeros(3))),
    (r"grad_y returned shape \(1,\); expected \(2,\)", lambda: functions(grad_y=lambda x, y: x[:1])().gradient(POINT)),
    ("grad_x is a NoneType; expected a function", functions(grad_x=None)),
    ("value is a float; expected a function", functions(value=3.0)),
    ("value=", lambda: functions()().value(POINT)),
    ("Lipschitz", lambda: functions()().lipschitz()),
]


@pytest.mark.parametrize(("message", "make"), WRONG)
def test_what_is_no_loss_is_refused(message, make):
    refused(message, make)


NO_WEIGHTS = [
    ({"sample_weight": [1.0, 0.0]}, r"sample_weight\[1\] is 0; expected numbers > 0"),
    ({"sample_weight": np.ones(3)}, r"sample_weight have shape \(3,\), but there are 2 examples"),
    ({"sample_weight": [NAN, 1.0]}, r"sample_weight\[0\] is nan"),
    ({"sample_weight": [1.0, 1e308]}, r"sample_weight\[1\] is 1e\+308; .* sum is finite"),
    ({"offset": np.ones((2, 2))}, "offset have shape"),
    ({"offset": [np.inf, 0.0]}, r"offset\[0\] is inf"),
    ({"offset": ["a", "b"]}, "offset have dtype"),
]


@pytest.mark.parametrize("cls", [LeastSquares, Logistic, CoxRegression])
@pytest.mark.parametrize(("options", "message"), NO_WEIGHTS)
def test_what_is_no_weight_or_offset_is_refused(cls, options, message):
    refused(message, cls, TWO, *([[1.0, 1.0]] * 2 if cls is CoxRegression else [[0.0, 1.0]]), **options)


def test_wrong_vectors_and_batches_are_refused():
    for given in (sparse.csr_array(np.ones((40, 6))), np.ones((40, 6))):
        objective = LeastSquares(given, np.ones(40), intercept=False)
        for ask in (objective.value, objective.gradient):
            refused(r"shape \(7,\), expected \(6,\)", ask, np.zeros(7))
        for batch in ([0, 40], [-1]):
            for ask in (objective.gradient, objective.value_and_gradient):
                refused("row number", ask, np.zeros(6), np.array(batch), kind=IndexError)
        refused("of a mask", objective.value_and_gradient, np.zeros(6), np.ones(40, bool), kind=IndexError)
    for w, out in ((np.zeros(5), np.zeros(5)), (np.zeros(6), np.zeros(5))):
        refused("length", objective.add_gradient, w, None, 1.0, out, kind=ValueError)


@pytest.mark.parametrize("method", ["value", "gradient", "value_and_gradient", "hessian_product"])
@pytest.mark.parametrize("base", [Linear, LeastSquares, SiteIntercept])
def test_a_method_of_a_built_in_loss_that_nothing_calls_is_refused(base, method):
    with pytest.raises(ConfigurationError, match=rf"Own\.{method}: a loss of linear predictions .* give Linear a Link"):
        type("Own", (base,), {method: lambda *_: 0.0})
    type("Own", (base,), {"metrics": lambda *_: {}})

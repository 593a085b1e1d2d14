"""Sparse features against the same features dense: every form of them, objective, method, engine and strategy."""

import numpy as np
import pytest
from fitting import fitting
from numpy.testing import assert_allclose, assert_array_equal
from problems import kind_of, simulated
from representatives import by_class
from scipy import sparse
from together import together

from flwr_fco import strategies
from flwr_fco.client_apps import client_app
from flwr_fco.engines import minimise
from flwr_fco.errors import ConfigurationError
from flwr_fco.messages.protocol import SLOPES
from flwr_fco.objectives import LeastSquares, Logistic, MultinomialLogistic, TraceRegression
from flwr_fco.objectives.design import Design, SparseDesign
from flwr_fco.objectives.duality import duality_terms
from flwr_fco.regularizers import L1, Zero
from flwr_fco.sklearn import FederatedLasso, FederatedLogisticRegression
from flwr_fco.strategies import Epochs, Steps, run_of
from flwr_fco.work import Minimise
from reproduction.pooled import centralized_solution

D = 30


def rows(n=25, d=D, seed=0, density=0.2):
    return sparse.random_array((n, d), density=density, rng=np.random.default_rng(seed), format="csr")


def as_users_bring_them(matrix):
    """Return the matrix with unsorted columns, entries in two parts, and a stored zero."""
    matrix = sparse.csr_array(matrix)
    data, indices, ends = [], [], [0]
    for i in range(matrix.shape[0]):
        part = slice(matrix.indptr[i], matrix.indptr[i + 1])
        own, places = matrix.data[part], matrix.indices[part]
        order = np.random.default_rng(i).permutation(2 * own.size)
        data.append(np.r_[np.r_[0.25 * own, 0.75 * own][order], 0.0])
        indices.append(np.r_[np.r_[places, places][order], 3])
        ends.append(ends[-1] + data[-1].size)
    return sparse.csr_array((np.concatenate(data), np.concatenate(indices), ends), shape=matrix.shape)


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
    "int64 indices": lambda m: sparse.csr_array(
        (m.data, m.indices.astype(np.int64), m.indptr.astype(np.int64)), m.shape
    ),
    "pandas": frame,
}


@together("form", FORMS)
def test_every_form_becomes_the_same_rows(form):
    given = FORMS[form](rows())
    before = given.copy()
    design = Design.of(given)
    assert isinstance(design, SparseDesign)
    assert_allclose(design.matrix.toarray(), rows().toarray(), rtol=1e-15)
    assert design.matrix.indices.dtype == np.int32
    assert design.matrix.nnz == rows().nnz
    if sparse.issparse(given) and given.format == "csr":
        assert_array_equal(given.data, before.data)
        assert_array_equal(given.indices, before.indices)


def test_rows_in_order_are_used_as_they_are():
    given = rows()
    assert np.shares_memory(Design.of(given).matrix.data, given.data)
    assert Design.of(given.astype(np.float32)).matrix.dtype == np.float32
    assert Design.of(given.astype(bool)).matrix.dtype == np.float64


def damaged():
    broken = rows()
    broken.indices[5] = D + 7
    return broken


def unsorted_by_hand():
    """Its own flags still say that it is sorted."""
    given = rows(1, density=0.9)
    assert given.has_canonical_format
    given.indices[:], given.data[:] = given.indices[::-1].copy(), given.data[::-1].copy()
    return given


def test_flags_are_not_believed():
    assert_array_equal(Design.of(unsorted_by_hand()).matrix.toarray(), rows(1, density=0.9).toarray())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (sparse.csr_array((0, 4)), "at least one example"),
        (sparse.csr_array(np.array([[0.0, np.nan]])), r"features\[0, 1\] is nan"),
        (sparse.csr_array(np.array([[1.0, 0.0], [0.0, -np.inf]])), r"features\[1, 1\] is -inf"),
        (sparse.csr_array(np.ones((2, 2), dtype=complex)), "dtype complex128"),
        (damaged(), "damaged"),
        (sparse.csr_array((1, 2**31)), "fewer than 2147483647"),
    ],
)
def test_what_is_refused(given, message):
    with pytest.raises(ConfigurationError, match=message):
        Logistic(given, np.zeros(given.shape[0]))


def test_matrices_of_examples_are_dense():
    with pytest.raises(ConfigurationError, match="expected a dense array"):
        TraceRegression(rows(), np.zeros(25))


def numbers(seed=0, n=25):
    return np.random.default_rng(seed).standard_normal(n)


KINDS = {
    "least squares": lambda x, **o: LeastSquares(x, numbers(), **o),
    "logistic": lambda x, **o: Logistic(x, (numbers() > 0).astype(int), **o),
    "multinomial": lambda x, **o: MultinomialLogistic(x, np.arange(25) % 3, **o),
}


def agree(found, expected):
    assert_allclose(found, expected, rtol=1e-12, atol=1e-13)


@together("dtype", [np.float64, np.float32])
@together("options", [{}, {"intercept": False}, {"l2": 0.3}])
@together("kind", KINDS)
def test_every_method_of_an_objective_agrees(kind, options, dtype):
    one = KINDS[kind](rows().toarray().astype(dtype), **options)
    other = KINDS[kind](as_users_bring_them(rows()) if dtype == np.float64 else rows().astype(dtype), **options)
    w, v, batch = numbers(1, one.layout.size), numbers(2, one.layout.size), np.array([3, 17, 3, 0])
    agree(other.value(w), one.value(w))
    for chosen in (None, batch):
        agree(other.gradient(w, chosen), one.gradient(w, chosen))
        a, b = (own.value_and_gradient(w, chosen) for own in (one, other))
        agree(b[0], a[0])
        agree(b[1], a[1])
        in_place = [w.copy(), w.copy()]
        for own, point in zip((one, other), in_place, strict=True):
            own.add_gradient(point, chosen, -0.1, point)
        agree(*in_place)
    agree(other.hessian_product(w, v), one.hessian_product(w, v))
    on = np.arange(0, w.size, 2)
    agree(other.hessian_block(w, on), one.hessian_block(w, on))
    for norm in ("l2", "l1"):
        assert_allclose(other.lipschitz(norm), one.lipschitz(norm), rtol=1e-9)
        assert_allclose(other.batch_lipschitz(4, norm), one.batch_lipschitz(4, norm), rtol=1e-9)
    assert_allclose(other.strong_convexity(), one.strong_convexity(), rtol=1e-9, atol=1e-15)
    lines = [own.along(w, v) for own in (one, other)]
    agree(lines[1](0.7), lines[0](0.7))
    agree(lines[1].gradient(0.7), lines[0].gradient(0.7))
    for name, number in one.metrics(w).items():
        agree(other.metrics(w)[name], number)
    for terms in zip(*(duality_terms(own, w, {"stage": SLOPES}) for own in (one, other)), strict=True):
        for name in terms[0]:
            agree(terms[1][name], terms[0][name])


def test_lanczos_agrees(monkeypatch):
    monkeypatch.setattr("flwr_fco.objectives._linear.LARGEST_GRAM", 3)
    for kind in ("least squares", "logistic"):
        assert_allclose(KINDS[kind](rows()).lipschitz(), KINDS[kind](rows().toarray()).lipschitz(), rtol=1e-8)


@together("kind", KINDS)
def test_local_minimisations_agree(kind):
    matrix = rows(25, D, density=0.4)
    points = [minimise(KINDS[kind](x, l2=0.1), Minimise(1e-7), penalty=0.3) for x in (matrix.toarray(), matrix)]
    assert all(point.reached for point in points)
    assert_allclose(points[1].point, points[0].point, rtol=0, atol=1e-6)


CONSTANTS = {
    "DualFL": {"nu": 0.05, "smoothness": 4.0},
    "FedDR": {"step": 0.5},
}


def make_strategy(name, **given):
    cls = kind_of(name)
    regularizer = Zero() if "regularizer" in cls.algorithm.refuses else L1(0.01)
    options = {
        "client_lr": 0.05,
        "work": (Epochs(2, batch_size=5), Minimise(tolerance=1e-12)),
        "regularizer": regularizer,
        "seed": 4,
    }
    options |= {"fraction_evaluate": 0.0, "batch_size": 5, **CONSTANTS.get(name, {}), **given}
    return cls(**fitting(cls, options))


def trained(strategy, objectives, rounds=4):
    start = {name: np.zeros(shape) for name, shape in objectives[0].layout.shapes.items()}
    simulated(
        strategy,
        client_app(lambda context: objectives[context.node_config["partition-id"]]),
        rounds,
        num_nodes=len(objectives),
        initial_arrays=start,
    )
    return run_of(strategy).method.retrieve(run_of(strategy).problem, strategy.state)


def agrees_with_dense_features(name):
    def clients(of):
        return [Logistic(of(rows(12 + m, seed=m)), (numbers(m, 12 + m) > 0).astype(int), l2=0.1) for m in range(4)]

    points = [trained(make_strategy(name), clients(of)) for of in (lambda x: x.toarray(), as_users_bring_them)]
    assert_allclose(points[1], points[0], rtol=1e-7 if name in CONSTANTS else 1e-12, atol=1e-12)
    assert np.abs(points[0]).max() > 1e-3


@pytest.mark.parametrize("name", by_class())
def test_every_strategy_agrees(name):
    agrees_with_dense_features(name)


def test_the_estimators_agree_with_dense_ones():
    X, y = rows(80, 12), numbers(5, 80)
    for make, target in ((FederatedLasso(0.005), y), (FederatedLogisticRegression(C=2.0), y > 0)):
        dense = make.fit(X.toarray(), target)
        expected = dense.coef_.copy(), np.copy(dense.intercept_)
        for given in (X, sparse.csc_matrix(X), [X[:30], X[30:].toarray()]):
            parts = target if sparse.issparse(given) else [target[:30], target[30:]]
            found = make.fit(given, parts)
            assert_allclose(found.coef_, expected[0], atol=1e-6)
            assert_allclose(found.intercept_, expected[1], atol=1e-6)
        assert_allclose(found.predict(X), found.predict(X.toarray()), rtol=1e-12)


def test_pooled_references_take_sparse_features():
    for kind in ("least squares", "logistic"):
        pair = [[KINDS[kind](x)] for x in (rows().toarray(), rows())]
        found = [centralized_solution(own, L1(0.01)) for own in pair]
        assert_allclose(found[1], found[0], atol=1e-6)


def test_federated_training_reaches_what_liblinear_and_cvxpy_find():
    """One full step a round on sparse rows, no intercept (liblinear would penalise it)."""
    from sklearn.linear_model import LogisticRegression

    cvxpy = pytest.importorskip("cvxpy")
    matrices = [rows(20, 40, seed=m, density=0.2) for m in range(3)]
    labels = [(numbers(10 + m, 20) > 0).astype(int) for m in range(3)]
    objectives = [Logistic(x, y, intercept=False) for x, y in zip(matrices, labels, strict=True)]
    strength, n = 0.01, 60
    found = trained(
        strategies.FedDualAvg(
            regularizer=L1(strength), client_lr=8.0, work=Steps(1, batch_size=None), fraction_evaluate=0.0
        ),
        objectives,
        rounds=1500,
    )
    X, y = sparse.vstack(matrices), np.concatenate(labels)
    model = LogisticRegression(
        l1_ratio=1.0,
        penalty="l1",
        solver="liblinear",
        C=1.0 / (n * strength),
        fit_intercept=False,
        tol=1e-10,
        max_iter=10**5,
    ).fit(sparse.csr_matrix(X), y)
    assert_allclose(found, model.coef_[0], atol=1e-4)
    w = cvxpy.Variable(40)
    margins = cvxpy.multiply(2 * y - 1, X.toarray() @ w)
    cvxpy.Problem(cvxpy.Minimize(cvxpy.sum(cvxpy.logistic(-margins)) / n + strength * cvxpy.norm1(w))).solve(
        solver=cvxpy.CLARABEL
    )
    assert_allclose(found, w.value, atol=2e-4)
    assert 0 < np.count_nonzero(found) < 40

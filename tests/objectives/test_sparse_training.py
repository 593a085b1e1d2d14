"""Training on sparse features against training on the same features dense: every strategy, and the estimators."""

import numpy as np
import pytest
from fitting import fitting
from numpy.testing import assert_allclose
from problems import kind_of, simulated
from representatives import by_class
from scipy import sparse
from sparse_rows import as_users_bring_them, rows

from flwr_fco import strategies
from flwr_fco.client_apps import client_app
from flwr_fco.objectives import Logistic
from flwr_fco.regularizers import L1, Zero
from flwr_fco.sklearn import FederatedLasso, FederatedLogisticRegression
from flwr_fco.strategies import Epochs, Steps, run_of
from flwr_fco.work import Minimise


def numbers(seed=0, n=25):
    return np.random.default_rng(seed).standard_normal(n)


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


@pytest.mark.parametrize("name", by_class())
def test_every_strategy_agrees(name):
    def clients(of):
        return [Logistic(of(rows(12 + m, seed=m)), (numbers(m, 12 + m) > 0).astype(int), l2=0.1) for m in range(4)]

    points = [trained(make_strategy(name), clients(of)) for of in (lambda x: x.toarray(), as_users_bring_them)]
    assert_allclose(points[1], points[0], rtol=1e-7 if name in CONSTANTS else 1e-12, atol=1e-12)
    assert np.abs(points[0]).max() > 1e-3


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

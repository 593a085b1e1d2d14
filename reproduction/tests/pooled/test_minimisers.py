"""Minimisers and scores of pooled problems against scikit-learn and CVXPY, and the gaps that certify them."""

import cvxpy as cp
import numpy as np
import pytest
import sklearn
from numpy.testing import assert_allclose
from sklearn.linear_model import ElasticNet as SklearnElasticNet
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score, precision_score, recall_score
from sklearn.utils.fixes import parse_version

from flwr_fco.errors import ConfigurationError, FlwrFcoError
from flwr_fco.objectives import BilinearSaddle, LeastSquares, Logistic, MultinomialLogistic, TraceRegression
from flwr_fco.regularizers import L1, ElasticNet, HardSparsity, Nuclear, Zero
from reproduction import pooled
from reproduction.pooled import centralized_solution


class _Kinked(LeastSquares):
    """A loss that says that it has kinks."""

    smooth = False


def _clients(make, classes=0, **options):
    rng = np.random.default_rng(0)
    clients = []
    for size in (15, 30, 60):
        features = rng.normal(size=8) * 0.5 + rng.normal(size=(size, 8))
        if classes:
            targets = (features[:, :classes] + rng.normal(size=(size, classes))).argmax(axis=1)
        else:
            targets = features[:, 0] - features[:, 1] + 2.0 + 0.5 * rng.normal(size=size)
        clients.append(make(features, targets, **options))
    return clients


KINDS = {"least squares": (LeastSquares, 0), "binary": (Logistic, 2), "multinomial": (MultinomialLogistic, 3)}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("weights", [None, [1, 1, 1], [1, 0, 3]])
@pytest.mark.parametrize("l1_ratio", [1.0, 0.4])
def test_the_minimiser_is_scikit_learns(name, weights, l1_ratio):
    make, classes = KINDS[name]
    clients = _clients(make, classes)
    strength = 0.02 if classes else 0.2
    own = centralized_solution(clients, ElasticNet(strength, l1_ratio), weights, tol=1e-12)
    features = np.concatenate([client.features for client in clients])
    sizes = np.array([client.num_examples for client in clients])
    each = np.repeat(105 * pooled.client_weights(clients, weights) / sizes, sizes)
    if classes:
        targets = np.concatenate([client.labels for client in clients])
        # liblinear would penalise the intercept; newer versions see by themselves that it is an elastic net.
        more = {"C": 1.0 / (105 * strength), "solver": "saga", "max_iter": 100_000, "tol": 1e-12}
        older = {} if parse_version(sklearn.__version__) >= parse_version("1.8") else {"penalty": "elasticnet"}
        model = LogisticRegression(l1_ratio=l1_ratio, **more, **older)
    else:
        targets = np.concatenate([client.targets for client in clients])
        # scikit-learn halves the square.
        model = SklearnElasticNet(alpha=0.5 * strength, l1_ratio=l1_ratio, tol=1e-14)
    model.fit(features, targets, sample_weight=each)
    other = np.r_[model.coef_.T.ravel(), model.intercept_]
    if name == "multinomial":
        # A constant added to all intercepts changes nothing.
        own[-3:] -= own[-3:].mean()
        other[-3:] -= other[-3:].mean()
    assert_allclose(own, other, atol=1e-7)


def test_the_nuclear_norms_minimiser_is_cvxpys():
    rng = np.random.default_rng(0)
    truth = np.outer(rng.normal(size=5), rng.normal(size=4))
    clients = []
    for size in (30, 50):
        matrices = rng.normal(size=(size, 5, 4))
        targets = np.einsum("nij,ij->n", matrices, truth) + 0.5 + 0.1 * rng.normal(size=size)
        clients.append(TraceRegression(matrices, targets))
    own = centralized_solution(clients, Nuclear(0.4), [1, 1], tol=1e-12)
    matrix = cp.Variable((5, 4))
    intercept = cp.Variable()
    loss = sum(
        0.5 * cp.sum_squares(c.features @ cp.reshape(matrix, (20,), order="C") + intercept - c.targets) / c.num_examples
        for c in clients
    )
    cp.Problem(cp.Minimize(loss + 0.4 * cp.normNuc(matrix))).solve(solver=cp.CLARABEL)
    assert_allclose(own, np.r_[matrix.value.ravel(), intercept.value], atol=1e-5)
    assert pooled.numerical_rank(own[:20].reshape(5, 4), 1e-9) == 1


def test_a_point_of_whole_numbers_is_a_point():
    """It had a gradient of whole numbers: 0, as if it were stationary."""
    client = LeastSquares(np.array([[1.0, 0.5], [-1.0, 0.25]]), np.array([0.5, 0.25]))
    w = np.array([0, 1, 0])
    found, expected = (pooled.stationarity([client], None, L1(0.01), point) for point in (w, w.astype(float)))
    assert found == expected > 0.0


def test_scores_are_scikit_learns_also_of_empty_supports():
    rng = np.random.default_rng(0)
    w = rng.normal(size=50)
    reference = (rng.random(50) < 0.4).astype(float)
    found = np.abs(w) > 0.7
    truth = reference != 0
    expected = precision_score(truth, found), recall_score(truth, found), f1_score(truth, found)
    assert pooled.support_scores(w, reference, 0.7) == expected
    assert pooled.support_scores(np.zeros(3), np.ones(3)) == (1.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("solve", "message"),
    [
        (lambda: centralized_solution(_clients(LeastSquares), HardSparsity(2)), "not convex"),
        (lambda: centralized_solution([_Kinked(np.eye(2), [0, 1])], L1(0.2)), "_Kinked is not smooth"),
        (lambda: centralized_solution([BilinearSaddle(np.eye(2))], L1(0.2)), "BilinearSaddle is a saddle function"),
        (lambda: centralized_solution(_clients(LeastSquares), L1(0.2), max_iterations=3), "after 3 iterations"),
        (lambda: pooled.client_weights(_clients(LeastSquares), [1.0, 1.0, -1.0]), "weights"),
        (lambda: pooled.client_weights([*_clients(LeastSquares), *_clients(Logistic, 2, intercept=False)]), "differ"),
        (lambda: pooled.stationarity([], None, Zero(), np.zeros(2)), "no client"),
    ],
)
def test_what_is_refused(solve, message):
    with pytest.raises((ConfigurationError, FlwrFcoError), match=message):
        solve()

"""The reference solver against scikit-learn and CVXPY, with the normalisations reconciled."""

from dataclasses import dataclass
from typing import ClassVar

import cvxpy as cp
import numpy as np
import pytest
from kinks import Distance
from numpy.testing import assert_allclose
from sklearn.linear_model import Lasso, LogisticRegression
from together import together

from flwr_fco.datasets import lasso
from flwr_fco.errors import ConfigurationError, FlwrFcoError
from flwr_fco.objectives import LeastSquares, Logistic, MatrixGame, MultinomialLogistic, TraceRegression
from flwr_fco.pooled import (
    centralized_solution,
    composite_objective,
    lasso_duality_gap,
    numerical_rank,
    pooled_gradient,
    sklearn_solution,
)
from flwr_fco.regularizers import Regularizer, SeparableTerms


@dataclass(frozen=True)
class _ElasticNet(Regularizer):
    strength: float
    ridge: float = 0.0
    lower: float = -np.inf

    def value(self, w):
        return self.strength * float(np.abs(w).sum()) + 0.5 * self.ridge * float((w**2).sum())

    def prox(self, v, step, out=None):
        result = np.sign(v) * np.maximum(np.abs(v) - step * self.strength, 0.0) / (1.0 + step * self.ridge)
        result = np.maximum(result, self.lower)
        if out is None:
            return result
        out[...] = result
        return out

    def separable_terms(self, shape):
        return SeparableTerms(self.strength, self.ridge, self.lower)


@dataclass(frozen=True)
class _Nuclear(Regularizer):
    strength: float

    def value(self, w):
        return self.strength * float(np.linalg.svd(w, compute_uv=False).sum())

    def prox(self, v, step, out=None):
        left, sigma, right = np.linalg.svd(v, full_matrices=False)
        result = (left * np.maximum(sigma - step * self.strength, 0.0)) @ right
        if out is None:
            return result
        out[...] = result
        return out


@dataclass(frozen=True)
class _Nonconvex(_ElasticNet):
    convex: ClassVar[bool] = False


def _clients(make, options, classes=0, seed=0):
    rng = np.random.default_rng(seed)
    clients = []
    for size in (15, 30, 60):
        features = rng.normal(size=8) * 0.5 + rng.normal(size=(size, 8))
        if classes:
            targets = (features[:, :classes] + rng.normal(size=(size, classes))).argmax(axis=1)
        else:
            targets = features[:, 0] - features[:, 1] + 2.0 + 0.5 * rng.normal(size=size)
        clients.append(make(features, targets, **options))
    return clients


CASES = [
    (LeastSquares, {}, 0),
    (LeastSquares, {"scale": 0.5, "l2": 0.1}, 0),
    (LeastSquares, {"intercept": False}, 0),
    (Logistic, {}, 2),
    (Logistic, {"intercept": False, "l2": 0.05}, 2),
    (MultinomialLogistic, {"num_classes": 3}, 3),
    (MultinomialLogistic, {"intercept": False, "l2": 0.02}, 3),
]


@together("weights", [None, [1, 1, 1], [1, 0, 3]])
@together(("make", "options", "classes"), CASES)
@together("ridge", [0.0, 0.3])
def test_both_solvers_agree(make, options, classes, weights, ridge):
    clients = _clients(make, options, classes)
    psi = _ElasticNet(0.02 if classes else 0.2, ridge)
    own = centralized_solution(clients, psi, weights, tol=1e-12)
    other = sklearn_solution(clients, psi, weights, tol=1e-13)
    if make is MultinomialLogistic and clients[0].intercept:
        # A constant added to all intercepts changes nothing; scikit-learn's is the one that its path led to.
        own[-3:] -= own[-3:].mean()
        other[-3:] -= other[-3:].mean()
    assert_allclose(own, other, atol=2e-8)
    assert np.array_equal(own == 0.0, np.abs(other) < 1e-9)


def test_the_first_papers_strength_is_twice_scikit_learns_alpha():
    clients = _clients(LeastSquares, {})
    features = np.concatenate([c.features for c in clients])
    targets = np.concatenate([c.targets for c in clients])
    model = Lasso(alpha=0.1, tol=1e-14).fit(features, targets)
    own = centralized_solution(clients, _ElasticNet(0.2), tol=1e-12)
    assert_allclose(own, np.append(model.coef_, model.intercept_), atol=1e-8)


def test_strength_of_logistic_regression_is_one_over_c_n():
    clients = _clients(Logistic, {}, 2)
    features = np.concatenate([c.features for c in clients])
    labels = np.concatenate([c.labels for c in clients])
    model = LogisticRegression(C=1 / (105 * 0.02), l1_ratio=1.0, solver="saga", tol=1e-12, max_iter=100_000)
    model.fit(features, labels)
    own = centralized_solution(clients, _ElasticNet(0.02), tol=1e-12)
    assert_allclose(own, np.append(model.coef_, model.intercept_), atol=1e-7)


def test_nuclear_norm_against_cvxpy():
    rng = np.random.default_rng(0)
    truth = np.outer(rng.normal(size=5), rng.normal(size=4))
    clients = []
    for size in (30, 50):
        matrices = rng.normal(size=(size, 5, 4))
        targets = np.einsum("nij,ij->n", matrices, truth) + 0.5 + 0.1 * rng.normal(size=size)
        clients.append(TraceRegression(matrices, targets))
    own = centralized_solution(clients, _Nuclear(0.4), [1, 1], tol=1e-12)
    matrix, intercept = cp.Variable((5, 4)), cp.Variable()
    loss = sum(
        0.5 * cp.sum_squares(c.features @ cp.reshape(matrix, (20,), order="C") + intercept - c.targets) / c.num_examples
        for c in clients
    )
    cp.Problem(cp.Minimize(loss + 0.4 * cp.normNuc(matrix))).solve(solver=cp.CLARABEL)
    assert_allclose(own[:20].reshape(5, 4), matrix.value, atol=1e-5)
    assert_allclose(own[20], intercept.value, atol=1e-5)
    assert numerical_rank(own[:20].reshape(5, 4)) == 1


def test_start_does_not_matter_and_is_not_changed():
    clients = _clients(LeastSquares, {})
    start = np.random.default_rng(1).normal(size=9)
    before = start.copy()
    psi = _ElasticNet(0.2)
    assert_allclose(
        centralized_solution(clients, psi, start=start, tol=1e-12),
        centralized_solution(clients, psi, tol=1e-12),
        atol=1e-9,
    )
    assert np.array_equal(start, before)


def test_badly_scaled_features():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(100, 6)) * np.logspace(-1, 2, 6)
    client = LeastSquares(features, features[:, 0] + rng.normal(size=100))
    psi = _ElasticNet(0.05)
    own = centralized_solution([client], psi, tol=1e-12)
    other = sklearn_solution([client], psi, tol=1e-15)
    assert composite_objective([client], None, psi, own) <= composite_objective([client], None, psi, other) + 1e-12


def test_without_psi_the_gradient_vanishes():
    clients = _clients(LeastSquares, {})
    solution = centralized_solution(clients, _ElasticNet(0.0), tol=1e-12)
    size = np.linalg.norm(pooled_gradient(clients, None, np.zeros(9)))
    assert np.linalg.norm(pooled_gradient(clients, None, solution)) < 1e-13 * size


def test_the_default_is_certified_to_1e_8_where_gradients_are_large():
    data = lasso("III")
    clients = [data.objective(index) for index in range(10)]
    solution = centralized_solution(clients, _ElasticNet(0.5))
    assert lasso_duality_gap(clients, None, 0.5, solution) < 1e-8


def test_already_optimal_start():
    client = LeastSquares(np.eye(2), np.zeros(2), intercept=False)
    assert np.array_equal(centralized_solution([client], _ElasticNet(1.0)), np.zeros(2))


def test_what_is_refused():
    clients = _clients(LeastSquares, {})
    with pytest.raises(ConfigurationError, match="not convex"):
        centralized_solution(clients, _Nonconvex(1.0))
    with pytest.raises(ConfigurationError, match="Distance is not smooth"):
        centralized_solution([Distance(np.ones(2), l2=0.3)], _ElasticNet(0.2))
    with pytest.raises(ConfigurationError, match="MatrixGame is a saddle function"):
        centralized_solution([MatrixGame(np.eye(2))], _ElasticNet(0.2))
    with pytest.raises(FlwrFcoError, match="after 3 iterations"):
        centralized_solution(clients, _ElasticNet(0.2), max_iterations=3)
    with pytest.raises(ConfigurationError, match="one positive strength"):
        sklearn_solution(clients, _ElasticNet(0.2, lower=0.0))
    with pytest.raises(ConfigurationError, match="one positive strength"):
        sklearn_solution(clients, _ElasticNet(0.0, 1.0))
    trace = TraceRegression(np.ones((3, 2, 2)), np.ones(3))
    with pytest.raises(ConfigurationError, match="one positive strength"):
        sklearn_solution([trace], _Nuclear(0.2))
    with pytest.raises(ConfigurationError, match="LeastSquares', 'Logistic"):
        sklearn_solution([*clients, *_clients(Logistic, {}, 2)], _ElasticNet(0.2))
    with pytest.raises(ConfigurationError, match="differ in scale"):
        sklearn_solution([*clients, *_clients(LeastSquares, {"scale": 0.5})], _ElasticNet(0.2))
    with pytest.raises(ConfigurationError, match="3 classes, 2 of them"):
        sklearn_solution([MultinomialLogistic(np.eye(4), [0, 1, 0, 1], num_classes=3)], _ElasticNet(0.2))

"""Structure measures against NumPy and scikit-learn; duality gaps against what they claim to certify."""

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.metrics import f1_score, precision_score, recall_score
from together import together

from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives import BilinearSaddle, LeastSquares, Logistic, MultinomialLogistic, TraceRegression
from flwr_fco.pooled import (
    centralized_solution,
    client_weights,
    composite_objective,
    density,
    duality_gap,
    lasso_duality_gap,
    logistic_duality_gap,
    natural_residual,
    numerical_rank,
    pooled_gradient,
    recovery_error,
    sklearn_solution,
    stationarity,
    support,
    support_scores,
)
from flwr_fco.regularizers import L1, Regularizer, SeparableTerms


@dataclass(frozen=True)
class _ElasticNet(Regularizer):
    """An oracle of our own, so that these tests do not depend on the package's regularizers."""

    strength: float
    ridge: float = 0.0

    def value(self, w):
        return self.strength * float(np.abs(w).sum()) + 0.5 * self.ridge * float((w**2).sum())

    def prox(self, v, step, out=None):
        result = np.sign(v) * np.maximum(np.abs(v) - step * self.strength, 0.0) / (1.0 + step * self.ridge)
        if out is None:
            return result
        out[...] = result
        return out

    def separable_terms(self, shape):
        return SeparableTerms(threshold=self.strength, shrinkage=self.ridge)


WEIGHTS = [None, [1.0, 1.0, 1.0], [0.5, 0.0, 2.0]]


def _regression(**options):
    rng = np.random.default_rng(0)
    truth = np.append(np.ones(3), np.zeros(9))
    clients = []
    for size in (8, 20, 33):
        features = rng.normal(size=12) + rng.normal(size=(size, 12))
        clients.append(LeastSquares(features, features @ truth + 1.0 + 0.5 * rng.normal(size=size), **options))
    return clients


def _classification(make, classes, **options):
    rng = np.random.default_rng(0)
    clients = []
    for size in (20, 40, 60):
        features = rng.normal(size=(size, 6)) + 0.3
        labels = (features[:, :classes] + rng.normal(size=(size, classes))).argmax(axis=1)
        clients.append(make(features, labels, **options))
    return clients


def _problems(**options):
    return {
        "least squares": (_regression(**options), lasso_duality_gap, 0.3),
        "half": (_regression(scale=0.5, **options), lasso_duality_gap, 0.3),
        "binary": (_classification(Logistic, 2, **options), logistic_duality_gap, 0.03),
        "multinomial": (_classification(MultinomialLogistic, 3, **options), logistic_duality_gap, 0.03),
    }


PROBLEMS = list(_problems())


def test_support_and_density():
    w = np.array([[0.0, -0.5], [1e-3, 2.0]])
    assert support(w).tolist() == [[False, True], [True, True]]
    assert (density(w), density(w, 1e-2), density(w, 2.0)) == (0.75, 0.5, 0.0)


def test_support_scores_against_scikit_learn():
    rng = np.random.default_rng(0)
    w, reference = rng.normal(size=50), (rng.random(50) < 0.4).astype(float)
    scores = support_scores(w, reference, 0.7)
    found, truth = np.abs(w) > 0.7, reference != 0
    assert scores == (precision_score(truth, found), recall_score(truth, found), f1_score(truth, found))


@pytest.mark.filterwarnings("error")
def test_support_scores_of_empty_supports():
    assert support_scores(np.zeros(3), np.ones(3)) == (1.0, 0.0, 0.0)
    assert support_scores(np.ones(3), np.zeros(3)) == (0.0, 1.0, 0.0)
    assert support_scores(np.zeros(3), np.zeros(3)) == (1.0, 1.0, 1.0)
    with pytest.raises(ConfigurationError, match="shape"):
        support_scores(np.ones(4), np.ones(3))


def test_numerical_rank():
    rng = np.random.default_rng(0)
    product = rng.normal(size=(40, 5)) @ rng.normal(size=(5, 30))
    assert numerical_rank(product) == 5
    assert numerical_rank(product.astype(np.float32)) == 5
    assert numerical_rank(np.zeros((4, 3))) == 0
    assert numerical_rank(np.diag([3.0, 0.011, 0.009]), 1e-2) == 2
    assert numerical_rank(np.eye(3, dtype=int)) == 3
    assert numerical_rank(np.ones((3, 3), dtype=np.float16)) == 1
    with pytest.raises(ConfigurationError, match="matrix"):
        numerical_rank(np.ones(3))


def test_recovery_error():
    assert recovery_error(np.full((2, 2), 2.0), np.zeros((2, 2))) == 4.0
    assert recovery_error([3.0, 0.0], [1.0, 0.0], relative=True) == 2.0
    with pytest.raises(ConfigurationError, match="reference is 0"):
        recovery_error([1.0], [0.0], relative=True)


def test_the_pooled_problem_is_the_mean_over_all_examples():
    clients = _regression()
    pooled = LeastSquares(np.concatenate([c.features for c in clients]), np.concatenate([c.targets for c in clients]))
    w = np.random.default_rng(1).normal(size=13)
    psi = _ElasticNet(0.7)
    penalty = 0.7 * np.abs(w[:12]).sum()
    assert_allclose(composite_objective(clients, None, psi, w), pooled.value(w) + penalty, rtol=1e-13)
    assert_allclose(pooled_gradient(clients, None, w), pooled.gradient(w), rtol=1e-11)
    mean = np.mean([c.value(w) for c in clients])
    assert_allclose(composite_objective(clients, [2, 2, 2], psi, w), mean + penalty, rtol=1e-13)


@pytest.mark.parametrize("weights", [[1.0], [1.0, 1.0, -1.0], [0.0, 0.0, 0.0], [1.0, np.nan, 1.0]])
def test_weights_that_are_refused(weights):
    with pytest.raises(ConfigurationError, match="weights"):
        client_weights(_regression(), weights)


def test_clients_must_have_one_layout():
    with pytest.raises(ConfigurationError, match="models differ"):
        client_weights([*_regression(), *_regression(intercept=False)])
    with pytest.raises(ConfigurationError, match="no objective"):
        client_weights([])


def test_stationarity_is_the_gradient_without_psi_and_zero_at_the_solution():
    clients = _regression()
    w = np.random.default_rng(1).normal(size=13)
    free = stationarity(clients, None, _ElasticNet(0.0), w)
    assert_allclose(free, np.linalg.norm(pooled_gradient(clients, None, w)), rtol=1e-10)
    psi = _ElasticNet(0.3)
    solution = sklearn_solution(clients, psi, tol=1e-15)
    assert stationarity(clients, None, psi, solution) < 1e-6
    assert stationarity(clients, None, psi, w) > 1.0
    assert stationarity(clients, None, psi, solution + 1e-3, lipschitz=10.0) > 1e-3


@together("weights", WEIGHTS)
@together("intercept", [True, False])
@together("l2", [0.0, 0.2])
@together("name", PROBLEMS)
def test_gap_bounds_the_suboptimality_and_vanishes_at_the_solution(name, l2, intercept, weights):
    clients, gap, strength = _problems(l2=l2, intercept=intercept)[name]
    psi = _ElasticNet(strength)
    solution = centralized_solution(clients, psi, weights, tol=1e-12)
    best = composite_objective(clients, weights, psi, solution)
    assert 0.0 <= gap(clients, weights, strength, solution) < 1e-9
    rng = np.random.default_rng(1)
    for size in (1e-4, 1e-2, 1.0, 10.0):
        w = solution + size * rng.normal(size=solution.size)
        suboptimality = composite_objective(clients, weights, psi, w) - best
        found = gap(clients, weights, strength, w)
        assert found >= suboptimality * (1.0 - 1e-9)
        # And it is a useful bound: it shrinks with the distance.
        assert found <= 1e3 * size * (1.0 + size)


@pytest.mark.parametrize("name", PROBLEMS)
def test_gap_vanishes_at_scikit_learns_solution(name):
    clients, gap, strength = _problems()[name]
    solution = sklearn_solution(clients, _ElasticNet(strength), tol=1e-12)
    assert 0.0 <= gap(clients, None, strength, solution) < 1e-9


def test_gap_without_strength_is_the_value():
    clients = _regression(intercept=False)
    w = np.ones(12)
    assert_allclose(lasso_duality_gap(clients, None, 0.0, w), composite_objective(clients, None, _ElasticNet(0.0), w))


def test_gap_when_a_class_does_not_occur():
    features = np.random.default_rng(0).normal(size=(30, 4))
    for client in (
        Logistic(features, np.ones(30)),
        MultinomialLogistic(features, np.arange(30) % 2, num_classes=3),
    ):
        best = centralized_solution([client], _ElasticNet(1.0), tol=1e-3, max_iterations=20_000)
        gaps = []
        for push in (0.0, 10.0, 40.0):
            w = best.copy()
            # The intercept of the class that does not occur goes to minus infinity.
            w[-1] += push if isinstance(client, Logistic) else -push
            gaps.append(logistic_duality_gap([client], None, 1.0, w))
        assert gaps[0] >= gaps[1] >= gaps[2] >= 0.0
        assert gaps[2] < 1e-4


def test_lasso_gap_of_matrices():
    rng = np.random.default_rng(0)
    matrices, targets = rng.normal(size=(30, 3, 4)), rng.normal(size=30)
    trace, flat = TraceRegression(matrices, targets), LeastSquares(matrices.reshape(30, 12), targets)
    w = rng.normal(size=13)
    assert lasso_duality_gap([trace], None, 0.1, w) == lasso_duality_gap([flat], None, 0.1, w)


def test_gaps_refuse_what_they_cannot_certify():
    with pytest.raises(ConfigurationError, match="expected all to be Logistic or all Multinomial"):
        logistic_duality_gap(_regression(), None, 0.1, np.zeros(13))
    with pytest.raises(ConfigurationError, match="differ in scale"):
        lasso_duality_gap([*_regression(), *_regression(scale=0.5)], None, 0.1, np.zeros(13))
    with pytest.raises(ConfigurationError, match="strength"):
        lasso_duality_gap(_regression(), None, -0.1, np.zeros(13))


@pytest.mark.parametrize("kind", [list, lambda w: w.astype(int), lambda w: w.astype(np.float32)])
def test_a_point_may_be_any_array_like(kind):
    """A point of whole numbers had a gradient of whole numbers: 0, as if it were stationary."""
    client = LeastSquares(np.array([[1.0, 0.5], [-1.0, 0.25]]), np.array([0.5, 0.25]))
    w = np.array([0.0, 1.0, 0.0])
    for function in (
        lambda w: pooled_gradient([client], None, w),
        lambda w: stationarity([client], None, _ElasticNet(0.01), w),
        lambda w: composite_objective([client], None, _ElasticNet(0.01), w),
        lambda w: lasso_duality_gap([client], None, 0.01, w),
    ):
        assert_allclose(function(kind(w)), function(w), rtol=0, atol=0)
    saddle, v = [BilinearSaddle([[0.5]], [0.25])], np.array([1.0, 0.0])
    for score in (duality_gap, natural_residual):
        assert score(saddle, None, L1(0.1, bound=1.0), kind(v)) == score(saddle, None, L1(0.1, bound=1.0), v) > 0.0

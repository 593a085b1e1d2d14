"""Quadratic and adversarial saddle functions: the contract, exact solutions, and what the perturbation does."""

import numpy as np
import pytest

from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives import BilinearSaddle, MultinomialLogistic
from flwr_fco.testing import check_saddle_objective
from reproduction.data.saddle_objectives import QuadraticSaddle, UniversalAdversarialLogistic, pooled_bilinear


def _quadratic(seed):
    rng = np.random.default_rng(seed)
    roots = rng.normal(size=(4, 4)), rng.normal(size=(3, 3))
    convexity, concavity = (root @ root.T + 0.1 * np.eye(len(root)) for root in roots)
    options = {"linear": rng.normal(size=4), "offset": rng.normal(size=3)}
    return QuadraticSaddle(convexity, rng.normal(size=(3, 4)), concavity, **options)


def _adversarial(n=23, intercept=True, dtype=np.float64):
    rng = np.random.default_rng(0)
    features = rng.normal(size=(n, 5)).astype(dtype)
    return UniversalAdversarialLogistic(features, rng.integers(0, 3, n), num_classes=3, intercept=intercept)


EXAMPLES = {
    "adversarial": _adversarial,
    "adversarial-one": lambda: _adversarial(n=1),
    "adversarial-no-intercept": lambda: _adversarial(intercept=False),
    "adversarial-float32": lambda: _adversarial(dtype=np.float32),
}


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("seed", [0, 1])
def test_keeps_the_contract(name, seed):
    check_saddle_objective(EXAMPLES[name](), seed=seed)


@pytest.mark.parametrize("kind", ["bilinear", "quadratic"])
def test_pooled_is_the_mean_of_the_clients(kind):
    rng = np.random.default_rng(1)
    shares = np.array([0.5, 0.3, 0.2])
    if kind == "bilinear":
        clients = [BilinearSaddle(rng.normal(size=(3, 4)), rng.normal(size=3)) for _ in range(3)]
        pooled = pooled_bilinear(clients, shares)
    else:
        clients = [_quadratic(seed) for seed in range(3)]
        pooled = QuadraticSaddle.pooled(clients, shares)
    w = rng.normal(size=7)
    assert pooled.value(w) == pytest.approx(sum(p * c.value(w) for p, c in zip(shares, clients, strict=True)))
    expected = sum(p * c.gradient(w) for p, c in zip(shares, clients, strict=True))
    np.testing.assert_allclose(pooled.gradient(w), expected, atol=1e-13)


@pytest.mark.parametrize("intercept", [True, False])
def test_an_adversarial_objective_is_logistic_regression_on_moved_examples(intercept):
    rng = np.random.default_rng(2)
    features = rng.normal(size=(20, 6))
    labels = rng.integers(0, 4, 20)
    delta = 0.3 * rng.normal(size=6)
    adversarial = UniversalAdversarialLogistic(features, labels, num_classes=4, intercept=intercept)
    plain = MultinomialLogistic(features + delta, labels, num_classes=4, intercept=intercept)
    clean = MultinomialLogistic(features, labels, num_classes=4, intercept=intercept)
    model = rng.normal(size=plain.layout.size)
    w = np.concatenate([model, delta])
    assert adversarial.value(w) == pytest.approx(plain.value(model), rel=1e-12)
    for batch in (None, np.array([3, 5, 7])):
        np.testing.assert_allclose(adversarial.gradient(w, batch)[:-6], plain.gradient(model, batch), atol=1e-12)
    metrics = adversarial.metrics(w)
    assert metrics["loss"] == pytest.approx(plain.metrics(model)["loss"])
    assert metrics["clean-accuracy"] == clean.metrics(model)["accuracy"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: QuadraticSaddle([[-1.0]], [[1.0]], [[1.0]]), "convexity is not symmetric and positive semidefinite"),
        (lambda: QuadraticSaddle([[1.0, 2.0], [0.0, 1.0]], np.ones((1, 2)), [[1.0]]), "symmetric"),
        (lambda: UniversalAdversarialLogistic(np.eye(2), [0, 1]).gradient(np.zeros(3)), "shape"),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()

"""L-BFGS steps of FedNewton without Hessian blocks, for an l2 term: against Newton steps."""

import numpy as np
import pytest
from newton import numbers, objective_value, point, sites, solved

from flwr_fco.objectives import Logistic
from flwr_fco.regularizers import L2Squared


@pytest.mark.parametrize("strength", [1e-3, 0.1, 30.0])
@pytest.mark.parametrize("kind", ["squares", "logistic", "multinomial"])
def test_the_answer_of_newton_steps_with_a_gap_that_holds_on_the_way(kind, strength):
    objectives, psi = sites(kind), L2Squared(strength)
    exact, _ = solved(objectives, psi, tolerance=1e-12)
    result, _ = solved(objectives, psi, hessian="none", rounds=200)
    best, gaps, values = numbers(exact, "objective")[-1], numbers(result, "duality-gap"), numbers(result, "objective")
    assert gaps[-1] <= 1e-8
    assert all(gap >= value - best - 1e-12 for gap, value in zip(gaps, values, strict=True))
    assert (np.diff(values) <= 1e-13).all()
    one, other = point(result, objectives[0]), point(exact, objectives[0])
    if kind == "multinomial":
        # Free intercepts are unique up to a common constant.
        one[-3:], other[-3:] = one[-3:] - one[-3:].mean(), other[-3:] - other[-3:].mean()
    np.testing.assert_allclose(one, other, atol=3e-3)
    assert objective_value(objectives, psi, point(result, objectives[0])) <= best + 1e-8


def wide(p=5000, rows=40):
    rng = np.random.default_rng(0)
    features = [rng.normal(0.1 * m, 1.0, size=(rows, p)) for m in range(3)]
    return [Logistic(own, own[:, 0] + rng.normal(size=rows) > 0.0) for own in features]


def test_many_features_take_tens_of_rounds():
    """The gap is that to a ridge in the span of the rows."""
    objectives, psi = wide(), L2Squared(1 / 120)
    result, _ = solved(objectives, psi, hessian="none", tolerance=1e-13, rounds=200)
    assert numbers(result, "duality-gap")[-1] <= 1e-13
    assert len(result.train_metrics_clientapp) <= 60
    X, y = np.vstack([own.features for own in objectives]), np.concatenate([own.labels for own in objectives])
    w = point(result, objectives[0])
    slopes = (1.0 / (1.0 + np.exp(-(X @ w[:-1] + w[-1]))) - y) / len(y)
    np.testing.assert_allclose(X.T @ slopes, -w[:-1] / 120, atol=1e-8)
    assert abs(slopes.sum()) < 1e-8

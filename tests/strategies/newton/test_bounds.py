"""The lower bound of an exchange at any point, against the dual point that it is made of."""

import numpy as np
import pytest
from newton import exchanged
from scipy.special import expit, xlogy

from flwr_fco.algorithms.contract.replies import Replies
from flwr_fco.algorithms.newton.asking import answer, opened
from flwr_fco.messages.protocol import Uplink
from flwr_fco.objectives import Logistic
from flwr_fco.regularizers import L1


def _bound(objective, psi, w):
    state, known = exchanged(objective, psi, w)
    return known.dual(state)[0]


def _off_centre(seed):
    """Columns whose means are far from 0, and few examples of a class: the intercept matters."""
    rng = np.random.default_rng(seed)
    features = rng.normal(rng.normal(size=4), 1.0, size=(40, 4))
    return Logistic(features, features[:, 0] - features[:, 0].mean() + rng.normal(size=40) > 1.2)


@pytest.mark.parametrize("seed", range(6))
def test_the_bound_is_that_of_a_feasible_dual_point(seed):
    """sigma (q - y) + mu (c - y) sums to 0, is within psi's limit, and its dual value is at least the bound."""
    objective, strength = _off_centre(seed), 0.2
    rng = np.random.default_rng(seed)
    w = 0.3 * rng.normal(size=5)
    bound = _bound(objective, L1(strength), w)
    X, y = objective.features, (objective.labels == 1).astype(float)
    q = expit(X @ w[:4] + w[4])
    mean, share = (q - y).mean(), y.mean()
    ratio = max(mean / share, -mean / (1.0 - share))
    constant = share - mean / ratio
    direction = (q - y) + ratio * (constant - y)
    assert abs(direction.mean()) < 1e-14
    sigma = min(1.0 / (1.0 + ratio), strength / np.abs(X.T @ direction / len(y)).max())
    probabilities = y + sigma * direction
    value = -np.mean(xlogy(probabilities, probabilities) + xlogy(1.0 - probabilities, 1.0 - probabilities))
    # By convexity the bound is below the value of the point, and at most by what the scaling leaves.
    assert bound <= value + 1e-12
    entropy = -np.mean(xlogy(q, q) + xlogy(1.0 - q, 1.0 - q))
    assert bound == pytest.approx(sigma * entropy, abs=1e-12)


def test_what_is_known_is_asked_again_where_other_clients_answer():
    objective, w, psi = _off_centre(0), np.zeros(5), L1(0.2)
    state, _ = exchanged(objective, psi, w)
    again = [Uplink(answer(objective, w, True), None, 1, weight=weight) for weight in (1.0, 0.5)]
    same, other = (opened(state, psi.bind(objective.layout), Replies([uplink])) for uplink in again)
    assert same is not None
    assert other is None

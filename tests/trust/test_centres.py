"""Robust centres of the replies: the trimmed mean, the median, the geometric median."""

import numpy as np
import pytest
from faulty import Faulty, scaled, start_on
from problems import app_of, clients, flat

from flwr_fco.algorithms.contract.replies import Mean, geometric_median, median, trimmed_mean
from flwr_fco.messages.protocol import Uplink
from flwr_fco.strategies import FedDualAvg, FedMid, Steps, Trimmed


def test_centres_are_those_of_the_sorted_values():
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((10, 9000))
    equal = np.full(10, 0.1)
    inner = np.sort(rows, axis=0)
    np.testing.assert_allclose(trimmed_mean(rows, equal, 0.2), inner[2:8].mean(axis=0), atol=1e-14)
    np.testing.assert_allclose(trimmed_mean(rows, equal, 0.0), rows.mean(axis=0), atol=1e-14)
    np.testing.assert_allclose(median(rows, equal), np.median(rows, axis=0), atol=1e-15)
    # A weight of two elevenths is two rows.
    twice = np.concatenate([rows, rows[:1]])
    weights = np.full(10, 1 / 11)
    weights[0] = 2 / 11
    np.testing.assert_allclose(median(rows, weights), np.median(twice, axis=0), atol=1e-15)
    expected = trimmed_mean(twice, np.full(11, 1 / 11), 0.2)
    np.testing.assert_allclose(trimmed_mean(rows, weights, 0.2), expected, atol=1e-14)
    point = geometric_median(rows[:, :3], weights)
    directions = (rows[:, :3] - point) / np.linalg.norm(rows[:, :3] - point, axis=1)[:, None]
    assert np.linalg.norm(weights @ directions) < 1e-8  # the gradient of the sum of distances


@pytest.mark.parametrize("rule", ["trimmed", "median", "geometric-median"])
def test_centres_of_numbers_are_those_of_increments(rule):
    mean = Mean(aggregation=rule, trim=0.2)
    values = [1.0, 2.0, 1.5, 1.2, -1e9]
    shares = [0.2] * 5
    expected = mean.of([np.array([value]) for value in values], shares)[0]
    assert mean.of_numbers(values, shares) == expected
    assert 1.0 <= expected <= 2.0
    # Rounded once.
    assert Mean().of_numbers([1e16, 1.0, -1e16, 1.0], [1.0] * 4) == 2.0


@pytest.mark.parametrize("rule", [Trimmed(0.25), "median", "geometric-median"], ids=str)
@pytest.mark.parametrize("cls", [FedDualAvg, FedMid])
def test_a_minority_cannot_move_a_robust_centre_far(rule, cls):
    same = [clients((20,))[0]] * 9

    def run_with(rule, fault):
        robust = {"aggregation": rule, "on_divergence": "warn"}
        chosen = cls(client_lr=0.02, work=Steps(3, batch_size=None), fraction_evaluate=0.0, **robust)
        grid = Faulty(app_of(same), len(same), fault, rounds=range(1, 99), nodes=(2, 3))
        return flat(start_on(grid, chosen, rounds=30).arrays)

    honest = run_with("mean", lambda message, reply: [reply])
    assert np.abs(run_with(rule, scaled(-50.0)) - honest).max() < 1e-6
    with np.errstate(all="ignore"):
        assert np.abs(run_with("mean", scaled(-50.0)) - honest).max() > 1.0


@pytest.mark.parametrize("rule", ["trimmed", "median", "geometric-median"])
def test_a_robust_centre_is_of_equal_work(rule):
    """The centre is that of the gradients, whatever the numbers of steps; without that, long ones are outliers."""
    gradients = np.random.default_rng(0).standard_normal((5, 3)) + np.array([1.0, -2.0, 0.5])
    said = [
        Uplink({"increment": 0.1 * k * own}, 0.1 * k, k, weight=0.2)
        for k, own in zip([9, 1, 2, 5, 40], gradients, strict=True)
    ]
    mean, elapsed = Mean(aggregation=rule)(said)
    expected = Mean(aggregation=rule, trim=0.2).of([elapsed * own for own in gradients], [0.2] * 5)
    np.testing.assert_allclose(mean, expected, rtol=1e-7)

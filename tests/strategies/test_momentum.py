"""Momentum of the server on the dual increment: psi keeps its proportion, 0 is the plain method."""

import numpy as np
import pytest
from problems import clients, flat, run

from flwr_fco.errors import ConfigurationError
from flwr_fco.regularizers import L1
from flwr_fco.strategies import FedDualAvg, Steps

OPTIONS = {"regularizer": L1(0.3), "client_lr": 0.02, "work": Steps(1, batch_size=None)}


def test_against_plain_numpy():
    objectives = clients()
    seen = []
    strategy = FedDualAvg(server_momentum=0.8, weighting="uniform", **OPTIONS)
    run(strategy, objectives, 12, callbacks=[lambda n, arrays, m: seen.append(flat(arrays))])
    dual, elapsed, velocity, pace = np.zeros(7), 0.0, np.zeros(7), 0.0
    for point in seen:
        w = np.append(np.sign(dual[:6]) * np.maximum(np.abs(dual[:6]) - 0.3 * elapsed, 0.0), dual[6])
        gradient = np.mean([objective.gradient(w) for objective in objectives], axis=0)
        velocity, pace = 0.8 * velocity - 0.02 * gradient, 0.8 * pace + 0.02
        dual, elapsed = dual + velocity, elapsed + pace
        expected = np.append(np.sign(dual[:6]) * np.maximum(np.abs(dual[:6]) - 0.3 * elapsed, 0.0), dual[6])
        np.testing.assert_allclose(point, expected, rtol=0, atol=1e-12)


def test_no_momentum_is_the_plain_method_to_the_bit():
    """The limit of small momentum, and the very bits at 0, with samples of clients and minibatches."""
    options = {**OPTIONS, "fraction_train": 0.5, "work": Steps(3, batch_size=5)}
    plain = run(FedDualAvg(**options), clients(), 30)
    zero = run(FedDualAvg(server_momentum=0.0, **options), clients(), 30)
    tiny = run(FedDualAvg(server_momentum=1e-12, **options), clients(), 30)
    np.testing.assert_array_equal(flat(plain.arrays), flat(zero.arrays))
    np.testing.assert_allclose(flat(plain.arrays), flat(tiny.arrays), rtol=0, atol=1e-9)
    assert not np.array_equal(
        flat(plain.arrays), flat(run(FedDualAvg(server_momentum=0.5, **options), clients(), 30).arrays)
    )


@pytest.mark.parametrize("momentum", [-0.1, 1.0, np.nan])
def test_the_range_is_checked(momentum):
    with pytest.raises(ConfigurationError, match="server_momentum"):
        FedDualAvg(server_momentum=momentum)


def test_the_shadow_sequence_has_none():
    with pytest.raises(ConfigurationError, match="shadow"):
        FedDualAvg(server_momentum=0.5, output="shadow", work=Steps(2))

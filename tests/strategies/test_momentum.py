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


@pytest.mark.parametrize("momentum", [-0.1, 1.0, np.nan])
def test_the_range_is_checked(momentum):
    with pytest.raises(ConfigurationError, match="server_momentum"):
        FedDualAvg(server_momentum=momentum)

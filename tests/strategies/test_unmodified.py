"""FedDualAvg over clients that know nothing of duals."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from problems import FEATURES, clients, flat, run, start_arrays

from flwr_fco.errors import ConfigurationError
from flwr_fco.pooled import lasso_duality_gap
from flwr_fco.regularizers import L1, L2Squared
from flwr_fco.simulation import simulate
from flwr_fco.strategies import FedDualAvg

STRENGTH = 0.3


def ordinary_app(objectives, steps, rate, extra=None, dtype=np.float64):
    """A FedAvg client: gradient steps on its own loss, answers with its new model."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        objective = objectives[context.node_config["partition-id"]]
        w = flat(message.content["arrays"]).astype(dtype)
        for _ in range(steps):
            w = w - rate * objective.gradient(w.astype(np.float64)).astype(dtype)
        arrays = ArrayRecord({"coefficients": Array(w[:FEATURES]), "intercept": Array(w[FEATURES:])})
        metrics = MetricRecord({"num-examples": objective.num_examples, **(extra or {})})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    return app


def simulate_ordinary(objectives, rounds, steps, rate, dtype=np.float64, extra=None, **options):
    strategy = FedDualAvg(
        client="unmodified", regularizer=L1(STRENGTH), client_lr=rate, fraction_evaluate=0.0, **options
    )
    result = simulate(
        strategy,
        ordinary_app(objectives, steps, rate, extra, dtype),
        num_nodes=len(objectives),
        num_rounds=rounds,
        initial_arrays=start_arrays(dtype=dtype),
        progress=False,
    )
    return result, strategy


def test_one_step_is_exact():
    objectives = clients()
    result, _ = simulate_ordinary(objectives, 3000, 1, 0.05, local_steps=1)
    assert lasso_duality_gap(objectives, None, STRENGTH, flat(result.arrays)) <= 1e-8


def test_one_step_equals_the_full_method():
    objectives = clients()
    ordinary, _ = simulate_ordinary(objectives, 20, 1, 0.05, local_steps=1)
    ours = run(FedDualAvg(regularizer=L1(STRENGTH), client_lr=0.05, local_steps=1, batch_size=None), objectives, 20)
    np.testing.assert_allclose(flat(ordinary.arrays), flat(ours.arrays), rtol=0, atol=1e-13)


def test_the_clients_metrics_win_over_what_the_user_said():
    for extra, expected in (({"local-steps": 4}, 0.05 * 4), ({"elapsed": 0.125}, 0.125), ({}, 0.05 * 3)):
        _, strategy = simulate_ordinary(clients(), 1, 3, 0.05, extra=extra, local_steps=3)
        assert strategy.state.elapsed == pytest.approx(expected, rel=1e-15)


def test_nobody_says_how_many_steps():
    result, strategy = simulate_ordinary(clients(), 1, 3, 0.05)
    assert result.train_metrics_clientapp[1]["skipped"] == 1
    assert strategy.state.round == 0


def test_rounding_of_the_users_dtype_is_not_taken_for_a_gradient():
    """The increment is what came back minus what was sent, in float32, not minus the float64 primal."""
    objectives = clients()

    app = ClientApp()

    @app.train()
    def echo(message, context):
        metrics = MetricRecord({"num-examples": 1, "local-steps": 1})
        return Message(RecordDict({"arrays": message.content["arrays"], "metrics": metrics}), reply_to=message)

    # The ridge makes primal points that float32 cannot hold.
    strategy = FedDualAvg(client="unmodified", regularizer=L2Squared(0.3), client_lr=0.1, fraction_evaluate=0.0)
    start = np.full(FEATURES + 1, 1 / 3)
    simulate(
        strategy,
        app,
        num_nodes=len(objectives),
        num_rounds=3,
        initial_arrays=start_arrays(dtype=np.float32, start=start),
        progress=False,
    )
    np.testing.assert_array_equal(strategy.state.dual, start.astype(np.float32))


def test_float32_clients_end_exactly_sparse():
    result, _ = simulate_ordinary(clients(), 300, 2, 0.05, dtype=np.float32, local_steps=2)
    coefficients = result.arrays["coefficients"].numpy()
    assert coefficients.dtype == np.float32
    assert 0 < np.count_nonzero(coefficients) < FEATURES


def test_other_geometries_are_refused():
    from dataclasses import dataclass
    from typing import ClassVar

    from flwr_fco.mirror_maps import Euclidean, MirrorMap

    @dataclass(frozen=True)
    class Other(MirrorMap):
        kind: ClassVar[str] = "other geometry"
        value = Euclidean.value
        gradient = Euclidean.gradient
        conjugate_gradient = Euclidean.conjugate_gradient
        supports = Euclidean.supports
        retrieve = Euclidean.retrieve

    with pytest.raises(ConfigurationError, match="which is Euclidean"):
        FedDualAvg(client="unmodified", mirror_map=Other())

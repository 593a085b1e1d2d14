"""FedDualAvg over clients that know nothing of duals."""

import numpy as np
import pytest
from problems import FEATURES, clients, flat, foreign_app, run, simulated, start_arrays

from flwr_fco.errors import ConfigurationError
from flwr_fco.mirror_maps import SimplexEntropy
from flwr_fco.regularizers import L1, L1Ball, L2Squared, PerParameter, Zero
from flwr_fco.strategies import Density, FedDualAvg, Steps

STRENGTH = 0.3


def ordinary_app(objectives, steps, rate, extra=None, dtype=np.float64):
    """A FedAvg client: gradient steps on its own loss, answers with its new model."""

    def trained(arrays, message, context):
        objective = objectives[context.node_config["partition-id"]]
        w = np.concatenate([arrays["coefficients"], arrays["intercept"]]).astype(dtype)
        for _ in range(steps):
            w = w - rate * objective.gradient(w.astype(np.float64)).astype(dtype)
        return {"coefficients": w[:FEATURES], "intercept": w[FEATURES:]}

    def reported(message, context):
        return {"num-examples": objectives[context.node_config["partition-id"]].num_examples, **(extra or {})}

    return foreign_app(trained, metrics=reported)


def unmodified(rounds=20, *, steps=4, rate=0.05, dtype=np.float64, extra=None, **options):
    """Return the model of a run over such clients as a vector, the strategy and the result."""
    objectives = clients()
    strategy = FedDualAvg(**{"client": "unmodified", "fraction_evaluate": 0.0, **options})
    app, start = ordinary_app(objectives, steps, rate, extra, dtype), start_arrays(dtype=dtype)
    result = simulated(strategy, app, rounds, num_nodes=len(objectives), initial_arrays=start)
    return flat(result.arrays), strategy, result


def test_one_step_equals_the_full_method():
    known = {"regularizer": L1(STRENGTH), "client_lr": 0.05}
    ordinary, _, _ = unmodified(steps=1, work=Steps(1), **known)
    ours = run(FedDualAvg(work=Steps(1, batch_size=None), **known), clients(), 20)
    np.testing.assert_allclose(ordinary, flat(ours.arrays), rtol=0, atol=1e-13)


def test_the_clients_metrics_win_over_what_the_user_said():
    options = {"steps": 3, "work": Steps(3), "regularizer": L1(STRENGTH), "client_lr": 0.05}
    for extra, expected in (({"local-steps": 4}, 0.05 * 4), ({"elapsed": 0.125}, 0.125), ({}, 0.05 * 3)):
        _, strategy, _ = unmodified(1, extra=extra, **options)
        assert strategy.state.elapsed == pytest.approx(expected, rel=1e-15)


def test_a_constraint_has_no_weight_and_needs_nothing():
    w, _, _ = unmodified(50, steps=3, regularizer=L1Ball(2.0))
    assert np.abs(w[:FEATURES]).sum() == pytest.approx(2.0, rel=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"density": 0.1, "work": Steps(3)}, "each of them says how fast"),
        ({"density": 0.1, "regularizer": L1(1.0)}, "is a psi of its own, beside which"),
        ({"regularizer": L1(0.3), "client_lr": 0.05}, "it is not known how fast the weight of psi grows"),
        ({"density": Density(0.1, "global"), "regularizer": PerParameter({"*": Zero()})}, "take density=Density"),
        ({"client": "composite", "density": 0.1, "mirror_map": SimplexEntropy()}, "cannot be combined"),
    ],
)
def test_what_does_not_go_together(options, message):
    with pytest.raises(ConfigurationError, match=message):
        FedDualAvg(**{"client": "unmodified"} | options)


def test_rounding_of_the_users_dtype_is_not_taken_for_a_gradient():
    """The increment is what came back minus what was sent, in float32, not minus the float64 primal."""
    objectives = clients()

    app = foreign_app(lambda arrays, *_: arrays, metrics={"num-examples": 1, "local-steps": 1})
    # The ridge makes primal points that float32 cannot hold.
    strategy = FedDualAvg(
        client="unmodified", regularizer=L2Squared(0.3), client_lr=0.1, work=Steps(1), fraction_evaluate=0.0
    )
    start = np.full(FEATURES + 1, 1 / 3)
    simulated(strategy, app, 3, num_nodes=len(objectives), initial_arrays=start_arrays(dtype=np.float32, start=start))
    np.testing.assert_array_equal(strategy.state.dual, start.astype(np.float32))

"""FedDualAvg over clients that know nothing of duals."""

import numpy as np
import pytest
from flwr.app import ConfigRecord
from problems import FEATURES, clients, flat, foreign_app, run, simulated, start_arrays
from together import together

from flwr_fco.errors import ConfigurationError
from flwr_fco.mirror_maps import SimplexEntropy
from flwr_fco.regularizers import L1, ElasticNet, L1Ball, L2Squared, PerParameter, Zero
from flwr_fco.simulation import InProcessGrid
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


def simulate_ordinary(objectives, rounds, steps, rate, dtype=np.float64, extra=None, **options):
    strategy = FedDualAvg(
        client="unmodified", regularizer=L1(STRENGTH), client_lr=rate, fraction_evaluate=0.0, **options
    )
    result = simulated(
        strategy,
        ordinary_app(objectives, steps, rate, extra, dtype),
        rounds,
        num_nodes=len(objectives),
        initial_arrays=start_arrays(dtype=dtype),
    )
    return result, strategy


def test_one_step_equals_the_full_method():
    objectives = clients()
    ordinary, _ = simulate_ordinary(objectives, 20, 1, 0.05, work=Steps(1))
    ours = run(FedDualAvg(regularizer=L1(STRENGTH), client_lr=0.05, work=Steps(1, batch_size=None)), objectives, 20)
    np.testing.assert_allclose(flat(ordinary.arrays), flat(ours.arrays), rtol=0, atol=1e-13)


def test_the_clients_metrics_win_over_what_the_user_said():
    for extra, expected in (({"local-steps": 4}, 0.05 * 4), ({"elapsed": 0.125}, 0.125), ({}, 0.05 * 3)):
        _, strategy = simulate_ordinary(clients(), 1, 3, 0.05, extra=extra, work=Steps(3))
        assert strategy.state.elapsed == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize("regularizer", [L1(0.3), L2Squared(0.3), ElasticNet(0.3, 0.5)])
def test_nobody_says_how_fast_the_weight_of_psi_grows(regularizer):
    with pytest.raises(ConfigurationError, match=r"it is not known how fast the weight of psi grows. Give density=0.1"):
        FedDualAvg(client="unmodified", regularizer=regularizer, client_lr=0.05)


def test_a_constraint_has_no_weight_and_needs_nothing():
    objectives = clients()
    strategy = FedDualAvg(client="unmodified", regularizer=L1Ball(2.0), fraction_evaluate=0.0)
    result = simulated(strategy, ordinary_app(objectives, 3, 0.05), 50, num_nodes=len(objectives))
    assert np.abs(result.arrays["coefficients"].numpy()).sum() == pytest.approx(2.0, rel=1e-12)


def unmodified(rounds=20, *, rate=0.05, dtype=np.float64, **options):
    objectives = clients()
    strategy = FedDualAvg(**{"client": "unmodified", "fraction_evaluate": 0.0, **options})
    result = simulated(
        strategy,
        ordinary_app(objectives, 4, rate, dtype=dtype),
        rounds,
        num_nodes=len(objectives),
        initial_arrays=start_arrays(dtype=dtype),
    )
    return flat(result.arrays), strategy, result


def test_only_the_product_of_strength_rate_and_steps_matters():
    """Bit by bit, when two of the three change against each other: the threshold grows by the product in a round."""
    options = {"regularizer": L1(0.25), "client_lr": 0.05, "work": Steps(4)}
    first, _, _ = unmodified(**options)
    assert 0 < np.count_nonzero(first[:FEATURES]) < FEATURES
    for changed in (
        {"regularizer": L1(0.5), "client_lr": 0.025},
        {"regularizer": L1(0.5), "work": Steps(2)},
        {"client_lr": 0.1, "work": Steps(2)},
    ):
        np.testing.assert_array_equal(unmodified(**options | changed)[0], first)
    assert np.abs(unmodified(**options | {"client_lr": 0.06})[0] - first).max() > 1e-3


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_density_is_held(dtype):
    """Two of six coefficients: from three quarters of the rounds on exactly, before it on the way there."""
    _, strategy, result = unmodified(40, density=1 / 3, dtype=dtype)
    densities = [result.train_metrics_clientapp[number]["density"] for number in range(1, 41)]
    assert densities[0] == 1.0
    assert densities[29:] == [1 / 3] * 11
    assert np.all(np.diff(densities) <= 0)
    assert np.count_nonzero(result.arrays["coefficients"].numpy()) == 2
    # Whichever is largest in the dual is kept, and what psi does not act on is left alone.
    largest = np.argsort(-np.abs(strategy.state.dual[:FEATURES]))[:2]
    assert set(largest) == set(np.flatnonzero(result.arrays["coefficients"].numpy()))
    assert result.arrays["intercept"].numpy()[0] != 0


@together(
    ("options", "message"),
    [
        ({"density": 0.1, "work": Steps(3)}, "each of them says how fast"),
        ({"density": 0.1, "regularizer": L1(1.0)}, "is a psi of its own, beside which"),
        ({"density": 0.1, "regularizer": L1Ball(1.0)}, "is a psi of its own, beside which"),
        (
            {"density": 0.1, "regularizer": PerParameter({"*": L1(1.0)})},
            "is a psi of its own, beside which",
        ),
        ({"density": Density(0.1, "global"), "regularizer": PerParameter({"*": Zero()})}, "take density=Density"),
        *(({"density": share}, "between 0 and 1.* to keep all of them leave it out") for share in (1.0, 1, 0.0, 0)),
        ({"density": Density}, "Density"),
        ({"client": "composite", "density": 0.1, "mirror_map": SimplexEntropy()}, "cannot be combined"),
    ],
)
def test_what_does_not_go_together(options, message):
    with pytest.raises(ConfigurationError, match=message):
        FedDualAvg(**{"client": "unmodified"} | options)


def test_without_start_a_density_needs_its_rounds():
    """Before anybody trains."""
    objectives = clients()
    grid = InProcessGrid(ordinary_app(objectives, 1, 0.05), len(objectives))
    with pytest.raises(ConfigurationError, match=r"give Density\(\.\.\., rounds=\.\.\.\)"):
        FedDualAvg(client="unmodified", density=0.5).configure_train(1, start_arrays(), ConfigRecord(), grid)


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

"""FedDualAvg over clients that know nothing of duals: as with ours; what nobody trains; who forgets the option."""

import logging

import numpy as np
import pytest
from flwr.app import ArrayRecord
from problems import FEATURES, Foreign, arrays_of, clients, flat, foreign_app, numpy_of, run, simulated, start_arrays

from flwr_fco.errors import NothingTrainedError
from flwr_fco.regularizers import L1, L1Ball, L2Squared
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import Arrays, Density, FedDualAvg, Steps

DENSE = {"client": "unmodified", "fraction_evaluate": 0.0}
SPARSE = {**DENSE, "density": 0.3}
THRESHOLD = {**DENSE, "regularizer": L1(0.05), "client_lr": 0.25, "work": Steps(4)}
STRENGTH = 0.3


def unmodified(rounds=20, *, steps=4, rate=0.05, extra=None, **options):
    """Return the strategy and the model of a run over FedAvg's clients, who take gradient steps on their own losses."""
    objectives = clients()

    def trained(arrays, message, context):
        w = np.concatenate([arrays["coefficients"], arrays["intercept"]])
        for _ in range(steps):
            w = w - rate * objectives[context.node_config["partition-id"]].gradient(w)
        return {"coefficients": w[:FEATURES], "intercept": w[FEATURES:]}

    def reported(message, context):
        return {"num-examples": objectives[context.node_config["partition-id"]].num_examples, **(extra or {})}

    strategy = FedDualAvg(**DENSE | options)
    result = simulated(strategy, foreign_app(trained, metrics=reported), rounds)
    return strategy, flat(result.arrays)


def test_one_step_equals_the_full_method():
    known = {"regularizer": L1(STRENGTH), "client_lr": 0.05}
    _, ordinary = unmodified(steps=1, work=Steps(1), **known)
    ours = run(FedDualAvg(work=Steps(1, batch_size=None), **known), clients(), 20)
    np.testing.assert_allclose(ordinary, flat(ours.arrays), rtol=0, atol=1e-13)


def test_the_clients_metrics_win_over_what_the_user_said():
    options = {"steps": 3, "work": Steps(3), "regularizer": L1(STRENGTH), "client_lr": 0.05}
    for extra, expected in (({"local-steps": 4}, 0.05 * 4), ({"elapsed": 0.125}, 0.125), ({}, 0.05 * 3)):
        strategy, _ = unmodified(1, extra=extra, **options)
        assert strategy.state.elapsed == pytest.approx(expected, rel=1e-15)


def test_a_constraint_has_no_weight_and_needs_nothing():
    _, w = unmodified(50, steps=3, regularizer=L1Ball(2.0))
    assert np.abs(w[:FEATURES]).sum() == pytest.approx(2.0, rel=1e-12)


@pytest.mark.parametrize(("held", "trained"), [("float32",) * 2, ("float64", "float32"), ("float32", "float16")])
def test_rounding_of_the_users_dtype_is_not_taken_for_a_gradient(held, trained):
    """The increment is what came back minus what was sent, in the client's precision, not minus the float64 primal."""
    unmoved = foreign_app(
        lambda arrays, *_: {name: array.astype(trained) for name, array in arrays.items()},
        metrics={"num-examples": 1, "local-steps": 1},
    )
    # The ridge makes primal points that float32 cannot hold.
    strategy = FedDualAvg(**DENSE, regularizer=L2Squared(0.3), client_lr=0.1, work=Steps(1))
    start = np.full(FEATURES + 1, 1 / 3)
    simulated(strategy, unmoved, 3, initial_arrays=start_arrays(dtype=held, start=start))
    np.testing.assert_array_equal(strategy.state.dual, start.astype(held))


def test_models_and_running_statistics_in_another_float_dtype_count():
    app = foreign_app(lambda arrays, *_: {name: a.astype(np.float64) + 0.5 for name, a in arrays.items()})
    own = FedDualAvg(**DENSE, arrays=Arrays(pass_through=["running_mean"]))
    start = {"w": np.zeros((2, 2), np.float32), "running_mean": np.zeros(2, np.float32)}
    result = simulated(own, app, 2, initial_arrays=start)
    for name, array in result.arrays.items():
        np.testing.assert_array_equal(array.numpy(), np.ones(start[name].shape, np.float32))
        assert array.dtype == "float32"


# --- what nobody trains: frozen layers, buffers of a `state_dict` --------------------------------------------------

RNG = np.random.default_rng(3)
SHAPES = {"backbone.weight": (30, 10), "pe": (12, 8), "embedding.weight": (20, 8), "fc.weight": (10, 10)}
NETWORK, ENDS = ({name: RNG.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()} for _ in range(2))


def train_network(options, *, frozen=("pe", "backbone.weight"), until=1_000, rounds=10, kind=FedDualAvg, **more):
    def trained(arrays, message, context):
        still = frozen if message.content["config"]["server-round"] < until else ("pe",)
        return {n: w if n in still else (w + 0.3 * (ENDS[n] - w)).astype(np.float32) for n, w in arrays.items()}

    result = simulated(kind(**options), foreign_app(trained), rounds, num_nodes=3, initial_arrays=NETWORK, **more)
    return numpy_of(result.arrays)


@pytest.mark.parametrize("options", [SPARSE, THRESHOLD])
def test_what_nobody_trains_stays_whole(options):
    model = train_network(options)
    for name in ("backbone.weight", "pe"):
        np.testing.assert_array_equal(model[name], NETWORK[name])
    assert np.count_nonzero(model["fc.weight"]) < model["fc.weight"].size


def test_what_is_trained_later_gets_its_share_then():
    model = train_network(SPARSE, until=6, rounds=14)
    np.testing.assert_array_equal(model["pe"], NETWORK["pe"])
    assert np.count_nonzero(model["backbone.weight"]) < 0.5 * model["backbone.weight"].size


@pytest.mark.parametrize("options", [DENSE, SPARSE, THRESHOLD])
def test_clients_that_return_what_they_received_are_reported(options, caplog):
    with caplog.at_level(logging.WARNING, logger="flwr"):
        model = train_network(options, frozen=tuple(NETWORK))
    assert sum("return the model that they were sent" in line for line in caplog.messages) == 1
    for name, array in NETWORK.items():
        np.testing.assert_array_equal(model[name], array)


def test_a_first_round_in_which_nobody_trains_cuts_nothing_that_is_frozen():
    """As of a rate that grows from 0: what moves in the second round has its share then, and the rest stays whole."""
    model = train_network(SPARSE, frozen=("pe", "fc.weight", "embedding.weight", "backbone.weight"), until=2, rounds=14)
    np.testing.assert_array_equal(model["pe"], NETWORK["pe"])
    others = [array for name, array in model.items() if name != "pe"]
    assert sum(map(np.count_nonzero, others)) == round(0.3 * sum(array.size for array in others))


@pytest.mark.parametrize("options", [SPARSE, THRESHOLD, {**DENSE, "density": Density(0.3, scope="global")}])
def test_weights_that_a_state_dict_holds_twice_move_together(options):
    """A client that loads both has the second one under both names, as PyTorch's tied weights."""

    def trained(arrays, message, context):
        both = arrays["embedding.weight"] + 0.3 * (ENDS["embedding.weight"] - arrays["embedding.weight"])
        other = arrays["fc.weight"] + 0.3 * (ENDS["fc.weight"] - arrays["fc.weight"])
        return {"decoder.weight": both, "embedding.weight": both, "fc.weight": other}

    begin = {name: NETWORK[name.replace("decoder", "embedding")] for name in ("decoder.weight", "embedding.weight")}
    begin["fc.weight"] = NETWORK["fc.weight"]
    model = simulated(FedDualAvg(**options), foreign_app(trained), 20, num_nodes=3, initial_arrays=begin)
    found = numpy_of(model.arrays)
    np.testing.assert_allclose(found["decoder.weight"], found["embedding.weight"], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found["decoder.weight"] == 0.0, found["embedding.weight"] == 0.0)
    assert 0 < np.count_nonzero(found["decoder.weight"]) < found["decoder.weight"].size


# --- where the option is forgotten, on every way there ---------------------------------------------------------------

NETWORK_OF_TWO = {"0.weight": np.ones((3, 2), np.float32), "0.bias": np.zeros(3, np.float32)}


def pytorch(arrays, *_):
    """As `load_state_dict`, which refuses other names."""
    if set(arrays) != set(NETWORK_OF_TWO):
        raise RuntimeError(f"Error(s) in loading state_dict for Net: Unexpected key(s) in state_dict: {set(arrays)}")
    return arrays


#: With `strict=False`, and a loop that takes arrays as they come.
LOADERS = [pytorch, lambda *_: NETWORK_OF_TWO, lambda arrays, *_: ArrayRecord([0.7 * a + 0.3 for a in arrays.values()])]


@pytest.mark.parametrize("trained", LOADERS)
@pytest.mark.parametrize("elsewhere", [lambda grid: grid, Foreign], ids=["here", "elsewhere"])
def test_the_reason_of_a_reply_that_does_not_count_says_what_to_do(trained, elsewhere):
    grid = InProcessGrid(foreign_app(trained), 2, raise_errors=False)
    with grid.identity(), pytest.raises(NothingTrainedError) as caught:
        FedDualAvg(fraction_evaluate=0.0).start(elsewhere(grid), arrays_of(NETWORK_OF_TWO), 1)
    reasons = [row.reason for row in caught.value.result.left_out]
    assert ['give the strategy client="unmodified"' in reason for reason in reasons] == [True, True]

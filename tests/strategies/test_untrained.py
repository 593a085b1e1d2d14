"""What nobody trains: psi leaves it alone, as frozen layers and buffers of a ``state_dict``, until it moves."""

import logging

import numpy as np
import pytest
from problems import foreign_app, numpy_of, simulated

from flwr_fco.callbacks import Checkpoint
from flwr_fco.errors import FlwrFcoError
from flwr_fco.regularizers import L1
from flwr_fco.strategies import Density, FedDualAvg, Steps

DENSE = {"client": "unmodified", "fraction_evaluate": 0.0}
SPARSE = {**DENSE, "density": 0.3}
THRESHOLD = {**DENSE, "regularizer": L1(0.05), "client_lr": 0.25, "work": Steps(4)}

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


def test_a_resumed_run_leaves_the_same_arrays_alone(tmp_path):
    def stop(number, arrays, metrics):
        if number == 4:
            raise FlwrFcoError("stop")

    whole, saving = train_network(SPARSE), Checkpoint(tmp_path / "run.npz")
    with pytest.raises(FlwrFcoError):
        train_network(SPARSE, callbacks=[saving, stop])
    again = train_network(SPARSE, resume=tmp_path / "run.npz", callbacks=[saving])
    for name, array in whole.items():
        np.testing.assert_array_equal(again[name], array, err_msg=name)


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

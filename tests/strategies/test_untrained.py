"""What nobody trains: psi leaves it alone, as frozen layers and buffers of a ``state_dict``, until it moves."""

import logging

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flwr_fco.callbacks import Checkpoint
from flwr_fco.core.layout import Layout
from flwr_fco.errors import FlwrFcoError
from flwr_fco.regularizers import L1
from flwr_fco.simulation import simulate
from flwr_fco.strategies import FedDualAvg, Steps

DENSE = {"client": "unmodified", "fraction_evaluate": 0.0}
SPARSE = {**DENSE, "density": 0.3}
THRESHOLD = {**DENSE, "regularizer": L1(0.05), "client_lr": 0.25, "work": Steps(4)}

RNG = np.random.default_rng(3)
NETWORK = {
    "backbone.weight": RNG.normal(size=(30, 10)).astype(np.float32),
    "pe": RNG.normal(size=(12, 8)).astype(np.float32),
    "embedding.weight": RNG.normal(size=(20, 8)).astype(np.float32),
    "fc.weight": RNG.normal(size=(10, 10)).astype(np.float32),
    "fc.bias": np.zeros(10, np.float32),
}
ENDS = {name: RNG.normal(size=array.shape).astype(np.float32) for name, array in NETWORK.items()}


def network_app(frozen=("pe", "backbone.weight"), until=1_000):
    app = ClientApp()

    @app.train()
    def train(message, context):
        arrays = {name: array.numpy() for name, array in message.content["arrays"].items()}
        now = message.content["config"]["server-round"]
        still = frozen if now < until else ("pe",)
        moved = {
            name: w if name in still else (w + 0.3 * (ENDS[name] - w)).astype(np.float32) for name, w in arrays.items()
        }
        content = {"arrays": ArrayRecord({name: Array(w) for name, w in moved.items()})}
        return Message(RecordDict({**content, "metrics": MetricRecord({"num-examples": 10})}), reply_to=message)

    return app


def train_network(options, app=None, rounds=10, *, kind=FedDualAvg, **more):
    start = {name: array.copy() for name, array in NETWORK.items()}
    strategy = kind(**options)
    app = network_app() if app is None else app
    result = simulate(strategy, app, num_nodes=3, num_rounds=rounds, initial_arrays=start, progress=False, **more)
    return {name: array.numpy() for name, array in result.arrays.items()}


@pytest.mark.parametrize("options", [SPARSE, THRESHOLD])
def test_what_nobody_trains_stays_whole(options):
    model = train_network(options)
    for name in ("backbone.weight", "pe"):
        np.testing.assert_array_equal(model[name], NETWORK[name])
    assert np.count_nonzero(model["fc.weight"]) < model["fc.weight"].size


@pytest.mark.parametrize("number", [1, 2, 5])
def test_what_a_hook_makes_of_untrained_arrays_stays(number):
    class Own(FedDualAvg):
        def aggregate_train(self, server_round, replies):
            arrays, metrics = super().aggregate_train(server_round, replies)
            if server_round == number:
                made["pe"] = arrays["pe"].numpy() * np.float32(2.0)
                arrays["pe"] = Array(made["pe"])
            return arrays, metrics

    made = {}
    model = train_network(SPARSE, kind=Own)
    np.testing.assert_array_equal(model["pe"], made["pe"])
    np.testing.assert_array_equal(model["backbone.weight"], NETWORK["backbone.weight"])


def test_what_is_trained_later_gets_its_share_then():
    model = train_network(SPARSE, network_app(until=6), rounds=14)
    np.testing.assert_array_equal(model["pe"], NETWORK["pe"])
    assert np.count_nonzero(model["backbone.weight"]) < 0.5 * model["backbone.weight"].size


def test_a_resumed_run_leaves_the_same_arrays_alone(tmp_path):
    whole = train_network(SPARSE)
    with pytest.raises(FlwrFcoError):
        train_network(SPARSE, rounds=10, callbacks=[Checkpoint(tmp_path / "run.npz"), _stop_at(4)])
    again = train_network(SPARSE, resume=tmp_path / "run.npz", callbacks=[Checkpoint(tmp_path / "run.npz")])
    for name, array in whole.items():
        np.testing.assert_array_equal(again[name], array, err_msg=name)


def _stop_at(last):
    def callback(number, arrays, metrics):
        if number == last:
            raise FlwrFcoError("stop")

    return callback


def test_clients_that_return_what_they_got_are_told_of(caplog):
    names = tuple(NETWORK)
    with caplog.at_level(logging.WARNING, logger="flwr"):
        model = train_network(DENSE, network_app(frozen=names))
    assert sum("return the model that they were sent" in line for line in caplog.messages) == 1
    for name, array in NETWORK.items():
        np.testing.assert_array_equal(model[name], array)


def test_pass_through_adds_to_running_statistics():
    arrays = {"weight": np.zeros((2, 2)), "pe": np.zeros((2, 2)), "bn.running_mean": np.zeros(2)}
    passed = [entry.name for entry in Layout.from_arrays(arrays, pass_through="pe").passed_through]
    assert passed == ["pe", "bn.running_mean"]
    assert not Layout.from_arrays(arrays, pass_through=()).passed_through

"""A run says what it did: an error if nothing was trained, its final results as Flower's, other float dtypes taken."""

import logging

import numpy as np
import pytest
from faulty import Faulty, start_on, strategy, with_increment
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from problems import FEATURES, app_of, clients, flat, start_arrays

from flwr_fco.client_apps import client_app
from flwr_fco.errors import ConfigurationError, NothingTrainedError
from flwr_fco.simulation import simulate
from flwr_fco.strategies import Arrays, FedDualAvg, Participation, Steps

EVERY_ROUND = {"rounds": (1, 2, 3), "nodes": range(10)}


def test_a_run_in_which_no_round_counted_is_an_error_with_its_reason_and_result():
    shorter = with_increment(lambda arrays: {"increment": arrays["increment"][:-1]})
    with pytest.raises(NothingTrainedError, match=rf"can count, in 2 rounds .*float64\[{FEATURES}\]") as caught:
        start_on(Faulty(app_of(clients()), 4, shorter, **EVERY_ROUND), strategy())
    result = caught.value.result
    np.testing.assert_array_equal(flat(result.arrays), flat(start_arrays()))
    assert len(result.left_out) == 8
    assert all(metrics["skipped"] for metrics in result.train_metrics_clientapp.values())


def test_too_few_replies_in_every_round_are_that_error_too():
    with pytest.raises(NothingTrainedError, match="4 good replies in the last one; lower min_replies"):
        start_on(Faulty(app_of(clients()), 4, None, rounds=()), strategy(participation=Participation(min_replies=5)))


def test_a_clients_traceback_is_cut_from_its_reason():
    def broken(message, reply):
        return [Message(error=Error(2, "ZeroDivisionError: division by zero\nTraceback ..."), reply_to=message)]

    with pytest.raises(NothingTrainedError, match="12 replies: error 2: ZeroDivisionError") as caught:
        start_on(Faulty(app_of(clients()), 4, broken, **EVERY_ROUND), strategy())
    assert "\n" not in str(caught.value)
    assert "Traceback" not in caught.value.result.left_out[0].reason


def test_one_round_that_counted_is_a_result():
    def nobody(message, reply):
        return []

    result = start_on(Faulty(app_of(clients()), 4, nobody, rounds=(2, 3), nodes=range(10)), strategy())
    assert [result.train_metrics_clientapp[number]["skipped"] for number in (1, 2, 3)] == [0, 1, 1]


def test_a_run_that_trains_nobody_by_choice_is_none():
    result = start_on(Faulty(app_of(clients()), 4, None, rounds=()), strategy(fraction_train=0.0))
    np.testing.assert_array_equal(flat(result.arrays), flat(start_arrays()))


def test_replies_in_another_float_dtype_count():
    shorter = with_increment(lambda arrays: {"increment": arrays["increment"].astype(np.float32)})
    result = start_on(Faulty(app_of(clients()), 4, shorter, **EVERY_ROUND), strategy())
    exact = start_on(Faulty(app_of(clients()), 4, None, rounds=()), strategy())
    assert [metrics["num-replies"] for metrics in result.train_metrics_clientapp.values()] == [4, 4, 4]
    np.testing.assert_allclose(flat(result.arrays), flat(exact.arrays), atol=20 * np.finfo(np.float32).eps)


def test_start_ends_with_the_final_results(caplog):
    with caplog.at_level(logging.INFO, "flwr"):
        result = start_on(Faulty(app_of(clients()), 4, None, rounds=()), strategy())
    lines = [record.getMessage() for record in caplog.records]
    said = [line.strip() for line in str(result).splitlines()]
    assert [line.strip() for line in lines[-len(said) :]] == said


def test_an_array_that_messages_cannot_hold_is_named():
    class Tensor:
        """As PyTorch's in bfloat16: NumPy has no such dtype."""

        dtype, shape = "torch.bfloat16", (2,)

        def __array__(self, *arguments, **options):
            raise TypeError("Got unsupported ScalarType BFloat16")

        detach = cpu = numpy = __array__

    with pytest.raises(ConfigurationError, match=r"array 'weight' is torch.bfloat16.*\.float\(\)"):
        simulate(
            strategy(), client_app(lambda context: None), num_nodes=2, num_rounds=1, initial_arrays={"weight": Tensor()}
        )


def test_the_log_does_not_speak_of_rates_and_batches_that_unmodified_clients_ignore(caplog):
    def logged(**options):
        caplog.clear()
        strategy(**options).summary()
        return caplog.text

    with caplog.at_level(logging.INFO, "flwr"):
        theirs = logged(client="unmodified", density=0.1)
        told = logged(client="unmodified", work=Steps(3), client_lr=0.25)
        ours = logged(work=Steps(3), client_lr=0.25)
    assert "client (the clients' own) | server (1)" in theirs
    assert "Local work: the clients' own" in theirs
    assert "client (0.25)" in told
    assert "batch" not in theirs + told
    assert "client (0.25)" in ours
    assert "batches of" in ours


def test_models_and_running_statistics_in_another_float_dtype_count():
    app = ClientApp()

    @app.train()
    def train(message, context):
        arrays = {
            name: Array(array.numpy().astype(np.float64) + 0.5) for name, array in message.content["arrays"].items()
        }
        records = {"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": 3})}
        return Message(RecordDict(records), reply_to=message)

    own = FedDualAvg(client="unmodified", fraction_evaluate=0.0, arrays=Arrays(pass_through=["running_mean"]))
    start = {"w": np.zeros((2, 2), np.float32), "running_mean": np.zeros(2, np.float32)}
    result = simulate(own, app, num_nodes=3, num_rounds=2, initial_arrays=start)
    for name, array in result.arrays.items():
        np.testing.assert_array_equal(array.numpy(), np.ones(start[name].shape, np.float32))
        assert array.dtype == "float32"

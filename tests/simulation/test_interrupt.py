"""Ctrl-C during a run: what there is so far is not lost, and nothing prints a page."""

import os
import signal

import numpy as np
import pytest
from flwr.app import ArrayRecord, MetricRecord

from flwr_fco import L1, FedDualAvg, LeastSquares, client_app, simulate
from flwr_fco.errors import RunInterrupted

_START = {"coefficients": np.zeros(3), "intercept": np.zeros(1)}


def load(context):
    features = np.random.default_rng(context.node_config["partition-id"]).standard_normal((20, 3))
    return LeastSquares(features, features @ np.array([1.0, -1.0, 0.0]))


def run(strategy=None, **options):
    def press(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        if server_round == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return MetricRecord({"seen": server_round})

    strategy = strategy or FedDualAvg(regularizer=L1(0.1), client_lr=0.1, fraction_evaluate=0.0)
    options = {"num_rounds": 50, "evaluate_fn": press, "progress": False} | options
    return simulate(strategy, client_app(load), num_nodes=2, initial_arrays=_START, **options)


def test_the_result_so_far_is_returned_with_a_warning(caplog):
    result = run()
    whole = run(evaluate_fn=None, num_rounds=3)
    assert sorted(result.train_metrics_clientapp) == [1, 2, 3]
    assert sorted(result.evaluate_metrics_serverapp) == [0, 1, 2]
    np.testing.assert_array_equal(result.arrays["coefficients"].numpy(), whole.arrays["coefficients"].numpy())
    assert "interrupted after 3 of 50 rounds" in caplog.text


def test_a_script_may_stop_there():
    with pytest.raises(KeyboardInterrupt) as caught:
        run(on_interrupt="raise")
    assert isinstance(caught.value, RunInterrupted)
    assert sorted(caught.value.result.train_metrics_clientapp) == [1, 2, 3]


def test_a_second_interrupt_loses_no_result():
    class Slow:
        def on_run_end(self, result):
            raise KeyboardInterrupt

    strategy = FedDualAvg(regularizer=L1(0.1), client_lr=0.1, fraction_evaluate=0.0)
    with pytest.raises(KeyboardInterrupt, match="FedDualAvg was interrupted: the result so far is the strategy's"):
        run(strategy, callbacks=[Slow()])
    assert sorted(strategy.result.train_metrics_clientapp) == [1, 2, 3]

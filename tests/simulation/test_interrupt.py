"""Ctrl-C during a run: what there is so far is not lost, and nothing prints a page."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp.strategy import FedAvg
from problems import simulated

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


def test_callbacks_are_told_of_the_end():
    class Note:
        ended = None

        def on_run_end(self, result):
            self.ended = result

    note = Note()
    assert run(callbacks=[note]) is note.ended


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


def test_a_foreign_strategy_ends_in_a_short_interrupt():
    strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=2)
    with pytest.raises(KeyboardInterrupt, match="FedAvg was interrupted: the result so far is lost"):
        simulated(strategy, _pressing, 5, num_nodes=2, initial_arrays=_START)


def _pressing(message, context):
    os.kill(os.getpid(), signal.SIGINT)
    return message


@pytest.mark.slow
def test_a_script_prints_a_line_and_goes_on_with_the_result(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import numpy as np\n"
        "from flwr_fco import L1, FedDualAvg, LeastSquares, client_app, simulate\n"
        "def tell(number, arrays, metrics):\n"
        "    if number == 1: print('begun', flush=True)\n"
        "result = simulate(FedDualAvg(regularizer=L1(0.1), client_lr=0.01, fraction_evaluate=0.0),\n"
        "    client_app(lambda context: LeastSquares(np.eye(3), np.ones(3))), num_nodes=2, num_rounds=10**7,\n"
        "    initial_arrays={'coefficients': np.zeros(3), 'intercept': np.zeros(1)}, callbacks=[tell])\n"
        "print(len(result.train_metrics_clientapp), 'rounds')\n",
        encoding="utf-8",
    )
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    reported, complaints = process.communicate(timeout=60)
    assert process.returncode == 0
    assert int(reported.split()[0]) >= 1
    assert "interrupted after" in complaints
    assert len(complaints.splitlines()) <= 3

"""The root Flower App in this process: its ServerApp and its ClientApp on an in-process grid."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, RecordDict

from flwr_fco.client_apps.threads import single_threaded_blas
from flwr_fco.errors import ClientError, ConfigurationError
from flwr_fco.simulation import InProcessGrid, simulate
from flwr_fco.wire import flower as _flower
from main_job import client_app, server_app
from main_job.run_config import run_settings
from reproduction.runs.recorder import build_strategy
from reproduction.runs.run import run as run_here
from reproduction.runs.run_folder import read_run
from reproduction.runs.settings import RunSettings

CONFIG = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
CONFIG = {**CONFIG["tool"]["flwr"]["app"]["config"], "num-server-rounds": 4, "num-nodes": 3}
SCORES = {"objective", "density", "accuracy", "training-accuracy", "validation-loss", "validation-objective"}
LASSO = {"problem": "lasso", "client-lr": 0.0001, "server-lr": 1.0, "strength": 0.2, "batch-size": 64}


def run(overrides, num_nodes=3):
    config = {**CONFIG, **overrides}
    grid = InProcessGrid(client_app.app, num_nodes, run_config=config)
    context = Context(run_id=grid.run_id, node_id=1, node_config={}, state=RecordDict(), run_config=config)
    # As `simulate` does: each message would look for the BLAS libraries again.
    with _flower.identity(grid.run_id), single_threaded_blas():
        server_app.app(grid, context)
    return grid


def only_run(directory):
    (folder,) = directory.iterdir()
    return read_run(folder)


@pytest.mark.parametrize(
    ("overrides", "keys"),
    [
        ({"problem": "digits", "server-lr": 1.0}, SCORES),
        ({"problem": "breast-cancer", "server-lr": 1.0}, SCORES),
        (LASSO, {"objective", "density", "precision", "recall", "f1", "recovery-error"}),
    ],
    ids=["digits", "breast-cancer", "lasso"],
)
def test_every_problem_runs_and_leaves_its_folder(tmp_path, overrides, keys):
    grid = run({**overrides, "output-dir": str(tmp_path)})
    (folder,) = tmp_path.iterdir()
    assert str(grid.run_id) in folder.name
    record = read_run(folder)
    assert [line["round"] for line in record.metrics] == [0, 1, 2, 3, 4]
    assert set(record.metrics[-1]) == keys | {"round", "bytes-down", "bytes-up", "seconds"}
    assert record.metrics[-1]["objective"] < record.metrics[0]["objective"]
    assert record.config["problem"] == overrides["problem"]


def test_the_last_line_describes_the_saved_model_and_counts_all_bytes(tmp_path):
    run({"output-dir": str(tmp_path)})
    record = only_run(tmp_path)
    task = RunSettings.from_config(record.config).load()
    scores = task.scores(task.layout.flatten(record.arrays))
    assert {key: record.metrics[-1][key] for key in scores} == scores
    assert scores["density"] == np.mean(record.arrays["coefficients"] != 0)
    # 650 float64 and a header, each way, for 3 nodes and 4 rounds.
    assert record.metrics[-1]["bytes-up"] == record.metrics[-1]["bytes-down"] == 4 * 3 * (650 * 8 + 128)


def test_the_app_is_simulate_to_the_bit(tmp_path):
    run({"output-dir": str(tmp_path), "seed": 5})
    config = {**CONFIG, "seed": 5}
    task = run_settings(config).load()
    result = simulate(
        build_strategy(run_settings(config), 3, task.regularizer),
        client_app.app,
        num_nodes=3,
        num_rounds=4,
        initial_arrays=task.initial_arrays(),
        run_config=config,
    )
    for name, array in only_run(tmp_path).arrays.items():
        np.testing.assert_array_equal(array, result.arrays[name].numpy())


def test_the_app_and_the_command_line_write_the_same_lines(tmp_path):
    run({"output-dir": str(tmp_path), "seed": 5, "evaluate-every": 2})
    record = only_run(tmp_path)
    history = run_here(RunSettings.from_config(record.config)).history
    traffic = ("bytes-down", "bytes-up", "seconds")
    assert [{k: v for k, v in line.items() if k not in traffic} for line in record.metrics] == history


def test_rounds_are_evaluated_as_often_as_asked_and_at_the_end(tmp_path):
    run({"output-dir": str(tmp_path), "evaluate-every": 3})
    assert [line["round"] for line in only_run(tmp_path).metrics] == [0, 3, 4]


def test_without_an_output_dir_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run({})
    assert list(tmp_path.iterdir()) == []


def test_a_bad_config_ends_the_run_before_it_starts():
    with pytest.raises(Exception, match="strength") as error:
        run({"strength": "much"})
    causes = [error.value, error.value.__cause__, error.value.__context__]
    assert any(isinstance(cause, ConfigurationError) for cause in causes)


def test_a_small_federation_will_do_and_is_reported(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("main_job.server_app.wait_for_nodes.__defaults__", (0.0,))
    with caplog.at_level("WARNING", logger="flwr"):
        run({"output-dir": str(tmp_path), "num-nodes": 10}, num_nodes=2)
    assert "num-nodes=10, but this federation has 2 nodes" in caplog.text
    assert "num-supernodes=10" in caplog.text
    assert json.loads(next(tmp_path.glob("*/config.json")).read_text())["num-clients"] == 2


def test_the_run_waits_for_nodes_that_connect_late():
    class Grid:
        calls = 0

        def get_node_ids(self):
            self.calls += 1
            return range(min(self.calls, 4))

    grid = Grid()
    assert server_app.wait_for_nodes(grid, 4, patience=30.0) == 4
    assert grid.calls == 4


def test_a_client_checks_the_config_too():
    grid = InProcessGrid(client_app.app, 2, run_config={**CONFIG, "alpha": "small"})
    settings = run_settings(CONFIG, 2)
    task = settings.load()
    arrays = ArrayRecord({name: Array(array) for name, array in task.initial_arrays().items()})
    with _flower.identity(grid.run_id), pytest.raises(ClientError, match="alpha='small'"):
        build_strategy(settings, 2, task.regularizer).start(grid, arrays, 1)

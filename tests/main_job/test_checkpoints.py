"""The root app saves its run where it is told to, and goes on with it."""

import tomllib
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from flwr_fco.client_apps.threads import single_threaded_blas
from flwr_fco.errors import ConfigurationError
from flwr_fco.simulation import InProcessGrid
from flwr_fco.wire import flower as _flower
from main_job import client_app, server_app
from reproduction.runs.run_folder import read_run

CONFIG = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
CONFIG = {**CONFIG["tool"]["flwr"]["app"]["config"], "num-server-rounds": 4, "num-nodes": 3, "strategy": "FedDAGT"}


def run(output, **overrides):
    config = {**CONFIG, "output-dir": str(output)} | {key.replace("_", "-"): value for key, value in overrides.items()}
    grid = InProcessGrid(client_app.app, 3, run_config=config)
    context = Context(run_id=grid.run_id, node_id=1, node_config={}, state=RecordDict(), run_config=config)
    with _flower.identity(grid.run_id), single_threaded_blas():
        server_app.app(grid, context)
    (folder,) = output.iterdir()
    return read_run(folder)


def lines(record):
    return [{key: value for key, value in line.items() if key != "seconds"} for line in record.metrics]


def test_a_second_run_goes_on_with_the_first(tmp_path):
    whole = run(tmp_path / "whole")
    saved = {"checkpoint_dir": str(tmp_path / "saved"), "resume": True}
    # The first finds nothing to go on with, and begins.
    run(tmp_path / "first", num_server_rounds=2, **saved)
    assert [path.name for path in (tmp_path / "saved").iterdir()] == ["FedDAGT-digits-0.npz"]
    second = run(tmp_path / "second", **saved)
    assert lines(second) == lines(whole)
    for name, array in whole.arrays.items():
        np.testing.assert_array_equal(second.arrays[name], array)


def test_other_settings_are_refused_and_the_file_stays(tmp_path):
    saved = {"checkpoint_dir": str(tmp_path / "saved")}
    run(tmp_path / "first", num_server_rounds=2, **saved)
    file = tmp_path / "saved" / "FedDAGT-digits-0.npz"
    before = file.read_bytes()
    with pytest.raises(ConfigurationError, match=r"server_lr was 10\.0, is 0\.5\. Resume with"):
        run(tmp_path / "second", resume=True, server_lr=0.5, **saved)
    assert file.read_bytes() == before


def test_resume_needs_a_place(tmp_path):
    with pytest.raises(ConfigurationError, match="resume=true needs checkpoint-dir"):
        run(tmp_path / "runs", resume=True)

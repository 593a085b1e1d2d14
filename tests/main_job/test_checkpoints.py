"""The root app saves its run where it is told to, and goes on with it."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from flwr_fco.core.computing import single_threaded_blas
from flwr_fco.errors import ConfigurationError
from flwr_fco.models import load_npz
from flwr_fco.simulation import InProcessGrid
from main_job import client_app, server_app

CONFIG = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
CONFIG = {**CONFIG["tool"]["flwr"]["app"]["config"], "num-server-rounds": 4, "num-nodes": 3, "strategy": "FedDAGT"}


def run(output, **overrides):
    config = {**CONFIG, "output-dir": str(output)} | {key.replace("_", "-"): value for key, value in overrides.items()}
    grid = InProcessGrid(client_app.app, 3, run_config=config)
    context = Context(run_id=grid.run_id, node_id=1, node_config={}, state=RecordDict(), run_config=config)
    with grid.identity(), single_threaded_blas():
        server_app.app(grid, context)
    (folder,) = output.iterdir()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return lines, load_npz(folder / "model.npz")


def test_a_second_run_goes_on_with_the_first(tmp_path):
    lines, arrays = run(tmp_path / "whole")
    saved = {"checkpoint_dir": str(tmp_path / "saved"), "resume": True}
    # The first finds nothing to go on with, and begins.
    run(tmp_path / "first", num_server_rounds=2, **saved)
    assert (tmp_path / "saved" / "FedDAGT-digits-0.npz").is_file()
    more, second = run(tmp_path / "second", **saved)
    assert [line["round"] for line in more] == [1, 2, 3, 4]
    assert more == lines
    for name, array in arrays.items():
        np.testing.assert_array_equal(second[name], array)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"server_lr": 0.5}, r"other settings: server_lr=10\.0, here server_lr=0\.5"),
        ({"alpha": 0.5}, r"other data: alpha=0\.5 \(was 0\.3\); resume with those"),
    ],
)
def test_other_settings_are_refused_and_the_file_stays(tmp_path, other, words):
    saved = {"checkpoint_dir": str(tmp_path / "saved")}
    run(tmp_path / "first", num_server_rounds=2, **saved)
    file = tmp_path / "saved" / "FedDAGT-digits-0.npz"
    before = file.read_bytes()
    with pytest.raises(ConfigurationError, match=words):
        run(tmp_path / "second", resume=True, **other, **saved)
    assert file.read_bytes() == before


def test_resume_needs_a_place(tmp_path):
    with pytest.raises(ConfigurationError, match="resume=true needs checkpoint-dir"):
        run(tmp_path / "runs", resume=True)

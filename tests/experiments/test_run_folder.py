import numpy as np
import pytest

from flwr_fco.errors import ConfigurationError
from flwr_fco.experiments.run_folder import RunFolder, read_run


def test_a_run_is_read_back_as_it_was_written(tmp_path):
    folder = RunFolder(tmp_path / "deep" / "run", {"seed": 3, "problem": "digits"})
    folder.add({"round": 0, "objective": 0.1 + 0.2})
    folder.add({"round": 1, "objective": 1e-300})
    folder.save_model({"coefficients": np.array([[0.0, -1.5]], dtype=np.float32)})
    run = read_run(tmp_path / "deep" / "run")
    assert run.config == {"seed": 3, "problem": "digits"}
    assert run.metrics == [{"round": 0, "objective": 0.1 + 0.2}, {"round": 1, "objective": 1e-300}]
    assert run.arrays["coefficients"].dtype == np.float32
    np.testing.assert_array_equal(run.arrays["coefficients"], [[0.0, -1.5]])


def test_a_line_is_on_disk_at_once(tmp_path):
    RunFolder(tmp_path / "run", {}).add({"round": 0})
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == '{"round": 0}\n'


def test_a_run_is_not_written_over(tmp_path):
    RunFolder(tmp_path, {})
    with pytest.raises(ConfigurationError, match="holds a run already"):
        RunFolder(tmp_path, {})


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cannot make the run folder"):
        RunFolder(tmp_path / "file" / "run", {})


def test_a_run_that_did_not_finish_is_refused(tmp_path):
    folder = RunFolder(tmp_path, {})
    folder.add({"round": 0})
    with pytest.raises(ConfigurationError, match=r"no model\.npz"):
        read_run(tmp_path)

"""Runs whose clients are on Ray, and sweeps whose trials are in other processes: the numbers of one process."""

import pytest

from flwr_fco.errors import FlwrFcoError
from reproduction.runs.run import run
from reproduction.runs.settings import RunSettings
from reproduction.runs.sweep import CRITERIA, run_sweep

SETTINGS = RunSettings.of("lasso-small", "FedDualAvg", {"num-rounds": 5})


@pytest.mark.flower
@pytest.mark.slow
def test_a_run_on_ray_has_the_numbers_of_one_process(tmp_path):
    pytest.importorskip("ray")
    here = run(SETTINGS)
    for folder in (None, tmp_path / "run"):
        there = run(SETTINGS, folder=folder, ray={"workers": 2})
        assert there.history == here.history
        assert all((there.arrays[name] == array).all() for name, array in here.arrays.items())


def test_a_sweep_in_processes_has_the_scores_of_one_process_and_keeps_what_did_not_fail(tmp_path):
    values = [{"server-lr": 1.0}, {"server-lr": 2.0}, {"clients-per-round": 99}]
    *trials, wrong = [RunSettings.of("lasso-small", "FedDualAvg", {"num-rounds": 3, **more}) for more in values]
    rule = CRITERIA["recovery-error"]
    here = run_sweep(trials, tmp_path / "here", rule, engine="in-process")
    with pytest.raises(FlwrFcoError, match=r"1 of 3 trials failed.*clients-per-round=99"):
        run_sweep([wrong, *trials], tmp_path / "there", rule, engine="processes", workers=2)
    repeated = []
    kept = run_sweep(trials, tmp_path / "there", rule, engine="in-process", on_trial=repeated.append)
    assert not repeated
    assert [trial["score"] for trial in kept] == [trial["score"] for trial in here]

"""Runs and sweeps whose clients, or trials, are in other processes: the numbers of one process."""

import pytest

from flwr_fco.simulation import Processes
from reproduction.runs.run import run
from reproduction.runs.settings import RunSettings
from reproduction.runs.sweep import CRITERIA, run_sweep

SETTINGS = RunSettings.of("lasso-small", "FedDualAvg", {"num-rounds": 5})


def test_a_run_in_processes_has_the_numbers_of_one_process(tmp_path):
    here = run(SETTINGS)
    with Processes(2) as workers:
        there = run(SETTINGS, workers=workers)
        in_folder = run(SETTINGS, folder=tmp_path / "run", workers=workers)
    for found in (there, in_folder):
        assert found.history == here.history
        assert all((found.arrays[name] == array).all() for name, array in here.arrays.items())


@pytest.mark.slow
def test_a_sweep_in_processes_has_the_scores_of_one_process(tmp_path):
    trials = [
        RunSettings.of("lasso-small", "FedDualAvg", {"num-rounds": 3, "server-lr": rate}) for rate in (1.0, 2.0, 3.0)
    ]
    found = [
        run_sweep(trials, tmp_path / engine, CRITERIA["recovery-error"], engine=engine, workers=2)
        for engine in ("processes", "in-process")
    ]
    assert [trial["score"] for trial in found[0]] == [trial["score"] for trial in found[1]]

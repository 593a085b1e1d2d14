import csv
import json
import math
import subprocess
import sys
import threading

import pytest

from flwr_fco.errors import ConfigurationError, FlwrFcoError
from reproduction.runs import sweep
from reproduction.runs.run import RunResult, run
from reproduction.runs.settings import RunSettings
from reproduction.runs.sweep import (
    CRITERIA,
    Criterion,
    best_trials,
    expand_axes,
    parse_axis,
    read_trials,
    run_sweep,
    score_run,
)

RATES = (0.003, 0.01, 1.0)


def grid(strategies=("FedDualAvg",), seed=0):
    return [
        RunSettings.of("lasso-small", name, {"client-lr": rate, "num-rounds": 30}, seed)
        for name in strategies
        for rate in RATES
    ]


def test_axes():
    points = expand_axes(
        {"client-lr": parse_axis("client-lr", "0.1,0.2"), "server-lr": parse_axis("server-lr", "1,3,10")}
    )
    assert len(points) == 6
    assert {"client-lr": 0.2, "server-lr": 10} in points


def test_the_keys_of_a_point_are_in_the_order_of_the_axes():
    assert list(expand_axes({"b": (1,), "a": (2,)})[0]) == ["b", "a"]


def test_an_axis_without_values_is_named():
    with pytest.raises(ConfigurationError, match="client-lr"):
        parse_axis("client-lr", ",")


def result_of(values, diverged=0, metric="recovery-error"):
    own = grid()[0]
    return RunResult(own, [{"round": float(i), metric: v} for i, v in enumerate(values)], {}, diverged, 1.0)


def test_a_trial_is_judged_over_the_last_rounds():
    rule = Criterion("recovery-error", 3)
    assert score_run(result_of([9.0, 9.0, 1.0, 2.0, 3.0]), rule)["score"] == 2.0
    assert score_run(result_of([9.0, 1.0], diverged=1), rule)["score"] == math.inf
    assert score_run(result_of([1.0, math.nan]), rule)["score"] == math.inf
    assert score_run(result_of([1.0], diverged=1), Criterion("recovery-error", 1, largest=True))["score"] == -math.inf
    with pytest.raises(ConfigurationError, match="does not report rank"):
        score_run(result_of([1.0]), Criterion("rank", 1))


def test_other_metrics_are_averaged_over_the_same_rounds():
    own = result_of([5.0, 4.0, 3.0, 2.0])
    own.history[0]["objective"], own.history[2]["objective"] = 100.0, 7.0
    assert score_run(own, Criterion("recovery-error", 2))["mean"] == {"recovery-error": 2.5, "objective": 7.0}


def test_the_best_is_the_best_over_all_seeds():
    def trial(strategy, rate, seed, score):
        return {"settings": {"strategy": strategy, "client-lr": rate, "seed": seed}, "score": score}

    trials = [trial("A", 0.1, 0, 1.0), trial("A", 0.1, 1, 9.0), trial("A", 0.2, 0, 3.0), trial("A", 0.2, 1, 3.0)]
    trials += [trial("B", 0.1, 0, math.inf)]
    smallest = best_trials(trials, Criterion("x", 1))
    assert set(smallest) == {"A"}
    assert (smallest["A"]["settings"]["client-lr"], smallest["A"]["score"]) == (0.2, 3.0)
    assert best_trials(trials[:4], Criterion("x", 1, largest=True))["A"]["settings"]["client-lr"] == 0.1


def test_a_sweep_writes_what_the_runs_give_and_marks_the_diverged(tmp_path):
    trials = run_sweep(grid(), tmp_path, CRITERIA["recovery-error"], engine="in-process")
    for own, trial in zip(grid(), trials, strict=True):
        assert trial["settings"]["client-lr"] == own.client_lr
    assert trials[1]["last"]["f1"] == run(grid()[1]).history[-1]["f1"]
    assert [bool(trial["diverged"]) for trial in trials] == [False, False, True]
    assert trials[2]["rounds"] < 30
    with (tmp_path / "trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["client-lr"]) for row in rows] == list(RATES)
    assert [row["score"] for row in rows][2] == "inf"


def test_a_sweep_goes_on_where_it_was_stopped(tmp_path, monkeypatch):
    first = run_sweep(grid()[:2], tmp_path, CRITERIA["recovery-error"], engine="in-process")
    file = tmp_path / "trials.jsonl"
    # Killed while it wrote: the broken line does not count, and does not spoil the next one.
    file.write_text(file.read_text() + '{"settings": {"client')
    asked = []
    monkeypatch.setattr(sweep, "run", lambda own: asked.append(own) or run(own))
    trials = run_sweep(grid(), tmp_path, CRITERIA["recovery-error"], engine="in-process")
    assert asked == grid()[2:]
    assert trials[:2] == first
    assert len(read_trials(tmp_path)) == 3
    for line in file.read_text().splitlines():
        json.loads(line)


def test_two_sweeps_in_one_folder_do_not_run_at_a_time(tmp_path):
    settings = [RunSettings.of("lasso-small", "FedDualAvg", {"num-rounds": 2})]

    def second(trial):
        with pytest.raises(ConfigurationError, match="another sweep is running"):
            run_sweep(settings, tmp_path, CRITERIA["objective"], engine="in-process")

    for _ in range(2):  # the lock ends with the sweep
        (tmp_path / "trials.jsonl").unlink(missing_ok=True)
        run_sweep(settings, tmp_path, CRITERIA["objective"], engine="in-process", on_trial=second)


def test_an_unknown_engine_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match="engine='dask'"):
        run_sweep(grid(), tmp_path, CRITERIA["f1"], engine="dask")


def test_workers_end_with_a_process_that_is_killed():
    program = """
import time
from reproduction.runs.sweep import results_of
with results_of(time.sleep, [(0.0,), (600.0,), (600.0,)], "processes", 2, 1.0, 0.0) as found:
    next(iter(found))
    print("started", flush=True)
    time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "started\n"
        process.kill()
        # The file ends when the last process that can write to it has ended.
        process.communicate(timeout=60)


@pytest.mark.slow
def test_ray_gives_the_same_trials(tmp_path):
    pytest.importorskip("ray")
    seen = []
    lock = threading.RLock()  # cannot be pickled, as a progress bar cannot

    def on_trial(trial):
        with lock:
            seen.append(trial)

    remote = run_sweep(grid(), tmp_path / "ray", CRITERIA["recovery-error"], engine="ray", workers=2, on_trial=on_trial)
    local = run_sweep(grid(), tmp_path / "local", CRITERIA["recovery-error"], engine="in-process")
    assert len(seen) == 3
    for one, other in zip(remote, local, strict=True):
        assert {**one, "seconds": 0} == {**other, "seconds": 0}
    # A trial that raises fails the sweep, and says why; the good ones are kept.
    bad = [*grid(), RunSettings.of("lasso-small", "FedDualAvg", {"clients-per-round": 99})]
    with pytest.raises(FlwrFcoError, match="clients-per-round=99"):
        run_sweep(bad, tmp_path / "ray", CRITERIA["recovery-error"], engine="ray", workers=2)
    assert len(read_trials(tmp_path / "ray")) == 3

"""A run that is stopped, or killed, and resumed ends in the bits of one that was never stopped."""

import itertools
import json

import numpy as np
import pytest

from flwr_fco.errors import ConfigurationError
from reproduction.runs import journal
from reproduction.runs.run import run
from reproduction.runs.run_folder import read_run
from reproduction.runs.settings import RunSettings


def settings(strategy="FedDualAvg", problem="lasso-small", **values):
    return RunSettings.of(problem, strategy, {key.replace("_", "-"): value for key, value in values.items()}, seed=3)


def after(number):
    """A `stop` that says yes the n-th time it is asked."""
    asked = itertools.count(1)
    return lambda: next(asked) >= number


GRAPH = {"mixing": "ring", "dimension": 20, "num_nonzero": 2, "num_clients": 4, "num_rounds": 12}
PLATEAU = {**GRAPH, "plateau": "gap", "plateau_every": 1, "plateau_patience": 2}
CASES = [
    settings("FedDualAvg", num_rounds=12),
    settings("FedMid", num_rounds=12, objective_every=5, structure_every=2),
    settings("FastFedDA", num_rounds=12, anchor_weight=600.0),
    settings("DFedDAGT", "sparse-linear-graph", **PLATEAU),
    settings(
        "DFedDA", "sparse-linear-graph", **GRAPH, plateau="gap", plateau_node=3, plateau_every=1, plateau_patience=2
    ),
    settings("FedDualAvg", num_rounds=12, stretch=2),
    settings("MultistepReFedDAGT", num_rounds=12, client_lr=3e-3, stage_rounds=5),
]


@pytest.mark.parametrize("own", CASES, ids=lambda own: f"{own.strategy}-{own.stretch}")
def test_a_stopped_run_goes_on_to_the_same_bits(own, tmp_path):
    whole = run(own, folder=tmp_path / "whole")
    cut = run(own, folder=tmp_path / "parts", stop=after(4))
    assert cut.stopped == 4 * own.stretch
    assert whole.stopped == 0
    again = run(own, folder=tmp_path / "parts", resume=True, stop=after(1))
    assert again.stopped == 5 * own.stretch
    parts = run(own, folder=tmp_path / "parts", resume=True)
    assert parts.stopped == 0
    assert parts.history == whole.history
    for name, array in whole.arrays.items():
        np.testing.assert_array_equal(parts.arrays[name], array)
    one, other = (read_run(tmp_path / name) for name in ("whole", "parts"))
    assert one.metrics == other.metrics == whole.history
    assert (tmp_path / "parts" / "metrics.jsonl").read_text() == (tmp_path / "whole" / "metrics.jsonl").read_text()
    costs = ("round", "bytes-up", "num-replies", "num-left-out")
    assert [[line[key] for key in costs] for line in one.exchanges] == [
        [line[key] for key in costs] for line in other.exchanges
    ]
    np.testing.assert_array_equal(one.support.rounds, other.support.rounds)
    np.testing.assert_array_equal(one.support.share, other.support.share)
    assert not list((tmp_path / "parts").glob("state*"))
    # The run without a folder is the same one.
    assert run(own).history == whole.history


def test_a_run_that_needs_no_more_rounds_is_finished(tmp_path):
    own = settings("FedNewton", num_rounds=60, objective_every=7)
    result = run(own, folder=tmp_path / "run")
    record = read_run(tmp_path / "run")
    assert record.status.finished
    assert record.status.exchanges == len(record.exchanges) == record.support.rounds[-1] < 7
    # Its last round is scored as that of any run.
    assert record.metrics[-1] == result.history[-1]
    assert record.metrics[-1]["round"] == record.status.exchanges
    assert "objective" in record.metrics[-1]
    assert not list((tmp_path / "run").glob("state*"))
    again = run(own, folder=tmp_path / "run", resume=True)
    assert (again.stopped, again.history) == (0, result.history)


@pytest.mark.parametrize(("strategy", "sample"), [("FedDAGT", 0), ("FedDAGT", 8), ("Scaffold", 0), ("ReFedDAGT", 8)])
def test_clients_get_their_memories_back_from_the_ledger(strategy, sample, tmp_path):
    own = settings(strategy, num_rounds=12, client_lr=3e-3, clients_per_round=sample)
    whole = run(own, folder=tmp_path / "whole")
    assert run(own, folder=tmp_path / "parts", stop=after(6)).stopped == 6
    parts = run(own, folder=tmp_path / "parts", resume=True)
    # A ledger derives what a client remembers from what it sent, by the client's own operations.
    for name, array in whole.arrays.items():
        np.testing.assert_array_equal(parts.arrays[name], array)
    assert len(read_run(tmp_path / "parts").exchanges) == 12


def test_a_killed_run_goes_on_from_its_last_checkpoint(tmp_path, monkeypatch):
    own = settings(num_rounds=12)
    whole = run(own)
    monkeypatch.setattr(journal, "INTERVAL", 0.0)

    class Killed(BaseException):
        pass

    def kill(number):
        # The round is in the metrics and not in a checkpoint.
        if number == 7:
            raise Killed

    with pytest.raises(Killed):
        run(own, folder=tmp_path / "run", on_round=kill)
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"round": 8.0, "f1"')
    assert json.loads((tmp_path / "run" / "status.json").read_text())["exchanges"] == 6
    assert run(own, folder=tmp_path / "run", resume=True).history == whole.history
    assert read_run(tmp_path / "run").metrics == whole.history


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_anew(tmp_path):
    own = settings(num_rounds=6)
    with pytest.raises(ZeroDivisionError):
        run(own, folder=tmp_path / "run", on_round=lambda number: 1 / (number - 3))
    resumed = run(own, folder=tmp_path / "run", resume=True)
    assert resumed.history == run(own).history
    assert read_run(tmp_path / "run").metrics == resumed.history


def test_a_stopped_run_can_be_read(tmp_path):
    run(settings(num_rounds=12), folder=tmp_path / "run", stop=after(4))
    found = read_run(tmp_path / "run")
    assert [line["round"] for line in found.metrics] == [0, 1, 2, 3, 4]
    assert found.arrays["coefficients"].shape == (64,)
    assert (found.status.exchanges, found.status.finished) == (4, False)


def test_a_finished_run_is_not_repeated(tmp_path):
    own = settings(num_rounds=4)
    first = run(own, folder=tmp_path / "run")
    before = (tmp_path / "run" / "status.json").read_text()
    again = run(own, folder=tmp_path / "run", resume=True, on_round=lambda number: pytest.fail("a round was run"))
    assert again.history == first.history
    assert (tmp_path / "run" / "status.json").read_text() == before


def test_a_diverged_run_is_over(tmp_path):
    own = settings(client_lr=5.0)
    first = run(own, folder=tmp_path / "run")
    assert first.diverged
    assert read_run(tmp_path / "run").status.diverged == first.diverged
    assert run(own, folder=tmp_path / "run", resume=True).diverged == first.diverged


def test_other_settings_are_refused(tmp_path):
    run(settings(num_rounds=12), folder=tmp_path / "run", stop=after(4))
    with pytest.raises(ConfigurationError, match="other settings"):
        run(settings(num_rounds=13), folder=tmp_path / "run", resume=True)
    with pytest.raises(ConfigurationError, match="holds a run already"):
        run(settings(num_rounds=12), folder=tmp_path / "run")


def test_the_journal_says_where_the_time_went(tmp_path):
    run(settings(num_rounds=10), folder=tmp_path / "run")
    found = read_run(tmp_path / "run")
    parts = ("clients-seconds", "server-seconds", "evaluation-seconds")
    total = sum(line[key] for line in found.exchanges for key in parts)
    assert total == pytest.approx(found.status.seconds, rel=0.05)
    assert all(line[key] > 0 for line in found.exchanges for key in parts)


def test_the_support_is_that_of_the_model(tmp_path):
    result = run(settings(num_rounds=10), folder=tmp_path / "run")
    support = read_run(tmp_path / "run").support
    assert support.rounds.tolist() == list(range(1, 11))
    np.testing.assert_array_equal(support.share[-1], result.arrays["coefficients"] != 0)


def test_the_support_of_a_model_without_coefficients_is_that_of_all_arrays_with_a_psi(tmp_path):
    own = settings("FeDualEx", "bilinear-l1", num_rounds=4, num_clients=2, rows=30, columns=20)
    result = run(own, folder=tmp_path / "run")
    support = read_run(tmp_path / "run").support
    found = np.concatenate([result.arrays["x"].reshape(-1), result.arrays["y"].reshape(-1)])
    assert 0 < np.count_nonzero(found) < found.size
    np.testing.assert_array_equal(support.share[-1], found != 0)

"""A figure is run, judged, drawn and compared with what is stored."""

import json
import math

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import reproduction.figures  # noqa: F401
from flwr_fco.errors import NotInstalledError
from reproduction import reproduce as module
from reproduction.command import app
from reproduction.data import DataNotFoundError
from reproduction.figure import DESCRIBED, Best, Figure, Tune, find_figure
from reproduction.pictures import draw
from reproduction.reproduce import _of_bests, _of_rounds, reproduce
from reproduction.rules import Outcome
from reproduction.running import measured, run
from reproduction.settings import RunSettings
from reproduction.verdicts import read_results, stored_values, unlike


def invoke(*arguments):
    return CliRunner().invoke(app, [str(own) for own in arguments])


def test_finished_runs_are_not_repeated_and_a_broken_line_is_and_two_processes_find_the_same(tmp_path, monkeypatch):
    report = reproduce(find_figure("fco-theorems", quick=True), tmp_path)
    assert list(report.rows.verdict) == ["holds"]
    assert (tmp_path / "verdicts.md").read_text().count("| holds |") == 1
    assert Image.open(tmp_path / "figure.png").width > 500
    file = tmp_path / "runs.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    assert len(lines) == 2
    file.write_text(lines[0] + lines[1][:-20])
    done = []
    monkeypatch.setattr(module, "run_plain", lambda settings: done.append(settings.seed) or run(settings))
    again = reproduce(find_figure("fco-theorems", quick=True), tmp_path)
    assert len(done) == 1
    assert again.values == report.values
    monkeypatch.undo()
    apart = reproduce(find_figure("fco-theorems", quick=True), tmp_path / "apart", workers=2)
    assert apart.values == report.values


@pytest.mark.parametrize("name", ["fco-curse", "dualfl-nonsmooth"])
def test_panels_of_parts_and_levels_are_drawn(name, tmp_path):
    own = find_figure(name)
    metrics = ("density", "norm", "gap", "objective", "energy-error", "distance")
    rounds = [{"round": float(r), **dict.fromkeys(metrics, 1.0 / (r + 1))} for r in range(9)]
    outcomes = {one.label: [Outcome(rounds)] * len(own.seeds) for one in own.runs}
    outcomes[own.runs[-1].label][-1] = Outcome(rounds[:2], 1)
    draw(own, outcomes, {}, tmp_path / "figure.png")
    assert np.asarray(Image.open(tmp_path / "figure.png").convert("L")).std() > 10


def test_pictures_of_arrays_and_of_tuned_methods_are_drawn(tmp_path):
    own = Figure("lasso-small", ["gap"], kind="tuned", name="x", title="x")
    own.tune = Tune("gap", against="A")
    own.bests = [Best(f"{m} {v}", m, "steps", v, []) for m in "AB" for v in (1, 10)]
    outcomes = {point.label: [Outcome([{"round": 1.0, "gap": 0.1 * point.value}])] for point in own.bests}
    draw(own, outcomes, {}, tmp_path / "a.png")
    draw(Figure("digits", ["x"], kind="images"), {}, {"a": np.arange(9.0), "b": np.arange(12.0)}, tmp_path / "b.png")
    assert (tmp_path / "a.png").stat().st_size > 5_000 < (tmp_path / "b.png").stat().st_size


def test_every_seed_has_the_best_of_the_runs_that_did_not_diverge():
    def outcome(value, diverged=0):
        return Outcome([{"round": 1.0, "gap": value}], diverged)

    point = Best("a", "a", "part", 1, [("slow", (0.1, 1.0)), ("fast", (0.3, 1.0))])
    outcomes = {"slow": [outcome(0.2), outcome(0.1), outcome(0.0, 1)], "fast": [outcome(0.1), outcome(0.0, 1)] * 2}
    outcomes["fast"][2:] = [outcome(0.3, 1)]
    rates = [pair for _, pair in point.of(outcomes, Tune("gap"))]
    assert rates == [(0.3, 1.0), (0.1, 1.0), None]
    largest = point.of({key: own[:1] for key, own in outcomes.items()}, Tune("gap", largest=True))
    assert largest[0][1] == (0.1, 1.0)


def test_tables_have_the_values_beside_known_ones_and_the_best_rates():
    own = find_figure("gt-fig1")
    own.runs = own.runs[1:2]
    history = [{"round": float(r), "l1-error": 300.0 / r} for r in (100, 300, 1000, 3000)]
    row = _of_rounds(own, {"DFedDA": [Outcome(history)]}).splitlines()[-1]
    assert row == "| DFedDA | 3 | 1 | 0.3 | 0.1 | 57.5 / 18.7 / 9.73 / 1.21 |"
    assert "none" in _of_rounds(own, {"DFedDA": [Outcome(history, 50)]})
    own = find_figure("fco-drift")
    outcomes = {one.label: [Outcome([{"round": 1.0, "gap": one.settings["client_lr"]}])] for one in own.runs}
    assert "| DecoupledProx | 0.0001 (0.0001, 30) |" in _of_bests(own, outcomes)


def test_densities_and_gaps_are_measured():
    settings = RunSettings.of("lasso-small", "FedMid", {"num-rounds": 2})
    found = module._measured(settings, densities=True, gap=False, array="")["history"][-1]
    assert found["client-density"] <= found["mean-density"]
    record = measured(settings, gap=True, array="coefficients")
    assert record["history"][-1]["gap"] > 0.0
    assert len(record["model"]) == 64


def test_the_command_runs_lists_and_refuses(tmp_path):
    listed = invoke("list").output
    assert all(word in listed for word in ("FedDualAvg", "lasso-I", "fco-fig3", "centralized"))
    out = tmp_path / "new" / "runs.jsonl"
    arguments = ("run", "lasso-small", "--strategy", "FedMid", "--set", "num-rounds=3", "--out", out)
    assert "recovery-error" in invoke(*arguments).output
    assert json.loads(out.read_text())["history"][-1]["round"] == 3
    assert invoke("run", "lasso-small", "--set", "client-lr=1e6").exit_code == 1
    for wrong, reason in (
        (("run", "lasso-smal"), "Did you mean lasso-small"),
        (("run", "lasso-small", "--set", "client_rate=1"), "unknown setting"),
        (("run", "lasso-small", "--set", "num-rounds"), "expected key=value"),
        (("run", "lasso-small", "--set", "num-rounds=fast"), "a whole number"),
        (("reproduce", "fco-fig99"), "figure='fco-fig99'"),
    ):
        found = invoke(*wrong)
        assert found.exit_code == 2
        assert reason in " ".join(found.output.split())


def test_a_quick_claim_that_does_not_hold_is_a_failure(tmp_path, monkeypatch):
    good = invoke("reproduce", "fco-theorems", "--quick", "--quiet", "--out", tmp_path)
    assert good.exit_code == 0, good.output
    bad = invoke("reproduce", "fco-theorems", "--quick", "--quiet", "--set", "num-rounds=1", "--out", tmp_path)
    assert bad.exit_code == 0
    monkeypatch.setattr(module, "measure", lambda figure, outcomes: {name: [math.nan] * 2 for name in figure.checks})
    assert invoke("reproduce", "fco-theorems", "--quick", "--quiet", "--out", tmp_path).exit_code == 1


def test_data_that_are_not_there_are_named_or_skipped(tmp_path, monkeypatch):
    monkeypatch.delenv("FLWR_FCO_DATA", raising=False)
    found = invoke("reproduce", "fco-fig1*", "--quick", "--quiet", "--set", "path=nowhere", "--out", tmp_path)
    assert "fco-fig1 skipped" in " ".join(found.output.split())
    alone = invoke("reproduce", "fco-fig1", "--quick", "--out", tmp_path)
    assert alone.exit_code == 2
    assert "FLWR_FCO_DATA" in alone.output


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("name", DESCRIBED)
def test_quick_claims_hold(name, tmp_path):
    try:
        report = reproduce(find_figure(name, quick=True), tmp_path)
    except (DataNotFoundError, NotInstalledError) as error:
        pytest.skip(str(error))
    assert list(report.rows.verdict) == ["holds"]


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("name", ["fco-fig2", "fco-fig5", "gt-spread"])
def test_full_runs_have_the_stored_values(name, tmp_path):
    try:
        report = reproduce(find_figure(name), tmp_path)
    except DataNotFoundError as error:
        pytest.skip(str(error))
    assert unlike(report.values, stored_values(report.figure, read_results())) == []

"""Grids that grow until their best is inside, the constants that definitions take from them, and what a round costs."""

import importlib.util
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from reproduction.claims.definition import load_definition
from reproduction.claims.reproduction import judge
from reproduction.claims.rules import RULES, Outcome
from reproduction.problems.named import load_task
from reproduction.runs.run import run
from reproduction.runs.settings import RunSettings

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture(scope="module")
def tune_rates():
    spec = importlib.util.spec_from_file_location("tune_rates", DOCS / "tune_rates.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["tune_rates"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["tune_rates"]


def test_a_grid_grows_until_its_best_has_neighbours_on_all_sides(tune_rates):
    ladders = [tune_rates.Ladder((0.01, 0.03)), tune_rates.Ladder((1.0,))]
    scores = tune_rates.widen(ladders, lambda p: abs(math.log(p[0] / 0.2)) + abs(math.log(p[1] / 6.0)))
    assert min(scores, key=scores.get) == (0.2, 6.0)
    assert {(0.1, 6.0), (0.3, 6.0), (0.2, 3.0), (0.2, 10.0)} <= scores.keys()


def test_a_grid_ends_at_a_bound_and_at_the_cap(tune_rates):
    steps = tune_rates.Ladder((1, 3), (1, 3, 10, 30, 100))
    assert set(tune_rates.widen([steps], lambda p: -p[0])) == {(step,) for step in steps.rungs}
    far = tune_rates.Ladder((1e-6,))
    assert len(tune_rates.widen([far], lambda p: -p[0])) == 1 + tune_rates.MOST_NEW


def test_a_grid_stops_at_the_end_of_its_values_also_where_products_are_kept(tune_rates):
    ladders = [tune_rates.Ladder((0.01, 0.1), (0.01, 0.1, 1.0)), tune_rates.Ladder((1.0,), (0.1, 1.0, 10.0))]
    scores = tune_rates.widen(ladders, lambda p: p[0] - p[1], products=True)
    assert min(scores, key=lambda p: scores[p]) == (0.01, 10.0)
    assert (0.1, 1.0) in scores


def test_what_a_method_does_not_allow_is_never_its_best(tune_rates):
    scores = tune_rates.widen([tune_rates.Ladder((3.0, 10.0))], lambda p: math.inf if p[0] > 6 else -p[0])
    assert min(scores, key=scores.get) == (6.0,)
    assert scores[10.0,] == math.inf


@pytest.mark.parametrize(
    ("problem", "name"), [("logistic-mnist", "dualfl-fig1a"), ("logistic-cifar10", "dualfl-fig1d")]
)
def test_the_definitions_have_the_best_constants_of_the_page(problem, name):
    page = (DOCS / "reproduction" / "dualfl-rates.md").read_text(encoding="utf-8")
    table = page.split(f"## {problem}\n")[1].partition("\n## ")[0]
    best = [line.strip("| ").split(" | ")[:2] for line in table.splitlines() if "**" in line]
    assert len(best) == 11
    names = {"FedDR": "FedDR, over-relaxed", "APDAInexact": "APDA-Inexact", "FiveGCS": "5GCS"}
    runs = {line.label: line.settings for line in load_definition(name).runs}
    # Where the paper's rows have the paper's grid, the page's search is the finer one.
    fine, plain = (", a finer grid", ", the paper's grid") if name == "dualfl-fig1a" else ("", "")
    for method, words in best:
        for pair in words.split(", "):
            key, value = pair.rsplit(" ", 1)
            assert runs[names.get(method, method) + fine][key] == float(value), (method, key)
    # Over-relaxation aside, FedDR is FedPD.
    assert runs["FedDR" + plain] == {**runs["FedPD" + plain], "relaxation": 1.0}


@pytest.mark.parametrize(
    ("heading", "name"),
    [
        ("logistic-mnist, 60,000 images", "dualfl-mnist60000"),
        ("logistic-cifar10, 10,000 images", "dualfl-cifar10000"),
    ],
)
def test_the_large_experiments_have_constants_that_were_tuned_at_their_size(tune_rates, heading, name):
    page = (DOCS / "reproduction" / "dualfl-rates.md").read_text(encoding="utf-8")
    best = tune_rates.best_of_methods(page.split(f"## {heading}\n")[1].partition("\n## ")[0])
    definition, part = load_definition(name), tune_rates.DUALFL_PARTS[heading]
    assert set(best) == {"FedDR", "FedDualAvg", "Scaffnew"}
    for method, point in best.items():
        axes = tune_rates.DUALFL_METHODS[method]["axes"]
        lines = [line for line in definition.runs if line.strategy == method]
        assert point in [tuple(line.settings[axis] for axis in axes) for line in lines], method
        for line in lines:
            assert line.settings["num-rounds"] == part.num_rounds
            assert line.settings["num-examples"] in (part.images, 0)


def test_a_grid_of_more_images_begins_at_the_best_constants_of_fewer(tune_rates, tmp_path, monkeypatch):
    tried = []

    def run_sweep(settings, folder, criterion, engine):
        tried.append((settings[0].strategy_options.get("step"), settings[0].problem_options["num-examples"]))
        score = abs(math.log((tried[-1][0] or 1.0) / 25.0))
        return [{"score": score, "seconds": 0.0, "last": {"passes": 1.0}} for _ in settings]

    monkeypatch.setattr(tune_rates, "run_sweep", run_sweep)
    small = "| method | settings | energy error | passes |\n|---|---|---|---|\n| FedPD | step 3 | 1 | 9 |\n"
    large = "| FedPD | step 10 | **0.5** | 9 |\n| FedCM | client-lr 0.1, local-steps 10 | **2** | 9 |\n"
    best = tune_rates.best_of_methods(small + large)
    assert best == {"FedPD": (10.0,), "FedCM": (0.1, 10.0)}
    part = tune_rates.Part("logistic-mnist", 9000, 30, (0,), ("FedPD",), "logistic-mnist")
    table = tune_rates.dualfl_table(part, best, tmp_path)
    assert [step for step, _ in tried] == [10.0, 6.0, 20.0, 30.0, 60.0]
    assert {images for _, images in tried} == {9000}
    assert tune_rates.best_of_methods(table) == {"FedPD": (30.0,)}
    # Steps are whole numbers, which the settings insist on.
    assert "| FedCM | client-lr 0.1, local-steps 10 |" in tune_rates.dualfl_table(
        replace(part, labels=("FedCM",)), best, tmp_path
    )


@pytest.mark.parametrize("name", ["fco-grid", "fco-grid-fmri", "fco-grid-l1", "fco-grid-l2"])
def test_the_papers_grids_have_pairs_of_the_paper_and_the_others_go_beyond(tune_rates, name):
    problem, count = ("mnist-l2-ball", 25) if name[-1] in "12" else ("lasso-I", 49)
    papers = set(next(stage.pairs for stage in tune_rates.STAGES if problem in stage.problems))
    assert len(papers) == count
    pairs = {}
    for point in load_definition(name).tuned:
        pairs.setdefault(point.value, set()).update(pair for _, pair in point.runs)
    (other,) = pairs.keys() - {"paper's"}
    assert pairs["paper's"] <= papers
    assert pairs["paper's"] < pairs[other]
    assert pairs[other] - papers


def test_the_l2_term_as_psi_is_the_same_problem():
    one, other = (load_task("logistic-digits", 0, {"l2-as-psi": own}) for own in (False, True))
    w = np.random.default_rng(0).standard_normal(one.layout.size)
    for key, value in one.scores(w).items():
        assert other.scores(w)[key] == pytest.approx(value, rel=1e-12), key
    assert [own.l2 for own in (one.clients[0], other.clients[0])] == [0.01, 0.0]
    settings = {"l2-as-psi": True, "client-lr": 1.0, "local-steps": 1, "num-rounds": 30, "objective-every": 30}
    history = run(RunSettings.of("logistic-digits", "FedDualAvg", settings, 0)).history
    assert history[-1]["distance"] < 0.5 * history[0]["distance"]


def test_costs_are_cpu_seconds_that_grow():
    settings = {"client-lr": 0.1, "local-steps": 1, "num-rounds": 3}
    history = run(RunSettings.of("logistic-digits", "FedDualAvg", settings, 0)).history
    costs = [line["cpu-seconds"] for line in history[1:]]
    assert costs == sorted(costs)
    assert all("seconds" not in line for line in history)


def test_rounds_to_two_levels_are_compared():
    fast, slow = ([Outcome([{"round": r, "gap": factor / r} for r in (1.0, 2.0, 4.0, 8.0)])] for factor in (1.0, 2.0))
    own = {"run": "slow", "than": "fast", "metric": "gap", "below": 0.25}
    assert RULES["rounds-ratio"]({"slow": slow, "fast": fast}, **own).values == [2.0]
    found = RULES["rounds-ratio"]({"slow": slow, "fast": fast}, **own, than_below=0.5)
    assert found.values == [4.0]
    assert found.meaning.endswith("over those of fast to 0.5")


def test_a_run_that_is_too_short_for_a_claim_is_not_said_to_have_diverged():
    definition = load_definition("dualfl-fig1f")
    short = [Outcome([{"round": r, "energy-error": 0.1} for r in (0.0, 1.0, 2.0)])]
    for verdict in judge(definition, {line.label: short for line in definition.runs}):
        assert not verdict.holds
        assert verdict.measured.endswith(": none (diverged, or has too few rounds)"), verdict.measured


def test_a_run_that_diverges_in_its_first_round_is_a_result(tmp_path):
    settings = RunSettings.of("lasso-small", "FedDualAvg", {"client-lr": 1e100, "num-rounds": 3}, 0)
    for folder in (None, tmp_path / "run"):
        found = run(settings, folder=folder)
        assert found.diverged == 1
        assert not any(array.any() for array in found.arrays.values())

"""Methods at their best rates: chosen for each seed, among the grid that was asked for, never one that diverged."""

import math
from dataclasses import replace

import numpy as np
import pytest

from flwr_fco.errors import ConfigurationError
from reproduction.claims.definition import _parse, load_definition
from reproduction.claims.reproduction import judge, reproduce, tuned_table
from reproduction.claims.rules import Outcome
from reproduction.claims.tuning import Tune, Tuned, Variation

RUNS = (("a", (0.1, 1.0)), ("b", (0.3, 1.0)), ("c", (1.0, 1.0)))
SMALL = {
    "title": "t",
    "source": "s",
    "problem": "lasso-small",
    "seeds": [0, 1],
    "kind": "tuned",
    "panels": ["gap", "f1"],
    "gap": True,
    "settings": {"num-rounds": 3, "clients-per-round": 4, "local-steps": 2, "objective-every": 1},
    "tune": {"metric": "gap", "grids": {"coarse": [0.003], "fine": []}},
    "vary": [{"part": "local steps", "key": "local-steps", "values": [1, 4]}, {"part": "plain"}],
    "runs": [
        {"label": m, "strategy": m, "grid": {"client-lr": [0.001, 0.003], "server-lr": [1.0]}}
        for m in ("FedDualAvg", "FedMid")
    ],
    "claims": [
        {
            "name": "finer grids are no worse",
            "sentence": "s",
            "number": "n",
            "ours": True,
            "rule": "final-not-worse",
            "arguments": {"run": "FedMid, plain, fine", "than": ["FedMid, plain, coarse"], "metric": "gap"},
        }
    ],
    "quick": {"seeds": [0], "claims": ["finer grids are no worse"]},
}


def run(value, diverged=0):
    return Outcome([{"round": 1.0, "gap": value, "f1": -value}], diverged)


@pytest.mark.parametrize("tune", [Tune("gap"), Tune("f1", largest=True)])
def test_every_seed_has_the_best_of_the_runs_that_did_not_diverge(tune):
    outcomes = {
        "a": [run(3.0), run(1.0), run(9.0, 1)],
        "b": [run(2.0), run(2.0), run(9.0, 1)],
        "c": [run(0.1, 1), run(5.0), run(9.0, 1)],
    }
    best = Tuned(tune, "x", "x", Variation("v"), "", RUNS).best(outcomes)
    assert best.rates == [RUNS[1][1], RUNS[0][1], None]
    assert [own.final("gap") for own in best.outcomes[:2]] == [2.0, 1.0]
    assert best.values == pytest.approx([own.final(tune.metric) for own in best.outcomes], nan_ok=True)
    assert math.isnan(best.values[2])


def test_a_method_is_tuned_for_each_value_and_grid():
    definition = _parse("small", SMALL)
    labels = [point.label for point in definition.tuned if point.method == "FedMid"]
    assert labels == [
        "FedMid, local steps 1, coarse",
        "FedMid, local steps 1, fine",
        "FedMid, local steps 4, coarse",
        "FedMid, local steps 4, fine",
        "FedMid, plain, coarse",
        "FedMid, plain, fine",
    ]
    assert [len(point.runs) for point in definition.tuned[:2]] == [1, 2]
    steps = {line.label: line.settings["local-steps"] for line in definition.runs}
    assert steps["FedMid, local steps 4 (0.001, 1)"] == 4
    assert steps["FedMid, plain (0.001, 1)"] == 2


def test_a_claim_about_a_point_that_there_is_not_is_refused():
    claims = [{**SMALL["claims"][0], "arguments": {"run": "FedMid, plain", "than": [], "metric": "gap"}}]
    assert _parse("small", {**SMALL, "claims": claims})
    claims[0]["arguments"]["run"] = "FedMid, plain, finest"
    with pytest.raises(ConfigurationError, match="FedMid, plain, finest"):
        _parse("small", {**SMALL, "claims": claims})


def test_the_experiment_runs_and_equal_settings_run_once(tmp_path):
    definition = _parse("small", {**SMALL, "settings": {**SMALL["settings"], "local-steps": 4}})
    report = reproduce(definition, tmp_path)
    # "plain" and "local steps 4" are the same runs: two rates, two seeds, two methods, two values.
    assert len(list((tmp_path / "runs").glob("*.json"))) == 2 * 2 * 2 * 2
    assert report.outcomes["FedMid, plain (0.001, 1)"] == report.outcomes["FedMid, local steps 4 (0.001, 1)"]
    assert report.verdicts[0].holds
    text = (tmp_path / "verdicts.md").read_text()
    assert "ours: holds" in text
    table = tuned_table(definition, report.outcomes)
    assert table in text
    best = min(report.outcomes[f"FedMid, plain ({rate}, 1)"][0].final("gap") for rate in ("0.001", "0.003"))
    assert any(line.startswith("| FedMid |") and f"{best:.3g}" in line for line in table.splitlines())
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_a_finer_grid_that_is_worse_does_not_hold():
    definition = _parse("small", SMALL)
    outcomes = {line.label: [run(1.0), run(1.0)] for line in definition.runs}
    assert judge(definition, outcomes)[0].holds
    # A grid that lost its coarse part.
    broken = tuple(
        point._replace(runs=point.runs[:1]) if point.label.endswith("fine") else point for point in definition.tuned
    )
    outcomes = {**outcomes, "FedMid, plain (0.001, 1)": [run(2.0), run(2.0)]}
    assert not judge(replace(definition, tuned=broken), outcomes)[0].holds


@pytest.mark.parametrize("name", ["fco-when", "fco-grid"])
def test_every_method_is_tuned_on_the_same_rates(name):
    definition = load_definition(name)
    rates = {}
    for point in definition.tuned:
        rates.setdefault((point.variation.part, point.value), set()).add(tuple(pair for _, pair in point.runs))
    assert rates
    assert all(len(own) == 1 for own in rates.values())


def test_panels_of_numbers_and_of_words(tmp_path):
    from reproduction.pictures.report import draw, figure_of_bests

    rng = np.random.default_rng(0)
    numbers = {m: [(v, rng.uniform(0.1, 9.0, 3).tolist()) for v in (1, 10, 100)] for m in ("FedMid", "FedDualAvg")}
    words = {m: [(v, rng.uniform(0.1, 9.0, 3).tolist()) for v in ("paper's", "finer")] for m in numbers}
    words["FedMid"][0] = ("paper's", [])
    points = {("steps", "gap"): numbers, ("LASSO", "gap"): words}
    draw(figure_of_bests(points, "title", methods={m: m for m in numbers}, logarithmic=("gap",)), tmp_path / "a.png")
    drawn = (tmp_path / "a.svg").read_text()
    assert all(text in drawn for text in ("steps", "LASSO", "finer", "FedMid", "FedDualAvg", "100"))


@pytest.mark.parametrize("limits", [{"gap": (1e-6, 1.0)}, {}])
def test_rounding_below_the_axis_does_not_make_it_linear(monkeypatch, limits):
    from matplotlib.axes import Axes

    from reproduction.pictures.report import figure_of_bests

    scales = []
    monkeypatch.setattr(Axes, "set_yscale", lambda self, scale: scales.append(scale))
    points = {("steps", "gap"): {"FedMid": [(1, [0.5, 0.4]), (10, [1e-5, -1e-15])]}}
    figure_of_bests(points, "", methods={"FedMid": "FedMid"}, logarithmic=("gap",), limits=limits)
    assert scales == ["log"] * bool(limits)


def test_many_panels_of_one_metric_are_in_two_rows(tmp_path):
    from matplotlib.image import imread

    from reproduction.pictures.report import draw, figure_of_bests

    own = {m: [(v, [1.0, 2.0]) for v in ("paper's", "finer")] for m in ("FedMid", "FedDualAvg")}
    sizes = {}
    for count in (4, 7):
        points = {(f"data {i}", "gap"): own for i in range(count)}
        draw(figure_of_bests(points, "title", methods={m: m for m in own}), tmp_path / "a.png")
        drawn = (tmp_path / "a.svg").read_text()
        assert all(f"data {i}" in drawn for i in range(count))
        sizes[count] = imread(tmp_path / "a.png").shape[:2]
    assert sizes[7][0] > 1.5 * sizes[4][0]
    assert sizes[7][1] == sizes[4][1]


def test_the_metrics_of_one_panel_are_beside_each_other(tmp_path):
    from matplotlib.image import imread

    from reproduction.pictures.report import draw, figure_of_bests

    own = {m: [(v, [1.0, 2.0]) for v in ("paper's", "finer")] for m in ("FedMid", "FedDualAvg")}
    points = {("data", metric): own for metric in ("gap", "f1", "norm")}
    draw(figure_of_bests(points, "title", methods={m: m for m in own}), tmp_path / "a.png")
    height, width = imread(tmp_path / "a.png").shape[:2]
    assert width > 2 * height
    drawn = (tmp_path / "a.svg").read_text()
    assert all(metric in drawn for metric in ("gap", "f1", "norm"))


def test_a_figure_can_show_what_a_method_has_more_than_another_seed_by_seed(monkeypatch):
    from reproduction.claims import figures

    definition = load_definition("fco-grid-l1")
    drawn = {}
    monkeypatch.setattr(figures, "figure_of_bests", lambda points, *args, **kwargs: drawn.update(points))

    def outcome(label, seed):
        worse = 0.001 * ("FedMid" in label)
        return Outcome([{"round": 10.0, "objective": seed + worse, "accuracy": 0.9, "norm": 1000.0}])

    runs = {line.label: [outcome(line.label, seed) for seed in (1.0, 5.0)] for line in definition.runs}
    figures.figure_of(definition, runs, {})
    panel = drawn["l1 ball", "objective, less FedDualAvg's"]
    assert panel["FedDualAvg"] == [("paper's", [0.0, 0.0]), ("wider", [0.0, 0.0])]
    assert panel["FedMid"][0][1] == pytest.approx([0.001, 0.001])

"""Pictures say in which round a run diverged, and what each of their lines is."""

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from flwr.app import Array, ArrayRecord

from flwr_fco.results import Result
from flwr_fco.simulation.fit_path import PathPoint, PathResult
from reproduction.pictures.comparison import compare
from reproduction.pictures.curves import figure_of_curves
from reproduction.pictures.html_report import html_page
from reproduction.pictures.paths import plot_path
from reproduction.runs.run_folder import RunRecord

ROUNDS = np.arange(20.0)


def test_the_cross_of_a_diverged_run_is_at_that_round_in_all_panels():
    """Metrics leave the others' range in different rounds, and one is not evaluated in the last of them."""
    bad = {
        "error": [(ROUNDS, 2.0**ROUNDS)],
        "density": [(ROUNDS, np.ones(20))],
        "objective": [(ROUNDS[:-1], 3.0 ** ROUNDS[:-1])],
    }
    good = {metric: [(ROUNDS, 1 / (1 + ROUNDS))] for metric in bad}
    figure = figure_of_curves({"good": good, "bad": bad}, list(bad), "", cut={"bad": 19})
    for place in figure.axes:
        (cross,) = [line for line in place.get_lines() if line.get_marker() == "X"]
        assert cross.get_xdata() == [19]


def test_a_legend_names_all_lines_of_a_path(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    kept = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *given, **options: kept.append(figure))
    result = Result(arrays=ArrayRecord({"coefficients": Array(np.ones(3))}))
    points = [PathPoint(strength, result, 3, strength, 0.1) for strength in (1.0, 0.5, 0.25)]
    plot_path(PathResult(points, ("coefficients",)), tmp_path / "path.png")
    (legend,) = kept[0].legends
    shown = {text.get_text() for text in legend.get_texts()}
    assert shown == {
        "coefficients, a line each",
        "loss on held-out data, with its standard error",
        "smallest loss",
        "one standard error",
    }


def page(seeds, metrics):
    lines = [
        {"round": float(number), **{f"metric-{i}": 1.0 / (1 + number) for i in range(metrics)}} for number in (0, 1)
    ]
    config = {"problem": "lasso-small", "strategy": "FedDualAvg"}
    return html_page(compare([(str(seed), RunRecord({**config, "seed": seed}, lines, {})) for seed in range(seeds)]))


def test_a_page_speaks_of_bands_where_there_are_some():
    assert "Bands" not in page(seeds=1, metrics=1)
    assert "Bands" in page(seeds=2, metrics=1)


def test_a_table_has_no_more_columns_than_a_window_shows(monkeypatch):
    # The curves take a tenth of a second each, and the tables are made without them.
    monkeypatch.setattr("reproduction.pictures.html_report.svg_of", lambda *given, **options: "<svg/>")
    text = page(seeds=1, metrics=17)
    tables = [row.partition("</tr>")[0].count("metric-") for row in text.split("<tr>") if "<th>run</th>" in row]
    assert tables == [8, 8, 1]

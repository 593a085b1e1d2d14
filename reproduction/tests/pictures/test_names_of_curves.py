"""Every curve has a name, and curves of one method can be told apart."""

from itertools import pairwise

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from reproduction.claims.definition import load_definition
from reproduction.claims.figures import figure_of
from reproduction.claims.rules import Outcome
from reproduction.pictures.appearance import appearances
from reproduction.pictures.curves import figure_of_curves

ROUNDS = np.arange(1.0, 20.0)


def test_panels_with_curves_of_their_own_name_all_of_them():
    curves = {f"{part}{i}": {part: [(ROUNDS, i / ROUNDS)]} for part in ("one", "two") for i in range(1, 5)}
    figure = figure_of_curves(curves, ["one", "two"], "", methods=dict.fromkeys(curves, "FeDualEx"), coloured=[])
    for place, part in zip(figure.axes, ("one", "two"), strict=True):
        assert [text.get_text() for text in place.get_legend().get_texts()] == [f"{part}{i}" for i in range(1, 5)]
        assert len({line.get_color() for line in place.get_lines()}) == 4
    assert not figure.legends


def test_curves_of_one_method_have_a_colour_each():
    looks = appearances({f"N = {n}": "DualFL" for n in (8, 16, 32, 64, 128)} | {"bound": "bound"})
    assert len({look.color for label, look in looks.items() if label != "bound"}) == 5
    assert len(set(looks.values())) == 6


def test_grey_curves_differ_in_their_line_and_have_a_name_each():
    curves = {f"a rather long name {i}": {"gap": [(ROUNDS, i / ROUNDS)]} for i in range(1, 5)}
    figure = figure_of_curves(curves, ["gap"], "", coloured=["a rather long name 1"])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(curves)
    assert len({(line.get_color(), line.get_linestyle()) for line in figure.axes[0].lines}) == 4


def test_a_target_is_a_line_with_its_number_and_an_axis_says_what_it_counts():
    curves = {"a": {"gap": [(ROUNDS, 1 / ROUNDS)]}}
    figure = figure_of_curves(curves, ["gap"], "", targets={"gap": 0.25}, across={"gap": "step"})
    (place,) = figure.axes
    assert place.get_xlabel() == "step"
    assert [text.get_text() for text in place.get_legend().get_texts()] == ["target 0.25"]
    assert place.lines[-1].get_ydata()[0] == 0.25


def test_ticks_of_costs_are_plain_numbers_that_are_apart():
    key = "gap against cpu-seconds"
    figure = figure_of_curves({"a": {key: [(np.geomspace(0.15, 3.0, 20), 1 / ROUNDS.repeat(2)[:20])]}}, [key], "")
    figure.draw_without_rendering()
    boxes = [label.get_window_extent() for label in figure.axes[0].get_xticklabels(which="both") if label.get_text()]
    boxes = [box for box in boxes if figure.axes[0].bbox.x0 <= box.x0 <= figure.axes[0].bbox.x1]
    assert len(boxes) >= 3
    assert all(one.x1 <= other.x0 for one, other in pairwise(boxes))


def test_a_part_without_a_metric_has_no_panel_and_a_baseline_of_a_part_is_a_level():
    definition = load_definition("fco-curse")
    metrics = {"l1": ["density"], "ball": ["norm"], "K = 1": ["density"]}
    outcomes = {
        line.label: [Outcome([{"round": float(r), **dict.fromkeys(metrics[line.part], 0.5)} for r in range(last)])]
        for line in definition.runs
        for last in [300 if line.strategy in ("local", "centralized") else 11]
    }
    figure = figure_of(definition, outcomes, {})
    assert [place.get_title() for place in figure.axes] == ["density, l1", "norm, ball", "density, K = 1"]
    assert all(place.get_xlim()[1] < 20 for place in figure.axes)

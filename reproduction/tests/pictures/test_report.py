"""Figures: what is drawn is read back from matplotlib's own objects."""

from itertools import pairwise

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from matplotlib.colors import to_hex
from PIL import Image

from flwr_fco.errors import ConfigurationError
from reproduction.pictures import report
from reproduction.pictures.appearance import appearance
from reproduction.pictures.curves import figure_of_curves
from reproduction.pictures.report import draw, heat_map, require_matplotlib

ROUNDS = np.arange(20.0)


def curve(values):
    return {"objective": [(ROUNDS, np.asarray(values))]}


def lines(curves, **options):
    figure = figure_of_curves(curves, ["objective"], "", **options)
    return figure, figure.axes[0].get_lines()


def test_a_method_has_its_colour_and_line_whatever_else_is_in_the_figure():
    sinking = 1.0 / (1 + ROUNDS)
    for names in (["FedDualAvg", "FedMid"], ["FedMidOSP", "FedMid", "FedDualAvg"]):
        _, drawn = lines({name: curve(sinking) for name in names})
        colors = [to_hex(line.get_color()) for line in drawn]
        # Only where another curve has it already, a method has another one.
        own = [appearance(name).color for name in names]
        assert [one == color for one, color in zip(own, colors, strict=True)] == [
            color not in own[:i] for i, color in enumerate(own)
        ]
        assert len(set(colors)) == len(colors)
        for name, line in zip(names, drawn, strict=True):
            assert line.get_linestyle() == {"solid": "-", "dashed": "--"}[appearance(name).line]


def test_the_second_curve_of_a_method_has_a_marker():
    both = {"small": curve(ROUNDS), "large": curve(2 * ROUNDS)}
    _, (one, other) = lines(both, methods=dict.fromkeys(both, "FedMid"))
    assert one.get_marker() == "None"
    assert other.get_marker() not in ("None", None, "")
    assert one.get_linestyle() == other.get_linestyle() == "-"


def test_a_diverged_curve_is_cut_where_it_leaves_the_others():
    figure, drawn = lines({"good": curve(1 / (1 + ROUNDS)), "bad": curve(2.0**ROUNDS)}, cut={"bad": 19})
    (bad,) = [line for line in drawn if line.get_ydata()[-1] == 2.0 and line.get_marker() == "None"]
    assert bad.get_ydata().tolist() == [1.0, 2.0]
    assert figure.axes[0].get_ylim()[1] < 4
    _, drawn = lines({"bad": curve(2.0**ROUNDS)}, cut={"bad": 19})
    assert max(line.get_ydata().max() for line in drawn) == 2.0
    figure, _ = lines({"good": curve(1 / (1 + ROUNDS)), "bad": curve(2.0**ROUNDS)})
    assert figure.axes[0].get_ylim()[1] > 1e5


def test_many_labels_stand_beside_their_curves_and_do_not_overlap():
    many = {f"run {i}": curve(np.full(20, 1 + 1e-3 * i)) for i in range(8)}
    figure, _ = lines(many)
    assert not figure.legends
    texts = {text.get_text(): text.xy[1] for text in figure.axes[0].texts}
    assert texts.keys() == many.keys()
    heights = [texts[f"run {i}"] for i in range(8)]
    assert all(b - a > 0.05 for a, b in pairwise(heights))
    assert all(0 <= height <= 1.0 for height in heights)
    figure, _ = lines({name: many[name] for name in list(many)[:3]})
    assert len(figure.legends) == 1


def test_a_picture_has_twice_the_density_and_an_svg_beside_it(tmp_path):
    draw(figure_of_curves({"FedMid": curve(ROUNDS)}, ["objective"], ""), tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as image:
        assert image.size == (800, 780)
    first = (tmp_path / "a.svg").read_bytes()
    draw(figure_of_curves({"FedMid": curve(ROUNDS)}, ["objective"], ""), tmp_path / "a.png")
    assert (tmp_path / "a.svg").read_bytes() == first
    draw(heat_map({(0.1, 1.0): 2.0, (0.2, 1.0): 3.0}, "a", "b", ""), tmp_path / "only.svg")
    assert (tmp_path / "only.svg").is_file()
    assert not (tmp_path / "only.png").exists()


def test_missing_matplotlib_is_said_with_a_command_that_works(monkeypatch):
    monkeypatch.setattr(report, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match="pip install matplotlib"):
        require_matplotlib("a picture needs matplotlib")


@pytest.mark.parametrize("panels", [1, 3])
def test_a_long_title_is_broken_and_not_cut_off(panels):
    title = "fMRI: four algorithms (set: " + ", ".join(f"clients-per-round-{i}=20" for i in range(9)) + ")"
    names = [f"f{number}" for number in range(panels)]
    sinking = {name: [(ROUNDS, 1.0 / (1 + ROUNDS))] for name in names}
    figure = figure_of_curves({"FedDualAvg": sinking}, names, title)
    figure.draw_without_rendering()
    drawn = figure._suptitle
    assert drawn.get_text().replace("\n", " ") == title
    reach, place = drawn.get_window_extent(), figure.bbox
    assert place.x0 <= reach.x0 < reach.x1 <= place.x1
    assert reach.y1 <= place.y1
    # The panels make room for it.
    assert all(axes.get_position().y1 * place.height <= reach.y0 for axes in figure.axes)

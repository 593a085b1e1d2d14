"""The forest plot draws the numbers of the table, and odd tables too."""

import math

import numpy as np
import pytest

from flwr_fco.errors import ConfigurationError
from flwr_fco.inference import forest as module
from flwr_fco.inference.forest import forest
from flwr_fco.sklearn import FederatedLasso, FederatedLogisticRegression

colors = pytest.importorskip("matplotlib.colors", reason="pip install matplotlib")
to_hex = colors.to_hex

BLUE, GREY, BLACK = "#0072B2", "#8c8c8c", "#000000"


def table(features, sites, seed=0, ratio=None):
    """Rows like those of a summary."""
    rng = np.random.default_rng(seed)
    rows = []
    for j in range(features):
        estimate, error = rng.normal(), 0.1 + 0.1 * rng.random()
        row = {"feature": f"x{j}", "coefficient": 0.0, "estimate": estimate, "standard error": error}
        row |= {"lower": estimate - 2 * error, "upper": estimate + 2 * error, "p": rng.random(), "q": rng.random()}
        row |= {} if ratio is None else {ratio: math.exp(estimate)}
        row |= {"DerSimonian-Laird": estimate, "Hartung-Knapp lower": math.nan, "Hartung-Knapp upper": math.nan}
        if len(sites) > 2:
            row |= {"Hartung-Knapp lower": estimate - 3 * error, "Hartung-Knapp upper": estimate + 3 * error}
        for site in sites:
            row |= {site: estimate + rng.normal(0, 0.05), f"{site} error": 2 * error}
        rows.append(row)
    return rows


def intervals(figure, colour):
    """Return the ends of the lines of a colour, from top to bottom, and their heights."""
    (own,) = [lines for lines in figure.axes[0].collections if to_hex(lines.get_colors()[0]) == colour.lower()]
    ends = np.array([[start[0], end[0]] for start, end in own.get_segments()]).reshape(-1, 2)
    heights = np.array([start[1] for start, _ in own.get_segments()])
    assert (np.diff(heights) < 0.0).all()
    return ends, heights


@pytest.mark.parametrize("features", [1, 12])
@pytest.mark.parametrize("count", [3, 17])
def test_each_interval_is_the_table_s(features, count):
    sites = [f"site {m}" for m in range(count)]
    rows = table(features, sites)
    figure = forest(rows, sites, 0.9)
    (together, at), (between, then), (own, first) = (intervals(figure, colour) for colour in (BLUE, BLACK, GREY))
    np.testing.assert_allclose(together, [[row["lower"], row["upper"]] for row in rows])
    np.testing.assert_allclose(between, [[row["Hartung-Knapp lower"], row["Hartung-Knapp upper"]] for row in rows])
    half = [1.6448536269514722 * row[f"{site} error"] for row in rows for site in sites]
    middle = np.array([row[site] for row in rows for site in sites])
    low, high = figure.axes[0].get_xlim()
    np.testing.assert_allclose(own, np.clip(np.transpose([middle - half, middle + half]), low, high))
    assert low < min(row["lower"] for row in rows) < max(row["upper"] for row in rows) < high
    # In a block the sites, all together, and between them; then the next feature.
    assert (first.reshape(features, count)[:, -1] > at).all()
    assert (at > then).all()
    assert (then[:-1] > first.reshape(features, count)[1:, 0]).all()
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == [row["feature"] for row in rows]


def test_names_of_lines_are_shown_where_there_is_room():
    sites = ["site a", "site b", "site c"]
    names = [text.get_text() for text in forest(table(2, sites), sites, 0.95).axes[0].get_yticklabels(minor=True)]
    assert names == [*sites, "all sites together", "between sites"] * 2
    assert forest(table(30, sites), sites, 0.95).axes[0].get_yticklabels(minor=True) == []


def test_what_is_beyond_the_axis_ends_in_an_arrow_and_leaves_room_for_the_others(tmp_path):
    sites = ["site 0", "site 1", "site 2"]
    rows = table(3, sites)
    rows[1] |= {"site 1 error": 1e6, "site 2": -1e9, "Hartung-Knapp upper": math.inf}
    figure = forest(rows, sites, 0.95)
    low, high = figure.axes[0].get_xlim()
    widest = max(row["upper"] for row in rows) - min(min(row["lower"] for row in rows), 0.0)
    assert high - low < 5 * widest
    lines = figure.axes[0].get_lines()
    left, right = (
        sorted(height for line in lines if line.get_marker() == sign for height in line.get_ydata()) for sign in "<>"
    )
    heights = intervals(figure, GREY)[1]
    assert heights[4] in left
    assert heights[4] in right
    assert heights[5] in left
    assert heights[5] not in right
    assert intervals(figure, BLACK)[1][1] in right
    figure.savefig(tmp_path / "forest.png", bbox_inches="tight")


@pytest.mark.parametrize("count", [0, 1, 2, 300])
def test_any_number_of_sites_and_features_is_a_picture(count, tmp_path):
    sites = [f"site {m}" for m in range(count)]
    rows = table(60, sites)
    figure = forest(rows, sites, 0.95)
    assert figure.get_size_inches()[1] * 150 < 2**16
    assert len(intervals(figure, BLUE)[0]) == 40
    shown = {label.get_text() for label in figure.axes[0].get_yticklabels()}
    assert shown == {row["feature"] for row in sorted(rows, key=lambda row: row["p"])[:40]}
    if count < 300:
        figure.savefig(tmp_path / "forest.png", dpi=20, bbox_inches="tight")
    title = figure.axes[0].get_title(loc="left")
    assert "Drawn are the 40 with the smallest p" in title
    assert ("Fewer than three sites" in title) == (count < 3)
    drawn = {to_hex(own.get_colors()[0]) for own in figure.axes[0].collections if len(own.get_segments())}
    assert (BLACK in drawn) == (count > 2)


def test_the_title_counts_what_was_found():
    sites = ["site 0", "site 1", "site 2"]
    rows = table(4, sites)
    for row, q, lower in zip(rows, (0.05, 0.01, 0.2, 0.9), (-0.1, 0.1, 0.2, -2.0), strict=True):
        row |= {"q": q, "Hartung-Knapp lower": lower, "Hartung-Knapp upper": lower + 1.0}
    rows[3] |= {"Hartung-Knapp lower": -2.0, "Hartung-Knapp upper": -1.0}
    assert forest(rows, sites, 0.95).axes[0].get_title(loc="left") == (
        "2 of 4 features with a false discovery rate of at most 0.05: x0, x1\n"
        "3 of 4 whose interval between sites lies on one side of no effect"
    )
    for row in rows:
        row["q"] = 0.6
    assert (
        forest(rows, sites, 0.95)
        .axes[0]
        .get_title(loc="left")
        .startswith("0 of 4 features with a false discovery rate")
    )


@pytest.mark.parametrize("spread", [0.01, 1.0, 8.0])
def test_ratios_stand_at_their_logarithms(spread, tmp_path):
    sites = ["site 0", "site 1", "site 2"]
    rows = table(3, sites, ratio="hazard ratio")
    for row in rows:
        for name in (*sites, "estimate", "lower", "upper", *(f"{site} error" for site in sites)):
            row[name] *= spread
    figure = forest(rows, sites, 0.95)
    axis = figure.axes[0]
    assert "hazard ratio" in axis.get_xlabel()
    ticks = [
        (float(text.get_text()), tick) for text, tick in zip(axis.get_xticklabels(), axis.get_xticks(), strict=True)
    ]
    assert len(ticks) > 1
    for label, tick in ticks:
        assert label == pytest.approx(math.exp(tick), rel=6e-3)
    figure.savefig(tmp_path / "forest.svg", bbox_inches="tight")


def test_names_of_any_kind_are_letters_and_not_formulas(tmp_path):
    sites = ["site $x_", "site \\alpha", "site c"]
    rows = table(3, sites)
    for row, name in zip(rows, ("$\\frac$", "a" * 300, "Größe_^{"), strict=True):
        row |= {"feature": name, "q": 0.01}
    figure = forest(rows, sites, 0.95)
    figure.savefig(tmp_path / "forest.png", bbox_inches="tight")
    assert max(len(label.get_text()) for label in figure.axes[0].get_yticklabels()) <= 28


def test_rows_without_an_estimate_are_left_out():
    rows = table(3, [])
    rows[1] |= {"estimate": math.nan, "lower": math.nan, "upper": math.nan}
    assert [t.get_text() for t in forest(rows, [], 0.95).axes[0].get_yticklabels()] == ["x0", "x2"]
    with pytest.raises(ConfigurationError, match="no row of this table has an estimate"):
        forest([rows[1]], [], 0.95)


def test_a_fit_draws_its_table(tmp_path):
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=(120, 3)) for _ in range(3)]
    classes = [(rng.random(120) < 1.0 / (1.0 + np.exp(-X @ [0.8, 0.0, -0.4]))).astype(int) for X in parts]
    model = FederatedLogisticRegression(C=0.1, l1_ratio=1.0).fit(parts, classes, intervals=True)
    model.summary().plot(tmp_path / "forest.png")
    assert (tmp_path / "forest.png").stat().st_size > 10_000
    model.fit(parts, classes)
    with pytest.raises(ConfigurationError, match=r"no intervals to draw; expected one with fit\(..., intervals=True\)"):
        model.summary().plot(tmp_path / "none.png")
    squares = FederatedLasso(alpha=0.1).fit(parts, [X[:, 0] + rng.normal(size=120) for X in parts], intervals=True)
    squares.summary().plot(tmp_path / "squares.pdf")


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch):
    def none(name):
        raise ImportError(name)

    monkeypatch.setattr(module, "import_module", none)
    with pytest.raises(ConfigurationError, match="pip install matplotlib"):
        forest(table(1, []), [], 0.95)

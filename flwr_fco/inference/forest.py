"""A forest plot: the estimates of a table with their intervals, and each site's own beside them, on one axis."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib import import_module
from textwrap import wrap
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from flwr_fco.errors import ConfigurationError

#: Features drawn, letters of a name, and lines up to which each line has a name.
_FEATURES, _LETTERS, _NAMED = 40, 28, 64
#: Inches of a line with a name. Without names: distances of sites, at most, and of all sites, and of other lines.
_INCHES, _CLOSE, _SITES, _OTHERS = 0.19, 0.22, 3.0, 0.5
#: Inches of the axis, and of what is below it.
_WIDTH, _BELOW = 5.6, 0.55
#: Letters of a line of the title.
_TITLE = 88
#: How many times the range of the intervals of all sites together others may widen the axis on either side.
_WIDER = 1.5
#: False discovery rate of the title.
_RATE = 0.05
#: Ratios at which an axis of them has ticks.
_RATIOS = np.array([0.001, 0.01, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 100.0, 1000.0])
#: Colour, width and marker of each kind of line.
_LOOKS = {"site": ("#8c8c8c", 0.9, "o"), "all": ("#0072B2", 2.0, "s"), "between": ("#000000", 1.2, "D")}


class _Line(NamedTuple):
    """An interval of the picture at a height, its kind, and its name on the left, if it has one."""

    height: float
    kind: str
    name: str
    point: float
    lower: float
    upper: float


def forest(rows: Sequence[Mapping[str, Any]], sites: Sequence[str], level: float) -> Any:
    """Return a figure of the intervals of all sites together, of each site, and of Hartung and Knapp between sites.

    The 40 features of the smallest p at most. An interval that is much longer than the others ends in an arrow.

    Parameters
    ----------
    rows : sequence of mapping
        The rows of the table; those without an estimate are left out.
    sites : sequence of str
        The sites with estimates of their own.
    level : float
        Level of the intervals.

    Raises
    ------
    ConfigurationError
        If matplotlib is not installed, or no row has an estimate.
    """
    try:
        figures: Any = import_module("matplotlib.figure")
    except ImportError as error:
        raise ConfigurationError("the picture needs matplotlib: pip install matplotlib (the extra [plot])") from error
    known = [row for row in rows if math.isfinite(row.get("estimate", math.nan))]
    if not known:
        raise ConfigurationError("no row of this table has an estimate, so there is nothing to draw")
    least = sorted(range(len(known)), key=lambda i: known[i]["p"])[:_FEATURES]
    shown = [known[i] for i in sorted(least)]
    lines, heights = _lines(shown, sites, float(stats.norm.isf(0.5 * (1.0 - level))))
    low, high = _range_of(lines)
    bottom = lines[-1].height
    # Labels, title and legend are outside: save it with bbox_inches="tight".
    figure = figures.Figure(figsize=(_WIDTH, _INCHES * (2.0 - bottom)))
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.axvline(0.0, color="#000000", linewidth=0.7)
    for kind in _LOOKS:
        _draw(axes, kind, [line for line in lines if line.kind == kind], low, high)
    axes.set(xlim=(low, high), ylim=(bottom - 1.0, 1.0), ylabel="feature")
    _label(axes, shown[0], low, high)
    axes.set_yticks(heights, [_cut(f"{row['feature']}") for row in shown], parse_math=False)
    named = [line for line in lines if line.name]
    axes.set_yticks([line.height for line in named], [_cut(line.name) for line in named], minor=True, parse_math=False)
    axes.tick_params(axis="y", which="both", length=0)
    axes.tick_params(axis="y", which="minor", labelsize=7, labelcolor="#555555")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_title(_finding(known, len(shown)), fontsize=10, loc="left")
    _legend(axes, {line.kind for line in lines}, level, len(sites))
    return figure


def _lines(rows: Sequence[Mapping[str, Any]], sites: Sequence[str], quantile: float) -> tuple[list[_Line], list[float]]:
    """Return the intervals from top to bottom, and the height of each feature's name."""
    named = len(rows) * (len(sites) + 3) <= _NAMED
    step, close = (1.0, 1.0) if named else (_OTHERS, min(_CLOSE, _SITES / max(len(sites), 1)))
    lines, heights, height = [], [], 0.0
    for row in rows:
        heights.append(height)
        height -= 1.0 * named
        for site in sites:
            half = quantile * row[f"{site} error"]
            if math.isfinite(row[site]):
                lines.append(_Line(height, "site", site * named, row[site], row[site] - half, row[site] + half))
                height -= close
        height -= (step - close) * (not named)
        name = "all sites together" * named
        lines.append(_Line(height, "all", name, row["estimate"], row["lower"], row["upper"]))
        lower, upper = row["Hartung-Knapp lower"], row["Hartung-Knapp upper"]
        if not math.isnan(upper - lower):
            height -= step
            lines.append(_Line(height, "between", "between sites" * named, row["DerSimonian-Laird"], lower, upper))
        height -= 1.0 + 0.9 * named
    return lines, heights


def _range_of(lines: Sequence[_Line]) -> tuple[float, float]:
    """Return the ends of the axis."""
    ends = np.array([0.0, *(end for line in lines if line.kind == "all" for end in line[3:])])
    low, high = np.min(ends, where=np.isfinite(ends), initial=0.0), np.max(ends, where=np.isfinite(ends), initial=0.0)
    widest = _WIDER * (high - low)
    others = np.clip([end for line in lines for end in line[4:]], low - widest, high + widest)
    low, high = min(low, others.min()), max(high, others.max())
    return float(low - 0.03 * (high - low)), float(high + 0.03 * (high - low))


def _draw(axes: Any, kind: str, lines: Sequence[_Line], low: float, high: float) -> None:
    """Draw all intervals of a kind; those that leave the axis end in an arrow."""
    colour, width, marker = _LOOKS[kind]
    heights, points, lower, upper = np.array([(line.height, *line[3:]) for line in lines]).reshape(-1, 4).T
    axes.hlines(heights, np.clip(lower, low, high), np.clip(upper, low, high), colors=colour, linewidth=width)
    look = {"color": colour, "markersize": 4.0, "linestyle": "none", "clip_on": False}
    inside = (points >= low) & (points <= high)
    axes.plot(points[inside], heights[inside], marker=marker, **look)
    for end, where, sign in ((low, lower < low, "<"), (high, upper > high, ">")):
        axes.plot(np.full(where.sum(), end), heights[where], marker=sign, **look)


def _label(axes: Any, row: Mapping[str, Any], low: float, high: float) -> None:
    """Name the axis of estimates; of ratios it has their values."""
    ratio = next((name for name in row if name in ("odds ratio", "hazard ratio")), None)
    axes.set_xlabel("estimate" if ratio is None else f"{ratio} (logarithmic axis)")
    if ratio is not None:
        ticks = np.log(_RATIOS)
        ticks = ticks[(ticks >= low) & (ticks <= high)]
        # Where few round ratios are in sight, those of the places that are round as coefficients.
        ticks = ticks if ticks.size > 2 else axes.get_xticks()[1:-1]
        axes.set_xticks(ticks, [f"{math.exp(min(tick, 700.0)):.3g}" for tick in ticks])


def _finding(rows: Sequence[Mapping[str, Any]], shown: int) -> str:
    """Return what the picture shows, of all rows with an estimate."""
    found = [row for row in rows if row["q"] <= _RATE]
    names = [_cut(f"{row['feature']}") for row in found]
    listed = f": {', '.join(names)}" if 0 < len(names) <= 3 else ""
    texts = [f"{len(found)} of {len(rows)} features with a false discovery rate of at most {_RATE:g}{listed}"]
    ends = [(row["Hartung-Knapp lower"], row["Hartung-Knapp upper"]) for row in rows]
    if all(math.isnan(lower) for lower, _ in ends):
        texts.append("Fewer than three sites with estimates of their own: nothing covers a spread between sites")
    else:
        clear = sum(lower > 0.0 or upper < 0.0 for lower, upper in ends)
        texts.append(f"{clear} of {len(rows)} whose interval between sites lies on one side of no effect")
    if shown < len(rows):
        texts.append(f"Drawn are the {shown} with the smallest p")
    return "\n".join(line for text in texts for line in wrap(text, _TITLE)).replace("$", r"\$")


def _legend(axes: Any, kinds: set[str], level: float, sites: int) -> None:
    texts = {
        "all": f"all sites together, {100.0 * level:g} % interval",
        "between": "between sites, Hartung-Knapp",
        "site": f"{sites} sites' own estimates" if sites > 1 else "a site's own estimate",
    }
    handles = []
    for kind in (kind for kind in texts if kind in kinds):
        colour, width, marker = _LOOKS[kind]
        handles += axes.plot([], [], color=colour, linewidth=width, marker=marker, markersize=4.0, label=texts[kind])
    below = (0.5, -_BELOW / axes.figure.get_size_inches()[1])
    look = {"ncols": len(handles), "frameon": False, "fontsize": 8}
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=below, borderaxespad=0.0, **look)


def _cut(name: str) -> str:
    return name if len(name) <= _LETTERS else f"{name[: _LETTERS - 3]}..."

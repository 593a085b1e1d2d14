"""Figures of metrics against rounds: a line for each label, a panel for each metric."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reproduction.pictures.appearance import Appearance, appearances
from reproduction.pictures.report import Series, grid, legend_below, make_logarithmic, new_figure, open_panel, set_title

#: Colour and line styles of the curves that are shown only for comparison.
_BACKGROUND, _STYLES = "#b0b0b0", ("solid", "dashed", "dashdot", "dotted")
#: Style of the line at a target.
_TARGET: Any = {"color": "#222222", "linestyle": (0, (1, 2)), "linewidth": 1.2, "zorder": 1.2}
#: With more labels than this, they are written at the ends of the curves: a legend would have several rows.
_LEGEND = 4
#: Style of a legend inside a panel.
_INSIDE: Any = {"fontsize": 7, "frameon": False}

#: Label to metric to runs.
Curves = Mapping[str, Mapping[str, Sequence[Series]]]


def figure_of_curves(
    curves: Curves,
    panels: Sequence[str],
    title: str,
    *,
    methods: Mapping[str, str] = MappingProxyType({}),
    coloured: Collection[str] | None = None,
    levels: Collection[str] = (),
    logarithmic: Collection[str] = (),
    limits: Mapping[str, Sequence[float]] = MappingProxyType({}),
    cut: Mapping[str, float] = MappingProxyType({}),
    across: Mapping[str, str] = MappingProxyType({}),
    targets: Mapping[str, float] = MappingProxyType({}),
    columns: int = 0,
    legend: bool = True,
) -> Any:
    """Return a figure of metrics against rounds: a panel for each metric, a line for each label.

    The line goes through the medians of the seeds, a band from the smallest to the largest of them. With few labels
    there is a legend below; with many, each curve in the last panel of a row has its label at its end. If there are
    many labels and every panel has its own, each panel has its own legend and colours.

    Parameters
    ----------
    curves : mapping
        Label to metric to runs.
    panels : sequence of str
        Metrics; a panel named ``"METRIC against COST"`` has costs, on a logarithmic axis, instead of rounds.
    title : str
    methods : mapping of str to str
        Name of the strategy or baseline by label, which decides colour and line style; by default the label itself.
    coloured : collection of str, optional
        Labels of the curves with their own colour; all other curves are grey, in four line styles, and
        have no band. Default: all labels.
    levels : collection of str
        Labels drawn as horizontal lines (baselines).
    logarithmic : collection of str
        Metrics with a logarithmic axis.
    limits : mapping of str to (low, high)
        Axis limits of some metrics, if their first rounds would hide the differences of the last ones.
    cut : mapping of str to float
        Round of divergence by label: each of these curves is cut where it leaves the range of the others, with a cross
        at that round (against costs: at the last one), at the top if its value is out of range.
    across : mapping of str to str
        What the horizontal axis of a panel counts; by default rounds.
    targets : mapping of str to float
        Value of a metric that the paper names or a claim asks for: a dotted line, with its number in a legend.
    columns : int, default 0
        Panels in a row; 0: up to three panels in one row, more panels in two rows.
    legend : bool, default True
        Whether to write labels at all.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ConfigurationError
        If matplotlib is not installed.
    """
    columns = columns or (len(panels) if len(panels) <= 3 else -(-len(panels) // 2))
    rows = -(-len(panels) // columns)
    shown = [label for label, by_metric in curves.items() if any(by_metric.get(metric) for metric in panels)]
    homes = {label: [metric for metric in panels if curves[label].get(metric)] for label in shown}
    apart = legend and len(shown) > _LEGEND and len(panels) > 1 and all(len(home) == 1 for home in homes.values())
    others = {label for label in shown if coloured is not None and label not in coloured and label not in levels}
    grey = set() if apart else others
    named = [label for label in shown if label not in grey]
    direct = legend and len(named) > _LEGEND and not apart
    width = 3.6 * columns + 0.4 + (0.4 + 0.075 * max(map(len, named)) if direct else 0.0)
    figure = new_figure(width, 2.9 * rows + (1.0 if legend and not direct else 0.4))
    groups = [[label for label in shown if metric in homes[label]] for metric in panels] if apart else [named]
    looks: dict[str, Appearance] = {}
    for group in groups:
        looks |= appearances({label: methods.get(label, label) for label in group})
    pen = _Pen(curves, shown, looks, grey, levels, cut)
    labelled: set[str] = set()
    for position, (place, metric) in enumerate(zip(grid(figure, rows, columns, len(panels)), panels, strict=True)):
        ends = pen.draw(place, metric)
        _finish(place, metric, metric in logarithmic, limits.get(metric), across.get(metric, "round"))
        own = [(pen.handles[label], label) for label in (groups[position] if apart else ())]
        if metric in targets:
            own.append((place.axhline(targets[metric], **_TARGET), f"target {targets[metric]:g}"))
        if own:
            place.legend(*zip(*own, strict=True), **_INSIDE)
        if apart:
            labelled.update(groups[position])
        if direct and position % columns == columns - 1:
            _label_ends(place, ends, looks)
            labelled.update(ends)
    if title:
        set_title(figure, title)
    if legend:
        _name_the_others(figure, pen, labelled, width)
    return figure


class _Pen:
    """Draws the curves of a figure, panel by panel, and keeps a handle of each for the legend."""

    def __init__(
        self,
        curves: Curves,
        shown: Sequence[str],
        looks: Mapping[str, Appearance],
        grey: Collection[str],
        levels: Collection[str],
        cut: Mapping[str, float],
    ) -> None:
        self.curves, self.shown, self.grey, self.levels, self.cut = curves, shown, grey, levels, cut
        behind = [label for label in shown if label in grey]
        self.looks = dict(looks) | {
            label: Appearance(_BACKGROUND, _STYLES[number % len(_STYLES)]) for number, label in enumerate(behind)
        }
        self.handles: dict[str, Any] = {}

    def draw(self, place: Any, metric: str) -> dict[str, tuple[float, float]]:
        """Draw the curves of a metric; return where those with a name end."""
        ends: dict[str, tuple[float, float]] = {}
        reach = _reach([self.curves[label].get(metric, []) for label in self.shown if label not in self.cut])
        for number, label in enumerate(self.shown):
            runs = self.curves[label].get(metric, [])
            parts: Sequence[NDArray[Any]] = band(runs) if runs else (np.array([]),) * 4
            if parts[0].size == 0:
                continue
            if label in self.levels:
                self.handles.setdefault(label, self._level(place, label, *(part[-1] for part in parts[1:])))
                ends[label] = (1.0, parts[1][-1])
                continue
            if label in self.cut:
                kept = self._cross(place, label, metric, parts, reach)
                parts = tuple(part[:kept] for part in parts)
                if not kept:
                    continue
            # A line is thinner than those below it, so equal curves are seen.
            thickness = 3.0 - 2.0 * number / (len(self.shown) - 1) if len(self.shown) > 1 else 1.8
            self.handles.setdefault(label, self._curve(place, label, thickness, *parts))
            if label not in self.grey:
                ends[label] = (parts[0][-1], parts[1][-1])
        return ends

    def _level(self, place: Any, label: str, middle: float, low: float, high: float) -> Any:
        """Draw the level of a baseline."""
        color, line, _ = self.looks[label]
        drawn = place.axhline(middle, color=color, linestyle=line, linewidth=1.4)
        place.axhspan(low, high, color=color, alpha=0.1, linewidth=0)
        return drawn

    def _cross(self, place: Any, label: str, metric: str, parts: Sequence[NDArray[Any]], reach: float) -> int:
        """Mark where a run diverged; return how many of its values are shown."""
        rounds, middle = parts[0], parts[1]
        kept = _within(middle, reach)
        where = rounds[-1] if " against " in metric else self.cut[label]
        inside = kept == rounds.size
        height, frame = (middle[-1], place.transData) if inside else (1.0, place.get_xaxis_transform())
        color = self.looks[label].color
        place.plot(where, height, transform=frame, marker="X", markersize=8, color=color, zorder=5, clip_on=False)
        return kept

    def _curve(self, place: Any, label: str, thickness: float, *parts: NDArray[Any]) -> Any:
        """Draw the medians, and the band of a curve with a colour of its own."""
        rounds, middle, low, high = parts
        color, line, marker = self.looks[label]
        own = {"linewidth": 1.0, "zorder": 1.5} if label in self.grey else {"linewidth": thickness, "zorder": 2}
        points = {"marker": marker or None, "markersize": 4, "markevery": max(1, rounds.size // 8)}
        (drawn,) = place.plot(rounds, middle, color=color, linestyle=line, **own, **points)
        if label not in self.grey:
            place.fill_between(rounds, low, high, color=color, alpha=0.15, linewidth=0)
        return drawn


def _finish(place: Any, metric: str, logarithmic: bool, limits: Sequence[float] | None, counts: str) -> None:
    """Set the axes of a panel and their names."""
    if logarithmic:
        make_logarithmic(place)
    if limits is not None:
        place.set_ylim(*limits)
    place.set_title(metric, fontsize=10)
    across = metric.partition(" against ")[2]
    place.set_xlabel(across or counts)
    if across:
        make_logarithmic(place, "x")
    open_panel(place)


def _name_the_others(figure: Any, pen: _Pen, labelled: Collection[str], width: float) -> None:
    """Write a legend below of all curves that are not named in the panels."""
    handles = {label: handle for label, handle in pen.handles.items() if label not in labelled}
    if handles:
        # Inches that a column of the legend takes at this size of the letters.
        column = 0.55 + 0.075 * max(len(line) for label in handles for line in label.splitlines())
        legend_below(figure, handles, int(width / column), 8.5)


def band(runs: Sequence[Series]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return rounds, median, smallest and largest value of several runs at the rounds that all of them have.

    Parameters
    ----------
    runs : sequence of (rounds, values)
        At least one.

    Returns
    -------
    tuple of ndarray
        Rounds, medians, minima, maxima.

    Examples
    --------
    >>> import numpy as np
    >>> one, two = (np.array([0.0, 1.0]), np.array([1.0, 2.0])), (np.array([1.0, 2.0]), np.array([4.0, 5.0]))
    >>> [part.tolist() for part in band([one, two])]
    [[1.0], [3.0], [2.0], [4.0]]
    """
    common = sorted(set.intersection(*(set(rounds.tolist()) for rounds, _ in runs)))
    at = [dict(zip(rounds.tolist(), values.tolist(), strict=True)) for rounds, values in runs]
    table = np.array([[own[when] for when in common] for own in at])
    return np.array(common), np.median(table, axis=0), table.min(axis=0), table.max(axis=0)


def _reach(groups: Sequence[Sequence[Series]]) -> float:
    """Return the largest absolute value of some runs; 0 if there are none."""
    values = [np.abs(part[np.isfinite(part)]).max(initial=0.0) for runs in groups for _, part in runs]
    return float(max(values, default=0.0))


def _within(values: NDArray[Any], reach: float) -> int:
    """Return how many values of a diverged run are shown: up to three times the others' initial values, or its own."""
    limit = 3.0 * max(reach, abs(float(values[0])) if values.size and math.isfinite(values[0]) else 0.0)
    beyond = np.flatnonzero(~(np.abs(values) <= limit))
    return int(beyond[0]) if beyond.size else int(values.size)


def _label_ends(place: Any, ends: Mapping[str, tuple[float, float]], looks: Mapping[str, Appearance]) -> None:
    """Write the curves' labels and line styles next to their ends, moved apart if they would overlap."""
    low, high = place.get_ylim()
    place.set_ylim(low, high)
    to_axes = place.transData + place.transAxes.inverted()
    heights = {label: float(to_axes.transform((0.0, value))[1]) for label, (_, value) in ends.items()}
    ordered = sorted(heights, key=lambda label: heights[label])
    gap = 0.062
    positions: list[float] = []
    for label in ordered:
        wanted = min(max(heights[label], 0.0), 1.0) if math.isfinite(heights[label]) else 1.0
        positions.append(max(wanted, positions[-1] + gap) if positions else wanted)
    # Move labels that were pushed out at the top back down.
    top = 1.0
    for i in reversed(range(len(positions))):
        positions[i] = min(positions[i], top)
        top = positions[i] - gap
    how = {"xycoords": "axes fraction", "fontsize": 8, "va": "center", "annotation_clip": False}
    for label, height in zip(ordered, positions, strict=True):
        color, line, marker = looks[label]
        sample: Any = {"color": color, "linestyle": line, "marker": marker or None, "markersize": 4, "linewidth": 1.6}
        sample |= {"transform": place.transAxes, "clip_on": False, "scalex": False, "scaley": False}
        place.plot([1.02, 1.1], [height] * 2, **sample)
        place.annotate(label, (1.12, height), color=color, **how)

"""Figures and tables of runs and sweeps."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fco.errors import ConfigurationError
from reproduction.pictures.appearance import Appearance, appearance, appearances

Series = tuple[NDArray[Any], NDArray[Any]]

#: What to do if matplotlib is missing; the package is not on an index, so its extras need the clone.
MATPLOTLIB = "pip install matplotlib (or, in the clone: pip install -e '.[plot]')"
#: Appearance of a curve that is shown only for comparison.
_BACKGROUND = Appearance("#b0b0b0", "solid")
#: With more labels than this, they are written at the ends of the curves: a legend would have several rows.
_LEGEND = 4
#: Style of a legend inside a panel.
_INSIDE: Any = {"fontsize": 7, "frameon": False}
#: Dots an inch of a PNG, twice those of a screen, and what makes two SVGs of the same figure the same file.
_DOTS = 200
_SVG: Any = {"svg.hashsalt": "flwr-fco", "svg.fonttype": "none"}


def require_matplotlib(what: str) -> None:
    """Raise an error that says what to do if matplotlib is not installed, before any work is done.

    Parameters
    ----------
    what : str
        The feature that needs it.

    Raises
    ------
    ConfigurationError
        If matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        raise ConfigurationError(f"{what}: {MATPLOTLIB}")


def _figure(width: float, height: float) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigurationError(f"pictures need matplotlib: {MATPLOTLIB}") from error
    return Figure(figsize=(width, height), layout="constrained")


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


def spans_decades(values: Sequence[float] | NDArray[Any]) -> bool:
    """Return whether values are all positive and the largest is at least ten times the smallest.

    Parameters
    ----------
    values : sequence of float

    Examples
    --------
    >>> spans_decades([1.0, 0.1, 0.001]), spans_decades([1.0, 0.0]), spans_decades([3.0, 1.0])
    (True, False, False)
    """
    finite = np.asarray(values, dtype=np.float64)
    finite = finite[np.isfinite(finite)]
    return bool(finite.size and finite.min() > 0.0 and finite.max() >= 10.0 * finite.min())


def draw_curves(
    curves: Mapping[str, Mapping[str, Sequence[Series]]], panels: Sequence[str], title: str, path: Path, **options: Any
) -> None:
    """Draw metrics against rounds: a panel for each metric, a line for each label.

    Parameters
    ----------
    curves, panels, title
        As for :func:`figure_of_curves`.
    path : Path
        ``.png`` (or no suffix): a PNG for high-density screens, and an SVG next to it; ``.svg``, ``.pdf``: only that
        file.
    **options
        Those of :func:`figure_of_curves`.

    Raises
    ------
    ConfigurationError
        If matplotlib is not installed.
    """
    _save(figure_of_curves(curves, panels, title, **options), path)


def svg_of_curves(
    curves: Mapping[str, Mapping[str, Sequence[Series]]], panels: Sequence[str], salt: str, **options: Any
) -> str:
    """Return the figure of :func:`draw_curves` as the text of an SVG element, for a page.

    Parameters
    ----------
    curves, panels
        As for :func:`figure_of_curves`.
    salt : str
        Used in the element ids; two figures in one page need different values.
    **options
        Those of :func:`figure_of_curves`.

    Returns
    -------
    str
    """
    from matplotlib import rc_context

    drawn = io.StringIO()
    with rc_context({**_SVG, "svg.hashsalt": salt}):
        figure_of_curves(curves, panels, "", **options).savefig(drawn, format="svg", metadata={"Date": None})
    text = drawn.getvalue()
    return text[text.index("<svg") :]


def figure_of_curves(
    curves: Mapping[str, Mapping[str, Sequence[Series]]],
    panels: Sequence[str],
    title: str,
    *,
    methods: Mapping[str, str] = MappingProxyType({}),
    coloured: Collection[str] | None = None,
    levels: Collection[str] = (),
    logarithmic: Collection[str] = (),
    limits: Mapping[str, Sequence[float]] = MappingProxyType({}),
    cut: Mapping[str, float] = MappingProxyType({}),
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
        Labels of the curves with their own colour; all other curves are grey and have no band. Default: all labels.
    levels : collection of str
        Labels drawn as horizontal lines (baselines).
    logarithmic : collection of str
        Metrics with a logarithmic axis.
    limits : mapping of str to (low, high)
        Axis limits of some metrics, if their first rounds would hide the differences of the last ones.
    cut : mapping of str to float
        Round of divergence by label: each of these curves is cut where it leaves the range of the others, with a cross
        at that round (against costs: at the last one), at the top if its value is out of range.
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
    figure = _figure(width, 2.9 * rows + (1.0 if legend and not direct else 0.4))
    axes = _grid(figure, rows, columns, len(panels))
    groups = [[label for label in shown if metric in homes[label]] for metric in panels] if apart else [named]
    looks = {
        label: look
        for group in groups
        for label, look in appearances({label: methods.get(label, label) for label in group}).items()
    }
    looks.update(dict.fromkeys(grey, _BACKGROUND))
    handles: dict[str, Any] = {}
    grey_handle: Any = None
    labelled: set[str] = set()
    for position, (place, metric) in enumerate(zip(axes, panels, strict=True)):
        ends: dict[str, tuple[float, float]] = {}
        reach = _reach([curves[label].get(metric, []) for label in shown if label not in cut])
        for number, label in enumerate(shown):
            runs = curves[label].get(metric, [])
            rounds, middle, low, high = band(runs) if runs else (np.array([]),) * 4
            if rounds.size == 0:
                continue
            # A line is thinner than those below it, so equal curves are seen.
            thickness = 3.0 - 2.0 * number / (len(shown) - 1) if len(shown) > 1 else 1.8
            color, line, marker = looks[label]
            if label in levels:
                drawn = place.axhline(middle[-1], color=color, linestyle=line, linewidth=1.4)
                place.axhspan(low[-1], high[-1], color=color, alpha=0.1, linewidth=0)
                ends[label] = (1.0, middle[-1])
            else:
                if label in cut:
                    kept = _within(middle, reach)
                    where = rounds[-1] if " against " in metric else cut[label]
                    inside = kept == rounds.size
                    height, frame = (middle[-1], place.transData) if inside else (1.0, place.get_xaxis_transform())
                    cross: Any = {"marker": "X", "markersize": 8, "color": color, "zorder": 5, "clip_on": False}
                    place.plot(where, height, transform=frame, **cross)
                    rounds, middle, low, high = rounds[:kept], middle[:kept], low[:kept], high[:kept]
                    if not kept:
                        continue
                own = {"linewidth": 1.0, "zorder": 1.5} if label in grey else {"linewidth": thickness, "zorder": 2}
                points = {"marker": marker or None, "markersize": 4, "markevery": max(1, rounds.size // 8)}
                (drawn,) = place.plot(rounds, middle, color=color, linestyle=line, **own, **points)
                if label in grey:
                    grey_handle = drawn
                    continue
                place.fill_between(rounds, low, high, color=color, alpha=0.15, linewidth=0)
                ends[label] = (rounds[-1], middle[-1])
            handles.setdefault(label, drawn)
        if metric in logarithmic:
            _make_logarithmic(place)
        if metric in limits:
            place.set_ylim(*limits[metric])
        place.set_title(metric, fontsize=10)
        across = metric.partition(" against ")[2]
        place.set_xlabel(across or "round")
        if across:
            _make_logarithmic(place, "x")
        _open(place)
        if apart:
            place.legend(*zip(*((handles[label], label) for label in groups[position]), strict=True), **_INSIDE)
            labelled.update(groups[position])
        if direct and position % columns == columns - 1:
            _label_ends(place, ends, looks)
            labelled.update(ends)
    if title:
        _set_title(figure, title)
    if grey_handle is not None:
        names = f"grey: {'; '.join(label for label in shown if label in grey)}"
        handles[textwrap.fill(names, int(width / 0.075), break_on_hyphens=False)] = grey_handle
    missing = {label: handle for label, handle in handles.items() if label not in labelled}
    if missing and legend:
        # Inches that a column of the legend takes at this size of the letters.
        column = 0.55 + 0.075 * max(len(line) for label in missing for line in label.splitlines())
        _legend_below(figure, missing, int(width / column), 8.5)
    return figure


def _grid(figure: Any, rows: int, columns: int, count: int, **shared: Any) -> Any:
    """Return the first axes of a grid, row by row; the others stay empty."""
    axes = figure.subplots(rows, columns, squeeze=False, **shared).ravel()
    for unused in axes[count:]:
        unused.set_axis_off()
    return axes[:count]


def _open(place: Any) -> None:
    """Give a panel a grid, and remove the frame at the top and on the right."""
    place.grid(alpha=0.25)
    place.spines[["top", "right"]].set_visible(False)


def _legend_below(figure: Any, handles: Mapping[str, Any], columns: int, size: float) -> None:
    look = {"loc": "outside lower center", "frameon": False, "fontsize": size}
    figure.legend(handles.values(), handles.keys(), ncols=max(1, min(len(handles), columns)), **look)


def _make_logarithmic(place: Any, which: str = "y") -> None:
    """Make an axis logarithmic with plain numbers, also between the powers of ten if there are few of them."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    place.set(**{f"{which}scale": "log"})
    axis = getattr(place, f"{which}axis")
    low, high = axis.get_view_interval()
    # Labels below each other need less room than those beside each other.
    room = high / low / (10.0 if which == "y" else 1.0)
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if room < 30.0 else (1.0, 3.0) if room < 300.0 else (1.0,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


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
        place.plot(
            [1.02, 1.1], [height] * 2, transform=place.transAxes, clip_on=False, scalex=False, scaley=False, **sample
        )
        place.annotate(label, (1.12, height), color=color, **how)


def draw_scatter(
    points: Mapping[str, Sequence[Sequence[tuple[float, float]]]],
    moments: Sequence[str],
    x: str,
    y: str,
    title: str,
    path: Path,
    *,
    boxes: Mapping[str, Mapping[str, Sequence[float]]] = MappingProxyType({}),
) -> None:
    """Draw a dot for each setting: a row for each group, a column for each point in time.

    Parameters
    ----------
    points : mapping of str to sequence of sequence of (x, y)
        Group, then moment.
    moments : sequence of str
        Titles of the columns.
    x, y : str
        Labels of the axes.
    title : str
    path : Path
        The PNG.
    boxes : mapping of str to mapping of str to (low, high)
        By group, then by axis: the region of a claim, shaded in the last column.

    Raises
    ------
    ConfigurationError
        If matplotlib is not installed.
    """
    figure = _figure(2.6 * len(moments) + 0.6, 2.1 * len(points) + 0.6)
    axes = figure.subplots(len(points), len(moments), sharex=True, sharey=True, squeeze=False)
    for row, (group, columns) in zip(axes, points.items(), strict=True):
        for place, moment, dots in zip(row, moments, columns, strict=True):
            if dots:
                place.scatter(*zip(*dots, strict=True), s=12, alpha=0.6, color=appearance(group).color)
            place.set_title(f"{group}, {moment}", fontsize=8)
            place.grid(alpha=0.25)
            place.set_xlim(-0.03, 1.03)
    shown = axes[0, 0].get_ylim()
    for row, group in zip(axes, points, strict=True):
        if group in boxes:
            (left, right), (bottom, top) = (boxes[group].get(name, (0.0, 1.0)) for name in (x, y))
            row[-1].fill_between([left, right], bottom, top, color="0.5", alpha=0.2, linewidth=0, zorder=0)
    axes[0, 0].set_ylim(shown)
    figure.supxlabel(x, fontsize=9)
    figure.supylabel(y, fontsize=9)
    _set_title(figure, title)
    _save(figure, path)


def draw_tuned(
    points: Mapping[tuple[str, str], Mapping[str, Sequence[tuple[Any, Sequence[float]]]]],
    title: str,
    path: Path,
    *,
    methods: Mapping[str, str],
    logarithmic: Collection[str] = (),
    limits: Mapping[str, Sequence[float]] = MappingProxyType({}),
) -> None:
    """Draw the results of methods at their best rates: a column for each varied factor, a row for each metric.

    For one metric, six or more panels are in two rows; if only one factor is varied, its metrics are side by side. A
    line goes through the medians, a bar from the smallest to the largest seed.

    Parameters
    ----------
    points : mapping of (str, str) to mapping
        By (varied factor, metric), then by label: pairs of a value and the results of the seeds. Numbers are on a
        logarithmic axis if they span decades; texts are side by side.
    title : str
    path : Path
        As for :func:`draw_curves`.
    methods : mapping of str to str
        Name of the strategy by label, which decides colour and line style.
    logarithmic : collection of str
        Metrics with a logarithmic axis if the results span decades.
    limits : mapping of str to (low, high)

    Raises
    ------
    ConfigurationError
        If matplotlib is not installed.
    """
    parts, metrics = (list(dict.fromkeys(key[i] for key in points)) for i in (0, 1))
    panels = [(part, metric) for metric in metrics for part in parts]
    alone = len(parts) == 1
    two_rows = len(metrics) == 1 and len(parts) >= 6
    columns = len(metrics) if alone else -(-len(parts) // 2) if two_rows else len(parts)
    rows = -(-len(panels) // columns)
    figure = _figure(2.7 * columns + 0.9, 2.6 * rows + 1.0)
    axes = _grid(figure, rows, columns, len(panels), sharey="row" if columns < 6 and not alone else False)
    reached: dict[str, list[float]] = {metric: [] for metric in metrics}
    for (_, metric), own in points.items():
        reached[metric] += [one for found in own.values() for _, seeds in found for one in seeds]
    looks = appearances(methods)
    handles: dict[str, Any] = {}
    for position, (place, (part, metric)) in enumerate(zip(axes, panels, strict=True)):
        panel = points[part, metric]
        values = [value for value, _ in next(iter(panel.values()))]
        numbers = all(isinstance(value, int | float) for value in values)
        for number, (label, found) in enumerate(panel.items()):
            kept = [(value, seeds) for value, seeds in found if seeds]
            # Beside each other, so that bars of equal height are seen.
            shift = (number - (len(panel) - 1) / 2) * 0.06
            across = [value if numbers else values.index(value) + shift for value, _ in kept]
            middle = np.array([float(np.median(seeds)) for _, seeds in kept])
            below = middle - [min(seeds) for _, seeds in kept]
            above = [max(seeds) for _, seeds in kept] - middle
            color, line, _ = looks[label]
            handles[label] = place.errorbar(
                across, middle, (below, above), color=color, linestyle=line, marker="o", markersize=4, capsize=2
            )
        # What is below the axis, such as rounding around 0, does not decide how it is scaled.
        shown = np.maximum(reached[metric], limits[metric][0]) if metric in limits else reached[metric]
        if metric in logarithmic and spans_decades(shown):
            place.set_yscale("log")
        else:
            # Numbers as they are: not their distance to a number above the axis.
            place.ticklabel_format(axis="y", useOffset=False)
        if metric in limits:
            place.set_ylim(*limits[metric])
        if not numbers:
            place.set_xticks(range(len(values)), values)
            place.margins(x=0.25)
        elif spans_decades([value for value in values if value > 0]) and min(values) > 0:
            place.set_xscale("log")
            place.set_xticks(values, [f"{value:g}" for value in values], minor=False)
            place.minorticks_off()
        _open(place)
        if numbers and (alone or metric == metrics[-1]):
            place.set_xlabel(part)
        if not numbers and not alone and metric == metrics[0]:
            place.set_title(part, fontsize=10)
        if alone or position % columns == 0:
            place.set_ylabel(metric)
    _set_title(figure, title)
    _legend_below(figure, handles, 6, 9)
    _save(figure, path)


def draw_images(images: Mapping[str, NDArray[Any]], title: str, path: Path) -> None:
    """Draw vectors as square pictures: with d = s s numbers from blue (negative) to red; with d = 3 s s as RGB.

    Each is scaled by its own largest absolute value, given in its caption; zero is white, or grey for RGB.

    Parameters
    ----------
    images : mapping of str to ndarray
        Vectors by caption.
    title : str
    path : Path
        The PNG.

    Raises
    ------
    ConfigurationError
        If a vector is not a square picture, or matplotlib is not installed.
    """
    columns = len(images) if len(images) <= 4 else min(5, -(-len(images) // 2))
    rows = -(-len(images) // columns)
    figure = _figure(2.6 * columns + 0.4, 2.9 * rows + 0.6)
    axes = _grid(figure, rows, columns, len(images))
    for place, (caption, vector) in zip(axes, images.items(), strict=True):
        place.set_axis_off()
        channels = 1 if math.isqrt(vector.size) ** 2 == vector.size else 3
        side = math.isqrt(vector.size // channels)
        if side * side * channels != vector.size:
            raise ConfigurationError(f"{caption} has {vector.size} numbers; expected s * s or 3 * s * s of them")
        largest = float(np.abs(vector).max(initial=0.0))
        shown = vector / (largest or 1.0)
        if channels == 3:
            place.imshow(0.5 + 0.5 * shown.reshape(side, side, 3), interpolation="nearest")
        else:
            place.imshow(shown.reshape(side, side), cmap="bwr", vmin=-1.0, vmax=1.0, interpolation="nearest")
        if not largest:
            place.text(0.5, 0.5, "zero everywhere", transform=place.transAxes, ha="center", va="center", fontsize=9)
        share = float((np.abs(vector) > 1e-5).mean())
        place.set_title(f"{caption}\nlargest {largest:.2g}, {100 * share:.0f} % non-zero", fontsize=8)
    _set_title(figure, title)
    _save(figure, path)


def draw_heat_map(
    cells: Mapping[tuple[float, float], float],
    rows: str,
    columns: str,
    title: str,
    path: Path,
    *,
    largest: bool = False,
) -> None:
    """Draw the scores of a grid of two settings; diverged trials are hatched.

    Parameters
    ----------
    cells : mapping of (float, float) to float
        Scores by the values of the two settings; not finite: diverged.
    rows, columns : str
        Names of the two settings.
    title : str
    path : Path
        The PNG.
    largest : bool, default False
        Whether larger is better; the best finite cell gets a frame.

    Raises
    ------
    ConfigurationError
        If matplotlib is not installed.
    """
    from_rows, from_columns = (sorted({pair[i] for pair in cells}) for i in (0, 1))
    table = np.array([[cells.get((a, b), math.nan) for b in from_columns] for a in from_rows])
    finite = np.isfinite(table)
    figure = _figure(1.1 * len(from_columns) + 2.2, 0.7 * len(from_rows) + 1.8)
    place = figure.subplots()
    shown = np.where(finite, table, np.nan)
    # With one nearly diverged trial, all the others would have a single colour.
    low, high = shown[finite].min(initial=math.inf), shown[finite].max(initial=-math.inf)
    scale = "log" if low > 0 and low * 30 < high else "linear"
    image = place.imshow(shown, cmap="viridis" if largest else "viridis_r", aspect="auto", norm=scale)
    for i, j in np.ndindex(table.shape):
        if finite[i, j]:
            frame = {"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 1.5}
            place.text(j, i, f"{table[i, j]:.3g}", ha="center", va="center", fontsize=8, bbox=frame)
        elif not math.isnan(table[i, j]):
            place.text(j, i, "diverged", ha="center", va="center", fontsize=7, color="0.4")
            place.axvspan(
                j - 0.5, j + 0.5, 1 - (i + 1) / len(from_rows), 1 - i / len(from_rows), fill=False, hatch="//", ec="0.8"
            )
    if finite.any():
        best = np.unravel_index((np.nanargmax if largest else np.nanargmin)(shown), shown.shape)
        place.plot(best[1], best[0], marker="s", markersize=26, fillstyle="none", color="red")
        figure.colorbar(image)
    place.set_xticks(range(len(from_columns)), [f"{value:g}" for value in from_columns])
    place.set_yticks(range(len(from_rows)), [f"{value:g}" for value in from_rows])
    place.set_xlabel(columns)
    place.set_ylabel(rows)
    place.set_title(title, fontsize=10)
    _save(figure, path)


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as a Markdown table with a column for each key.

    Parameters
    ----------
    rows : sequence of mapping

    Returns
    -------
    str

    Examples
    --------
    >>> print(markdown_table([{"run": "a", "f1": 0.51234}, {"run": "b"}]))
    | run | f1 |
    |---|---|
    | a | 0.5123 |
    | b |  |
    """
    columns = list({key: None for row in rows for key in row})
    cells = ([f"{v:.4g}" if isinstance(v := row.get(key, ""), float) else str(v) for key in columns] for row in rows)
    return table_of(columns, cells).rstrip("\n")


def table_of(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return lines of cells as a Markdown table.

    Parameters
    ----------
    head : sequence of str
    rows : iterable of sequences of str
        As many cells in each as the head has.

    Returns
    -------
    str
    """
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |" for cells in (head, *rows)]
    lines.insert(1, "|---" * len(head) + "|")
    return "\n".join(lines) + "\n"


def _set_title(figure: Any, title: str) -> None:
    """Set a figure's title, on as many lines as needed, because it may list settings."""
    # Inches that a letter takes at this size.
    figure.suptitle(textwrap.fill(title, int(figure.get_figwidth() / 0.085), break_on_hyphens=False), fontsize=11)


def _save(figure: Any, path: Path) -> None:
    """Write a picture: a PNG and an SVG next to it, or the format of the file's suffix.

    The PNG has a palette of 256 colours, which reduces its size to a third.
    """
    from matplotlib import rc_context
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    with rc_context(_SVG):
        if path.suffix not in ("", ".png"):
            try:
                figure.savefig(path)
            except ValueError as error:
                raise ConfigurationError(
                    f"{path} has the ending {path.suffix!r}; expected .png, .pdf or .svg"
                ) from error
            return
        drawn = io.BytesIO()
        figure.savefig(drawn, dpi=_DOTS, format="png")
        # The places are known now: finding them takes a third of the time.
        figure.set_layout_engine("none")
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    with Image.open(drawn) as image:
        image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, format="PNG", optimize=True)

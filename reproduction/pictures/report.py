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
from flwr_fco.models import printable, write_file
from reproduction.pictures.appearance import Appearance, appearance, appearances

Series = tuple[NDArray[Any], NDArray[Any]]

#: What to do if matplotlib is missing; the package is not on an index, so its extras need the clone.
MATPLOTLIB = "pip install matplotlib (or, in the clone: pip install -e '.[plot]')"
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


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure of this size, in inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigurationError(f"pictures need matplotlib: {MATPLOTLIB}") from error
    return Figure(figsize=(width, height), layout="constrained")


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


def grid(figure: Any, rows: int, columns: int, count: int, **shared: Any) -> Any:
    """Return the first axes of a grid, row by row; the others stay empty."""
    axes = figure.subplots(rows, columns, squeeze=False, **shared).ravel()
    for unused in axes[count:]:
        unused.set_axis_off()
    return axes[:count]


def open_panel(place: Any) -> None:
    """Give a panel a grid, and remove the frame at the top and on the right."""
    place.grid(alpha=0.25)
    place.spines[["top", "right"]].set_visible(False)


def legend_below(figure: Any, handles: Mapping[str, Any], columns: int, size: float) -> None:
    """Write a legend below all panels."""
    look = {"loc": "outside lower center", "frameon": False, "fontsize": size}
    figure.legend(handles.values(), handles.keys(), ncols=max(1, min(len(handles), columns)), **look)


def make_logarithmic(place: Any, which: str = "y") -> None:
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


def figure_of_dots(
    points: Mapping[str, Sequence[Sequence[tuple[float, float]]]],
    moments: Sequence[str],
    x: str,
    y: str,
    title: str,
    *,
    boxes: Mapping[str, Mapping[str, Sequence[float]]] = MappingProxyType({}),
) -> Any:
    """Return a figure with a dot for each setting: a row for each group, a column for each point in time.

    Parameters
    ----------
    points : mapping of str to sequence of sequence of (x, y)
        Group, then moment.
    moments : sequence of str
        Titles of the columns.
    x, y : str
        Labels of the axes.
    title : str
    boxes : mapping of str to mapping of str to (low, high)
        By group, then by axis: the region of a claim, shaded in the last column.

    Returns
    -------
    matplotlib.figure.Figure
    """
    figure = new_figure(2.6 * len(moments) + 0.6, 2.1 * len(points) + 0.6)
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
    set_title(figure, title)
    return figure


def figure_of_bests(
    points: Mapping[tuple[str, str], Mapping[str, Sequence[tuple[Any, Sequence[float]]]]],
    title: str,
    *,
    methods: Mapping[str, str],
    logarithmic: Collection[str] = (),
    limits: Mapping[str, Sequence[float]] = MappingProxyType({}),
) -> Any:
    """Return a figure of methods at their best rates: a column for each varied factor, a row for each metric.

    For one metric, six or more panels are in two rows; if only one factor is varied, its metrics are side by side. A
    line goes through the medians, a bar from the smallest to the largest seed.

    Parameters
    ----------
    points : mapping of (str, str) to mapping
        By (varied factor, metric), then by label: pairs of a value and the results of the seeds. Numbers are on a
        logarithmic axis if they span decades; texts are side by side.
    title : str
    methods : mapping of str to str
        Name of the strategy by label, which decides colour and line style.
    logarithmic : collection of str
        Metrics with a logarithmic axis if the results span decades.
    limits : mapping of str to (low, high)

    Returns
    -------
    matplotlib.figure.Figure
    """
    parts, metrics = (list(dict.fromkeys(names)) for names in zip(*points, strict=True))
    panels = [(part, metric) for metric in metrics for part in parts]
    alone, two_rows = len(parts) == 1, len(metrics) == 1 and len(parts) >= 6
    columns = len(metrics) if alone else -(-len(parts) // (1 + two_rows))
    rows = -(-len(panels) // columns)
    figure = new_figure(2.7 * columns + 0.9, 2.6 * rows + 1.0)
    axes = grid(figure, rows, columns, len(panels), sharey="row" if columns < 6 and not alone else False)
    reached: dict[str, list[float]] = {metric: [] for metric in metrics}
    for (_, metric), own in points.items():
        reached[metric] += [one for found in own.values() for _, seeds in found for one in seeds]
    looks = appearances(methods)
    handles: dict[str, Any] = {}
    for position, (place, (part, metric)) in enumerate(zip(axes, panels, strict=True)):
        panel = points[part, metric]
        values = [value for value, _ in next(iter(panel.values()))]
        numbers = all(isinstance(value, int | float) for value in values)
        handles |= _bars(place, panel, None if numbers else values, looks)
        # What is below the axis, such as rounding around 0, does not decide how it is scaled.
        shown = np.maximum(reached[metric], limits.get(metric, (-math.inf,))[0])
        if metric in logarithmic and spans_decades(shown):
            place.set_yscale("log")
        else:
            # Numbers as they are: not their distance to a number above the axis.
            place.ticklabel_format(axis="y", useOffset=False)
        if metric in limits:
            place.set_ylim(*limits[metric])
        _mark_values(place, values, numbers)
        open_panel(place)
        if numbers and (alone or metric == metrics[-1]):
            place.set_xlabel(part)
        if not numbers and not alone and metric == metrics[0]:
            place.set_title(part, fontsize=10)
        if alone or position % columns == 0:
            place.set_ylabel(metric)
    set_title(figure, title)
    legend_below(figure, handles, 6, 9)
    return figure


def _bars(
    place: Any,
    panel: Mapping[str, Sequence[tuple[Any, Sequence[float]]]],
    texts: Sequence[Any] | None,
    looks: Mapping[str, Appearance],
) -> dict[str, Any]:
    """Draw a line with bars for each label, across the values or, side by side, across texts; return the handles."""
    handles = {}
    for number, (label, found) in enumerate(panel.items()):
        kept = [(value, seeds) for value, seeds in found if seeds]
        # Beside each other, so that bars of equal height are seen.
        shift = (number - (len(panel) - 1) / 2) * 0.06
        across = [value if texts is None else texts.index(value) + shift for value, _ in kept]
        middle = np.array([float(np.median(seeds)) for _, seeds in kept])
        below = middle - [min(seeds) for _, seeds in kept]
        above = [max(seeds) for _, seeds in kept] - middle
        color, line, _ = looks[label]
        handles[label] = place.errorbar(
            across, middle, (below, above), color=color, linestyle=line, marker="o", markersize=4, capsize=2
        )
    return handles


def _mark_values(place: Any, values: Sequence[Any], numbers: bool) -> None:
    """Set the ticks of the axis across: at the values themselves."""
    if not numbers:
        place.set_xticks(range(len(values)), values)
        place.margins(x=0.25)
    elif spans_decades(values):
        place.set_xscale("log")
        place.set_xticks(values, [f"{value:g}" for value in values], minor=False)
        place.minorticks_off()


def figure_of_images(images: Mapping[str, NDArray[Any]], title: str) -> Any:
    """Return a figure of vectors as squares: with d = s s numbers from blue (negative) to red; with d = 3 s s as RGB.

    Each is scaled by its own largest absolute value, given in its caption; zero is white, or grey for RGB.

    Parameters
    ----------
    images : mapping of str to ndarray
        Vectors by caption.
    title : str

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ConfigurationError
        If a vector is not a square picture.
    """
    columns = len(images) if len(images) <= 4 else min(5, -(-len(images) // 2))
    rows = -(-len(images) // columns)
    figure = new_figure(2.6 * columns + 0.4, 2.9 * rows + 0.6)
    axes = grid(figure, rows, columns, len(images))
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
    set_title(figure, title)
    return figure


def heat_map(
    cells: Mapping[tuple[float, float], float], rows: str, columns: str, title: str, *, largest: bool = False
) -> Any:
    """Return a figure of the scores of a grid of two settings; diverged trials are hatched.

    Parameters
    ----------
    cells : mapping of (float, float) to float
        Scores by the values of the two settings; not finite: diverged.
    rows, columns : str
        Names of the two settings.
    title : str
    largest : bool, default False
        Whether larger is better; the best finite cell gets a frame.

    Returns
    -------
    matplotlib.figure.Figure
    """
    from_rows, from_columns = (sorted({pair[i] for pair in cells}) for i in (0, 1))
    table = np.array([[cells.get((a, b), math.nan) for b in from_columns] for a in from_rows])
    finite = np.isfinite(table)
    figure = new_figure(1.1 * len(from_columns) + 2.2, 0.7 * len(from_rows) + 1.8)
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
    for set_ticks, values in ((place.set_xticks, from_columns), (place.set_yticks, from_rows)):
        set_ticks(range(len(values)), [f"{value:g}" for value in values])
    place.set(xlabel=columns, ylabel=rows)
    place.set_title(title, fontsize=10)
    return figure


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
    # Names and settings are those of a folder, which may be anybody's: a page of Markdown may hold HTML.
    safe = ([printable(cell).replace("<", "&lt;") for cell in line] for line in (columns, *cells))
    return table_of(next(safe), safe).rstrip("\n")


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


def set_title(figure: Any, title: str) -> None:
    """Set a figure's title, on as many lines as needed, because it may list settings."""
    # Inches that a letter takes at this size.
    figure.suptitle(textwrap.fill(title, int(figure.get_figwidth() / 0.085), break_on_hyphens=False), fontsize=11)


def draw(figure: Any, path: Path) -> None:
    """Write a figure.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
    path : Path
        ``.png`` (or no suffix): a PNG for high-density screens, with a palette of 256 colours, which reduces its size
        to a third, and an SVG next to it; ``.svg``, ``.pdf``: only that file.

    Raises
    ------
    ConfigurationError
        If matplotlib does not know the suffix.
    """
    from matplotlib import rc_context
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    with rc_context(_SVG):
        if path.suffix not in ("", ".png"):
            try:
                write_file(path, lambda file: figure.savefig(file, format=path.suffix[1:]))
            except ValueError as error:
                raise ConfigurationError(
                    f"{path} has the ending {path.suffix!r}; expected .png, .pdf or .svg"
                ) from error
            return
        drawn = io.BytesIO()
        figure.savefig(drawn, dpi=_DOTS, format="png")
        # The places are known now: finding them takes a third of the time.
        figure.set_layout_engine("none")
        write_file(path.with_suffix(".svg"), lambda file: figure.savefig(file, format="svg", metadata={"Date": None}))
    with Image.open(drawn) as image:
        small = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    write_file(path, lambda file: small.save(file, format="PNG", optimize=True))


def svg_of(figure: Any, salt: str) -> str:
    """Return a figure as the text of an SVG element, for a page.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
    salt : str
        Used in the element ids; two figures in one page need different values.
    """
    from matplotlib import rc_context

    drawn = io.StringIO()
    with rc_context({**_SVG, "svg.hashsalt": salt}):
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    text = drawn.getvalue()
    return text[text.index("<svg") :]

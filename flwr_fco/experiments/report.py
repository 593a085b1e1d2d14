"""Figures and tables of runs and sweeps."""

from __future__ import annotations

import io
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fco.errors import ConfigurationError

__all__ = ["band", "draw_curves", "draw_heat_map", "draw_images", "draw_scatter", "markdown_table"]

Series = tuple[NDArray[Any], NDArray[Any]]


def _figure(width: float, height: float) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigurationError("pictures need matplotlib: pip install 'flwr-fco[plot]'") from error
    return Figure(figsize=(width, height), layout="constrained")


def band(runs: Sequence[Series]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return rounds, mean, smallest and largest value of several runs at the rounds that all of them have.

    Parameters
    ----------
    runs : sequence of (rounds, values)
        At least one.

    Returns
    -------
    tuple of ndarray
        Rounds, means, minima, maxima.

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
    return np.array(common), table.mean(axis=0), table.min(axis=0), table.max(axis=0)


def draw_curves(
    curves: Mapping[str, Mapping[str, Sequence[Series]]],
    panels: Sequence[str],
    title: str,
    path: Path,
    *,
    levels: Collection[str] = (),
    logarithmic: Collection[str] = (),
    limits: Mapping[str, Sequence[float]] = MappingProxyType({}),
) -> None:
    """Draw metrics against rounds: a panel a metric, a line a label, a band from the smallest to the largest seed.

    Parameters
    ----------
    curves : mapping
        Label to metric to runs.
    panels : sequence of str
        Metrics.
    title : str
    path : Path
        The PNG.
    levels : collection of str
        Labels that are drawn as horizontal lines: baselines.
    logarithmic : collection of str
        Metrics with a logarithmic axis.
    limits : mapping of str to (low, high)
        Of the axes of some metrics, where their first rounds would hide the differences of the last ones.

    Raises
    ------
    ConfigurationError
        If matplotlib is not installed.
    """
    columns = len(panels) if len(panels) <= 3 else -(-len(panels) // 2)
    rows = -(-len(panels) // columns)
    width = 3.6 * columns + 0.4
    figure = _figure(width, 2.9 * rows + 1.0)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for unused in axes[len(panels) :]:
        unused.set_axis_off()
    shown = [label for label, by_metric in curves.items() if any(by_metric.get(metric) for metric in panels)]
    handles: dict[str, Any] = {}
    for place, metric in zip(axes, panels, strict=False):
        for number, label in enumerate(shown):
            runs = curves[label].get(metric, [])
            if not runs:
                continue
            rounds, mean, low, high = band(runs)
            if rounds.size == 0:
                continue
            # Ten colours, then the same ones dotted. A line is thinner than those below it, so equal curves are seen.
            style = {
                "color": f"C{number % 10}",
                "linewidth": 3.0 - 2.0 * number / max(1, len(shown) - 1),
                "linestyle": ":" if number >= 10 else "-",
            }
            if label in levels:
                handles.setdefault(label, place.axhline(mean[-1], **{**style, "linestyle": "--", "linewidth": 1.4}))
                place.axhspan(low[-1], high[-1], color=style["color"], alpha=0.1, linewidth=0)
            else:
                handles.setdefault(label, place.plot(rounds, mean, **style)[0])
                place.fill_between(rounds, low, high, color=style["color"], alpha=0.15, linewidth=0)
        if metric in logarithmic:
            place.set_yscale("log")
        if metric in limits:
            place.set_ylim(*limits[metric])
        place.set_title(metric, fontsize=10)
        place.set_xlabel("round")
        place.grid(alpha=0.25)
    figure.suptitle(title, fontsize=11)
    if handles:
        # Inches that a column of the legend takes at this size of the letters.
        column = 0.55 + 0.075 * max(map(len, handles))
        figure.legend(
            handles.values(),
            handles.keys(),
            loc="outside lower center",
            ncols=max(1, min(len(handles), int(width / column))),
            fontsize=8.5,
        )
    _save(figure, path)


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
    """Draw a dot for each setting: a row for each group, a column for each moment.

    Parameters
    ----------
    points : mapping of str to sequence of sequence of (x, y)
        Group, then moment.
    moments : sequence of str
        Titles of the columns.
    x, y : str
        What the axes show.
    title : str
    path : Path
        The PNG.
    boxes : mapping of str to mapping of str to (low, high)
        By group, then by axis: the region that a claim is about, shaded at the last moment.

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
                place.scatter(*zip(*dots, strict=True), s=12, alpha=0.6)
            place.set_title(f"{group}, {moment}", fontsize=8)
            place.grid(alpha=0.25)
            place.set_xlim(-0.03, 1.03)
    shown = axes[0, 0].get_ylim()
    for row, group in zip(axes, points, strict=True):
        if group in boxes:
            (left, right), (bottom, top) = (boxes[group].get(name, (0.0, 1.0)) for name in (x, y))
            row[-1].fill_between([left, right], bottom, top, color="C2", alpha=0.15, linewidth=0, zorder=0)
    axes[0, 0].set_ylim(shown)
    figure.supxlabel(x, fontsize=9)
    figure.supylabel(y, fontsize=9)
    figure.suptitle(title, fontsize=11)
    _save(figure, path)


def draw_images(images: Mapping[str, NDArray[Any]], title: str, path: Path) -> None:
    """Draw vectors as square pictures: of d numbers, d = s s, from blue (negative) to red; of d = 3 s s, as RGB.

    Each is scaled by its own largest absolute value, which its caption gives: zero is white, of RGB grey.

    Parameters
    ----------
    images : mapping of str to ndarray
        By caption.
    title : str
    path : Path
        The PNG.

    Raises
    ------
    ConfigurationError
        If a vector is no square picture, or matplotlib is not installed.
    """
    columns = min(4, len(images))
    rows = -(-len(images) // columns)
    figure = _figure(2.6 * columns + 0.4, 2.9 * rows + 0.6)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for place in axes:
        place.set_axis_off()
    for place, (caption, vector) in zip(axes, images.items(), strict=False):
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
        share = float((np.abs(vector) > 1e-5).mean())
        place.set_title(f"{caption}\nlargest {largest:.2g}, {100 * share:.0f} % non-zero", fontsize=8)
    figure.suptitle(title, fontsize=11)
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
        Score by the values of the two settings; not finite: diverged.
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
    # One trial that nearly diverged would leave a single colour to all the others.
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
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for row in rows:
        cells = [f"{v:.4g}" if isinstance(v := row.get(key, ""), float) else str(v) for key in columns]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def _save(figure: Any, path: Path) -> None:
    """Write a picture: a PNG with a palette of 256 colours (a third of the size), or what the file's ending says."""
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix not in ("", ".png"):
        try:
            figure.savefig(path)
        except ValueError as error:
            raise ConfigurationError(f"{path} has the ending {path.suffix!r}; expected .png, .pdf or .svg") from error
        return
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=100, format="png")
    with Image.open(drawn) as image:
        image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, format="PNG", optimize=True)

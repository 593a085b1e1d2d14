"""The picture of a path of strengths: coefficients, and the loss on held-out data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fco.errors import ConfigurationError
from flwr_fco.simulation import PathResult

#: Maximum number of coefficients drawn: those that are largest anywhere on the path.
_LINES = 200
_BLUE, _GREY = "#0072B2", "#8c8c8c"


def plot_path(path: PathResult, file: Path) -> None:
    """Plot a path in the style of glmnet: coefficients, and the loss on held-out data, against log10(strength).

    The top axis counts non-zero entries. Dashed: the smallest held-out loss; dotted: one standard error, with the
    coefficients in blue that are not 0 there.

    Parameters
    ----------
    path : PathResult
        The path to plot.
    file : Path
        PNG, SVG or PDF.

    Raises
    ------
    ConfigurationError
        If matplotlib is not installed, or no strength is above 0.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigurationError("the picture needs matplotlib: pip install matplotlib (the extra [plot])") from error
    points = [point for point in path.points if point.strength > 0.0]
    if not points:
        raise ConfigurationError("no strength of this path is above 0, so there is no axis for it")
    validated = not math.isnan(points[0].held_out)
    x = np.log10([point.strength for point in points])
    figure = Figure(figsize=(8.8 if validated else 4.8, 3.6), layout="constrained")
    drawn: Any = figure.subplots(1, 2 if validated else 1)
    axes = np.atleast_1d(drawn)
    lines = _coefficients(path.points, path.acted_on)
    blue, title = np.ones(lines.shape[1], np.bool_), f"{points[0].nonzero} to {points[-1].nonzero} are not zero"
    marked = []
    if validated:
        best, simple = path.best, path.one_standard_error
        marked = [(best, "dashed", "smallest loss"), (simple, "dotted", "one standard error")]
        blue = lines[path.points.index(simple)] != 0.0
        title = f"{simple.nonzero} are not zero at one standard error, {best.nonzero} at the smallest loss"
        losses, errors = np.array([(point.held_out, point.standard_error) for point in points]).T
        look: dict[str, Any] = {"color": _BLUE, "ecolor": _GREY, "marker": "o", "markersize": 3.5, "capsize": 2}
        axes[1].errorbar(x, losses, errors, label="loss on held-out data, with its standard error", **look)
        axes[1].set_ylabel("loss on held-out data")
        text = f"smallest loss {best.held_out:.4g}, at one standard error {simple.held_out:.4g}"
        axes[1].set_title(text, fontsize=9)
    lines = lines[[point.strength > 0.0 for point in path.points]]
    # Grey ones first, below the others.
    for j in np.argsort(blue, kind="stable"):
        axes[0].plot(x, lines[:, j], color=_BLUE if blue[j] else _GREY, linewidth=0.9)
    axes[0].get_lines()[-1].set_label("coefficients, a line each")
    axes[0].axhline(0.0, color="#000000", linewidth=0.6)
    axes[0].set_ylabel("coefficient")
    axes[0].set_title(title, fontsize=9)
    shown = np.unique(np.linspace(0, len(points) - 1, min(6, len(points))).round().astype(int))
    for place in axes:
        place.set_xlabel("log10(strength)")
        place.locator_params(axis="x", nbins=5)
        for point, style, what in marked:
            if point.strength > 0.0:
                look = {"color": "#000000", "linewidth": 0.8, "linestyle": style}
                place.axvline(math.log10(point.strength), label=what, **look)
        top = place.secondary_xaxis("top")
        top.set_xticks(x[shown], [str(points[i].nonzero) for i in shown])
        top.set_xlabel("not zero")
    handles = {text: handle for place in axes for handle, text in zip(*place.get_legend_handles_labels(), strict=True)}
    look = {"loc": "outside lower center", "ncols": len(handles), "frameon": False, "fontsize": 8}
    figure.legend(handles.values(), handles.keys(), **look)
    figure.savefig(file, dpi=200)


def _coefficients(points: Sequence[Any], names: Sequence[str]) -> NDArray[np.float64]:
    """Return the coefficients of each point as rows; for a large model, only the largest ones."""
    models = [point.result.arrays for point in points]
    rows = np.array([np.concatenate([model[name].numpy().reshape(-1) for name in names]) for model in models])
    if rows.shape[1] > _LINES:
        rows = rows[:, np.sort(np.argsort(np.abs(rows).max(axis=0))[-_LINES:])]
    return rows

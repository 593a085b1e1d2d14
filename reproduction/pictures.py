"""The pictures of figures, drawn by matplotlib from a frame of the metrics of all rounds."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Drawing
from PIL import Image

from reproduction.figure import Figure, Run
from reproduction.problems.baselines import BASELINES
from reproduction.rules import Outcome, Outcomes, bound_series

#: Metrics that are shown on a logarithmic axis.
_LOGARITHMIC = frozenset(
    {"recovery-error", "objective", "gap", "validation-mse", "l1-error", "consensus-error", "training-loss"}
    | {"energy-error", "distance", "gradient-norm"}
)
#: Colours that people with the common kinds of colour blindness can tell apart (Okabe and Ito).
_COLORS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00"]
_COLORS += ["#56b4e9", "#6a3d9a", "#8c510a", "#7f7f7f", "#222222"]
_PALER = ["#7fb8d8", "#ea9f73", "#7fce9a", "#e5bcd3", "#f2cf7f"]
_PALER += ["#aad9f4", "#b49ecc", "#c58873", "#bfbfbf", "#909090"]
#: A colour is a family of methods, in the order of the colours; a line style is a member of it.
_FAMILIES = (
    ("FedDualAvg", "FedDualAvgOSP", "FedDA", "DFedDA"),
    ("FedMid", "FedMidOSP", "FedMiP", "DFedMid"),
    ("FedDAGT", "DFedDAGT", "FedDyn", "FedPD"),
    ("ReFedDAGT", "DReFedDAGT", "MultistepReFedDAGT", "FedDR"),
    ("FastFedDA", "CFedDA", "MCFedDA", "FedProx"),
    ("FeDualEx", "ExtraStepLocalSGD", "DecoupledProx", "FedCM"),
    ("Scaffold", "ScaffoldS", "Scaffnew", "DScaffold"),
    ("DualFL", "APDAInexact", "FiveGCS"),
    ("FedAvgSubgradient", "FedAvgS", "LocalSGD", "FedSAM"),
    ("DistributedPGDA", "centralized", "bound", "local"),
)
_LINES = ("solid", "dashed", "dashdot", "dotted")
#: Colour and width of the curves that are shown only for comparison.
_GREY: dict[str, Any] = {"color": "#b0b0b0", "linewidth": 1.0, "zorder": 1.5}
#: Number of curves in a panel that a reader can tell apart.
_COLOURED = 10


def draw(figure: Figure, outcomes: Outcomes, images: Mapping[str, Sequence[float]], file: Path) -> None:
    """Write the picture of a figure, with a palette of 256 colours, which reduces its size to a third.

    Parameters
    ----------
    figure : Figure
    outcomes : mapping of str to sequence of Outcome
        By label, then by seed.
    images : mapping of str to sequence of float
        For ``"images"``: the array of each label.
    file : Path
        A PNG.
    """
    if figure.kind == "images":
        drawing = _images(images)
    else:
        kinds = {"tuned": _bests, "scatter": _dots}
        drawing = kinds.get(figure.kind, _curves)(figure, outcomes)
    # A letter of this size takes that many inches.
    title = textwrap.fill(figure.title, int(drawing.get_figwidth() / 0.085), break_on_hyphens=False)
    drawing.suptitle(title, fontsize=11)
    drawn = BytesIO()
    drawing.savefig(drawn, dpi=200, format="png")
    with Image.open(drawn) as image:
        image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(file, optimize=True)


def looks(methods: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the colour and line style of each curve: its method's, or the first colour that is left.

    Parameters
    ----------
    methods : mapping of str to str
        The strategy by curve.

    Examples
    --------
    >>> found = looks({"a": "FedMid", "b": "FedMid", "c": "FedMidOSP"})
    >>> found["a"], len({own["color"] for own in found.values()})
    ({'color': '#d55e00', 'linestyle': 'solid'}, 3)
    """
    members = {name: (i, j) for i, family in enumerate(_FAMILIES) for j, name in enumerate(family)}
    found: dict[str, dict[str, str]] = {}
    # The colours of the methods that are shown are taken last.
    own = {_COLORS[members[method][0]] for method in methods.values() if method in members}
    left = [color for color in _COLORS if color not in own] + _PALER
    taken: set[str] = set()
    for curve, method in methods.items():
        family, member = members.get(method, (0, 0))
        color = _COLORS[family]
        if color in taken or method not in members:
            color = left.pop(0) if left else color
        taken.add(color)
        found[curve] = {"color": color, "linestyle": _LINES[member]}
    return found


def frame_of(runs: Sequence[Run], outcomes: Mapping[str, Sequence[Outcome]]) -> pd.DataFrame:
    """Return a row for each evaluated round of each run and seed that did not diverge, with its metrics."""
    rows = [
        {"curve": one.curve, "part": one.part, "seed": seed, **line}
        for one in runs
        for seed, own in enumerate(outcomes[one.label])
        if not own.diverged
        for line in own.history
    ]
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=["curve", "part", "seed", "round"])


def _curves(figure: Figure, outcomes: Outcomes) -> Any:
    """Draw metrics over rounds or costs: the median of the seeds with a band, baselines as levels, theorems' bounds."""
    frame = frame_of(figure.runs, outcomes)
    parts = list(dict.fromkeys(one.part for one in figure.runs))
    levels = {one.curve for one in figure.runs if one.strategy in BASELINES}
    # "gap, K = 1" is a panel of the part "K = 1" alone: the others do not report a metric of that name.
    wanted = [(part, panel.removesuffix(f", {part}")) for part in parts for panel in figure.panels]
    panels = [
        (part, panel)
        for part, panel in wanted
        if (metric := panel.partition(" against ")[0]) in frame and frame[frame.part == part][metric].notna().any()
    ]
    columns = len(figure.panels) if min(len(parts), len(figure.panels)) > 1 and panels == wanted else 0
    drawing, all_axes = _grid(len(panels), columns)
    methods = {one.curve: one.strategy for one in figure.runs}
    coloured = _coloured(figure, methods, levels)
    styles = looks({curve: method for curve, method in methods.items() if curve in coloured or curve in levels})
    handles: dict[str, Any] = {}
    for axes, (part, panel) in zip(all_axes, panels, strict=True):
        metric, _, cost = panel.partition(" against ")
        own = frame[frame.part == part].dropna(subset=[metric])
        for number, (curve, rows) in enumerate(own.groupby("curve", sort=False)):
            # Rounds that all seeds have.
            complete = rows.groupby("round").seed.transform("size") == rows.seed.nunique()
            by_round = rows[complete].groupby("round")
            values = by_round[metric]
            middle, low, high = values.median(), values.min(), values.max()
            across = by_round[cost].mean() if cost else middle.index.to_series()
            if cost:
                # The starting point has cost 0, which a logarithmic axis cannot show.
                middle, low, high, across = (own[across > 0.0] for own in (middle, low, high, across))
            if curve in levels:
                handles[curve] = axes.axhline(middle.iloc[-1], **styles[curve], linewidth=1.4)
                axes.axhspan(low.iloc[-1], high.iloc[-1], color=styles[curve]["color"], alpha=0.1, linewidth=0)
                continue
            # A line is thinner than those below it, so equal curves are seen.
            style = {**styles[curve], "linewidth": max(1.0, 3.0 - 0.25 * number)} if curve in styles else _GREY
            (line,) = axes.plot(across, middle, **style)
            if curve in styles:
                handles[curve] = line
                axes.fill_between(across, low, high, color=style["color"], alpha=0.15, linewidth=0)
        _bounds(axes, figure, outcomes, part, metric, handles)
        _finish(axes, metric, cost, figure, part)
        axes.set_title(f"{panel}, {part}" if part else panel, fontsize=8 if part else 10)
    _legend(drawing, handles)
    return drawing


def _coloured(figure: Figure, methods: Mapping[str, str], levels: set[str]) -> list[str]:
    """Return the curves with a colour of their own: all of a few, else those with the most claims."""
    order = [curve for curve in methods if curve not in levels]
    names = {one.label: one.curve for one in figure.runs}
    named = [names[label] for check in figure.checks.values() for label in check.labels() if label in names]
    return sorted(order, key=lambda curve: (-named.count(curve), order.index(curve)))[:_COLOURED]


def _bounds(axes: Any, figure: Figure, outcomes: Outcomes, part: str, metric: str, handles: dict[str, Any]) -> None:
    """Draw the bounds of theorems on a metric."""
    parts = {one.label: one.part for one in figure.runs}
    for check in figure.checks.values():
        own = dict(check.arguments)
        if check.rule == "within-bound" and own["metric"] == metric and parts[own["run"][0]] == part:
            (run,) = own.pop("run")
            own.pop("mean", None)
            (line,) = axes.plot(*bound_series(outcomes[run][0], **own), color="#222222", linestyle="dashdot")
            handles["bound"] = line


def _finish(axes: Any, metric: str, cost: str, figure: Figure, part: str) -> None:
    """Set the axes of a panel, their names and what marks a target."""
    if metric in _LOGARITHMIC and axes.get_ylim()[1] > 0.0:
        axes.set_yscale("log", nonpositive="mask")
    if cost:
        axes.set_xscale("log")
        # Within a decade those between its powers, such as 2 x 10^2, run into each other.
        axes.tick_params(axis="x", which="minor", labelsize=5.5)
    if metric in figure.limits:
        axes.set_ylim(*figure.limits[metric])
    if metric in figure.targets:
        target = axes.axhline(figure.targets[metric], color="#222222", linestyle=(0, (1, 2)), linewidth=1.2)
        axes.legend([target], [f"target {figure.targets[metric]:g}"], fontsize=7, frameon=False)
    axes.set_xlabel(cost or figure.axes.get(part, "round"))
    _open(axes)


def _grid(count: int, columns: int = 0, **shared: Any) -> tuple[Any, Any]:
    """Return a drawing with that many panels: up to three in one row, more of them in two rows."""
    columns = columns or (count if count <= 3 else -(-count // 2))
    rows = -(-count // columns)
    drawing = Drawing(figsize=(3.6 * columns + 0.4, 2.9 * rows + 1.0), layout="constrained")
    all_axes = drawing.subplots(rows, columns, squeeze=False, **shared).ravel()
    for unused in all_axes[count:]:
        unused.set_axis_off()
    return drawing, all_axes[:count]


def _open(axes: Any) -> None:
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _legend(drawing: Any, handles: Mapping[str, Any]) -> None:
    """Write a legend below all panels, in as many columns as the width has room for."""
    widest = 0.55 + 0.075 * max(map(len, handles), default=1)
    columns = max(1, min(len(handles), int(drawing.get_figwidth() / widest)))
    look: dict[str, Any] = {"loc": "outside lower center", "frameon": False, "fontsize": 8.5}
    drawing.legend(handles.values(), handles.keys(), ncols=columns, **look)


def _bests(figure: Figure, outcomes: Outcomes) -> Any:
    """Draw every method at its best rates: a panel for each varied factor and metric, a bar over the seeds."""
    assert figure.tune is not None
    tune = figure.tune
    rows = [
        {"part": point.part, "method": point.method, "value": point.value, "seed": seed, "metric": metric}
        | {"found": own.final(metric, tune.window)}
        for point in figure.bests
        for seed, own in enumerate(outcomes[point.label])
        for metric in figure.panels
    ]
    frame = pd.DataFrame(rows)
    if tune.against:
        keys = ["part", "value", "seed", "metric"]
        frame = frame.merge(frame[frame.method == tune.against], on=keys, suffixes=("", "_against"))
        frame["found"] -= frame.found_against
    strategies = {method: method for method in frame.method.unique()}
    styles = looks(strategies)
    handles = dict[str, Any]()
    panels = list(frame.groupby(["metric", "part"], sort=False))
    drawing, all_axes = _grid(len(panels))
    for axes, ((metric, part), own) in zip(all_axes, panels, strict=True):
        values = list(own["value"].unique())
        numbers = all(isinstance(value, int | float) for value in values)
        for number, (method, found) in enumerate(own.dropna(subset="found").groupby("method", sort=False)):
            seeds = found.groupby("value", sort=False).found
            middle, low, high = seeds.median(), seeds.min(), seeds.max()
            # Beside each other, so that bars of equal height are seen.
            shift = 0.06 * (number - (len(strategies) - 1) / 2)
            across = [value if numbers else values.index(value) + shift for value in middle.index]
            bars = (middle - low, high - middle)
            handles[method] = axes.errorbar(across, middle, bars, **styles[method], marker="o", markersize=4, capsize=2)
        if not numbers:
            axes.set_xticks(range(len(values)), values)
        elif min(values) > 0 and max(values) >= 10 * min(values):
            axes.set_xscale("log")
            axes.set_xticks(values, [f"{value:g}" for value in values], minor=False)
        shown = own.found[own.found > figure.limits.get(metric, (-math.inf,))[0]]
        if metric in _LOGARITHMIC and shown.min() > 0 and shown.max() >= 10 * shown.min():
            axes.set_yscale("log")
        if metric in figure.limits:
            axes.set_ylim(*figure.limits[metric])
        axes.set_ylabel(f"{metric}, less {tune.against}'s" if tune.against else metric)
        axes.set_title(part, fontsize=10)
        _open(axes)
    _legend(drawing, handles)
    return drawing


def _dots(figure: Figure, outcomes: Outcomes) -> Any:
    """Draw a dot for every pair of rates: a row for each method, a column for each of some rounds."""
    x, y = figure.panels
    runs = [one for one in figure.runs if one.strategy not in BASELINES]
    frame = pd.concat([frame_of([one], outcomes).assign(group=one.group) for one in runs]).dropna(subset=[x, y])
    moments = sorted({10, 30, 100, 300} & {*frame["round"]}) or [frame["round"].max()]
    groups = list(frame.groupby("group", sort=False))
    drawing = Drawing(figsize=(2.6 * len(moments) + 0.6, 2.1 * len(groups) + 0.6), layout="constrained")
    all_axes = drawing.subplots(len(groups), len(moments), sharex=True, sharey=True, squeeze=False)
    styles = looks({str(group): str(group) for group, _ in groups})
    boxes = {
        c.arguments["run"][0]: c.arguments["bounds"] for c in reversed(figure.checks.values()) if c.rule == "share"
    }
    for row, (group, own) in zip(all_axes, groups, strict=True):
        for axes, moment in zip(row, moments, strict=True):
            dots = own[own["round"] == moment]
            axes.scatter(dots[x], dots[y], s=12, alpha=0.6, color=styles[str(group)]["color"])
            axes.set_title(f"{group}, round {moment:g}", fontsize=8)
            axes.grid(alpha=0.25)
            axes.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03))
        if group in boxes:
            (left, right), (bottom, top) = (boxes[group].get(name, (0.0, 1.0)) for name in (x, y))
            row[-1].fill_between([left, right], bottom, top, color="0.5", alpha=0.2, linewidth=0, zorder=0)
    drawing.supxlabel(x, fontsize=9)
    drawing.supylabel(y, fontsize=9)
    return drawing


def _images(images: Mapping[str, Sequence[float]]) -> Any:
    """Draw vectors as squares: s s numbers from blue (negative) to red, or 3 s s as RGB; each by its own largest."""
    drawing, all_axes = _grid(len(images), len(images) if len(images) <= 4 else min(5, -(-len(images) // 2)))
    for axes, (caption, numbers) in zip(all_axes, images.items(), strict=True):
        vector = np.asarray(numbers)
        axes.set_axis_off()
        channels = 1 if math.isqrt(vector.size) ** 2 == vector.size else 3
        side = math.isqrt(vector.size // channels)
        largest = float(np.abs(vector).max(initial=0.0))
        shown = vector / (largest or 1.0)
        if channels == 3:
            axes.imshow(0.5 + 0.5 * shown.reshape(side, side, 3), interpolation="nearest")
        else:
            axes.imshow(shown.reshape(side, side), cmap="bwr", vmin=-1.0, vmax=1.0, interpolation="nearest")
        share = 100 * float((np.abs(vector) > 1e-5).mean())
        axes.set_title(f"{caption}\nlargest {largest:.2g}, {share:.0f} % non-zero", fontsize=8)
    return drawing

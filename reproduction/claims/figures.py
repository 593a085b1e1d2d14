"""The figure of an experiment, from the outcomes of its runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reproduction.claims.definition import Definition
from reproduction.claims.rules import Outcome, Outcomes, bound_series
from reproduction.pictures.curves import figure_of_curves
from reproduction.pictures.report import figure_of_bests, figure_of_dots, figure_of_images
from reproduction.problems.baselines import BASELINES

#: Metrics that figures show on a logarithmic axis.
_LOGARITHMIC = frozenset(
    {
        "recovery-error",
        "objective",
        "gap",
        "validation-mse",
        "l1-error",
        "consensus-error",
        "training-loss",
        "energy-error",
        "distance",
        "gradient-norm",
    }
)
#: A panel ``"energy-error against cpu-seconds"`` shows a metric over the cost of its rounds.
_AGAINST = " against "
#: Number of curves in a panel that a reader can tell apart.
_COLOURED = 6


def figure_of(definition: Definition, outcomes: Outcomes, images: Mapping[str, NDArray[Any]]) -> Any:
    """Return the figure of an experiment.

    Parameters
    ----------
    definition : Definition
    outcomes : mapping of str to sequence of Outcome
        By label, then by seed.
    images : mapping of str to ndarray
        For ``"images"``: the array of each label.

    Returns
    -------
    matplotlib.figure.Figure
    """
    if definition.kind == "images":
        return figure_of_images(images, definition.title)
    kind = _bests if definition.tuned else _dots if definition.kind == "scatter" else _curves
    return kind(definition, outcomes)


def _series(outcomes: Sequence[Outcome], panel: str) -> list[Any]:
    """Return a panel's series for each seed: a metric over rounds, or over the mean cost of the rounds."""
    metric, _, cost = panel.partition(_AGAINST)
    found = [run.series(metric) for run in outcomes if not run.diverged and run.history and metric in run.history[-1]]
    if not cost or not found:
        return found
    # The starting point has cost 0, which a logarithmic axis cannot show.
    costs = [run.series(cost) for run in outcomes if not run.diverged]
    at = [dict(zip(rounds.tolist(), values.tolist(), strict=True)) for rounds, values in costs]
    means = {when: float(np.mean([own[when] for own in at])) for when in at[0] if all(when in own for own in at)}
    return [
        (np.array([means[when] for when in rounds[kept]]), values[kept])
        for rounds, values in found
        for kept in [np.array([when > 0.0 and means.get(when, 0.0) > 0.0 for when in rounds.tolist()])]
    ]


def _coloured(definition: Definition) -> list[str]:
    """Return the curves with their own colour: as given in the definition, or those with the most claims.

    Baselines are drawn as levels and do not count.
    """
    curves = {line.label: line.curve for line in definition.runs if line.strategy not in BASELINES}
    if definition.coloured:
        return [curves.get(label, label) for label in definition.coloured]
    named = [curves[label] for claim in definition.claims for label in claim.labels() if label in curves]
    order = list(dict.fromkeys(curves.values()))
    return sorted(order, key=lambda curve: (-named.count(curve), order.index(curve)))[:_COLOURED]


def _bests(definition: Definition, outcomes: Outcomes) -> Any:
    """Return every method at its best rates: a panel for each varied factor and metric."""
    strategies = {line.label: line.strategy for line in definition.runs}
    methods = {point.method: strategies[point.runs[0][0]] for point in definition.tuned}
    best = [(point, point.best(outcomes).outcomes) for point in definition.tuned]
    against = {(p.variation.part, p.value): own for p, own in best if p.method == p.tune.against}
    found: dict[tuple[str, str], dict[str, list[tuple[Any, list[float]]]]] = {}
    for point, own in best:
        part, tune = point.variation.part, point.tune
        for metric in definition.panels:
            values = [outcome.final(metric, tune.window) for outcome in own]
            name = metric
            if tune.against:
                others = (outcome.final(metric, tune.window) for outcome in against[part, point.value])
                values = [value - other for value, other in zip(values, others, strict=True)]
                name = f"{metric}, less {tune.against}'s"
            panel = found.setdefault((part, name), {})
            panel.setdefault(point.method, []).append((point.value, [v for v in values if not math.isnan(v)]))
    limits = definition.limits
    return figure_of_bests(found, definition.title, methods=methods, logarithmic=_LOGARITHMIC, limits=limits)


def _dots(definition: Definition, outcomes: Outcomes) -> Any:
    """Return a dot for every pair of rates: a row for each method, a column for each of some rounds."""
    x, y = definition.panels
    dots = {
        label: [(int(line["round"]), (line[x], line[y])) for own in runs for line in own.history if {x, y} <= {*line}]
        for label, runs in outcomes.items()
    }
    measured = {when for own in dots.values() for when, _ in own}
    moments = sorted(measured & {10, 30, 100, 300}) or [max(measured)]
    baselines = {line.group for line in definition.runs if line.strategy in BASELINES}
    points = {
        group: [[dot for label in labels for at, dot in dots[label] if at == when] for when in moments]
        for group, labels in definition.groups.items()
        if group not in baselines
    }
    boxes: dict[str, Mapping[str, Sequence[float]]] = {}
    for claim in definition.claims:
        if claim.rule == "share":
            boxes.setdefault(claim.arguments["group"], claim.arguments["bounds"])
    return figure_of_dots(points, [f"round {when}" for when in moments], x, y, definition.title, boxes=boxes)


def _curves(definition: Definition, outcomes: Outcomes) -> Any:
    """Return the metrics over the rounds: a curve for each run, and the theorems' bounds."""
    parts = list(dict.fromkeys(line.part for line in definition.runs))
    # "gap, K = 1" is a panel of the part "K = 1" alone: the others do not report a metric of that name.
    wanted = [(part, panel.removesuffix(f", {part}")) for part in parts for panel in definition.panels]
    panels = {(part, metric): f"{metric}, {part}" if part else metric for part, metric in wanted}
    curves: dict[str, dict[str, Any]] = {}
    for line in definition.runs:
        for (part, metric), panel in panels.items():
            if part == line.part:
                curves.setdefault(line.curve, {})[panel] = _series(outcomes[line.label], metric)
    for claim in definition.claims:
        if claim.rule == "within-bound":
            (line,) = (line for line in definition.runs if line.label == claim.arguments["run"])
            own = {key: value for key, value in claim.arguments.items() if key not in ("run", "mean")}
            panel = panels[line.part, claim.arguments["metric"]]
            curves[f"bound, {line.curve}"] = {panel: [bound_series(outcomes[line.label][0], **own)]}
    metrics = {panel: metric for (_, metric), panel in panels.items()}
    # A part of another problem may not report all metrics.
    drawn = [panel for panel in metrics if any(own.get(panel) for own in curves.values())]
    in_rows = min(len(parts), len(definition.panels)) > 1 and drawn == list(metrics)
    return figure_of_curves(
        curves,
        drawn,
        definition.title,
        # A row for each part, if there are several and each has several panels.
        columns=len(definition.panels) if in_rows else 0,
        methods={**dict.fromkeys(curves, "bound"), **{line.curve: line.strategy for line in definition.runs}},
        coloured=_coloured(definition),
        levels={line.curve for line in definition.runs if line.strategy in BASELINES},
        logarithmic={panel for panel, metric in metrics.items() if metric.partition(_AGAINST)[0] in _LOGARITHMIC},
        limits={panel: definition.limits[metric] for panel, metric in metrics.items() if metric in definition.limits},
        across={panel: definition.axes[part] for (part, _), panel in panels.items() if part in definition.axes},
        targets={panel: definition.targets[own] for panel, own in metrics.items() if own in definition.targets},
    )

"""Runs as one HTML page that needs no network: settings, curves, costs, where the time went, the support."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

import flwr_fco
from flwr_fco.errors import ConfigurationError
from flwr_fco.models import printable
from reproduction.pictures.appearance import Appearance, appearances
from reproduction.pictures.comparison import Group, logarithmic_metrics, metric_names
from reproduction.pictures.curves import figure_of_curves
from reproduction.pictures.report import Series, require_matplotlib, svg_of
from reproduction.problems.baselines import BASELINES
from reproduction.runs.run_folder import RunRecord, SupportHistory
from reproduction.runs.settings import RunSettings
from reproduction.templates import render

#: What a problem that calls small coefficients zero reports as its density; 'density' is the share of nonzeros, as in
#: the pictures of the support.
_ABOVE = "density above threshold"
#: Metrics of the structure that psi promises: sparsity, rank, feasibility, and support.
_PROMISED = ("density", _ABOVE, "rank", "norm", "precision", "recall", "f1")
_PARTS = (
    ("clients-seconds", "clients", "#0072b2"),
    ("server-seconds", "server and messages", "#e69f00"),
    ("evaluation-seconds", "evaluation", "#999999"),
)
#: Metrics that some engines add to a round, shown among the costs.
_COSTS = ("bytes-down", "bytes-up", "seconds")
_DASHES = {"solid": "", "dashed": "7 3", "dashdot": "7 3 2 3", "dotted": "2 3"}
#: As many columns of final values as a window of 1,200 pixels shows.
_COLUMNS = 8


def html_page(groups: Sequence[Group]) -> str:
    """Return a self-contained page about runs.

    Parameters
    ----------
    groups : sequence of Group
        Groups from :func:`reproduction.pictures.comparison.compare`.

    Returns
    -------
    str

    Raises
    ------
    ConfigurationError
        If matplotlib, which draws the curves, is not installed.
    """
    require_matplotlib("a report as HTML needs matplotlib (--format text does not)")
    from matplotlib import rc_context

    # A name between dollars is a name here, and no formula.
    with rc_context({"text.parse_math": False}):
        return _page(groups)


def _page(groups: Sequence[Group]) -> str:
    groups = _by_one_rule(groups)
    looks = appearances({group.label: group.method for group in groups})
    names = metric_names(groups)
    settings = _settings(groups)
    metrics = list({key: None for group in groups for key in metric_names([group])})
    return render(
        "report.html",
        problems=", ".join({str(group.config.get("problem", "unknown problem")): None for group in groups}),
        groups=groups,
        looks=looks,
        dashes=_DASHES,
        parts=_PARTS,
        columns=_COLUMNS,
        metrics=metrics,
        runs=[_final(group, record) for group, record in _records(groups)],
        written=f"Written on {date.today().isoformat()} by flwr-fco {flwr_fco.__version__}",
        curves=[
            ("Curves", _curves(groups, [name for name in names if name not in (*_PROMISED, *_COSTS)], "curves")),
            ("Sparsity, rank and support", _curves(groups, [name for name in names if name in _PROMISED], "promised")),
        ],
        supports=[found for group in groups if (found := _support(group, looks[group.label]))],
        times=[times for group, record in _records(groups) if (times := _times(group, record))],
        **_costs(groups),
        differing=[row for row in settings if len(set(row[1:])) > 1],
        same=[row[:2] for row in settings if len(set(row[1:])) == 1],
        chosen=[
            [group.label, record.config.get("seed", ""), text]
            for group, record in _records(groups)
            if record.status
            for text in record.status.chosen
        ],
        commands=[text for _, record in _records(groups) if (text := _command(record))],
        two_rules=_ABOVE in metrics,
    )


def _records(groups: Sequence[Group]) -> Iterator[tuple[Group, RunRecord]]:
    return ((group, record) for group in groups for record in group.records)


def _by_one_rule(groups: Sequence[Group]) -> list[Group]:
    """Return groups whose density counts what is not exactly zero, as the support does, in all runs that allow it.

    The density by a problem's threshold, where it is another, becomes a metric of its own.
    """
    exact = {id(record): _nonzero_shares(record) for _, record in _records(groups)}
    recorded = [
        (line["density"], shares.get(line["round"]))
        for _, record in _records(groups)
        if (shares := exact[id(record)])
        for line in record.metrics
        if "density" in line
    ]
    if all(other is None or abs(value - other) < 1e-6 for value, other in recorded):
        return list(groups)
    return [
        replace(group, records=[_renamed(record, exact[id(record)]) for record in group.records]) for group in groups
    ]


def _nonzero_shares(record: RunRecord) -> dict[float, float]:
    """Return the share of nonzero coefficients in the rounds in which it is known."""
    coefficients = record.arrays.get("coefficients")
    if coefficients is None or not coefficients.size or not record.metrics:
        return {}
    found: dict[float, float] = {}
    if record.support is not None:
        edges = np.linspace(0, coefficients.size, record.support.share.shape[1] + 1).astype(np.int64)
        counts = (record.support.share * (edges[1:] - edges[:-1])).sum(axis=1)
        rounds = record.support.rounds * int(record.config.get("stretch", 1))
        found = dict(zip(rounds.tolist(), (counts / coefficients.size).tolist(), strict=True))
    return {**found, record.metrics[-1]["round"]: float((coefficients != 0).mean())}


def _renamed(record: RunRecord, shares: Mapping[float, float]) -> RunRecord:
    own = [{_ABOVE if key == "density" else key: value for key, value in line.items()} for line in record.metrics]
    exact = [{"round": number, "density": share} for number, share in shares.items()]
    # The last line says how long the run was.
    return record._replace(metrics=[*exact, *own])


def _command(record: RunRecord) -> str:
    """Return the command that repeats a run; nothing if another program wrote it."""
    try:
        return RunSettings.from_config(record.config).command()
    except ConfigurationError:
        return ""


def _final(group: Group, record: RunRecord) -> dict[str, Any]:
    """Return how a run ended, and the last value of each metric."""
    last = {key: value for line in record.metrics for key, value in line.items()}
    return {
        "label": group.label,
        "seed": record.config.get("seed", ""),
        "status": record.status,
        "rounds": f"{last.get('round', 0):g}",
        "last": {metric: f"{value:.4g}" for metric, value in last.items()},
    }


def _curves(groups: Sequence[Group], metrics: Sequence[str], salt: str) -> list[Markup]:
    curves = {group.label: {metric: group.series(metric) for metric in metrics} for group in groups}
    cut = {group.label: group.diverged for group in groups if group.diverged}
    return _panels(groups, curves, metrics, salt, logarithmic=logarithmic_metrics(groups, metrics), cut=cut)


def _panels(
    groups: Sequence[Group],
    curves: Mapping[str, Mapping[str, Sequence[Series]]],
    metrics: Sequence[str],
    salt: str,
    **how: Any,
) -> list[Markup]:
    how |= {"methods": {group.label: group.method for group in groups}, "legend": False}
    how["levels"] = [group.label for group in groups if group.method in BASELINES]
    return [
        _without_names(svg_of(figure_of_curves(curves, [metric], "", **how), f"{salt}-{number}"))
        for number, metric in enumerate(metrics)
        if any(curves[group.label].get(metric) for group in groups)
    ]


def _without_names(svg: str) -> Markup:
    """Return an SVG without matplotlib's metadata and element ids, which would be repeated in a page."""
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = "\n".join(map(printable, svg.split("\n")))
    return Markup(re.sub(r' id="[A-Za-z0-9.]+_\d+"', "", svg))


def _costs(groups: Sequence[Group]) -> dict[str, Any]:
    """Return the bytes and the replies of all runs that recorded them: a table and curves over the rounds."""
    megabytes, left_out = "megabytes sent so far", "replies left out so far"
    curves: dict[str, dict[str, list[Series]]] = {group.label: {megabytes: [], left_out: []} for group in groups}
    rows, total, keys = [], 0, ("bytes-down", "bytes-up", "num-left-out", "skipped")
    for group, record in _records(groups):
        lines = record.exchanges
        if not lines:
            continue
        rounds = np.array([line["round"] for line in lines]) * int(record.config.get("stretch", 1))
        down, up, lost, skipped = (np.array([line.get(key, 0) for line in lines]) for key in keys)
        curves[group.label][megabytes].append((rounds, np.cumsum(down + up) / 1e6))
        curves[group.label][left_out].append((rounds, np.cumsum(lost)))
        total += int(lost.sum())
        sent = [f"{part.sum() / 1e6:.3g}" for part in (down, up)]
        rows.append([group.label, record.config.get("seed", ""), *sent, int(lost.sum()), int(skipped.sum())])
    drawn = _panels(groups, curves, [megabytes, left_out] if total else [megabytes], "costs") if rows else []
    return {"costs": rows, "lost": total, "cost_curves": drawn}


def _times(group: Group, record: RunRecord) -> tuple[str, list[float], float] | None:
    """Return a run's name, the seconds of each part, and their sum; nothing if they were not recorded."""
    seconds = [sum(float(line.get(key, 0.0)) for line in record.exchanges) for key, _, _ in _PARTS]
    seed = f" (seed {record.config.get('seed', '')})" if len(group.records) > 1 else ""
    return (f"{group.label}{seed}", seconds, sum(seconds)) if sum(seconds) > 0 else None


def _support(group: Group, look: Appearance) -> dict[str, Any] | None:
    """Return the picture of the first run's support; nothing if it was not recorded, or is always everything."""
    record = group.records[0]
    support = record.support
    if support is None or not support.rounds.size or support.share.min() == 1.0:
        return None
    stretch = int(record.config.get("stretch", 1))
    title = group.label
    if len(group.records) > 1 and "seed" in record.config:
        title += f", seed {record.config['seed']}"
    if record.arrays.get("coefficients", np.zeros(0)).size:
        title += f": {(record.arrays['coefficients'] != 0).mean():.1%} not zero in the end"
    first, last = (int(support.rounds[i]) * stretch for i in (0, -1))
    return {"title": title, "height": 128, "source": _picture(support, look), "first": first, "last": last}


def _picture(support: SupportHistory, look: Appearance) -> str:
    """Return the heat map of a support as a data URL: white where all coefficients of a cell are zero."""
    from PIL import Image

    ink = np.array([int(look.color[i : i + 2], 16) for i in (1, 3, 5)], dtype=np.float64)
    share = support.share.T[:, :, None].astype(np.float64)
    pixels: NDArray[np.uint8] = np.rint(255.0 + share * (ink - 255.0)).astype(np.uint8)
    binary = io.BytesIO()
    Image.fromarray(pixels, "RGB").save(binary, format="PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(binary.getvalue()).decode()}"


def _settings(groups: Sequence[Group]) -> list[list[str]]:
    """Return a row for each setting: its name and the value of each group."""

    def cell(group: Group, key: str) -> str:
        if key == "seed":
            return ", ".join(str(record.config.get("seed", "")) for record in group.records)
        own = group.config.get(key, "")
        return own if isinstance(own, str) else json.dumps(own)

    keys = {key: None for group in groups for key in group.config}
    return [[key, *(cell(group, key) for group in groups)] for key in keys]

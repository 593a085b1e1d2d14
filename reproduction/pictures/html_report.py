"""Runs as one HTML page that needs no network: settings, curves, costs, where the time went, the support."""

from __future__ import annotations

import base64
import html
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reproduction.pictures.appearance import Appearance, appearances
from reproduction.pictures.comparison import Group, logarithmic_metrics, metric_names
from reproduction.pictures.report import Series, require_matplotlib, svg_of_curves
from reproduction.problems.baselines import BASELINES
from reproduction.runs.run_folder import RunRecord, SupportHistory

#: Metrics of the structure that psi promises: sparsity, rank, feasibility, and support.
_PROMISED = ("density", "rank", "norm", "precision", "recall", "f1")
_PARTS = (
    ("clients-seconds", "clients", "#0072b2"),
    ("server-seconds", "server and messages", "#e69f00"),
    ("evaluation-seconds", "evaluation", "#999999"),
)
#: Metrics that some engines add to a round, shown among the costs.
_COSTS = ("bytes-down", "bytes-up", "seconds")
_HEIGHT = 128
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
    looks = appearances({group.label: group.method for group in groups})
    problems = ", ".join({str(group.config.get("problem", "unknown problem")): None for group in groups})
    count = sum(len(group.records) for group in groups)
    bands = " Bands go from the smallest to the largest seed." if any(len(own.records) > 1 for own in groups) else ""
    keys = "".join(
        f'<span class="key">{_sample(looks[group.label])}{html.escape(group.label)}</span>' for group in groups
    )
    sections = [
        ("Final values", _final(groups, looks)),
        ("Curves", _curves(groups, [m for m in metric_names(groups) if m not in (*_PROMISED, *_COSTS)], "curves")),
        ("What psi promises", _curves(groups, [m for m in metric_names(groups) if m in _PROMISED], "promised")),
        ("Support over the rounds", _supports(groups, looks)),
        ("Bytes and replies", _costs(groups)),
        ("Where the time went", _times(groups)),
        ("Settings", _settings(groups)),
    ]
    style = (resources.files(__package__ or "") / "page.css").read_text(encoding="utf-8")
    body = "\n".join(f"<section><h2>{title}</h2>{text}</section>" for title, text in sections if text)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>flwr-fco: {html.escape(problems)}</title>
<style>
{style}</style>
</head>
<body>
<main>
<h1>{html.escape(problems)}</h1>
<p>{count} run{"s" if count > 1 else ""}.{bands}</p>
<div class="keys">{keys}</div>
{body}
</main>
</body>
</html>
"""


def _sample(look: Appearance) -> str:
    """Return a sample of the curve's line style."""
    dashes = {"solid": "", "dashed": "7 3", "dashdot": "7 3 2 3", "dotted": "2 3"}[look.line]
    dot = f'<circle cx="17" cy="6" r="3.2" fill="{look.color}"/>' if look.marker else ""
    return (
        f'<svg width="34" height="12" aria-hidden="true"><line x1="0" y1="6" x2="34" y2="6" stroke="{look.color}" '
        f'stroke-width="3" stroke-dasharray="{dashes}"/>{dot}</svg>'
    )


def _table(head: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]], *, numbers_from: int) -> str:
    """Return a table; a row is its CSS class and its cells, which are already HTML."""

    def cells(tag: str, texts: Sequence[str]) -> str:
        return "".join(
            f'<{tag} class="number">{text}</{tag}>' if i >= numbers_from else f"<{tag}>{text}</{tag}>"
            for i, text in enumerate(texts)
        )

    lines = "\n".join(f'<tr class="{kind}">{cells("td", texts)}</tr>' for kind, texts in rows)
    head_line = cells("th", [html.escape(text) for text in head])
    return f'<div class="scroll"><table><tr>{head_line}</tr>\n{lines}</table></div>'


def _final(groups: Sequence[Group], looks: Mapping[str, Appearance]) -> str:
    metrics = list({key: None for group in groups for key in metric_names([group])})
    # As many columns as a window of 1,200 pixels shows.
    parts = [metrics[i : i + _COLUMNS] for i in range(0, len(metrics), _COLUMNS)] or [[]]
    return "".join(_final_table(groups, looks, part) for part in parts)


def _final_table(groups: Sequence[Group], looks: Mapping[str, Appearance], metrics: Sequence[str]) -> str:
    rows = []
    for group, record in _records(groups):
        last = {key: value for line in record.metrics for key, value in line.items()}
        seed = html.escape(str(record.config.get("seed", "")))
        name = f'<span class="key">{_sample(looks[group.label])}{html.escape(group.label)}</span>'
        values = [f"{last[metric]:.4g}" if metric in last else "" for metric in metrics]
        rows.append(("", [name, seed, _outcome(record), f"{last.get('round', 0):g}", *values]))
    return _table(["run", "seed", "", "rounds", *metrics], rows, numbers_from=3)


def _outcome(record: RunRecord) -> str:
    """Return how a run ended; nothing if its folder does not say."""
    if record.status is None:
        return ""
    if record.status.diverged:
        return f'<span class="bad">diverged in round {record.status.diverged}</span>'
    return "finished" if record.status.finished else '<span class="bad">stopped</span>'


def _curves(groups: Sequence[Group], metrics: Sequence[str], salt: str) -> str:
    curves = {group.label: {metric: group.series(metric) for metric in metrics} for group in groups}
    cut = {group.label: group.diverged for group in groups if group.diverged}
    return _panels(groups, curves, metrics, logarithmic_metrics(groups, metrics), salt, cut)


def _panels(
    groups: Sequence[Group],
    curves: Mapping[str, Mapping[str, Sequence[Series]]],
    metrics: Sequence[str],
    logarithmic: set[str],
    salt: str,
    cut: Mapping[str, float] = MappingProxyType({}),
) -> str:
    drawn = [
        _without_names(
            svg_of_curves(
                curves,
                [metric],
                f"{salt}-{number}",
                methods={group.label: group.method for group in groups},
                levels=[group.label for group in groups if group.method in BASELINES],
                logarithmic=logarithmic,
                cut=cut,
                legend=False,
            )
        )
        for number, metric in enumerate(metrics)
        if any(curves[group.label].get(metric) for group in groups)
    ]
    return f'<div class="panels">{"".join(drawn)}</div>' if drawn else ""


def _without_names(svg: str) -> str:
    """Return an SVG without matplotlib's metadata and element ids, which would be repeated in a page."""
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    return re.sub(r' id="[A-Za-z0-9.]+_\d+"', "", svg)


def _records(groups: Sequence[Group]) -> Iterator[tuple[Group, RunRecord]]:
    return ((group, record) for group in groups for record in group.records)


def _costs(groups: Sequence[Group]) -> str:
    if not any(record.exchanges for _, record in _records(groups)):
        return ""
    megabytes, left_out = "megabytes sent so far", "replies left out so far"
    curves: dict[str, dict[str, list[Series]]] = {group.label: {megabytes: [], left_out: []} for group in groups}
    total = 0
    rows = []
    for group, record in _records(groups):
        lines = record.exchanges
        if not lines:
            continue
        rounds = np.array([line["round"] for line in lines]) * int(record.config.get("stretch", 1))
        down, up, lost, skipped = (
            np.array([line.get(key, 0) for line in lines])
            for key in ("bytes-down", "bytes-up", "num-left-out", "skipped")
        )
        curves[group.label][megabytes].append((rounds, np.cumsum(down + up) / 1e6))
        curves[group.label][left_out].append((rounds, np.cumsum(lost)))
        total += int(lost.sum())
        sent = [f"{part.sum() / 1e6:.3g}" for part in (down, up)]
        counts = [str(int(part.sum())) for part in (lost, skipped)]
        rows.append(("", [html.escape(group.label), html.escape(str(record.config.get("seed", ""))), *sent, *counts]))
    shown = [megabytes, left_out] if total else [megabytes]
    table = _table(["run", "seed", "MB down", "MB up", "replies left out", "rounds skipped"], rows, numbers_from=2)
    note = "" if total else "<p>No reply was left out.</p>"
    return table + note + _panels(groups, curves, shown, set(), "costs")


def _times(groups: Sequence[Group]) -> str:
    rows = []
    for group, record in _records(groups):
        seconds = {key: sum(float(line.get(key, 0.0)) for line in record.exchanges) for key, _, _ in _PARTS}
        total = sum(seconds.values())
        if total <= 0:
            continue
        pieces = "".join(
            f'<div style="width:{100 * seconds[key] / total:.2f}%;background:{color}" '
            f'title="{name}: {seconds[key]:.3g} s"></div>'
            for key, name, color in _PARTS
        )
        seed = record.config.get("seed", "")
        name = html.escape(f"{group.label} (seed {seed})" if len(group.records) > 1 else group.label)
        rows.append(f'<div>{name}</div><div class="bar">{pieces}</div><div>{total:.3g} s</div>')
    if not rows:
        return ""
    keys = "".join(
        f'<span class="key"><svg width="14" height="14" aria-hidden="true"><rect width="14" height="14" rx="3" '
        f'fill="{color}"/></svg>{name}</span>'
        for _, name, color in _PARTS
    )
    return f'<div class="split">{"".join(rows)}</div><div class="keys">{keys}</div>'


def _supports(groups: Sequence[Group], looks: Mapping[str, Appearance]) -> str:
    pictures = []
    for group in groups:
        record = group.records[0]
        support = record.support
        if support is None or not support.rounds.size or support.share.min() == 1.0:
            continue
        stretch = int(record.config.get("stretch", 1))
        first, last = (int(support.rounds[i]) * stretch for i in (0, -1))
        seed = f", seed {record.config['seed']}" if len(group.records) > 1 and "seed" in record.config else ""
        title = html.escape(group.label + seed)
        if "coefficients" in record.arrays:
            title += f": {(record.arrays['coefficients'] != 0).mean():.1%} not zero in the end"
        source = _picture(support, looks[group.label])
        pictures.append(
            f'<div class="map"><h3>{title}</h3>'
            f'<img height="{_HEIGHT}" alt="Coefficients that are not zero" src="{source}">'
            f'<div class="ends"><span>round {first}</span><span>round {last}</span></div></div>'
        )
    if not pictures:
        return ""
    text = (
        "From top to bottom the coefficients in the order of their arrays, from left to right the rounds. White: "
        "exactly zero; the density above may leave out small coefficients too."
    )
    return f"<p>{text}</p>{''.join(pictures)}"


def _picture(support: SupportHistory, look: Appearance) -> str:
    """Return the heat map of a support as a data URL: white where all coefficients of a cell are zero."""
    from PIL import Image

    ink = np.array([int(look.color[i : i + 2], 16) for i in (1, 3, 5)], dtype=np.float64)
    share = support.share.T[:, :, None].astype(np.float64)
    pixels: NDArray[np.uint8] = np.rint(255.0 + share * (ink - 255.0)).astype(np.uint8)
    binary = io.BytesIO()
    Image.fromarray(pixels, "RGB").save(binary, format="PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(binary.getvalue()).decode()}"


def _settings(groups: Sequence[Group]) -> str:
    keys = list({key: None for group in groups for key in group.config})

    def row(key: str) -> list[str]:
        if key == "seed":
            cells = [", ".join(str(record.config.get("seed", "")) for record in group.records) for group in groups]
        else:
            cells = [_text(group.config.get(key, "")) for group in groups]
        return [html.escape(text) for text in (key, *cells)]

    rows = {key: row(key) for key in keys}
    differing = [key for key in keys if len(set(rows[key][1:])) > 1]
    head = ["setting", *(group.label for group in groups)]
    table = _table(head, [("differs", rows[key]) for key in differing], numbers_from=99) if differing else ""
    same = [key for key in keys if key not in differing]
    common = _table(["setting", "all runs"], [("", rows[key][:2]) for key in same], numbers_from=99)
    if not differing:
        return common
    return f"{table}<details><summary>{len(same)} settings that are the same in all runs</summary>{common}</details>"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)

"""Reproduce a figure: run what is missing, judge its claims, draw it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from reproduction.densities import measure_densities
from reproduction.figure import Figure
from reproduction.pictures import draw
from reproduction.problems.baselines import BASELINES
from reproduction.rules import Outcome, Outcomes
from reproduction.running import Record, key_of, measured, read_records, run_all
from reproduction.running import run as run_plain
from reproduction.settings import RunSettings
from reproduction.verdicts import band, decide, measure, outcomes_of


class Report(NamedTuple):
    """The result of :func:`reproduce`: the rows of the claims with their verdicts, and what is to be stored."""

    figure: Figure
    rows: pd.DataFrame
    values: Mapping[str, Sequence[float]]
    records: Sequence[Record]
    table: str


def reproduce(
    figure: Figure, folder: Path, *, workers: int = 1, on_run: Callable[[int, int], None] = lambda done, total: None
) -> Report:
    """Run a figure; runs already in the folder are not repeated.

    Parameters
    ----------
    figure : Figure
    folder : Path
        Gets ``runs.jsonl`` (a finished run each line), ``figure.png`` and ``verdicts.md``.
    workers : int, default 1
        Runs at a time; with 1 they run one by one in this process.
    on_run : callable, optional
        Called with ``(finished, total)`` after each run.

    Returns
    -------
    Report

    Raises
    ------
    DataNotFoundError
        If the problem's files are missing.
    NotInstalledError
        If the problem needs a package that is not installed.

    Examples
    --------
    >>> import tempfile
    >>> from reproduction.figure import find_figure
    >>> report = reproduce(find_figure("fco-theorems", quick=True), Path(tempfile.mkdtemp()))
    >>> list(report.rows.verdict)
    ['holds']
    """
    jobs = [figure.run_settings(one, seed) for seed in figure.seeds for one in figure.runs]
    array = figure.panels[0] if figure.kind == "images" else ""
    do = partial(_measured, densities=figure.kind == "densities", gap=figure.gap, array=array)
    file = folder / "runs.jsonl"
    keys = {key_of(own.to_config()) for own in jobs}
    for done, _ in run_all(jobs, file, do, workers):
        on_run(done, len(keys))
    records = {key: own for key, own in read_records(file).items() if key in keys}
    outcomes = outcomes_of(figure, records)
    values = measure(figure, outcomes)
    rows = decide(figure, values)
    tables = [
        make(figure, outcomes) for asked, make in ((figure.bests, _of_bests), (figure.table, _of_rounds)) if asked
    ]
    table = "\n".join(tables).strip()
    claims = table_of(("claim", "measured", "verdict"), rows[["claim", "measured", "verdict"]].values.tolist())
    (folder / "verdicts.md").write_text(f"# {figure.name}: {figure.title}\n\n{claims}\n{table}\n", encoding="utf-8")
    first = {one.label: figure.run_settings(one, figure.seeds[0]).to_config() for one in figure.runs}
    images = {label: records[key_of(config)]["model"] for label, config in first.items()} if array else {}
    draw(figure, outcomes, images, folder / "figure.png")
    return Report(figure, rows, values, list(records.values()), table)


def _measured(settings: RunSettings, densities: bool, gap: bool, array: str) -> Record:
    run = measure_densities if densities and settings.strategy not in BASELINES else run_plain
    return measured(settings, gap=gap, array=array, run=run)


def table_of(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return rows of cells as a Markdown table."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |" for cells in (head, *rows)]
    lines.insert(1, "|---" * len(head) + "|")
    return "\n".join(lines) + "\n"


def _of_rounds(figure: Figure, outcomes: Outcomes) -> str:
    """Return each run's values at the rounds of the figure's table, next to the published values."""
    metric = figure.table["metric"]
    rounds = figure.table["rounds"]
    known = figure.table.get("known", {})

    def value_at(own: Outcome, when: float) -> float:
        at, values = own.series(metric)
        reached = np.flatnonzero(at <= when)
        cut = own.diverged and own.diverged <= when
        return math.nan if cut or not reached.size else float(values[reached[-1]])

    rows = []
    for one in figure.runs:
        # A run that has ended has no value at a later round.
        last = one.settings.get("num_rounds", math.inf)
        bands = [band([value_at(own, when) for own in outcomes[one.label]]) if when <= last else "" for when in rounds]
        published = [" / ".join(f"{value:g}" for value in known.get(one.label, []))] if known else []
        rows.append([one.label, *bands, *published])
    text = f"Median [smallest, largest] over the seeds{'; known: ' + figure.table['source'] if known else ''}.\n\n"
    head = [f"{metric} after round", *(f"{when:,}" for when in rounds), *(["known"] if known else [])]
    return text + table_of(head, rows)


def _of_bests(figure: Figure, outcomes: Outcomes) -> str:
    """Return the results of each method at its best rates, and these rates."""
    assert figure.tune is not None
    tune = figure.tune
    text = f"At the best rates of each seed by {'largest' if tune.largest else 'smallest'} {tune.metric}"
    text += f" (mean of the last {tune.window} evaluations)" if tune.window > 1 else ""
    text += ": median [smallest, largest] over the seeds; (client, server) rates of the first seed.\n"
    cells = []
    for point in figure.bests:
        best = point.of(outcomes, tune)
        first = best[0][1]
        values = [math.nan if rates is None else own.final(tune.metric, tune.window) for own, rates in best]
        cell = band(values) + (f" ({first[0]:g}, {first[1]:g})" if first else "")
        cells.append((point.part, point.method, str(point.value), cell))
    frame = pd.DataFrame(cells, columns=["part", "method", "value", "cell"])
    for part, own in frame.groupby("part", sort=False):
        rows = [[str(method), *found.cell] for method, found in own.groupby("method", sort=False)]
        text += "\n" + table_of([str(part), *own["value"].unique()], rows)
    return text

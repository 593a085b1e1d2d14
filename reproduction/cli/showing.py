"""The commands ``plot`` and ``report``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flwr_fco.errors import ConfigurationError
from reproduction.cli import shell
from reproduction.values import suggestion
from tools import terminal

if TYPE_CHECKING:
    from reproduction.pictures.comparison import Group
    from reproduction.runs.run_folder import RunRecord


class _Format(StrEnum):
    """The format of a report."""

    text = "text"
    html = "html"


def plot(
    runs: shell.Runs,
    metric: Annotated[list[str] | None, typer.Option(help="May be given several times; default: all.")] = None,
    seed: shell.OfSeed = None,
    out: Annotated[Path, typer.Option(help="The PNG (an SVG is written beside it), or an .svg or .pdf.")] = Path(
        "runs.png"
    ),
    linear: Annotated[
        bool, typer.Option("--linear", help="No logarithmic axes; by default where values span decades.")
    ] = False,
    overlay: Annotated[
        bool, typer.Option("--overlay", help="Draw runs of different problems over each other all the same.")
    ] = False,
) -> None:
    """Plot the metrics of run folders against rounds; runs that differ only in the seed become a band.

    The labels name the settings in which the runs differ. A diverged run is cut where it leaves the range of the
    others.

    Examples
    --------
    `python -m reproduction plot runs/lasso-I-FedDualAvg-0 runs/lasso-I-FedMid-0 --metric f1 --out f1.png`

    `python -m reproduction plot runs/lasso-I-* --seed 3`
    """
    from reproduction.pictures.comparison import logarithmic_metrics, metric_names, require_one_problem
    from reproduction.pictures.curves import figure_of_curves
    from reproduction.pictures.report import draw
    from reproduction.problems.baselines import BASELINES

    if not out.name:
        raise ConfigurationError(f"--out {out} is no name of a file; expected one such as runs.png")
    groups = _groups(runs, seed)
    if not overlay:
        require_one_problem(groups)
    wanted = metric or metric_names(groups)
    known = list({key: None for group in groups for key in metric_names([group])})
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise ConfigurationError(
            f"metric={unknown[0]!r}; these runs have {', '.join(known)}{suggestion(unknown[0], known)}"
        )
    labels = {
        group.label + (f" (diverged in round {group.diverged})" if group.diverged else ""): group for group in groups
    }
    figure = figure_of_curves(
        {label: {name: group.series(name) for name in wanted} for label, group in labels.items()},
        wanted,
        "",
        methods={label: group.method for label, group in labels.items()},
        levels={label for label, group in labels.items() if group.method in BASELINES},
        logarithmic=set() if linear else logarithmic_metrics(groups, wanted),
        cut={label: group.diverged for label, group in labels.items() if group.diverged},
    )
    draw(figure, out)
    terminal.say(f"Picture: {out}")


def report(
    runs: shell.Runs,
    seed: shell.OfSeed = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Text: write the table to this Markdown file too. HTML: the page; default report.html."),
    ] = None,
    kind: Annotated[
        _Format | None,
        typer.Option(
            "--format",
            help="`text`: final metrics as a Markdown table; `html`: one page with settings, curves, costs, supports. "
            "By default text, and HTML where --out ends in .html.",
        ),
    ] = None,
) -> None:
    """Compare run folders: a table of their final metrics, or one HTML page with all details.

    The page needs no network and no other file. Bytes, time and supports are shown for in-process runs. If there are
    several runs, those that ended before they had results are left out, with a message.

    Examples
    --------
    `python -m reproduction report runs/* --out report.md`

    `python -m reproduction report runs/lasso-I-* --format html --out lasso.html`

    `python -m reproduction report runs/* --seed 3`
    """
    from reproduction.pictures.report import markdown_table

    if kind is None:
        kind = _Format.html if out is not None and out.suffix in (".html", ".htm") else _Format.text
    if kind is _Format.html:
        from reproduction.pictures.html_report import html_page

        place = out or Path("report.html")
        shell.write(place, html_page(_groups(runs, seed)))
        terminal.say(f"Page: {place}")
        return
    rows = [
        {
            "run": path.name,
            **{key: record.config.get(key, "") for key in ("problem", "strategy", "seed")},
            **record.metrics[-1],
        }
        for path, record in _read(runs, seed)
    ]
    table = markdown_table(rows)
    typer.echo(table)
    if out is not None:
        shell.write(out, table + "\n")


def _groups(paths: list[Path], seed: int | None) -> list[Group]:
    """Return the runs of a seed, or all runs, grouped by their settings."""
    from reproduction.pictures.comparison import compare

    return compare([(path.name, record) for path, record in _read(paths, seed)])


def _read(paths: list[Path], seed: int | None) -> list[tuple[Path, RunRecord]]:
    """Return the runs of a seed, or all runs, with their folders; of several, runs without results are left out."""
    from reproduction.runs.run_folder import only_begun, read_run

    left_out = [path for path in paths if only_begun(path)]
    if len(left_out) == len(paths):
        left_out = []
    for path in left_out:
        terminal.say(f"{path} is left out: its run ended before it had results", to_errors=True)
    records = [(path, read_run(path)) for path in paths if path not in left_out]
    for path, record in records:
        if not record.metrics:
            raise ConfigurationError(f"{path} has no metrics; expected the folder of a run that was evaluated")
    found = [(path, record) for path, record in records if seed in (None, record.config.get("seed"))]
    if not found:
        seeds = sorted({str(record.config.get("seed")) for _, record in records})
        raise ConfigurationError(f"seed={seed}; these runs have {', '.join(seeds)}. Give one of them, or no --seed")
    return found

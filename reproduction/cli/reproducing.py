"""The command ``reproduce``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from flwr_fco.errors import NotInstalledError
from reproduction.cli import shell
from reproduction.data import DataNotFoundError
from tools import terminal

if TYPE_CHECKING:
    from reproduction.claims.definition import Definition


def reproduce(
    experiment: Annotated[
        str,
        typer.Argument(
            help="An experiment of `python -m reproduction list`, a pattern such as `'fco-fig1*'`, or `all`."
        ),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A setting of every run, of the problem, or `problem` itself; may be given several times.",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer rounds, two seeds, one claim, which must hold (else exit code 1).")
    ] = False,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="The first of the seeds.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder; finished runs in it are not repeated.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Runs at a time.")] = 1,
    engine: Annotated[
        str, typer.Option(help="Where the runs are: `processes`, `in-process` or `ray` (RAY_ADDRESS: that cluster).")
    ] = "processes",
    num_cpus: shell.NumCpus = None,
    num_gpus: shell.NumGpus = None,
    quiet: shell.Quiet = False,
) -> None:
    """Run an experiment, several by a pattern, or `all`: data, figure and a table of verdicts.

    Examples (with `all` or a pattern, each experiment gets its own folder in `--out`; experiments whose data files or
    optional packages are missing are skipped with a message; without `--quick`, `all` leaves out `gt-long1` and
    `gt-long2`, which take hours and go on where they were stopped):

    `python -m reproduction reproduce fco-fig3 --out results/fco-fig3 --workers 2`

    `python -m reproduction reproduce "fco-*" --out results`

    `python -m reproduction reproduce all --quick`

    On other data or with other settings, in a folder whose name says so; the claims are judged unchanged. Nothing is
    downloaded unless requested:

    `python -m reproduction reproduce fco-fig13 --set problem=femnist --set fetch=true`

    `python -m reproduction reproduce fco-fig5 --set fetch=true --set num-held-out=12 --set split=5`
    """
    from reproduction.claims.definition import EXPERIMENTS, select_experiments
    from reproduction.claims.pages import write_pages
    from reproduction.claims.stored import read_folders

    reserved = shell.reservation(engine, num_cpus, num_gpus)
    overrides = shell.parsed(settings)
    # Check all experiments before the first one runs: a setting that one of them does not have is an error.
    chosen = [_chosen(name, quick, seed, overrides) for name in select_experiments(experiment, long=quick)]
    alone = experiment in EXPERIMENTS
    held = True
    for definition in chosen:
        # Below --out a pattern's quick versions have the experiments' names: they are all quick.
        below = definition.folder_name() if out is None else replace(definition, shortened=False).folder_name()
        folder = out if out is not None and alone else (out or Path("results")) / below
        try:
            held = _reproduce(definition, folder, workers, engine, reserved, quiet) and held
        except (DataNotFoundError, NotInstalledError) as error:
            if alone:
                raise
            terminal.say(f"{definition.name} skipped: {error}")
    results = out or Path("results")
    if not alone and (known := read_folders(results)):
        written = write_pages(known, results, "{}/figure.png")
        terminal.say(f"Pages of all experiments in {results}: {written[-1]}")
    if quick and not held:
        raise typer.Exit(terminal.FAILED)


def _chosen(name: str, quick: bool, seed: int | None, overrides: dict[str, Any]) -> Definition:
    """Return an experiment, or its quick version, with a seed and other settings."""
    from reproduction.claims.definition import load_definition

    definition = load_definition(name)
    if quick:
        definition = definition.quick_version()
    if seed is not None:
        definition = replace(definition, seeds=tuple(seed + i for i in range(len(definition.seeds))))
    return definition.with_settings(overrides)


def _reproduce(
    definition: Definition, folder: Path, workers: int, engine: str, reserved: dict[str, float], quiet: bool
) -> bool:
    """Run an experiment, print its table, return whether all claims hold."""
    from reproduction.claims.pages import short_table
    from reproduction.claims.reproduction import reproduce as run_experiment
    from reproduction.claims.stored import keep

    name = definition.name
    total = len(definition.runs) * len(definition.seeds)
    with shell.progress(total, f"{name}: runs", quiet) as advance:
        found = run_experiment(
            definition, folder, workers=workers, engine=engine, **reserved, on_run=lambda done, _: advance(done)
        )
    keep(found)
    shell.write(folder / "summary.md", f"# {name}: {definition.title}\n\n{short_table(found.verdicts)}")
    table = terminal.make_table(f"{name}: {definition.title}", (), show_lines=True)
    for column in ("claim", "paper", "measured", "rates", "verdict"):
        table.add_column(column, overflow="fold")
    for verdict in found.verdicts:
        cells = (verdict.name, verdict.number, verdict.measured, verdict.rates)
        color = {"holds": "green", "does not hold": "red"}.get(verdict.verdict, "yellow")
        table.add_row(*cells, Text(f"{'ours: ' * verdict.ours}{verdict.verdict}", style=color))
    terminal.console().print(table)
    terminal.say(f"{found.seconds:.0f} s; data, figure and verdicts: {folder}")
    return all(verdict.holds for verdict in found.verdicts)

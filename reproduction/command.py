"""The command ``python -m reproduction``: list, run, reproduce."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import Progress

from flwr_fco.errors import ConfigurationError, NotInstalledError
from tools import terminal
from tools.terminal import Command

app = typer.Typer(
    name="python -m reproduction",
    help="Four papers on federated composite optimisation: their problems, their methods and their figures.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


def parsed(settings: list[str]) -> dict[str, Any]:
    """Return the keys and values of ``key=value`` texts; a value is JSON, or else a text.

    Examples
    --------
    >>> parsed(["client-lr=0.01", "fetch=true", "path=data/mnist"])
    {'client-lr': 0.01, 'fetch': True, 'path': 'data/mnist'}
    """
    found: dict[str, Any] = {}
    for text in settings:
        key, _, value = (part.strip() for part in text.partition("="))
        if not key or not value or key in found:
            raise ConfigurationError(f"--set {text!r}; expected key=value, once for each key, as in client-lr=0.01")
        try:
            found[key] = json.loads(value)
        except ValueError:
            found[key] = value
    return found


@app.command("list", cls=Command)
def list_everything() -> None:
    """List strategies, baselines, problems and figures."""
    import reproduction.figures  # noqa: F401
    from reproduction.figure import DESCRIBED, find_figure
    from reproduction.problems.baselines import BASELINES
    from reproduction.problems.named import PROBLEMS
    from reproduction.rivals import STRATEGIES

    options = {name: f"{own.description} [{', '.join(own.options)}]" for name, own in PROBLEMS.items()}
    parts = {
        "Strategies: run --strategy NAME": {n: (kind.__doc__ or "").splitlines()[0] for n, kind in STRATEGIES.items()},
        "Baselines: run --strategy NAME": BASELINES,
        "Problems: run NAME, with --set OPTION=VALUE": options,
        "Figures: reproduce NAME": {name: find_figure(name).title for name in DESCRIBED},
    }
    for title, entries in parts.items():
        table = terminal.make_table(title, (), show_header=False, box=None, padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True, style="cyan")
        table.add_column(overflow="fold")
        for name, text in entries.items():
            table.add_row(name, text.replace(":class:", "").replace("`", ""))
        terminal.console().print(table)


@app.command("run", cls=Command)
def run_problem(
    problem: Annotated[str, typer.Argument(help="A problem of `python -m reproduction list`.")],
    strategy: Annotated[str, typer.Option(help="A strategy or baseline.")] = "FedDualAvg",
    settings: Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help="A setting.")] = [],  # noqa: B006
    seed: Annotated[int, typer.Option(min=0, help="Of the data, the sampling of clients and the minibatches.")] = 0,
    out: Annotated[Path | None, typer.Option(help="A file to which the run is added, as a line of JSON.")] = None,
) -> None:
    """Run a problem with a strategy and print its last metrics.

    Examples
    --------
    `python -m reproduction run lasso-I --strategy FedDualAvg --set server-lr=3`

    `python -m reproduction run haxby --strategy centralized --set path=data/haxby-slice`

    `python -m reproduction run mnist-l1-ball --set source=openml` (nothing is downloaded without such a setting)
    """
    from reproduction.running import run
    from reproduction.settings import RunSettings

    chosen = RunSettings.of(problem, strategy, parsed(settings), seed)
    if out is not None:
        # Before the run, which would be lost with a place that cannot be written.
        out.parent.mkdir(parents=True, exist_ok=True)
        out.touch()
    result = run(chosen)
    scores = terminal.make_table(f"{problem}, {strategy}, seed {seed}", ["metric", "value"])
    for name, value in result.history[-1].items():
        scores.add_row(name, f"{value:.6g}")
    terminal.console().print(scores)
    for text in result.chosen:
        terminal.say(f"Chosen: {text}")
    if out is not None:
        line = {"settings": chosen.to_config(), "diverged": result.diverged, "history": result.history}
        with out.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(line) + "\n")
    if result.diverged:
        terminal.say(f"The run diverged in round {result.diverged} and was cut there; lower the rates.")
        raise typer.Exit(terminal.FAILED)


@app.command(cls=Command)
def reproduce(
    figures: Annotated[str, typer.Argument(help="A figure, a pattern such as `'fco-fig1*'`, or `all`.")],
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer rounds, two seeds, one claim, which must hold (else exit code 1).")
    ] = False,
    settings: Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help="A setting of every run.")] = [],  # noqa: B006
    out: Annotated[Path, typer.Option(help="Folder; finished runs in it are not repeated.")] = Path("results"),
    workers: Annotated[int, typer.Option(min=1, help="Runs at a time.")] = 1,
    store: Annotated[
        bool, typer.Option("--store", help="Write the results, the pictures and the pages of docs/reproduction.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Run a figure, several by a pattern, or `all`: data, picture, and verdicts beside the stored values.

    Figures whose data or packages are missing are skipped with a message. Without `--quick`, `all` leaves out
    `gt-long1` and `gt-long2`, which take hours. The exit code is 1 where a value is not the stored one.

    Examples
    --------
    `python -m reproduction reproduce fco-fig3 --workers 2`

    `python -m reproduction reproduce all --quick`
    """
    import reproduction.figures  # noqa: F401
    from reproduction.data import DataNotFoundError
    from reproduction.figure import DESCRIBED, find_figure

    names = [name for name in DESCRIBED if figures == "all" or fnmatchcase(name, figures)]
    overrides = parsed(settings)
    chosen = [find_figure(name, quick=quick).replace(overrides) for name in names or [figures]]
    if figures == "all" and not quick:
        chosen = [own for own in chosen if not own.hours]
    failed = []
    new = {}
    for own in chosen:
        try:
            wrong, result = _reproduce(own, out / own.name, quick, bool(overrides), workers, quiet)
        except (DataNotFoundError, NotInstalledError) as error:
            if len(chosen) == 1:
                raise
            terminal.say(f"{own.name} skipped: {error}")
            continue
        failed += wrong
        new[own.name] = result
    if store and not (quick or overrides):
        from reproduction.pages import store_results

        store_results(new, out)
    if failed:
        for text in failed:
            terminal.say(text)
        raise typer.Exit(terminal.FAILED)


def _reproduce(
    own: Any, folder: Path, quick: bool, changed: bool, workers: int, quiet: bool
) -> tuple[list[str], dict[str, Any]]:
    """Run a figure and print its table; return what is not as it should be, and the result to store."""
    from reproduction.reproduce import reproduce
    from reproduction.verdicts import read_results, result_of, stored_values, unlike

    with Progress(console=terminal.console(), disable=quiet, transient=True) as bar:
        task = bar.add_task(own.name)
        report = reproduce(
            own, folder, workers=workers, on_run=lambda done, total: bar.update(task, completed=done, total=total)
        )
    table = terminal.make_table(f"{own.name}: {own.title}", ["claim", "paper", "measured", "verdict"], show_lines=True)
    for row in report.rows.itertuples():
        table.add_row(row.claim, row.number, row.measured, f"ours: {row.verdict}" if row.ours else row.verdict)
    terminal.console().print(table)
    terminal.say(f"Runs, picture and verdicts: {folder}")
    if quick and not changed:
        wrong = [
            f"{own.name}: {row.claim}: {row.verdict}" for row in report.rows.itertuples() if row.verdict != "holds"
        ]
        return wrong, {}
    known = {} if changed else stored_values(own, read_results())
    wrong = [
        f"{own.name}: {claim}: {report.values[claim]}, stored {known[claim]}" for claim in unlike(report.values, known)
    ]
    terminal.say(f"{len(known) - len(wrong)} of {len(known)} values are the stored ones.")
    return wrong, result_of(own, report.values, report.records, report.table)


def main() -> None:
    """Run the command line."""
    app(prog_name="python -m reproduction")

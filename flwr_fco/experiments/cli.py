"""The command ``flwr-fco``: list, run, sweep, reproduce, plot, report.

Imports that take time (Flower, numba, Ray) are inside the commands, so that ``--help`` answers at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from flwr_fco.errors import CompositeError, ConfigurationError, DataNotFoundError

if TYPE_CHECKING:
    from flwr_fco.experiments.run_folder import RunRecord

__all__ = ["app", "main"]

app = typer.Typer(
    name="flwr-fco",
    help="Federated composite optimisation: run problems, sweep settings, reproduce a paper's figures.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)

#: Exit codes besides 0: a claim that a quick run asserts does not hold; bad input, as typer has it.
FAILED, BAD_INPUT = 1, 2

Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A setting; may be given several times."),
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Of data, split, samples and minibatches.")]
OfSeed = Annotated[int | None, typer.Option("--seed", min=0, help="Only the runs of this seed.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bar.")]


@contextmanager
def _errors() -> Iterator[None]:
    """Turn the package's errors into a message and an exit code."""
    try:
        yield
    except CompositeError as error:
        _complain(str(error))
        raise typer.Exit(BAD_INPUT if isinstance(error, ValueError | FileNotFoundError) else FAILED) from error
    except (PermissionError, NotADirectoryError, IsADirectoryError, FileExistsError) as error:
        _complain(f"{error.filename} cannot be written: {error.strerror}. Give another place by --out")
        raise typer.Exit(BAD_INPUT) from error


def _complain(text: str) -> None:
    Console(stderr=True, soft_wrap=True).print(f"[red]Error:[/red] {_escaped(text)}", highlight=False)


@contextmanager
def _progress(total: int, what: str, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Show a bar on standard error; yield a function that sets what is done."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=quiet, refresh_per_second=4) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)


@app.command("list")
def list_(
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="Load every problem with this seed and say how large it is.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write it to this Markdown file too.")] = None,
    quiet: Quiet = False,
) -> None:
    """List strategies, baselines, regularizers, objectives, problems and experiments.

    Examples
    --------
    `flwr-fco list`

    `flwr-fco list --seed 3 --out list.md`
    """
    with _errors():
        parts = _everything()
        if seed is not None:
            parts["Problems"] = _with_sizes(parts["Problems"], seed, quiet)
        console = _console()
        for title, entries in parts.items():
            table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
            table.add_column(no_wrap=True, style="cyan")
            table.add_column(overflow="fold")
            for name, text in entries.items():
                table.add_row(name, _escaped(text))
            console.print(table)
            console.print()
        if out is not None:
            from flwr_fco.experiments.report import markdown_table

            tables = [
                f"## {title}\n\n{markdown_table([{'name': name, 'what': text} for name, text in entries.items()])}\n"
                for title, entries in parts.items()
            ]
            _write(out, "\n".join(tables))


def _everything() -> dict[str, dict[str, str]]:
    """Return what there is: title to name to a line about it."""
    from flwr_fco import objectives, regularizers
    from flwr_fco.experiments import EXPERIMENTS, load_definition
    from flwr_fco.experiments.baselines import BASELINES
    from flwr_fco.experiments.methods import STRATEGIES
    from flwr_fco.experiments.problems import PROBLEMS

    def documented(module: Any, base: type) -> dict[str, str]:
        found = {name: getattr(module, name) for name in module.__all__}
        return {
            name: _first_line(kind)
            for name, kind in found.items()
            if isinstance(kind, type) and issubclass(kind, base) and kind is not base
        }

    return {
        "Strategies": {name: _first_line(kind) for name, kind in STRATEGIES.items()},
        "Baselines": BASELINES,
        "Regularizers": documented(regularizers, regularizers.Regularizer),
        "Objectives": documented(objectives, objectives.Objective),
        "Problems": {
            name: f"{problem.description} [{', '.join(problem.options())}]" for name, problem in PROBLEMS.items()
        },
        "Experiments": {name: load_definition(name).title for name in EXPERIMENTS},
    }


def _with_sizes(problems: dict[str, str], seed: int, quiet: bool) -> dict[str, str]:
    """Return the problems' lines with the sizes that their data have for a seed."""
    from flwr_fco.experiments.problems import load_task

    found = {}
    with _progress(len(problems), f"loading with seed {seed}", quiet) as advance:
        for number, (name, text) in enumerate(problems.items(), start=1):
            try:
                task = load_task(name, seed)
                sizes = [client.num_examples for client in task.clients]
                size = (
                    f"seed {seed}: {len(sizes)} clients with {min(sizes)} to {max(sizes)} examples, "
                    f"{sum(sizes)} in all, {task.layout.size} parameters"
                )
            except DataNotFoundError:
                size = f"seed {seed}: its files are not here"
            except ConfigurationError as error:
                size = f"seed {seed}: {error}"
            found[name] = f"{text}; {size}"
            advance(number)
    return found


@app.command("run")
def run_command(
    problem: Annotated[str, typer.Argument(help="A problem of `flwr-fco list`.")],
    strategy: Annotated[str, typer.Option(help="A strategy or baseline of `flwr-fco list`.")] = "FedDualAvg",
    settings: Assignments = None,
    seed: Seed = 0,
    out: Annotated[Path | None, typer.Option(help="Run folder to write; default runs/PROBLEM-STRATEGY-SEED.")] = None,
    engine: Annotated[
        str, typer.Option(help="`in-process`, or `flower`: submit it with `flwr run` to a SuperLink of its own.")
    ] = "in-process",
    quiet: Quiet = False,
) -> None:
    """Run a problem of `flwr-fco list` with a strategy and print its metrics.

    Examples
    --------
    `flwr-fco run lasso-I --strategy FedDualAvg --set server-lr=3`

    `flwr-fco run haxby --strategy centralized --set path=data/haxby-slice`

    `flwr-fco run digits --strategy FedMid --set num-rounds=20 --engine flower --out runs/flower`
    """
    with _errors():
        from flwr_fco.experiments.runs import run, save_run
        from flwr_fco.experiments.settings import RunSettings, parse_assignments, parse_value

        assignments = {key: parse_value(text) for key, text in parse_assignments(settings or []).items()}
        chosen = RunSettings.of(problem, strategy, assignments, seed)
        folder = out or Path("runs") / f"{problem}-{strategy}-{seed}"
        if engine not in ("in-process", "flower"):
            raise ConfigurationError(f"engine={engine!r}; expected 'in-process' or 'flower'")
        if (folder / "config.json").exists():
            raise ConfigurationError(f"the run folder {folder} holds a run already; give another by --out")
        with _progress(chosen.num_rounds, f"{problem}, {strategy}", quiet) as advance:
            if engine == "flower":
                from flwr_fco.experiments.engine import run_with_flower

                result = run_with_flower(chosen, folder, on_round=advance)
            else:
                result = run(chosen, on_round=advance)
            if not result.diverged:
                # A baseline has no rounds of its own.
                advance(chosen.num_rounds)
        save_run(result, folder)
        console = _console()
        scores = Table(title=f"{problem}, {strategy}, seed {chosen.seed}", title_justify="left")
        scores.add_column("metric")
        scores.add_column("value", justify="right")
        for name, value in result.history[-1].items():
            scores.add_row(name, f"{value:.6g}")
        console.print(scores)
        console.print(f"{result.seconds:.1f} s; run folder: {folder}", highlight=False)
        if result.diverged:
            console.print(f"The run diverged in round {result.diverged} and was cut there; lower the rates.")
            raise typer.Exit(FAILED)


@app.command()
def sweep(
    problem: Annotated[str, typer.Argument(help="A problem of `flwr-fco list`.")],
    strategy: Annotated[list[str], typer.Option(help="A strategy; may be given several times.")],
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUES",
            help="Values with commas between them, or uniform(a, b), loguniform(a, b), integers(a, b).",
        ),
    ] = None,
    samples: Annotated[int, typer.Option(min=0, help="Number of trials of a random search; 0: the whole grid.")] = 0,
    seed: Seed = 0,
    rule: Annotated[str, typer.Option(help="recovery-error, f1, objective, validation-objective, accuracy.")] = (
        "recovery-error"
    ),
    out: Annotated[Path | None, typer.Option(help="Folder; a sweep that was stopped goes on in it.")] = None,
    engine: Annotated[str, typer.Option(help="`ray` (RAY_ADDRESS: that cluster), or `in-process`.")] = "ray",
    workers: Annotated[int, typer.Option(min=0, help="Ray workers on this machine; 0: one a core.")] = 0,
    quiet: Quiet = False,
) -> None:
    """Sweep settings of a problem of `flwr-fco list`, in a grid or at random: a table, the best ones, heat maps.

    Examples
    --------
    `flwr-fco sweep lasso-I --strategy FedDualAvg --strategy FedMid
    --set client-lr=0.001,0.003,0.01,0.03,0.1,0.3,1 --set server-lr=0.01,0.03,0.1,0.3,1,3,10`

    `flwr-fco sweep haxby --strategy FedDualAvg --set "client-lr=loguniform(1e-3, 1)" --samples 20
    --rule validation-objective`
    """
    with _errors():
        from flwr_fco.experiments.settings import RunSettings, parse_assignments
        from flwr_fco.experiments.sweep import CRITERIA, best_trials, expand_axes, parse_axis, run_sweep

        if rule not in CRITERIA:
            raise ConfigurationError(f"rule={rule!r}; expected one of {', '.join(CRITERIA)}")
        axes = [parse_axis(key, text) for key, text in parse_assignments(settings or []).items()]
        points = expand_axes(axes, samples, seed)
        trials = [RunSettings.of(problem, name, point, seed) for name in strategy for point in points]
        folder = out or Path("sweeps") / f"{problem}-{seed}"
        done = 0
        with _progress(len(trials), f"{problem}: trials", quiet) as advance:

            def count(trial: Any) -> None:
                nonlocal done
                done += 1
                advance(done)

            found = run_sweep(trials, folder, CRITERIA[rule], engine=engine, workers=workers, on_trial=count)
        console = _console()
        best = best_trials(found, CRITERIA[rule])
        varied = [axis.key for axis in axes if axis.distribution or len(axis.values) > 1]
        table = Table(title=f"{problem}: {CRITERIA[rule].describe()}", title_justify="left")
        for column in ("strategy", *varied, "score", "trials", "diverged"):
            table.add_column(column)
        for name in strategy:
            own = [trial for trial in found if trial["settings"]["strategy"] == name]
            lost = sum(bool(trial["diverged"]) for trial in own)
            winner = best.get(name)
            cells = (
                [
                    f"{winner['settings'][key]:.4g}"
                    if _numeric(winner["settings"][key])
                    else str(winner["settings"][key])
                    for key in varied
                ]
                if winner
                else ["-"] * len(varied)
            )
            score = f"{winner['score']:.5g}" if winner else "all diverged"
            table.add_row(name, *cells, score, str(len(own)), str(lost))
        console.print(table)
        (folder / "best.json").write_text(json.dumps(best, indent=2) + "\n", encoding="utf-8")
        console.print(f"{len(found)} trials: {folder / 'trials.csv'}", highlight=False)
        if len(varied) == 2 and not samples and all(_numeric(value) for a in axes for value in a.values):
            _heat_maps(found, strategy, varied, rule, folder, console)


def _heat_maps(
    found: list[dict[str, Any]], names: list[str], varied: list[str], rule: str, folder: Path, console: Console
) -> None:
    from flwr_fco.experiments.report import draw_heat_map
    from flwr_fco.experiments.sweep import CRITERIA

    for name in names:
        cells = {
            (float(trial["settings"][varied[0]]), float(trial["settings"][varied[1]])): trial["score"]
            for trial in found
            if trial["settings"]["strategy"] == name
        }
        path = folder / f"heat-map-{name}.png"
        rows, columns = varied
        title = f"{name}: {CRITERIA[rule].describe()}"
        draw_heat_map(cells, rows, columns, title, path, largest=CRITERIA[rule].largest)
        console.print(f"Heat map: {path}", highlight=False)


@app.command()
def reproduce(
    experiment: Annotated[
        str, typer.Argument(help="An experiment of `flwr-fco list`, a pattern such as `'fco-fig1*'`, or `all`.")
    ],
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer rounds, two seeds, one claim, which must hold (else exit code 1).")
    ] = False,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="The first of the seeds.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder; finished runs in it are not repeated.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes.")] = 1,
    quiet: Quiet = False,
) -> None:
    """Run an experiment of `flwr-fco list`, several by a pattern, or `all`: data, figure and a table of verdicts.

    Examples (with `all` or a pattern each gets its own folder in `--out`, and those whose data files are absent are
    skipped with a message):

    `flwr-fco reproduce fco-fig3 --out results/fco-fig3 --workers 2`

    `flwr-fco reproduce "fco-*" --out results`

    `flwr-fco reproduce all --quick`
    """
    with _errors():
        from flwr_fco.experiments import EXPERIMENTS, select_experiments

        alone = experiment in EXPERIMENTS
        base = out or Path("results")
        held = True
        for name in select_experiments(experiment):
            folder = (out or base / (name + ("-quick" if quick else ""))) if alone else base / name
            try:
                held = _reproduce(name, quick, seed, folder, workers, quiet) and held
            except DataNotFoundError as error:
                if alone:
                    raise
                _console().print(f"{name} skipped: {error}", highlight=False, markup=False)
        if quick and not held:
            raise typer.Exit(FAILED)


def _reproduce(name: str, quick: bool, seed: int | None, folder: Path, workers: int, quiet: bool) -> bool:
    """Run an experiment, print its table, return whether all claims hold."""
    from dataclasses import replace

    from flwr_fco.experiments import load_definition
    from flwr_fco.experiments import reproduce as run_experiment

    definition = load_definition(name)
    if quick:
        definition = definition.quick_version()
    if seed is not None:
        definition = replace(definition, seeds=tuple(seed + i for i in range(len(definition.seeds))))
    total = len(definition.runs) * len(definition.seeds)
    with _progress(total, f"{name}: runs", quiet) as advance:
        found = run_experiment(definition, folder, workers=workers, on_run=lambda done, _: advance(done))
    console = _console()
    table = Table(title=f"{name}: {definition.title}", title_justify="left", show_lines=True)
    for column in ("claim", "paper", "measured", "rates", "holds"):
        table.add_column(column, overflow="fold")
    for verdict in found.verdicts:
        cells = (verdict.name, verdict.number, verdict.measured, verdict.rates)
        table.add_row(*map(_escaped, cells), "[green]yes[/green]" if verdict.holds else "[red]no[/red]")
    console.print(table)
    console.print(f"{found.seconds:.0f} s; data, figure and verdicts: {folder}", highlight=False)
    return all(verdict.holds for verdict in found.verdicts)


@app.command()
def plot(
    runs: Annotated[list[Path], typer.Argument(help="Run folders.")],
    metric: Annotated[list[str] | None, typer.Option(help="May be given several times; default: all.")] = None,
    seed: OfSeed = None,
    out: Annotated[Path, typer.Option(help="The PNG.")] = Path("runs.png"),
) -> None:
    """Draw the metrics of run folders against the rounds; runs that differ in the seed alone become a band.

    Examples
    --------
    `flwr-fco plot runs/lasso-I-FedDualAvg-0 runs/lasso-I-FedMid-0 --metric f1 --out f1.png`

    `flwr-fco plot runs/* --seed 3`
    """
    with _errors():
        import numpy as np

        from flwr_fco.experiments.baselines import BASELINES
        from flwr_fco.experiments.report import draw_curves

        chosen = _read(runs, seed)
        records = [record for _, record in chosen]
        known = list({key: None for record in records for line in record.metrics for key in line if key != "round"})
        wanted = metric or known
        unknown = [name for name in wanted if name not in known]
        if unknown:
            raise ConfigurationError(f"metric={unknown[0]!r}; these runs have {', '.join(known)}")
        groups: dict[str, list[RunRecord]] = {}
        labels: dict[str, str] = {}
        for path, record in chosen:
            key = json.dumps({k: v for k, v in record.config.items() if k != "seed"}, sort_keys=True)
            groups.setdefault(key, []).append(record)
            labels.setdefault(key, path.name)
        curves: dict[str, dict[str, list[Any]]] = {}
        for key, group in groups.items():
            curves[labels[key]] = {}
            for name in wanted:
                lines = [[line for line in record.metrics if name in line] for record in group]
                curves[labels[key]][name] = [
                    (np.array([line["round"] for line in own]), np.array([line[name] for line in own]))
                    for own in lines
                    if own
                ]
        levels = {labels[key] for key, group in groups.items() if str(group[0].config.get("strategy")) in BASELINES}
        draw_curves(curves, wanted, "", out, levels=levels)
        _console().print(f"Picture: {out}", highlight=False)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders.")],
    seed: OfSeed = None,
    out: Annotated[Path | None, typer.Option(help="Write the table to this Markdown file too.")] = None,
) -> None:
    """Print the final metrics of run folders beside each other.

    Examples
    --------
    `flwr-fco report runs/* --out report.md`

    `flwr-fco report runs/* --seed 3`
    """
    with _errors():
        from flwr_fco.experiments.report import markdown_table

        rows = [
            {
                "run": path.name,
                "problem": record.config.get("problem", ""),
                "strategy": record.config.get("strategy", ""),
                "seed": record.config.get("seed", ""),
                **record.metrics[-1],
            }
            for path, record in _read(runs, seed)
        ]
        table = markdown_table(rows)
        typer.echo(table)
        if out is not None:
            _write(out, table + "\n")


def _read(paths: list[Path], seed: int | None) -> list[tuple[Path, RunRecord]]:
    """Return the runs of a seed, or all, with their folders."""
    from flwr_fco.experiments.run_folder import read_run

    records = [(path, read_run(path)) for path in paths]
    for path, record in records:
        if not record.metrics:
            raise ConfigurationError(f"{path} has no metrics; expected the folder of a run that was evaluated")
    found = [(path, record) for path, record in records if seed in (None, record.config.get("seed"))]
    if not found:
        seeds = sorted({str(record.config.get("seed")) for _, record in records})
        raise ConfigurationError(f"seed={seed}; these runs have {', '.join(seeds)}. Give one of them, or no --seed")
    return found


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _console() -> Console:
    """Return a console that does not cut tables where nobody looks at a terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=160)


def _numeric(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _first_line(kind: type) -> str:
    return (kind.__doc__ or "").strip().splitlines()[0]


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()

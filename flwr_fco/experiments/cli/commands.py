"""The command ``flwr-fco``: list, run, path, sweep, reproduce, plot, report.

Imports that take time (Flower, numba, Ray) are inside the commands, so that ``--help`` answers at once.
"""

from __future__ import annotations

import json
import re
import shlex
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperCommand
from typer.models import ArgumentInfo

from flwr_fco.core.validation import suggestion
from flwr_fco.errors import ConfigurationError, DataNotFoundError, FlwrFcoError, NotInstalledError

if TYPE_CHECKING:
    from flwr_fco.experiments.claims.definition import Definition
    from flwr_fco.experiments.pictures.comparison import Group
    from flwr_fco.experiments.runs.run import RunResult
    from flwr_fco.experiments.runs.run_folder import RunRecord

__all__ = ["app", "main"]

app = typer.Typer(
    name="flwr-fco",
    help="Federated composite optimisation: run problems, sweep settings, reproduce a paper's figures.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)

#: Exit codes besides 0: a claim that a quick run asserts does not hold; bad input, as typer has it; Ctrl-C, as shells
#: have it.
FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130


class _Command(TyperCommand):
    """A command whose arguments show their help texts.

    Typer's arguments set their text before Click's constructor, which since Click 8.5 has a text of its own and sets it
    to None. The releases of Typer that no longer do so are beyond what Flower allows.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if self.callback is None:
            return
        hints = get_type_hints(self.callback, include_extras=True)
        for parameter in self.params:
            for extra in get_args(hints.get(parameter.name or "")):
                if isinstance(extra, ArgumentInfo) and not getattr(parameter, "help", None):
                    parameter.help = extra.help


class _Format(StrEnum):
    """What a report is written as."""

    text = "text"
    html = "html"


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
    except FlwrFcoError as error:
        _complain(str(error))
        raise typer.Exit(BAD_INPUT if isinstance(error, ValueError | FileNotFoundError) else FAILED) from error
    except KeyboardInterrupt as error:
        _complain("interrupted")
        raise typer.Exit(INTERRUPTED) from error
    except OSError as error:
        # A name that is too long, a disk that is full or read-only: each is an OSError without a class of its own.
        if isinstance(error, ConnectionError | TimeoutError):
            raise
        place = "a file" if error.filename is None else str(error.filename)
        place = place if len(place) <= 200 else f"{place[:197]}..."
        _complain(
            f"{place} cannot be read or written: {error.strerror or error}. "
            "If results were to go there, name another place with --out"
        )
        raise typer.Exit(BAD_INPUT) from error


def _complain(text: str) -> None:
    Console(stderr=True, soft_wrap=True).print(f"[red]Error:[/red] {_escaped(text)}", highlight=False)


@contextmanager
def _stoppable() -> Iterator[Callable[[], bool]]:
    """Yield a function that says whether Ctrl-C was pressed; pressed again, it interrupts at once.

    A round is ended first: a strategy in the middle of its update has no state to keep.
    """
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        Console(stderr=True).print("Stopping after this round; Ctrl-C again: at once.", highlight=False)

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _progress(total: int, what: str, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Show a bar on standard error; yield a function that sets what is done."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=quiet, refresh_per_second=4) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"flwr-fco {version('flwr-fco')}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Federated composite optimisation: run problems, sweep settings, reproduce a paper's figures."""


@app.command("list", cls=_Command)
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
            parts[_PROBLEMS] = _with_sizes(parts[_PROBLEMS], seed, quiet)
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
            from flwr_fco.experiments.pictures.report import markdown_table

            tables = [
                f"## {title}\n\n{markdown_table([{'name': name, 'what': text} for name, text in entries.items()])}\n"
                for title, entries in parts.items()
            ]
            _write(out, "\n".join(tables))


def _everything() -> dict[str, dict[str, str]]:
    """Return what there is: title to name to a line about it."""
    from flwr_fco import objectives, regularizers
    from flwr_fco.experiments import EXPERIMENTS, load_definition
    from flwr_fco.experiments.problems.baselines import BASELINES
    from flwr_fco.experiments.problems.named import PROBLEMS, REGULARIZERS
    from flwr_fco.experiments.runs.methods import STRATEGIES

    def documented(module: Any, base: type) -> dict[str, str]:
        found = {name: getattr(module, name) for name in module.__all__}
        return {
            name: _first_line(kind)
            for name, kind in found.items()
            if isinstance(kind, type) and issubclass(kind, base) and kind is not base
        }

    everything = documented(regularizers, regularizers.Regularizer)
    return {
        "Strategies: run --strategy NAME": {name: _first_line(kind) for name, kind in STRATEGIES.items()},
        "Baselines: run --strategy NAME": BASELINES,
        _PROBLEMS: {
            name: f"{problem.description} [{', '.join(problem.options())}]" for name, problem in PROBLEMS.items()
        },
        "Regularizers of the problems that have the option: run --set regularizer=NAME": {
            name: _first_line(kind) for name, kind in REGULARIZERS.items()
        },
        "Experiments: reproduce NAME": {name: load_definition(name).title for name in EXPERIMENTS},
        "Other regularizers, in Python alone: flwr_fco.regularizers": {
            name: text for name, text in everything.items() if name not in REGULARIZERS
        },
        "Objectives, in Python alone: flwr_fco.objectives": documented(objectives, objectives.Objective),
    }


#: Title of the problems in the list.
_PROBLEMS = "Problems: run NAME, with --set OPTION=VALUE"


def _with_sizes(problems: dict[str, str], seed: int, quiet: bool) -> dict[str, str]:
    """Return the problems' lines with the sizes that their data have for a seed."""
    from flwr_fco.experiments.problems.named import load_task

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


@app.command("run", cls=_Command)
def run_command(
    problem: Annotated[str, typer.Argument(help="A problem of `flwr-fco list`.")],
    strategy: Annotated[str, typer.Option(help="A strategy or baseline of `flwr-fco list`.")] = "FedDualAvg",
    settings: Assignments = None,
    seed: Seed = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Run folder to write; by default below runs/, named after problem, strategy, seed, settings."
        ),
    ] = None,
    engine: Annotated[
        str, typer.Option(help="`in-process`, or `flower`: submit it with `flwr run` to a SuperLink of its own.")
    ] = "in-process",
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with this run where it was stopped; begin it if there is none."),
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Run a problem of `flwr-fco list` with a strategy and print its metrics.

    Ctrl-C ends the run after the round: what was done is in its folder, and the same command with `--resume` goes on,
    to the same bits as a run that was never stopped (where clients remember something: if the server keeps a ledger
    of it).

    Examples
    --------
    `flwr-fco run lasso-I --strategy FedDualAvg --set server-lr=3`

    `flwr-fco run haxby --strategy centralized --set path=data/haxby-slice`

    `flwr-fco run femnist --set fetch=true` (nothing is downloaded without it)

    `flwr-fco run digits --strategy FedMid --set num-rounds=20 --engine flower --out runs/flower`

    `flwr-fco run lasso-I --strategy FedDualAvg --set server-lr=3 --resume`
    """
    with _errors():
        from flwr_fco.experiments.runs.settings import RunSettings, parse_assignments, parse_value

        assignments = {key: parse_value(text) for key, text in parse_assignments(settings or []).items()}
        chosen = RunSettings.of(problem, strategy, assignments, seed)
        folder = out or Path("runs") / chosen.folder_name()
        if engine not in ("in-process", "flower"):
            raise ConfigurationError(f"engine={engine!r}; expected 'in-process' or 'flower'")
        if resume and engine == "flower":
            raise ConfigurationError("--resume goes on with runs of --engine in-process; a run by Flower begins anew")
        if (folder / "config.json").exists() and not resume:
            raise ConfigurationError(
                f"the run folder {folder} holds a run already; --resume goes on with it if it was stopped, and shows "
                "it if it has finished; or give another folder by --out"
            )
        result = _run(chosen, folder, engine, resume, quiet)
        console = _console()
        scores = Table(title=f"{problem}, {strategy}, seed {chosen.seed}", title_justify="left")
        scores.add_column("metric")
        scores.add_column("value", justify="right")
        for name, value in result.history[-1].items():
            scores.add_row(name, f"{value:.6g}")
        console.print(scores)
        for text in result.chosen:
            console.print(f"Chosen: {text}", highlight=False, markup=False)
        console.print(f"{result.seconds:.1f} s; run folder: {folder}", highlight=False, markup=False)
        if result.diverged:
            console.print(f"The run diverged in round {result.diverged} and was cut there; lower the rates.")
            raise typer.Exit(FAILED)
        if result.stopped:
            chosen_by = [part for text in settings or [] for part in ("--set", text)]
            place = ["--out", str(out)] if out else []
            words = ["flwr-fco", "run", problem, "--strategy", strategy, *chosen_by, "--seed", str(seed), *place]
            console.print(f"Stopped after round {result.stopped} of {chosen.num_rounds}. To go on:", highlight=False)
            console.print(f"{shlex.join(words)} --resume", highlight=False, markup=False, soft_wrap=True)
            raise typer.Exit(INTERRUPTED)


def _run(chosen: Any, folder: Path, engine: str, resume: bool, quiet: bool) -> RunResult:
    """Run in this process or by Flower, with a progress bar, and leave a run folder."""
    from flwr_fco.experiments.problems.baselines import BASELINES
    from flwr_fco.experiments.runs.run import run, save_run

    with _progress(chosen.num_rounds, f"{chosen.problem}, {chosen.strategy}", quiet) as advance:
        if engine == "flower":
            from flwr_fco.experiments.runs.flower import run_with_flower

            result = run_with_flower(chosen, folder, on_round=advance)
            save_run(result, folder)
        elif chosen.strategy in BASELINES:
            # There are no rounds to stop between: Ctrl-C ends it at once.
            result = run(chosen, folder=folder, resume=resume)
        else:
            # Before Ctrl-C waits for the end of a round.
            chosen.load()
            with _stoppable() as stop:
                result = run(chosen, folder=folder, resume=resume, on_round=advance, stop=stop)
        if not result.diverged and not result.stopped:
            # A baseline has no rounds of its own, and a run that was resumed may have none left.
            advance(chosen.num_rounds)
    return result


@app.command(cls=_Command)
def path(
    problem: Annotated[str, typer.Argument(help="A problem of `flwr-fco list` whose psi has a strength.")],
    strategy: Annotated[str, typer.Option(help="A strategy of `flwr-fco list`.")] = "FedDualAvg",
    settings: Assignments = None,
    strengths: Annotated[int, typer.Option(min=2, max=10_000, help="How many strengths.")] = 20,
    ratio: Annotated[float, typer.Option(help="The smallest strength over the largest one.")] = 0.01,
    held_out: Annotated[float, typer.Option(help="Share of every client's examples that is held out.")] = 0.25,
    seed: Seed = 0,
    out: Annotated[
        Path | None, typer.Option(help="New folder; by default below paths/, named as that of a run.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Fit a path of strengths of psi, from where everything becomes 0, and choose one by held-out data.

    Every strength begins with the model of the last one and has 100 rounds, or those of `--set num-rounds=`. The folder
    has a table (path.csv), the chosen models (best.npz, one-standard-error.npz), and with matplotlib a picture.

    Examples
    --------
    `flwr-fco path lasso-small`

    `flwr-fco path digits --strengths 30 --set num-rounds=200 --out paths/digits`
    """
    with _errors():
        from flwr_fco.experiments.pictures.report import markdown_table
        from flwr_fco.experiments.problems.baselines import BASELINES
        from flwr_fco.experiments.runs.settings import RunSettings, parse_assignments, parse_value
        from flwr_fco.experiments.runs.strengths import path_of_problem
        from flwr_fco.models import save_npz
        from flwr_fco.simulation.fit_path import plot_path

        given = {key: parse_value(text) for key, text in parse_assignments(settings or []).items()}
        if strategy in BASELINES:
            raise ConfigurationError(f"strategy={strategy!r} is a baseline; a path is fitted by a strategy")
        # Rates that were chosen for one strength are not for all.
        chosen = RunSettings.of(problem, strategy, {"client-lr": "auto", "num-rounds": 100, **given}, seed)
        folder = out or Path("paths") / RunSettings.of(problem, strategy, given, seed).folder_name()
        if (folder / "path.csv").exists():
            raise ConfigurationError(f"the folder {folder} holds a path already; give another folder by --out")
        # Before the work, which a place that cannot be written would lose.
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with _progress(strengths * chosen.exchanges, f"{problem}: rounds of all strengths", quiet) as advance:
                found = path_of_problem(
                    chosen, num_strengths=strengths, ratio=ratio, held_out=held_out, on_round=advance
                )
        except BaseException:
            with suppress(OSError):
                folder.rmdir()
            raise
        found.to_csv(folder / "path.csv")
        save_npz(found.best.result, folder / "best.npz")
        save_npz(found.one_standard_error.result, folder / "one-standard-error.npz")
        marks = {found.one_standard_error.strength: "one standard error", found.best.strength: "smallest loss"}
        if len(marks) == 1:
            marks = {found.best.strength: "smallest loss, one standard error"}
        rows = [{**row, "chosen by": marks.get(float(row["strength"]), "")} for row in found.rows()]
        typer.echo(markdown_table(rows))
        try:
            plot_path(found, folder / "path.png")
        except ConfigurationError as error:
            _console().print(f"No picture: {error}", highlight=False, markup=False)
        _console().print(f"Folder: {folder}", highlight=False, markup=False)


@app.command(cls=_Command)
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
    rule: Annotated[
        str,
        typer.Option(
            help="recovery-error, f1, objective, validation-objective, accuracy, gap, l1-error, energy-error, "
            "training-loss."
        ),
    ] = "recovery-error",
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
        from flwr_fco.experiments.runs.settings import RunSettings, parse_assignments
        from flwr_fco.experiments.runs.sweep import CRITERIA, best_trials, expand_axes, parse_axis, run_sweep

        if rule not in CRITERIA:
            raise ConfigurationError(
                f"rule={rule!r}; expected one of {', '.join(CRITERIA)}{suggestion(rule, CRITERIA)}"
            )
        axes = [parse_axis(key, text) for key, text in parse_assignments(settings or []).items()]
        varied = [axis.key for axis in axes if axis.distribution or len(axis.values) > 1]
        heat_maps = len(varied) == 2 and not samples and all(_numeric(value) for a in axes for value in a.values)
        if heat_maps:
            from flwr_fco.experiments.pictures.report import require_matplotlib

            require_matplotlib("the heat maps of a sweep of two settings need matplotlib")
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
        if heat_maps:
            _heat_maps(found, strategy, varied, rule, folder, console)


def _heat_maps(
    found: list[dict[str, Any]], names: list[str], varied: list[str], rule: str, folder: Path, console: Console
) -> None:
    from flwr_fco.experiments.pictures.report import draw_heat_map
    from flwr_fco.experiments.runs.sweep import CRITERIA

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


@app.command(cls=_Command)
def reproduce(
    experiment: Annotated[
        str, typer.Argument(help="An experiment of `flwr-fco list`, a pattern such as `'fco-fig1*'`, or `all`.")
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
    workers: Annotated[int, typer.Option(min=1, help="Processes.")] = 1,
    quiet: Quiet = False,
) -> None:
    """Run an experiment of `flwr-fco list`, several by a pattern, or `all`: data, figure and a table of verdicts.

    Examples (with `all` or a pattern each gets its own folder in `--out`, and those whose data files or optional
    packages are absent are skipped with a message):

    `flwr-fco reproduce fco-fig3 --out results/fco-fig3 --workers 2`

    `flwr-fco reproduce "fco-*" --out results`

    `flwr-fco reproduce all --quick`

    On other data or with other settings, in a folder whose name says so; claims are judged as they are. Nothing is
    downloaded unless it is asked for:

    `flwr-fco reproduce fco-fig13 --set problem=femnist --set fetch=true`

    `flwr-fco reproduce fco-fig5 --set fetch=true --set num-held-out=12 --set split=5 --set clients-per-round=20`
    """
    with _errors():
        from flwr_fco.experiments import EXPERIMENTS, select_experiments
        from flwr_fco.experiments.runs.settings import parse_assignments, parse_value

        overrides = {key: parse_value(text) for key, text in parse_assignments(settings or []).items()}
        # All of them before the first one runs: a setting that one does not have is an error.
        chosen = [_chosen(name, quick, seed, overrides) for name in select_experiments(experiment)]
        alone = experiment in EXPERIMENTS
        held = True
        for definition in chosen:
            # Below --out a pattern's quick versions are named as the experiments: they are all quick.
            below = definition.folder_name() if out is None else replace(definition, shortened=False).folder_name()
            folder = out if out is not None and alone else (out or Path("results")) / below
            try:
                held = _reproduce(definition, folder, workers, quiet) and held
            except (DataNotFoundError, NotInstalledError) as error:
                if alone:
                    raise
                _console().print(f"{definition.name} skipped: {error}", highlight=False, markup=False)
        if quick and not held:
            raise typer.Exit(FAILED)


def _chosen(name: str, quick: bool, seed: int | None, overrides: dict[str, Any]) -> Definition:
    """Return an experiment, or its quick version, from a seed and with settings of its own."""
    from flwr_fco.experiments import load_definition

    definition = load_definition(name)
    if quick:
        definition = definition.quick_version()
    if seed is not None:
        definition = replace(definition, seeds=tuple(seed + i for i in range(len(definition.seeds))))
    return definition.with_settings(overrides)


def _reproduce(definition: Definition, folder: Path, workers: int, quiet: bool) -> bool:
    """Run an experiment, print its table, return whether all claims hold."""
    from flwr_fco.experiments import reproduce as run_experiment

    name = definition.name
    total = len(definition.runs) * len(definition.seeds)
    with _progress(total, f"{name}: runs", quiet) as advance:
        found = run_experiment(definition, folder, workers=workers, on_run=lambda done, _: advance(done))
    console = _console()
    table = Table(title=f"{name}: {definition.title}", title_justify="left", show_lines=True)
    for column in ("claim", "paper", "measured", "rates", "verdict"):
        table.add_column(column, overflow="fold")
    for verdict in found.verdicts:
        cells = (verdict.name, verdict.number, verdict.measured, verdict.rates)
        color = {"holds": "green", "does not hold": "red"}.get(verdict.verdict, "yellow")
        table.add_row(*map(_escaped, cells), f"[{color}]{'ours: ' * verdict.ours}{verdict.verdict}[/{color}]")
    console.print(table)
    console.print(f"{found.seconds:.0f} s; data, figure and verdicts: {folder}", highlight=False)
    return all(verdict.holds for verdict in found.verdicts)


@app.command(cls=_Command)
def plot(
    runs: Annotated[list[Path], typer.Argument(help="Run folders.")],
    metric: Annotated[list[str] | None, typer.Option(help="May be given several times; default: all.")] = None,
    seed: OfSeed = None,
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
    """Draw the metrics of run folders against the rounds; runs that differ in the seed alone become a band.

    The labels name the settings in which the runs differ. A run that diverged is cut where it leaves the others' range.

    Examples
    --------
    `flwr-fco plot runs/lasso-I-FedDualAvg-0 runs/lasso-I-FedMid-0 --metric f1 --out f1.png`

    `flwr-fco plot runs/lasso-I-* --seed 3`
    """
    with _errors():
        from flwr_fco.experiments.pictures.comparison import logarithmic_metrics, metric_names, require_one_problem
        from flwr_fco.experiments.pictures.report import draw_curves
        from flwr_fco.experiments.problems.baselines import BASELINES

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
            group.label + (f" (diverged in round {group.diverged})" if group.diverged else ""): group
            for group in groups
        }
        draw_curves(
            {label: {name: group.series(name) for name in wanted} for label, group in labels.items()},
            wanted,
            "",
            out,
            methods={label: group.method for label, group in labels.items()},
            levels={label for label, group in labels.items() if group.method in BASELINES},
            logarithmic=set() if linear else logarithmic_metrics(groups, wanted),
            cut={label for label, group in labels.items() if group.diverged},
        )
        _console().print(f"Picture: {out}", highlight=False, markup=False)


@app.command(cls=_Command)
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders.")],
    seed: OfSeed = None,
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
    """Show run folders beside each other: their final metrics as a table, or all about them as one HTML page.

    The page needs no network and no other file. Bytes, time and supports are shown of runs in process. Of several runs
    those that ended before they had results are left out, with a line that says so.

    Examples
    --------
    `flwr-fco report runs/* --out report.md`

    `flwr-fco report runs/lasso-I-* --format html --out lasso.html`

    `flwr-fco report runs/* --seed 3`
    """
    with _errors():
        from flwr_fco.experiments.pictures.report import markdown_table

        if kind is None:
            kind = _Format.html if out is not None and out.suffix in (".html", ".htm") else _Format.text
        if kind is _Format.html:
            from flwr_fco.experiments.pictures.html_report import html_page

            place = out or Path("report.html")
            _write(place, html_page(_groups(runs, seed)))
            _console().print(f"Page: {place}", highlight=False, markup=False)
            return
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


def _groups(paths: list[Path], seed: int | None) -> list[Group]:
    """Return the runs of a seed, or all, grouped by their settings."""
    from flwr_fco.experiments.pictures.comparison import compare

    return compare([(path.name, record) for path, record in _read(paths, seed)])


def _read(paths: list[Path], seed: int | None) -> list[tuple[Path, RunRecord]]:
    """Return the runs of a seed, or all, with their folders; of several, those that only began are left out."""
    from flwr_fco.experiments.runs.run_folder import only_begun, read_run

    left_out = [path for path in paths if only_begun(path)]
    if len(left_out) == len(paths):
        left_out = []
    for path in left_out:
        Console(stderr=True, soft_wrap=True).print(
            f"{path} is left out: its run ended before it had results", highlight=False, markup=False
        )
    records = [(path, read_run(path)) for path in paths if path not in left_out]
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
    """Return the first line of a docstring without its markup."""
    line = (kind.__doc__ or "").strip().splitlines()[0]
    line = re.sub(r":[a-z]+:`~?(?:[\w.]*\.)?(\w+)`", r"\1", line)
    return line.replace("`", "")


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()

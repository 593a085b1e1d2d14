"""The commands ``run``, ``path`` and ``sweep``."""

from __future__ import annotations

import itertools
import json
import os
import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flwr_fco.errors import ConfigurationError
from reproduction.cli import shell
from reproduction.values import suggestion
from tools import terminal

if TYPE_CHECKING:
    from reproduction.runs.run import RunResult
    from reproduction.runs.settings import RunSettings
    from reproduction.runs.sweep import Criterion, Trial


def run(
    problem: shell.Problem,
    strategy: Annotated[
        str, typer.Option(help="A strategy or baseline of `python -m reproduction list`.")
    ] = "FedDualAvg",
    settings: shell.Settings = None,
    seed: shell.Seed = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Run folder to write; by default below runs/, named after problem, strategy, seed, settings."
        ),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            help="Where the clients are: `in-process`, `ray` (RAY_ADDRESS: that cluster), or `flower`: submit it with "
            "`flwr run` to a SuperLink of its own."
        ),
    ] = "in-process",
    workers: Annotated[int, typer.Option(min=0, help="Number of workers of `ray`; 0: as many as fit.")] = 0,
    num_cpus: shell.NumCpus = None,
    num_gpus: shell.NumGpus = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with this run where it was stopped; begin it if there is none.")
    ] = False,
    quiet: shell.Quiet = False,
) -> None:
    """Run a problem of `python -m reproduction list` with a strategy and print its metrics.

    Ctrl-C ends the run after the current round: its folder has the results so far, and the same command with `--resume`
    continues, with the same bits as an uninterrupted run (for clients with state: if the server keeps a ledger).

    Examples
    --------
    `python -m reproduction run lasso-I --strategy FedDualAvg --set server-lr=3`

    `python -m reproduction run haxby --strategy centralized --set path=data/haxby-slice`

    `python -m reproduction run femnist --set fetch=true` (nothing is downloaded without it)

    `python -m reproduction run digits --strategy FedMid --set num-rounds=20 --engine flower --out runs/flower`

    `python -m reproduction run lasso-I --strategy FedDualAvg --set server-lr=3 --resume`

    `python -m reproduction run digits --engine ray --workers 8 --num-cpus 0.5`
    """
    from reproduction.runs.settings import RunSettings

    chosen = RunSettings.of(problem, strategy, shell.parsed(settings), seed)
    folder = out or Path("runs") / chosen.folder_name()
    if engine not in ("in-process", "ray", "flower"):
        raise ConfigurationError(f"engine={engine!r}; expected 'in-process', 'ray' or 'flower'")
    reserved = shell.reservation(engine, num_cpus, num_gpus)
    if workers and engine != "ray":
        raise ConfigurationError(f"workers={workers} with engine={engine!r}, which has none; give --engine ray")
    if (folder / "config.json").exists() and not resume:
        raise ConfigurationError(
            f"the run folder {folder} holds a run already; --resume goes on with it if it was stopped, and shows "
            "it if it has finished; or give another folder by --out"
        )
    result = _run(
        chosen,
        folder,
        engine,
        {"workers": workers or None, "address": os.environ.get("RAY_ADDRESS"), **reserved},
        resume,
        quiet,
    )
    _show(result, folder)
    if result.diverged:
        raise typer.Exit(terminal.FAILED)
    if result.stopped:
        terminal.say(f"Stopped after round {result.stopped} of {chosen.num_rounds}. To go on:")
        where = f" --out {shlex.quote(str(out))}" if out else ""
        terminal.say(f"{chosen.command()}{where} --resume", wrapped=False)
        raise typer.Exit(terminal.INTERRUPTED)


def _show(result: RunResult, folder: Path) -> None:
    """Print the last metrics of a run and how it went."""
    own = result.settings
    scores = terminal.make_table(f"{own.problem}, {own.strategy}, seed {own.seed}", ["metric"])
    scores.add_column("value", justify="right")
    for name, value in result.history[-1].items():
        scores.add_row(name, f"{value:.6g}")
    terminal.console().print(scores)
    for text in result.chosen:
        terminal.say(f"Chosen: {text}")
    terminal.say(f"{result.seconds:.1f} s; run folder: {folder}")
    if result.diverged:
        terminal.say(f"The run diverged in round {result.diverged} and was cut there; lower the rates.")


def _run(
    chosen: RunSettings,
    folder: Path,
    engine: str,
    reserved: dict[str, Any],
    resume: bool,
    quiet: bool,
) -> RunResult:
    """Run on an engine, with a progress bar, and leave a run folder."""
    from reproduction.problems.baselines import BASELINES
    from reproduction.runs.run import run, save_run

    with shell.progress(chosen.num_rounds, f"{chosen.problem}, {chosen.strategy}", quiet) as advance:
        if engine == "flower":
            from reproduction.runs.flower import run_with_flower

            if (folder / "config.json").exists():
                # A run through Flower is moved there when it has finished.
                return run(chosen, folder=folder, resume=True)
            result = run_with_flower(chosen, folder, on_round=advance, resume=resume)
            save_run(result, folder)
        elif chosen.strategy in BASELINES:
            # There are no rounds to stop after, so Ctrl-C ends it at once.
            result = run(chosen, folder=folder, resume=resume)
        else:
            # Before Ctrl-C waits for the end of a round.
            chosen.load()
            ray = reserved if engine == "ray" else None
            with shell.stoppable() as stop:
                result = run(chosen, folder=folder, resume=resume, on_round=advance, stop=stop, ray=ray)
        if not result.diverged and not result.stopped:
            # A baseline has no rounds, and a resumed run may have none left.
            advance(chosen.num_rounds)
    return result


def fit_path(
    problem: Annotated[
        str, typer.Argument(help="A problem of `python -m reproduction list` whose psi has a strength.")
    ],
    strategy: Annotated[str, typer.Option(help="A strategy of `python -m reproduction list`.")] = "FedDualAvg",
    settings: shell.Settings = None,
    strengths: Annotated[int, typer.Option(min=2, max=10_000, help="How many strengths.")] = 20,
    ratio: Annotated[float, typer.Option(help="The smallest strength over the largest one.")] = 0.01,
    held_out: Annotated[float, typer.Option(help="Share of every client's examples that is held out.")] = 0.25,
    seed: shell.Seed = 0,
    out: Annotated[
        Path | None, typer.Option(help="New folder; by default below paths/, named as that of a run.")
    ] = None,
    quiet: shell.Quiet = False,
) -> None:
    """Fit a path of strengths of psi, starting where everything is 0, and choose one on held-out data.

    Every strength starts from the model of the previous one and has 100 rounds, or `--set num-rounds=`. The folder has
    a table (path.csv), the chosen models (best.npz, one-standard-error.npz), and with matplotlib a picture.

    Examples
    --------
    `python -m reproduction path lasso-small`

    `python -m reproduction path digits --strengths 30 --set num-rounds=200 --out paths/digits`
    """
    from flwr_fco.models import save_npz
    from reproduction.pictures.paths import plot_path
    from reproduction.pictures.report import markdown_table
    from reproduction.problems.baselines import BASELINES
    from reproduction.runs.run_folder import write_csv
    from reproduction.runs.settings import RunSettings
    from reproduction.runs.strengths import path_of_problem

    given = shell.parsed(settings)
    if strategy in BASELINES:
        raise ConfigurationError(f"strategy={strategy!r} is a baseline; a path is fitted by a strategy")
    # Rates that were chosen for one strength do not suit all strengths.
    chosen = RunSettings.of(problem, strategy, {"client-lr": "auto", "num-rounds": 100, **given}, seed)
    folder = out or Path("paths") / RunSettings.of(problem, strategy, given, seed).folder_name()
    if (folder / "path.csv").exists():
        raise ConfigurationError(f"the folder {folder} holds a path already; give another folder by --out")
    # Before the work: if the folder is not writable, the results would be lost.
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with shell.progress(strengths * chosen.exchanges, f"{problem}: rounds of all strengths", quiet) as advance:
            found = path_of_problem(chosen, num_strengths=strengths, ratio=ratio, held_out=held_out, on_round=advance)
    except BaseException:
        with suppress(OSError):
            folder.rmdir()
        raise
    write_csv(found.rows(), folder / "path.csv")
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
        terminal.say(f"No picture: {error}")
    terminal.say(f"Folder: {folder}")


def sweep(
    problem: shell.Problem,
    strategy: Annotated[list[str], typer.Option(help="A strategy; may be given several times.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUES", help="Values with commas between them.")
    ] = None,
    seed: shell.Seed = 0,
    rule: Annotated[
        str,
        typer.Option(
            help="recovery-error, f1, objective, validation-objective, accuracy, gap, l1-error, energy-error, "
            "training-loss."
        ),
    ] = "recovery-error",
    out: Annotated[Path | None, typer.Option(help="Folder; a sweep that was stopped goes on in it.")] = None,
    engine: Annotated[
        str,
        typer.Option(
            help="`processes`, `in-process`: one after the other, or `ray` (RAY_ADDRESS: that cluster), which listens "
            "on the network: docs/tutorials/ray-cluster.md."
        ),
    ] = "processes",
    workers: Annotated[int, typer.Option(min=0, help="Number of trials at a time here; 0: one per core.")] = 0,
    num_cpus: shell.NumCpus = None,
    num_gpus: shell.NumGpus = None,
    quiet: shell.Quiet = False,
) -> None:
    """Sweep settings of a problem on a grid: a table, the best settings, heat maps.

    Examples
    --------
    `python -m reproduction sweep lasso-I --strategy FedDualAvg --strategy FedMid
    --set client-lr=0.001,0.003,0.01,0.03,0.1,0.3,1 --set server-lr=0.01,0.03,0.1,0.3,1,3,10`

    `python -m reproduction sweep haxby --strategy FedDualAvg --set client-lr=0.001,0.01 --rule validation-objective`
    """
    from reproduction.runs.settings import RunSettings, parse_assignments
    from reproduction.runs.sweep import CRITERIA, expand_axes, parse_axis, run_sweep

    if rule not in CRITERIA:
        raise ConfigurationError(f"rule={rule!r}; expected one of {', '.join(CRITERIA)}{suggestion(rule, CRITERIA)}")
    reserved = shell.reservation(engine, num_cpus, num_gpus)
    axes = {key: parse_axis(key, text) for key, text in parse_assignments(settings or []).items()}
    varied = [key for key, values in axes.items() if len(values) > 1]
    heat_maps = len(varied) == 2 and all(_numeric(value) for values in axes.values() for value in values)
    if heat_maps:
        from reproduction.pictures.report import require_matplotlib

        require_matplotlib("the heat maps of a sweep of two settings need matplotlib")
    points = expand_axes(axes)
    trials = [RunSettings.of(problem, name, point, seed) for name in strategy for point in points]
    folder = out or Path("sweeps") / f"{problem}-{seed}"
    done = itertools.count(1)
    with shell.progress(len(trials), f"{problem}: trials", quiet) as advance:
        found = run_sweep(
            trials,
            folder,
            CRITERIA[rule],
            engine=engine,
            workers=workers,
            **reserved,
            on_trial=lambda trial: advance(next(done)),
        )
    trials_of = {name: [trial for trial in found if trial["settings"]["strategy"] == name] for name in strategy}
    _show_best(trials_of, problem, varied, CRITERIA[rule], folder)
    if heat_maps:
        _draw_heat_maps(trials_of, varied, CRITERIA[rule], folder)


def _draw_heat_maps(
    trials_of: dict[str, list[Trial]], varied: Sequence[str], criterion: Criterion, folder: Path
) -> None:
    """Draw the scores of each strategy over the two settings that vary."""
    from reproduction.pictures.report import draw, heat_map

    rows, columns = varied
    for name, own in trials_of.items():
        path, title = folder / f"heat-map-{name}.png", f"{name}: {criterion.describe()}"
        cells = {(float(t["settings"][rows]), float(t["settings"][columns])): t["score"] for t in own}
        draw(heat_map(cells, rows, columns, title, largest=criterion.largest), path)
        terminal.say(f"Heat map: {path}")


def _show_best(
    found: dict[str, list[Trial]], problem: str, varied: list[str], criterion: Criterion, folder: Path
) -> None:
    from flwr_fco.models import write_file
    from reproduction.runs.sweep import best_trials

    trials = [trial for own in found.values() for trial in own]
    best = best_trials(trials, criterion)
    columns = ["strategy", *varied, "score", "trials", "diverged"]
    table = terminal.make_table(f"{problem}: {criterion.describe()}", columns)
    for name, own in found.items():
        cells, score = ["-"] * len(varied), "all diverged"
        if name in best:
            values = [best[name]["settings"][key] for key in varied]
            cells = [f"{value:.4g}" if _numeric(value) else str(value) for value in values]
            score = f"{best[name]['score']:.5g}"
        table.add_row(name, *cells, score, str(len(own)), str(sum(bool(trial["diverged"]) for trial in own)))
    terminal.console().print(table)
    write_file(folder / "best.json", json.dumps(best, indent=2) + "\n")
    terminal.say(f"{len(trials)} trials: {folder / 'trials.csv'}")


def _numeric(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

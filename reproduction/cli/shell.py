"""Shared by the commands: options, progress, Ctrl-C."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from rich.console import Console

from flwr_fco.errors import ConfigurationError
from tools.terminal import say

Problem = Annotated[str, typer.Argument(help="A problem of `python -m reproduction list`.")]
Runs = Annotated[list[Path], typer.Argument(help="Run folders.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting; may be given several times.")
]
Seed = Annotated[
    int, typer.Option("--seed", min=0, help="Seed of the data, the split, the sampling and the minibatches.")
]
OfSeed = Annotated[int | None, typer.Option("--seed", min=0, help="Only the runs of this seed.")]
NumCpus = Annotated[
    float | None,
    typer.Option("--num-cpus", min=0, help="Cores that `ray` reserves for each worker, trial or run; by default 1."),
]
NumGpus = Annotated[
    float | None,
    typer.Option("--num-gpus", min=0, help="GPUs that `ray` reserves for each worker, trial or run; by default none."),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bar.")]


def write(path: Path, text: str) -> None:
    """Write a file and create its folder."""
    from flwr_fco.models import write_file

    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, text)


def parsed(settings: list[str] | None) -> dict[str, Any]:
    """Return the keys and values of the option --set."""
    from reproduction.runs.settings import parse_assignments, parse_value

    return {key: parse_value(text) for key, text in parse_assignments(settings or []).items()}


def reservation(engine: str, num_cpus: float | None, num_gpus: float | None) -> dict[str, float]:
    """Return the given values of --num-cpus and --num-gpus, which only Ray supports."""
    given = {"num_cpus": num_cpus, "num_gpus": num_gpus}
    reserved = {name: value for name, value in given.items() if value is not None}
    if reserved and engine != "ray":
        options = " and ".join(f"--{name.replace('_', '-')} {value:g}" for name, value in reserved.items())
        raise ConfigurationError(f"{options} with engine={engine!r}, which reserves nothing; give --engine ray")
    return reserved


@contextmanager
def stoppable() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether Ctrl-C was pressed; a second Ctrl-C interrupts at once.

    The current round is finished first: a strategy in the middle of its update has no state to save.
    """
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        say("Stopping after this round; Ctrl-C again: at once.", to_errors=True)

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
def progress(total: int, what: str, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on standard error; yield a function that sets its position."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=quiet, refresh_per_second=4) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)

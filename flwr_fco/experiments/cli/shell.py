"""Shared by the commands: options, errors as messages with an exit code, progress, Ctrl-C, tables."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, get_args, get_type_hints

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer.core import TyperCommand
from typer.models import ArgumentInfo

from flwr_fco.errors import ConfigurationError, FlwrFcoError

#: Exit codes other than 0: a claim asserted by a quick run does not hold; bad input, as in Typer; Ctrl-C, as in shells.
FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130

Problem = Annotated[str, typer.Argument(help="A problem of `flwr-fco list`.")]
Runs = Annotated[list[Path], typer.Argument(help="Run folders.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A setting; may be given several times."),
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Of data, split, samples and minibatches.")]
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


class Command(TyperCommand):
    """A command that turns the package's errors into a message and an exit code, and shows its arguments' help texts.

    Typer's arguments set their help text before calling Click's constructor, which since Click 8.5 has its own help
    text and sets it to None. Flower does not allow the Typer releases that fix this.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        hints = get_type_hints(self.callback, include_extras=True) if self.callback else {}
        for parameter in self.params:
            for extra in get_args(hints.get(parameter.name or "")):
                if isinstance(extra, ArgumentInfo) and not getattr(parameter, "help", None):
                    parameter.help = extra.help

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except FlwrFcoError as error:
            text, code = str(error), BAD_INPUT if isinstance(error, ValueError | FileNotFoundError) else FAILED
        except KeyboardInterrupt:
            text, code = "interrupted", INTERRUPTED
        except OSError as error:
            # A name that is too long, a full or read-only disk: each is a plain OSError without its own class.
            if isinstance(error, ConnectionError | TimeoutError):
                raise
            place = "a file" if error.filename is None else str(error.filename)
            place = place if len(place) <= 200 else f"{place[:197]}..."
            advice = "If results were to go there, name another place with --out"
            text, code = f"{place} cannot be read or written: {error.strerror or error}. {advice}", BAD_INPUT
        say(f"[red]Error:[/red] {escape(text)}", to_errors=True, markup=True)
        raise typer.Exit(code)


def console() -> Console:
    """Return a console that does not truncate tables if the output is not a terminal."""
    own = Console()
    return own if own.is_terminal else Console(width=160)


def say(text: str, *, to_errors: bool = False, markup: bool = False, wrapped: bool = True) -> None:
    """Print a line, by default without markup and on standard output."""
    if to_errors:
        Console(stderr=True, soft_wrap=True).print(text, highlight=False, markup=markup)
    else:
        console().print(text, highlight=False, markup=markup, soft_wrap=not wrapped)


def make_table(title: str, columns: Iterable[str], **options: Any) -> Table:
    """Return an empty table."""
    return Table(*columns, title=title, title_justify="left", **options)


def write(path: Path, text: str) -> None:
    """Write a file and create its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def parsed(settings: list[str] | None) -> dict[str, Any]:
    """Return the keys and values of the option --set."""
    from flwr_fco.experiments.runs.settings import parse_assignments, parse_value

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

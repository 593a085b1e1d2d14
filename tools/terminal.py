"""What commands show: tables, lines, and errors as messages with an exit code."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, get_args, get_type_hints

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand
from typer.models import ArgumentInfo

from flwr_fco.errors import FlwrFcoError

#: Exit codes other than 0: a claim asserted by a quick run does not hold; bad input, as in Typer; Ctrl-C, as in shells.
FAILED = 1
BAD_INPUT = 2
INTERRUPTED = 130


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
            text = str(error)
            code = BAD_INPUT if isinstance(error, ValueError | FileNotFoundError) else FAILED
        except ModuleNotFoundError as error:
            text = f"it needs {error.name}: pip install '.[commands]', or pip install {error.name}"
            code = FAILED
        except KeyboardInterrupt:
            text = "interrupted"
            code = INTERRUPTED
        except OSError as error:
            # A name that is too long, a full or read-only disk: each is a plain OSError without its own class.
            if isinstance(error, ConnectionError | TimeoutError):
                raise
            place = "a file" if error.filename is None else str(error.filename)
            place = place if len(place) <= 200 else f"{place[:197]}..."
            advice = "If results were to go there, name another place with --out"
            text = f"{place} cannot be read or written: {error.strerror or error}. {advice}"
            code = BAD_INPUT
        say(f"[red]Error:[/red] {escape(text)}", to_errors=True, markup=True)
        raise typer.Exit(code)


def console() -> Console:
    """Return a console that does not truncate tables if the output is not a terminal."""
    own = Console()
    return own if own.is_terminal else Console(width=160)


def say(text: str, *, to_errors: bool = False, markup: bool = False, wrapped: bool = True) -> None:
    """Print text, by default without markup and on standard output; what a terminal would obey is escaped."""
    text = _shown(text)
    if to_errors:
        Console(stderr=True, soft_wrap=True).print(text, highlight=False, markup=markup)
    else:
        console().print(text, highlight=False, markup=markup, soft_wrap=not wrapped)


def _shown(text: str) -> str:
    return "".join(each if each.isprintable() or each in "\n\t" else ascii(each)[1:-1] for each in text)


class _Plain(Table):
    """A table whose texts are no markup: names of folders, metrics and settings are anybody's."""

    def add_row(self, *cells: Any, **options: Any) -> None:
        """Add a row of texts, or of what Rich can show."""
        super().add_row(*(Text(_shown(cell)) if isinstance(cell, str) else cell for cell in cells), **options)


def make_table(title: str, columns: Iterable[str], **options: Any) -> Table:
    """Return an empty table; nothing in it is markup, and a colour is a ``Text``'s."""
    names = (escape(_shown(name)) for name in columns)
    return _Plain(*names, title=escape(_shown(title)), title_justify="left", **options)

"""The command ``python -m reproduction``: list, run, path, sweep, reproduce, plot, report.

Imports that take time (Flower, numba, Ray) are inside the commands, so that ``--help`` answers at once.
"""

from __future__ import annotations

from typing import Annotated

import typer

from reproduction.cli import listing, reproducing, running, showing
from tools.terminal import Command

app = typer.Typer(
    name="python -m reproduction",
    help="Federated composite optimisation: run problems, sweep settings, reproduce a paper's figures.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
for name, function in (
    ("list", listing.list_everything),
    ("run", running.run),
    ("path", running.fit_path),
    ("sweep", running.sweep),
    ("reproduce", reproducing.reproduce),
    ("plot", showing.plot),
    ("report", showing.report),
):
    app.command(name, cls=Command)(function)


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


def main() -> None:
    """Run the command line."""
    app(prog_name="python -m reproduction")

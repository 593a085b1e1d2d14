"""The command ``flwr-fco``: list, run, path, sweep, reproduce, plot, report, deploy.

Imports that take time (Flower, numba, Ray) are inside the commands, so that ``--help`` answers at once.
"""

from __future__ import annotations

from typing import Annotated

import typer

from flwr_fco.experiments.cli import deploying, listing, reproducing, running, showing
from flwr_fco.experiments.cli.shell import Command

app = typer.Typer(
    name="flwr-fco",
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
app.add_typer(deploying.app)


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
    app()


if __name__ == "__main__":
    main()

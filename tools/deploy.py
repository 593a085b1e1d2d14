"""``python -m tools.deploy``: SuperLink and SuperNodes on this machine, with TLS and authentication."""

from __future__ import annotations

import re
import shlex
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flwr_fco.errors import ConfigurationError
from tools.terminal import Command, console, make_table, say

if TYPE_CHECKING:
    from tools.deployment import LocalDeployment

app = typer.Typer(
    name="python -m tools.deploy",
    help="A SuperLink and SuperNodes with TLS and authentication on this machine, started by the commands that it "
    "prints. Several machines: docs/tutorials/deployment.md.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

#: The release of Flower whose commands are used.
_FLOWER = (1, 40)

Home = Annotated[Path, typer.Argument(metavar="DIR", help="The deployment's folder: keys, logs, state, FLWR_HOME.")]
Name = Annotated[str | None, typer.Argument(metavar="[NAME]", help="superlink, node-0, node-1, ...; all by default.")]


def _tell(text: str) -> None:
    say(text, wrapped=False)


def _opened(home: Path) -> LocalDeployment:
    from tools.deployment import LocalDeployment

    return LocalDeployment(home, _tell)


def _chosen(deployment: LocalDeployment, name: str | None) -> list[str]:
    if name is not None and name not in deployment.names:
        raise ConfigurationError(f"{name!r} is no process of {deployment.home}; expected {', '.join(deployment.names)}")
    return [name] if name else list(deployment.names)


@app.command(cls=Command)
def local(
    home: Home,
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="Number of SuperNodes.")] = 3,
    app_folder: Annotated[
        Path | None, typer.Option("--app", metavar="PATH", help="A Flower App to run when all is up.")
    ] = None,
    node_config: Annotated[
        str,
        typer.Option(
            "--node-config",
            help="Added to every SuperNode's, its number for {partition-id}: 'data-path=\"/data/{partition-id}.csv\"'.",
        ),
    ] = "",
    trusted: Annotated[
        Path | None,
        typer.Option(
            "--trusted-entities",
            metavar="FILE",
            help="Public keys: SuperNodes run no app but one from Flower Hub that one of them has signed.",
        ),
    ] = None,
) -> None:
    """Create keys and certificates, start a SuperLink and SuperNodes and register them; keys are never overwritten.

    The SuperLink listens on loopback: runs are started on this machine only. SuperNodes come through a gate, at the
    address that the network may see, which passes nothing else on.
    """
    from tools.deployment import CONNECTION, LocalDeployment

    if app_folder is not None and not (app_folder / "pyproject.toml").is_file():
        raise ConfigurationError(f"{app_folder} is no Flower App: it has no pyproject.toml")
    installed = version("flwr")
    if tuple(map(int, re.findall(r"\d+", installed)[:2])) < _FLOWER:
        raise ConfigurationError(
            f"flwr {installed} is installed, whose commands are others; `python -m tools.deploy` speaks those of flwr "
            "1.40: pip install 'flwr>=1.40', or see 'Older releases of Flower' in docs/tutorials/deployment.md. Before "
            "1.28 no SuperNode refuses an app (--trusted-entities): whoever starts runs runs his code at every site"
        )
    if trusted is not None and not trusted.is_file():
        raise ConfigurationError(f"--trusted-entities {trusted} is no file; expected a YAML file of public keys")
    if trusted is not None and app_folder is not None:
        raise ConfigurationError("--app is a folder, which nobody has signed; with --trusted-entities run a Hub app")
    keys = "" if trusted is None else str(trusted.resolve())
    deployment = LocalDeployment.create(home, nodes, node_config=node_config, trusted=keys, tell=_tell)
    deployment.start_superlink()
    for i in range(nodes):
        deployment.make_key(i)
        deployment.start_node(i)
    deployment.wait_for_nodes()
    user = f"FLWR_HOME={shlex.quote(str(deployment.home))}"
    if app_folder is not None:
        say(deployment.submit(app_folder.resolve()).rstrip())
        _tell(f"Its output: {user} flwr log RUN {CONNECTION}, with the number above for RUN")
    _status(deployment)
    text = "Run an app" if app_folder is None else "Run it again"
    place = "PATH" if app_folder is None else shlex.quote(str(app_folder.resolve()))
    _tell(f"\n{text}: {user} flwr run {place} {CONNECTION} --stream")
    say(f"End it all: python -m tools.deploy stop {shlex.quote(str(home))}")


def _status(deployment: LocalDeployment) -> None:
    connected = deployment.connected()
    title = f"{deployment.home}, SuperLink at {deployment.users_address}, for SuperNodes at {deployment.address}"
    table = make_table(title, ["name", "process", "SuperLink says"])
    for name in deployment.names:
        pid = deployment.pid(name)
        if name == deployment.names[0]:
            said = "does not answer" if connected is None else "answers"
        elif not name.startswith("node-"):
            said = ""
        else:
            said = "" if connected is None else connected.get(name, "never connected")
        table.add_row(name, "not running" if pid is None else str(pid), said)
    console().print(table)


@app.command(cls=Command)
def status(home: Home) -> None:
    """Show which processes are alive, and which SuperNodes the SuperLink lists as connected."""
    _status(_opened(home))


@app.command(cls=Command)
def logs(
    home: Home, name: Name = None, lines: Annotated[int, typer.Option("-n", min=1, help="Last lines of each.")] = 20
) -> None:
    """Show the last lines of the processes' logs."""
    deployment = _opened(home)
    for own in _chosen(deployment, name):
        say(f"== {deployment.home / own}.log")
        say(re.sub(r"\x1b\[[\d;]*m", "", "\n".join(deployment.log(own).splitlines()[-lines:])))


@app.command(cls=Command)
def stop(home: Home, name: Name = None) -> None:
    """Stop the processes and everything that they started; keys, state and logs are kept."""
    deployment = _opened(home)
    alive = [own for own in reversed(_chosen(deployment, name)) if deployment.stop(own)]
    say(f"Stopped: {', '.join(alive) or 'nothing was running'}")


@app.command(cls=Command)
def restart(home: Home, name: Name = None) -> None:
    """Restart dead processes, or NAME; wait while a killed SuperNode's key is refused (412, about a minute).

    A run in progress ends with the SuperLink: run the app again with `resume` (docs/tutorials/deployment.md).
    """
    deployment = _opened(home)
    chosen = _chosen(deployment, name)
    for own in chosen if name else [own for own in chosen if deployment.pid(own) is None]:
        deployment.restart(own)
    _status(deployment)


if __name__ == "__main__":
    app(prog_name="python -m tools.deploy")

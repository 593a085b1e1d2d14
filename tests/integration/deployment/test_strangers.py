"""Who may run code: a stranger with the address and the CA's certificate, and an app that nobody has signed."""

import os
import subprocess
from importlib.metadata import version

import pytest

from tools.local_superlink import command

pytestmark = [
    pytest.mark.flower,
    pytest.mark.slow,
    pytest.mark.skipif(version("flwr") == "1.22.0", reason="its Control API has a port of its own, on loopback"),
]

CODE = """
from pathlib import Path

from flwr.{kind} import {app}

(Path({folder!r}) / "{kind}-{{0}}".format(__import__("os").getpid())).write_text("ran")
app = {app}()
"""
SERVER = """

@app.main()
def main(grid, context):
    from flwr.app import Message, RecordDict

    nodes = list(grid.get_node_ids())
    replies = grid.send_and_receive([Message(RecordDict(), node, "train") for node in nodes], timeout=120)
    errors = [str(reply.error.reason) for reply in replies if reply.has_error()]
    (Path({folder!r}) / "errors").write_text(f"{{len(errors)}} of {{len(nodes)}} " + " ".join(errors))
"""
CLIENT = """

@app.train()
def train(message, context):
    from flwr.app import Message, RecordDict

    return Message(RecordDict(), reply_to=message)
"""
PROJECT = """
[project]
name = "stranger"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "stranger"

[tool.flwr.app.components]
serverapp = "stranger.server:app"
clientapp = "stranger.client:app"

[tool.flwr.app.config]
"""


@pytest.fixture
def stranger(tmp_path):
    """Make an app that says in a folder where it ran; return both."""
    app, ran = tmp_path / "app", tmp_path / "ran"
    (app / "stranger").mkdir(parents=True)
    ran.mkdir()
    (app / "stranger" / "__init__.py").write_text("")
    (app / "pyproject.toml").write_text(PROJECT)
    for file, kind, name, more in (
        ("server", "serverapp", "ServerApp", SERVER),
        ("client", "clientapp", "ClientApp", CLIENT),
    ):
        code = CODE.format(kind=kind, app=name, folder=str(ran)) + more.format(folder=str(ran))
        (app / "stranger" / f"{file}.py").write_text(code)
    return app, ran


def reported(deployment, home, *arguments):
    """Run Flower's command line as somebody who has the address of the SuperNodes and the CA's certificate."""
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "x"\n\n[superlink.x]\naddress = "{deployment.address}"\n'
        f'root-certificates = "{deployment.home / "ca.crt"}"\n'
    )
    environment = {**deployment.environment, "FLWR_HOME": str(home)}
    how = {"capture_output": True, "text": True, "timeout": 120, "check": False, "stdin": subprocess.DEVNULL}
    return subprocess.run([command("flwr"), *arguments], env=environment, cwd=home, **how)


def test_a_stranger_starts_no_run_and_registers_no_node(deployments, stranger, tmp_path):
    deployment, (app, ran) = deployments(2), stranger
    for i in range(2):
        assert deployment.pid(f"node-{i}")
    deployment.wait_for_nodes()
    deployment.make_key(7, register=False)
    for arguments in (
        ("run", str(app), "x"),
        ("list", "x"),
        ("supernode", "list", "x"),
        ("supernode", "register", str(deployment.home / "node-7.pub"), "x"),
    ):
        done = reported(deployment, tmp_path / "stranger", *arguments)
        assert done.returncode != 0, arguments
        assert "403" in done.stdout + done.stderr or "SuperNodes" in done.stdout + done.stderr, done
    assert "stranger" not in deployment.flwr("list", "local").stdout
    assert os.listdir(ran) == []
    # The operator, on the SuperLink's machine, does.
    done = deployment.flwr("run", str(app), "local", "--stream")
    assert done.returncode == 0, done
    assert (ran / "errors").read_text() == "0 of 2 "
    assert {name.partition("-")[0] for name in os.listdir(ran)} == {"clientapp", "serverapp", "errors"}


@pytest.mark.nightly
def test_sites_with_trusted_entities_run_no_app_that_nobody_has_signed(deployments, stranger):
    """Even of a user of the SuperLink's machine: his ServerApp runs there, and his ClientApp nowhere."""
    deployment, (app, ran) = deployments(2, started=False), stranger
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(deployment.home / "reviewer")], check=True)
    key = (deployment.home / "reviewer.pub").read_text().split()
    trusted = deployment.home / "trusted.yaml"
    trusted.write_text(f"fpk_reviewer: '{key[0]} {key[1]}'\n")
    deployment.trusted = str(trusted)
    deployment.start_all()
    deployment.wait_for_nodes()
    assert deployment.flwr("run", str(app), "local", "--stream").returncode == 0
    assert (ran / "errors").read_text().startswith("2 of 2 ")
    assert not [name for name in os.listdir(ran) if name.startswith("clientapp")]
    assert "could not be verified" in deployment.log("node-0") + deployment.log("node-1")

"""A deployment with TLS and authentication: bits of one process, who may run code, a SuperLink that is killed."""

import os
import subprocess
from importlib.metadata import version

import numpy as np
import pytest
from representatives import nightly

from tools.local_superlink import command

pytestmark = [pytest.mark.flower, pytest.mark.slow]
#: Its Control API has a port of its own, on loopback.
LOWEST = version("flwr") == "1.22.0"

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


def same(arrays, others):
    assert arrays.keys() == others.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, others[name])


def starts_nothing(deployment, app, home):
    """Try all that somebody could who has the SuperNodes' address and the CA's certificate."""
    deployment.make_key(7, register=False)
    for arguments in (
        ("run", str(app), "x"),
        ("list", "x"),
        ("supernode", "register", str(deployment.home / "node-7.pub"), "x"),
    ):
        done = reported(deployment, home, *arguments)
        assert done.returncode != 0, arguments
        assert "403" in done.stdout + done.stderr or "SuperNodes" in done.stdout + done.stderr, done
    assert "stranger" not in deployment.flwr("list", "local").stdout


@pytest.mark.parametrize("strategy", ["FedDAGT", *nightly("FedDualAvg", "Short")])
def test_the_bits_are_those_of_simulate_and_strangers_stay_out(strategy, deployments, here, stranger, tmp_path):
    """In the default run with memories and a round 0, of which the other's messages are a part."""
    deployment, (app, ran) = deployments(2), stranger
    deployment.make_ca("other-ca")
    deployment.start_stranger(2, register=False, ca="ca.crt")
    deployment.start_stranger(3, register=True, ca="other-ca.crt")
    if not LOWEST:
        starts_nothing(deployment, app, tmp_path / "stranger")
    arrays, rows, left_out = deployment.run(strategy, strategy=strategy, rounds=1)
    expected, expected_rows = here(strategy, 1, 2)
    same(arrays, expected)
    assert left_out == []
    assert [row["train/num-replies"] for row in rows] == [row["train/num-replies"] for row in expected_rows] == [2]
    assert os.listdir(ran) == []
    if strategy != "FedDAGT" and not LOWEST:
        # The operator, on the SuperLink's machine, runs what the stranger could not.
        assert deployment.flwr("run", str(app), "local", "--stream").returncode == 0
        assert (ran / "errors").read_text() == "0 of 2 "
        assert {name.partition("-")[0] for name in os.listdir(ran)} == {"clientapp", "serverapp", "errors"}


@pytest.mark.skipif(LOWEST, reason="it has no trusted entities")
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


# It waits a minute for the keys of killed nodes to be free. In the default run test_killed_runs.py resumes with new
# nodes on a grid that says no more than Flower's, and test_deploy.py starts a node until it is taken.
@pytest.mark.nightly
def test_a_killed_superlink_is_resumed_from_the_checkpoint(deployments, here):
    deployment = deployments(2)
    saved = str(deployment.home / "saved.npz")
    deployment.begin("first", strategy="FedDAGT", rounds=4, checkpoint=saved, resume=True)
    deployment.wait_for_round("first", 3)
    deployment.kill("superlink")
    deployment.kill("first")
    for i in range(2):
        deployment.kill(f"node-{i}")
    deployment.start_superlink()
    for i in range(2):
        deployment.restart_node(i)
    arrays, rows, _ = deployment.run("second", strategy="FedDAGT", rounds=4, checkpoint=saved, resume=True)
    assert "Resumed after round" in deployment.log("second")
    same(arrays, here("FedDAGT", 4, 2)[0])
    assert [row["round"] for row in rows] == [1, 2, 3, 4]

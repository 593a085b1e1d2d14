"""`python -m tools.deploy` without starting Flower: keys, refusals, and whose processes it ends."""

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from flwr_fco.errors import ConfigurationError
from tools.deploy import app
from tools.deployment import LocalDeployment
from tools.local_superlink import command_line, exists

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None or shutil.which("ssh-keygen") is None, reason="needs openssl and ssh-keygen"
)


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A deployment that nobody changes: keys of this length take a second."""
    lines = []
    home = tmp_path_factory.mktemp("original") / "home"
    return LocalDeployment.create(home, 2, node_config="data-path='/data'", tell=lines.append), lines


@pytest.fixture
def made(original, tmp_path):
    """A deployment of the test's own, with the keys of the original."""
    deployment, lines = original
    home = shutil.copytree(deployment.home, tmp_path / "home")
    config = home / "config.toml"
    config.write_text(config.read_text().replace(str(deployment.home), str(home)))
    return LocalDeployment(home), [text.replace(str(deployment.home), str(home)) for text in lines]


def test_keys_are_their_owners_and_the_certificate_is_the_authoritys(made):
    deployment, _ = made
    deployment.make_key(0, register=False)
    assert stat.S_IMODE(deployment.home.stat().st_mode) == 0o700
    for name in ("ca.key", "server.key", "node-0"):
        assert stat.S_IMODE((deployment.home / name).stat().st_mode) == 0o600, name
    verified = subprocess.run(
        ["openssl", "verify", "-CAfile", "ca.crt", "-verify_ip", "127.0.0.1", "server.pem"],
        cwd=deployment.home,
        capture_output=True,
        text=True,
        check=False,
    )
    assert verified.returncode == 0, verified.stderr


def test_all_listen_on_loopback_and_nodes_come_by_the_gate(made):
    deployment, _ = made
    for name in deployment.names:
        command = deployment._command(name)
        assert command[command.index("--host") + 1] == "127.0.0.1", name
    gate, node = deployment._command("gate"), deployment._command("node-1")
    assert gate[gate.index("--superlink") + 1] == deployment.users_address != deployment.address
    assert node[node.index("--superlink") + 1] == deployment.address
    assert "--trusted-entities" not in node
    deployment.trusted = "/keys.yaml"
    assert deployment._command("node-1")[-2:] == ["--trusted-entities", "/keys.yaml"]


def test_a_folder_that_is_not_empty_is_refused(made):
    deployment, _ = made
    before = (deployment.home / "ca.key").read_bytes()
    result = call("local", deployment.home)
    assert result.exit_code == 2
    assert "is not empty, and keys are not overwritten" in result.output
    assert (deployment.home / "ca.key").read_bytes() == before


def test_what_is_wrong_is_said(tmp_path, made):
    deployment, _ = made
    for arguments, text in (
        (("status", tmp_path / "nothing"), "holds no deployment"),
        (("stop", deployment.home, "node-9"), "expected superlink, gate, node-0, node-1"),
        (("local", tmp_path / "new", "--trusted-entities", tmp_path / "none"), "is no file; expected a YAML file"),
        (("local", tmp_path / "new", "--app", tmp_path), "is no Flower App"),
    ):
        result = call(*arguments)
        assert result.exit_code == 2, result.output
        assert text in " ".join(result.output.split())
    assert not (tmp_path / "new").exists()
    with pytest.raises(ConfigurationError, match="nodes=0"):
        LocalDeployment.create(tmp_path / "none", 0)


CHILD = (
    "import subprocess, sys, time;"
    "print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)', *sys.argv[1:]]).pid, flush=True);"
    "time.sleep(60)"
)


def started(environment, *arguments):
    """Start a process in a session of its own; return it, and the number of its child."""
    options = {"stdout": subprocess.PIPE, "text": True, "start_new_session": True, "env": environment}
    leader = subprocess.Popen([sys.executable, "-c", CHILD, *arguments], **options)
    return leader, int(leader.stdout.readline())


def test_a_dead_process_takes_what_it_has_started_with_it(made):
    deployment, _ = made
    leader, child = started(deployment.environment)
    deployment._note("node-1", leader.pid)
    assert deployment.pid("node-1") == leader.pid
    leader.kill()
    leader.wait()
    assert not deployment.stop("node-1")
    deadline = time.monotonic() + 10.0
    while exists(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not exists(child)


def reported_of(deployment, **changes):
    """Change what the deployment's file says."""
    path = deployment.home / "deployment.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("home", [True, False])
@pytest.mark.parametrize("began", ["", "another start"])
def test_a_process_that_has_the_number_now_is_not_ended(made, home, began):
    """Its command line may name the folder, and it may even have the same FLWR_HOME: an editor, a backup."""
    deployment, _ = made
    other, child = started(deployment.environment if home else None, str(deployment.home / "ca.crt"))
    try:
        reported_of(deployment, pids={"node-0": other.pid}, began={"node-0": began} if began else {})
        assert "nothing was running" in call("stop", deployment.home).output
        time.sleep(0.2)
        assert other.poll() is None
        # Of a killed one nothing else is left, and it may wait long for who collects it.
        assert command_line(child)
    finally:
        other.kill()
        other.wait()
        os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"[]", b"[" * 10**6, b"\xff", b'{"nodes": 1}'),
        *({"nodes": value} for value in (-1, "2", True, 10**400)),
        *({"ports": value} for value in ({}, ["a", "b", "c"], [1])),
        *({"pids": value} for value in ([], {"node-0": -1}, {"node-0": 2**40}, {"node-7": 5})),
        *({"began": []}, {"node_ids": None}, {"node_config": 3}, {"trusted": None}),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_file_that_says_something_odd_is_refused_in_words(made, content):
    deployment, _ = made
    if isinstance(content, dict):
        reported_of(deployment, **content)
    else:
        (deployment.home / "deployment.json").write_bytes(content)
    for command in ("status", "stop", "logs"):
        result = call(command, deployment.home)
        assert result.exit_code == 2, (result.output, result.exception)
        assert "deployment.json is damaged" in " ".join(result.output.split()).replace(" /", "/")

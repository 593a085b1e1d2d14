"""Tools for a deployment, most without starting Flower: keys, refusals, the gate, and whose processes they end."""

import json
import os
import shutil
import signal
import ssl
import stat
import subprocess
import sys
import threading
import time
from contextlib import suppress
from http.client import HTTPSConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from problems import refused
from rich.console import Console
from typer.testing import CliRunner

from tools.deploy import app
from tools.deployment import LocalDeployment, free_ports
from tools.gate import Gate
from tools.local_superlink import command_line, end_of, exists, watch
from tools.terminal import make_table, say


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A deployment that nobody changes: keys of this length take a second."""
    if shutil.which("openssl") is None or shutil.which("ssh-keygen") is None:
        pytest.skip("needs openssl and ssh-keygen")
    return LocalDeployment.create(tmp_path_factory.mktemp("original") / "home", 2, node_config="own={partition-id}")


@pytest.fixture
def made(original, tmp_path):
    """A deployment of the test's own, with the keys of the original."""
    home = shutil.copytree(original.home, tmp_path / "home")
    config = home / "config.toml"
    config.write_text(config.read_text().replace(str(original.home), str(home)))
    return LocalDeployment(home)


def test_keys_are_their_owners_and_the_certificate_is_the_authoritys(made):
    made.make_key(0, register=False)
    assert stat.S_IMODE(made.home.stat().st_mode) == 0o700
    for name in ("ca.key", "server.key", "node-0"):
        assert stat.S_IMODE((made.home / name).stat().st_mode) == 0o600, name
    verify = ["openssl", "verify", "-x509_strict", "-CAfile", "ca.crt", "-verify_ip", "127.0.0.1", "server.pem"]
    assert subprocess.run(verify, cwd=made.home, check=False).returncode == 0


def test_all_listen_on_loopback_and_nodes_come_by_the_gate(made):
    for name in made.names:
        command = made._command(name)
        assert command[command.index("--host") + 1] == "127.0.0.1", name
    gate, node = made._command("gate"), made._command("node-1")
    assert gate[gate.index("--superlink") + 1] == made.users_address != made.address
    assert node[node.index("--superlink") + 1] == made.address
    assert node[-1] == "partition-id=1 num-partitions=2 own=1"
    made.trusted = "/keys.yaml"
    assert made._command("node-1")[-2:] == ["--trusted-entities", "/keys.yaml"]


def test_what_is_wrong_is_said_and_keys_are_not_overwritten(tmp_path, made):
    before = (made.home / "ca.key").read_bytes()
    for arguments, text in (
        (("local", made.home), "is not empty, and keys are not overwritten"),
        (("status", tmp_path / "nothing"), "holds no deployment"),
        (("stop", made.home, "node-9"), "expected superlink, gate, node-0, node-1"),
        (("local", tmp_path / "new", "--trusted-entities", tmp_path / "none"), "is no file; expected a YAML file"),
        (("local", tmp_path / "new", "--app", tmp_path), "is no Flower App"),
    ):
        result = call(*arguments)
        assert result.exit_code == 2, result.output
        assert text in " ".join(result.output.split())
    assert not (tmp_path / "new").exists()
    assert (made.home / "ca.key").read_bytes() == before
    refused("nodes=0", LocalDeployment.create, tmp_path / "none", 0)


CHILD = (
    "import subprocess, sys, time;"
    "own = [sys.executable, '-c', 'import time; time.sleep(60)', *sys.argv[2:]];"
    "print(subprocess.Popen(own, start_new_session=sys.argv[1] == 'apart').pid, flush=True);"
    "time.sleep(60)"
)


def started(environment, *arguments, child="beside"):
    """Start a process in a session of its own; return it, and the number of its child."""
    options = {"stdout": subprocess.PIPE, "text": True, "start_new_session": True, "env": environment}
    leader = subprocess.Popen([sys.executable, "-c", CHILD, child, *arguments], **options)
    return leader, int(leader.stdout.readline())


def test_a_dead_process_takes_what_it_has_started_with_it(made):
    leader, child = started(made.environment)
    made._note("node-1", leader.pid)
    assert made.pid("node-1") == leader.pid
    leader.kill()
    leader.wait()
    assert not made.stop("node-1")
    deadline = time.monotonic() + 10.0
    while exists(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not exists(child)


def reported_of(made, **changes):
    """Change what the deployment's file says."""
    path = made.home / "deployment.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("home", [True, False])
@pytest.mark.parametrize("began", ["", "another start"])
def test_a_process_that_has_the_number_now_is_not_ended(made, home, began):
    """Its command line may name the folder, and it may even have the same FLWR_HOME: an editor, a backup."""
    other, child = started(made.environment if home else None, str(made.home / "ca.crt"))
    try:
        reported_of(made, pids={"node-0": other.pid}, began={"node-0": began} if began else {})
        assert "nothing was running" in call("stop", made.home).output
        time.sleep(0.2)
        assert other.poll() is None
        # Of a killed one nothing else is left, and it may wait long for who collects it.
        assert command_line(child)
    finally:
        other.kill()
        other.wait()
        os.kill(child, signal.SIGKILL)


#: What a deployment's file says instead, and by its entries what they are in it.
ODD_FILES = [b"", b"[]", b"[" * 10**6, b"\xff", b'{"nodes": 1}']
ODD_ENTRIES = {
    "nodes": [-1, "2", True, 10**400],
    "ports": [{}, ["a", "b", "c"], [1]],
    "pids": [[], {"node-0": -1}, {"node-0": 2**40}, {"node-7": 5}],
    "began": [[]],
    "node_ids": [None],
    "node_config": [3],
    "trusted": [None],
}
ODD_FILES += [{name: value} for name, values in ODD_ENTRIES.items() for value in values]


@pytest.mark.parametrize("content", ODD_FILES, ids=lambda value: str(value)[:20])
def test_a_file_that_says_something_odd_is_refused_in_words(made, content):
    if isinstance(content, dict):
        reported_of(made, **content)
    else:
        (made.home / "deployment.json").write_bytes(content)
    for command in ("status", "stop", "logs"):
        result = call(command, made.home)
        assert result.exit_code == 2, (result.output, result.exception)
        assert "deployment.json is damaged" in " ".join(result.output.split()).replace(" /", "/")


# --- the gate before a SuperLink: what it passes on, and what it refuses unread -------------------------------------


class Recording(BaseHTTPRequestHandler):
    """A SuperLink that says what it was asked."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.calls.append((self.path, body, self.headers["X-Signature"]))
        answer = b"said " + body
        self.send_response(418)
        self.send_header("Content-Length", str(len(answer)))
        self.send_header("X-Answer", "yes")
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_POST

    def log_message(self, *_):
        pass


@pytest.fixture
def gate(original):
    """Yield a way to call the gate, and the SuperLink behind it, which keeps what comes to it."""
    keys = original.home
    pair = keys / "server.pem", keys / "server.key"
    link = ThreadingHTTPServer(("127.0.0.1", 0), Recording)
    link.calls = []
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.load_cert_chain(*pair)
    link.socket = own.wrap_socket(link.socket, server_side=True)
    (port,) = free_ports(1)
    made = Gate(("127.0.0.1", port), f"127.0.0.1:{link.server_address[1]}", keys / "ca.crt", *pair)
    for server in (made, link):
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    trusted = ssl.create_default_context(cafile=keys / "ca.crt")

    def call(method, path, body=b"", **headers):
        connection = HTTPSConnection("127.0.0.1", port, context=trusted, timeout=20)
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.getheader("X-Answer")

    yield call, link
    for server in (made, link):
        server.shutdown()
        server.server_close()


def test_the_calls_of_a_supernode_pass_as_they_are(gate):
    call, link = gate
    body = bytes(range(256)) * 4_000
    answer = call("POST", "/v1/fleet/pull-messages", body, **{"X-Signature": "mine"})
    assert answer == (418, b"said " + body, "yes")
    assert link.calls == [("/v1/fleet/pull-messages", body, "mine")]


OTHER_REQUESTS = [
    *(("POST", f"/v1/{path}") for path in ("control/start-run", "control/register-node", "runtime/push-messages")),
    *(("POST", path) for path in ("/", "/v1/fleet", "/v1/fleet/", "/v1//fleet/get-run", "/V1/FLEET/get-run")),
    *(("POST", f"/v1/fleet/{path}") for path in ("../control/start-run", "%2e%2e/control/start-run")),
    *(("POST", f"/v1/fleet/get-run{more}") for more in ("?x=/v1/control", "#x", "/", ";x", "%0a", "\\x")),
    *((method, "/v1/fleet/get-run") for method in ("GET", "PUT", "DELETE", "OPTIONS", "CONNECT", "PATCH")),
]


@pytest.mark.parametrize(("method", "path"), OTHER_REQUESTS)
def test_nothing_else_reaches_the_superlink(gate, method, path):
    call, link = gate
    status, _, _ = call(method, path)
    assert status in (403, 501)
    assert link.calls == []


def test_a_body_of_unknown_length_and_a_second_request_in_it_stay_outside(gate):
    call, link = gate
    # The connection may be closed before all is sent.
    with suppress(OSError):
        status, _, _ = call("POST", "/v1/fleet/get-run", iter([b"POST /v1/control/start-run HTTP/1.1\r\n\r\n"]))
        assert status == 403
    assert link.calls == []


def test_who_sends_megabytes_is_refused_in_words_too(gate):
    call, link = gate
    status, said, _ = call("POST", "/v1/control/start-run", bytes(20_000_000))
    assert status == 403
    assert b"This address is for SuperNodes" in said
    assert link.calls == []


def test_without_a_superlink_a_node_gets_an_error(gate):
    call, link = gate
    link.shutdown()
    link.server_close()
    assert call("POST", "/v1/fleet/get-run", b"x")[0] == 502


# --- what a process of ours has started ends with it; what commands show is text ------------------------------------


@pytest.mark.parametrize("ours", [True, False])
def test_the_superlink_of_a_killed_process_is_ended_with_what_it_started(tmp_path, ours):
    """The system closes a killed process's end of the pipe; another's process of the same number is left alone."""
    environment = {**os.environ, "FLWR_HOME": str(tmp_path if ours else tmp_path / "other")}
    # A child with a session of its own, as the SuperLink's.
    leader, child = started(environment, child="apart")
    watcher, lifeline = watch(leader.pid, tmp_path)
    try:
        time.sleep(0.2)
        assert leader.poll() is None
        os.close(lifeline)
        os.waitpid(watcher, 0)
        assert (leader.poll() is None) != ours
        assert bool(command_line(child)) != ours
    finally:
        for pid in (leader.pid, child):
            if command_line(pid):
                os.kill(pid, signal.SIGKILL)


def test_of_a_log_of_gigabytes_the_end_is_read(tmp_path):
    log = tmp_path / "node-0.log"
    with log.open("wb") as file:
        file.truncate(2**35)
        file.seek(0, os.SEEK_END)
        file.write(b"the end\n")
    assert len(end_of(log)) <= 2**24
    assert end_of(log).endswith("\0the end\n")
    assert (end_of(log, 2**35), end_of(tmp_path / "none.log")) == ("the end\n", "")


ODD = "a[/b][red]\x1b[2J\u202e\udc80\\"


def test_lines_and_titles_columns_and_cells_of_a_table_are_text(capsys):
    say(ODD)
    table = make_table(ODD, [ODD])
    table.add_row(ODD)
    Console(width=200).print(table)
    assert capsys.readouterr().out.count(r"a[/b][red]\x1b[2J\u202e\udc80" + "\\") == 4

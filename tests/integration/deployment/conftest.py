"""A deployment on this machine: a SuperLink and SuperNodes with TLS and authentication, as processes."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
import pytest

from flwr_fco.experiments.runs.local_superlink import _descendants, _end, command

APP = Path(__file__).parent / "app"
#: Seconds for a process to be ready, and for a run.
READY, RUN = 120, 900


def wait_until(condition, seconds, what):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.2)
    raise AssertionError(f"{what}: not within {seconds} s")


class Deployment:
    """Processes by name, in a folder with their keys, logs and FLWR_HOME."""

    def __init__(self, home, nodes=3):
        self.home, self.nodes = home, nodes
        with ExitStack() as reserved:
            sockets = [reserved.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(1 + nodes + 2)]
            ports = [str(holder.getsockname()[1]) for holder in sockets]
        self.http, *self.ports = ports
        root = Path(__file__).parents[3]
        paths = [str(root), os.environ.get("PYTHONPATH", "")]
        self.environment = {
            **os.environ,
            "PATH": os.pathsep.join([os.path.dirname(command("flwr")), os.environ.get("PATH", "")]),
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
            "FLWR_HOME": str(home),
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05",
        }
        self.processes = {}
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{self.http}"\n'
            f'root-certificates = "{home}/ca.crt"\n'
        )
        self._certify()

    def _certify(self):
        """Make a CA, and a certificate of it for the SuperLink."""

        def openssl(*arguments):
            subprocess.run(["openssl", *arguments], cwd=self.home, check=True, capture_output=True)

        for name in ("ca", "other-ca"):
            openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}",
                    "-keyout", f"{name}.key", "-out", f"{name}.crt")  # fmt: skip
        openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-keyout", "server.key",
                "-out", "server.csr")  # fmt: skip
        (self.home / "server.ext").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        openssl("x509", "-req", "-in", "server.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
                "-days", "2", "-extfile", "server.ext", "-out", "server.pem")  # fmt: skip

    def start(self, name, program, *arguments):
        with (self.home / f"{name}.log").open("a") as output:
            self.processes[name] = subprocess.Popen(
                [command(program), *arguments],
                env=self.environment,
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self.processes[name]

    def log(self, name):
        path = self.home / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start_superlink(self):
        self.start(
            "superlink", "flower-superlink", "--host", "127.0.0.1", "--port", self.http,
            "--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.pem", "--ssl-keyfile", "server.key",
            "--enable-supernode-auth", "--database", str(self.home / "state.db"),
        )  # fmt: skip
        # `flwr supernode list` is what a user would try.
        wait_until(lambda: self.flwr("supernode", "list").returncode == 0, READY, "the SuperLink answers")

    def flwr(self, *arguments):
        return subprocess.run(
            [command("flwr"), *arguments],
            env=self.environment,
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=READY,
            check=False,
        )

    def make_key(self, i, register=True):
        key = self.home / f"node-{i}"
        subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", str(key)], check=True)
        if register:
            done = self.flwr("supernode", "register", f"{key}.pub")
            assert done.returncode == 0, done.stdout + done.stderr

    def start_node(self, i, ca="ca.crt"):
        return self.start(
            f"node-{i}", "flower-supernode", "--superlink", f"127.0.0.1:{self.http}", "--root-certificates", ca,
            "--auth-supernode-private-key", f"node-{i}", "--host", "127.0.0.1", "--port", self.ports[i],
            "--node-config", f"partition-id={i} num-partitions={self.nodes}",
        )  # fmt: skip

    def start_all(self):
        self.start_superlink()
        for i in range(self.nodes):
            self.make_key(i)
            self.start_node(i)

    def kill(self, name):
        """SIGKILL a process and all that it has started."""
        process = self.processes.pop(name)
        for pid in [process.pid, *_descendants(process.pid)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        # And those of its session whose parent has gone before.
        _end(process)

    def restart_node(self, i):
        """Start a killed node again with its key, which the SuperLink refuses until it has missed its signs of life."""
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline:
            before = len(self.log(f"node-{i}"))
            self.start_node(i)
            # One that is refused says so, and may stay all the same: its SuperExec waits for it.
            time.sleep(8)
            if "Exit Code" not in self.log(f"node-{i}")[before:]:
                return
            self.kill(f"node-{i}")
        raise AssertionError(self.log(f"node-{i}")[-2000:])

    def begin(self, name, **config):
        """Submit a run of the app; return its process, which streams the log into NAME.log."""
        config = {"nodes": self.nodes, "out": str(self.home / f"{name}.npz"), **config}
        text = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
        app = self.home / "app"
        if not app.exists():
            shutil.copytree(APP, app)
        return self.start(name, "flwr", "run", str(app), "--stream", "-c", text)

    def rounds(self, name):
        return self.log(name).count("[ROUND ")

    def wait_for_round(self, name, number):
        wait_until(lambda: self.rounds(name) >= number, RUN, f"round {number} of {name}: {self.log(name)[-1500:]}")

    def ended(self, name):
        """Wait for the end of a run; return its arrays, rows of metrics and replies that did not count."""
        out = self.home / f"{name}.npz"
        process = self.processes[name]
        wait_until(lambda: process.poll() is not None, RUN, f"the end of {name}: {self.log(name)[-1500:]}")
        assert out.exists(), self.log(name)[-4000:] + self.log("superlink")[-2000:]
        with np.load(out) as file:
            arrays = dict(file)
        told = json.loads(str(arrays.pop("told")))
        return arrays, told["rows"], told["left_out"]

    def run(self, name, **config):
        self.begin(name, **config)
        return self.ended(name)

    def end(self):
        for process in reversed(self.processes.values()):
            _end(process)


@pytest.fixture
def deployments(tmp_path):
    """Make deployments; all of their processes are ended by their pids."""
    with ExitStack() as made:

        def make(nodes=3, *, started=True):
            home = tmp_path / f"home-{nodes}"
            home.mkdir()
            deployment = Deployment(home, nodes)
            made.callback(deployment.end)
            if started:
                deployment.start_all()
            return deployment

        yield make


@pytest.fixture
def here():
    """Run the app's strategy and clients in this process; return arrays and rows."""
    sys.path.insert(0, str(APP))
    try:
        from survivors import client, problem
    finally:
        sys.path.remove(str(APP))
    from flwr_fco.simulation import simulate

    def run(strategy, rounds, nodes=3, faults=0.0):
        result = simulate(
            problem.build(strategy, nodes),
            client.app,
            num_nodes=nodes,
            num_rounds=rounds,
            initial_arrays=problem.start(),
            run_config={"faults": faults},
            raise_errors=not faults,
            progress=False,
        )
        return {name: array.numpy() for name, array in result.arrays.items()}, result.rows()

    return run

"""A deployment on this machine: a SuperLink and SuperNodes with TLS and authentication, as processes.

With the lowest release of Flower that is supported too, whose commands are others.
"""

import json
import shutil
import signal
import subprocess
import time
from contextlib import ExitStack, chdir
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
from flwr.cli.app import app
from typer.testing import CliRunner

from tools.deployment import LocalDeployment, free_ports, listens

APP = Path(__file__).parents[1] / "app"
#: Seconds for a run.
RUN = 900


def wait_until(condition, seconds, prefix):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{prefix()}: not within {seconds} s"
        time.sleep(0.2)


class Deployment(LocalDeployment):
    """A deployment whose runs the tests follow."""

    paths = ""  # PYTHONPATH
    connections = ""  # of the app, in its pyproject.toml

    def __init__(self, home, tell=print):
        super().__init__(home, tell)
        self.processes = {}
        #: Where an app of a stranger notes that its code has run.
        self.ran = self.home / "ran"
        self.ran.mkdir(exist_ok=True)

    @property
    def environment(self):
        own = {"PYTHONPATH": self.paths, "OMP_NUM_THREADS": "1", "RAN": str(self.ran)}
        return {**super().environment, **own, "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5"}

    def _call(self, program, arguments):
        return self.flwr_at(self.home, arguments) if Path(program).stem == "flwr" else super()._call(program, arguments)

    def flwr_at(self, home, arguments):
        """Run Flower's command line with the configuration in a folder: in this process, as to import it takes long."""
        with chdir(home):
            done = CliRunner().invoke(app, [*arguments], env={**self.environment, "FLWR_HOME": str(home)})
        return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)

    def spawn(self, name, program):
        self.processes[name] = super().spawn(name, program)
        return self.processes[name]

    def start_all(self):
        self.start_superlink()
        for i in range(self.nodes):
            self.make_key(i)
            self.start_node(i)

    def start_stranger(self, i, *, register, ca):
        """Start a node that is to stay out."""
        self.make_key(i, register=register)
        # Without a SuperExec for apps, which takes as long to start as the node itself.
        self.spawn(f"node-{i}", [*self.node_command(i, free_ports(1)[0], ca), "--isolation", "process"])

    def kill(self, *names):
        """SIGKILL processes and all that they have started."""
        for name in names:
            self.stop(name, signal.SIGKILL)

    def begin(self, name, **config):
        """Submit a run of the app; return its process, which streams the log into NAME.log."""
        config = {"nodes": self.nodes, "out": str(self.home / f"{name}.npz"), **config}
        text = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
        app = self.home / "app"
        if not app.exists():
            shutil.copytree(APP, app)
            with (app / "pyproject.toml").open("a", encoding="utf-8") as file:
                file.write(self.connections)
        return self.spawn(name, ["flwr", "run", str(app), "--stream", "-c", text])

    def wait_for_round(self, name, number):
        wait_until(lambda: self.log(name).count("[ROUND ") >= number, RUN, lambda: f"{name}: {self.log(name)[-1500:]}")

    def ended(self, name):
        """Wait for the end of a run; return its arrays, rows of metrics and replies that did not count."""
        wait_until(lambda: self.processes[name].poll() is not None, RUN, lambda: f"{name}: {self.log(name)[-1500:]}")
        out = self.home / f"{name}.npz"
        assert out.exists(), self.log(name)[-4000:] + self.log("superlink")[-2000:]
        with np.load(out) as file:
            arrays = dict(file)
        reported = json.loads(str(arrays.pop("reported")))
        return arrays, reported["rows"], reported["left_out"]

    def run(self, name, **config):
        self.begin(name, **config)
        return self.ended(name)

    def end(self):
        for name, process in reversed(self.processes.items()):
            self.stop(name)
            process.wait()


class LowestDeployment(Deployment):
    """The same with the commands of flwr 1.22: three ports, keys in a file at the start, connections in the app.

    Without a database, in which the key of a node that was killed would be in use for ever.
    """

    def __init__(self, home, tell=print):
        super().__init__(home, tell)
        self.serverapp, self.control = (f"127.0.0.1:{port}" for port in free_ports(2))
        address = f'address = "{self.control}"\nroot-certificates = "{self.home / "ca.crt"}"\n'
        self.connections = f'\n[tool.flwr.federations]\ndefault = "x"\n\n[tool.flwr.federations.x]\n{address}'

    def start_superlink(self):
        # The registered stranger of the tests among them: later ones are not taken.
        for i in (*range(self.nodes), self.nodes + 1):
            self.make_key(i)
        process = self.spawn("superlink", self._command("superlink"))

        def answers():
            assert process.poll() is None, self.log("superlink")[-2000:]
            return listens(int(self.control.partition(":")[2]))

        wait_until(answers, 60, lambda: "the SuperLink's answer")

    def make_key(self, i, *, register=True):
        if not (self.home / f"node-{i}").exists():
            super().make_key(i, register=False)
            if register:
                kind, key = (self.home / f"node-{i}.pub").read_text(encoding="utf-8").split()[:2]
                with (self.home / "keys.csv").open("a", encoding="utf-8") as file:
                    file.write(f"{',' if file.tell() else ''}{kind} {key}")

    def _command(self, name):
        if name != "superlink":
            return super()._command(name)
        return [
            "flower-superlink", "--ssl-ca-certfile", str(self.home / "ca.crt"), "--ssl-certfile", "server.pem",
            "--ssl-keyfile", "server.key", "--auth-list-public-keys", "keys.csv",
            "--serverappio-api-address", self.serverapp, "--fleet-api-address", self.address,
            "--control-api-address", self.control,
        ]  # fmt: skip

    def node_command(self, i, port, ca="ca.crt"):
        return [
            "flower-supernode", "--superlink", self.address, "--root-certificates", str(self.home / ca),
            "--auth-supernode-private-key", f"node-{i}", "--auth-supernode-public-key", f"node-{i}.pub",
            "--clientappio-api-address", f"127.0.0.1:{port}",
            "--node-config", f"partition-id={i} num-partitions={self.nodes}",
        ]  # fmt: skip


KIND = LowestDeployment if version("flwr") == "1.22.0" else Deployment


@pytest.fixture
def deployments(tmp_path, paths, monkeypatch):
    """Make deployments; all of their processes are ended by their pids."""
    monkeypatch.setattr(Deployment, "paths", paths)
    with ExitStack() as made:

        def make(nodes=3, *, started=True):
            deployment = KIND.create(tmp_path / f"home-{nodes}", nodes, tell=print)
            made.callback(deployment.end)
            if started:
                deployment.start_all()
            return deployment

        yield make

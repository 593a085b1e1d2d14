"""A real deployment on this machine: SuperLink and SuperNodes as processes, a new process for every message."""

import os
import socket
import subprocess
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest

from flwr_fco.models import load_npz
from main_job.compare import model_of, read_task, train
from tools.local_superlink import _wait_until_healthy, command, end

# By day tests/integration/deployment does much the same, with authentication and without questions.
pytestmark = [pytest.mark.flower, pytest.mark.nightly]

NODES = 2


@contextmanager
def deployment(home, root):
    """Start a SuperLink and two SuperNodes; yield the environment in which `flwr run` finds them as its default."""
    with ExitStack() as reserved:
        ports = [
            str(reserved.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1])
            for _ in range(1 + NODES)
        ]
    paths = [str(root), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([os.path.dirname(command("flwr")), os.environ.get("PATH", "")]),
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "FLWR_HOME": str(home),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05",
    }
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{ports[0]}"\ninsecure = true\n'
    )

    def start(log, name, *arguments):
        with (home / log).open("w") as output:
            process = subprocess.Popen(
                [command(name), "--insecure", "--host", "127.0.0.1", *arguments],
                env=environment,
                cwd=home,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        started.callback(end, process.pid)
        return process

    with ExitStack() as started:
        superlink = start("superlink.log", "flower-superlink", "--port", ports[0])
        _wait_until_healthy(superlink, ports[0], home / "superlink.log")
        for i, port in enumerate(ports[1:]):
            config = f"partition-id={i} num-partitions={NODES}"
            address = ["--superlink", f"127.0.0.1:{ports[0]}"]
            start(f"supernode-{i}.log", "flower-supernode", *address, "--port", port, "--node-config", config)
        yield environment


def test_client_memories_outlive_their_process_and_the_bits_are_those_of_simulate(tmp_path, request):
    root = request.config.rootpath
    # With a rate that is asked for: questions take the same way as training does.
    overrides = {"strategy": "FedDAGT", "num-server-rounds": 2, "num-nodes": NODES, "evaluate-every": 2}
    overrides |= {"client-lr": "auto", "server-lr": 1.0}
    config = " ".join(f"{key}={value!r}" for key, value in {**overrides, "output-dir": str(tmp_path / "runs")}.items())
    with deployment(tmp_path, root) as environment:
        finished = subprocess.run(
            [command("flwr"), "run", str(root), "--stream", "-c", config],
            env=environment,
            cwd=root,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    assert finished.returncode == 0, finished.stdout[-3000:] + finished.stderr[-3000:]
    (folder,) = (tmp_path / "runs").iterdir()
    here = model_of(train(read_task(root, overrides)))
    for name, array in load_npz(folder / "model.npz").items():
        np.testing.assert_array_equal(array, here[name])

"""Flower's simulation on a Ray cluster of two raylets: `ray start` twice on this machine, as on two."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from problems import simulated

from flwr_fco.errors import FlwrFcoError
from tools.local_superlink import command, end, flower_run, local_superlink

pytestmark = [pytest.mark.flower, pytest.mark.nightly]
ray = pytest.importorskip("ray", reason="Flower's simulation needs ray: pip install 'flwr[simulation]'")

APP = Path(__file__).parent / "app"
NODES = 4
ROUNDS = 3
MEMORY = 100_000_000
#: A raylet may die at its start where the machine is busy.
ATTEMPTS = 4
READY = 90


@contextmanager
def two_raylets(folder, root):
    """Start a cluster of two raylets with one CPU each; yield its address and the environment that finds it."""
    host = ray.util.get_node_ip_address()
    with socket.create_server((host, 0)) as held:
        address = f"{host}:{held.getsockname()[1]}"
    paths = os.pathsep.join(path for path in (str(root), os.environ.get("PYTHONPATH", "")) if path)
    # Without a folder of its own Ray would write the address where every other `ray.init()` of this machine looks.
    environment = {**os.environ, "PYTHONPATH": paths, "RAY_TMPDIR": str(folder), "RAY_USAGE_STATS_ENABLED": "0"}
    started = []

    def start(name, *arguments):
        own = {**environment, "NUMBA_CACHE_DIR": str(folder / f"numba-{name}"), "OMP_NUM_THREADS": "1"}
        options = ["--num-cpus", "1", "--object-store-memory", str(MEMORY), "--block", "--disable-usage-stats"]
        with (folder / f"{name}.log").open("w") as log:
            process = subprocess.Popen(
                [command("ray"), "start", *arguments, *options],
                env=own,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        started.append(process)

    try:
        start("head", "--head", "--node-ip-address", host, "--port", address.split(":")[1],
              "--include-dashboard", "false", "--temp-dir", str(folder))  # fmt: skip
        wait_for_raylets(1, address, environment, started)
        start("other", "--address", address, "--node-ip-address", host)
        wait_for_raylets(2, address, environment, started)
        yield {"RAY_ADDRESS": address, "PYTHONPATH": paths, "RAY_TMPDIR": str(folder)}
    finally:
        for process in reversed(started):
            end(process.pid)
            process.wait()


def wait_for_raylets(number, address, environment, started):
    """Wait until the cluster has so many; ChildProcessError if one has died."""
    count = "print('raylets:', sum(node['Alive'] for node in ray.nodes()))"
    count = f"import ray; ray.init({address!r}, log_to_driver=False); {count}"
    deadline = time.monotonic() + READY
    while time.monotonic() < deadline and all(process.poll() is None for process in started):
        with suppress(subprocess.TimeoutExpired):
            done = subprocess.run(
                [sys.executable, "-c", count], env=environment, capture_output=True, text=True, timeout=60, check=False
            )
            if f"raylets: {number}" in done.stdout:
                return
        time.sleep(1)
    raise ChildProcessError(f"{number} raylets did not start")


def run_in_flower(folder, root):
    """Run the app on two raylets; return the notes of its clients and its model."""
    with ExitStack() as opened:
        environment = opened.enter_context(two_raylets(folder, root))
        superlink = opened.enter_context(local_superlink(folder / "flwr", environment))
        out = folder / "out"
        out.mkdir()
        settings = {"out": str(out), "nodes": NODES, "num-server-rounds": ROUNDS}
        flower_run(APP, superlink, settings, num_nodes=NODES, log=folder / "run.log")
    with np.load(out / "model.npz") as file:
        return [json.loads(path.read_text()) for path in out.glob("*.json")], dict(file)


def test_clients_run_on_both_raylets_and_the_bits_are_those_of_one_process(request, monkeypatch):
    for attempt in range(ATTEMPTS):
        # Not pytest's folder: Ray's sockets are in it, whose paths may have 107 characters.
        with tempfile.TemporaryDirectory(prefix="fco", ignore_cleanup_errors=True) as folder:
            try:
                notes, model = run_in_flower(Path(folder), request.config.rootpath)
            except (ChildProcessError, FlwrFcoError):
                if attempt == ATTEMPTS - 1:
                    raise
                continue
            compiled = {name: any(Path(folder, name).rglob("*.nbi")) for name in ("numba-head", "numba-other")}
            break
    assert len({note["raylet"] for note in notes}) == 2
    assert {note["partition"] for note in notes} == set(range(NODES))
    # Each with the folder that its own raylet was started with, whatever the driver has.
    assert {Path(note["compiled"]).name for note in notes} == set(compiled)
    assert all(compiled.values())
    monkeypatch.syspath_prepend(APP)
    from raylets import client, problem

    options = {"num_nodes": NODES, "initial_arrays": problem.start(), "run_config": {"out": ""}}
    here = simulated(problem.build(NODES), client.app, ROUNDS, **options)
    for name, array in here.arrays.items():
        np.testing.assert_array_equal(model[name], array.numpy())

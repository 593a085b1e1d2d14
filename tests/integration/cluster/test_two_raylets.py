"""Flower's simulation on a Ray cluster of two raylets: `ray start` twice on this machine, as on two."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from flwr_fco.errors import FlwrFcoError
from tools.local_superlink import end, flower_run, local_superlink, spawned

pytestmark = [pytest.mark.flower, pytest.mark.nightly]
ray = pytest.importorskip("ray", reason="Flower's simulation needs ray: pip install 'flwr[simulation]'")

APP = Path(__file__).parents[1] / "app"
NODES = 4
ROUNDS = 3
#: A raylet may die at its start where the machine is busy.
ATTEMPTS = 4
READY = 90
OPTIONS = ["--num-cpus", "1", "--object-store-memory", "100000000", "--block", "--disable-usage-stats"]


@contextmanager
def two_raylets(folder, paths):
    """Start a cluster of two raylets with one CPU each; yield the environment that finds it."""
    host = ray.util.get_node_ip_address()
    with socket.create_server((host, 0)) as held:
        port = held.getsockname()[1]
    address = f"{host}:{port}"
    # Without a folder of its own Ray would write the address where every other `ray.init()` of this machine looks.
    found = {"PYTHONPATH": paths, "RAY_TMPDIR": str(folder)}
    environment = {**os.environ, **found, "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    head = ["--head", "--port", str(port), "--include-dashboard", "false", "--temp-dir", str(folder)]
    started = []
    try:
        for name, arguments in (("head", head), ("other", ["--address", address])):
            own = environment | {"NUMBA_CACHE_DIR": str(folder / f"numba-{name}")}
            program = ["ray", "start", "--node-ip-address", host, *arguments, *OPTIONS]
            started.append(spawned(program, folder, own, folder / f"{name}.log"))
            wait_for_raylets(address, environment, started)
        yield {**found, "RAY_ADDRESS": address}
    finally:
        for process in reversed(started):
            end(process.pid)
            process.wait()


def wait_for_raylets(address, environment, started):
    """Wait until the cluster has all that were started; ChildProcessError if one has died."""
    count = "print('raylets:', sum(node['Alive'] for node in ray.nodes()))"
    program = [sys.executable, "-c", f"import ray; ray.init({address!r}, log_to_driver=False); {count}"]
    deadline = time.monotonic() + READY
    while time.monotonic() < deadline and all(process.poll() is None for process in started):
        with suppress(subprocess.SubprocessError):
            if f"raylets: {len(started)}" in subprocess.check_output(program, env=environment, text=True, timeout=60):
                return
        time.sleep(1)
    raise ChildProcessError(f"{len(started)} raylets did not start")


def run_in_flower(folder, paths):
    """Run the app on two raylets; return the notes of its clients and its model."""
    notes = folder / "notes"
    notes.mkdir()
    settings = {"out": str(folder / "model.npz"), "notes": str(notes), "nodes": NODES, "rounds": ROUNDS}
    with two_raylets(folder, paths) as environment, local_superlink(folder / "flwr", environment) as superlink:
        flower_run(APP, superlink, settings, num_nodes=NODES, log=folder / "run.log")
    with np.load(settings["out"]) as file:
        return [json.loads(path.read_text()) for path in notes.iterdir()], dict(file)


def test_clients_run_on_both_raylets_and_the_bits_are_those_of_one_process(paths, here):
    for attempt in range(ATTEMPTS):
        # Not pytest's folder: Ray's sockets are in it, whose paths may have 107 characters.
        with tempfile.TemporaryDirectory(prefix="fco", ignore_cleanup_errors=True) as folder:
            try:
                notes, model = run_in_flower(Path(folder), paths)
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
    for name, array in here("FedDualAvg", ROUNDS, NODES)[0].items():
        np.testing.assert_array_equal(model[name], array)

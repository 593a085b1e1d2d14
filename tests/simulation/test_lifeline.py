"""Workers end with the process that started them: busy, hung, and in code that lets no thread of Python's run."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from representatives import nightly

from flwr_fco.simulation import Processes

PROGRAM = """
import os, sys, threading, time
import ctypes, numpy as np
from problems import start_arrays
from flwr_fco import FedDualAvg, LeastSquares, client_app, simulate
from flwr_fco.simulation import Processes
from flwr_fco.strategies import Steps

how = sys.argv[1]

def load(context):
    os.write(2, f"\\nbusy {os.getpid()}\\n".encode())  # a line of its own, whatever others write
    if how == "sleeps":
        time.sleep(600)
    if how == "computes":
        while True:
            pass
    # Holds the interpreter for as long as it takes.
    ctypes.PyDLL(None).sleep(600)

def run():
    with Processes(2) as workers:
        simulate(FedDualAvg(client_lr=0.1, work=Steps(1), fraction_evaluate=0.0), client_app(load), num_nodes=2,
                 num_rounds=1, initial_arrays=start_arrays(), engine=workers)

run()
"""


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="looks into /proc")
@pytest.mark.parametrize("how", ["holds the interpreter", *nightly("sleeps", "computes")])
def test_busy_and_hung_workers_end_with_a_killed_main(how):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    main = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, how], stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )
    pids = []
    try:
        for line in main.stderr:
            if line.startswith("busy"):
                pids.append(int(line.split()[1]))
            if len(pids) == 2:
                break
        assert len(set(pids)) == 2
        assert all(map(alive, pids))
        main.kill()
        main.wait()
        deadline = time.monotonic() + 10
        while any(map(alive, pids)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not any(map(alive, pids))
    finally:
        main.kill()
        main.wait()
        for pid in pids:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)


def test_workers_outlive_the_thread_that_started_them():
    made = []
    thread = threading.Thread(target=lambda: made.append(Processes(1)))
    thread.start()
    thread.join()
    with made[0] as workers:
        time.sleep(0.5)
        assert all(map(alive, workers.pids()))


def test_a_daemon_that_has_closed_its_streams_has_workers():
    """Their memory had the number of a stream, and each of them died as soon as it was asked."""
    kept = os.dup(0)
    os.close(0)
    try:
        with Processes(1) as workers:
            # An array of that length goes through the memory.
            assert workers.ask({0: ("end", np.zeros(20_000))}) == {0: None}
    finally:
        os.dup2(kept, 0)
        os.close(kept)


def test_nothing_stays_open():
    before = set(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else set()
    Processes(1).close()
    workers = Processes(1)
    workers.close()
    workers.close()
    after = set(os.listdir("/proc/self/fd")) if before else set()
    assert len(after) <= len(before)

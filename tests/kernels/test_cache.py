"""Kernels are compiled once on a machine: a deployment starts a new process for every message."""

import os
import subprocess
import sys

COUNT = """
import json
from numba.core.dispatcher import Dispatcher
from flwr_fco.kernels import dual_averaging, losses, prox, seeding
from flwr_fco.simulation import warmup

warmup()
kernels = [k for m in (dual_averaging, losses, prox, seeding) for k in vars(m).values() if isinstance(k, Dispatcher)]
print(sum(sum(k.stats.cache_misses.values()) for k in kernels), sum(sum(k.stats.cache_hits.values()) for k in kernels))
"""


def test_a_second_process_compiles_nothing(tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    counts = [
        tuple(map(int, subprocess.check_output([sys.executable, "-c", COUNT], env=environment, text=True).split()))
        for _ in range(2)
    ]
    assert counts[0][0] > 0
    assert counts[1][0] == 0
    assert counts[1][1] > 0

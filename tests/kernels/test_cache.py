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


def count(code, **environment):
    """Return how many kernels a new process compiled, and how many it found compiled."""
    output = subprocess.check_output([sys.executable, "-c", code], env={**os.environ, **environment}, text=True)
    return tuple(map(int, output.split()))


def test_a_second_process_compiles_nothing():
    """The first process fills the cache that all tests share, so that no kernel is compiled for this test alone."""
    count(COUNT)
    compiled, found = count(COUNT)
    assert compiled == 0
    assert found > 0


def test_compilations_are_counted(tmp_path):
    """With an empty cache the same count is not 0, so the 0 above means something."""
    one = COUNT.replace("warmup()", "import numpy as np\nprox.scale(np.ones(2), 0.5, np.ones(2))")
    compiled, _ = count(one, NUMBA_CACHE_DIR=str(tmp_path))
    assert compiled > 0

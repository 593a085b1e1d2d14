"""Kernels are compiled once on a machine: a deployment starts a new process for every message."""

import pytest
from fresh import run_file

COUNT = """
from numba.core.dispatcher import Dispatcher
from flwr_fco import L1, Logistic
from flwr_fco.kernels import dual_averaging, losses, prox
import numpy as np

objective = Logistic(np.eye(3), np.array([0, 1, 0]))
w = L1(0.1).bind(objective.layout).prox(objective.gradient(np.zeros(4)), 1.0)
kernels = [k for m in (dual_averaging, losses, prox) for k in vars(m).values() if isinstance(k, Dispatcher)]
print(sum(sum(k.stats.cache_misses.values()) for k in kernels), sum(sum(k.stats.cache_hits.values()) for k in kernels))
"""


@pytest.fixture
def count(tmp_path):
    """Return how many kernels a new process compiled, and how many it found compiled."""

    def run(code):
        path = tmp_path / "count.py"
        path.write_text(code, encoding="utf-8")
        done = run_file(path)
        assert done.returncode == 0, done.stderr
        return tuple(map(int, done.stdout.split()))

    return run


def test_a_second_process_compiles_nothing(count):
    """The first process fills the cache that all tests share, so that no kernel is compiled for this test alone."""
    count(COUNT)
    compiled, found = count(COUNT)
    assert compiled == 0
    assert found > 0


def test_compilations_are_counted(count, tmp_path):
    """With an empty cache the same count is not 0, so the 0 above means something."""
    compiled, found = count(f"import numba\nnumba.config.CACHE_DIR = {str(tmp_path)!r}\n{COUNT}")
    assert compiled > 0
    assert found == 0

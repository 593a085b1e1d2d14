"""Kernels are compiled once on a machine, and kept in a folder of the user's own where no other can be written.

A deployment starts a new process for every message.
"""

import os
import shutil
import stat
from pathlib import Path

import pytest
from fresh import run_code, run_file

ROOT = Path(__file__).parents[2]
PROGRAM = """
import os, sys, tempfile
os.environ.clear()
os.environ.update(HOME="/proc/nothing", TMPDIR={temporary!r})
tempfile.tempdir = None
sys.path.insert(0, {package!r})
import flwr_fco, numpy as np
from flwr_fco.kernels.doubled import add_twice
assert flwr_fco.__file__.startswith({package!r})
add_twice(out := np.zeros(3), np.ones(3))
print(out.tolist())
"""
#: A loop that takes a fifth of a second to compile: what is kept, and where, does not depend on which one it is.
KERNEL = """
from flwr_fco.kernels import njit

@njit(cache=True)
def add_twice(out, values):
    for i in range(out.size):
        out[i] += 2.0 * values[i]
"""


@pytest.fixture
def package(tmp_path):
    """Copy what is needed of the package, and make its own caches impossible: root may write into any folder."""
    place = tmp_path / "package" / "flwr_fco"
    (place / "kernels").mkdir(parents=True)
    for name in ("__init__.py", "kernels/__init__.py"):
        shutil.copy(ROOT / "flwr_fco" / name, place / name)
    (place / "kernels" / "doubled.py").write_text(KERNEL, encoding="utf-8")
    for folder in (place, place / "kernels"):
        (folder / "__pycache__").touch()
    return place


def run(package, temporary):
    done = run_code(PROGRAM.format(package=str(package.parent), temporary=str(temporary)))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[2.0, 2.0, 2.0]"


def cached(folder):
    return {path: path.stat().st_mtime_ns for path in Path(folder).rglob("*.nb[ci]")}


def test_a_private_folder_serves_where_home_and_package_are_read_only(package, tmp_path):
    run(package, tmp_path)
    (folder,) = tmp_path.glob("flwr-fco-*")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert (kept := cached(folder))
    run(package, tmp_path)
    assert cached(folder) == kept


@pytest.mark.parametrize("kind", ["link", "open to all", "file"])
def test_a_folder_that_somebody_else_prepared_is_not_used(package, tmp_path, kind):
    """Its files are executed."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    place = tmp_path / f"flwr-fco-{os.getuid()}"
    if kind == "link":
        place.symlink_to(theirs)
    elif kind == "file":
        place.touch()
    else:
        place.mkdir()
        place.chmod(0o777)
    run(package, tmp_path)
    assert not cached(theirs)
    assert not place.is_dir() or not cached(place)
    assert cached(tmp_path)


COUNT = """
import pickle
from numba.core.dispatcher import Dispatcher
from flwr_fco import L1, Logistic
from flwr_fco.kernels import dual_averaging, losses, prox
import numpy as np

objective = Logistic(np.eye(3), np.array([0, 1, 0]))
w = L1(0.1).bind(objective.layout).prox(objective.gradient(np.zeros(4)), 1.0)
buffers = []
data = pickle.dumps(objective, protocol=5, buffer_callback=buffers.append)
for other in (pickle.loads(pickle.dumps(objective)), pickle.loads(data, buffers=map(bytes, buffers))):
    other.gradient(w)
assert len(losses.add_batch.signatures) == 1, "compiled again for an objective of another process"
kernels = [k for m in (dual_averaging, losses, prox) for k in vars(m).values() if isinstance(k, Dispatcher)]
print(sum(sum(k.stats.cache_misses.values()) for k in kernels), sum(sum(k.stats.cache_hits.values()) for k in kernels))
"""


def test_a_second_process_compiles_nothing(tmp_path):
    """Of those that all tests share, which a first process compiles; with an empty cache the same count is not 0."""
    path = tmp_path / "count.py"
    counts = []
    for before in ("", "", f"import numba\nnumba.config.CACHE_DIR = {str(tmp_path)!r}\n"):
        path.write_text(before + COUNT, encoding="utf-8")
        done = run_file(path)
        assert done.returncode == 0, done.stderr
        counts.append(tuple(map(int, done.stdout.split())))
    _, (compiled, found), (compiled_at_first, found_at_first) = counts
    assert (compiled, found_at_first) == (0, 0)
    assert min(found, compiled_at_first) > 0

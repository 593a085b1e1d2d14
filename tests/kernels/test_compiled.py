"""Where neither the package nor the home can be written, compiled code is kept in a folder of the user's own."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import numpy as np
from flwr_fco.kernels.doubled import add_twice
import flwr_fco
assert flwr_fco.__file__.startswith({package!r})
out = np.zeros(3)
add_twice(out, np.ones(3))
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
    command = [sys.executable, "-c", PROGRAM.format(package=str(package.parent))]
    place = str(package.parent)
    own = {"PATH": os.environ["PATH"], "HOME": "/proc/nothing", "TMPDIR": str(temporary), "PYTHONPATH": place}
    done = subprocess.run(command, env=own, cwd="/", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[2.0, 2.0, 2.0]"


def cached(folder):
    return {path: path.stat().st_mtime_ns for path in Path(folder).rglob("*.nb[ci]")}


def test_a_private_folder_serves_where_home_and_package_are_read_only(package, tmp_path):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    run(package, temporary)
    (folder,) = temporary.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    kept = cached(folder)
    assert kept
    run(package, temporary)
    assert cached(folder) == kept


@pytest.mark.parametrize("kind", ["link", "open to all", "file"])
def test_a_folder_that_somebody_else_prepared_is_not_used(package, tmp_path, kind):
    """Its files are executed."""
    temporary, theirs = tmp_path / "tmp", tmp_path / "theirs"
    temporary.mkdir()
    theirs.mkdir()
    place = temporary / f"flwr-fco-{os.getuid()}"
    if kind == "link":
        place.symlink_to(theirs)
    elif kind == "file":
        place.touch()
    else:
        place.mkdir()
        place.chmod(0o777)
    run(package, temporary)
    assert not cached(theirs)
    assert not place.is_dir() or not cached(place)
    assert cached(temporary)

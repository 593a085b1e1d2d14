"""A cache of compiled code that cannot be read or written costs time and nothing else."""

import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from representatives import nightly

ROOT = Path(__file__).parents[2]
PROGRAM = """
import numpy as np
from flwr_fco.kernels.doubled import add_twice
import flwr_fco
assert flwr_fco.__file__.startswith({package!r})
out = np.zeros(3)
add_twice(out, np.ones(3))
add_twice(out, np.ones(3, np.float32))
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
    """Copy what is needed of the package, so that its cache is the test's own."""
    place = tmp_path / "package" / "flwr_fco"
    (place / "kernels").mkdir(parents=True)
    for name in ("__init__.py", "kernels/__init__.py"):
        shutil.copy(ROOT / "flwr_fco" / name, place / name)
    (place / "kernels" / "doubled.py").write_text(KERNEL, encoding="utf-8")
    return place


def run(package, home, temporary, **more):
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.format(package=str(package.parent))],
        env={**environment, "PYTHONPATH": str(package.parent), **more},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )


def good(done, warnings):
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[4.0, 4.0, 4.0]"
    assert done.stderr.count("compiled code is not kept") == warnings, done.stderr


def cached(folder):
    return sorted(path for path in Path(folder).rglob("*.nb[ci]"))


def read_only(package):
    """Make the package's caches impossible: root may write into any folder."""
    for folder in (package, package / "kernels"):
        (folder / "__pycache__").touch()


def test_without_a_place_to_write_it_is_compiled_anew(package, tmp_path):
    read_only(package)
    # Python's own last resort for temporary files is the current directory.
    done = run(package, "/proc/nothing", "/proc/nothing", TMP="/proc/nothing", TEMP="/proc/nothing")
    good(done, 1)


def test_a_private_temporary_folder_serves_where_home_and_package_cannot_be_written(package, tmp_path):
    read_only(package)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    good(run(package, "/proc/nothing", temporary), 1)
    (folder,) = temporary.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    kept = {path: path.stat().st_mtime_ns for path in cached(folder)}
    assert kept
    good(run(package, "/proc/nothing", temporary), 1)
    assert {path: path.stat().st_mtime_ns for path in cached(folder)} == kept


@pytest.mark.parametrize("kind", ["link", "open to all", *nightly("file")])
def test_a_folder_that_somebody_else_prepared_is_not_used(package, tmp_path, kind):
    """Its files are executed."""
    read_only(package)
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
    good(run(package, "/proc/nothing", temporary), 1)
    assert not cached(tmp_path)


@pytest.mark.parametrize("ending", ["nbc", *nightly("nbi")])
@pytest.mark.parametrize("left", [0.5, *(pytest.param(left, marks=pytest.mark.slow) for left in (0, 7))])
def test_a_file_that_was_cut_is_written_anew(package, tmp_path, ending, left):
    good(run(package, tmp_path, tmp_path), 0)
    files = [path for path in cached(package) if path.suffix == f".{ending}"]
    assert files
    for path in files:
        content = path.read_bytes()
        path.write_bytes(content[: int(left * len(content)) if left < 1 else left])
    good(run(package, tmp_path, tmp_path), 1)
    good(run(package, tmp_path, tmp_path), 0)


FULL = """
import builtins, numba.core.caching as caching
def full(*arguments, **options):
    raise OSError(28, "No space left on device")
caching.IndexDataCacheFile._open_for_write = full
"""


def test_a_full_disk_is_a_warning(package, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FULL + PROGRAM.format(package=str(package.parent))],
        env={**os.environ, "PYTHONPATH": str(package.parent)},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    good(done, 1)
    assert "No space left on device" in done.stderr


def test_all_kernels_take_this_decorator():
    for path in (ROOT / "flwr_fco").rglob("*.py"):
        if path != ROOT / "flwr_fco" / "kernels" / "__init__.py":
            assert not re.search(r"^\s*(from|import) numba", path.read_text(encoding="utf-8"), re.MULTILINE), path

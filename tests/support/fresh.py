"""Run a file as `python FILE` does, in a process in which the libraries of others are loaded already.

Two seconds of every new process go into importing NumPy, SciPy, scikit-learn, Numba and Flower and into setting up
Numba's compiler. A server that has done so forks itself for each file; the package itself is imported there, by what
the file imports and nothing else.
"""

import atexit
import gc
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import warnings
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

_LIBRARIES = [
    "flwr.app",
    "flwr.clientapp",
    "flwr.serverapp.strategy",
    "numpy",
    "pytest",
    "scipy.linalg",
    "scipy.ndimage",
    "scipy.optimize",
    "scipy.signal",
    "scipy.sparse",
    "scipy.special",
    "sklearn.datasets",
    "sklearn.linear_model",
    "sklearn.model_selection",
    "sklearn.preprocessing",
    "threadpoolctl",
]


class Done(NamedTuple):
    """What became of a file."""

    returncode: int
    stdout: str
    stderr: str


def run_file(path: Path) -> Done:
    """Run a file in its folder; a RuntimeWarning is an error there, and so is taking ten minutes."""
    server = _server()
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        print(json.dumps([str(path), str(out), str(err)]), file=server.stdin, flush=True)
        returncode = int(server.stdout.readline())
        return Done(returncode, out.read_text(encoding="utf-8"), err.read_text(encoding="utf-8"))


@cache
def _server() -> subprocess.Popen:
    server = subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )

    # It ends when nothing is left to read.
    atexit.register(server.communicate)
    return server


def _serve() -> None:
    """Fork for each line of the standard input, and answer it with an exit status."""
    for name in _LIBRARIES:
        import_module(name)
    import_module("numba").njit("float64(float64)")(lambda x: x)
    # What is loaded now is no garbage: no file's collector need walk through it.
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            # Left to itself, so that an exception or `sys.exit` ends this process as it ends any other.
            return _run(*json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    return None


def _run(path: str, out: str, err: str) -> None:
    signal.alarm(600)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for descriptor, target in ((1, out), (2, err)):
        os.dup2(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    if any(name == "flwr_fco" or name.startswith("flwr_fco.") for name in sys.modules):
        raise RuntimeError("the package is loaded already, so a file could lack an import and run all the same")
    os.chdir(os.path.dirname(path))
    # In the place of this file's folder.
    sys.path[0] = os.path.dirname(path)
    sys.argv = [path]
    warnings.filterwarnings("error", category=RuntimeWarning)
    runpy.run_path(path, run_name="__main__")


if __name__ == "__main__":
    _serve()

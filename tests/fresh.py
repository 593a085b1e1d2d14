"""Run a file as `python FILE` does, in a process in which the libraries of others are loaded already.

A second and a half of every new process goes into importing NumPy, SciPy, scikit-learn, Numba and Flower. A server that
has them forks a process for each file; the package itself is imported there, by what the file imports and nothing else.
"""

import os
import runpy
import sys
import tempfile
import warnings
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

_LIBRARIES = [
    "flwr.app",
    "flwr.clientapp",
    "flwr.serverapp.strategy",
    "numba",
    "numpy",
    "pytest",
    "scipy.linalg",
    "scipy.optimize",
    "scipy.sparse",
    "scipy.special",
    "sklearn.linear_model",
    "threadpoolctl",
]
_COMPILED = tempfile.TemporaryDirectory()
_CONTEXT = get_context("forkserver")
_CONTEXT.set_forkserver_preload(_LIBRARIES)


class Done(NamedTuple):
    """What became of a file."""

    returncode: int
    stdout: str
    stderr: str


def run_file(path: Path) -> Done:
    """Run a file in its folder; a RuntimeWarning is an error there."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        process = _CONTEXT.Process(target=_run, args=(str(path), str(out), str(err), _COMPILED.name))
        process.start()
        process.join(600)
        if process.exitcode is None:
            process.kill()
            process.join()
        return Done(process.exitcode, out.read_text(encoding="utf-8"), err.read_text(encoding="utf-8"))


def _run(path: str, out: str, err: str, compiled: str) -> None:
    for descriptor, target in ((1, out), (2, err)):
        opened = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, descriptor)
        os.close(opened)
    # pytest's own capturing has replaced these in the server.
    sys.stdout, sys.stderr = (os.fdopen(descriptor, "w", encoding="utf-8", closefd=False) for descriptor in (1, 2))
    if any(name == "flwr_fco" or name.startswith("flwr_fco.") for name in sys.modules):
        raise RuntimeError("the package is loaded already, so a file could lack an import and run all the same")
    # The second file need not compile the package again.
    sys.dont_write_bytecode, sys.pycache_prefix = False, compiled
    os.environ["OMP_NUM_THREADS"] = "1"
    os.chdir(os.path.dirname(path))
    sys.path[0:0] = [os.path.dirname(path)]
    sys.argv = [path]
    warnings.filterwarnings("error", category=RuntimeWarning)
    runpy.run_path(path, run_name="__main__")
    sys.stdout.flush()

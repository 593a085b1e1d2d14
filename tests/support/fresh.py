"""Code blocks of the pages, and files run as `python FILE` does, in a process that has loaded others' libraries.

Two seconds of every new process go into importing NumPy, SciPy, scikit-learn, Numba and Flower. A server that has done
so forks itself for each file; the package itself is imported there, by what the file imports and nothing else.
"""

import multiprocessing
import os
import re
import runpy
import signal
import sys
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from unittest.mock import patch

DOCS = Path(__file__).parents[2] / "docs"
_FORKING = multiprocessing.get_context("forkserver")
_LIBRARIES = """
flwr.app flwr.clientapp flwr.serverapp.strategy numba numpy pytest threadpoolctl
scipy.linalg scipy.ndimage scipy.optimize scipy.signal scipy.sparse scipy.special
sklearn.datasets sklearn.linear_model sklearn.model_selection sklearn.preprocessing tests.support.compiled
"""
_FORKING.set_forkserver_preload(_LIBRARIES.split())


class Done(NamedTuple):
    """What became of a file."""

    returncode: int
    stdout: str
    stderr: str


def text_of(page: str) -> str:
    """Return a page of docs/ by its path there, without `.md`."""
    return (DOCS / f"{page}.md").read_text(encoding="utf-8")


def blocks(page: str) -> list[str]:
    """Return the code blocks of a page."""
    return re.findall(r"```python\n(.*?)```", text_of(page), flags=re.DOTALL)


def run_code(code: str) -> Done:
    """Run code as a file by itself, in another folder."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "mine.py")
        path.write_text(code, encoding="utf-8")
        return run_file(path)


def run_file(path: Path) -> Done:
    """Run a file in its folder; a RuntimeWarning is an error there, and so is taking ten minutes."""
    with TemporaryDirectory() as folder, patch.dict(os.environ, OMP_NUM_THREADS="1"):
        out, err = Path(folder, "out"), Path(folder, "err")
        process = _FORKING.Process(target=_run, args=(str(path), str(out), str(err)))
        process.start()
        process.join()
        return Done(process.exitcode, out.read_text(encoding="utf-8"), err.read_text(encoding="utf-8"))


def _run(path: str, out: str, err: str) -> None:
    signal.alarm(600)
    for descriptor, target in ((1, out), (2, err)):
        os.dup2(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    if any(name == "flwr_fco" or name.startswith("flwr_fco.") for name in sys.modules):
        raise RuntimeError("the package is loaded already, so a file could lack an import and run all the same")
    folder = os.path.dirname(path)
    os.chdir(folder)
    tests = str(DOCS.parent / "tests")
    sys.path[:] = [folder, *(place for place in sys.path if not place.startswith(tests))]
    sys.argv = [path]
    warnings.filterwarnings("error", category=RuntimeWarning)
    runpy.run_path(path, run_name="__main__")

"""Numba kernels: free functions on plain arrays, compiled once and cached on disk."""

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from numba import njit as njit
from numba.core import config


def _cache_folder() -> str:
    """Return a temporary folder that only this user can write, because what is in it is executed."""
    folder = Path(tempfile.gettempdir(), f"flwr-fco-{os.getuid()}")
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    about = folder.lstat()
    own = stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and not about.st_mode & 0o022
    return str(folder) if own else tempfile.mkdtemp(prefix="flwr-fco-")


try:
    njit(cache=True)(_cache_folder)
except RuntimeError:
    # Numba can write neither beside the package nor in the home directory.
    os.environ["NUMBA_CACHE_DIR"] = config.CACHE_DIR = _cache_folder()  # type: ignore[attr-defined]

"""Numba kernels: free functions on plain arrays, compiled once and cached on disk.

``njit`` is Numba's, with a cache that may fail: what cannot be kept on the disk is compiled anew, after one warning.
"""

from __future__ import annotations

import logging
import os
import stat
import tempfile
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Numba's types are partial.
_numba: Any = import_module("numba")
_config: Any = import_module("numba.core.config")
_caching: Any = import_module("numba.core.caching")

if TYPE_CHECKING:
    # Type checkers see what they saw in Numba's.
    from numba import njit as njit
else:

    def njit(**options: Any) -> Any:
        """Compile a function on its first call, and keep the compiled code for later processes where that is possible.

        Numba alone raises an error: at import, where neither the package nor the home directory can be written; in the
        middle of a round, where the disk is full or a file of the cache was cut.

        Parameters
        ----------
        **options
            Those of Numba's own decorator.
        """

        def decorate(function: Callable[..., Any]) -> Any:
            keeps = options.get("cache", False)
            compiled: Any = _numba.njit(**{**options, "cache": False})(function)
            # With NUMBA_DISABLE_JIT it is the function itself.
            if keeps and hasattr(compiled, "enable_caching"):
                compiled._cache = _cache_of(function)
            return compiled

        return decorate


class _Cache(_caching.FunctionCache):  # type: ignore[misc]
    """Numba's cache of a function, of which every failure is as if there were none."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return what was compiled before, or None."""
        try:
            return super().load_overload(sig, target_context)
        except Exception as error:  # an unpickled file may raise anything
            _warn(f"{self.cache_path} has a damaged file ({error!r}), which is written anew")
            try:
                self.flush()
            except Exception:
                self.disable()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep what was compiled."""
        try:
            super().save_overload(sig, data)
        except Exception as error:
            _warn(f"{self.cache_path} cannot be written ({error!r})")
            self.disable()


def _cache_of(function: Callable[..., Any]) -> Any:
    """Return a function's cache: where Numba puts it, or in a private temporary folder, or none."""
    try:
        return _Cache(function)
    except (RuntimeError, OSError) as error:
        folder = _private_folder()
        _warn(f"neither the package nor the home directory can be written ({error}); {folder or 'no folder'} is used")
        before = _config.CACHE_DIR
        try:
            if folder:
                _config.CACHE_DIR = folder
                return _Cache(function)
        except (RuntimeError, OSError):
            pass
        finally:
            _config.CACHE_DIR = before
        return _caching.NullCache()


@cache
def _private_folder() -> str:
    """Return a temporary folder that only this user can write: what is in it is executed; "" if there is none."""
    try:
        folder = Path(tempfile.gettempdir()) / f"flwr-fco-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        about = folder.lstat()
    except (OSError, AttributeError):
        return ""
    own = stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and not about.st_mode & 0o022
    return str(folder) if own else ""


_warned: list[str] = []


def _warn(reason: str) -> None:
    """Warn once in a process."""
    if not _warned:
        _warned.append(reason)
        text = "flwr_fco: compiled code is not kept where it should be: %s. Set NUMBA_CACHE_DIR to a folder of yours"
        logging.getLogger("flwr").warning(text, reason)

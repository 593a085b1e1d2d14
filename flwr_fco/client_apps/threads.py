"""One BLAS thread in local solvers: sums in another order would be other bits."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from threadpoolctl import ThreadpoolController

__all__ = ["is_single_threaded", "single_threaded_blas"]

#: How many of these blocks there are around what is running.
depth = 0
_NESTED = nullcontext()
#: The BLAS libraries of this process, and how many modules there were when they were looked for.
_found: tuple[int, ThreadpoolController] | None = None


def single_threaded_blas() -> AbstractContextManager[None]:
    """Run the block with one BLAS thread; nested blocks cost nothing.

    Whoever runs many messages (``simulate``) opens the outer block, and none of them sets the threads again.
    """
    return _NESTED if depth else _limited()


def is_single_threaded() -> bool:
    """Whether this is within such a block."""
    return depth > 0


def _libraries() -> ThreadpoolController:
    """Return the BLAS libraries, looked for again when a module has been imported since: that takes milliseconds."""
    global _found
    modules = len(sys.modules)
    if _found is None or _found[0] != modules:
        _found = (modules, ThreadpoolController())
    return _found[1]


@contextmanager
def _limited() -> Iterator[None]:
    global depth
    depth += 1
    try:
        with _libraries().limit(limits=1, user_api="blas"):
            yield
    finally:
        depth -= 1

"""One BLAS thread in local solvers and in the server's step: the order of summation would change the last bits."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from threadpoolctl import ThreadpoolController

#: Nesting depth of the blocks.
depth = 0
_NESTED = nullcontext()
#: The BLAS libraries of this process, and the number of imported modules when they were found.
_searched: tuple[int, ThreadpoolController] | None = None


def single_threaded_blas() -> AbstractContextManager[None]:
    """Run the block with one BLAS thread; nested blocks cost nothing.

    ``simulate`` opens an outer block, so that the threads are not set again for each message.
    """
    return _NESTED if depth else _limited()


def _libraries() -> ThreadpoolController:
    """Return the BLAS libraries; the search takes milliseconds and is repeated only after new imports."""
    global _searched
    modules = len(sys.modules)
    if _searched is None or _searched[0] != modules:
        _searched = (modules, ThreadpoolController())
    return _searched[1]


@contextmanager
def _limited() -> Iterator[None]:
    global depth
    depth += 1
    try:
        with _libraries().limit(limits=1, user_api="blas"):
            yield
    finally:
        depth -= 1

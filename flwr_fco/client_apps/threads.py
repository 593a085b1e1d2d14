"""One BLAS thread in local solvers: sums in another order would be other bits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from threadpoolctl import ThreadpoolController

__all__ = ["is_single_threaded", "single_threaded_blas"]

_depth = 0
_NESTED = nullcontext()


def single_threaded_blas() -> AbstractContextManager[None]:
    """Run the block with one BLAS thread; nested blocks cost nothing.

    Finding the BLAS libraries takes milliseconds, so whoever runs many messages (``simulate``) opens the outer block.
    """
    return _NESTED if _depth else _limited()


def is_single_threaded() -> bool:
    """Whether this is within such a block."""
    return _depth > 0


@contextmanager
def _limited() -> Iterator[None]:
    global _depth
    _depth += 1
    try:
        with ThreadpoolController().limit(limits=1, user_api="blas"):
            yield
    finally:
        _depth -= 1

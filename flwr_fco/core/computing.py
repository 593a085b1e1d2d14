"""What a computation is bound to: one BLAS thread, as the order of a sum changes bits, one generator, Flower's log."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from threading import Lock, RLock, local
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from flwr_fco.errors import ConfigurationError

_NESTED = nullcontext()
_lock = Lock()
# Held by another thread, it would be held for ever in a process that this one forks meanwhile; on Windows none can be.
getattr(os, "register_at_fork", dict)(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


@contextmanager
def temporarily(blocks: list[Any], read: Callable[[], Any], write: Callable[[Any], Any], value: Any) -> Iterator[None]:
    """Change a setting of the process for a block, and restore it, also if blocks in other threads change it meanwhile.

    Parameters
    ----------
    blocks : list
        Of this setting: the values of the open blocks, of which the youngest counts, above the one from before them.
    read, write : callable
        Return the setting, and set it.
    value : Any
        In the block.
    """
    own = [value]
    with _lock:
        blocks += [] if blocks else [[read()]]
        blocks.append(own)
        write(value)
    try:
        yield
    finally:
        with _lock:
            blocks[:] = [each for each in blocks if each is not own]
            write(blocks[-1][0])
            if len(blocks) == 1:
                blocks.clear()


# --- threads ----------------------------------------------------------------------------------------------------------


#: Whether this thread is in a block.
_here = local()
#: Limits of the threads that are in a block; the first one knows what was before.
_limits: list[Any] = []


def single_threaded_blas() -> AbstractContextManager[None]:
    """Run the block with one BLAS thread; nested blocks cost nothing.

    ``simulate`` opens an outer block, so that the threads are not set again for each message.
    """
    return _NESTED if getattr(_here, "limited", False) else _limited()


@lru_cache(maxsize=1)
def _libraries(modules: int) -> ThreadpoolController:
    """Return the BLAS libraries; the search takes milliseconds and is repeated only once there are more modules."""
    return ThreadpoolController()


@contextmanager
def _limited() -> Iterator[None]:
    libraries = _libraries(len(sys.modules))
    with _lock:
        _limits.append(libraries.limit(limits=1, user_api="blas"))
    _here.limited = True
    try:
        yield
    finally:
        _here.limited = False
        with _lock:
            limit = _limits.pop()
            if not _limits:
                limit.restore_original_limits()
            # Whoever set a limit first is the only one who may, until a block of his ends.
            with libraries.limit():
                pass


# --- Flower's log, without Flower: it is found by its name ------------------------------------------------------------


logger = logging.getLogger("flwr")
_levels: list[Any] = []


def quiet(level: int = logging.WARNING) -> AbstractContextManager[None]:
    """Raise Flower's logger to a level for a block."""
    return temporarily(_levels, lambda: logger.level, logger.setLevel, max(level, logger.level))


# --- generators -------------------------------------------------------------------------------------------------------


#: By process: one that is forked inherits a lock that another thread may hold.
_turns: dict[int, Any] = {}


def own_turn() -> Any:
    """Return a context in which no other thread is that may draw too from PyTorch's generators, which all share."""
    if "torch" not in sys.modules:
        return _NESTED
    turn = _turns.setdefault(os.getpid(), RLock())
    # A load function that waits for threads which train would hang without a word.
    while not turn.acquire(timeout=60.0):
        logger.warning("a thread waits for another that loads or trains with PyTorch, and must not wait for this one")
    turn.release()
    return turn


def random_generator(seed: int, server_round: int, partition_id: int, purpose: int = 1) -> np.random.Generator:
    """Return the generator of one (seed, round, partition).

    Parameters
    ----------
    seed : int
        The run's seed, 0 <= seed < 2**32.
    server_round : int
        Flower's round, from 1; 0 <= server_round < 2**32.
    partition_id : int
        The client's partition, 0 <= partition_id < 2**64; 0 for the server.
    purpose : int, default 1
        Separates streams that share the other numbers: 1 local solvers, 2 training sample, 3 evaluation sample.
        Never 0: trailing zeros of a seed sequence do not change it.

    Raises
    ------
    ConfigurationError
        If a seed or a round is not a 32-bit word.

    Examples
    --------
    >>> int(random_generator(seed=5, server_round=3, partition_id=2).integers(100))
    55
    """
    if not (0 <= seed < 2**32 and 0 <= server_round < 2**32):
        raise ConfigurationError(f"{seed=}, {server_round=}; expected whole numbers from 0 to 2**32 - 1")
    words = seed, server_round, partition_id % 2**32, partition_id // 2**32, purpose
    # The same bits as of the numbers one by one, in two thirds of the time.
    return np.random.default_rng(np.array(words, np.uint32))

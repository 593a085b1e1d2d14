"""One random generator per (seed, round, partition), made in a quarter of NumPy's time."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISpawnableSeedSequence
from numpy.typing import NDArray

from flwr_fco.errors import ConfigurationError
from flwr_fco.kernels.seeding import fill_state

#: The number of 32-bit words.
_WORDS = 2**32


class _Words(ISpawnableSeedSequence):
    """``SeedSequence(words)``, quick to answer the one question that a PCG64 asks when it is made."""

    def __init__(self, words: tuple[int, ...]) -> None:
        self._words = words

    @cached_property
    def sequence(self) -> np.random.SeedSequence:
        """NumPy's own, for whatever else is asked."""
        return np.random.SeedSequence(self._words)

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> NDArray[Any]:
        """Return the words from which a bit generator starts."""
        if dtype is not np.uint64:
            return self.sequence.generate_state(n_words, dtype)
        state = np.empty(n_words, dtype=np.uint64)
        fill_state(self._words, state)
        return state

    def spawn(self, n_children: int) -> list[Any]:
        """Return children of NumPy's own."""
        return self.sequence.spawn(n_children)


def random_generator(seed: int, server_round: int, partition_id: int, purpose: int = 1) -> np.random.Generator:
    """Return the generator of one (seed, round, partition): that of ``default_rng(words)``, bit for bit.

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

    Notes
    -----
    The words are (seed, server_round, low and high 32 bits of partition_id, purpose).

    Examples
    --------
    >>> theirs = np.random.default_rng([5, 3, 2, 0, 1])
    >>> random_generator(seed=5, server_round=3, partition_id=2).integers(100) == theirs.integers(100)
    np.True_
    """
    if not (0 <= seed < _WORDS and 0 <= server_round < _WORDS):
        raise ConfigurationError(
            f"seed={seed}, server_round={server_round}; expected whole numbers from 0 to 2**32 - 1"
        )
    words = (seed, server_round, partition_id & 0xFFFFFFFF, partition_id >> 32, purpose)
    # NumPy takes any ISeedSequence; its type stubs know only one.
    return np.random.Generator(np.random.PCG64(_Words(words)))  # type: ignore[arg-type]

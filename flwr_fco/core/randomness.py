"""One random generator per (seed, round, partition), created in a quarter of NumPy's time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISpawnableSeedSequence
from numpy.typing import NDArray

from flwr_fco.errors import ConfigurationError
from flwr_fco.kernels.seeding import fill_state, fill_states

#: Purpose of the clients' generators.
_LOCAL_SOLVERS = 1
#: The number of 32-bit words.
_WORDS = 2**32


#: Number of 64-bit numbers that initialise a PCG64.
_STATE = 4


class _Words(ISpawnableSeedSequence):
    """``SeedSequence(words)`` with a fast answer to the only request that a new PCG64 makes."""

    def __init__(self, words: Sequence[int] | NDArray[np.uint32], state: NDArray[np.uint64]) -> None:
        self._words, self._state = words, state

    @cached_property
    def sequence(self) -> np.random.SeedSequence:
        """NumPy's own sequence, for all other requests."""
        return np.random.SeedSequence(self._words)

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> NDArray[Any]:
        """Return the words that initialise a bit generator."""
        if n_words == _STATE and dtype is np.uint64:
            return self._state
        return self.sequence.generate_state(n_words, dtype)

    def spawn(self, n_children: int) -> list[Any]:
        """Return the children of NumPy's own sequence."""
        return self.sequence.spawn(n_children)


def random_generator(
    seed: int, server_round: int, partition_id: int, purpose: int = _LOCAL_SOLVERS
) -> np.random.Generator:
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
    _check(seed, server_round)
    words = (seed, server_round, partition_id & 0xFFFFFFFF, partition_id >> 32, purpose)
    state = np.empty(_STATE, dtype=np.uint64)
    fill_state(words, state)
    return _generator(words, state)


def random_generators(seed: int, server_round: int, partition_ids: Sequence[int]) -> list[np.random.Generator]:
    """Return the :func:`random_generator` of each client, faster than one by one.

    Parameters
    ----------
    seed, server_round
        As for :func:`random_generator`.
    partition_ids : sequence of int
        The clients' partitions.

    Examples
    --------
    >>> [rng.integers(100) for rng in random_generators(5, 3, [2])] == [random_generator(5, 3, 2).integers(100)]
    True
    """
    _check(seed, server_round)
    partitions = np.array(partition_ids, dtype=np.uint64)
    words = np.empty((partitions.size, 5), dtype=np.uint32)
    words[:, 0], words[:, 1], words[:, 4] = seed, server_round, _LOCAL_SOLVERS
    words[:, 2], words[:, 3] = partitions & np.uint64(0xFFFFFFFF), partitions >> np.uint64(32)
    states = np.empty((partitions.size, _STATE), dtype=np.uint64)
    fill_states(words, states)
    return [_generator(entropy, state) for entropy, state in zip(words, states, strict=True)]


def _check(seed: int, server_round: int) -> None:
    if not (0 <= seed < _WORDS and 0 <= server_round < _WORDS):
        what = f"seed={seed}, server_round={server_round}"
        raise ConfigurationError(f"{what}; expected whole numbers from 0 to 2**32 - 1")


def _generator(words: Sequence[int] | NDArray[np.uint32], state: NDArray[np.uint64]) -> np.random.Generator:
    # NumPy takes any ISeedSequence; its type stubs know only one.
    return np.random.Generator(np.random.PCG64(_Words(words, state)))  # type: ignore[arg-type]

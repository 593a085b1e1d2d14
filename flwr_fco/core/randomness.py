"""One random generator per (seed, round, partition)."""

from __future__ import annotations

import numpy as np

from flwr_fco.errors import ConfigurationError

#: Purpose of the clients' generators.
_LOCAL_SOLVERS = 1
#: The number of 32-bit words.
_WORDS = 2**32


def random_generator(
    seed: int, server_round: int, partition_id: int, purpose: int = _LOCAL_SOLVERS
) -> np.random.Generator:
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
    if not (0 <= seed < _WORDS and 0 <= server_round < _WORDS):
        what = f"seed={seed}, server_round={server_round}"
        raise ConfigurationError(f"{what}; expected whole numbers from 0 to 2**32 - 1")
    return np.random.default_rng((seed, server_round, partition_id % _WORDS, partition_id // _WORDS, purpose))

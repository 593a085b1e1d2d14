"""One BLAS thread in local solvers, and what it costs to have it; generators that NumPy makes of the words."""

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from flwr_fco.core import computing as threads
from flwr_fco.core.computing import random_generator, single_threaded_blas
from flwr_fco.errors import ConfigurationError


def blas_threads():
    return {info["filepath"]: info["num_threads"] for info in threadpool_info() if info["user_api"] == "blas"}


def test_blas_has_one_thread_within_the_block_and_what_it_had_after_it():
    with threadpool_limits(limits=2, user_api="blas"):
        before = blas_threads()
        with single_threaded_blas():
            assert set(blas_threads().values()) == {1}
            with single_threaded_blas():
                assert threads.depth
            assert set(blas_threads().values()) == {1}
        assert blas_threads() == before
        assert not threads.depth


@pytest.mark.parametrize("partition", [0, 1, 2**32 - 1, 2**32, 2**64 - 1])
@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1])
def test_a_generator_is_the_one_that_numpy_makes_of_the_words(seed, partition):
    for server_round, purpose in ((1, 1), (2, 1), (3000, 2), (1, 3)):
        words = (seed, server_round, partition & 0xFFFFFFFF, partition >> 32, purpose)
        generator = random_generator(seed, server_round, partition, purpose)
        expected = np.random.default_rng(words)
        assert generator.bit_generator.state == expected.bit_generator.state


@pytest.mark.parametrize(("seed", "server_round"), [(-1, 1), (2**32, 1), (1, -1), (1, 2**32), (1, 10**30)])
def test_a_seed_or_round_that_is_no_word_is_refused(seed, server_round):
    with pytest.raises(ConfigurationError, match=f"seed={seed}, server_round={server_round}; expected whole numbers"):
        random_generator(seed, server_round, 0)

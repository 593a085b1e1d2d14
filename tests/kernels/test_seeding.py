"""Generators are seeded as NumPy seeds them: the oracle is NumPy."""

import copy
import pickle

import numpy as np
import pytest
from together import together

from flwr_fco.core.randomness import random_generator, random_generators
from flwr_fco.errors import ConfigurationError
from flwr_fco.kernels.seeding import fill_state

NUMBERS = np.random.default_rng(1)


@together("length", range(10))
def test_the_state_is_that_of_a_seed_sequence(length):
    for words in (np.zeros(length), np.full(length, 2**32 - 1), *NUMBERS.integers(2**32, size=(20, length))):
        entropy = words.astype(np.uint32)
        for size in (1, 4, 5):
            state = np.empty(size, dtype=np.uint64)
            fill_state(entropy, state)
            assert state.tolist() == np.random.SeedSequence(entropy).generate_state(size, np.uint64).tolist()


@together("partition", [0, 1, 2**32 - 1, 2**32, 2**64 - 1])
@together("seed", [0, 7, 2**32 - 1])
def test_a_generator_is_the_one_that_numpy_makes_of_the_words(seed, partition):
    for server_round, purpose in ((1, 1), (2, 1), (3000, 2), (1, 3)):
        words = (seed, server_round, partition & 0xFFFFFFFF, partition >> 32, purpose)
        generator, expected = random_generator(seed, server_round, partition, purpose), np.random.default_rng(words)
        assert generator.bit_generator.state == expected.bit_generator.state
        assert generator.permutation(20).tolist() == expected.permutation(20).tolist()


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1])
def test_generators_of_several_clients_are_those_of_each(seed):
    partitions = [5, 0, 2**32 - 1, 2**32, 2**64 - 1, 5]
    for partition, generator in zip(partitions, random_generators(seed, 3, partitions), strict=True):
        expected = np.random.default_rng((seed, 3, partition & 0xFFFFFFFF, partition >> 32, 1))
        assert generator.bit_generator.state == expected.bit_generator.state
    assert random_generators(seed, 3, []) == []


@pytest.mark.parametrize(("seed", "server_round"), [(-1, 1), (2**32, 1), (1, -1), (1, 2**32), (1, 10**30)])
def test_a_seed_or_round_that_is_no_word_is_refused(seed, server_round):
    with pytest.raises(ConfigurationError, match=f"seed={seed}, server_round={server_round}; expected whole numbers"):
        random_generator(seed, server_round, 0)
    with pytest.raises(ConfigurationError, match="expected whole numbers"):
        random_generators(seed, server_round, [0])


@pytest.mark.parametrize(
    "twin", [copy.deepcopy, lambda rng: pickle.loads(pickle.dumps(rng)), lambda rng: rng.spawn(2)[1]]
)
@pytest.mark.parametrize("make", [random_generator, lambda *words: random_generators(*words[:2], words[2:])[0]])
def test_generators_can_do_what_numpys_can(twin, make):
    generator, expected = make(4, 5, 6), np.random.default_rng((4, 5, 6, 0, 1))
    assert twin(generator).random(3).tolist() == twin(expected).random(3).tolist()
    words = generator.bit_generator.seed_seq.generate_state(3)
    assert words.tolist() == expected.bit_generator.seed_seq.generate_state(3).tolist()

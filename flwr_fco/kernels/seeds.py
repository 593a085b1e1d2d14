"""The state that NumPy's seed sequence gives a generator, in a tenth of its time."""

from __future__ import annotations

import numpy as np

from flwr_fco.kernels import njit

_FIRST, _FIRST_FACTOR = np.uint32(0x43B0D7E5), np.uint32(0x931E8875)
_SECOND, _SECOND_FACTOR = np.uint32(0x8B51F9DD), np.uint32(0x58F38DED)
_LEFT, _RIGHT = np.uint32(0xCA01F9DD), np.uint32(0x4973F715)
_HALF = np.uint32(16)


@njit(cache=True)
def _hashed(value, constant, factor):  # type: ignore[no-untyped-def]
    """Return the hash of a word, and the constant of the next one."""
    following = np.uint32(constant * factor)
    value = np.uint32((value ^ constant) * following)
    return value ^ (value >> _HALF), following


@njit(cache=True)
def seeded_state(words):  # type: ignore[no-untyped-def]
    """Return ``np.random.SeedSequence(words).generate_state(8)`` of four words or more."""
    pool = np.zeros(4, np.uint32)
    constant = _FIRST
    for i in range(4):
        pool[i], constant = _hashed(words[i], constant, _FIRST_FACTOR)
    # All words of the pool are mixed into each other, and then all others into each of them.
    for i in range(words.size):
        for j in range(4):
            if i != j:
                value, constant = _hashed(pool[i] if i < 4 else words[i], constant, _FIRST_FACTOR)
                value = np.uint32(_LEFT * pool[j] - _RIGHT * value)
                pool[j] = value ^ (value >> _HALF)
    state = np.zeros(8, np.uint32)
    constant = _SECOND
    for i in range(8):
        state[i], constant = _hashed(pool[i % 4], constant, _SECOND_FACTOR)
    return state

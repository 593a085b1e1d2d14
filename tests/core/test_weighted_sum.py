"""The sum over replies: the bits of adding one after the other, whatever they are made of."""

import tracemalloc

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from flwr_fco.algorithms.contract.replies import Mean, weighted_sum
from flwr_fco.core.sparse import SparseVector, dense
from flwr_fco.messages.protocol import Uplink


def vectors(kinds, size):
    rng = np.random.default_rng(size)
    found = []
    for kind in kinds:
        vector = rng.standard_normal(size)
        if kind == "s":
            indices = np.flatnonzero(rng.random(size) < 0.3).astype(np.int32)
            vector = SparseVector(indices, vector[indices], size)
        elif kind != "d":
            vector = {"f": vector.astype(np.float32), "t": np.repeat(vector, 2)[::2], "i": np.arange(size)}[kind]
        found.append(vector)
    return found


@pytest.mark.parametrize("kinds", ["d", "ddd", "dddd", "ddddddddd", "fffffff", "ddfffds", "sddds", "tdtid", "sss"])
@pytest.mark.parametrize("size", [1, 7, 1_000, 65_536, 150_001])
def test_bits_are_those_of_one_after_the_other(kinds, size):
    given = vectors(kinds, size)
    factors = np.random.default_rng(0).random(len(given)).tolist()
    expected = np.zeros(size)
    for factor, vector in zip(factors, given, strict=True):
        expected += factor * dense(vector)
    before = [np.array(dense(vector)) for vector in given]
    assert_array_equal(weighted_sum(zip(factors, given, strict=True), (size,)), expected)
    for vector, old in zip(given, before, strict=True):
        assert_array_equal(dense(vector), old)


def test_float32_replies_are_added_in_float64_in_the_memory_of_the_mean():
    size = 300_000
    rows = [np.full(size, value, dtype=np.float32) for value in (1e8, 1.0, -1e8, 0.1)]
    uplinks = [Uplink({"increment": row}, elapsed=1.0, steps=1, weight=0.25) for row in rows]
    Mean()(uplinks)
    tracemalloc.start()
    mean, _ = Mean()(uplinks)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert_array_equal(mean, np.full(size, 0.25 * (1.0 + float(np.float32(0.1)))))
    assert peak < 1.05 * mean.nbytes

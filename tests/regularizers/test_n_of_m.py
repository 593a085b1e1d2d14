"""At most n of m neighbouring inputs: the best of all choices, along the inputs of a layer, or a reason why not."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flwr_fco.errors import ConfigurationError
from flwr_fco.regularizers import NofM

ROWS = st.lists(st.integers(-3, 3), min_size=4, max_size=4)


@given(st.lists(ROWS, min_size=1, max_size=3), st.integers(1, 4))
def test_no_choice_of_n_is_nearer_and_of_equal_ones_the_first_stay(rows, n):
    v = np.array(rows, dtype=np.float64)
    result = NofM(n, 4).prox(v, 1.0)
    for row, kept in zip(v, result, strict=True):
        # The first of the best choices keeps the first entries.
        best = max(itertools.combinations(range(4), n), key=lambda choice: np.square(row[list(choice)]).sum())
        distance = np.square(row).sum() - np.square(row[list(best)]).sum()
        assert np.square(row - kept).sum() == pytest.approx(distance)
        smallest = np.abs(row[kept != 0]).min(initial=np.inf)
        dropped = np.flatnonzero((kept == 0) & (np.abs(row) == smallest))
        chosen = np.flatnonzero((kept != 0) & (np.abs(row) == smallest))
        assert not dropped.size or not chosen.size or chosen.max() < dropped.min()


def test_a_kernel_is_read_along_its_input_channels():
    kernel = np.random.default_rng(0).normal(size=(5, 8, 3, 2))
    result = NofM(1, 4).prox(kernel, 1.0)
    for out, x, y in itertools.product(range(5), range(3), range(2)):
        expected = NofM(1, 4).prox(kernel[out, :, x, y][None].copy(), 1.0)[0]
        np.testing.assert_array_equal(result[out, :, x, y], expected)
    assert NofM(1, 4).value(result) == 0.0
    assert NofM(1, 4).value(kernel) == np.inf


def test_layers_of_fewer_inputs_are_left_whole():
    kernel = np.ones((5, 3, 2, 2))
    np.testing.assert_array_equal(NofM(2, 4).prox(kernel, 1.0), kernel)
    assert NofM(2, 4).value(kernel) == 0.0


@pytest.mark.parametrize(
    ("shape", "words"), [((8,), "second axis of matrices"), ((3, 30), r"30 inputs, no multiple of 4; leave it whole")]
)
def test_an_array_that_cannot_be_read_is_refused_in_words(shape, words):
    with pytest.raises(ConfigurationError, match=words):
        NofM(2, 4).check_shape("weight", shape)


def test_nan_stays_nan():
    result = NofM(1, 4).prox(np.array([[np.nan, 1.0, 3.0, 2.0]]), 1.0)
    np.testing.assert_array_equal(result, [[np.nan, 0.0, 3.0, 0.0]])

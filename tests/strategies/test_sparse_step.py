"""The largest entries without sorting, and the step of a model that becomes sparse."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flwr_fco.algorithms.density import FURTHER, GAIN, MEMORY, keep_gain, sparse_step
from flwr_fco.core.layout import Layout
from flwr_fco.regularizers import HardSparsity
from flwr_fco.regularizers.sets import _LONG, kth_largest


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@given(values=st.lists(st.floats(-1e30, 1e30), min_size=1, max_size=40), share=st.floats(0.0, 1.0))
@settings(max_examples=40, deadline=None)
def test_the_kth_largest_is_that_of_a_sort(dtype, values, share):
    """With ties, where the values are repeated up to the size from which on it is found otherwise."""
    for size in (len(values), _LONG + 11):
        v = np.resize(values, size).astype(dtype)
        count = min(size, 1 + int(share * size))
        assert kth_largest(np.abs(v), count) == np.sort(np.abs(v))[size - count]


LAYOUT = Layout.from_arrays({"a": np.zeros((3, 4)), "b": np.zeros((2, 5)), "c": np.zeros((2, 2)), "bias": np.zeros(3)})


def a_step(psi, scope="each"):
    rng = np.random.default_rng(3)
    bound = psi.bind(LAYOUT, scope=scope)
    dual, step = rng.standard_normal(LAYOUT.size), 0.1 * rng.standard_normal(LAYOUT.size)
    primal, following = bound.prox(dual, 1.0), dual + step
    sparse_step(bound, primal, dual, following)
    return dual, step, primal, following


@pytest.mark.parametrize("scope", ["each", "joint"])
def test_what_stays_goes_as_far_as_all_and_what_is_0_fades(scope):
    dual, step, primal, following = a_step(HardSparsity(density=0.5), scope)
    regularized = LAYOUT.regularized_mask()
    blocks = [LAYOUT[name].block for name in "abc"] if scope == "each" else [regularized]
    expected = dual + step  # A bias is as the mean has it.
    for block in blocks:
        z, d, kept = dual[block], step[block], primal[block] != 0
        factor = min(FURTHER, np.linalg.norm(d) / np.linalg.norm(d[kept]))
        assert factor > 1.0
        expected[block] = np.where(kept, z + factor * d, MEMORY * z + d)
    np.testing.assert_allclose(following, expected, rtol=1e-12)


NAMES = ("a", "b", "c")


def cut(scale, count=3, scope="each", psi=None):
    """Return the model before a cut, the dual, and the dual after `keep_gain`; arrays of a scale each."""
    rng = np.random.default_rng(5)
    dual = rng.standard_normal(LAYOUT.size)
    for name, factor in zip(NAMES, scale, strict=True):
        dual[LAYOUT[name].block] *= factor
    primal = np.where(rng.random(LAYOUT.size) < 0.8, dual, 0.0)
    bound = (psi or HardSparsity(count)).bind(LAYOUT, scope=scope)
    following = dual.copy()
    keep_gain(bound, primal.copy(), following)
    return bound, primal, dual, following


def rms_singular_value(w):
    return np.sqrt((np.linalg.svd(w, compute_uv=False) ** 2).mean())


@given(st.lists(st.sampled_from([1e-6, 0.1, 0.3, 1.0, 10.0]), min_size=3, max_size=3), st.integers(1, 3))
@settings(max_examples=50, deadline=None)
def test_cutting_weakens_no_array_below_the_gain_of_initial_weights(scale, count):
    bound, primal, dual, following = cut(scale, count)
    plain, kept = bound.prox(dual, 1.0), bound.prox(following, 1.0)
    for name in NAMES:
        block, shape = LAYOUT[name].block, LAYOUT[name].shape
        before = rms_singular_value(np.where(primal[block] != 0, dual[block], 0.0).reshape(shape))
        without, found = (rms_singular_value(w[block].reshape(shape)) for w in (plain, kept))
        assert found == pytest.approx(max(without, min(before, GAIN)))
        # One factor, no less than 1, for all that stays; all else is as it was.
        on = plain[block] != 0
        assert (on == (kept[block] != 0)).all()
        assert np.ptp(following[block][on] / dual[block][on]) < 1e-12
        np.testing.assert_array_equal(following[block][~on], dual[block][~on])
    np.testing.assert_array_equal(following[LAYOUT["bias"].block], dual[LAYOUT["bias"].block])

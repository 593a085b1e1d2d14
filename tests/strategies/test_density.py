"""A density: which entries stay, in which arrays, in which rounds, and what is said when it goes wrong."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import foreign_app, numpy_of, simulated

from flwr_fco.algorithms.density import GAIN, erdos_renyi, keep_gain
from flwr_fco.core.layout import Layout
from flwr_fco.regularizers import HardSparsity, L1Ball, PerParameter, Zero
from flwr_fco.regularizers.sets import _LONG, kth_largest
from flwr_fco.strategies import Density, FedDualAvg, run_of

SHAPES = {"conv": (4, 2, 3, 3), "hidden": (20, 36), "bias": (20,), "head": (5, 20)}
WEIGHTS = ("conv", "hidden", "head")


def start(seed=0):
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape) for name, shape in SHAPES.items()}


def walking(arrays, message, context):
    """A client that goes to a fixed place of its own."""
    rng = np.random.default_rng(context.node_config["partition-id"])
    return {name: a + 0.1 * (2.0 * rng.standard_normal(a.shape) - a) for name, a in arrays.items()}


def run(rounds=24, **options):
    own = FedDualAvg(**{"client": "unmodified", "density": 0.1, "fraction_evaluate": 0.0} | options)
    result = simulated(own, foreign_app(walking), rounds, num_nodes=3, initial_arrays=start())
    return numpy_of(result.arrays), own, result


shapes = st.lists(st.lists(st.integers(1, 30), min_size=2, max_size=4).map(tuple), min_size=1, max_size=8)


@given(shapes, st.floats(0.01, 1.0))
@settings(max_examples=200, deadline=None)
def test_the_share_is_allotted_to_the_entry(shapes, density):
    sizes = [math.prod(shape) for shape in shapes]
    counts = erdos_renyi(shapes, density)
    total = round(density * sum(sizes))
    assert all(1 <= count <= size for count, size in zip(counts, sizes, strict=True))
    assert sum(counts) == total or (sum(counts) > total and all(count == 1 for count in counts))
    if density == 1.0:
        assert counts == sizes


@pytest.mark.parametrize("scope", ["layers", "global"])
def test_what_stays_is_the_largest_of_the_dual_as_it_is(scope):
    """Nothing is shrunk: the model is the dual itself at the entries that stay."""
    found, own, result = run(density=Density(0.1, scope))
    layout = run_of(own).problem.layout
    duals = {name: own.state.dual[layout[name].block].reshape(shape) for name, shape in SHAPES.items()}
    np.testing.assert_array_equal(found["bias"], duals["bias"])
    total = sum(math.prod(SHAPES[name]) for name in WEIGHTS)
    assert sum(np.count_nonzero(found[name]) for name in WEIGHTS) == round(0.1 * total)
    assert result.train_metrics_clientapp[24]["density"] == pytest.approx(0.1, abs=1 / total)
    groups = [WEIGHTS] if scope == "global" else [(name,) for name in WEIGHTS]
    for names in groups:
        w, z = (np.concatenate([arrays[name].ravel() for name in names]) for arrays in (found, duals))
        kept = w != 0
        np.testing.assert_array_equal(w[kept], z[kept])
        assert np.abs(z[kept]).min() >= np.abs(z[~kept]).max()


def test_single_arrays_have_a_density_of_their_own_or_none():
    psi = PerParameter({"head": Zero(), "conv": HardSparsity(density=0.5)})
    found, _, _ = run(regularizer=psi)
    assert np.count_nonzero(found["head"]) == 100
    assert np.count_nonzero(found["conv"]) == 36
    assert np.count_nonzero(found["hidden"]) == 72  # alone in the rest
    # A constraint is kept as it is.
    found, _, _ = run(regularizer=PerParameter({"head": L1Ball(1.0)}))
    assert np.abs(found["head"]).sum() == pytest.approx(1.0)
    assert np.count_nonzero(found["conv"]) + np.count_nonzero(found["hidden"]) == round(0.1 * (72 + 720))


SCHEDULES = [(24, None, 18), (3, None, 3), (10, None, 8), (9, 6, 6), (1, None, 1)]


@pytest.mark.parametrize(("rounds", "falling", "reached"), SCHEDULES)
def test_the_schedule_fits_the_number_of_rounds(rounds, falling, reached):
    _, _, result = run(rounds, density=Density(0.1, rounds=falling))
    densities = [result.train_metrics_clientapp[number]["density"] for number in range(1, rounds + 1)]
    assert densities == sorted(densities, reverse=True)
    assert densities[reached - 1 :] == [densities[-1]] * (rounds - reached + 1)
    assert reached == 1 or densities[reached - 2] > densities[-1]
    assert densities[-1] == pytest.approx(0.1, abs=2e-3)


# --- the largest entries without sorting, and the step of a model that becomes sparse ---------------------------------


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


def rms_singular_value(w):
    return np.sqrt((np.linalg.svd(w, compute_uv=False) ** 2).mean())


@given(st.lists(st.sampled_from([1e-6, 0.1, 0.3, 1.0, 10.0]), min_size=3, max_size=3), st.integers(1, 3))
@settings(max_examples=50, deadline=None)
def test_cutting_weakens_no_array_below_the_gain_of_initial_weights(scale, count):
    rng = np.random.default_rng(5)
    dual = rng.standard_normal(LAYOUT.size)
    for name, factor in zip("abc", scale, strict=True):
        dual[LAYOUT[name].block] *= factor
    primal = np.where(rng.random(LAYOUT.size) < 0.8, dual, 0.0)
    bound = HardSparsity(count).bind(LAYOUT)
    following = dual.copy()
    keep_gain(bound, primal.copy(), following)
    plain, kept = bound.prox(dual, 1.0), bound.prox(following, 1.0)
    for name in "abc":
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

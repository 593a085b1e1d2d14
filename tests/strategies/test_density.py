"""A density: which entries stay, in which arrays, in which rounds, and what is said when it goes wrong."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import app_of, foreign_app, numpy_of, simulated
from quadratics import Quadratic

from flwr_fco.algorithms.density import allotted, erdos_renyi
from flwr_fco.regularizers import HardSparsity, L1Ball, PerParameter, Zero
from flwr_fco.strategies import Density, FedDualAvg, Steps, run_of

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


@given(st.integers(0, 2**32 - 1), st.floats(0.05, 0.95), st.floats(0.0, 1.0))
@settings(max_examples=200, deadline=None)
def test_the_largest_stay_but_no_array_has_less_than_it_is_sure_of(seed, density, sure):
    """Against the optimum: with the lower bounds, no exchange of an entry that stays for one that goes is a gain."""
    rng = np.random.default_rng(seed)
    arrays = [rng.integers(0, 9, rng.integers(1, 20)).astype(float) * 10.0 ** rng.integers(-1, 2) for _ in range(4)]
    even = erdos_renyi([(array.size, 1) for array in arrays], density)
    least = [math.ceil(sure * count) for count in even]
    counts = allotted(arrays, least, sum(even))
    assert sum(counts) == sum(even)
    assert all(low <= count <= array.size for low, count, array in zip(least, counts, arrays, strict=True))
    ordered = [np.sort(array)[::-1] for array in arrays]
    leaves = [own[count - 1] for own, count, low in zip(ordered, counts, least, strict=True) if count > low]
    enters = [own[count] for own, count in zip(ordered, counts, strict=True) if count < own.size]
    assert not leaves or not enters or min(leaves) >= max(enters)


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


@pytest.mark.parametrize(
    ("rounds", "falling", "reached"), [(24, None, 18), (3, None, 3), (10, None, 8), (9, 6, 6), (1, None, 1)]
)
def test_the_schedule_fits_the_number_of_rounds(rounds, falling, reached):
    _, _, result = run(rounds, density=Density(0.1, rounds=falling))
    densities = [result.train_metrics_clientapp[number]["density"] for number in range(1, rounds + 1)]
    assert densities == sorted(densities, reverse=True)
    assert densities[reached - 1 :] == [densities[-1]] * (rounds - reached + 1)
    assert reached == 1 or densities[reached - 2] > densities[-1]
    assert densities[-1] == pytest.approx(0.1, abs=2e-3)


def test_clients_of_every_kind_take_the_same_plain_steps_from_the_model():
    """A density belongs to the server: who knows psi does what those do who do not."""
    minimum, begin, rate = np.array([1.0, 4.0, 3.0, -2.0]), np.array([2.0, 0.5, 0.1, -1.0]), 0.1

    def trained(arrays, message, context):
        for _ in range(3):
            arrays = {"x": arrays["x"] - rate * (arrays["x"] - minimum)}
        return arrays

    options = {"density": Density(0.5, rounds=3), "fraction_evaluate": 0.0}
    ours = FedDualAvg(client_lr=rate, work=Steps(3, batch_size=None), **options)
    clients = app_of([Quadratic(np.eye(4), minimum)] * 2), foreign_app(trained)
    for own, app in zip((ours, FedDualAvg(client="unmodified", **options)), clients, strict=True):
        simulated(own, app, 6, num_nodes=2, initial_arrays={"x": begin})
        np.testing.assert_allclose(own.state.dual, ours.state.dual, rtol=1e-12)
    assert np.count_nonzero(run_of(ours).point) == 2

"""What one client of five can do with an increment that is sparse, or says so: it is left out, counted, and no more."""

from functools import cache

import numpy as np
import pytest
from adversarial_clients import in_messages
from flwr.app import Array
from problems import app_of, arrays_of, trackers_of
from scipy import sparse

from flwr_fco import FedDualAvg
from flwr_fco.objectives import Logistic
from flwr_fco.regularizers import L1
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import Bounds, Epochs, FedDAGT, Ledger, run_of

D, NODES, LIAR = 300, 5, 1
INDICES = "indices:increment"


@cache
def objectives():
    rng = np.random.default_rng(0)
    rows = [sparse.random_array((12, D), density=0.02, rng=rng, format="csr") for _ in range(NODES)]
    return [Logistic(own, np.arange(12) % 2) for own in rows]


def run(lie, rounds=4, cls=FedDualAvg, **options):
    """Run with a liar who sends ``lie(round, values, indices)``, if that is something."""

    def reported(number, vectors, claims):
        if number >= 1:
            said = lie(number, vectors["increment"], vectors[INDICES])
            vectors.clear()
            vectors.update(said)

    options = {"bounds": Bounds(max_ratio=None), **options} | ({"tracker_start": "zero"} if cls is FedDAGT else {})
    strategy = cls(regularizer=L1(1e-3), client_lr=0.5, work=Epochs(1, batch_size=4), fraction_evaluate=0.0, **options)
    grid = InProcessGrid(app_of(objectives(), [in_messages(reported, LIAR)]), NODES, raise_errors=False)
    start = arrays_of({"coefficients": np.zeros(D), "intercept": np.zeros(1)})
    return strategy, strategy.start(grid, start, rounds)


def pair(values, indices, **more):
    return {"increment": values, INDICES: indices, **more}


def a_terabyte(number, values, indices):
    honest = Array(indices)
    return pair(values, Array("int32", (2**38,), honest.stype, honest.data))


LIES = {
    "unsorted": lambda n, values, indices: pair(values, indices[[1, 0, *range(2, indices.size)]]),
    "beyond the end": lambda n, values, indices: pair(values, np.r_[indices[:-1], np.int32(D + 1)]),
    "values alone": lambda n, values, indices: {"increment": values},
    "indices of what is not asked": lambda n, values, indices: pair(values, indices, **{"indices:dual": indices}),
    "NaN": lambda n, values, indices: pair(np.r_[np.nan, values[1:]], indices),
    "a label of a terabyte": a_terabyte,
}


@cache
def without_the_liar(cls):
    return run(lambda *_: 1 // 0, cls=cls)[0].state.dual


@pytest.mark.parametrize("name", LIES)
@pytest.mark.parametrize("cls", [FedDualAvg, FedDAGT])
def test_a_lie_about_indices_is_a_reply_that_did_not_come(name, cls):
    strategy, result = run(LIES[name], cls=cls)
    assert [(row.round, row.partition_id) for row in result.left_out] == [(n, LIAR) for n in range(1, 5)]
    np.testing.assert_array_equal(strategy.state.dual, without_the_liar(cls))
    # A liar is sent what everybody can be sent.
    assert len(run_of(strategy).indices) == NODES - 1


@pytest.mark.parametrize("bounds", [Bounds(max_ratio=10.0), Bounds(max_ratio=None, max_increment_norm=50.0)])
def test_a_long_sparse_increment_is_left_out(bounds):
    _, result = run(lambda number, values, indices: pair(np.array([1e9]), indices[:1]), bounds=bounds)
    assert [row.partition_id for row in result.left_out] == [LIAR] * 4
    assert all(("max_increment_norm" in row.reason) == (bounds.max_ratio is None) for row in result.left_out)


def other_indices_in_each_round(number, values, indices):
    return pair(np.full(3, 1e-9), np.array([number, number + 40, D], dtype=np.int32))


def test_the_features_that_one_reports_change_nothing_for_the_others():
    """A client that says other indices in each round gets the dual there; all others get what they got."""
    strategy, result = run(other_indices_in_each_round)
    honest, expected = run(lambda number, values, indices: pair(values, indices))
    assert {row.partition_id for row in result.left_out} <= {LIAR}
    assert not expected.left_out
    for key, indices in run_of(honest).indices.items():
        if key != (0, LIAR):
            np.testing.assert_array_equal(run_of(strategy).indices[key], indices)


@pytest.mark.parametrize("cls", [FedDualAvg, FedDAGT])
def test_an_increment_of_nothing_counts(cls):
    _, result = run(lambda number, values, indices: pair(np.zeros(0), np.zeros(0, dtype=np.int32)), rounds=1, cls=cls)
    assert not result.left_out


@pytest.mark.parametrize(
    "lie", [other_indices_in_each_round, lambda *_: {"increment": np.full(D + 1, 1e-9)}], ids=["other", "all"]
)
def test_other_features_neither_end_the_ledger_nor_move_the_trackers(lie):
    """Its replies count, and what it is said to remember is what follows from them."""
    # Whole vectors of all would not fit.
    options = {"client_state": Ledger(max_bytes=8 * D * 3), "fraction_train": 0.6, "bounds": Bounds(max_ratio=1000.0)}
    strategy, result = run(lie, rounds=12, cls=FedDAGT, **options)
    assert {row.partition_id for row in result.left_out} <= {LIAR}
    trackers = np.array([*trackers_of(strategy).values()])
    assert np.abs(trackers.sum(axis=0)).max() <= 1e-12 * np.abs(trackers).max()

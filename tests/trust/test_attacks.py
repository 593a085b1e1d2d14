"""What one client of ten can do, in its messages or below the seam where they are read: no more than be silent."""

from functools import cache, partial

import numpy as np
import pytest
from adversarial_clients import LIAR, in_messages, make, regressions, run, run_with
from faults import FaultyGrid
from flwr.app import Array
from problems import app_of, arrays_of, crossed, flat, foreign, numpy_of, simulated, start_arrays, trackers_of
from scipy import sparse

from flwr_fco.callbacks import Checkpoint
from flwr_fco.core.layout import Layout
from flwr_fco.objectives import Logistic
from flwr_fco.regularizers import L1
from flwr_fco.strategies import Arrays, Bounds, Epochs, FedDAGT, FedDualAvg, Ledger, Participation, Steps, run_of

OBJECTIVES = regressions()


@cache
def without(name, lies_in, rounds, objectives, liar):
    """Return the model of the run in which the liar's replies of these rounds are missing."""
    silent = partial(FaultyGrid, faults={"lose": 1.0}, rounds=lies_in, partitions=[liar], raise_errors=True)
    return flat(run(make(name), objectives, rounds, grid=silent).arrays)


def is_as_if_missing(way, name, lie, lies_in, objectives=OBJECTIVES, liar=LIAR, rounds=4):
    """The lie of some rounds changes no bit: the run is that in which the liar's replies of these are missing."""

    def lie_then(number, vectors, claims):
        if number in lies_in:
            lie(vectors, claims)

    result = run_with(way, make(name), objectives, rounds, lie_then, liar=liar)
    np.testing.assert_array_equal(flat(result.arrays), without(name, lies_in, rounds, tuple(objectives), liar))
    rows = [(row.round, row.partition_id) for row in result.left_out if row.round > 0]
    assert rows == [(number, liar) for number in lies_in]


def more_work(vectors, claims):
    claims["local-steps"] = int(claims["local-steps"] * 900)
    claims["elapsed"] *= 900


def heavy(vectors, claims):
    claims["num-examples"] = int(claims["num-examples"] * 900)
    for vector in vectors.values():
        vector *= -900.0


LIES = [(more_work, name) for name in ("FedDualAvg", "FedMid", "FedDAGT", "DFedDA")]
LIES += [(heavy, name) for name in ("FedDualAvg", "FedMid", "FedDAGT", "LocalSGD", "FeDualEx")]


@pytest.mark.parametrize("way", ["messages", "uplinks"])
@pytest.mark.parametrize(("lie", "name"), LIES)
def test_a_lie_in_every_round_is_a_reply_that_did_not_come(lie, name, way):
    is_as_if_missing(way, name, lie, range(1, 5))


@pytest.mark.parametrize(("when", "length", "way"), [(1, 1e9, "messages"), (3, 1e300, "messages"), (3, 1e9, "uplinks")])
@pytest.mark.parametrize("name", ["FedDualAvg", "FedMid", "FedDAGT", "DFedDAGT", "FedDR"])
def test_an_absurd_reply_of_one_of_four_nodes_is_missing(way, name, when, length):
    def lie(vectors, claims):
        # Per unit of it, it would be as long as others.
        claims["elapsed"] = length
        for vector in vectors.values():
            vector[:] = length

    is_as_if_missing(way, name, lie, (when,), OBJECTIVES[1:5], 2)


def test_a_first_answer_without_examples_sets_no_weight():
    strategy = make("FedDR")
    without = in_messages(lambda number, vectors, claims: number == 1 and claims.update({"num-examples": 0}))
    run(strategy, OBJECTIVES, 4, mods=[without])
    assert strategy.memories.members[(0, LIAR)].examples == 30.0


@pytest.mark.parametrize(("own", "name"), crossed([-1, 2**63 - 1, -(2**62)], ["FedDAGT", "DFedDAGT", "FedDualAvg"]))
def test_a_partition_id_that_is_none_does_not_end_the_run(name, own, tmp_path):
    claiming = in_messages(lambda *given: given[2].update({"partition-id": own}), kind="query.partition")

    def play(rounds, **more):
        strategy = make(name, participation=Participation(node_timeout=0.0))
        return run(strategy, OBJECTIVES, rounds, mods=[claiming], grid=foreign, **more)

    path = tmp_path / f"{name}{own}.npz"
    play(3, callbacks=[Checkpoint(path)])
    assert play(4, resume=path).train_metrics_clientapp[4]["num-replies"] == 10


# --- arrays that pass through -----------------------------------------------------------------------------------------


def with_buffers(said, **options):
    """Return what the server has of arrays that pass through, after a round in which clients say so."""
    start = {**numpy_of(start_arrays()), "norm.running_mean": np.zeros(2), "norm.count": np.full(2, 5)}
    objectives = regressions(len(said))
    for own, (mean, count) in zip(objectives, said, strict=True):
        own.layout = Layout.from_arrays(start, pass_through=("norm.*",))
        own.load_buffers = lambda buffers: None
        own.buffers = partial(dict, {"norm.running_mean": np.full(2, mean), "norm.count": np.full(2, count)})
    strategy = FedDualAvg(client_lr=0.1, arrays=Arrays(pass_through=("norm.*",)), fraction_evaluate=0.0, **options)
    result = run(strategy, objectives, 1, start=arrays_of(start))
    assert result.train_metrics_clientapp[1]["skipped"] == 0
    found = [result.arrays[name].numpy()[0] for name in ("norm.running_mean", "norm.count")]
    return (*found, {row.partition_id for row in result.left_out})


def test_changes_of_buffers_are_bounded_and_counters_take_the_median():
    assert with_buffers([(0.1 * m, 9) for m in range(7)] + [(1e6, 9)]) == (pytest.approx(0.3), 9, {7})
    counts = (0.1, 9), (0.1, 9), (0.1, 2**50), (0.1, 8), (0.1, 9)
    assert with_buffers(counts) == (pytest.approx(0.1), 9, {2})
    # All others leave theirs as it was.
    assert with_buffers([(0.0, 5)] * 6 + [(1e6, 5)]) == (0.0, 5, {6})
    assert with_buffers([(0.1, 9)] * 4 + [(np.nan, 9)], bounds=Bounds(max_ratio=None))[2] == {4}
    # A mean may well be negative, also where it is so in one reply alone.
    assert with_buffers([(0.1 * m - 0.05, 9) for m in range(8)])[2] == set()


# --- evaluation -------------------------------------------------------------------------------------------------------


def evaluated(change=(), liar=LIAR, **options):
    mods = [in_messages(lambda number, vectors, claims: claims.update(change), liar, kind="evaluate")]
    strategy = FedDualAvg(client_lr=0.1, work=Steps(2, batch_size=None), **options)
    return simulated(strategy, app_of(OBJECTIVES, mods), 3, num_nodes=10)


MANY = [{"num-examples": 2**39}, {"num-examples": 2**50}]


@pytest.mark.parametrize("lie", [{"loss": -1e9}, {"loss": 2**64}, *MANY, MANY[0] | {"loss": 1e300}], ids=str)
def test_one_liar_does_not_own_an_evaluation(lie):
    found = evaluated(lie, bounds=Bounds(max_share=0.5))
    honest = evaluated()
    for number in (1, 2, 3):
        metrics = found.evaluate_metrics_clientapp[number]
        assert (metrics["num-replies"], metrics["num-left-out"]) == (9, 1)
        assert metrics["loss"] == pytest.approx(honest.evaluate_metrics_clientapp[number]["loss"], rel=0.3)
    assert {(row.kind, row.partition_id) for row in found.left_out} == {("evaluate", LIAR)}


@pytest.mark.parametrize("liar", [0, LIAR])
@pytest.mark.parametrize("loss", [[], [9.0], [9.0, 9.0]], ids=str)
def test_a_metric_in_another_form_than_the_others_counts_for_nobody(loss, liar):
    of_rest, with_zero, with_nine = (
        evaluated({"loss": own}, liar).evaluate_metrics_clientapp[3]["loss"] for own in (loss, 0.0, 9.0)
    )
    assert with_zero <= of_rest <= with_nine


# --- one client of five whose increment is sparse, or says so ---------------------------------------------------------

COLUMNS, NODES, SPARSE_LIAR = 300, 5, 1
INDICES = "indices:increment"


@cache
def sparse_clients():
    rng = np.random.default_rng(0)
    rows = [sparse.random_array((12, COLUMNS), density=0.02, rng=rng, format="csr") for _ in range(NODES)]
    return [Logistic(own, np.arange(12) % 2) for own in rows]


def sparse_run(lie, rounds=4, cls=FedDualAvg, **options):
    """Run with a liar who sends ``lie(round, values, indices)``, if that is something."""

    def reported(number, vectors, claims):
        if number >= 1:
            said = lie(number, vectors["increment"], vectors[INDICES])
            vectors.clear()
            vectors.update(said)

    options = {"bounds": Bounds(max_ratio=None), **options} | ({"tracker_start": "zero"} if cls is FedDAGT else {})
    strategy = cls(regularizer=L1(1e-3), client_lr=0.5, work=Epochs(1, batch_size=4), fraction_evaluate=0.0, **options)
    app = app_of(sparse_clients(), [in_messages(reported, SPARSE_LIAR)])
    start = {"coefficients": np.zeros(COLUMNS), "intercept": np.zeros(1)}
    return strategy, simulated(strategy, app, rounds, num_nodes=NODES, initial_arrays=start, raise_errors=False)


def pair(values, indices, **more):
    return {"increment": values, INDICES: indices, **more}


def a_terabyte(number, values, indices):
    honest = Array(indices)
    return pair(values, Array("int32", (2**38,), honest.stype, honest.data))


SPARSE_LIES = {
    "unsorted": lambda n, values, indices: pair(values, indices[[1, 0, *range(2, indices.size)]]),
    "beyond the end": lambda n, values, indices: pair(values, np.r_[indices[:-1], np.int32(COLUMNS + 1)]),
    "values alone": lambda n, values, indices: {"increment": values},
    "indices of what is not asked": lambda n, values, indices: pair(values, indices, **{"indices:dual": indices}),
    "NaN": lambda n, values, indices: pair(np.r_[np.nan, values[1:]], indices),
    "a label of a terabyte": a_terabyte,
}


@cache
def without_the_liar(cls):
    return sparse_run(lambda *_: 1 // 0, cls=cls)[0].state.dual


@pytest.mark.parametrize("name", SPARSE_LIES)
@pytest.mark.parametrize("cls", [FedDualAvg, FedDAGT])
def test_a_lie_about_indices_is_a_reply_that_did_not_come(name, cls):
    strategy, result = sparse_run(SPARSE_LIES[name], cls=cls)
    assert [(row.round, row.partition_id) for row in result.left_out] == [(n, SPARSE_LIAR) for n in range(1, 5)]
    np.testing.assert_array_equal(strategy.state.dual, without_the_liar(cls))
    # A liar is sent what everybody can be sent.
    assert len(run_of(strategy).indices) == NODES - 1


@pytest.mark.parametrize("bounds", [Bounds(max_ratio=10.0), Bounds(max_ratio=None, max_increment_norm=50.0)])
def test_a_long_sparse_increment_is_left_out(bounds):
    _, result = sparse_run(lambda number, values, indices: pair(np.array([1e9]), indices[:1]), bounds=bounds)
    assert [row.partition_id for row in result.left_out] == [SPARSE_LIAR] * 4
    assert all(("max_increment_norm" in row.reason) == (bounds.max_ratio is None) for row in result.left_out)


def other_indices_in_each_round(number, values, indices):
    return pair(np.full(3, 1e-9), np.array([number, number + 40, COLUMNS], dtype=np.int32))


def test_the_features_that_one_reports_change_nothing_for_the_others():
    """A client that says other indices in each round gets the dual there; all others get what they got."""
    strategy, result = sparse_run(other_indices_in_each_round)
    honest, expected = sparse_run(lambda number, values, indices: pair(values, indices))
    assert {row.partition_id for row in result.left_out} <= {SPARSE_LIAR}
    assert not expected.left_out
    for key, indices in run_of(honest).indices.items():
        if key != (0, SPARSE_LIAR):
            np.testing.assert_array_equal(run_of(strategy).indices[key], indices)


@pytest.mark.parametrize("cls", [FedDualAvg, FedDAGT])
def test_an_increment_of_nothing_counts(cls):
    assert not sparse_run(lambda *_: pair(np.zeros(0), np.zeros(0, np.int32)), rounds=1, cls=cls)[1].left_out


@pytest.mark.parametrize(
    "lie", [other_indices_in_each_round, lambda *_: {"increment": np.full(COLUMNS + 1, 1e-9)}], ids=["other", "all"]
)
def test_other_features_neither_end_the_ledger_nor_move_the_trackers(lie):
    """Its replies count, and what it is said to remember is what follows from them."""
    # Whole vectors of all would not fit.
    options = {"client_state": Ledger(max_bytes=8 * COLUMNS * 3), "bounds": Bounds(max_ratio=1000.0)}
    strategy, result = sparse_run(lie, rounds=12, cls=FedDAGT, fraction_train=0.6, **options)
    assert {row.partition_id for row in result.left_out} <= {SPARSE_LIAR}
    trackers = np.array([*trackers_of(strategy).values()])
    assert np.abs(trackers.sum(axis=0)).max() <= 1e-12 * np.abs(trackers).max()

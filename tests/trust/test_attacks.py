"""What one client of ten can do, in its messages or below the seam where they are read: no more than be silent."""

import numpy as np
import pytest
from adversarial_clients import LIAR, in_messages, make, regressions, run, run_with, without_liar
from problems import Discreet, app_of, arrays_of, flat, numpy_of, simulated, start_arrays

from flwr_fco.callbacks import Checkpoint
from flwr_fco.core.layout import Layout
from flwr_fco.objectives import LeastSquares
from flwr_fco.strategies import Arrays, Bounds, FedDualAvg, Participation, Steps

WAYS = ("messages", "uplinks")
OBJECTIVES = regressions()


def is_as_if_missing(way, name, lie, when, rounds=6, objectives=OBJECTIVES, liar=LIAR, **options):
    """The lie of some rounds changes no bit: the run is that in which the liar's replies of these are missing."""

    def lie_then(number, vectors, claims):
        if when(number):
            lie(vectors, claims)

    result = run_with(way, make(name, **options), objectives, rounds, lie_then, liar=liar)
    expected = without_liar(make(name, **options), objectives, rounds, when, liar=liar)
    np.testing.assert_array_equal(flat(result.arrays), flat(expected.arrays))
    rows = [(row.round, row.partition_id) for row in result.left_out if row.round > 0]
    assert rows == [(number, liar) for number in range(1, rounds + 1) if when(number)]


def more_work(vectors, claims):
    claims["local-steps"] = int(claims["local-steps"] * 900)
    claims["elapsed"] *= 900


def heavy(vectors, claims):
    claims["num-examples"] = int(claims["num-examples"] * 900)
    for vector in vectors.values():
        vector *= -900.0


def of_length(length):
    def lie(vectors, claims):
        for vector in vectors.values():
            vector[:] = length

    return lie


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("lie", "name"),
    [(more_work, name) for name in ("FedDualAvg", "FedMid", "FedDAGT", "DFedDA")]
    + [(heavy, name) for name in ("FedDualAvg", "FedMid", "FedDAGT", "LocalSGD", "FeDualEx")],
)
def test_a_lie_in_every_round_is_a_reply_that_did_not_come(lie, name, way):
    is_as_if_missing(way, name, lie, lambda number: number > 0)


@pytest.mark.parametrize(("when", "length", "way"), [(1, 1e9, "messages"), (3, 1e300, "messages"), (3, 1e9, "uplinks")])
@pytest.mark.parametrize("name", ["FedDualAvg", "FedMid", "FedDAGT", "DFedDAGT", "FedDR"])
def test_an_absurd_reply_of_one_of_four_nodes_is_missing(way, name, when, length):
    own = {"objectives": OBJECTIVES[1:5], "liar": 2, "rounds": 4}
    is_as_if_missing(way, name, of_length(length), lambda number: number == when, **own)


def without_examples(*rounds):
    return in_messages(lambda number, vectors, claims: number in rounds and claims.update({"num-examples": 0}))


def test_a_first_answer_without_examples_sets_no_weight():
    strategy = make("FedDR")
    run(strategy, OBJECTIVES, 4, mods=[without_examples(1)])
    assert strategy.memories.members[(0, LIAR)].examples == 30.0


@pytest.mark.parametrize("partition", [-1, 2**63 - 1, -(2**62)])
@pytest.mark.parametrize("name", ["FedDAGT", "DFedDAGT", "FedDualAvg"])
def test_a_partition_id_that_is_none_does_not_end_the_run(name, partition, tmp_path):
    claiming = in_messages(
        lambda n, vectors, claims: claims.update({"partition-id": partition}), kind="query.partition"
    )

    def play(rounds, **more):
        strategy = make(name, participation=Participation(node_timeout=0.0))
        return run(strategy, OBJECTIVES, rounds, mods=[claiming], grid=Discreet, **more)

    path = tmp_path / f"{name}{partition}.npz"
    play(3, callbacks=[Checkpoint(path)])
    assert play(4, resume=path).train_metrics_clientapp[4]["num-replies"] == 10


# --- arrays that pass through -----------------------------------------------------------------------------------------


class Counting(LeastSquares):
    """A loss with running statistics and a counter, as batch normalisation has."""

    said = None

    def load_buffers(self, buffers):
        """It counts from what it is sent."""

    def buffers(self):
        return self.said


def with_buffers(said, **options):
    """Return what the server has of arrays that pass through, after a round in which clients say so."""
    start = {**numpy_of(start_arrays()), "norm.running_mean": np.zeros(2), "norm.count": np.full(2, 5)}
    objectives = [Counting(own.features, own.targets) for own in OBJECTIVES[: len(said)]]
    for own, (mean, count) in zip(objectives, said, strict=True):
        own.layout = Layout.from_arrays(start, pass_through=("norm.*",))
        own.said = {"norm.running_mean": np.full(2, mean), "norm.count": np.full(2, count)}
    strategy = FedDualAvg(client_lr=0.1, arrays=Arrays(pass_through=("norm.*",)), fraction_evaluate=0.0, **options)
    result = run(strategy, objectives, 1, start=arrays_of(start))
    assert result.train_metrics_clientapp[1]["skipped"] == 0
    found = [result.arrays[name].numpy()[0] for name in ("norm.running_mean", "norm.count")]
    return (*found, {row.partition_id for row in result.left_out})


def test_changes_of_buffers_are_bounded_and_counters_take_the_median():
    mean, count, left_out = with_buffers([(0.1 * m, 9) for m in range(7)] + [(1e6, 9)])
    assert (mean, count, left_out) == (pytest.approx(0.3), 9, {7})
    mean, count, left_out = with_buffers([(0.1, 9), (0.1, 9), (0.1, 2**50), (0.1, 8), (0.1, 9)])
    assert (mean, count, left_out) == (pytest.approx(0.1), 9, {2})
    assert with_buffers([(0.1, 9)] * 4 + [(np.nan, 9)], bounds=Bounds(max_ratio=None))[2] == {4}
    # A mean may well be negative, also where it is so in one reply alone.
    assert with_buffers([(0.1 * m - 0.05, 9) for m in range(8)])[2] == set()


# --- evaluation -------------------------------------------------------------------------------------------------------


def evaluated(change=None, **options):
    app = app_of(
        OBJECTIVES, [in_messages(lambda number, vectors, claims: claims.update(change or {}), kind="evaluate")]
    )
    return simulated(FedDualAvg(client_lr=0.1, work=Steps(2, batch_size=None), **options), app, 3, num_nodes=10)


@pytest.mark.parametrize(
    "lie",
    [{"loss": -1e9}, {"loss": 1e300, "num-examples": 2**39}, {"num-examples": 2**39}, {"num-examples": 2**50}],
    ids=str,
)
def test_one_liar_does_not_own_an_evaluation(lie):
    found = evaluated(lie, bounds=Bounds(max_share=0.5))
    honest = evaluated()
    for number in (1, 2, 3):
        metrics = found.evaluate_metrics_clientapp[number]
        assert (metrics["num-replies"], metrics["num-left-out"]) == (9, 1)
        assert metrics["loss"] == pytest.approx(honest.evaluate_metrics_clientapp[number]["loss"], rel=0.3)
    assert {(row.kind, row.partition_id) for row in found.left_out} == {("evaluate", LIAR)}

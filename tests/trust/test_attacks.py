"""What one client of ten can do: each attack on messages, and below the seam at which messages are read."""

import numpy as np
import pytest
from faulty import Faulty, start_on, with_increment
from flwr.app import Array, ArrayRecord, MetricRecord
from kinks import Distance
from lies_of_one import (
    LIAR,
    in_messages,
    make,
    regressions,
    run,
    run_with,
    without_liar,
)
from problems import Discreet, app_of, clients, flat, start_arrays
from representatives import covered
from together import together

from flwr_fco.callbacks import Checkpoint
from flwr_fco.client_apps import client_app
from flwr_fco.core.layout import Layout
from flwr_fco.core.logs import quiet
from flwr_fco.errors import ClientError, ConfigurationError, DivergedError
from flwr_fco.objectives import LeastSquares
from flwr_fco.simulation import InProcessGrid, simulate
from flwr_fco.strategies import Arrays, Epochs, FedDualAvg, Participation, Steps, Trimmed

WAYS = ("messages", "uplinks")
AGGREGATIONS = ("mean", Trimmed(), "median", "geometric-median")
OBJECTIVES = regressions()


def left_out_of(result, number=None):
    return [row for row in result.left_out if row.round > 0 and number in (None, row.round)]


def same_as_missing(way, name, lie, rounds=6, when=None, **options):
    """The lie changes no bit: the run is that in which the liar's replies are missing."""
    when = when or (lambda number: number > 0)

    def lie_then(number, vectors, claims):
        if when(number):
            lie(number, vectors, claims)

    result = run_with(way, make(name, **options), OBJECTIVES, rounds, lie_then)
    expected = without_liar(make(name, **options), OBJECTIVES, rounds, when)
    np.testing.assert_array_equal(flat(result.arrays), flat(expected.arrays))
    reasons = left_out_of(result)
    assert {row.partition_id for row in reasons} == {LIAR}
    assert [row.round for row in reasons] == [n for n in range(1, rounds + 1) if when(n)]
    return result


# --- A: whose loop it is ----------------------------------------------------------------------------------------------


def more_work(number, vectors, claims):
    claims["local-steps"] = int(claims["local-steps"] * 900)
    claims["elapsed"] *= 900


@together("way", WAYS)
@together("name", ["FedDualAvg", "FedMid", "FedDAGT", "DFedDA"])
def test_a_client_of_ours_does_what_it_was_asked_for(way, name):
    same_as_missing(way, name, more_work)


# --- B: few replies ---------------------------------------------------------------------------------------------------


def an_absurd_reply_is_as_if_missing(way, name, when, length):
    def lie(number, vectors, claims):
        if number == when:
            for vector in vectors.values():
                vector[:] = length

    objectives = OBJECTIVES[1:5]
    result = run_with(way, make(name), objectives, 4, lie, liar=2)
    expected = without_liar(make(name), objectives, 4, lambda number: number == when, liar=2)
    np.testing.assert_array_equal(flat(result.arrays), flat(expected.arrays))
    assert [row.round for row in left_out_of(result)] == [when]


@together(("when", "length", "way"), [(1, 1e9, "messages"), (3, 1e300, "messages"), (3, 1e9, "uplinks")])
@together("name", ["FedDualAvg", "FedMid", "FedDAGT", "DFedDAGT", "FedDR"])
def test_one_of_four_nodes_with_an_absurd_reply(way, name, when, length):
    an_absurd_reply_is_as_if_missing(way, name, when, length)


# --- C: weight times length -------------------------------------------------------------------------------------------


def heavy(number, vectors, claims):
    claims["num-examples"] = int(claims["num-examples"] * 900)
    for vector in vectors.values():
        vector *= -900.0


@together("way", WAYS)
@together("name", ["FedDualAvg", "FedMid", "FedDAGT", "LocalSGD", "FeDualEx"])
def test_a_heavy_client_with_a_long_increment_does_not_count(way, name):
    same_as_missing(way, name, heavy)


@together(("aggregation", "work"), covered(AGGREGATIONS, [Steps(4, batch_size=None), Epochs(1, batch_size=10)]))
def test_nor_in_any_centre(aggregation, work):
    same_as_missing("messages", "FedDualAvg", heavy, aggregation=aggregation, work=work)


def test_raise_is_the_default_and_holds_the_result_and_the_last_sound_model():
    assert FedDualAvg().on_divergence == "raise"
    with pytest.raises(ConfigurationError, match="on_divergence='stop'"):
        FedDualAvg(on_divergence="stop")
    strategy = FedDualAvg(client_lr=30.0, work=Steps(1, batch_size=None), fraction_evaluate=0.0)
    with pytest.raises(DivergedError) as caught:
        run(strategy, OBJECTIVES, 60)
    assert set(caught.value.result.train_metrics_clientapp) == set(range(1, caught.value.server_round + 1))
    assert np.isfinite(flat(caught.value.arrays)).all()


# --- D: partitions ----------------------------------------------------------------------------------------------------


def claiming(partition, liar=LIAR):
    def mod(message, context, call_next):
        reply = call_next(message, context)
        if message.metadata.message_type == "query.partition" and context.node_config["partition-id"] == liar:
            reply.content["metrics"]["partition-id"] = partition
        return reply

    return mod


@together("partition", [-1, 2**63 - 1, -(2**62)])
@together("name", ["FedDAGT", "DFedDAGT", "FedDualAvg"])
def test_a_partition_id_that_is_none_does_not_end_the_run(name, partition, tmp_path):
    def play(rounds, **more):
        strategy = make(name, participation=Participation(node_timeout=0.0))
        options = {"mods": [claiming(partition)], "grid": Discreet, **more}
        return run(strategy, OBJECTIVES, rounds, **options)

    path = tmp_path / f"{name}{partition}.npz"
    play(3, callbacks=[Checkpoint(path)])
    assert play(4, resume=path).train_metrics_clientapp[4]["num-replies"] == 10


# --- E: buffers -------------------------------------------------------------------------------------------------------


PASSING = ("norm.*",)


class Counting(LeastSquares):
    """A loss with running statistics and a counter, as batch normalisation has."""

    said = None

    def load_buffers(self, buffers):
        """It counts from what it is sent."""

    def buffers(self):
        return self.said


def with_buffers(said, aggregation="mean"):
    """Return what the server has of arrays that pass through, after a round in which clients say so."""
    start = {**start_arrays(), "norm.running_mean": Array(np.zeros(2)), "norm.count": Array(np.full(2, 5))}
    objectives = [Counting(own.features, own.targets) for own in OBJECTIVES[: len(said)]]
    for own, (mean, count) in zip(objectives, said, strict=True):
        own.layout = Layout.from_arrays({name: array.numpy() for name, array in start.items()}, pass_through=PASSING)
        own.said = {"norm.running_mean": np.full(2, mean), "norm.count": np.full(2, count)}
    options = {"aggregation": aggregation, "arrays": Arrays(pass_through=PASSING), "fraction_evaluate": 0.0}
    result = run(FedDualAvg(client_lr=0.1, **options), objectives, 1, start=ArrayRecord(start))
    assert result.train_metrics_clientapp[1]["skipped"] == 0
    found = {name: result.arrays[name].numpy()[0] for name in ("norm.running_mean", "norm.count")}
    return found["norm.running_mean"], found["norm.count"], {row.partition_id for row in result.left_out}


def test_changes_of_buffers_are_bounded_and_counters_take_the_median():
    mean, count, left_out = with_buffers([(0.1 * m, 9) for m in range(7)] + [(1e6, 9)])
    assert (mean, count, left_out) == (pytest.approx(0.3), 9, {7})
    mean, count, left_out = with_buffers([(0.1, 9), (0.1, 9), (0.1, 2**50), (0.1, 8), (0.1, 9)])
    assert (mean, count, left_out) == (pytest.approx(0.1), 9, {2})
    # A mean may well be negative, also where it is so in one reply alone.
    assert with_buffers([(0.1 * m - 0.05, 9) for m in range(8)])[2] == set()


@together("rule", [Trimmed(0.2), "median", "geometric-median"])
def test_a_robust_centre_acts_on_buffers_too(rule):
    mean, _, left_out = with_buffers([(value, 9) for value in (1.0, 1.1, 0.9, 1.0, 50.0)], rule)
    assert abs(mean - 1.0) <= 0.11
    assert left_out == set()


# --- F: bytes that repeat honestly ---------------------------------------------------------------------------------


NIGHTLY = [pytest.param(name, marks=pytest.mark.nightly) for name in ("FedDualAvg", "LocalSGD", "DFedDAGT")]


@pytest.mark.parametrize("name", ["FedDAGT", "FedDR", *NIGHTLY])
def test_honest_converged_runs_repeat_bytes_and_count(name):
    options = {"step": 0.5} if name == "FedDR" else {}
    # Increments are those of rounding from round 90 on.
    result = run(make(name, **options), OBJECTIVES, 160)
    assert result.left_out == []


def test_rounds_that_are_skipped_repeat_bytes_and_count():
    class Half(InProcessGrid):
        def send_and_receive(self, messages, *, timeout=None):
            replies = super().send_and_receive(messages, timeout=timeout)
            train = replies and replies[0].metadata.message_type == "train"
            return replies[:5] if train and 3 <= int(replies[0].metadata.group_id) <= 5 else replies

    result = run(make("FedDualAvg", participation=Participation(min_replies=8)), OBJECTIVES, 8, grid=Half)
    assert {row.reason for row in result.left_out} == {"no reply"}


def test_gradients_that_are_zero_or_constant_count():
    """As of a loss with kinks: increments are 0 in round after round, or constant."""

    class Slope(Distance):
        def gradient(self, w, batch=None, out=None):
            return np.multiply(1.0, self.point, out=out)

    losses = [Slope(np.array([slope])) for slope in (0.0, 0.0, -1e-3, 2e-3)]
    app = client_app(lambda context: losses[int(context.node_config["partition-id"])])
    start = {"coefficients": np.ones(1)}
    strategy = FedDualAvg(client_lr=0.01, work=Steps(2, batch_size=None), fraction_evaluate=0.0)
    result = simulate(strategy, app, num_nodes=4, num_rounds=30, initial_arrays=start, progress=False)
    assert result.left_out == []


# --- I: texts ---------------------------------------------------------------------------------------------------------


def test_metric_names_and_arrays_names_are_cut_too():
    fault = with_increment(lambda arrays: {"y" * 10**6: next(iter(arrays.values()))})
    result = start_on(Faulty(app_of(clients()), 4, fault), FedDualAvg(client_lr=0.02, fraction_evaluate=0.0))
    assert len(result.left_out) == 1
    assert len(result.left_out[0].reason) < 1000


def test_the_table_of_what_was_left_out_is_bounded(monkeypatch):
    monkeypatch.setattr("flwr_fco.strategies.replies.MOST_ROWS", 5)
    fault = with_increment(lambda arrays: {})
    strategy = FedDualAvg(client_lr=0.02, fraction_evaluate=0.0)
    result = start_on(Faulty(app_of(clients()), 4, fault, rounds=range(99)), strategy, rounds=12)
    assert len(result.left_out) == 6
    assert "more" in result.left_out[-1].reason
    assert [m["num-left-out"] for m in result.train_metrics_clientapp.values()] == [1] * 12


# --- K: weights of clients that remember ------------------------------------------------------------------------------


def keeps_its_first_weight(name, number_of_examples):
    """A client that remembers weighs what it said first."""

    def lie(number, vectors, claims):
        claims["num-examples"] = number_of_examples

    same_as_missing("messages", name, lie, when=lambda number: number > 0 and number % 2 == 0)


@together("number_of_examples", [0, 15])
@together("name", ["FedDR", "FedDAGT", "Scaffold"])
def test_a_client_that_remembers_weighs_what_it_said_first(name, number_of_examples):
    keeps_its_first_weight(name, number_of_examples)


def skips_the_round(name):
    """A method that needs everybody, with a client whose second answer is about no examples."""

    def lie(number, vectors, claims):
        if number in (4, 7):
            claims["num-examples"] = 0

    strategy = make(name, **({"nu": 0.5, "smoothness": 1.0} if name == "DualFL" else {}))
    result = run(strategy, OBJECTIVES, 10, mods=[in_messages(lie)])
    skipped = [number for number, m in result.train_metrics_clientapp.items() if m["skipped"]]
    assert skipped == [4, 7]


def test_where_everybody_must_answer_the_round_is_skipped():
    skips_the_round("DualFL")


def test_nobody_without_examples_is_first():
    """A first answer of 0 examples does not count, and the client weighs what it says next."""

    def lie(number, vectors, claims):
        if number == 1:
            claims["num-examples"] = 0

    strategy = make("FedDR")
    run(strategy, OBJECTIVES, 4, mods=[in_messages(lie)])
    assert strategy.memories.members[(0, LIAR)].examples == 30.0


# --- L: evaluation ----------------------------------------------------------------------------------------------------


def evaluating(change):
    def mod(message, context, call_next):
        reply = call_next(message, context)
        if message.metadata.message_type == "evaluate" and context.node_config["partition-id"] == LIAR:
            content = reply.content.copy()
            metrics = dict(content["metrics"])
            change(metrics)
            content["metrics"] = MetricRecord(metrics)
            reply.content = content
        return reply

    return mod


def evaluated(mods, rounds=3, **options):
    strategy = FedDualAvg(client_lr=0.1, work=Steps(2, batch_size=None), **options)
    app = client_app(lambda context: OBJECTIVES[int(context.node_config["partition-id"])], mods=list(mods))
    with quiet(50):
        return simulate(strategy, app, num_nodes=10, num_rounds=rounds, initial_arrays=start_arrays(), progress=False)


@pytest.mark.parametrize("examples", [None, 2**40])
@pytest.mark.parametrize("loss", [1e9, -1e9, 1e300])
def test_one_liar_does_not_own_an_evaluation(loss, examples):
    def change(metrics):
        metrics["loss"] = loss
        if examples is not None:
            metrics["num-examples"] = examples

    found = evaluated([evaluating(change)])
    honest = evaluated([])
    for number in (1, 2, 3):
        metrics = found.evaluate_metrics_clientapp[number]
        assert (metrics["num-replies"], metrics["num-left-out"]) == (9, 1)
        assert metrics["loss"] == pytest.approx(honest.evaluate_metrics_clientapp[number]["loss"], rel=0.3)
    assert {(row.kind, row.partition_id) for row in found.left_out} == {("evaluate", LIAR)}


def test_examples_alone_do_not_either():
    found = evaluated([evaluating(lambda metrics: metrics.update({"num-examples": 2**39}))])
    assert found.evaluate_metrics_clientapp[3]["num-left-out"] == 1


def test_evaluations_weigh_as_training_does():
    change = evaluating(lambda metrics: metrics.update({"num-examples": 3000}))
    found, honest = (evaluated(mods, weighting="uniform").evaluate_metrics_clientapp[3] for mods in ([change], []))
    assert found["loss"] == pytest.approx(honest["loss"], rel=1e-12)


# --- low --------------------------------------------------------------------------------------------------------------


@together(("key", "value"), [("stamp", 2.5), ("elapsed", float("nan")), ("elapsed", "ten"), ("client-lr", 0.0)])
def test_numbers_of_a_server_that_are_none_are_an_error_in_words(key, value):
    def mod(message, context, call_next):
        if message.metadata.message_type == "train":
            message.content["fco"][key] = value
        return call_next(message, context)

    with pytest.raises(ClientError, match=rf"the server says .*{key}={value!r}"):
        run(make("FedDAGT"), OBJECTIVES, 1, mods=[mod])


def test_lies_are_honest_where_nobody_lies():
    """The helper changes nothing by itself."""
    plain = run(make("FedDualAvg"), OBJECTIVES, 5)
    for way in WAYS:
        same = run_with(way, make("FedDualAvg"), OBJECTIVES, 5, lambda number, vectors, claims: None)
        assert flat(plain.arrays).tobytes() == flat(same.arrays).tobytes()

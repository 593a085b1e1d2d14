"""What one client of ten can do: each attack on messages, and below the seam at which messages are read."""

import numpy as np
import pytest
from faulty import Faulty, start_on, with_increment
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
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
from problems import app_of, changed, clients, flat, start_arrays, trackers_of
from representatives import covered
from together import together

from flwr_fco.algorithms.contract.replies import Mean
from flwr_fco.client_apps import client_app
from flwr_fco.errors import ConfigurationError, DivergedError
from flwr_fco.regularizers import L1
from flwr_fco.server.replies.bounds import IncrementBounds
from flwr_fco.server.replies.checks import averaged_pass_through
from flwr_fco.simulation import InProcessGrid, simulate
from flwr_fco.strategies import Average, Epochs, FedDAGT, FedDualAvg, Participation, Steps, Trimmed, run_of
from flwr_fco.wire import flower as _flower
from flwr_fco.wire.protocol import Uplink

WAYS = ("messages", "uplinks")
AGGREGATIONS = ("mean", Trimmed(), "median", "geometric-median")
OBJECTIVES = regressions()


def left_out_of(result, number=None):
    return [row for row in result.left_out if row.round > 0 and number in (None, row.round)]


def same_as_missing(way, name, lie, rounds=6, when=None, **options):
    """The lie changes no bit: the run is that in which the liar's replies are missing."""
    # Who has never given a good answer is always sent messages.
    when = when or (lambda number: number > (way == "uplinks"))

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


@together("way", WAYS)
@together("aggregation", AGGREGATIONS)
def test_no_centre_is_moved_by_it(way, aggregation):
    same_as_missing(way, "FedDualAvg", more_work, aggregation=aggregation)


@pytest.mark.parametrize("aggregation", ["trimmed", "median", "geometric-median"])
def test_elapsed_takes_the_centre_of_the_increments(aggregation):
    said = [Uplink({"increment": np.array([m + 1.0])}, 1.0, 1, weight=0.1) for m in range(9)]
    liar = Uplink({"increment": np.array([1.0])}, 9.0, 9, weight=0.1)
    _, elapsed = Mean(aggregation=aggregation)([*said, liar])
    assert elapsed == 1.0


def fedavg_app(objectives, lie=None):
    """A FedAvg ClientApp that knows nothing of this package: three full gradient steps, and what it says of them."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        partition = int(context.node_config["partition-id"])
        own, w = objectives[partition], flat(message.content["arrays"])
        for _ in range(3):
            w = w - 0.1 * own.gradient(w)
        claims = {"num-examples": own.num_examples, "local-steps": 3}
        arrays = start_arrays(start=w)
        if lie is not None and partition == 1:
            lie(claims)
        content = RecordDict({"arrays": arrays, "metrics": MetricRecord(claims)})
        return Message(content, reply_to=message)

    return app


def unmodified(app, aggregation="mean", rounds=12, number=10):
    strategy = FedDualAvg(
        regularizer=L1(0.3),
        client="unmodified",
        client_lr=0.1,
        work=Steps(3),
        aggregation=aggregation,
        fraction_evaluate=0.0,
    )
    with _flower.quiet(50):
        result = simulate(
            strategy, app, num_nodes=number, num_rounds=rounds, initial_arrays=start_arrays(), progress=False
        )
    return flat(result.arrays), result


@pytest.mark.parametrize("number", [4, 6, 10])
def test_steps_of_an_unmodified_client_are_held_against_the_others(number):
    objectives = OBJECTIVES[:6] if number == 6 else OBJECTIVES[3:7] if number == 4 else OBJECTIVES

    def lie(claims):
        claims["local-steps"] *= 900

    model, result = unmodified(fedavg_app(objectives, lie), number=number)
    honest, _ = unmodified(fedavg_app(objectives), number=number)
    assert len(left_out_of(result)) == 12
    assert np.abs(model - honest).max() < 0.5


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


def exploding(rounds, base=FedDualAvg, **options):
    """Return a strategy whose update goes wrong in some rounds, as if a liar had passed all bounds."""

    def aggregate(own, self, problem, state, replies):
        following = own.aggregate(self, problem, state, replies)
        return following._replace(dual=following.dual * 1e9) if problem.round in rounds else following

    kind = changed(base, aggregate=aggregate)
    return kind(client_lr=0.1, work=Steps(4, batch_size=None), fraction_evaluate=0.0, **options)


@pytest.mark.parametrize("output", ["last", Average(), Average(window=4)], ids=str)
def test_rollback_goes_on_from_the_last_sound_state(output):
    options = {"output": output}
    result = run(exploding((5, 9), on_divergence="rollback", **options), OBJECTIVES, 20)
    plain = run(exploding((), **options), OBJECTIVES, 18)
    np.testing.assert_array_equal(flat(result.arrays), flat(plain.arrays))
    assert result.train_metrics_clientapp[5]["rolled-back"] == 1
    assert "rolled-back" not in result.train_metrics_clientapp[6]


def test_rollback_restores_what_clients_remember():
    strategy = exploding((5,), FedDAGT, on_divergence="rollback")
    result = run(strategy, OBJECTIVES, 60)
    trackers = np.array(list(trackers_of(strategy).values()))
    assert np.abs(trackers.mean(axis=0)).max() < 1e-10
    pooled = run(FedDAGT(client_lr=0.1, work=Steps(4, batch_size=None), fraction_evaluate=0.0), OBJECTIVES, 59)
    np.testing.assert_allclose(flat(result.arrays), flat(pooled.arrays), rtol=0, atol=1e-9)


def test_rollback_gives_up_after_three_times_in_a_row():
    with pytest.raises(DivergedError) as caught:
        run(exploding(range(5, 99), on_divergence="rollback"), OBJECTIVES, 20)
    assert caught.value.server_round == 8
    assert caught.value.good_round == 4


# --- D: partitions ----------------------------------------------------------------------------------------------------


class Asking(InProcessGrid):
    """A grid that does not know partitions, as Flower's: the nodes say them."""

    def __init__(self, app, num_nodes):
        super().__init__(app, num_nodes)
        self.hidden = self.partition_ids
        del self.partition_ids

    def _deliver(self, message):
        self.partition_ids = self.hidden
        try:
            return super()._deliver(message)
        finally:
            del self.partition_ids


def claiming(partition, liar=LIAR):
    def mod(message, context, call_next):
        reply = call_next(message, context)
        if message.metadata.message_type == "query.partition" and context.node_config["partition-id"] == liar:
            reply.content["metrics"]["partition-id"] = partition
        return reply

    return mod


@pytest.mark.parametrize("partition", [-1, 2**63 - 1, -(2**62)])
@pytest.mark.parametrize("name", ["FedDAGT", "DFedDAGT", "FedDualAvg"])
def test_a_partition_id_that_is_none_does_not_end_the_run(name, partition, tmp_path):
    strategy = make(name, participation=Participation(node_timeout=0.0))
    run(strategy, OBJECTIVES, 3, mods=[claiming(partition)], grid=Asking)
    run_of(strategy).save(tmp_path / "state.npz")
    run_of(strategy).load(tmp_path / "state.npz")


# --- E: buffers -------------------------------------------------------------------------------------------------------


def with_buffers(*values, dtype=np.float32, examples=1.0):
    return [
        Uplink({"increment": np.ones(2)}, 1.0, 1, examples=examples, weight=1 / len(values), pass_through=own)
        for own in values
    ]


def test_changes_of_buffers_are_bounded_and_variances_stay_positive():
    old = {"norm.running_var": np.ones(3, np.float32)}
    said = [{"norm.running_var": np.full(3, 1.0 + 0.1 * m, np.float32)} for m in range(7)]
    liar = {"norm.running_var": np.full(3, -900.0, np.float32)}
    bounds = IncrementBounds(1000.0, None)
    assert list(bounds.objections(with_buffers(*said, liar), passed=old)) == [7]
    huge = {"norm.running_var": np.full(3, 1e6, np.float32)}
    assert list(IncrementBounds(1000.0, None).objections(with_buffers(*said, huge), passed=old)) == [7]
    # A mean may well be negative, also where it is so in one reply alone.
    means = [{"norm.running_mean": np.full(3, 0.1 * m - 0.05, np.float32)} for m in range(8)]
    start = {"norm.running_mean": np.zeros(3, np.float32)}
    assert IncrementBounds(1000.0, None).objections(with_buffers(*means), passed=start) == {}


def test_counters_take_the_median_and_stay_within_bounds():
    old = {"count": np.array(5)}
    said = [{"count": np.array(value)} for value in (9, 9, 8, 2**62, 9)]
    assert int(averaged_pass_through(old, with_buffers(*said))["count"]) == 9
    said = [{"count": np.array(value)} for value in (2**62, 9, 9, 9, 9)]
    assert list(IncrementBounds(1000.0, None).objections(with_buffers(*said), passed=old)) == [0]


@pytest.mark.parametrize("rule", ["trimmed", "median", "geometric-median"])
def test_a_robust_centre_acts_on_buffers_too(rule):
    old = {"mean": np.zeros(2)}
    said = [{"mean": np.full(2, value)} for value in (1.0, 1.1, 0.9, 1.0, 50.0)]
    found = averaged_pass_through(old, with_buffers(*said), aggregation=rule, trim=0.2)["mean"]
    assert np.abs(found - 1.0).max() <= 0.11


def test_an_array_that_no_reply_has_keeps_its_values():
    old = {"mean": np.array([1.5, -2.0]), "count": np.array([3, 4])}
    found = averaged_pass_through(old, with_buffers({}, {"another": np.ones(2)}))
    assert {name: array.tolist() for name, array in found.items()} == {"mean": [1.5, -2.0], "count": [3, 4]}


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
    monkeypatch.setattr("flwr_fco.server.replies.checks.MOST_ROWS", 5)
    fault = with_increment(lambda arrays: {})
    strategy = FedDualAvg(client_lr=0.02, fraction_evaluate=0.0)
    result = start_on(Faulty(app_of(clients()), 4, fault, rounds=range(99)), strategy, rounds=12)
    assert len(result.left_out) == 6
    assert "more" in result.left_out[-1].reason
    assert [m["num-left-out"] for m in result.train_metrics_clientapp.values()] == [1] * 12
    assert all("num-surplus" not in m for m in result.train_metrics_clientapp.values())


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
    with _flower.quiet(50):
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
    weights = dict.fromkeys(range(10), 1.0)
    for options in ({"weighting": "uniform"}, {"weighting": weights}):
        found, honest = evaluated([change], **options), evaluated([], **options)
        assert found.evaluate_metrics_clientapp[3]["loss"] == pytest.approx(
            honest.evaluate_metrics_clientapp[3]["loss"], rel=1e-12
        )


# --- low --------------------------------------------------------------------------------------------------------------


@together("key", ["epoch", "accepted"])
@together("value", [1e300, float("nan"), "ten", 2.5])
def test_a_servers_stamp_that_is_none_is_an_error_in_words(key, value):
    """The reply could not be serialised, which ends the client's process."""

    def mod(message, context, call_next):
        message.content["fco"][key] = value
        return call_next(message, context)

    strategy = make("FedDAGT")
    strategy.tracker_start = "zero"
    with pytest.raises(Exception, match="stamp"):
        run(strategy, OBJECTIVES, 1, mods=[mod])


def test_lies_are_honest_where_nobody_lies():
    """The helper changes nothing by itself."""
    plain = run(make("FedDualAvg"), OBJECTIVES, 5)
    for way in WAYS:
        same = run_with(way, make("FedDualAvg"), OBJECTIVES, 5, lambda number, vectors, claims: None)
        assert flat(plain.arrays).tobytes() == flat(same.arrays).tobytes()

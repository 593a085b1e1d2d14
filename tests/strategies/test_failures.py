"""What can go wrong with a reply (every row of Flower's failure table that a strategy can meet)."""

import logging
import re

import numpy as np
import pytest
from faulty import Faulty, start_on, strategy, with_increment, with_metrics
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict
from problems import FEATURES, app_of, clients, flat, run, simulated, start_arrays

from flwr_fco.client_apps import client_app
from flwr_fco.errors import ClientError, ConfigurationError
from flwr_fco.simulation import InProcessGrid, simulate
from flwr_fco.strategies import (
    Epochs,
    FedDualAvg,
    Participation,
)

D = FEATURES + 1


def poison(value):
    def change(arrays):
        arrays["increment"][2] = value
        return arrays

    return with_increment(change)


def error_of_the_superlink(message, reply):
    """A dead SuperNode: the SuperLink answers under its own id; only the message id tells for whom."""
    answer = Message(error=Error(5, "Node unavailable"), reply_to=message)
    answer.metadata.__dict__["_src_node_id"] = 1
    return [answer]


def answer_of_another_round(message, reply):
    reply.metadata.__dict__["_group_id"] = "1"
    return [reply]


def two_array_records(message, reply):
    content = reply.content.copy()
    content["more"] = ArrayRecord({"x": Array(np.zeros(2))})
    return [Message(content=content, reply_to=message)]


def two_metric_records(message, reply):
    content = reply.content.copy()
    content["more"] = MetricRecord({"x": 1})
    return [Message(content=content, reply_to=message)]


def pickled(message, reply):
    content = reply.content.copy()
    content["arrays"] = ArrayRecord({"increment": Array("float64", (D,), "pickle", b"cos\nsystem\n")})
    return [Message(content=content, reply_to=message)]


def garbled(message, reply):
    content = reply.content.copy()
    content["arrays"] = ArrayRecord({"increment": Array("float64", (D,), "numpy.ndarray", b"not an npy file")})
    return [Message(content=content, reply_to=message)]


def without(name):
    return with_metrics(lambda metrics: {key: value for key, value in metrics.items() if key != name})


FAULTS = {
    "the client raised": (lambda m, r: [Message(error=Error(2, "boom"), reply_to=m)], "boom"),
    "the process died, simulation": (lambda m, r: [Message(error=Error(0, "actor died"), reply_to=m)], "actor died"),
    "the process died, deployment": (lambda m, r: [Message(error=Error(8, "unavailable"), reply_to=m)], "error 8"),
    "the SuperNode was killed": (error_of_the_superlink, "node 1: error 5: Node unavailable"),
    "timeout or no reply": (lambda m, r: [], None),
    "NaN": (poison(np.nan), "1 NaN or infinite"),
    "infinity": (poison(np.inf), "1 NaN or infinite"),
    "another shape": (with_increment(lambda a: {"increment": a["increment"][:-1]}), r"float64\[6\], expected"),
    "a broadcastable shape": (with_increment(lambda a: {"increment": a["increment"][:1]}), r"float64\[1\], expected"),
    "another dtype": (with_increment(lambda a: {"increment": a["increment"].astype(np.int64)}), "int64"),
    "another key": (with_increment(lambda a: {"weights": a["increment"]}), "weights"),
    "a missing array": (with_increment(lambda a: {}), "expected"),
    "one array too many": (with_increment(lambda a: {**a, "extra": a["increment"]}), "extra"),
    "two ArrayRecords": (two_array_records, "exactly one ArrayRecord"),
    "two MetricRecords": (two_metric_records, "exactly one MetricRecord"),
    "no weight": (
        with_metrics(lambda m: {k: v for k, v in m.items() if k != "num-examples"}),
        "reports .* examples; expected",
    ),
    "a negative weight": (
        with_metrics(lambda m: {**m, "num-examples": -3}),
        "reports .* examples; expected",
    ),
    "a weight that is NaN": (
        with_metrics(lambda m: {**m, "num-examples": float("nan")}),
        "reports .* examples; expected",
    ),
    "a list as weight": (
        with_metrics(lambda m: {**m, "num-examples": [1, 2]}),
        "reports .* examples; expected",
    ),
    "no elapsed": (without("elapsed"), "elapsed"),
    "elapsed zero": (with_metrics(lambda m: {**m, "elapsed": 0.0}), "elapsed"),
    "another round's stamp": (answer_of_another_round, "answers round 1"),
    "not NumPy's format": (pickled, "pickle"),
    "bytes that are no array": (garbled, "cannot be read"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_bad_reply_is_left_out_logged_and_counted(name, caplog):
    fault, reason = FAULTS[name]
    result = start_on(Faulty(app_of(clients()), 4, fault), strategy())
    metrics = result.train_metrics_clientapp
    assert [metrics[r]["num-left-out"] for r in (1, 2, 3)] == [0, 1, 0]
    assert [metrics[r]["num-replies"] for r in (1, 2, 3)] == [4, 3, 4]
    assert np.isfinite(flat(result.arrays)).all()
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING and "left out" in r.getMessage()]
    if reason is not None:
        assert len(warnings) == 1
        assert re.search(reason, warnings[0])
    # What is left is the round of the other three clients.
    expected = start_on(Faulty(app_of(clients()), 4, lambda m, r: []), strategy())
    np.testing.assert_array_equal(flat(result.arrays), flat(expected.arrays))


def test_a_second_answer_of_the_same_node_is_left_out():
    twice = start_on(Faulty(app_of(clients()), 4, lambda m, r: [r, r]), strategy())
    once = start_on(Faulty(app_of(clients()), 4, lambda m, r: [r]), strategy())
    np.testing.assert_array_equal(flat(twice.arrays), flat(once.arrays))


def test_an_answer_from_a_node_that_was_not_asked_is_left_out():
    def stranger(message, reply):
        reply.metadata.__dict__["_src_node_id"] = 999
        reply.metadata.__dict__["_reply_to_message_id"] = "no such message"
        return [reply]

    result = start_on(Faulty(app_of(clients()), 4, stranger), strategy())
    assert result.train_metrics_clientapp[2]["num-left-out"] == 1


def test_too_few_good_replies_leave_the_state_as_it_is():
    seen = []
    chosen = strategy(participation=Participation(min_replies=4))
    result = start_on(
        Faulty(app_of(clients()), 4, poison(np.nan)),
        chosen,
        callbacks=[lambda n, a, m: seen.append((chosen.state, flat(a)))],
    )
    assert seen[0][0] is seen[1][0]
    np.testing.assert_array_equal(seen[0][1], seen[1][1])
    assert [result.train_metrics_clientapp[r]["skipped"] for r in (1, 2, 3)] == [0, 1, 0]
    assert chosen.state.round == 2


def test_no_good_reply_at_all_still_gives_the_initial_arrays():
    everywhere = Faulty(app_of(clients()), 4, poison(np.nan), rounds=(1, 2, 3), nodes=range(10))
    result = start_on(everywhere, strategy(on_divergence="warn"))
    np.testing.assert_array_equal(flat(result.arrays), np.zeros(D))
    assert all(result.train_metrics_clientapp[r]["skipped"] == 1 for r in (1, 2, 3))


def test_weights_that_sum_to_zero_skip_the_round():
    nobody = with_metrics(lambda m: {**m, "num-examples": 0})
    result = start_on(Faulty(app_of(clients()), 4, nobody, nodes=range(10)), strategy())
    assert [result.train_metrics_clientapp[r]["skipped"] for r in (1, 2, 3)] == [0, 1, 0]


# --- evaluation ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        with_metrics(lambda m: {**m, "loss": float("nan")}),
        with_metrics(lambda m: {k: v for k, v in m.items() if k != "num-examples"}),
        lambda m, r: [Message(error=Error(2, "boom"), reply_to=m)],
        lambda m, r: [],
        two_metric_records,
    ],
    ids=["NaN", "no weight", "error", "absent", "two records"],
)
def test_bad_evaluations_are_left_out(fault):
    grid = Faulty(app_of(clients()), 4, fault, kind="evaluate")
    result = start_on(grid, strategy(fraction_evaluate=1.0))
    metrics = result.evaluate_metrics_clientapp
    assert [metrics[r]["num-left-out"] for r in (1, 2, 3)] == [0, 1, 0]
    assert np.isfinite(metrics[2]["loss"])


def test_odd_metrics_do_not_end_the_run():
    odd = with_metrics(lambda m: {**m, "loss": [1.0, 2.0]})
    result = start_on(Faulty(app_of(clients()), 4, odd, kind="evaluate"), strategy(fraction_evaluate=1.0))
    others = start_on(Faulty(app_of(clients()), 4, lambda m, r: [], kind="evaluate"), strategy(fraction_evaluate=1.0))
    mean = others.evaluate_metrics_clientapp[2]["loss"]
    assert result.evaluate_metrics_clientapp[2]["loss"] == pytest.approx(mean, rel=1e-14)


# --- errors before anything happens ----------------------------------------------------------------------------------


def test_a_sample_larger_than_the_number_of_nodes_is_refused_at_once():
    with pytest.raises(ConfigurationError, match="min_train_nodes=9"):
        run(strategy(min_train_nodes=9), clients(), 1)
    with pytest.raises(ConfigurationError, match="min_available_nodes=5"):
        run(strategy(min_available_nodes=5), clients(), 1)


def test_waiting_for_nodes_has_a_limit():
    grid = InProcessGrid(app_of(clients()), 4)
    with pytest.raises(ConfigurationError, match="only 4 nodes connected within node_timeout=0"):
        start_on(grid, strategy(min_available_nodes=5, participation=Participation(node_timeout=0.0)))


def test_an_objective_of_another_shape_is_an_error_that_says_so():
    from flwr_fco.objectives import LeastSquares

    other = [LeastSquares(np.ones((4, 3)), np.ones(4))] * 4
    with pytest.raises(ClientError, match="the server's model is"):
        run(strategy(), other, 1)


def test_whole_numbers_as_a_start_point_are_told_apart_from_a_missing_array():
    from flwr_fco.objectives import LeastSquares

    app = client_app(lambda context: LeastSquares(np.ones((4, 3)), np.ones(4)))
    start = {"coefficients": np.zeros(3, dtype=int), "intercept": np.zeros(1)}
    with pytest.raises(ClientError, match=r"no part of the model.*: here coefficients. Give floating-point"):
        simulate(strategy(), app, num_nodes=4, num_rounds=1, initial_arrays=start)


def test_clients_with_other_classes_are_told_of_num_classes():
    from flwr_fco.objectives import MultinomialLogistic

    app = client_app(lambda context: MultinomialLogistic(np.ones((4, 3)), [0, 1, 0, 1]))
    start = {"coefficients": np.zeros((3, 4)), "intercept": np.zeros(4)}
    with pytest.raises(ClientError, match="give all of them the same num_classes="):
        simulate(strategy(), app, num_nodes=4, num_rounds=1, initial_arrays=start)


def test_flowers_differential_privacy_wrappers_are_refused():
    from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping

    wrapped = DifferentialPrivacyServerSideFixedClipping(strategy(), 1.0, 1.0, 4)
    with pytest.raises(ConfigurationError, match="differential-privacy"):
        simulate(wrapped, app_of(clients()), num_nodes=4, num_rounds=1, initial_arrays=start_arrays(), progress=False)


def test_mods_that_clip_are_refused():
    from flwr.clientapp.mod import fixedclipping_mod

    from flwr_fco.client_apps import client_app

    with pytest.raises(ConfigurationError, match="fixedclipping_mod"):
        client_app(lambda context: clients()[0], mods=[fixedclipping_mod])


def test_a_foreign_strategy_gets_an_error_that_names_the_cause():
    from flwr.serverapp.strategy import FedAvg

    with pytest.raises(ClientError, match="comes from a strategy that is not of flwr_fco"):
        simulated(FedAvg(fraction_evaluate=0.0), app_of(clients()), 1)


def test_hooks_out_of_turn_are_refused():
    chosen = strategy()
    grid = InProcessGrid(app_of(clients()), 4)
    start_on(grid, chosen, rounds=1)
    with pytest.raises(ConfigurationError, match="round 7"):
        chosen.aggregate_train(7, [])


def test_a_client_never_returns_none():
    """A handler that returns nothing hangs a SuperNode."""
    app = app_of(clients())
    grid = InProcessGrid(app, 1)
    context = grid.context(2)
    with grid.identity():
        question = Message(content=RecordDict(), dst_node_id=2, message_type="query.partition", group_id="0")
        assert app(question, context).content["metrics"]["partition-id"] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"callbacks": lambda n, a, m: None}, "callbacks is a function; expected a list"),
        ({"callbacks": [lambda number: False]}, "expected a function"),
        ({"evaluate_fn": lambda number, arrays: 0.5}, "evaluate_fn after round 0 returned a float; expected a Metric"),
        ({"client_lr": lambda: 0.1}, "client_lr=.* is a function; expected a number or a function of 1 argument"),
    ],
)
def test_functions_that_a_run_cannot_call_are_named(arguments, message):
    options = {"client_lr": arguments.pop("client_lr", 0.1)}
    with pytest.raises(ConfigurationError, match=message):
        run(FedDualAvg(work=Epochs(1, batch_size=None), **options), clients(), 1, **arguments)


def test_a_run_in_which_nobody_trains_says_so(caplog):
    caplog.set_level(logging.WARNING, logger="flwr")
    result = run(FedDualAvg(fraction_train=0.0, client_lr=0.1), clients(), 3)
    assert not result.train_metrics_clientapp
    assert [record.getMessage() for record in caplog.records] == [
        "configure_train: fraction_train=0.0, so no client trains and the model stays as it is"
    ]


def test_the_only_client_of_a_round_cannot_end_the_run_by_a_reply_without_a_stamp():
    def unstamped(message, reply):
        reply.metadata.group_id = ""
        return [reply]

    chosen = strategy(
        participation=Participation(choose_nodes=lambda number, nodes: nodes[1:2] if number == 2 else nodes)
    )
    result = start_on(Faulty(app_of(clients()), 4, unstamped), chosen)
    assert [row.reason for row in result.left_out if row.round == 2] == ["it answers round without a stamp, this is 2"]
    assert [metrics["skipped"] for metrics in result.train_metrics_clientapp.values()] == [0, 1, 0]

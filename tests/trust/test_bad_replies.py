"""A reply that is not what was asked for is left out, named and counted; the run is that in which it is missing."""

import re
from functools import cache

import numpy as np
import pytest
from faulty import BAD_NODE, Faulty, error, says, scaled, silent, start_on, strategy, with_content, with_increment
from flwr.app import Array, ArrayRecord, MetricRecord
from problems import FEATURES, D, app_of, clients, flat, foreign_app, start_arrays
from representatives import crossed

from flwr_fco.errors import NothingTrainedError
from flwr_fco.simulation import simulate
from flwr_fco.strategies import Bounds, DFedDA, Epochs, FedDAGT, FedDualAvg, FedMid, Participation, Steps

#: Enough to compare with the median of a round; partition 1 is the one with faults, which has 25 examples.
SIZES = (12, 25, 7, 16, 20, 14, 11)
STEPS = 5


def of_the_superlink(message, reply):
    """A dead SuperNode: the SuperLink answers under its own id; only the message's id tells for whom."""
    (answer,) = error(5, "Node unavailable")(message, reply)
    answer.metadata.__dict__["_src_node_id"] = 1
    return [answer]


def stamped(group):
    def fault(message, reply):
        reply.metadata.__dict__["_group_id"] = group
        return [reply]

    return fault


def filled(value):
    return with_increment(lambda arrays: {"increment": np.full_like(arrays["increment"], value)})


def cast(dtype):
    return with_increment(lambda arrays: {"increment": arrays["increment"].astype(dtype)})


def bytes_of(kind, data):
    return with_content(lambda content: {"arrays": ArrayRecord({"increment": Array("float64", (D,), kind, data)})})


def more(record):
    return with_content(lambda content: {"more": record})


NO_NUMBER = "reports .* examples; expected a number from 0 to 1e"
FAULTS = {
    "the client raised": (error(2, "boom"), "error 2: boom"),
    "the process died, deployment": (error(8, "unavailable"), "error 8"),
    "the SuperNode was killed": (of_the_superlink, "error 5: Node unavailable"),
    "no reply": (silent, "no reply"),
    "the stamp of another round": (stamped("1"), "answers round 1, this is 2"),
    "no stamp": (stamped(""), "answers round without a stamp, this is 2"),
    "NaN": (filled(np.nan), "7 NaN or infinite"),
    "infinity": (filled(-np.inf), "7 NaN or infinite"),
    "beyond the floats": (filled(1e200), "overflows"),
    "another shape": (with_increment(lambda a: {"increment": a["increment"][:-1]}), r"float64\[6\], expected"),
    **{f"{dtype}": (cast(dtype), r"expected float64 or float32\[7\]") for dtype in ("float16", "int64")},
    "another name": (with_increment(lambda a: {"weights": a["increment"]}), "weights"),
    "a missing array": (with_increment(lambda a: {}), "expected"),
    "one array too many": (with_increment(lambda a: {**a, "extra": a["increment"]}), "extra"),
    "two ArrayRecords": (more(ArrayRecord({"x": Array(np.zeros(2))})), "exactly one ArrayRecord"),
    "bytes that are no array": (bytes_of("numpy.ndarray", b"not an npy file"), "cannot be read"),
    **{f"{n} examples": (says(num_examples=n), NO_NUMBER) for n in (None, -3, np.nan, [1, 2], 10**15, 10**400)},
    "fewer examples": (says(num_examples=10), f"{STEPS} local steps, the plan asks for 2"),
    "no elapsed": (says(elapsed=None), "elapsed"),
    **{f"elapsed={n}": (says(elapsed=n), "elapsed") for n in (0.0, 1e12, 1e-12, 2e-2 * STEPS * (1 + 1e-6))},
    "half a step": (says(local_steps=0.5), "whole number"),
    "a step more": (says(local_steps=STEPS + 1), f"{STEPS + 1} local steps, the plan asks for {STEPS}"),
    "900 times the work": (says(local_steps=900 * STEPS, elapsed=18.0 * STEPS), "local steps"),
    "1e12 times as long": (scaled(1e12), "max_ratio"),
    "1e300 times as long": (scaled(1e300), "overflows"),
}
STRATEGIES = (FedDualAvg, FedMid, FedDAGT, DFedDA)


def result_of(cls, fault):
    chosen = cls(work=Epochs(1, batch_size=5), fraction_evaluate=0.0, client_lr=0.02)
    return start_on(Faulty(app_of(clients(SIZES)), len(SIZES), fault), chosen, rounds=4)


@cache
def without(cls):
    return flat(result_of(cls, silent).arrays)


@pytest.mark.parametrize(("name", "cls"), crossed(FAULTS, STRATEGIES))
def test_a_bad_reply_is_left_out_logged_and_counted(name, cls, caplog):
    fault, reason = FAULTS[name]
    result = result_of(cls, fault)
    metrics = result.train_metrics_clientapp
    assert [metrics[r]["num-left-out"] for r in (1, 2, 3, 4)] == [0, 1, 0, 0]
    assert [metrics[r]["num-replies"] for r in (1, 2, 3, 4)] == [7, 6, 7, 7]
    rows = [row for row in result.left_out if row.round > 0]
    # A SuperLink answers in a dead node's place, which itself is silent.
    assert [(row.round, row.partition_id, row.kind) for row in rows if row.node_id != 1] == [(2, 1, "train")]
    said = "; ".join(row.reason for row in rows)
    # What clients with a memory weigh is held against what they said first.
    assert re.search(reason, said) or (cls is FedDAGT and "in its first reply" in said)
    assert len(said) < 1000
    assert sum("left out the reply" in line for line in caplog.messages) == (name != "no reply")
    np.testing.assert_array_equal(flat(result.arrays), without(cls))


def test_replies_in_another_float_dtype_count():
    result = result_of(FedDualAvg, cast(np.float32))
    assert result.left_out == []
    exact = result_of(FedDualAvg, lambda message, reply: [reply])
    np.testing.assert_allclose(flat(result.arrays), flat(exact.arrays), atol=20 * np.finfo(np.float32).eps)


def twice(message, reply):
    return [reply, *filled(3.0)(message, reply)]


def stranger(message, reply):
    (other,) = filled(3.0)(message, reply)
    other.metadata.__dict__.update(_src_node_id=99, _reply_to_message_id="no such message")
    return [reply, other]


@pytest.mark.parametrize(
    ("fault", "node", "reason"),
    [(twice, BAD_NODE, "it answered twice; the first answer counts"), (stranger, 99, "this node was not asked")],
)
def test_a_reply_too_many_is_left_out_and_the_first_counts(fault, node, reason):
    result = result_of(FedDualAvg, fault)
    honest = result_of(FedDualAvg, lambda message, reply: [reply])
    np.testing.assert_array_equal(flat(result.arrays), flat(honest.arrays))
    assert [(row.round, row.node_id, row.reason) for row in result.left_out] == [(2, node, reason)]


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf"), 1e13, None])
def test_a_weight_that_is_none_leaves_the_reply_out(weight):
    honest = says(weight=1.0)
    lie = says(weight=weight)

    def fault(message, reply):
        return (lie if message.metadata.dst_node_id == BAD_NODE else honest)(message, reply)

    chosen = FedDualAvg(client_lr=0.02, weighted_by_key="weight", fraction_evaluate=0.0)
    grid = Faulty(app_of(clients()), 4, fault, rounds=range(99), nodes=range(2, 6))
    assert [(row.round, row.node_id) for row in start_on(grid, chosen, rounds=2).left_out] == [(1, 3), (2, 3)]


@pytest.mark.parametrize("work", [{"local_steps": 40}, {"elapsed": 0.3}, {"local_steps": 40, "elapsed": 4.0}])
def test_a_loop_of_ones_own_is_allowed_more_where_the_server_app_says_so(work):
    def reasons(**options):
        chosen = FedDualAvg(client_lr=0.1, work=Epochs(1, batch_size=5), fraction_evaluate=0.0, **options)
        result = start_on(Faulty(app_of(clients((20,) * 4)), 4, says(**work)), chosen)
        return [row.reason for row in result.left_out]

    (said,) = reasons()
    assert re.search(r"local_training .*bounds=Bounds\(own_loops=True\)", said)
    assert reasons(bounds=Bounds(own_loops=True)) == []


@pytest.mark.parametrize(
    ("elapsed", "fine"), [(0.02, True), (1.8, True), (180.0, False), (1e12, False), (1e-12, False)]
)
def test_an_unmodified_client_may_have_a_schedule_but_not_any(elapsed, fine):
    def work(message, context):
        odd = context.node_config["partition-id"] == 1 and message.metadata.group_id == "2"
        return {"local-steps": 10, "elapsed": elapsed if odd else 0.2}

    app = foreign_app(lambda arrays, *_: {"w": arrays["w"] + 0.3 * (1.0 - arrays["w"])}, metrics=work)
    chosen = FedDualAvg(client="unmodified", client_lr=0.02, work=Steps(10), fraction_evaluate=0.0)
    result = simulate(chosen, app, num_nodes=4, num_rounds=3, initial_arrays={"w": np.zeros(3)}, progress=False)
    assert ["elapsed" in row.reason for row in result.left_out] == ([] if fine else [True])


def test_the_table_of_what_was_left_out_is_bounded(monkeypatch):
    monkeypatch.setattr("flwr_fco.strategies.replies.MOST_ROWS", 5)
    grid = Faulty(app_of(clients()), 4, with_increment(lambda arrays: {}), rounds=range(99))
    result = start_on(grid, strategy(), rounds=12)
    assert len(result.left_out) == 6
    assert "more" in result.left_out[-1].reason
    assert [m["num-left-out"] for m in result.train_metrics_clientapp.values()] == [1] * 12


# --- rounds that do not count -----------------------------------------------------------------------------------------

EVERYBODY = {"nodes": range(10)}


@pytest.mark.parametrize(
    ("fault", "nodes", "options"),
    [
        (filled(np.nan), [BAD_NODE], {"participation": Participation(min_replies=4)}),
        (says(num_examples=0), range(10), {}),
        (error(2, "boom"), range(10), {}),
    ],
    ids=["too few replies", "weights of 0", "no good reply"],
)
def test_a_round_that_does_not_count_leaves_the_state_as_it_is(fault, nodes, options):
    seen = []
    chosen = strategy(**options)
    look = [lambda number, arrays, metrics: seen.append((chosen.state, flat(arrays)))]
    result = start_on(Faulty(app_of(clients()), 4, fault, nodes=nodes), chosen, callbacks=look)
    assert seen[0][0] is seen[1][0]
    np.testing.assert_array_equal(seen[0][1], seen[1][1])
    assert [result.train_metrics_clientapp[r]["skipped"] for r in (1, 2, 3)] == [0, 1, 0]
    assert chosen.state.round == 2


def test_a_run_of_which_no_round_counted_is_an_error_with_its_reason():
    """What no round could count ends it after two; anything else is played to the end."""
    shorter = with_increment(lambda arrays: {"increment": arrays["increment"][:-1]})
    broken = error(2, "ZeroDivisionError: division by zero\nTraceback ...")
    refused = error(2, "Traceback ...\nflwr_fco.errors.ConfigurationError: the server asks for batches of 1 rows")
    for fault, said, rounds in (
        (shorter, rf"can count, in 2 rounds .*float64\[{FEATURES}\]", 2),
        (refused, r"can count, in 2 rounds .*the server asks for batches of 1 rows", 2),
        (broken, "12 replies: error 2: ZeroDivisionError", 3),
    ):
        with pytest.raises(NothingTrainedError, match=said) as caught:
            start_on(Faulty(app_of(clients()), 4, fault, rounds=range(9), **EVERYBODY), strategy())
        result = caught.value.result
        assert "\n" not in str(caught.value)
        assert not any("Traceback" in row.reason for row in result.left_out)
        np.testing.assert_array_equal(flat(result.arrays), flat(start_arrays()))
        assert len(result.left_out) == 4 * rounds
        assert [metrics["skipped"] for metrics in result.train_metrics_clientapp.values()] == [1] * rounds


# --- evaluation -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [says(loss=np.nan), says(num_examples=None), error(2, "boom"), silent, more(MetricRecord({"x": 1}))],
    ids=["NaN", "no weight", "error", "absent", "two records"],
)
def test_bad_evaluations_are_left_out(fault):
    result = start_on(Faulty(app_of(clients()), 4, fault, kind="evaluate"), strategy(fraction_evaluate=1.0))
    metrics = result.evaluate_metrics_clientapp
    assert [metrics[r]["num-left-out"] for r in (1, 2, 3)] == [0, 1, 0]
    assert np.isfinite(metrics[2]["loss"])

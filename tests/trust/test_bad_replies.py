"""A reply that is not what was asked for is left out, named and counted; the run is that in which it is missing."""

import logging
import re
from functools import cache, partial

import numpy as np
import pytest
from faulty import BAD_NODE, Faulty, error, says, scaled, silent, start_on, strategy, with_content, with_increment
from flwr.app import Array, ArrayRecord, MetricRecord
from problems import FEATURES, D, app_of, arrays_of, clients, crossed, flat, foreign_app, run, simulated, start_arrays

from flwr_fco.core.validation import printable
from flwr_fco.errors import NothingTrainedError
from flwr_fco.strategies import Bounds, DFedDA, Epochs, Everyone, FedDAGT, FedDualAvg, FedMid, Participation, Steps
from flwr_fco.strategies.replies import LONGEST_NAME, MOST_METRICS, MOST_NUMBERS
from flwr_fco.tables.reports import aligned_columns
from tools import local_superlink

#: Enough to compare with the median of a round; partition 1 is the one with faults, which has 25 examples.
SIZES = (12, 25, 7, 16, 20, 14, 11)
STEPS = 5


def of_the_superlink(message, reply, about="of partition 1"):
    """A dead SuperNode: the SuperLink answers under its own id; only the message's id tells for whom, if it has one."""
    message.metadata.__dict__["_message_id"] = "of partition 1"
    (answer,) = error(5, "Node unavailable")(message, reply)
    answer.metadata.__dict__.update(_src_node_id=1, _reply_to_message_id=about)
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


def more(record):
    return with_content(lambda content: {"more": record})


NO_ARRAY = ArrayRecord({"increment": Array("float64", (D,), "numpy.ndarray", b"not an npy file")})
NO_NUMBER = "reports .* examples; expected a number from 0 to 1e|lacks the metric 'num-examples'.*weighted_by_key="
FAULTS = {
    "the client raised": (error(2, "boom"), "error 2: boom"),
    "the process died, deployment": (error(8, "unavailable"), "error 8"),
    "the SuperNode was killed": (of_the_superlink, "error 5: Node unavailable"),
    "no reply": (silent, "no reply"),
    "the SuperNode has left": (partial(of_the_superlink, about=""), "no reply"),
    "empty": (with_content(lambda content: content.clear() or {}), "got 0"),
    "the stamp of another round": (stamped("1"), "answers round 1, this is 2"),
    "no stamp": (stamped(""), r"without a stamp, this is 2: a hook.s own message has none; change those of super"),
    "NaN": (filled(np.nan), "7 NaN or infinite"),
    "infinity": (filled(-np.inf), "7 NaN or infinite"),
    "beyond the floats": (filled(1e200), "overflows"),
    "another shape": (with_increment(lambda a: {"increment": a["increment"][:-1]}), r"float64\[6\], expected"),
    **{f"{dtype}": (cast(dtype), r"expected float64 or float32\[7\]") for dtype in ("float16", "int64")},
    "another name": (with_increment(lambda a: {"weights": a["increment"]}), "weights"),
    "a missing array": (with_increment(lambda a: {}), "expected"),
    "one array too many": (with_increment(lambda a: {**a, "extra": a["increment"]}), "extra"),
    "two ArrayRecords": (more(arrays_of({"x": np.zeros(2)})), "exactly one ArrayRecord"),
    "bytes that are no array": (with_content(lambda content: {"arrays": NO_ARRAY}), "cannot be read"),
    **{f"{n} examples": (says(num_examples=n), NO_NUMBER) for n in (None, -3, np.nan, [1, 2], 10**15, 10**400)},
    "fewer examples": (says(num_examples=10), f"{STEPS} local steps, the plan asks for 2"),
    **{f"{own} {name}": (says(**{name: own}), f"'{name}' is ") for own, name in ((np.nan, "loss"), (None, "elapsed"))},
    **{f"elapsed={n}": (says(elapsed=n), "elapsed") for n in (0.0, 1e12, 1e-12, 2e-2 * STEPS * (1 + 1e-6))},
    "half a step": (says(local_steps=0.5), "whole number"),
    "a step more": (says(local_steps=STEPS + 1), f"{STEPS + 1} local steps, the plan asks for {STEPS}"),
    "900 times the work": (says(local_steps=900 * STEPS, elapsed=18.0 * STEPS), "local steps"),
    "1e12 times as long": (scaled(1e12), "max_ratio"),
    "1e300 times as long": (scaled(1e300), "overflows"),
}
STRATEGIES = (FedDualAvg, FedMid, FedDAGT, DFedDA)


def struck(fault, chosen=None, num_rounds=3, *, callbacks=(), **where):
    """Run with a fault: at one of four nodes in round 2, unless `where` says otherwise."""
    return start_on(Faulty(app_of(clients()), 4, fault, **where), chosen or strategy(), num_rounds, callbacks=callbacks)


def result_of(cls, fault):
    chosen = cls(work=Epochs(1, batch_size=5), fraction_evaluate=0.0, client_lr=0.02)
    return start_on(Faulty(app_of(clients(SIZES)), len(SIZES), fault), chosen, rounds=3)


@cache
def without(cls):
    return flat(result_of(cls, silent).arrays)


@pytest.mark.parametrize(("name", "cls"), crossed(FAULTS, STRATEGIES))
def test_a_bad_reply_is_left_out_logged_and_counted(name, cls, caplog):
    fault, reason = FAULTS[name]
    result = result_of(cls, fault)
    metrics = result.train_metrics_clientapp
    assert [(metrics[r]["num-left-out"], metrics[r]["num-replies"]) for r in (1, 2, 3)] == [(0, 7), (1, 6), (0, 7)]
    rows = [row for row in result.left_out if row.round > 0]
    assert [(row.round, row.node_id, row.partition_id, row.kind) for row in rows] == [(2, BAD_NODE, 1, "train")]
    said = "; ".join(row.reason for row in rows)
    # What clients with a memory weigh is held against what they said first.
    assert re.search(reason, said) or (cls is FedDAGT and "in its first reply" in said)
    assert len(said) < 1000
    assert sum("left out the reply" in line for line in caplog.messages) == 1
    np.testing.assert_array_equal(flat(result.arrays), without(cls))


def test_replies_in_another_float_dtype_count():
    result = result_of(FedDualAvg, cast(np.float32))
    assert result.left_out == []
    np.testing.assert_allclose(flat(result.arrays), flat(result_of(FedDualAvg, says()).arrays), atol=2.4e-6)


def stranger(message, reply):
    (other,) = filled(3.0)(message, reply)
    other.metadata.__dict__.update(_src_node_id=99, _reply_to_message_id="no such message")
    return [reply, other]


TWICE = lambda *both: [both[1], *filled(3.0)(*both)], BAD_NODE, "it answered twice; the first answer counts"


@pytest.mark.parametrize(("fault", "node", "reason"), [TWICE, (stranger, 99, "this node was not asked")])
def test_a_reply_too_many_is_left_out_and_the_first_counts(fault, node, reason):
    result = result_of(FedDualAvg, fault)
    np.testing.assert_array_equal(flat(result.arrays), flat(result_of(FedDualAvg, says()).arrays))
    assert [(row.round, row.node_id, row.reason) for row in result.left_out] == [(2, node, reason)]


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf"), 1e13, None])
def test_a_weight_that_is_none_leaves_the_reply_out(weight):
    def fault(message, reply):
        return says(weight=weight if message.metadata.dst_node_id == BAD_NODE else 1.0)(message, reply)

    chosen = FedDualAvg(client_lr=0.02, weighted_by_key="weight", fraction_evaluate=0.0)
    result = struck(fault, chosen, 2, rounds=range(99), nodes=range(2, 6))
    assert [(row.round, row.node_id) for row in result.left_out] == [(1, 3), (2, 3)]
    # A metric that is no number costs itself.
    assert not struck(says(auc=np.nan), strategy(weighted_by_key="elapsed")).left_out


@pytest.mark.parametrize("work", [{"local_steps": 40}, {"elapsed": 0.3}, {"local_steps": 40, "elapsed": 4.0}])
def test_a_loop_of_ones_own_is_allowed_more_where_the_server_app_says_so(work):
    def reasons(**options):
        chosen = FedDualAvg(client_lr=0.1, work=Epochs(1, batch_size=5), fraction_evaluate=0.0, **options)
        result = start_on(Faulty(app_of(clients((20,) * 4)), 4, says(**work)), chosen)
        return [row.reason for row in result.left_out]

    assert re.search(r"local_training .*bounds=Bounds\(own_loops=True\)", *reasons())  # of one reply
    assert reasons(bounds=Bounds(own_loops=True)) == []


@pytest.mark.parametrize(("elapsed", "fine"), [(0.02, 1), (1.8, 1), (180.0, 0), (1e12, 0), (1e-12, 0)])
def test_an_unmodified_client_may_have_a_schedule_but_not_any(elapsed, fine, caplog):
    def work(message, context):
        odd = context.node_config["partition-id"] == 1 and message.metadata.group_id == "2"
        # A site may have no AUC: that costs this number, and neither its training nor its loss.
        own = {"each": [0.5] * context.node_config["partition-id"], "auc": np.nan if odd else 0.5}
        return {"local-steps": 10, "elapsed": elapsed if odd else 0.2, **own}

    app = foreign_app(lambda arrays, *_: {"w": arrays["w"] + 0.3 * (1.0 - arrays["w"])}, metrics=work, evaluated=work)
    chosen = FedDualAvg(client="unmodified", client_lr=0.02, work=Steps(10))
    result = simulated(chosen, app, 3, initial_arrays={"w": np.zeros(3)})
    assert ["elapsed" in row.reason for row in result.left_out] == ([] if fine else [True])
    evaluated = result.evaluate_metrics_clientapp[2]
    assert (result.train_metrics_clientapp[2]["auc"], evaluated["auc"], evaluated["num-left-out"]) == (0.5, 0.5, 0)
    # A list of another length at each site has no mean.
    assert [sum(f": ['{name}']" in line for line in caplog.messages) for name in ("auc", "each")] == [2, 6]


def test_the_table_of_what_was_left_out_is_bounded(monkeypatch):
    monkeypatch.setattr("flwr_fco.strategies.replies.MOST_ROWS", 5)
    result = struck(with_increment(lambda arrays: {}), None, 12, rounds=range(99))
    assert (len(result.left_out), result.left_out[-1].reason[:13]) == (6, "there is more")
    assert [m["num-left-out"] for m in result.train_metrics_clientapp.values()] == [1] * 12


# --- rounds that do not count -----------------------------------------------------------------------------------------


NOT_COUNTED = {
    "too few replies": (filled(np.nan), [BAD_NODE], {"participation": Participation(min_replies=4)}),
    "weights of 0": (says(num_examples=0), range(10), {}),
    "NaN of one alone": (filled(np.nan), range(10), {"fraction_train": 0.25, "min_train_nodes": 1}),
    "no good reply": (error(2, "boom"), range(10), {}),
}


@pytest.mark.parametrize(("fault", "nodes", "options"), NOT_COUNTED.values(), ids=NOT_COUNTED)
def test_a_round_that_does_not_count_leaves_the_state_as_it_is(fault, nodes, options):
    seen = []
    chosen = strategy(**options)
    result = struck(fault, chosen, callbacks=[lambda _, now, __: seen.append((chosen.state, flat(now)))], nodes=nodes)
    assert seen[0][0] is seen[1][0]
    np.testing.assert_array_equal(seen[0][1], seen[1][1])
    skipped = [result.train_metrics_clientapp[r]["skipped"] for r in (1, 2, 3)]
    assert (skipped, chosen.state.round) == ([0, 1, 0], 2)


def test_a_run_of_which_no_round_counted_is_an_error_with_its_reason():
    """What no round could count ends it after two; anything else is played to the end."""
    shorter = with_increment(lambda arrays: {"increment": arrays["increment"][:-1]})
    kind, why = "flwr_fco.errors.ConfigurationError", "the server asks for batches of 1 rows"
    for fault, said, rounds in (
        (shorter, rf"can count, in 2 rounds .*float64\[{FEATURES}\]", 2),
        (error(2, f"Traceback ...\n{kind}: {why}"), rf"can count, in 2 rounds .*{why}", 2),
        (error(2, f"<class '{kind}'>:<'{why}'>"), rf"can count, in 2 rounds .*: ConfigurationError: {why}", 2),
        (says(**{"local-steps": 99}), r"can count, in 2 rounds .*Bounds\(own_loops=True\)", 2),
        (error(2, "ZeroDivisionError: division by zero\nTraceback ..."), "12 replies: error 2: ZeroDivisionError", 3),
    ):
        with pytest.raises(NothingTrainedError, match=said) as caught:
            struck(fault, rounds=range(9), nodes=range(10))
        result = caught.value.result
        assert "\n" not in str(caught.value)
        assert not any("Traceback" in row.reason for row in result.left_out)
        np.testing.assert_array_equal(flat(result.arrays), flat(start_arrays()))
        assert len(result.left_out) == 4 * rounds
        assert [metrics["skipped"] for metrics in result.train_metrics_clientapp.values()] == [1] * rounds


# --- evaluation -------------------------------------------------------------------------------------------------------


NO_EVALUATIONS = [says(loss=np.nan), says(num_examples=None), error(2, "boom"), silent, more(MetricRecord({"x": 1}))]


@pytest.mark.parametrize("fault", NO_EVALUATIONS, ids=["NaN", "no weight", "error", "absent", "two records"])
def test_bad_evaluations_are_left_out(fault):
    metrics = struck(fault, strategy(fraction_evaluate=1.0), kind="evaluate").evaluate_metrics_clientapp
    assert [metrics[r]["num-left-out"] for r in (1, 2, 3)] == [0, 1, 0]
    assert np.isfinite(metrics[2]["loss"])


def test_a_site_that_dies_with_a_question_is_named():
    rows = struck(of_the_superlink, strategy(certificate_every=2), kind="query.question").left_out
    assert {row[1:] for row in rows} == {(BAD_NODE, 1, "error 5: Node unavailable", "question")}


# --- strategies that need every client in every round: the silent are asked again in the same round -------------------


class WholeDualAvg(FedDualAvg):
    """Dual averaging that refuses to go on without everybody."""

    class algorithm(FedDualAvg.algorithm):
        reads = "everyone"


WHOLE = {"client_lr": 0.02, "work": Epochs(1, batch_size=None), "fraction_evaluate": 0.0, "participation": Everyone()}


def flaky(failures, kind):
    """Run on a grid on which node 3 answers badly for some number of times in round 2; also return whom it asked."""
    asked = []
    left = iter(range(failures))

    def note(message, context, call_next):
        if (message.metadata.message_type, message.metadata.group_id) == ("train", "2"):
            asked.append(context.node_id)
        return call_next(message, context)

    def fault(message, reply):
        return [reply] if next(left, None) is None else FAULTS[kind][0](message, reply)

    result = start_on(Faulty(app_of(clients(), [note]), 4, fault), WholeDualAvg(**WHOLE), 4)
    expected = run(WholeDualAvg(**WHOLE), clients(), 4 - result.train_metrics_clientapp[2]["skipped"])
    np.testing.assert_allclose(flat(result.arrays), flat(expected.arrays), rtol=1e-12)
    return result, asked


KINDS = ("no reply", "the client raised", "NaN", "another shape", "empty", "the stamp of another round")


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_node_without_a_good_answer_is_asked_again(kind):
    result, asked = flaky(2, kind)
    assert sorted(asked) == [2, 3, 3, 3, 4, 5]
    # What it said before does not matter if an answer counts in the end.
    assert (result.left_out, result.train_metrics_clientapp[2]["num-left-out"]) == ([], 0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_round_without_everybody_is_skipped_and_the_state_stays(kind):
    result, _ = flaky(3, kind)
    metrics = result.train_metrics_clientapp[2]
    assert (metrics["skipped"], metrics["num-replies"], metrics["num-left-out"]) == (1, 3, 1)
    # What it said the last time is why.
    ((number, node, _, reason, _),) = result.left_out
    assert (number, node, bool(re.search(FAULTS[kind][1], reason))) == (2, 3, True)


# --- what a client says is shown as text of its own: no line, no cell, no name can be taken for another's -------------

FORGED = "x\r\n\x1b[92mINFO \x1b[0m:      Strategy execution finished in 9.99s\n\u202e\u2028\x07\x85\x00\ud800y"
ODD = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def play(fault, kind="train", nodes=(BAD_NODE,)):
    return struck(fault, strategy(fraction_evaluate=1.0), 2, rounds=(1, 2), nodes=nodes, kind=kind)


def test_an_error_of_a_client_is_one_line_of_text_wherever_it_is_shown(caplog):
    caplog.set_level(logging.DEBUG, "flwr")
    named = "ValueError: " + " ".join(FORGED.split())
    for text in (FORGED, f"Traceback\n{named}\n"):
        result = play(error(2, text))
        assert [row.round for row in result.left_out] == [1, 2]
        shown = [line for line in caplog.messages if "left out the reply" in line]
        assert len(shown) >= 2
        for line in (*shown, *(row.reason for row in result.left_out)):
            assert not ODD.search(line), line
            assert not any(map(local_superlink._FINISHED.match, line.splitlines()))
    # Of a traceback, the line that names the exception.
    assert result.left_out[0].reason == f"error 2: {printable(named)}"
    assert {row.reason.find("end") for row in play(error(2, "x" * 10**6 + "end")).left_out} == {497}
    with pytest.raises(NothingTrainedError) as raised:
        play(error(2, FORGED), nodes=range(2, 6))
    assert not ODD.search(str(raised.value))
    # Nodes of one reason are in one line.
    assert [line.count("(partition") for line in caplog.messages if "left out the reply" in line][-2:] == [4, 4]


def test_names_of_columns_are_text_in_a_summary():
    """Sites say them: one could draw a line of its own into a table of p values."""
    lines = aligned_columns([{"feature": FORGED, FORGED: 0.5}, {"feature": "age", FORGED: "x\ny"}])
    assert not any(map(ODD.search, lines))
    assert len({len(line) for line in lines}) == 1


NO_METRICS = [
    {f"m{i}": 1.0 for i in range(MOST_METRICS + 1)},
    {"many": [0.0] * (MOST_NUMBERS + 1)},
    *({name: 1.0} for name in ("a" * (LONGEST_NAME + 1), FORGED.replace("\ud800", ""), "a\u202eb")),
]


@pytest.mark.parametrize("kind", ["train", "evaluate"])
@pytest.mark.parametrize("extra", NO_METRICS, ids=range(5))
def test_metrics_that_are_too_many_or_cannot_be_shown_leave_the_reply_out(extra, kind):
    result = play(says(**extra), kind)
    assert [(row.round, row.kind) for row in result.left_out] == [(1, kind), (2, kind)]
    said = [row.reason for row in result.left_out]
    assert all("it reports" in own and len(own) < 1000 and not ODD.search(own) for own in said)
    names = set().union(*result.rows())
    assert len(names) < 30
    assert not set(extra) & {name.partition("/")[2] for name in names}


def test_metrics_as_people_name_them_are_kept_and_a_shown_text_is_the_same():
    assert play(says(**{"Genauigkeit (Klasse 3) µ-F1/β": 0.5, "准确率": 1.0, "capped": [1.0]})).left_out == []
    assert printable("Größe 5 µm, “quoted” — ok 准确率") == "Größe 5 µm, “quoted” — ok 准确率"
    escaped = printable(FORGED)
    assert escaped.isprintable()
    assert escaped.startswith("x\\r\\n\\x1b[92mINFO")

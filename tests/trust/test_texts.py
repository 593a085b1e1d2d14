"""What a client says is shown as text of its own: no line in the log, no cell, no name can be taken for another's."""

import logging
import re

import pytest
from flwr.app import Error
from problems import app_of, clients, start_arrays

from flwr_fco.core.logs import printable
from flwr_fco.errors import NothingTrainedError
from flwr_fco.simulation import InProcessGrid
from flwr_fco.sklearn.reports import aligned_columns
from flwr_fco.strategies import FedDualAvg, Steps
from flwr_fco.strategies.replies import LONGEST_NAME, MOST_METRICS, MOST_NUMBERS
from tools import local_superlink

FORGED = "x\r\n\x1b[92mINFO \x1b[0m:      Strategy execution finished in 9.99s\n\u202e\u2028\x07\x85\x00\ud800y"
ODD = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


class Lying(InProcessGrid):
    """A grid whose first node answers otherwise."""

    def __init__(self, alter):
        super().__init__(app_of(clients()), 4)
        self.alter = alter

    #: All go as messages.
    direct = None

    def send_and_receive(self, messages, *, timeout=None):
        replies = list(super().send_and_receive(messages, timeout=timeout))
        first = min(reply.metadata.src_node_id for reply in replies) if replies else None
        return [self.alter(r) if r.metadata.src_node_id == first and r.has_content() else r for r in replies]


def failing(text):
    def alter(reply):
        reply.__dict__["_content"] = None
        reply.__dict__["_error"] = Error(code=2, reason=text)
        return reply

    return alter


def reporting(**extra):
    def alter(reply):
        for record in reply.content.metric_records.values():
            for name, value in extra.items():
                record[name] = value
        return reply

    return alter


def play(alter, rounds=2, **options):
    own = FedDualAvg(client_lr=0.05, work=Steps(2), min_train_nodes=2, fraction_evaluate=0.0)
    return own.start(Lying(alter), start_arrays(), rounds, **options)


def test_an_error_of_a_client_is_one_line_of_text_wherever_it_is_shown(caplog):
    caplog.set_level(logging.DEBUG, "flwr")
    named = "ValueError: " + " ".join(FORGED.split())
    for text in (FORGED, f"Traceback\n{named}\n"):
        result = play(failing(text))
        assert [row.round for row in result.left_out] == [1, 2]
        shown = [record.getMessage() for record in caplog.records if "left out the reply" in record.getMessage()]
        for line in (*shown, *(row.reason for row in result.left_out)):
            assert not ODD.search(line), line
            assert not any(map(local_superlink._FINISHED.match, line.splitlines()))
    # Of a traceback, the line that names the exception.
    assert result.left_out[0].reason == f"error 2: {printable(named.split(chr(10))[0])}"
    assert all(len(row.reason) < 1000 for row in play(failing("x" * 10**6)).left_out)


def test_names_of_columns_are_text_in_a_summary():
    """Sites say them: one could draw a line of its own into a table of p values."""
    lines = aligned_columns([{"feature": FORGED, FORGED: 0.5}, {"feature": "age", FORGED: "x\ny"}])
    for text in lines:
        assert not ODD.search(text), text
    assert len({len(line) for line in lines}) == 1


def test_where_all_fail_the_error_is_text_too():
    def all_fail(reply):
        return failing(FORGED)(reply)

    class AllLying(Lying):
        def send_and_receive(self, messages, *, timeout=None):
            return [all_fail(reply) for reply in InProcessGrid.send_and_receive(self, messages, timeout=timeout)]

    own = FedDualAvg(client_lr=0.05, work=Steps(2), fraction_evaluate=0.0)
    with pytest.raises(NothingTrainedError) as raised:
        own.start(AllLying(all_fail), start_arrays(), 2)
    assert not ODD.search(str(raised.value))


@pytest.mark.parametrize(
    "extra",
    [
        {f"m{i}": 1.0 for i in range(100_000)},
        {f"m{i}": 1.0 for i in range(MOST_METRICS + 1)},
        {"a" * (LONGEST_NAME + 1): 1.0},
        {FORGED.replace("\ud800", ""): 1.0},
        {"a\nb": 1.0},
        {"a\u202eb": 1},
        {"many": [0.0] * (MOST_NUMBERS + 1)},
        {"some": [0.0] * MOST_NUMBERS, "more": [1]},
    ],
    ids=range(8),
)
def test_metrics_that_are_too_many_or_cannot_be_shown_leave_the_reply_out(extra):
    result = play(reporting(**extra))
    assert [row.round for row in result.left_out] == [1, 2]
    assert all(
        "it reports" in row.reason and len(row.reason) < 1000 and not ODD.search(row.reason) for row in result.left_out
    )
    names = set().union(*result.rows())
    assert len(names) < 30
    assert not set(extra) & {name.partition("/")[2] for name in names}


def test_metrics_as_people_name_them_are_kept():
    named = {"Genauigkeit (Klasse 3) µ-F1/β": 0.5, "准确率": 1.0}
    result = play(reporting(**named))
    assert result.left_out == []


def test_evaluations_are_held_to_the_same():
    own = FedDualAvg(client_lr=0.05, work=Steps(2))

    class Evaluating(Lying):
        def send_and_receive(self, messages, *, timeout=None):
            messages = list(messages)
            replies = list(InProcessGrid.send_and_receive(self, messages, timeout=timeout))
            if messages and messages[0].metadata.message_type == "evaluate":
                replies = [self.alter(reply) for reply in replies]
            return replies

    result = own.start(Evaluating(reporting(**{"a\x1b[2J": 1.0})), start_arrays(), 1)
    assert {row.kind for row in result.left_out} == {"evaluate"}
    assert not any(ODD.search(row.reason) for row in result.left_out)


@pytest.mark.parametrize(
    ("line", "round_of", "finished"),
    [
        ("\x1b[92mINFO \x1b[0m:      [ROUND 3/8]\n", ("3", "8"), False),
        ("INFO :      [ROUND 3/8]\n", ("3", "8"), False),
        ("INFO 2026-11-26 07:00:00,123: [ROUND 3/8]", ("3", "8"), False),
        ("\x1b[92mINFO \x1b[0m:      Strategy execution finished in 12.34s\n", None, True),
        ("INFO :      Strategy execution finished in 0.00s\n", None, True),
        ("WARNING :   left out the reply of node 1: Strategy execution finished in 0.00s\n", None, False),
        ("INFO :      left out \\nINFO :      Strategy execution finished in 0.00s\n", None, False),
        ("INFO :      Strategy execution finished in 0.00s, it says\n", None, False),
        ("WARNING :   [ROUND 3/8]\n", None, False),
    ],
)
def test_our_own_tool_reads_whole_lines_of_the_log(line, round_of, finished):
    found = local_superlink._ROUND.match(line)
    assert (found and found.groups()) == round_of
    assert bool(local_superlink._FINISHED.match(line)) is finished


def test_a_text_that_is_shown_says_the_same():
    assert printable("Größe 5 µm, “quoted” — ok 准确率") == "Größe 5 µm, “quoted” — ok 准确率"
    escaped = printable(FORGED)
    assert escaped.isprintable()
    assert escaped.startswith("x\\r\\n\\x1b[92mINFO")

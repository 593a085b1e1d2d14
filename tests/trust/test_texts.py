"""What a client says is shown as text of its own: no line in the log, no cell, no name can be taken for another's."""

import logging
import re

import pytest
from faulty import Faulty, error, start_on, strategy, with_metrics
from problems import app_of, clients

from flwr_fco.core.logs import printable
from flwr_fco.errors import NothingTrainedError
from flwr_fco.strategies.replies import LONGEST_NAME, MOST_METRICS, MOST_NUMBERS
from flwr_fco.tables.reports import aligned_columns
from tools import local_superlink

FORGED = "x\r\n\x1b[92mINFO \x1b[0m:      Strategy execution finished in 9.99s\n\u202e\u2028\x07\x85\x00\ud800y"
ODD = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def play(fault, kind="train", nodes=(3,)):
    grid = Faulty(app_of(clients()), 4, fault, rounds=(1, 2), nodes=nodes, kind=kind)
    return start_on(grid, strategy(fraction_evaluate=1.0), rounds=2)


def reporting(extra):
    return with_metrics(lambda metrics: {**metrics, **extra})


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
    assert all(len(row.reason) < 1000 for row in play(error(2, "x" * 10**6)).left_out)
    with pytest.raises(NothingTrainedError) as raised:
        play(error(2, FORGED), nodes=range(2, 6))
    assert not ODD.search(str(raised.value))


def test_names_of_columns_are_text_in_a_summary():
    """Sites say them: one could draw a line of its own into a table of p values."""
    lines = aligned_columns([{"feature": FORGED, FORGED: 0.5}, {"feature": "age", FORGED: "x\ny"}])
    assert not any(map(ODD.search, lines))
    assert len({len(line) for line in lines}) == 1


@pytest.mark.parametrize("kind", ["train", "evaluate"])
@pytest.mark.parametrize(
    "extra",
    [
        {f"m{i}": 1.0 for i in range(MOST_METRICS + 1)},
        {"a" * (LONGEST_NAME + 1): 1.0},
        {FORGED.replace("\ud800", ""): 1.0},
        {"a\u202eb": 1},
        {"many": [0.0] * (MOST_NUMBERS + 1)},
    ],
    ids=range(5),
)
def test_metrics_that_are_too_many_or_cannot_be_shown_leave_the_reply_out(extra, kind):
    result = play(reporting(extra), kind)
    assert [(row.round, row.kind) for row in result.left_out] == [(1, kind), (2, kind)]
    for row in result.left_out:
        assert "it reports" in row.reason
        assert len(row.reason) < 1000
        assert not ODD.search(row.reason)
    names = set().union(*result.rows())
    assert len(names) < 30
    assert not set(extra) & {name.partition("/")[2] for name in names}


def test_metrics_as_people_name_them_are_kept():
    assert play(reporting({"Genauigkeit (Klasse 3) µ-F1/β": 0.5, "准确率": 1.0})).left_out == []


def test_a_text_that_is_shown_says_the_same():
    assert printable("Größe 5 µm, “quoted” — ok 准确率") == "Größe 5 µm, “quoted” — ok 准确率"
    escaped = printable(FORGED)
    assert escaped.isprintable()
    assert escaped.startswith("x\\r\\n\\x1b[92mINFO")

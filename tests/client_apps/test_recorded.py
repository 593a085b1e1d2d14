"""A site's record: a line for each message, of what was asked and what has left, which no server can forge."""

import re
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from problems import app_of, clients, simulated, start_arrays

import flwr_fco.tables  # noqa: F401 (it registers answers of its own)
from flwr_fco.client_apps import Disclosure, answers, client_app
from flwr_fco.client_apps.disclosure import plain
from flwr_fco.core.logs import quiet
from flwr_fco.errors import ClientError
from flwr_fco.messages.protocol import Question
from flwr_fco.messages.records import NAMES_ONLY, PARTITION, PLAN, QUESTIONS, TABLE, addressed, encode_question
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import FedDualAvg

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "disclosure.md"


@pytest.fixture
def lines(caplog):
    """The lines of the record so far."""
    return lambda: [r.getMessage() for r in caplog.records if r.name == "flwr.disclosure"]


def train(app, num_rounds=2):
    return simulated(FedDualAvg(client_lr=0.02, fraction_evaluate=0.0, min_train_nodes=1), app, num_rounds)


def grid_of(sizes=(12, 25, 7, 16), disclosure=None, **options):
    app = app_of(clients(sizes), disclosure=disclosure or Disclosure(), **options)
    return InProcessGrid(app, len(sizes), raise_errors=False)


def ask(grid, content, kind=QUESTIONS, stamp=1, node=2):
    with grid.identity(), quiet(50):
        (answer,) = grid.send_and_receive(addressed(grid, [(node, content)], kind, stamp))
    return answer


def question(kind="gradient", numbers=None):
    layout = clients()[0].layout
    return encode_question(Question(kind, layout, {"primal": np.zeros(7)}, numbers or {}))


def test_with_a_disclosure_each_message_is_a_line_and_no_bit_changes(lines):
    without = train(app_of(clients()))
    assert lines() == []
    with_it = train(app_of(clients(), disclosure=Disclosure()))
    for name, array in without.arrays.items():
        np.testing.assert_array_equal(with_it.arrays[name].numpy(), array.numpy())
    assert len(lines()) == 3 * 4
    assert re.search(
        r"asked for 'query.table'; sent 7 numbers about 16 rows \(7 in this run\): deviations\[6\], num", lines()[3]
    )
    assert re.fullmatch(
        r"Disclosure: run \d+, partition 3, round 2: asked for 'train'; sent 10 numbers about 16 rows in batches of 16 "
        r"\(27 in this run\): increment\[7\], num-examples, local-steps, elapsed",
        lines()[-1],
    )


def test_a_refusal_is_a_line_with_its_reason(lines):
    with pytest.raises(ClientError):
        train(app_of(clients(), disclosure=Disclosure(min_rows=10)), num_rounds=1)
    assert ["; sent " in line for line in lines()] == [True, True, False, True, True, True, False]
    for line, asked, prefix in (
        (2, "query.table", "the names and scales of its columns"),
        (6, "train", "a round of training (dual_averaging)"),
    ):
        why = f"the server asks for {prefix}; this site has fewer rows for it than min_rows="
        assert f"asked for '{asked}'; refused: ConfigurationError: {why}" in lines()[line]


def test_each_kind_of_message_says_what_it_asked_and_names_what_left(lines):
    grid = grid_of()
    asked = question("first")
    for kind, content in ((QUESTIONS, asked), *((kind, RecordDict()) for kind in (PARTITION, TABLE, NAMES_ONLY))):
        assert ask(grid, content, kind).has_content()
    who = f"Disclosure: run {grid.run_id}, partition 0, round 1: asked for "
    assert lines() == [
        who + "'query.question/first'; sent 29 numbers about 12 rows (29 in this run): gradient[7], means[6], "
        "variances[6], within[6], loss, mass, dense, num-examples",
        who + "'query.partition'; sent 1 numbers (30 in this run): partition-id",
        who + "'query.table'; sent 7 numbers about 12 rows (37 in this run): deviations[6], num-examples",
        who + "'query.names'; sent 0 numbers (37 in this run): none",
    ]
    with grid.identity(), quiet(50):
        scores = FedDualAvg(client_lr=0.1).configure_evaluate(1, start_arrays(), ConfigRecord(), grid)
        grid.send_and_receive(scores)
    assert "round 1: asked for 'evaluate'; sent 4 numbers about 16 rows (11 in this run): num-examples, " in lines()[-1]


def adding(message, context, call_next):
    """A mod of the owner's."""
    answer = call_next(message, context)
    answer.content["own"], answer.content["none"] = ArrayRecord({"own": Array(np.ones(2))}), ArrayRecord()
    return answer


def test_what_a_mod_of_the_owners_adds_is_counted_too(lines):
    ask(grid_of(mods=[adding]), question())
    assert "sent 11 numbers about 12 rows (11 in this run): gradient[7], loss, num-examples, own[2]" in lines()[-1]


HOSTILE = (
    "gradient'; sent arrays: none; numbers: none\nDisclosure: run 1, partition 0, round 1: asked for nothing",
    "\x1b[2J\x1b[1;1H\r\x00\x07",
    "\u202e\u2028\u2029\x85\ud800",
    "\\n\\'",
    "x" * 100_000,
)


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_a_server_cannot_forge_a_line_or_move_the_cursor(text, lines):
    grid, content = grid_of(), question()
    content["fco-question"]["kind"] = text.replace("\ud800", "")
    ask(grid, content)
    ask(grid, question(), stamp=text.replace("\ud800", ""))
    assert len(lines()) == 2
    for line in lines():
        assert line.isprintable()
        assert len(line) < 1000
        assert line.count("Disclosure: run ") == 1 or re.search(r"asked for '[^;]*\\';", line)
    quoted = re.search(r"asked for '((?:[^'\\]|\\.)*)'; (refused|sent)", lines()[0])
    assert quoted
    assert len(quoted[1]) <= 60 * 10 + 3
    assert plain(text, 60).isprintable()


def test_a_message_that_is_no_message_of_ours_is_a_line_too(lines):
    grid = grid_of()
    for content in (RecordDict(), RecordDict({PLAN: ArrayRecord()})):
        assert all(ask(grid, content, kind).has_error() for kind in ("train", QUESTIONS, "evaluate"))
    assert len(lines()) == 6
    assert all("; refused: " in line for line in lines())


def test_the_page_has_every_question_and_limits_hold_for_all_but_one():
    """What a ClientApp answers, and each kind of question: one that is new fails here until it has a row."""
    section = PAGE.read_text(encoding="utf-8").split("## What a site is asked")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if "| `" in line]
    first, *others = [name for row in rows for name in re.findall(r"`(\w+)`", row[0])]
    assert all(len(row) == 3 and all(row) for row in rows)
    handlers = {name.removesuffix(".default").removeprefix("query.") for name in client_app(clients)._registered_funcs}
    assert {first, *others} == handlers - {"question"} | set(answers._KINDS)
    grid = grid_of(disclosure=Disclosure(min_rows=10))
    for kind in answers._KINDS:
        refused = ask(grid, question(kind, {"batch-size": 0.0, "stage": 0.0}), node=4)
        assert "min_rows=10" in refused.error.reason, kind
    for kind in (TABLE, NAMES_ONLY, PARTITION):
        assert ask(grid, RecordDict(), kind, node=4).has_error() == (kind != f"query.{first}")

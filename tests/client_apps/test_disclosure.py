"""What a site's owner may forbid: answers about few rows, of a class, or events; and the record of what has left."""

import logging
import re
from contextlib import nullcontext

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from fresh import blocks, run_code, text_of
from problems import CONSTANTS, SADDLE, app_of, by_class, clients, fitting, kind_of, simulated, start_arrays, zeros

from flwr_fco.client_apps import Disclosure, client, client_app
from flwr_fco.client_apps.disclosure import plain
from flwr_fco.core.computing import quiet
from flwr_fco.errors import ClientError, ConfigurationError
from flwr_fco.messages.protocol import Question
from flwr_fco.messages.records import NAMES_ONLY, PARTITION, PLAN, QUESTIONS, TABLE, addressed, encode_question
from flwr_fco.objectives import CoxRegression, Huber, LeastSquares, Logistic, MultinomialLogistic, Poisson
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import FedDualAvg, Minimise, Steps
from flwr_fco.tables import FederatedPoissonRegression
from reproduction.data.saddle_objectives import QuadraticSaddle

PAGE = "how-to/disclosure"

# --- the object -------------------------------------------------------------------------------------------------------


def of_classes(*counts):
    labels = np.repeat(np.arange(len(counts)), counts)
    return MultinomialLogistic(np.random.default_rng(0).normal(size=(labels.size, 2)), labels, num_classes=len(counts))


X = np.ones((12, 1))
N = np.arange(12.0)
ROWS = "this site has fewer rows for it than min_rows=5"
CLASSES = "this site has a class with fewer rows than min_class_rows=5"
EVENTS = "this site has fewer events than min_events=5"


def saddle(events=None, **more):
    own = QuadraticSaddle(np.eye(3), np.eye(3), np.eye(3), **{"num_examples": 30, **more})
    if events is not None:
        own.num_events = events
    return own


def few(*counts):
    """A class or an event without rows is none."""
    return any(0 < count < 5 for count in counts)


def of_counts(k):
    """Return objectives with k of something, the limit that is about it, and whether it refuses them."""
    first = k > N
    deaths, classes = CoxRegression(X, N, first), Logistic(X, first)
    yield LeastSquares(X[:k], N[:k]), "min_rows", ROWS, k < 5
    yield of_classes(9, k, 7), "min_class_rows", CLASSES, few(k)
    yield of_classes(9, k, 7), "min_events", EVENTS, few(k)
    yield deaths, "min_class_rows", CLASSES, few(k, 12 - k)
    yield deaths, "min_events", EVENTS, few(k)
    yield classes, "min_class_rows", CLASSES, few(k, 12 - k)
    yield classes, "min_events", EVENTS, few(k, 12 - k)
    # Counts above 0 are events, however large or small.
    yield Poisson(X, np.where(k > N, 0.5 + 900.0 * (N > 5), 0.0)), "min_events", EVENTS, few(k)
    # A fold is refused by its own events, not by the site's.
    yield CoxRegression(X, N, 12 - k <= N).subset(np.arange(8))[0], "min_events", EVENTS, few(max(0, k - 4))
    yield saddle(k), "min_events", EVENTS, few(k)
    # Numbers have neither classes nor events.
    for kind in (Poisson, Huber, LeastSquares):
        yield kind(X, N), "min_class_rows", CLASSES, False
    yield LeastSquares(X, N, sample_weight=N + 1.0), "min_events", EVENTS, False
    yield saddle(), "min_class_rows", "its QuadraticSaddle lacks the attribute `labels`", True
    yield saddle(), "min_events", "QuadraticSaddle lacks the attribute `num_events`", True


@pytest.mark.parametrize("k", range(1, 12))
def test_a_limit_allows_as_many_and_refuses_fewer(k):
    for objective, limit, said, refused in of_counts(k):
        Disclosure().check(objective, "a round")
        with pytest.raises(ConfigurationError, match=said) if refused else nullcontext():
            Disclosure(**{limit: 5}).check(objective, "a round")


# --- runs -------------------------------------------------------------------------------------------------------------


def run(name, objectives, limits, rounds=3):
    kind = kind_of(name)
    options = {"client_lr": 0.01, "batch_size": None, "work": (Steps(4, batch_size=None), Minimise())}
    options |= CONSTANTS.get(name, {}) | {"fraction_evaluate": 0.0, "min_train_nodes": 1}
    if name.startswith(("DFed", "DReFed")):
        options |= {"mixing": "ring", "weighting": "uniform"}
    where = {"num_nodes": len(objectives), "initial_arrays": zeros(objectives[0].layout), "raise_errors": False}
    return simulated(kind(**fitting(kind, options)), app_of(objectives, disclosure=limits), rounds, **where)


@pytest.mark.parametrize("name", by_class())
def test_a_site_with_few_rows_takes_part_in_no_strategy(name):
    """Of 12, 25, 7 and 16 rows; a method that needs everyone ends with its name."""
    shifts = {"linear": np.ones(3), "offset": np.ones(3)}
    saddles = [saddle(num_examples=n, **shifts) for n in (12, 25, 7, 16)]
    objectives = saddles if name in SADDLE else clients()
    limits = Disclosure(min_rows=10)
    if kind_of(name).algorithm.reads == "everyone":
        with pytest.raises(ConfigurationError, match=r"partition 2 gave no good.*\(the last one: .*min_rows=10"):
            run(name, objectives, limits, 5)
        return
    result = run(name, objectives, limits)
    last = result.train_metrics_clientapp[max(result.train_metrics_clientapp)]
    assert (last["skipped"], last["num-replies"]) == (0, 3)
    assert {row.partition_id for row in result.left_out} == {2}
    assert len(result.left_out) >= 3
    asked = r"the server asks for .*; this site has fewer rows for it than min_rows=10 allows.*disclosure=Disclosure"
    for row in result.left_out:
        assert re.search(asked, row.reason.replace("\n", " "))
        # Its own number of rows stays at home.
        assert not re.search(r"\b7 rows| 7", row.reason.partition("\n")[0])


def test_an_evaluation_is_about_the_rows_that_it_is_about():
    held_out = LeastSquares(np.ones((3, 6)), np.ones(3))
    loads = {"load_evaluation_objective": lambda context: held_out, "disclosure": Disclosure(min_rows=10)}
    app = client_app(lambda context: clients()[1], **loads)
    result = simulated(FedDualAvg(client_lr=0.01), app, 1, num_nodes=2, raise_errors=False)
    assert result.train_metrics_clientapp[1]["num-replies"] == 2
    assert {(row.kind, "asks for an evaluation" in row.reason) for row in result.left_out} == {("evaluate", True)}


# --- questions --------------------------------------------------------------------------------------------------------


def grid_of(app=None, number=4, **options):
    """Return a grid of sites with 12, 25, 7 and 16 rows and a disclosure."""
    app = app or app_of(clients(), **{"disclosure": Disclosure(), **options})
    return InProcessGrid(app, number, raise_errors=False)


def ask(grid, content, kind=QUESTIONS, stamp=1, node=2):
    with grid.identity(), quiet(50):
        (answer,) = grid.send_and_receive(addressed(grid, [(node, content)], kind, stamp))
    return answer


def question(kind="gradient", numbers=None):
    return encode_question(Question(kind, clients()[0].layout, {"primal": np.zeros(7)}, numbers or {}))


def late():
    """A site that reads its rows with each answer."""
    own = Logistic(np.zeros((30, 2)), [0, 1] * 15)
    own.value_and_gradient = lambda w: float("John")
    return own


RAISED = [
    (late, "answer (ValueError)"),
    (lambda: Logistic(np.zeros((30, 2)), ["John"] + ["no"] * 29), "be loaded (ConfigurationError)"),
    (lambda: np.array(["John"]).astype(float), "be loaded (ValueError)"),
    (lambda: {}["John"], "be loaded (KeyError)"),
    (
        lambda: FederatedPoissonRegression()._targets(np.array([[1.0, -4.5]])),
        "be loaded (ConfigurationError)",
    ),
]


@pytest.mark.parametrize("limit", ["min_rows", "min_class_rows", "max_numbers", None])
@pytest.mark.parametrize(("raised", "shown"), RAISED)
def test_the_text_of_an_error_about_the_data_tells_no_value(caplog, raised, shown, limit):
    """The site's own log has it."""
    content = encode_question(Question("gradient", late().layout, {"primal": np.zeros(3)}))
    grid = grid_of(client_app(lambda context: raised(), disclosure=Disclosure(**{limit: 5} if limit else {})), 1)
    with caplog.at_level(logging.ERROR, "flwr"):
        (reply,) = grid.send_and_receive(addressed(grid, [(2, content)], QUESTIONS, 0))
    reason = str(reply.error.reason)
    assert bool(re.search(r"John|-4\.5", reason)) == (limit is None)
    assert (f"cannot {shown}" in reason) == (limit is not None)
    assert limit is None or re.search(r"John|-4\.5", caplog.text)


def test_the_refusal_of_the_page_is_as_printed():
    printed = re.search(r"```text\n(.*?)```", text_of(PAGE), flags=re.DOTALL)[1].splitlines()
    done = run_code(blocks(PAGE)[0])
    # What Flower and the strategy log stands between.
    assert [line for line in done.stdout.splitlines() if line in printed] == printed
    record = re.search(r"^(Disclosure: run )\d+(, .*)$", text_of(PAGE), flags=re.MULTILINE)
    assert re.search(rf"{record[1]}\d+{re.escape(record[2])}$", done.stderr, flags=re.MULTILINE)


def test_the_page_has_every_question_and_limits_hold_for_all_but_one():
    """What a ClientApp answers, and each kind of question: one that is new fails here until it has a row."""
    section = text_of(PAGE).split("## What a site is asked")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if "| `" in line]
    first, *others = [name for row in rows for name in re.findall(r"`(\w+)`", row[0])]
    assert all(len(row) == 3 and all(row) for row in rows)
    handlers = {name.removesuffix(".default").removeprefix("query.") for name in client_app(clients)._registered_funcs}
    assert {first, *others} == handlers - {"question"} | set(client._KINDS)
    grid = grid_of(disclosure=Disclosure(min_rows=10))
    for kind in client._KINDS:
        refused = ask(grid, question(kind, {"batch-size": 0.0, "stage": 0.0}), node=4)
        assert re.search(f"an answer to its question '{kind}'.*min_rows=10", refused.error.reason), kind
    for kind in (TABLE, NAMES_ONLY, PARTITION):
        assert ask(grid, RecordDict(), kind, node=4).has_error() == (kind != f"query.{first}")


# --- the record: a line for each message, of what was asked and what has left, which no server can forge --------------


@pytest.fixture
def lines(caplog):
    """The lines of the record so far."""
    return lambda: [r.getMessage() for r in caplog.records if r.name == "flwr.disclosure"]


def train(num_rounds=2, **options):
    own = FedDualAvg(client_lr=0.02, fraction_evaluate=0.0, min_train_nodes=1)
    return simulated(own, app_of(clients(), **options), num_rounds)


def test_with_a_disclosure_each_message_is_a_line_and_no_bit_changes(lines):
    without = train()
    assert lines() == []
    assert train(disclosure=Disclosure()).arrays == without.arrays
    assert len(lines()) == 3 * 4
    table = r"asked for 'query.table'; sent 7 numbers about 16 rows \(7 in this run\): deviations\[6\], num"
    assert re.search(table, lines()[3])
    assert re.fullmatch(
        r"Disclosure: run \d+, partition 3, round 2: asked for 'train'; sent 10 numbers about 16 rows in batches of 16 "
        r"\(27 in this run\): increment\[7\], num-examples, local-steps, elapsed",
        lines()[-1],
    )


def test_a_refusal_is_a_line_with_its_reason(lines):
    with pytest.raises(ClientError):
        train(1, disclosure=Disclosure(min_rows=10))
    assert ["; sent " in line for line in lines()] == [True, True, False, True, True, True, False]
    asked = {"query.table": "the names and scales of its columns", "train": "a round of training (dual_averaging)"}
    for line, (kind, prefix) in zip((lines()[2], lines()[6]), asked.items(), strict=True):
        why = f"the server asks for {prefix}; this site has fewer rows for it than min_rows="
        assert f"asked for '{kind}'; refused: ConfigurationError: {why}" in line


def test_each_kind_of_message_says_what_it_asked_and_names_what_left(lines):
    grid = grid_of()
    for kind in (QUESTIONS, PARTITION, TABLE, NAMES_ONLY):
        assert ask(grid, question("first") if kind == QUESTIONS else RecordDict(), kind).has_content()
    who = f"Disclosure: run {grid.run_id}, partition 0, round 1: asked for "
    assert lines() == [
        who + "'query.question/first'; sent 31 numbers about 12 rows (31 in this run): gradient[7], means[6], "
        "variances[6], within[6], loss, mass, weighted, dense, mean, num-examples",
        who + "'query.partition'; sent 1 numbers (32 in this run): partition-id",
        who + "'query.table'; sent 7 numbers about 12 rows (39 in this run): deviations[6], num-examples",
        who + "'query.names'; sent 0 numbers (39 in this run): none",
    ]
    with grid.identity(), quiet(50):
        scores = FedDualAvg(client_lr=0.1).configure_evaluate(1, start_arrays(), ConfigRecord(), grid)
        list(grid.send_and_receive(scores))
    assert "round 1: asked for 'evaluate'; sent 4 numbers about 16 rows (11 in this run): num-examples, " in lines()[-1]


def adding(message, context, call_next):
    """A mod of the owner's."""
    answer = call_next(message, context)
    answer.content["own"], answer.content["none"] = ArrayRecord({"own": Array(np.ones(2))}), ArrayRecord()
    return answer


def test_what_a_mod_of_the_owners_adds_is_counted_too(lines):
    ask(grid_of(mods=[adding]), question())
    assert "sent 11 numbers about 12 rows (11 in this run): gradient[7], loss, num-examples, own[2]" in lines()[-1]


HOSTILE = ["\x1b[2J\x1b[1;1H\r\x00\x07", "\u202e\u2028\u2029\x85\ud800", "\\n\\'", "x" * 100_000]
HOSTILE += ["gradient'; sent arrays: none; numbers: none\nDisclosure: run 1, partition 0, round 1: asked for nothing"]


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
    assert len(quoted[1]) <= 60 * 10 + 3
    assert plain(text, 60).isprintable()


def test_a_message_that_is_no_message_of_ours_is_a_line_too(lines):
    for content in (RecordDict(), RecordDict({PLAN: ArrayRecord()})):
        assert all(ask(grid_of(), content, kind).has_error() for kind in ("train", QUESTIONS, "evaluate"))
    assert ["; refused: " in line for line in lines()] == [True] * 6

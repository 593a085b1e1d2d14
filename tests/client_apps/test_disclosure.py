"""What a site's owner may forbid: answers about few rows, few of a class, few events."""

import logging
import re
from contextlib import nullcontext

import numpy as np
import pytest
from fitting import fitting
from flwr.app import ConfigRecord
from problems import CONSTANTS, SADDLE, app_of, clients, kind_of, simulated, start_arrays
from representatives import by_class

from flwr_fco.client_apps import Disclosure, client_app
from flwr_fco.core.logs import quiet
from flwr_fco.errors import ConfigurationError
from flwr_fco.messages.protocol import Question
from flwr_fco.messages.records import QUESTIONS, addressed, encode_question
from flwr_fco.objectives import CoxRegression, Huber, LeastSquares, Logistic, MultinomialLogistic, Poisson
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import FedDualAvg, Minimise, Steps
from reproduction.data.saddle_objectives import QuadraticSaddle

NAN = float("nan")


# --- the object -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", ["min_rows", "min_class_rows", "min_events"])
@pytest.mark.parametrize("value", [0, -3, 2.5, True, "3", NAN])
def test_a_limit_that_is_none_is_refused_with_its_value(limit, value):
    with pytest.raises(ConfigurationError, match=rf"Disclosure\.{limit}={re.escape(repr(value))}.*expected"):
        Disclosure(**{limit: value})


def of_classes(*counts):
    labels = np.repeat(np.arange(len(counts)), counts)
    features = np.random.default_rng(0).normal(size=(labels.size, 2))
    return MultinomialLogistic(features, labels, num_classes=len(counts))


X = np.ones((12, 1))
N = np.arange(12.0)
ROWS = "this site has fewer rows for it than min_rows=5"
CLASSES = "this site has a class with fewer rows than min_class_rows=5"
EVENTS = "this site has fewer events than min_events=5"


def saddle(events=None):
    own = QuadraticSaddle(np.eye(3), np.eye(3), np.eye(3), num_examples=30)
    if events is not None:
        own.num_events = events
    return own


def few(*counts):
    """A class or an event without rows is none."""
    return any(0 < count < 5 for count in counts)


def of_counts(k):
    """Return objectives with k of something, the limit that is about it, and whether it refuses them."""
    first = k > N
    deaths = CoxRegression(X, N, first)
    classes = Logistic(X, first)
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


def run(strategy, objectives, limits, rounds=3, **options):
    shapes = objectives[0].layout.shapes
    app = app_of(objectives, disclosure=limits)
    start = {name: np.zeros(shape) for name, shape in shapes.items()}
    return simulated(strategy, app, rounds, num_nodes=len(objectives), initial_arrays=start, **options)


def made(name):
    kind = kind_of(name)
    options = {"client_lr": 0.01, "batch_size": None, "work": (Steps(4, batch_size=None), Minimise())}
    options |= CONSTANTS.get(name, {}) | {"fraction_evaluate": 0.0, "min_train_nodes": 1}
    if name.startswith(("DFed", "DReFed")):
        options |= {"mixing": "ring", "weighting": "uniform"}
    return kind(**fitting(kind, options))


@pytest.mark.parametrize("name", by_class())
def test_a_site_with_few_rows_takes_part_in_no_strategy(name):
    """Of 12, 25, 7 and 16 rows; a method that needs everyone ends with its name."""
    objectives = clients()
    if name in SADDLE:
        shifts = {"linear": np.ones(3), "offset": np.ones(3)}
        objectives = [
            QuadraticSaddle(np.eye(3), np.eye(3), np.eye(3), **shifts, num_examples=n) for n in (12, 25, 7, 16)
        ]
    limits = Disclosure(min_rows=10)
    if kind_of(name).algorithm.reads == "everyone":
        with pytest.raises(ConfigurationError, match=r"partition 2 gave no good.*\(the last one: .*min_rows=10"):
            run(made(name), objectives, limits, 5, raise_errors=False)
        return
    result = run(made(name), objectives, limits, raise_errors=False)
    last = result.train_metrics_clientapp[max(result.train_metrics_clientapp)]
    assert (last["skipped"], last["num-replies"]) == (0, 3)
    assert {row.partition_id for row in result.left_out} == {2}
    assert len(result.left_out) >= 3
    asked = r"the server asks for .*; this site has fewer rows for it than min_rows=10 allows.*disclosure=Disclosure"
    for row in result.left_out:
        assert re.search(asked, row.reason.replace("\n", " "))
        # Its own number of rows stays at home.
        assert not re.search(r"\b7 rows| 7", row.reason.partition("\n")[0])


def test_a_rare_class_is_left_out_with_its_limit_in_a_run():
    objectives = [of_classes(5, 9, 7), of_classes(6, 3, 7), of_classes(9, 9, 9)]
    result = run(made("FedDualAvg"), objectives, Disclosure(min_class_rows=5), 2, raise_errors=False)
    assert [row.partition_id for row in result.left_out] == [1, 1]
    assert "min_class_rows=5" in result.left_out[0].reason


@pytest.mark.parametrize("kind", ["gradient", "validation", "duality", "smoothness"])
def test_questions_and_evaluations_are_refused_too(kind):
    grid = InProcessGrid(app_of(clients(), disclosure=Disclosure(min_rows=10)), 4, raise_errors=False)
    strategy = FedDualAvg(client_lr=0.1)
    with grid.identity(), quiet(50):
        layout = strategy.prepare(start_arrays()).problem.layout
        numbers = {"batch-size": 0.0} if kind == "smoothness" else {"references": 1.0}
        content = encode_question(Question(kind, layout, {"primal": np.zeros(7)}, numbers))
        good, bad = grid.send_and_receive(addressed(grid, [(2, content), (4, content)], QUESTIONS, 1))
        assert good.has_content()
        assert f"an answer to its question '{kind}'" in bad.error.reason
        assert "min_rows=10" in bad.error.reason
        scores = strategy.configure_evaluate(1, start_arrays(), ConfigRecord(), grid)
        replies = {reply.metadata.src_node_id: reply for reply in grid.send_and_receive(scores)}
        assert replies[2].has_content()
        assert "the server asks for an evaluation" in replies[4].error.reason


def test_an_evaluation_is_about_the_rows_that_it_is_about():
    held_out = LeastSquares(np.ones((3, 6)), np.ones(3))
    loads = {"load_evaluation_objective": lambda context: held_out, "disclosure": Disclosure(min_rows=10)}
    app = client_app(lambda context: clients()[1], **loads)
    result = simulated(FedDualAvg(client_lr=0.01), app, 1, num_nodes=2, raise_errors=False)
    assert result.train_metrics_clientapp[1]["num-replies"] == 2
    assert {row.kind for row in result.left_out} == {"evaluate"}


@pytest.mark.parametrize("limit", ["min_rows", "min_class_rows", None])
@pytest.mark.parametrize(
    ("raised", "shown"),
    [
        (lambda: Logistic(np.zeros((30, 2)), ["John"] + ["no"] * 29), "(ConfigurationError)"),
        (lambda: np.array(["John"]).astype(float), "(ValueError)"),
        (lambda: {}["John"], "(KeyError)"),
    ],
)
def test_the_text_of_an_error_about_the_data_tells_no_value(caplog, raised, shown, limit):
    """The site's own log has it."""
    app = client_app(lambda context: raised(), disclosure=Disclosure(**{limit: 5} if limit else {}))
    grid = InProcessGrid(app, 1, raise_errors=False)
    content = encode_question(Question("gradient", Logistic(np.zeros((2, 2)), [0, 1]).layout))
    with caplog.at_level(logging.ERROR, "flwr"):
        (reply,) = grid.send_and_receive(addressed(grid, [(2, content)], QUESTIONS, 0))
    reason = str(reply.error.reason)
    assert ("John" in reason) == (limit is None)
    assert (f"this site's data cannot be loaded {shown}" in reason) == (limit is not None)
    assert limit is None or "John" in caplog.text

"""What a site's owner may forbid: answers about few rows, few of a class, few events."""

import logging
import re

import numpy as np
import pandas as pd
import pytest
from fitting import fitting
from flwr.app import ConfigRecord
from problems import CONSTANTS, SADDLE, app_of, clients, kind_of, start_arrays
from representatives import by_class

from flwr_fco import topology
from flwr_fco.client_apps import Disclosure, Limits, client_app
from flwr_fco.core.logs import quiet
from flwr_fco.errors import ClientError, ConfigurationError
from flwr_fco.messages.protocol import Question
from flwr_fco.messages.records import QUESTIONS, addressed, encode_question
from flwr_fco.objectives import (
    CoxRegression,
    Huber,
    LeastSquares,
    Logistic,
    MultinomialLogistic,
    Poisson,
)
from flwr_fco.regularizers import L1
from flwr_fco.simulation import InProcessGrid, simulate
from flwr_fco.strategies import FedDualAvg, Minimise, Steps
from reproduction.data.saddle_objectives import QuadraticSaddle

NAN = float("nan")


# --- the object -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "value"),
    [
        *(("min_rows", value) for value in (0, -3, 2.5, True, "3", NAN)),
        *(("min_class_rows", value) for value in (0, -1, 1.5, False)),
        *(("min_events", value) for value in (0, -1, 1.5, False, "5")),
    ],
)
def test_a_limit_that_is_none_is_refused_with_its_value(limit, value):
    with pytest.raises(ConfigurationError, match=rf"Disclosure\.{limit}={re.escape(repr(value))}.*expected"):
        Disclosure(**{limit: value})


def test_without_limits_everything_leaves():
    Disclosure().check_rows(0, "a fold")
    Disclosure().check_classes([1, 0, 5], "a fold")


def test_as_many_as_the_limit_are_enough_and_a_class_without_rows_is_none():
    limits = Disclosure(min_rows=5, min_class_rows=3)
    limits.check_rows(5, "a fold")
    limits.check_classes([3, 0, 9], "a fold")
    with pytest.raises(ConfigurationError, match="asks for a fold; this site has fewer rows for it than min_rows=5"):
        limits.check_rows(4, "a fold")
    with pytest.raises(ConfigurationError, match="asks for a fold; this site has a class with fewer rows"):
        limits.check_classes([3, 2, 9], "a fold")


# --- rows and classes -------------------------------------------------------------------------------------------------


def made(name, **more):
    kind = kind_of(name)
    options = {"client_lr": 0.01, "batch_size": 5, "work": (Steps(4, batch_size=5), Minimise())}
    options |= CONSTANTS.get(name, {}) | {"fraction_evaluate": 0.0, "min_train_nodes": 1}
    if name.startswith(("DFed", "DReFed")):
        options |= {"mixing": topology.ring(4), "weighting": "uniform"}
    if name == "DReFedDAGT":
        options |= {"radius_squared": 0.5}
    return kind(**fitting(kind, options | more))


def refused(name, limits, rounds=3, **more):
    objectives = clients()
    if name in SADDLE:
        objectives = [
            QuadraticSaddle(np.eye(3), np.eye(3), np.eye(3), linear=np.ones(3), offset=np.ones(3), num_examples=n)
            for n in (12, 25, 7, 16)
        ]
    layout = objectives[0].layout
    return simulate(
        made(name, **more),
        app_of(objectives, disclosure=limits),
        num_nodes=4,
        num_rounds=rounds,
        initial_arrays={name: np.zeros(shape) for name, shape in layout.shapes.items()},
        progress=False,
        raise_errors=False,
    )


ASKED = r"the server asks for .*; this site has fewer rows for it than min_rows=10 allows.*disclosure=Disclosure"


@pytest.mark.parametrize("name", by_class())
def test_a_site_with_few_rows_takes_part_in_no_strategy(name):
    """Of 12, 25, 7 and 16 rows; a method that needs everyone ends with its name."""
    limits = Disclosure(min_rows=10)
    if kind_of(name).algorithm.reads == "everyone":
        with pytest.raises(ConfigurationError, match=r"partition 2 gave no good.*\(the last one: .*min_rows=10"):
            refused(name, limits, rounds=5)
        return
    result = refused(name, limits)
    assert not result.train_metrics_clientapp[max(result.train_metrics_clientapp)]["skipped"]
    reasons = [row for row in result.left_out if row.partition_id == 2]
    assert len(reasons) >= 3
    assert all(re.search(ASKED, row.reason.replace("\n", " ")) for row in reasons)
    assert {row.partition_id for row in result.left_out} == {2}
    # Its own number of rows stays at home.
    assert not any("7 rows" in row.reason or " 7" in row.reason.partition("\n")[0] for row in reasons)


def test_the_others_train_as_if_it_was_not_there():
    rows = [objective for objective in clients() if objective.num_examples >= 10]
    strategy = FedDualAvg(regularizer=L1(0.1), client_lr=0.02, fraction_evaluate=0.0, min_train_nodes=1)
    result = simulate(
        strategy,
        app_of(clients(), disclosure=Disclosure(min_rows=10)),
        num_nodes=4,
        num_rounds=5,
        initial_arrays=start_arrays(),
        progress=False,
        raise_errors=False,
    )
    assert result.train_metrics_clientapp[5]["num-replies"] == len(rows) == 3
    assert result.train_metrics_clientapp[5]["skipped"] == 0


def test_in_a_simulation_the_refusal_is_an_error_with_node_and_limit():
    with pytest.raises(ClientError, match=r"partition 2.*fewer rows for it than min_rows=10"):
        simulate(
            FedDualAvg(client_lr=0.02, fraction_evaluate=0.0, min_train_nodes=1),
            app_of(clients(), disclosure=Disclosure(min_rows=10)),
            num_nodes=4,
            num_rounds=1,
            initial_arrays=start_arrays(),
            progress=False,
        )


@pytest.mark.parametrize("kind", ["gradient", "validation", "duality", "smoothness"])
def test_questions_and_evaluations_are_refused_too(kind):
    grid = InProcessGrid(app_of(clients(), disclosure=Disclosure(min_rows=10)), 4, raise_errors=False)
    strategy = FedDualAvg(client_lr=0.1)
    with grid.identity(), quiet(50):
        layout = strategy.prepare(start_arrays()).problem.layout
        numbers = {"batch-size": 0.0} if kind == "smoothness" else {"references": 1.0}
        question = Question(kind, layout, {"primal": np.zeros(7)}, numbers)
        contents = [(node, encode_question(question)) for node in (2, 4)]
        good, bad = grid.send_and_receive(addressed(grid, contents, QUESTIONS, 1))
        assert good.has_content()
        assert f"an answer to its question '{kind}'" in bad.error.reason
        assert "min_rows=10" in bad.error.reason
        scores = strategy.configure_evaluate(1, start_arrays(), ConfigRecord(), grid)
        replies = {reply.metadata.src_node_id: reply for reply in grid.send_and_receive(scores)}
        assert replies[2].has_content()
        assert "the server asks for an evaluation" in replies[4].error.reason


def test_an_evaluation_is_about_the_rows_that_it_is_about():
    held_out = LeastSquares(np.ones((3, 6)), np.ones(3))
    app = client_app(
        lambda context: clients()[1],
        load_evaluation_objective=lambda context: held_out,
        disclosure=Disclosure(min_rows=10),
    )
    grid = InProcessGrid(app, 2, raise_errors=False)
    strategy = FedDualAvg(client_lr=0.01)
    with grid.identity(), quiet(50):
        result = strategy.start(grid, start_arrays(), 1)
    assert result.train_metrics_clientapp[1]["num-replies"] == 2
    assert {row.kind for row in result.left_out} == {"evaluate"}


def of_classes(*counts):
    labels = np.repeat(np.arange(len(counts)), counts)
    features = np.random.default_rng(0).normal(size=(labels.size, 2))
    return MultinomialLogistic(features, labels, num_classes=len(counts))


def test_a_rare_class_is_refused_and_an_absent_one_is_not():
    limits, what = Disclosure(min_class_rows=5), "a round"
    limits.check(of_classes(5, 9, 7), what)
    limits.check(of_classes(5, 0, 7), what)
    limits.check(Logistic(np.eye(6), np.ones(6, dtype=int)), what)
    limits.check(LeastSquares(np.eye(2), np.ones(2)), what)
    for objective in (of_classes(5, 4, 7), of_classes(1, 9, 9), Logistic(np.eye(6), np.r_[1, 0, 0, 0, 0, 0])):
        with pytest.raises(
            ConfigurationError, match="asks for a round; this site has a class with fewer rows than min_class_rows=5"
        ):
            limits.check(objective, what)
    saddle = QuadraticSaddle(np.eye(3), np.eye(3), np.eye(3), num_examples=30)
    with pytest.raises(ConfigurationError, match="min_class_rows=5, and its QuadraticSaddle does not say which class"):
        limits.check(saddle, what)


def test_a_rare_class_is_left_out_with_its_limit_in_a_run():
    objectives = [of_classes(5, 9, 7), of_classes(6, 3, 7), of_classes(9, 9, 9)]
    result = simulate(
        FedDualAvg(client_lr=0.1, fraction_evaluate=0.0, min_train_nodes=1),
        app_of(objectives, disclosure=Disclosure(min_class_rows=5)),
        num_nodes=3,
        num_rounds=2,
        initial_arrays={name: np.zeros(shape) for name, shape in objectives[0].layout.shapes.items()},
        progress=False,
        raise_errors=False,
    )
    assert [row.partition_id for row in result.left_out] == [1, 1]
    assert "min_class_rows=5" in result.left_out[0].reason


# --- events -----------------------------------------------------------------------------------------------------------


def test_events_are_a_class_and_numbers_are_none():
    """Few events are what few of a class are; a loss of numbers has no classes, whatever its weights."""
    limits, X = Disclosure(min_class_rows=5), np.ones((12, 1))
    numbers = np.arange(12.0)
    for objective in (Poisson(X, numbers), Huber(X, numbers), LeastSquares(X, numbers, sample_weight=numbers + 1.0)):
        limits.check(objective, "a round")
    limits.check(CoxRegression(X, numbers, numbers > 6.0), "a round")
    with pytest.raises(ConfigurationError, match="a class with fewer rows than min_class_rows=5"):
        limits.check(CoxRegression(X, numbers, numbers > 9.0), "a round")


def test_few_events_are_refused_whatever_the_loss_calls_them():
    """Deaths, counts above 0, rows of each class; no event at all is not few, and numbers have none."""
    limits, X, n = Disclosure(min_events=5), np.ones((12, 1)), np.arange(12.0)
    for objective in (
        CoxRegression(X, n, n > 6.0),
        CoxRegression(X, n, n > 2.0),  # three censored rows
        CoxRegression(X, n, n > 20.0),
        Poisson(X, np.where(n > 6.0, 1.0, 0.0)),
        Poisson(X, np.zeros(12)),
        Logistic(X, n > 6.0),
        Logistic(X, n > 20.0),
        LeastSquares(X, n),
        Huber(X, n),
    ):
        limits.check(objective, "a round")
    for objective in (
        CoxRegression(X, n, n > 7.0),
        CoxRegression(X, n, n > 10.0),
        Poisson(X, np.where(n > 7.0, 900.0, 0.0)),
        Poisson(X, np.where(n > 10.0, 0.5, 0.0)),
        Logistic(X, n > 7.0),
        Logistic(X, n > 1.5),
        of_classes(5, 4, 7),
    ):
        with pytest.raises(ConfigurationError, match="asks for a round; this site has fewer events than min_events=5"):
            limits.check(objective, "a round")


def test_an_own_loss_says_its_events_or_is_refused():
    limits = Disclosure(min_events=5)
    saddle = QuadraticSaddle(np.eye(3), np.eye(3), np.eye(3), num_examples=30)
    with pytest.raises(ConfigurationError, match=r"QuadraticSaddle does not say its events: give it .* `num_events`"):
        limits.check(saddle, "a round")
    saddle.num_events = 5
    limits.check(saddle, "a round")
    saddle.num_events = 4
    with pytest.raises(ConfigurationError, match="fewer events than min_events=5"):
        limits.check(saddle, "a round")


def test_the_events_of_a_subset_are_its_own():
    """A fold is refused by its own events, not by the site's."""
    n = np.arange(12.0)
    for whole in (CoxRegression(np.ones((12, 1)), n, n > 5.0), Poisson(np.ones((12, 1)), np.maximum(n - 5.0, 0.0))):
        limits = Disclosure(min_events=3)
        limits.check(whole.subset(np.arange(3, 9))[0], "a fold")
        with pytest.raises(ConfigurationError, match="min_events=3"):
            limits.check(whole.subset(np.arange(2, 8))[0], "a fold")


def test_limits_on_work_stand_beside_it():
    app = app_of(clients(), disclosure=Disclosure(min_rows=2), limits=Limits(max_steps=1))
    with pytest.raises(ClientError, match="max_steps=1"):
        simulate(
            FedDualAvg(client_lr=0.01, fraction_evaluate=0.0, work=Steps(3)),
            app,
            num_nodes=4,
            num_rounds=1,
            initial_arrays=start_arrays(),
            progress=False,
        )


@pytest.mark.parametrize("limit", ["min_rows", "min_class_rows", None])
@pytest.mark.parametrize(
    ("raised", "shown"),
    [
        (lambda: Logistic(np.zeros((30, 2)), ["hiv"] + ["no"] * 29), "(ConfigurationError)"),
        (lambda: np.array(["John"]).astype(float), "(ValueError)"),
        (lambda: {}["John"], "(KeyError)"),
        (lambda: Logistic(pd.DataFrame({"sex": ["hiv", "no"]}), [0, 1]), "['sex'] hold texts"),
    ],
    ids=["labels", "a number", "a key", "a column"],
)
def test_the_text_of_an_error_about_the_data_tells_no_value(caplog, raised, shown, limit):
    """Names of columns are said; the site's own log has the rest."""
    app = client_app(lambda context: raised(), disclosure=Disclosure(**{limit: 5} if limit else {}))
    grid = InProcessGrid(app, 1, raise_errors=False)
    layout = Logistic(np.zeros((2, 2)), [0, 1]).layout
    with caplog.at_level(logging.ERROR, "flwr"):
        letters = [(node, encode_question(Question("gradient", layout))) for node in grid.get_node_ids()]
        (reply,) = grid.send_and_receive(addressed(grid, letters, QUESTIONS, 0))
    reason = str(reply.error.reason)
    assert shown in reason or limit is None
    secret = "hiv" in reason or "John" in reason
    assert secret == (limit is None and "sex" not in shown)
    if limit and "sex" not in shown:
        assert "this site's data cannot be loaded" in reason
        assert "hiv" in caplog.text or "John" in caplog.text


def test_an_app_takes_a_disclosure_only():
    with pytest.raises(ConfigurationError, match=r"disclosure=0\.3 .*; expected a Disclosure"):
        client_app(lambda context: None, disclosure=0.3)

"""A round whose update fails leaves everything as it was, whatever the update raises, and where."""

from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
from faulty import Faulty, start_on
from problems import app_of, changed, clients, flat

from flwr_fco.errors import ConfigurationError, MagnitudeError
from flwr_fco.strategies import Average, FedDualAvg, Steps, run_of
from flwr_fco.strategies.checkpoint import go_back, moment


def failing(error, where):
    """Return dual averaging that fails in round 3: in the update, among the points of the average, or by its model."""

    def aggregate(own, self, problem, state, replies):
        if problem.round == 3 and where == "aggregate":
            raise error("too large")
        return own.aggregate(self, problem, state, replies)

    def retrieve(own, self, problem, state):
        if state.round == 3 and where == "points":
            raise error("too large")
        point = own.retrieve(self, problem, state)
        return np.nan * point if state.round == 3 and where == "model" else point

    return changed(FedDualAvg, aggregate=aggregate, retrieve=retrieve)


def run(rounds, error=MagnitudeError, where="nowhere", **options):
    kind = failing(error, where)
    strategy = kind(client_lr=0.02, work=Steps(2, batch_size=None), fraction_evaluate=0.0, **options)
    grid = Faulty(app_of(clients()), 4, None, rounds=())
    try:
        result = start_on(grid, strategy, rounds=rounds)
    except RuntimeError:
        result = None
    return strategy, result


@pytest.mark.parametrize("where", ["aggregate", "points", "model"])
def test_the_average_keeps_the_rounds_before(where):
    options = {"output": Average(), "on_divergence": "warn"}
    strategy, failed = run(3, where=where, **options)
    expected, plain = run(2, **options)
    assert failed.train_metrics_clientapp[3]["skipped"] == 1
    np.testing.assert_array_equal(flat(failed.arrays), flat(plain.arrays))
    np.testing.assert_array_equal(run_of(strategy).average.point(None), run_of(expected).average.point(None))


@pytest.mark.parametrize("where", ["aggregate", "points"])
def test_any_other_error_does_too(where):
    strategy, _ = run(3, RuntimeError, where, output=Average())
    plain, _ = run(2, output=Average())
    np.testing.assert_array_equal(run_of(strategy).average.point(None), run_of(plain).average.point(None))


def test_an_extrapolated_rate_counts_once_the_round_does():
    strategy, _ = run(3, where="aggregate", server_lr="auto", on_divergence="warn")
    plain, _ = run(2, server_lr="auto")
    assert run_of(strategy).chosen == run_of(plain).chosen


class Other(NamedTuple):
    dual: np.ndarray
    round: int


def other(state, primal):
    return Other(state.dual, state.round)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"aggregate": other}, "aggregate returned an Other of 2 values; expected a DualState whose round is 1"),
        (
            {"aggregate": lambda state, primal: state.dual},
            r"aggregate returned an array of shape \(7,\); expected a DualState",
        ),
        ({"aggregate": lambda state, primal: state._replace(round=5)}, "of round 5; expected a DualState whose"),
        ({"aggregate": lambda state, primal: state._replace(round=0)}, "expected a DualState whose round is 1"),
        ({"retrieve": lambda state, primal: primal[:-1]}, r"retrieve returned an array of shape \(6,\); .*\(7,\)"),
        ({"retrieve": lambda state, primal: None}, "retrieve returned None; expected an array"),
    ],
)
def test_what_is_no_next_state_or_no_model_is_named(wrong, said):
    def aggregate(own, self, problem, state, replies):
        return wrong.get("aggregate", lambda state, primal: state)(own.aggregate(self, problem, state, replies), None)

    def retrieve(own, self, problem, state):
        return wrong.get("retrieve", lambda state, primal: primal)(state, own.retrieve(self, problem, state))

    strategy = changed(FedDualAvg, aggregate=aggregate, retrieve=retrieve)(fraction_evaluate=0.0)
    with pytest.raises(ConfigurationError, match=said):
        start_on(Faulty(app_of(clients()), 4, None, rounds=()), strategy)


def test_going_back_undoes_what_was_added_since_as_often_as_it_is_done():
    part = SimpleNamespace(saved=("rows", "members", "present"), rows=[1], members={"a": 1}, present={1})
    before = moment({"part": part})
    for _ in range(2):
        part.rows.append(2)
        part.members["b"] = 2
        part.present.add(2)
        go_back({"part": part}, before)
        assert (part.rows, part.members, part.present) == ([1], {"a": 1}, {1})

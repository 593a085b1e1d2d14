"""Rounds whose update fails leave all as it was, runs that diverge end in words; what a method rejects and reports.

One reply is worth one reply: every strategy under faults, beside a run in which the same replies are missing.
"""

import logging
from collections import namedtuple
from contextlib import nullcontext, suppress
from itertools import cycle

import numpy as np
import pytest
from fault_bars import KINDS, ROUNDS, SOAK, hold_the_bar
from faulty import Faulty, scaled, start_on, with_increment
from faulty import strategy as strategy_of
from numpy.linalg import matrix_rank
from problems import REPRESENTATIVES, app_of, by_class, changed, clients, flat, foreign_app, nightly, refused, simulated
from problems import run as run_from

import flwr_fco as fco
from flwr_fco.algorithms import DualAveraging, Rejected
from flwr_fco.errors import ClientError, DivergedError, MagnitudeError
from flwr_fco.objectives import LeastSquares
from flwr_fco.regularizers import L1
from flwr_fco.strategies import STRATEGIES, FedDAGT, FedDualAvg, Steps, run_of
from reproduction.pooled import certify

GO_ON = {"fraction_evaluate": 0.0, "on_divergence": "warn"}


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
    options = {"client_lr": 0.02, "work": Steps(2, batch_size=None), "fraction_evaluate": 0.0, **options}
    strategy = failing(error, where)(**options)
    with suppress(RuntimeError):
        start_on(Faulty(app_of(clients()), 4, None, rounds=()), strategy, rounds=rounds)
    return strategy, strategy.result


#: Where, and what it raises.
FAILURES = [(where, MagnitudeError) for where in ("aggregate", "points", "model")]
FAILURES += [(where, RuntimeError) for where in ("aggregate", "points")]


@pytest.mark.parametrize(("where", "error"), FAILURES)
def test_average_and_momentum_keep_the_rounds_before(where, error):
    options = {"output": fco.Average(), "server_momentum": 0.5, "on_divergence": "warn"}
    strategy, failed = run(3, error, where, **options)
    expected, plain = run(2, **options)
    np.testing.assert_array_equal(*(np.divide(*run_of(own).average) for own in (strategy, expected)))
    np.testing.assert_array_equal(*(np.append(*run_of(own).momentum.velocity) for own in (strategy, expected)))
    if error is MagnitudeError:
        assert failed.train_metrics_clientapp[3]["skipped"] == 1
        np.testing.assert_array_equal(flat(failed.arrays), flat(plain.arrays))


def test_an_extrapolated_rate_counts_once_the_round_does():
    options = {"client_lr": 0.3, "work": Steps(10, batch_size=None), "server_lr": "auto", "on_divergence": "warn"}
    plain, after = run_of(run(2, **options)[0]), run_of(run(3, **options)[0])
    assert run_of(run(3, where="aggregate", **options)[0]).chosen == plain.chosen != after.chosen


def test_buffers_and_what_nobody_has_trained_stay_as_they_were():
    def trained(arrays, message, context):
        late = float(message.content["config"]["server-round"] == 3)
        return {"w": arrays["w"] + 1.0, "late": arrays["late"] + late, "mean": arrays["mean"] + 1.0}

    start = {name: np.zeros(2) for name in ("w", "late", "mean")}
    strategy = failing(MagnitudeError, "model")(**GO_ON, client="unmodified", arrays=fco.Arrays(pass_through=["mean"]))
    simulated(strategy, foreign_app(trained), 3, initial_arrays=start)
    assert (run_of(strategy).passed["mean"].tolist(), run_of(strategy).untrained.names) == ([2.0, 2.0], {"late"})


OTHER = namedtuple("Other", "dual round")


ODD_FUNCTIONS = [
    ("aggregate", lambda state: OTHER(state.dual, state.round), "an Other of 2 values; expected a DualState whose"),
    ("aggregate", lambda state: state.dual, r"an array of shape \(7,\); expected a DualState"),
    ("init", lambda state: state._replace(dual=state.dual - np.inf), r"no finite dual: .* domain of Euclidean\(\)"),
    ("aggregate", lambda state: state._replace(round=5), "of round 5; expected a DualState whose"),
    ("aggregate", lambda state: state._replace(round=0), "expected a DualState whose round is 1"),
    ("retrieve", lambda primal: primal[:-1], r"retrieve returned an array of shape \(6,\); .*\(7,\)"),
    ("retrieve", lambda primal: None, "retrieve returned None; expected an array"),
    ("metrics", lambda found: None, r"DualAveraging.metrics\(problem, state\)=None .*; expected a mapping"),
    ("metrics", lambda found: {"size": "small"}, r"DualAveraging.metrics.* holds what is no number.*'str'"),
    ("shapes", lambda found: {"increment": 7}, "shapes returned .*; expected shapes by name"),
    ("setting", lambda found: None, r"setting\(given, state\)=None .*; expected a Setting"),
]


@pytest.mark.parametrize(("function", "change", "said"), ODD_FUNCTIONS)
def test_what_is_no_next_state_or_no_model_is_named(function, change, said):
    other = {function: lambda own, *given: change(getattr(own, function)(*given))}
    refused(said, run_from, changed(FedDualAvg, **other)(), clients(), 3)


# --- what is not finite is neither kept as a state nor returned as a model --------------------------------------------


# The dual stays finite, its quotient by tiny weights does not.
OVERFLOWS = [({"mirror_map": fco.DiagonalMetric(np.full(7, 1e-306)), "client_lr": 100.0}, -100.0, np.float64)]
OVERFLOWS += [({"client_lr": 1e38, "work": Steps(2)}, 1e6, np.float32)]


@pytest.mark.parametrize(("options", "targets", "dtype"), OVERFLOWS)
def test_a_primal_that_is_not_finite_is_never_returned(options, targets, dtype):
    features = np.abs(np.random.default_rng(0).standard_normal((20, 6)))
    losses = [LeastSquares(features, np.full(20, targets), scale=0.5)] * 2
    start = {"coefficients": np.ones(6, dtype), "intercept": np.ones(1, dtype)}
    result = run_from(FedDualAvg(**GO_ON, **options), losses, 3, start=start)
    assert np.isfinite(flat(result.arrays)).all()
    assert any(metrics["skipped"] for metrics in result.train_metrics_clientapp.values())


def test_a_state_that_is_not_finite_is_skipped_even_if_its_primal_is():
    """Increments of 1e150 over an elapsed time of 1e-160: the dual stays finite, the trackers' mean would not."""
    chosen = FedDAGT(client_lr=1e-160, work=Steps(1, batch_size=None), bounds=fco.Bounds(max_ratio=None), **GO_ON)
    fault = with_increment(lambda arrays: {name: np.full(value.size, 1e150) for name, value in arrays.items()})
    result = start_on(Faulty(app_of(clients()), 4, fault, nodes=(2, 3, 4, 5)), chosen)
    assert result.left_out == []
    assert [metrics["skipped"] for metrics in result.train_metrics_clientapp.values()] == [0, 1, 0]
    assert np.isfinite(chosen.state.control).all()


# --- replies that a method rejects, and its numbers ------------------------------------------------------------------


class Suspicious(DualAveraging):
    """Dual averaging that takes no reply from partitions 1 and 3, and has enough after four rounds."""

    def aggregate(self, problem, state, replies):
        for uplink in replies:
            if uplink.node.partition_id in (1, 3):
                raise Rejected(uplink, f"partition {uplink.node.partition_id} is not to be believed")
        return super().aggregate(problem, state, replies)

    def metrics(self, problem, state):
        return {"seen": state.round, **({"finished": "that will do"} if state.round == 4 else {})}


def test_what_a_method_rejects_is_left_out_and_the_step_is_of_the_others():
    options = {"client_lr": 0.02, "work": Steps(2, batch_size=None)}
    strategy = type("Doubting", (FedDualAvg,), {"algorithm": Suspicious})(**options)
    result = run_from(strategy, clients(), 9)
    believed = run_from(FedDualAvg(**options), clients()[::2], 4)
    np.testing.assert_allclose(flat(result.arrays), flat(believed.arrays), rtol=1e-12)
    # A text in the metrics ends the run, and is none of them.
    assert {*result.train_metrics_clientapp} == {1, 2, 3, 4}
    last = dict(result.train_metrics_clientapp[4])
    assert (last["seen"], last["num-replies"], last["num-left-out"], "finished" in last) == (4, 2, 2, False)
    reasons = {row.reason for row in result.left_out}
    assert reasons == {"partition 1 is not to be believed", "partition 3 is not to be believed"}


@pytest.mark.parametrize("psi", [fco.Nuclear(2.0), fco.NuclearBall(1.0)], ids=str)
def test_rank_is_that_of_each_rounds_model(psi):
    rng = np.random.default_rng(0)
    truth = rng.standard_normal((8, 1)) @ rng.standard_normal((1, 5))
    features = rng.standard_normal((3, 60, 8, 5))
    objectives = [fco.TraceRegression(x, np.einsum("nij,ij->n", x, truth), intercept=False) for x in features]
    seen = []
    own = FedDualAvg(regularizer=psi, client_lr=0.02, work=fco.Epochs(1, batch_size=None))
    start = {"coefficients": np.zeros((8, 5))}
    result = run_from(own, objectives, 15, start=start, callbacks=[lambda n, arrays, m: seen.append(arrays)])
    ranks = [matrix_rank(arrays["coefficients"].numpy(), 1e-9) for arrays in seen]
    assert [metrics["rank"] for metrics in result.train_metrics_clientapp.values()] == ranks
    assert 0 < min(ranks[1:]) < 5


def test_a_methods_numbers_replace_none_of_the_rounds_own():
    own = changed(fco.FedDualAvg, metrics=lambda own, self, problem, state: {"skipped": 7, "num-replies": 7, "mine": 7})
    metrics = run_from(own(client_lr=0.05, work=Steps(2)), clients(), 1).train_metrics_clientapp[1]
    assert (metrics["skipped"], metrics["num-replies"], metrics["mine"]) == (0, 4, 7)
    # 'elapsed', which is what a message calls it, would be read as seconds in a table.
    assert (metrics["local-steps"], metrics["sum-of-step-sizes"]) == (2, pytest.approx(0.1))
    assert "elapsed" not in metrics


TWO_CLASSES = fco.MultinomialLogistic(np.ones((4, 3)), [0, 1, 0, 1])
OTHERS = {
    "another shape": (LeastSquares(np.ones((4, 2)), np.ones(4)), np.zeros(3), 1, "the server's model has"),
    "whole numbers": (LeastSquares(np.ones((4, 3)), np.ones(4)), np.zeros(3, int), 1, "here 'coefficients'. Give"),
    "fewer classes": (TWO_CLASSES, np.zeros((3, 4)), 4, "give all of them the same num_classes="),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_model_that_is_not_the_clients_is_an_error_that_says_so(name):
    objective, coefficients, intercepts, said = OTHERS[name]
    start = {"intercept": np.zeros(intercepts), "coefficients": coefficients}
    refused(said, simulated, strategy_of(), app_of([objective] * 4), 1, initial_arrays=start, kind=ClientError)


# --- divergence -------------------------------------------------------------------------------------------------------


def largest_stable_rate(objectives):
    """2 / L of the pooled quadratic, whose gradient steps diverge for any larger rate."""
    sizes = [objective.num_examples for objective in objectives]
    hessians = [np.stack([f.hessian_product(np.zeros(7), column) for column in np.eye(7)]) for f in objectives]
    return 2.0 / float(np.linalg.eigvalsh(np.average(hessians, axis=0, weights=sizes)).max())


@pytest.mark.parametrize("factor", [1.05, 1.5, 10.0, 1e3, 1e8, 1e14])
@pytest.mark.parametrize("cls", [FedDualAvg, fco.FedMid, fco.FedAvgSubgradient])
def test_every_rate_above_the_stability_limit_ends_in_the_error(cls, factor):
    """Oracle: full gradient steps on a quadratic diverge exactly above 2 / L."""
    objectives = clients()
    rate = factor * largest_stable_rate(objectives)
    strategy = cls(client_lr=rate, work=Steps(1, batch_size=None))
    with pytest.raises(DivergedError) as caught:
        run_from(strategy, objectives, 2000, start=np.ones(7))
    error = caught.value
    for said in (f"in round {error.server_round}", f"client_lr={rate:g}", f"{rate / 10:g}"):
        assert said in str(error)
    # What Ray raises of it in another process takes attributes of its class from there.
    assert (0 <= error.good_round < error.server_round, hasattr(DivergedError, "good_round")) == (True, False)
    # Ten times the first model's norm, which a large rate has moved by its multiple of the gradient at the start.
    assert np.linalg.norm(flat(error.arrays)) < 1e3 * max(1.0, rate)
    assert error.arrays is error.result.arrays


@pytest.mark.parametrize("factor", [0.95, *nightly(0.05, 0.5)])
def test_no_rate_below_the_stability_limit_does(factor):
    objectives = clients()
    rate = factor * largest_stable_rate(objectives)
    strategy = FedDualAvg(regularizer=L1(0.3), client_lr=rate, work=Steps(1, batch_size=None))
    assert certify(objectives, None, L1(0.3), flat(run_from(strategy, objectives, 450).arrays)).value < 1e-2


def test_a_sparse_start_and_large_coefficients_are_no_divergence():
    """The first models are exactly 0 and the solution is 2e4: the norm grows from 0 by as much."""
    features = np.random.default_rng(0).standard_normal((60, 6))
    objectives = [LeastSquares(features, 1e4 * features[:, 0] * 2.0, scale=0.5) for _ in range(3)]
    strategy = FedDualAvg(regularizer=L1(1e4), client_lr=1e-2, work=Steps(1, batch_size=None))
    assert np.abs(flat(run_from(strategy, objectives, 300).arrays)).max() > 5e3


@pytest.mark.parametrize(("number", "asked"), [(1, 4), (1, 2), (10, 1)])
def test_local_steps_that_overflow_name_the_client_rate(number, asked, caplog):
    some = fco.strategies.Participation(choose_nodes=lambda number, nodes: nodes[:asked])
    strategy = FedDualAvg(client_lr=50.0, work=Steps(400, batch_size=None), participation=some)
    said = rf"round {number}: the local steps of all clients overflow. client_lr=50 .*try 5,.* NaN in"
    refused(said, run_from, strategy, clients(), 100, kind=DivergedError)
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) < 10 * number + 10


def test_exponentials_from_which_nothing_comes_back_are_a_divergence():
    objectives = [fco.Poisson(100.0 * np.abs(own.features), np.arange(own.num_examples)) for own in clients()]
    refused("round 1: the norm", run_from, FedDualAvg(work=Steps(5)), objectives, 9, kind=DivergedError)


def test_warn_says_so_once_and_goes_on(caplog):
    result = run_from(FedDualAvg(client_lr=2.0, work=Steps(1, batch_size=None), on_divergence="warn"), clients(), 100)
    assert max(result.train_metrics_clientapp) == 100
    assert ['on_divergence="warn"' in r.getMessage() for r in caplog.records if "diverged" in r.getMessage()] == [True]


@pytest.mark.parametrize("cls", [FedDAGT, fco.Scaffold])
def test_methods_with_memories_too(cls):
    refused("", run_from, cls(client_lr=3.0, work=Steps(3, batch_size=None)), clients(), 2000, kind=DivergedError)


@pytest.mark.parametrize(("nodes", "rounds"), [((2,), (5, 6)), ((2, 3), (5,)), ((2, 3), (5, 6))])
def test_a_run_is_over_where_half_of_the_clients_are_far_too_long_twice(nodes, rounds):
    grid = Faulty(app_of(clients()), 4, scaled(1e6), rounds=rounds, nodes=nodes)
    with pytest.raises(DivergedError, match="half of the clients") if len(nodes + rounds) == 4 else nullcontext():
        start_on(grid, strategy_of(), rounds=8)


# --- every strategy under faults --------------------------------------------------------------------------------------

#: Each representative with one kind of what is wrong. Where everybody must answer, a round with a bad reply is skipped.
SAMPLE = list(zip(REPRESENTATIVES, cycle(["absurd numbers", "bytes", "malformed"]), strict=False))


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", STRATEGIES)
def test_what_is_wrong_counts_as_if_it_were_missing(name, kind):
    hold_the_bar(name, kind, ROUNDS)


@pytest.mark.parametrize(("name", "kind"), SAMPLE)
def test_what_is_wrong_counts_as_if_it_were_missing_in_short(name, kind):
    hold_the_bar(name, kind, 16)


@pytest.mark.nightly
@pytest.mark.parametrize("number", [6, 12])
@pytest.mark.parametrize("kind", SOAK)
@pytest.mark.parametrize("name", STRATEGIES)
def test_nothing_ends_and_errors_are_those_without_the_bad_replies(name, kind, number):
    hold_the_bar(name, kind, ROUNDS, kinds=SOAK, clients=number)


@pytest.mark.parametrize("name", ["FedDualAvg", "FedDR", "DFedDAGT"])
@pytest.mark.parametrize("kind", ["absurd numbers", "no examples"])
def test_six_clients_hold_it_in_short(name, kind):
    hold_the_bar(name, kind, 16, kinds=SOAK, clients=6)


@pytest.mark.parametrize("name", by_class(["FedDAGT", "DualFL"]))
def test_a_memory_forgets_one_altered_reply(name):
    hold_the_bar(name, "one altered reply", 55)

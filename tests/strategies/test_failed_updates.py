"""A round whose update fails leaves all as it was, whatever the update raises, and where; what a method rejects."""

from collections import namedtuple
from types import SimpleNamespace

import numpy as np
import pytest
from faulty import Faulty, start_on, with_increment
from problems import FEATURES, D, app_of, changed, clients, flat, foreign_app, simulated
from problems import run as run_from

from flwr_fco.algorithms import DualAveraging, Rejected
from flwr_fco.errors import ConfigurationError, MagnitudeError
from flwr_fco.mirror_maps import DiagonalMetric
from flwr_fco.objectives import LeastSquares
from flwr_fco.strategies import Arrays, Average, Bounds, Epochs, FedDAGT, FedDualAvg, Steps, run_of
from flwr_fco.strategies.checkpoint import go_back, moment
from flwr_fco.work import FirstOrder

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
    kind = failing(error, where)
    work = Steps(2, batch_size=None)
    strategy = kind(**{"client_lr": 0.02, "work": work, "fraction_evaluate": 0.0, **options})
    grid = Faulty(app_of(clients()), 4, None, rounds=())
    try:
        result = start_on(grid, strategy, rounds=rounds)
    except RuntimeError:
        result = None
    return strategy, result


@pytest.mark.parametrize("where", ["aggregate", "points", "model"])
def test_average_and_momentum_keep_the_rounds_before(where):
    options = {"output": Average(), "server_momentum": 0.5, "on_divergence": "warn"}
    strategy, failed = run(3, where=where, **options)
    expected, plain = run(2, **options)
    assert failed.train_metrics_clientapp[3]["skipped"] == 1
    np.testing.assert_array_equal(flat(failed.arrays), flat(plain.arrays))
    np.testing.assert_array_equal(run_of(strategy).average.point(None), run_of(expected).average.point(None))
    np.testing.assert_array_equal(*(np.append(*run_of(own).momentum.velocity) for own in (strategy, expected)))


@pytest.mark.parametrize("where", ["aggregate", "points"])
def test_any_other_error_does_too(where):
    strategy, _ = run(3, RuntimeError, where, output=Average())
    plain, _ = run(2, output=Average())
    np.testing.assert_array_equal(run_of(strategy).average.point(None), run_of(plain).average.point(None))


def test_an_extrapolated_rate_counts_once_the_round_does():
    options = {"client_lr": 0.3, "work": Steps(10, batch_size=None), "server_lr": "auto", "on_divergence": "warn"}
    plain, after = run_of(run(2, **options)[0]), run_of(run(3, **options)[0])
    assert run_of(run(3, where="aggregate", **options)[0]).chosen == plain.chosen != after.chosen


def test_buffers_and_what_nobody_has_trained_stay_as_they_were():
    def trained(arrays, message, context):
        late = float(message.content["config"]["server-round"] == 3)
        return {"w": arrays["w"] + 1.0, "late": arrays["late"] + late, "mean": arrays["mean"] + 1.0}

    start = {name: np.zeros(2) for name in ("w", "late", "mean")}
    strategy = failing(MagnitudeError, "model")(**GO_ON, client="unmodified", arrays=Arrays(pass_through=["mean"]))
    simulated(strategy, foreign_app(trained), 3, initial_arrays=start)
    assert run_of(strategy).passed["mean"].tolist() == [2.0, 2.0]
    assert run_of(strategy).untrained.names == {"late"}


OTHER = namedtuple("Other", "dual round")


@pytest.mark.parametrize(
    ("function", "change", "said"),
    [
        ("aggregate", lambda state: OTHER(state.dual, state.round), "an Other of 2 values; expected a DualState whose"),
        ("aggregate", lambda state: state.dual, r"an array of shape \(7,\); expected a DualState"),
        ("aggregate", lambda state: state._replace(round=5), "of round 5; expected a DualState whose"),
        ("aggregate", lambda state: state._replace(round=0), "expected a DualState whose round is 1"),
        ("retrieve", lambda primal: primal[:-1], r"retrieve returned an array of shape \(6,\); .*\(7,\)"),
        ("retrieve", lambda primal: None, "retrieve returned None; expected an array"),
    ],
)
def test_what_is_no_next_state_or_no_model_is_named(function, change, said):
    other = {function: lambda own, *given: change(getattr(own, function)(*given))}
    with pytest.raises(ConfigurationError, match=said):
        start_on(Faulty(app_of(clients()), 4, None, rounds=()), changed(FedDualAvg, **other)(fraction_evaluate=0.0))


def test_going_back_undoes_what_was_added_since_as_often_as_it_is_done():
    part = SimpleNamespace(saved=("rows", "members", "present"), rows=[1], members={"a": 1}, present={1})
    before = moment({"part": part})
    for _ in range(2):
        part.rows.append(2)
        part.members["b"] = 2
        part.present.add(2)
        go_back({"part": part}, before)
        assert (part.rows, part.members, part.present) == ([1], {"a": 1}, {1})


# --- what is not finite is neither kept as a state nor returned as a model --------------------------------------------


@pytest.mark.parametrize(
    ("options", "targets", "dtype"),
    [
        # The dual stays finite, its quotient by tiny weights does not.
        ({"mirror_map": DiagonalMetric(np.full(D, 1e-306)), "client_lr": 100.0, "work": Steps(1)}, -100.0, np.float64),
        ({"client_lr": 1e38, "work": Steps(2)}, 1e6, np.float32),
    ],
    ids=["tiny weights", "float32"],
)
def test_a_primal_that_is_not_finite_is_never_returned(options, targets, dtype):
    features = np.abs(np.random.default_rng(0).standard_normal((20, FEATURES)))
    losses = [LeastSquares(features, np.full(20, targets), scale=0.5)] * 2
    start = {"coefficients": np.ones(FEATURES, dtype), "intercept": np.ones(1, dtype)}
    result = run_from(FedDualAvg(**GO_ON, **options), losses, 3, start=start)
    assert np.isfinite(flat(result.arrays)).all()
    assert any(metrics["skipped"] for metrics in result.train_metrics_clientapp.values())


def test_a_state_that_is_not_finite_is_skipped_even_if_its_primal_is():
    """Increments of 1e150 over an elapsed time of 1e-160: the dual stays finite, the trackers' mean would not."""
    chosen = FedDAGT(client_lr=1e-160, work=Steps(1, batch_size=None), bounds=Bounds(max_ratio=None), **GO_ON)
    fault = with_increment(lambda arrays: {name: np.full(value.size, 1e150) for name, value in arrays.items()})
    result = start_on(Faulty(app_of(clients()), 4, fault, nodes=(2, 3, 4, 5)), chosen)
    assert result.left_out == []
    assert [metrics["skipped"] for metrics in result.train_metrics_clientapp.values()] == [0, 1, 0]
    assert np.isfinite(chosen.state.control).all()


# --- what methods to come stand on: work that changes, and replies that a method rejects ------------------------------


class GrowingWork(DualAveraging):
    """The number of local steps changes from round to round."""

    def downlink(self, problem, state, to):
        work = FirstOrder(steps=problem.round, batch_size=None)
        return super().downlink(problem, state, to)._replace(work=work)


class RandomSteps(FedDualAvg):
    """Dual averaging with them."""

    algorithm = GrowingWork


def test_a_message_can_override_the_work_of_the_plan():
    result = run_from(RandomSteps(client_lr=0.02, work=Epochs(1)), clients(), 3)
    assert [result.train_metrics_clientapp[r]["local-steps"] for r in (1, 2, 3)] == [1, 2, 3]
    # 'elapsed', which is what a message calls it, would be read as seconds in a table.
    reported = [dict(result.train_metrics_clientapp[r]) for r in (1, 2, 3)]
    assert [metrics.get("sum-of-step-sizes") for metrics in reported] == pytest.approx([0.02, 0.04, 0.06])
    assert not any("elapsed" in metrics for metrics in reported)
    plain = run_from(FedDualAvg(client_lr=0.02, work=Steps(1, batch_size=None)), clients(), 1)
    varying = run_from(RandomSteps(client_lr=0.02), clients(), 1)
    assert flat(plain.arrays).tobytes() == flat(varying.arrays).tobytes()


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
    losses = clients()
    believed = run_from(FedDualAvg(**options), [losses[0], losses[2]], 4)
    np.testing.assert_allclose(flat(result.arrays), flat(believed.arrays), rtol=1e-12)
    # A text in the metrics ends the run, and is none of them.
    assert {*result.train_metrics_clientapp} == {1, 2, 3, 4}
    last = dict(result.train_metrics_clientapp[4])
    assert (last["seen"], last["num-replies"], last["num-left-out"], "finished" in last) == (4, 2, 2, False)
    reasons = {row.reason for row in result.left_out}
    assert reasons == {"partition 1 is not to be believed", "partition 3 is not to be believed"}

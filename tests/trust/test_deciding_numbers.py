"""Numbers that decide: no client alone picks the best model, the round of the end, or a strength."""

from functools import cache

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, MetricRecord
from lies_of_one import CLIENTS, LIAR, below_the_seam, regressions
from problems import Reporting, flat, simulated, start_arrays
from representatives import covered, crossed, nightly
from together import together

from flwr_fco.algorithms.contract.replies import Mean
from flwr_fco.callbacks import EarlyStopping
from flwr_fco.client_apps import client_app
from flwr_fco.core.logs import quiet
from flwr_fco.errors import ConfigurationError
from flwr_fco.messages.protocol import Uplink
from flwr_fco.regularizers import L1
from flwr_fco.simulation import InProcessGrid, fit_path
from flwr_fco.strategies import FedDualAvg, FedNewton, Steps, Trimmed
from flwr_fco.strategies.output import centre_of
from flwr_fco.strategies.replies import Bounds, average_metrics

AGGREGATIONS = ("mean", Trimmed(), "median", "geometric-median")


def saying(kind, change, liar=LIAR):
    """Return a mod with which a client changes the records of its answers to messages of a kind."""

    def mod(message, context, call_next):
        reply = call_next(message, context)
        if message.metadata.message_type == kind and context.node_config["partition-id"] == liar:
            content, metrics = reply.content.copy(), dict(reply.content["metrics"])
            change(metrics, content)
            content["metrics"] = MetricRecord(metrics)
            reply.content = content
        return reply

    return mod


def run(mods, validation, aggregation="mean", number=CLIENTS, rounds=40):
    objectives = [Reporting(own.features, own.targets, scale=0.5) for own in regressions(number)]
    strategy = FedDualAvg(regularizer=L1(0.3), client_lr=0.05, work=Steps(2, batch_size=None), aggregation=aggregation)
    app = client_app(lambda context: objectives[context.node_config["partition-id"]], mods=mods)
    stop = EarlyStopping(validation=validation, patience=4)
    with quiet(50):
        result = simulated(strategy, app, rounds, num_nodes=number, callbacks=[stop])
    return stop, result


@cache
def honest_stop(kind, number):
    return run([], f"{kind}/loss", number=number)[0]


@together("loss", [-1e300, -1e9, 1e300, 1.7e308])
@pytest.mark.parametrize(("kind", "number"), crossed(["train", "evaluate"], [4, CLIENTS]))
def test_an_absurd_metric_picks_nothing_and_is_left_out(kind, number, loss):
    honest = honest_stop(kind, number)
    stop, result = run([saying(kind, lambda metrics, _: metrics.update(loss=loss), 2)], f"{kind}/loss", number=number)
    assert stop.stopped == honest.stopped
    assert np.abs(flat(stop.best_arrays) - flat(honest.best_arrays)).max() < 0.3
    rows = {(row.kind, row.partition_id) for row in result.left_out}
    assert rows == {(kind, 2)}
    assert all("loss" in row.reason for row in result.left_out)


@together(("kind", "aggregation"), covered(["train", "evaluate"], AGGREGATIONS[1:]))
def test_under_a_robust_centre_a_lie_within_the_bounds_decides_nothing(kind, aggregation):
    """Each lie is the best loss by far in round 3, and within the bounds."""
    honest, _ = run([], f"{kind}/loss", aggregation)
    lies = {"round": 0}

    def change(metrics, content):
        lies["round"] += 1
        if lies["round"] == 3:
            metrics["loss"] = -50.0

    stop, result = run([saying(kind, change)], f"{kind}/loss", aggregation)
    assert result.left_out == []
    assert stop.stopped == honest.stopped
    np.testing.assert_array_equal(flat(stop.best_arrays), flat(honest.best_arrays))


def test_below_the_seam_too():
    objectives = [Reporting(own.features, own.targets, scale=0.5) for own in regressions()]
    grid = InProcessGrid(client_app(lambda context: objectives[context.node_config["partition-id"]]), CLIENTS)

    def lie(number, vectors, claims):
        claims["loss"] = True if number == 3 else -1e300

    below_the_seam(grid, lie)
    strategy = FedDualAvg(client_lr=0.05, work=Steps(2, batch_size=None), fraction_evaluate=0.0)
    with grid.identity(), quiet(50):
        result = strategy.start(grid, start_arrays(), 4)
    assert [(row.round, row.partition_id) for row in result.left_out] == [(number, LIAR) for number in (1, 2, 3, 4)]
    assert all(0.0 < metrics["loss"] < 10.0 for metrics in result.train_metrics_clientapp.values())


def test_metrics_far_from_the_others_and_from_earlier_rounds_are_left_out():
    bounds = Bounds(1000.0, None)

    def objections(*losses):
        ups = [Uplink({}, None, 1, metrics={"loss": loss}, examples=1.0) for loss in losses]
        return set(bounds.objections(ups, {}, weighed=False))

    assert objections(5.0, 4.0, 6.0, 5.0, 5.0) == set()
    # Most clients fit exactly, and one does not.
    assert objections(1e-12, 0.0, 1e-13, 1e-12, 3.0) == set()
    assert objections(5.0, 4.0, 6.0, 5.0, -5001.0) == {4}
    # Of two, or of one alone, the usual size of earlier rounds says which of them lies.
    assert objections(0.5, -1e9) == {1}
    assert objections(-1e9) == {0}


def test_a_metric_that_few_report_is_not_averaged():
    reports = [{"loss": 0.5, "own": 1e9}, {"loss": 0.7}, {"loss": 0.6, "own": 2.0}, {"loss": 0.2}]
    means = average_metrics(reports, [0.25] * 4, centre_of(Mean()))
    assert means == {"loss": pytest.approx(0.5)}


@pytest.mark.parametrize("rule", ["trimmed", "median", "geometric-median"])
def test_centres_of_numbers_are_those_of_increments(rule):
    mean = Mean(aggregation=rule, trim=0.2)
    values, shares = [1.0, 2.0, 1.5, 1.2, -1e9], [0.2] * 5
    expected = mean.of([np.array([value]) for value in values], shares)[0]
    assert centre_of(mean)(values, shares) == expected
    assert 1.0 <= expected <= 2.0
    # Rounded once.
    assert centre_of(Mean())([1e16, 1.0, -1e16, 1.0], [1.0] * 4) == 2.0


# --- strengths ----------------------------------------------------------------------------------------------------


def path(mods, aggregation="mean", kind=FedDualAvg, number=CLIENTS, num_strengths=6, **more):
    objectives, held_out = regressions(number), regressions(2 * number)[number:]
    options = {"regularizer": L1(1.0), "fraction_evaluate": 0.0}
    if kind is FedDualAvg:
        options |= {"client_lr": 0.1, "work": Steps(2, batch_size=None), "aggregation": aggregation}
    app = client_app(
        lambda context: objectives[context.node_config["partition-id"]],
        load_evaluation_objective=lambda context: held_out[context.node_config["partition-id"]],
        mods=mods,
    )
    with quiet(50):
        return fit_path(
            kind(**options),
            app,
            num_nodes=number,
            num_rounds=25,
            initial_arrays=start_arrays(),
            num_strengths=num_strengths,
            ratio=0.05,
            progress=False,
            **more,
        )


@cache
def honest_path(**options):
    return path([], **options)


def of_validation(**said):
    def change(metrics, content):
        if "held-out" in metrics:
            metrics.update(said)

    return saying("query.question", change)


@together("said", [{"loss": -1e9}, {"loss": -1e300}, {"held-out": 0.0}, {"held-out": 0.5}, {"held-out": -1.0}])
@pytest.mark.parametrize("kind", [FedDualAvg, FedNewton])
def test_one_client_picks_no_strength(kind, said):
    honest, found = honest_path(kind=kind), path([of_validation(**said)], kind=kind)
    assert found.best.nonzero == honest.best.nonzero
    assert found.best.held_out == pytest.approx(honest.best.held_out, rel=0.2)
    assert found.points[0].strength == honest.points[0].strength


@pytest.mark.parametrize("aggregation", ["median", *nightly("geometric-median", Trimmed())], ids=str)
def test_a_held_out_loss_within_the_bounds_picks_none_under_a_robust_centre(aggregation):
    honest, found = path([], aggregation), path([of_validation(loss=-15.0)], aggregation)
    # At most the neighbour, whose loss is as good.
    assert 0.5 < found.best.strength / honest.best.strength < 2.0
    assert 0.7 < found.best.held_out / honest.best.held_out < 1.1
    assert found.one_standard_error.strength >= 0.3 * honest.one_standard_error.strength
    assert found.best.standard_error < 0.5


def test_where_nobody_has_held_out_data_the_user_is_told_who():
    with pytest.raises(ConfigurationError, match=r"10 of 10 clients .* partition 0, partition 1"):
        path([saying("query.question", _no_held_out, liar) for liar in range(CLIENTS)])


def _no_held_out(metrics, content):
    if "held-out" in metrics:
        metrics["held-out"] = 0.0


@together("factor", [-900.0, 300.0])
@pytest.mark.parametrize(("aggregation", "most"), [("mean", 12.0), ("median", 1.5), ("geometric-median", 1.5)])
def test_one_gradient_does_not_move_the_range_of_a_path(aggregation, most, factor):
    def change(metrics, content):
        if "gradient" in content["arrays"]:
            content["arrays"] = ArrayRecord({n: Array(factor * a.numpy()) for n, a in content["arrays"].items()})

    options = {"aggregation": aggregation, "number": 4, "num_strengths": 2}
    honest, found = honest_path(**options), path([saying("query.question", change, 2)], **options)
    assert found.points[0].strength < most * honest.points[0].strength


def test_one_loss_on_left_out_folds_picks_no_strength():
    """The folds' losses are vectors of a training message."""
    told = []

    def change(metrics, content):
        if "held_out" in content["arrays"] and len(told) < 2:
            told.append(1)
            sent = {name: array.numpy() for name, array in content["arrays"].items()}
            sent["held_out"] = np.where(np.arange(sent["held_out"].size) % 6 == 0, 0.0, 1e9)
            content["arrays"] = ArrayRecord({name: Array(array) for name, array in sent.items()})

    honest = path([], kind=FedNewton, cv=3)
    found = path([saying("train", change)], kind=FedNewton, cv=3)
    assert told
    assert {row.partition_id for row in found.points[0].result.left_out} == {LIAR}
    assert found.best.strength == pytest.approx(honest.best.strength, rel=0.05)

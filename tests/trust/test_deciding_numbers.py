"""Numbers that decide: no client alone picks the best model, the round of the end, or a strength."""

from functools import cache

import numpy as np
import pytest
from adversarial_clients import CLIENTS, LIAR, in_messages, regressions
from problems import Reporting, app_of, flat, simulated, start_arrays
from representatives import crossed

from flwr_fco.callbacks import EarlyStopping
from flwr_fco.client_apps import client_app
from flwr_fco.core.logs import quiet
from flwr_fco.errors import ConfigurationError
from flwr_fco.regularizers import L1
from flwr_fco.simulation import fit_path
from flwr_fco.strategies import FedDualAvg, FedNewton, Steps


def reporting(number=CLIENTS):
    return [Reporting(own.features, own.targets, scale=0.5) for own in regressions(number)]


def stopped(kind, lie=None, aggregation="mean", number=CLIENTS, liar=LIAR):
    """Run until the loss of a kind says so, with a client that changes its metrics in messages of that kind."""
    mods = [] if lie is None else [in_messages(lambda number, vectors, claims: lie(claims), liar, kind)]
    strategy = FedDualAvg(regularizer=L1(0.3), client_lr=0.05, work=Steps(2, batch_size=None), aggregation=aggregation)
    stop = EarlyStopping(validation=f"{kind}/loss", patience=4)
    result = simulated(strategy, app_of(reporting(number), mods), 40, num_nodes=number, callbacks=[stop])
    return stop, result


honest_stop = cache(stopped)


@pytest.mark.parametrize("loss", [-1e300, 1.7e308])
@pytest.mark.parametrize(("kind", "number"), crossed(["train", "evaluate"], [4, CLIENTS]))
def test_an_absurd_metric_picks_nothing_and_is_left_out(kind, number, loss):
    honest, _ = honest_stop(kind, number=number)
    stop, result = stopped(kind, lambda claims: claims.update(loss=loss), number=number, liar=2)
    assert stop.stopped == honest.stopped
    assert np.abs(flat(stop.best_arrays) - flat(honest.best_arrays)).max() < 0.3
    assert {(row.kind, row.partition_id, "loss" in row.reason) for row in result.left_out} == {(kind, 2, True)}


# --- strengths --------------------------------------------------------------------------------------------------------


def path(lie=None, aggregation="mean", kind=FedDualAvg, number=CLIENTS, liars=(LIAR,), of="query.question", **more):
    """Fit a path with clients that change numbers and vectors of their answers: ``lie(numbers, vectors)``."""
    objectives = regressions(number)
    held_out = regressions(2 * number)[number:]
    options = {"regularizer": L1(1.0), "fraction_evaluate": 0.0}
    if kind is FedDualAvg:
        options |= {"client_lr": 0.1, "work": Steps(2, batch_size=None), "aggregation": aggregation}
    changed = lambda number, vectors, claims: lie and lie(claims, vectors)  # noqa: E731
    app = client_app(
        lambda context: objectives[context.node_config["partition-id"]],
        load_evaluation_objective=lambda context: held_out[context.node_config["partition-id"]],
        mods=[in_messages(changed, liar, of) for liar in liars],
    )
    given = {"num_nodes": number, "num_rounds": 25, "initial_arrays": start_arrays(), "progress": False, "ratio": 0.05}
    with quiet(50):
        return fit_path(kind(**options), app, **{"num_strengths": 6, **given, **more})


honest_path = cache(path)


def of_validation(**said):
    return lambda claims, vectors: claims.update(said) if "held-out" in claims else None


@pytest.mark.parametrize(
    "said",
    [
        {"loss": -1e300},
        {"loss": 1e9},
        {"loss": -1.0},
        {"loss": -1.0, "least": -1.0},
        {"held-out": 0.0},
        {"held-out": -1.0},
    ],
)
@pytest.mark.parametrize("kind", [FedDualAvg, FedNewton])
def test_one_client_picks_no_strength(kind, said):
    honest = honest_path(kind=kind)
    found = path(of_validation(**said), kind=kind)
    assert found.best.nonzero == honest.best.nonzero
    assert found.best.held_out == pytest.approx(honest.best.held_out, rel=0.2)
    assert found.points[0].strength == honest.points[0].strength


@pytest.mark.parametrize("kind", [FedDualAvg, FedNewton])
def test_a_client_keeps_its_number_of_held_out_examples(kind):
    """Else its weight is large where its loss is."""
    said = []

    def lie(claims, vectors):
        if "held-out" in claims:
            said.append(claims["num-examples"])
            claims["num-examples"] *= len(said)

    found = path(lie, kind=kind)
    (liar,) = {row.partition_id for row in found.points[-1].result.left_out if "at the first model on" in row.reason}
    assert liar == LIAR
    honest = honest_path(kind=kind)
    assert found.best.held_out == pytest.approx(honest.best.held_out, rel=0.2)


def test_where_nobody_has_held_out_data_the_error_names_the_sites():
    with pytest.raises(ConfigurationError, match=r"10 of 10 clients .* partition 0, partition 1"):
        path(of_validation(**{"held-out": 0.0}), liars=range(CLIENTS))


@pytest.mark.parametrize("factor", [-900.0, 300.0])
@pytest.mark.parametrize(("aggregation", "most"), [("mean", 12.0), ("median", 1.5), ("geometric-median", 1.5)])
def test_one_gradient_does_not_move_the_range_of_a_path(aggregation, most, factor):
    def lie(claims, vectors):
        for name in vectors if "gradient" in vectors else ():
            vectors[name] *= factor

    options = {"aggregation": aggregation, "number": 4, "num_strengths": 2}
    honest = honest_path(**options)
    found = path(lie, liars=(2,), **options)
    assert found.points[0].strength < most * honest.points[0].strength


def test_one_loss_on_left_out_folds_picks_no_strength():
    """The folds' losses are vectors of a training message."""
    reported = []

    def lie(claims, vectors):
        if "held_out" in vectors and len(reported) < 2:
            reported.append(1)
            vectors["held_out"] = np.where(np.arange(vectors["held_out"].size) % 6 == 0, 0.0, 1e9)

    honest = path(kind=FedNewton, cv=3)
    found = path(lie, kind=FedNewton, of="train", cv=3)
    assert reported
    assert {row.partition_id for row in found.points[0].result.left_out} == {LIAR}
    assert found.best.strength == pytest.approx(honest.best.strength, rel=0.05)

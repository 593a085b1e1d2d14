"""What one client can do to a certificate: it is left out and named, and the rest is certified; nothing stops on it."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, MetricRecord
from problems import run as run_from
from problems import simulated
from together import together

from flwr_fco.callbacks import EarlyStopping
from flwr_fco.certificates import Answer, certificate, reported_at, settle
from flwr_fco.client_apps import client_app
from flwr_fco.errors import NoAnswerError
from flwr_fco.objectives import LeastSquares, Logistic, MultinomialLogistic, Poisson
from flwr_fco.regularizers import L1, L2Squared
from flwr_fco.simulation import simulate
from flwr_fco.strategies import FedDualAvg, FedNewton, Steps
from reproduction.pooled import centralized_solution, certify, composite_objective

LIAR, CLIENTS = 1, 4


def objectives_of(kind, l2=0.0):
    found = []
    for m in range(CLIENTS):
        rng = np.random.default_rng(m)
        features = rng.normal(size=(12 + 4 * m, 4))
        scores = features @ [1.5, -1.0, 0.0, 0.0] + 0.5
        if kind is LeastSquares:
            found.append(LeastSquares(features, scores + rng.normal(size=len(scores)), l2=l2))
        elif kind is Poisson:
            found.append(Poisson(features, rng.poisson(np.exp(0.3 * scores)), l2=l2))
        elif kind is MultinomialLogistic:
            labels = np.clip(np.round(scores), 0, 2).astype(int)
            found.append(MultinomialLogistic(features, labels, num_classes=3, l2=l2))
        else:
            found.append(kind(features, scores + rng.normal(size=len(scores)) > 0.0, l2=l2))
    return found


def lying(change, liars=(LIAR,)):
    """Return a mod: ``change(numbers, vectors)`` of a client's answers to questions about duality."""

    def mod(message, context, call_next):
        reply = call_next(message, context)
        asks = message.metadata.message_type == "query.question"
        if asks and context.node_config["partition-id"] in liars and reply.has_content():
            content = reply.content.copy()
            numbers = dict(content["metrics"])
            vectors = {name: array.numpy().copy() for name, array in content["arrays"].items()}
            change(numbers, vectors)
            content["metrics"] = MetricRecord(numbers)
            content["arrays"] = ArrayRecord({name: Array(np.asarray(value)) for name, value in vectors.items()})
            reply.content = content
        return reply

    return mod


def run(objectives, mods, rounds=2, callbacks=(), psi=None):
    strategy = FedDualAvg(
        regularizer=psi or L1(0.1),
        client_lr=0.05,
        work=Steps(1, batch_size=None),
        fraction_evaluate=0.0,
        certificate_every=rounds if not callbacks else 1,
    )
    layout = objectives[0].layout
    app = client_app(lambda context: objectives[context.node_config["partition-id"]], mods=mods)
    result = simulated(
        strategy,
        app,
        rounds,
        num_nodes=CLIENTS,
        initial_arrays=layout.unflatten(np.zeros(layout.size)),
        callbacks=list(callbacks),
        raise_errors=False,
    )
    return result, layout.flatten({name: array.numpy() for name, array in result.arrays.items()})


def says(**numbers):
    """A number of its own, wherever it is told."""

    def change(reported, vectors):
        reported.update({name: value for name, value in numbers.items() if name in reported})

    change.__name__ = str(numbers)
    return change


def scales(name, factor):
    def change(reported, vectors):
        if reported.get(name):
            reported[name] *= factor
        if name in vectors:
            vectors[name] = factor * vectors[name]

    change.__name__ = f"{name} times {factor}"
    return change


ALL = (LeastSquares, Logistic, MultinomialLogistic, Poisson)
LIES = [
    *[(kind, says(**{name: value})) for kind in ALL for name, value in (("loss", -1e9), ("convex", 0.0))],
    *[(LeastSquares, says(**{name: value})) for name, value in (("loss", -1e300), ("convex", 0.5), ("l2", 0.3))],
    (LeastSquares, says(l2=-1.0)),
    # A conjugate may be as large as it likes: it makes the gap larger.
    *[(kind, says(conjugate=value)) for kind in ALL for value in (-1e9, -1e300)],
    *[(kind, scales(name, factor)) for kind in ALL for name, factor in (("rows", 3.0), ("loss", 0.5))],
]


@pytest.mark.parametrize(("kind", "lie"), LIES, ids=lambda value: value.__name__)
def test_who_lies_in_a_field_is_left_out_and_the_rest_is_certified(kind, lie):
    objectives = objectives_of(kind)
    result, w = run(objectives, [lying(lie)])
    last = result.train_metrics_clientapp[2]
    assert {row.partition_id for row in result.left_out} == {LIAR}
    rest = [own for m, own in enumerate(objectives) if m != LIAR]
    assert (last["certificate-clients"], last["certificate-of"]) == (CLIENTS - 1, CLIENTS)
    assert last["duality-gap"] == pytest.approx(certify(rest, None, L1(0.1), w).value, rel=1e-9)


@together("l2", [0.0, 0.2])
@pytest.mark.parametrize("kind", ALL)
def test_honest_answers_all_count(kind, l2):
    objectives = objectives_of(kind, l2)
    result, w = run(objectives, [])
    assert result.left_out == []
    last = result.train_metrics_clientapp[2]
    assert last["certificate-clients"] == last["certificate-of"] == CLIENTS
    assert last["duality-gap"] == pytest.approx(certify(objectives, None, L1(0.1), w).value, rel=1e-9)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_honest_answers_of_exact_fits_and_of_any_units_count(scale):
    found = []
    for m in range(CLIENTS):
        features = np.random.default_rng(m).normal(size=(30, 3)) * [scale, 1.0, 1.0 / scale]
        found.append(LeastSquares(features, scale * (features @ [1.0 / scale, 0.0, scale])))
    layout = found[0].layout
    strategy = FedDualAvg(regularizer=L1(0.1), client_lr=1e-14, fraction_evaluate=0.0, certificate_every=1)
    start = layout.unflatten(scale * np.array([1.0 / scale, 0.0, scale, 0.0]))
    result = run_from(strategy, found, 2, start=start)
    assert not [row for row in result.left_out if row.kind == "question"]
    assert result.train_metrics_clientapp[2]["certificate-clients"] == CLIENTS


@pytest.mark.parametrize("lie", [says(conjugate=-1e9), says(loss=-1e9), says(convex=0.0)], ids=lambda lie: lie.__name__)
def test_nothing_stops_on_a_certificate_of_a_part(lie):
    stopping = EarlyStopping(tol=1e9, certificate="train/certificate")
    objectives = objectives_of(LeastSquares)
    result, _ = run(objectives, [lying(lie)], rounds=4, callbacks=[stopping])
    assert stopping.stopped == 0
    assert all("certificate" in metrics for metrics in result.train_metrics_clientapp.values())
    result, _ = run(objectives, [], rounds=4, callbacks=[stopping])
    assert stopping.stopped == 1


def test_half_of_the_clients_with_other_losses_are_no_liars():
    """Where nobody is in the majority there is a gap of all data, with the mean of their ridges."""
    objectives = objectives_of(LeastSquares)
    objectives[:2] = [LeastSquares(own.features, own.targets, l2=0.3) for own in objectives[:2]]
    result, w = run(objectives, [])
    last = result.train_metrics_clientapp[2]
    assert result.left_out == []
    assert last["duality-gap"] == pytest.approx(certify(objectives, None, L1(0.1), w).value, rel=1e-9)
    assert last["certificate-clients"] == CLIENTS


def test_answers_that_contradict_each_other_are_no_certificate():
    """A gap below 0 is none of 0."""
    own, psi, w = objectives_of(LeastSquares)[0], L1(0.1), np.full(5, 0.3)

    def ask(request, less):
        numbers, vectors = reported_at(own, w, request.numbers)
        return [Answer({name: x - less * (name == "conjugate") for name, x in numbers.items()}, vectors, weight=1.0)]

    asked = certificate(psi.bind(own.layout), w)
    gap = settle(asked, lambda request: ask(request, 0.0)).value
    asked = certificate(psi.bind(own.layout), w)
    assert settle(asked, lambda request: ask(request, gap + 1e-12)).value == 0.0
    asked = certificate(psi.bind(own.layout), w)
    with pytest.raises(NoAnswerError, match="contradict"):
        settle(asked, lambda request: ask(request, gap + 0.1))


# --- FedNewton --------------------------------------------------------------------------------------------------------


def newton(kind, lie, rounds, *, start=0.3, liar=LIAR, psi=None, **options):
    """Run FedNewton with a client that lies in some rounds; return the result and its distance to the optimum."""
    objectives, psi = objectives_of(kind), psi or L1(0.05)
    layout = objectives[0].layout

    def mod(message, context, call_next):
        reply = call_next(message, context)
        here = message.metadata.message_type == "train" and context.node_config["partition-id"] == liar
        if here and int(message.metadata.group_id) in rounds:
            content = reply.content.copy()
            vectors = {name: array.numpy().copy() for name, array in content["arrays"].items()}
            lie(vectors)
            content["arrays"] = ArrayRecord({name: Array(value) for name, value in vectors.items()})
            reply.content = content
        return reply

    app = client_app(lambda context: objectives[context.node_config["partition-id"]], mods=[mod])
    strategy = FedNewton(regularizer=psi, fraction_evaluate=0.0, **options)
    begin = layout.unflatten(start * np.cos(np.arange(layout.size)))
    result = simulate(strategy, app, num_nodes=CLIENTS, num_rounds=40, initial_arrays=begin, progress=False)
    w = layout.flatten({name: array.numpy() for name, array in result.arrays.items()})
    best = centralized_solution(objectives, psi, tol=1e-10)
    return result, composite_objective(objectives, None, psi, w) - composite_objective(objectives, None, psi, best)


def times(name, factor):
    def lie(vectors):
        if name in vectors:
            vectors[name] = factor * vectors[name]

    lie.__name__ = f"{name} times {factor}"
    return lie


def another_conjugate(vectors):
    vectors["terms"][1] -= 0.02


def indefinite(vectors):
    """All minors of order 2 are positive, and the matrix is not."""
    order = int(np.sqrt(2 * vectors["block"].size))
    upper = np.full((order, order), -0.6) + 1.6 * np.eye(order)
    vectors["block"] = 1e-3 * upper[np.triu_indices(order)]


NEWTON_LIES = [
    another_conjugate,
    times("block", 1e6),
    indefinite,
    times("targets", 3.0),
    times("targets", -1.0),
    times("targets", 1e9),
    times("gradient", 2.0),
]


@together("kind", [LeastSquares, Logistic, MultinomialLogistic])
@pytest.mark.parametrize("lie", NEWTON_LIES, ids=lambda lie: lie.__name__)
def test_a_lie_to_newton_costs_a_round_and_is_named(kind, lie):
    result, distance = newton(kind, lie, (1,))
    assert {row.partition_id for row in result.left_out} == {LIAR}
    assert {row.round for row in result.left_out} == {1}
    assert result.train_metrics_clientapp[1]["skipped"] == 1
    assert -1e-9 <= distance <= 2e-8


def test_shares_of_classes_follow_from_the_first_gradient():
    """At 0 the slope of an intercept is a half less the share of a class, which no loss bounds."""

    def lie(vectors):
        vectors["gradient"][-1] = 0.9

    result, distance = newton(Logistic, lie, (1,), start=0.0)
    assert {row.partition_id for row in result.left_out} == {LIAR}
    assert -1e-9 <= distance <= 2e-8


@together("hessian", ["block", "none"])
def test_who_voids_the_gap_by_a_loss_of_its_own_kind_is_named(hessian, caplog):
    def lie(vectors):
        vectors["terms"][6] = 3.0

    with caplog.at_level("WARNING", logger="flwr"):
        result, distance = newton(Logistic, lie, range(1, 99), hessian=hessian)
    assert f"The losses of node 3 (partition {LIAR}) are of another kind than those of the other 3" in caplog.text
    assert "duality-gap" not in result.train_metrics_clientapp[max(result.train_metrics_clientapp)]
    assert -1e-9 <= distance <= 1e-8


@together("value", [0.0, 1e6, 1e150])
@pytest.mark.parametrize("psi", [L1(0.05), L2Squared(0.05)], ids=["accelerated", "quasi-newton"])
def test_one_smoothness_does_not_set_the_length_of_a_step(psi, value):
    """One that is huge would end a run in its first round, at a step of nothing."""

    def lie(vectors):
        if "smoothness" in vectors:
            vectors["smoothness"] = np.full(1, value)

    result, distance = newton(Logistic, lie, (1,), psi=psi, hessian="none")
    assert result.left_out == []
    assert -1e-9 <= distance <= 1e-8


@together("hessian", ["block", "none"])
@together("kind", [LeastSquares, Logistic, MultinomialLogistic, Poisson])
@pytest.mark.parametrize("start", [0.0, 0.3])
def test_honest_sites_are_heard_by_newton(kind, hessian, start):
    result, distance = newton(kind, lambda vectors: None, (), start=start, hessian=hessian)
    assert result.left_out == []
    assert -1e-9 <= distance <= 2e-8

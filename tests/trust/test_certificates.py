"""What one client can do to a certificate or a number that decides: it is left out, named, and nothing stops on it."""

from functools import cache

import numpy as np
import pytest
from adversarial_clients import CLIENTS, LIAR, in_messages, regressions
from faulty import Faulty
from newton import sites
from problems import Reporting, app_of, crossed, flat, nightly, numpy_of, paired, simulated, start_arrays, zeros

from flwr_fco.callbacks import EarlyStopping
from flwr_fco.core.computing import quiet
from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives import LeastSquares
from flwr_fco.regularizers import L1
from flwr_fco.simulation import fit_path
from flwr_fco.strategies import Bounds, Epochs, FedDualAvg, FedNewton, Steps
from reproduction.pooled import centralized_solution, certify, composite_objective

LYING_SITE = 1
SITES = 4
PSI = L1(0.1)


def objectives_of(kind, l2=0.0):
    return sites(kind, sizes=(12, 16, 20, 24), p=4, l2=l2)


class Times(float):
    """A factor in the place of a value."""


def lying(name, value):
    """Return a mod: another number or array of this name in a client's answers to questions about duality."""

    def lie(number, vectors, claims):
        for sent in (claims, vectors):
            if name in sent:
                sent[name] = value * sent[name] if isinstance(value, Times) else value

    return in_messages(lie, LYING_SITE, "query.question")


def run(objectives, mods=(), rounds=2, callbacks=()):
    options = {"regularizer": PSI, "client_lr": 0.05, "work": Steps(1, batch_size=None), "fraction_evaluate": 0.0}
    strategy = FedDualAvg(certificate_every=1 if callbacks else rounds, **options)
    layout = objectives[0].layout
    where = {"initial_arrays": zeros(layout), "callbacks": list(callbacks), "raise_errors": False}
    result = simulated(strategy, app_of(objectives, mods), rounds, **where)
    return result, layout.flatten(numpy_of(result.arrays))


def is_gap_of(objectives, metrics, w):
    assert metrics["certificate-clients"] == len(objectives)
    assert metrics["duality-gap"] == pytest.approx(certify(objectives, None, PSI, w).value, rel=1e-9)


ALL = ("squares", "logistic", "multinomial", "poisson")
LIES = [
    # A conjugate may be as large as it likes: it makes the gap larger.
    *[(kind, *lie) for kind in ALL for lie in (("loss", -1e9), ("conjugate", -1e9), ("conjugate", -1e300))],
    *[(kind, *lie) for kind in ALL for lie in (("convex", 0.0), ("rows", Times(3.0)), ("loss", Times(0.5)))],
    *[("squares", *lie) for lie in (("loss", -1e300), ("convex", 0.5), ("l2", 0.3), ("l2", -1.0))],
    # Beyond the whole numbers of 64 bits, of which NumPy makes objects.
    ("squares", "conjugate", -(10**30)),
]


@pytest.mark.parametrize(("kind", "name", "value"), LIES)
def test_who_lies_in_a_field_is_left_out_and_the_rest_is_certified(kind, name, value):
    objectives = objectives_of(kind)
    result, w = run(objectives, [lying(name, value)])
    assert {row.partition_id for row in result.left_out} == {LYING_SITE}
    assert result.train_metrics_clientapp[2]["certificate-of"] == SITES
    is_gap_of([own for m, own in enumerate(objectives) if m != LYING_SITE], result.train_metrics_clientapp[2], w)


HONEST = [objectives_of(kind, l2) for kind in ALL for l2 in (0.0, 0.2)]
#: Where nobody is in the majority there is a gap of all data, with the mean of their ridges.
HALVES = [LeastSquares(own.features, own.targets, l2=0.3) for own in HONEST[0][:2]] + HONEST[0][2:]


@pytest.mark.parametrize("objectives", [*HONEST, HALVES])
def test_honest_answers_all_count_also_of_clients_with_other_losses(objectives):
    result, w = run(objectives)
    assert result.left_out == []
    assert result.train_metrics_clientapp[2]["certificate-of"] == SITES
    is_gap_of(objectives, result.train_metrics_clientapp[2], w)


@pytest.mark.parametrize(("name", "value"), [("conjugate", -1e9), ("loss", -1e9), ("convex", 0.0)])
def test_nothing_stops_on_a_certificate_of_a_part(name, value):
    stopping = EarlyStopping(tol=1e9, certificate="train/certificate")
    objectives = objectives_of("squares")
    result, _ = run(objectives, [lying(name, value)], rounds=4, callbacks=[stopping])
    assert stopping.stopped == 0
    assert all("certificate" in metrics for metrics in result.train_metrics_clientapp.values())
    result, _ = run(objectives, rounds=4, callbacks=[stopping])
    assert stopping.stopped == 1


def test_a_client_alone_in_a_round_reports_no_certificate():
    mods = [in_messages(lambda number, vectors, claims: claims.update({"duality-gap": 0.0}), liar) for liar in (0, 1)]
    stopping = EarlyStopping(tol=1e-9, certificate="train/duality-gap")
    strategy = FedDualAvg(fraction_train=0.1, min_train_nodes=1, fraction_evaluate=0.0, certificate_every=50)
    result = simulated(strategy, app_of(regressions(2), mods), 3, num_nodes=2, callbacks=[stopping])
    assert (stopping.stopped, result.train_metrics_clientapp[3]["clients-duality-gap"]) == (0, 0.0)


# --- clients that are silent ------------------------------------------------------------------------------------------


def certified(silent):
    """Run one round; partitions ``silent[i]`` give no answer to the i-th question of its certificate."""
    objectives = objectives_of("squares")
    options = {"client_lr": 0.01, "work": Epochs(1, batch_size=None), "fraction_evaluate": 0.0, "certificate_every": 1}
    questions = []

    def fault(message, reply):
        questions.append(message.metadata.dst_node_id)
        # The first site is asked in each.
        away = silent[questions.count(2) - 1]
        return [] if questions[-1] - 2 in away else [reply]

    grid = Faulty(app_of(objectives), SITES, fault, (1,), range(2, 6), "query.question")
    with grid.identity():
        result = FedDualAvg(regularizer=PSI, **options).start(grid, zeros(objectives[0].layout), 1)
    assert result.train_metrics_clientapp[1]["num-replies"] == SITES
    return result.train_metrics_clientapp[1], objectives[0].layout.flatten(numpy_of(result.arrays))


def test_a_certificate_is_about_the_clients_that_answer_and_says_how_many(caplog):
    metrics, _ = certified([set(), set()])
    assert metrics["certificate-clients"] == SITES
    assert "did not answer" not in caplog.text
    # Of a client that was silent at first, later answers are about data that the first ones are not about.
    # Who is silent later voids no certificate of the others, and those begin again.
    for silent in ([{3}, {3}], [{3}, set()], [set(), {3}, set(), set()]):
        with pytest.warns(UserWarning, match="certificate of round 1 is of the data of 3 of 4 clients"):
            metrics, w = certified(silent)
        is_gap_of(objectives_of("squares")[:3], metrics, w)


ALL_SITES = {*range(SITES)}


@pytest.mark.parametrize("silent", [[ALL_SITES], [set(), ALL_SITES]])
def test_without_answers_there_is_no_certificate_and_the_run_goes_on(silent, caplog):
    metrics, _ = certified(silent)
    assert not {"objective", "certificate", "duality-gap", "certificate-clients"} & set(metrics)
    assert "There is no certificate of this round" in caplog.text
    assert "no client answered" in caplog.text


# --- FedNewton --------------------------------------------------------------------------------------------------------


def newton(kind, lie, rounds, *, start=0.3, **options):
    """Run FedNewton with a client that lies in some rounds; return the result and its distance to the optimum."""
    objectives, psi = objectives_of(kind), L1(0.05)
    layout = objectives[0].layout
    name, change = lie

    def lies(number, vectors, claims):
        if number in rounds and name in vectors:
            vectors[name] = change(vectors[name])

    strategy = FedNewton(regularizer=psi, fraction_evaluate=0.0, **options)
    begin = layout.unflatten(start * np.cos(np.arange(layout.size)))
    result = simulated(strategy, app_of(objectives, [in_messages(lies, LYING_SITE)]), 40, initial_arrays=begin)
    points = layout.flatten(numpy_of(result.arrays)), centralized_solution(objectives, psi, tol=1e-10)
    found, least = (composite_objective(objectives, None, psi, w) for w in points)
    return result, found - least


def times(name, factor):
    return name, lambda own: factor * own


def in_terms(changes, keep=0.0):
    """Return a lie about what a client says of its loss: numbers by position."""
    values = dict(changes)
    return "terms", lambda own: np.array([values[i] + keep * x if i in values else x for i, x in enumerate(own)])


def below_0(block):
    """By less than what is added before a factorisation."""
    order = int(np.sqrt(2 * block.size))
    return np.r_[-1e-9, np.zeros(order - 1), block[order:]]


def indefinite(block):
    """All minors of order 2 are positive, and the matrix is not."""
    order = int(np.sqrt(2 * block.size))
    return 1e-3 * (np.full((order, order), -0.6) + 1.6 * np.eye(order))[np.triu_indices(order)]


NEWTON_LIES = {
    # The conjugate at a gradient follows from the loss: neither less nor more will do.
    "a smaller conjugate": in_terms({1: -0.02}, 1.0),
    "a larger conjugate": in_terms({1: 0.02}, 1.0),
    "a huge block": times("block", 1e6),
    "an indefinite block": ("block", indefinite),
    "a block below 0": ("block", below_0),
    "large targets": times("targets", 3.0),
    "other targets": times("targets", -1.0),
    "a long gradient": times("gradient", 2.0),
    # The intercept's column has the mean 1.
    "large columns": times("columns", 5.0),
    # No mean square is below the square of a mean; it bounds how far a proof of a zero reaches.
    "small squares": times("square", np.array([0.001, 1.0])),
    # A loss whose link the client does not know has no facts.
    "no link": in_terms({3: 0.0}),
}


@pytest.mark.parametrize(("lie", "kind"), crossed(NEWTON_LIES, ["squares", "logistic", "multinomial"]))
def test_a_lie_to_newton_costs_a_round_and_is_named(kind, lie):
    result, distance = newton(kind, NEWTON_LIES[lie], (1,))
    assert {(row.partition_id, row.round) for row in result.left_out} == {(LYING_SITE, 1)}
    assert result.train_metrics_clientapp[1]["skipped"] == 1
    assert -1e-9 <= distance <= 2e-8


#: A lie, its rounds, and what is said of it; None: there is no gap.
CONTRADICTIONS = {
    "a factor of its own": (in_terms({6: 2.0}), range(1, 99), None),
    "no link any more": (in_terms({0: -1e9, **dict.fromkeys(range(1, 7), 0.0)}), (2,), "in the first round"),
    "a loss of 0 at 0": (in_terms({0: 0.0, 1: 0.0}), (1,), ""),
    # And a conjugate that fits it.
    "a lower loss": (in_terms({0: -0.05, 1: 0.05}, 1.0), (3,), ""),
}


@pytest.mark.parametrize(
    ("name", "kind", "hessian"), paired(CONTRADICTIONS, ["squares", "logistic"], ["block", "none"])
)
def test_no_lie_to_newton_certifies_a_point_that_is_not_optimal(name, kind, hessian):
    """A lie about a point is found by what fits together at it, or by a lower bound above an objective."""
    lie, rounds, reason = CONTRADICTIONS[name]
    result, distance = newton(kind, lie, rounds, start=0.0, hessian=hessian)
    gaps = [own["duality-gap"] for own in result.train_metrics_clientapp.values() if "duality-gap" in own]
    if reason is None:
        assert not gaps
    else:
        # Once nobody lies any more, the run goes on to the optimum.
        assert -1e-9 <= distance <= gaps[-1] + 1e-8 <= 2e-8
    assert not reason or any(reason in row.reason for row in result.left_out)


def stopped(kind, lie=None, aggregation="mean", number=CLIENTS, liar=LIAR):
    """Run until the loss of a kind says so, with a client that changes its metrics in messages of that kind."""
    mods = [] if lie is None else [in_messages(lambda number, vectors, claims: lie(claims), liar, kind)]
    strategy = FedDualAvg(regularizer=L1(0.3), client_lr=0.05, work=Steps(2, batch_size=None), aggregation=aggregation)
    stop = EarlyStopping(validation=f"{kind}/loss", patience=4)
    objectives = [Reporting(own.features, own.targets, scale=0.5) for own in regressions(number)]
    return stop, simulated(strategy, app_of(objectives, mods), 40, num_nodes=number, callbacks=[stop])


honest_stop = cache(stopped)


@pytest.mark.parametrize(("kind", "number", "loss"), crossed(["train", "evaluate"], [4, CLIENTS], [-1e300, 1.7e308]))
def test_an_absurd_metric_picks_nothing_and_is_left_out(kind, number, loss):
    honest, _ = honest_stop(kind, number=number)
    stop, result = stopped(kind, lambda claims: claims.update(loss=loss), number=number, liar=2)
    assert stop.stopped == honest.stopped
    assert np.abs(flat(stop.best_arrays) - flat(honest.best_arrays)).max() < 0.3
    assert {(row.kind, row.partition_id, "loss" in row.reason) for row in result.left_out} == {(kind, 2, True)}


# --- strengths --------------------------------------------------------------------------------------------------------


def path(lie=None, aggregation="mean", kind=FedDualAvg, number=CLIENTS, liars=(LIAR,), of="query.question", **more):
    """Fit a path with clients that change numbers and vectors of their answers: ``lie(numbers, vectors)``."""
    held_out = regressions(2 * number, rows=31)[number:]
    options = {"regularizer": L1(1.0), "fraction_evaluate": 0.0, "bounds": Bounds(rows=dict.fromkeys(range(99), 30))}
    if kind is FedDualAvg:
        options |= {"client_lr": 0.1, "work": Steps(2, batch_size=None), "aggregation": aggregation}
    mods = [in_messages(lambda number, vectors, claims: lie and lie(claims, vectors), liar, of) for liar in liars]
    held = {"load_evaluation_objective": lambda context: held_out[context.node_config["partition-id"]]}
    given = {"num_nodes": number, "num_rounds": 8, "initial_arrays": start_arrays(), "progress": False, "ratio": 0.05}
    given |= {"num_strengths": 5, **more}
    with quiet(50):
        return fit_path(kind(**options), app_of(regressions(number), mods, **held), **given)


honest_path = cache(path)


def of_validation(**said):
    return lambda claims, vectors: claims.update(said) if "held-out" in claims else None


SAID = [*({"loss": loss} for loss in (-1e300, 1e9, -1.0)), {"loss": -1.0, "least": -1.0}]
SAID += [{"held-out": 0.0}, {"held-out": -1.0}]


@pytest.mark.parametrize(("said", "kind"), crossed(SAID, [FedDualAvg, FedNewton]))
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
    assert found.best.held_out == pytest.approx(honest_path(kind=kind).best.held_out, rel=0.2)


def test_where_nobody_has_held_out_data_the_error_names_the_sites():
    with pytest.raises(ConfigurationError, match=r"10 of 10 clients .* partition 0, partition 1"):
        path(of_validation(**{"held-out": 0.0}), liars=range(CLIENTS))


@pytest.mark.parametrize("factor", [-900.0, *nightly(300.0)])
@pytest.mark.parametrize(("aggregation", "most"), [("mean", 12.0), ("median", 1.5), ("geometric-median", 1.5)])
def test_one_gradient_does_not_move_the_range_of_a_path(aggregation, most, factor):
    def lie(claims, vectors):
        for name in vectors if "gradient" in vectors else ():
            vectors[name] *= factor

    options = {"aggregation": aggregation, "number": 4, "num_strengths": 2}
    honest = honest_path(**options)
    assert path(lie, liars=(2,), **options).points[0].strength < most * honest.points[0].strength


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

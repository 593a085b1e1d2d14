"""Questions to clients: answered, checked and bounded as replies are; sites whose columns differ are named."""

import re
import warnings
from functools import partial

import numpy as np
import pandas as pd
import pytest
from adversarial_clients import in_messages
from faulty import Faulty, start_on
from flwr.app import Array, ArrayRecord
from problems import Distance, app_of, arrays_of, clients, refused
from problems import run as run_from

import flwr_fco as fco
from flwr_fco.callbacks import Checkpoint
from flwr_fco.certificates import Request
from flwr_fco.client_apps.client import find_answer
from flwr_fco.core.layout import Layout
from flwr_fco.core.schema import Scales
from flwr_fco.errors import ConfigurationError
from flwr_fco.messages.protocol import Question
from flwr_fco.messages.records import NAMES_ONLY, QUESTIONS, TABLE
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import FedDualAvg, run_of
from flwr_fco.strategies.questions import ask, bounded_largest
from flwr_fco.topology import chain

START = {"coefficients": np.zeros(3), "intercept": np.zeros(1)}
run = partial(run_from, start=START)


def objectives_of(sizes=(6, 8, 10, 12, 14, 16), scales=None):
    found = []
    for m, size in enumerate(sizes):
        rng = np.random.default_rng(m)
        features = rng.normal(size=(size, 3)) * (1.0 if scales is None else scales[m])
        found.append(fco.LeastSquares(features, features @ [1.0, -1.0, 0.0] + 0.1 * rng.normal(size=size)))
    return found


GRADIENT = Request("gradient", {}, ("loss",), {"gradient": (4,)})


def asked(objectives, mods=(), site_weights=None, **options):
    """Ask before any round."""
    strategy = FedDualAvg(fraction_evaluate=0.0, **options)
    strategy.site_weights = site_weights
    grid = InProcessGrid(app_of(objectives, mods), len(objectives), raise_errors=False)
    strategy.prepare(arrays_of(START)).grid = grid
    return strategy, ask(run_of(strategy), GRADIENT, np.full(4, 0.5))


QUESTIONS_WEIGHED = [
    ({}, [6, 8, 10, 12, 14, 16]),
    ({"weighting": "uniform"}, [1, 1, 1, 1, 1, 1]),
    ({"site_weights": {m: 1.0 + m for m in range(6)}}, [1, 2, 3, 4, 5, 6]),
]


@pytest.mark.parametrize(("options", "weights"), QUESTIONS_WEIGHED)
def test_answers_have_the_weights_of_training_and_are_the_clients(options, weights):
    objectives = objectives_of()
    _, answers = asked(objectives, **options)
    w = np.full(4, 0.5)
    assert [a.partition for a in answers] == list(range(6))
    assert [a.weight for a in answers] == pytest.approx([own / sum(weights) for own in weights])
    for answer, objective in zip(answers, objectives, strict=True):
        np.testing.assert_allclose(answer.vectors["gradient"], objective.gradient(w), rtol=1e-12)
        assert answer.numbers["loss"] == pytest.approx(objective.value(w))


ALTERED = [
    (lambda numbers, vectors: vectors.update(extra=np.zeros(4)), "expected finite ['loss']"),
    (lambda numbers, vectors: numbers.pop("loss"), "expected finite ['loss']"),
    (lambda numbers, vectors: numbers.update({"num-examples": 100_000_000}), "more than max_share=0.9"),
    (lambda numbers, vectors: numbers.update(loss=np.nan), "expected finite"),
    (lambda numbers, vectors: vectors.update(gradient=np.full(4, np.inf)), "expected finite"),
    (lambda numbers, vectors: vectors.update({"indices:gradient": np.arange(4, dtype=np.int32)}), "finite"),
]


@pytest.mark.parametrize(("alter", "reason"), ALTERED)
def test_an_answer_is_checked_as_a_reply_is(alter, reason):
    objectives = objectives_of()
    liar = in_messages(lambda number, vectors, claims: alter(claims, vectors), 4, QUESTIONS)
    strategy, answers = asked(objectives, mods=[liar], bounds=fco.Bounds(max_share=0.9))
    assert [a.partition for a in answers] == [0, 1, 2, 3, 5]
    (row,) = run_of(strategy).left_out
    assert (row.kind, row.partition_id) == ("question", 4)
    assert reason in row.reason


# --- smoothness ------------------------------------------------------------------------------------------------------


def smoothness(objective, batch_size=0):
    point = {"primal": np.zeros(objective.layout.size)}
    question = Question("smoothness", objective.layout, point, {"batch-size": float(batch_size)})
    return find_answer("smoothness").answer(question, objective).numbers


def test_an_unknown_constant_is_probed():
    class Own(fco.LeastSquares):
        def lipschitz(self, norm="l2"):
            raise ConfigurationError("unknown")

    features = np.random.default_rng(0).normal(size=(20, 3)) * [3.0, 1.0, 0.5]
    known, unknown = fco.LeastSquares(features, np.ones(20)), Own(features, np.ones(20))
    probed, found = smoothness(unknown), smoothness(known)
    assert probed["l2"] == pytest.approx(known.lipschitz(), rel=1e-3)
    assert (probed["probed"], probed["l1"]) == (1.0, probed["l2"])
    assert (found["probed"], found["convexity"]) == (0.0, known.strong_convexity())


def test_counts_have_the_smoothness_of_the_rates_that_are_to_be_fitted():
    """At 0 every rate is 1; a row whose count is 9 bends nine times as much where it is fitted."""
    counts = np.array([0.0, 9.0, 1.0])
    features = np.array([[1.0], [2.0], [1e6]])
    objective = fco.Poisson(features, counts, intercept=False)
    found = [smoothness(objective, size)["l2"] for size in (1, 0)]
    assert found == pytest.approx([1e12, (1.0 + 36.0 + 1e12) / 3])
    few = fco.Poisson(features[:2], counts[:2], intercept=False, sample_weight=[1.0, 3.0])
    assert smoothness(few, batch_size=1)["l2"] == pytest.approx(1.5 * 36.0)


class Unknown(fco.MirrorMap):
    """A map of a user, of which nobody knows how convex it is."""

    value = gradient = conjugate_gradient = supports = retrieve = None


def test_norms_of_the_mirror_maps():
    assert fco.Euclidean().smoothness(9.0, 1.0) == (9.0, "l2")
    assert fco.PNorm(2.0).smoothness(9.0, 1.0)[0] == pytest.approx(9.0)
    assert fco.PNorm(400.0).smoothness(9.0, 1.0)[0] == pytest.approx(1.0, rel=0.02)
    assert fco.SimplexEntropy(2.0).smoothness(9.0, 1.0) == (2.0, "l1")
    assert fco.DiagonalMetric(np.array([4.0, 2.0])).smoothness(9.0, 1.0)[0] == 4.5
    layout = Layout.from_arrays({"a": np.zeros(2), "b": np.zeros(2)})
    product = fco.Product({"a": fco.SimplexEntropy(3.0), "b": fco.Euclidean()}).bind(layout)
    assert product.smoothness(9.0, 1.0)[0] == 27.0
    refused("Unknown", Unknown().smoothness, 9.0, 1.0)
    refused("by hand", fco.Product({"*": Unknown()}).bind(layout).smoothness, 9.0, 1.0)


# --- rates -----------------------------------------------------------------------------------------------------------


def by_theory(objectives, rounds=2, kind=FedDualAvg, mods=(), callbacks=(), resume=None, **options):
    """Return a run with the rate that theory gives, and the rate."""
    strategy = kind(**{"client_lr": "auto", "work": fco.Epochs(1, batch_size=None), **options})
    run(strategy, objectives, rounds, mods=mods, callbacks=callbacks, resume=resume)
    return run_of(strategy), run_of(strategy).problem.client_lr


#: The second eigenvalue of the chain of six, whose eigenvalues are 1/3 + 2/3 cos(pi k / 6).
SIGMA = (1 + 2 * np.cos(np.pi / 6)) / 3


CONSTANTS_KNOWN = [
    (FedDualAvg, {}, 1 / 4),
    (fco.FedDAGT, {}, 1 / 5),
    (fco.DFedDA, {"mixing": "chain"}, 2 * np.log(1 / SIGMA) / np.log(4 * 6) / 5),
    (fco.DFedDAGT, {"mixing": chain(6)}, (2 * np.log(1 / SIGMA) / np.log(8 * 6)) ** 2 / 5),
    (fco.DFedDAGT, {}, 1 / 5),
    (fco.FeDualEx, {}, 1 / np.sqrt(5)),
]


@pytest.mark.parametrize(("kind", "options", "constant"), CONSTANTS_KNOWN)
def test_the_rate_is_theorys(kind, options, constant):
    objectives = objectives_of()
    found, rate = by_theory(objectives, kind=kind, work=fco.Steps(5, batch_size=None), **options)
    assert rate == pytest.approx(constant / max(f.lipschitz() for f in objectives))
    assert (found.options.client_lr, [*found.reasons]) == ("auto", ["client_lr"])


def test_dual_fl_asks_for_the_constants_that_it_is_not_given():
    kinks = [Distance(np.random.default_rng(m).normal(size=3), l2=0.2) for m in range(3)]
    # Of fewer rows than columns: not strongly convex.
    flat = objectives_of(sizes=(2, 2))
    for objectives, given, chosen in (
        (flat, {"nu": 0.05, "rho": "auto"}, {"rho": 0.05 / max(f.lipschitz() for f in flat)}),
        (flat, {"nu": "auto", "alpha": 0.1, "smoothness": 9.9}, {"nu": 0.1, "rho": 0.01}),
        (kinks, {"nu": "auto", "rho": "auto", "work": fco.Minimise(1e-6, "gap")}, {"nu": 0.18, "rho": 0.0}),
    ):
        start = objectives[0].layout.unflatten(np.zeros(objectives[0].layout.size))
        run(strategy := fco.DualFL(**given), objectives, 1, start=start)
        assert run_of(strategy).chosen == pytest.approx(chosen)
    refused("as those of a loss with kinks do", run, FedDualAvg(client_lr="auto"), kinks, 1, start=start)


@pytest.mark.parametrize("lie", [{"l2": 1e12}, {"l2": 1e-12}, {"l2": -5.0}, {"num-examples": 10**9}], ids=str)
def test_one_liar_cannot_set_the_rate(lie):
    liar = in_messages(lambda number, vectors, claims: claims.update(lie), 3, QUESTIONS)
    theory = partial(by_theory, objectives_of(), kind=fco.FedDAGT, work=fco.Epochs(1, batch_size=2))
    (_, rate), (found, other) = theory(), theory(mods=[liar])
    assert rate / 10.0 <= other <= rate * 1.5
    assert ("1 said more than 10 times" in found.reasons["client_lr"]) == (lie.get("l2", 0.0) > 1.0)


def test_the_largest_number_is_bounded_by_those_of_the_others():
    assert bounded_largest([0.0, 0.0, 3.0], [1.0] * 3) == (3.0, 0)
    # What half of the clients say, or those with half of the weight, is no outlier; of two alike one may be.
    assert bounded_largest([1.0, 2.0, 1e3, 1e3], [1.0] * 4) == (1e3, 0)
    assert bounded_largest([1.0, 1.0, 1.0, 1e3], [1.0, 1.0, 1.0, 4.0]) == (1e3, 0)
    assert bounded_largest([1.0, 1e3], [0.5, 0.5]) == (10.0, 1)


def test_a_second_start_chooses_again_and_a_resumed_run_does_not(tmp_path):
    path = tmp_path / "run.npz"
    found, first = by_theory(objectives_of(), callbacks=[Checkpoint(path)])
    run(found.options, objectives_of(scales=[10.0] * 6), 2)
    assert run_of(found.options).problem.client_lr < first / 50
    assert by_theory(objectives_of(scales=[0.9] * 6), 3, resume=path)[1] == first


def test_the_servers_rate_is_fedexps():
    """Two clients that pull apart: the mean is far shorter than the increments: the server goes further along it."""
    features = [np.diag([3.0, 0.1, 0.1]), np.diag([0.1, 3.0, 0.1])]
    objectives = [fco.LeastSquares(f, f @ np.ones(3), scale=0.5) for f in features]
    runs = [by_theory(objectives, 30, server_lr=rate, work=fco.Steps(20, batch_size=None))[0] for rate in (1.0, "auto")]
    assert runs[1].problem.server_lr > 1.0
    plain, further = (sum(f.value(own.point) for f in objectives) for own in runs)
    assert further < plain


# --- what columns the sites have, and in which units ----------------------------------------------------------------

NAMES = ["age", "bmi", "crp", "dose", "egfr", "fev"]


def losses(change=lambda table: table, *, code=lambda labels: labels, site=2, number=4):
    """Logistic losses of some sites whose columns are not alike; one has other columns, or another coding."""
    found = []
    for m in range(number):
        table = pd.DataFrame(np.random.default_rng(m).standard_normal((20, len(NAMES))), columns=NAMES)
        # Two classes that follow from the columns by name, whatever their order.
        labels = (table["age"] - table["bmi"] + np.sin(np.arange(20)) > 0.0).to_numpy().astype(int)
        found.append(fco.Logistic(change(table), code(labels)) if m == site else fco.Logistic(table, labels))
    return found


def reordered(table):
    return table[NAMES[::-1]]


def other_units(table):
    return table.assign(crp=1000.0 * table["crp"])


def averaging(**options):
    return fco.FedDualAvg(regularizer=fco.L1(0.01), client_lr=0.1, work=fco.Steps(2, batch_size=5), **options)


WAYS = {"in process": {}, "messages": {"mods": [lambda message, context, proceed: proceed(message, context)]}}


def long_names(table):
    return table.set_axis([f"{j}\n" * 1000 for j in range(6)], axis=1)


AVERAGING = {
    "order": ({"change": reordered}, r"2\) has its columns in another order than .* 2 more: .*'fev', there 'age'"),
    "no column": ({"change": lambda table: table.drop(columns="bmi")}, r"2\) lacks 'bmi', compared with .*partition 0"),
    "coding": ({"code": lambda y: 2 * y - 1}, r"2\) has the classes '-1', '1', .* 2 more '0', '1'\. Code the classes"),
    "first": ({"change": reordered, "site": 0, "number": 3}, r"0\) has its columns in another .* node 3 .* 1 more"),
    "long names": ({"change": long_names}, r"partition 2\) lacks 'age', .* \(6 in all\) and has '0"),
}
RENAMED = {"change": lambda table: table.rename(columns={"age": "alter"})}
STRATEGIES = [
    averaging,
    lambda: fco.FedNewton(regularizer=fco.L1(0.01)),
    # And here a round 0.
    lambda: fco.FedDAGT(regularizer=fco.L1(0.01), client_lr=0.1, fraction_train=0.25, tracker_start="gradient"),
    lambda: fco.DualFL(nu=0.5, smoothness=1.0),
    # Here other questions come before round 1.
    lambda: fco.FedDualAvg(regularizer=fco.L1(0.01), client_lr="auto"),
]
CASES = [(averaging, *case) for case in AVERAGING.values()]
CASES += [(kind, RENAMED, r"partition 2\) lacks 'age' and has 'alter', compared with") for kind in STRATEGIES]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("make", "sites", "reported"), CASES)
def test_a_site_with_another_table_is_named_before_anything_is_trained(make, sites, reported, way):
    strategy = make()
    text = refused(reported, run_from, strategy, losses(**sites), 2, **WAYS[way])
    assert strategy.state is None or not strategy.state[0].any()
    assert len(text) < 1000
    assert "\n" not in text


def messages_of(strategy, objectives, rounds):
    """Return the messages of a run in order: kind, partition and the content of the reply."""
    sent = []

    def spy(message, context, call_next):
        reply = call_next(message, context)
        sent.append((message.metadata.message_type, context.node_config["partition-id"], reply.content))
        return reply

    run_from(strategy, objectives, rounds, mods=[spy], fraction_evaluate=strategy.fraction_evaluate)
    return sent


@pytest.mark.parametrize("objectives", [losses(), clients()], ids=["named", "arrays"])
def test_each_site_is_asked_once_in_a_run_and_first(objectives):
    sent = messages_of(averaging(fraction_train=0.5, fraction_evaluate=0.5, certificate_every=2), objectives, 6)
    assert sorted(node for kind, node, _ in sent if kind == TABLE) == [0, 1, 2, 3]
    assert {*{node: kind for kind, node, _ in reversed(sent)}.values()} == {TABLE}


def test_a_site_that_comes_late_is_compared_before_its_first_answer():
    late = fco.Participation(choose_nodes=lambda number, nodes: nodes if number > 2 else nodes[:2] + nodes[3:])
    strategy = averaging(participation=late)
    refused(r"partition 2\) has its columns in another order", run_from, strategy, losses(reordered), 5)
    # The model of the rounds before is there.
    assert len(strategy.result.train_metrics_clientapp) == 2


def test_a_site_that_was_silent_is_compared_once_it_has_answered():
    answers = iter([[]])
    app = app_of(losses(reordered), **WAYS["messages"])
    some = Faulty(app, 4, lambda message, reply: next(answers, [reply]), (0,), (4,), TABLE)
    refused(r"partition 2\) has its columns in another order", start_on, some, chosen := averaging(), 5)
    assert chosen.state.round == 1


@pytest.mark.parametrize("way", WAYS)
def test_a_site_that_only_evaluates_is_compared_too(way):
    evaluated = {"fraction_evaluate": 1.0, **WAYS[way]}
    for site in range(4):
        # One of them trains in the round.
        with pytest.raises(ConfigurationError, match=rf"partition {site}\).*in another order|another order.*{site}\)"):
            run_from(averaging(fraction_train=0.25), losses(reordered, site=site), 1, **evaluated)
    # And those that are alike say nothing of it in the numbers.
    result = run_from(averaging(fraction_train=0.25), losses(), 2, **evaluated)
    assert set(result.evaluate_metrics_clientapp[2]) == {"loss", "accuracy", "num-replies", "num-left-out"}
    assert result.evaluate_metrics_clientapp[2]["num-replies"] == 4


# --- units ------------------------------------------------------------------------------------------------------------


def reported_of_units(strategy, objectives, rounds=1, said="standard deviations differ", **options):
    """Return the warnings about units of a run."""
    with warnings.catch_warnings(record=True, action="always") as reported:
        run_from(strategy, objectives, rounds, **options)
    return [text for text in (f"{warning.message}" for warning in reported) if said in text]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("strategy", [averaging, lambda: fco.FedNewton(regularizer=fco.L1(0.01), min_train_nodes=1)])
def test_units_are_compared_with_the_first_answers_of_any_strategy(way, strategy):
    (reported,) = reported_of_units(strategy(), losses(other_units), 3, **WAYS[way])
    assert re.search(r": crp \(.* at partition \d, .* at partition 2\)\. If the units", reported)
    assert not reported_of_units(strategy(), losses(), **WAYS[way])
    matrices = [fco.objectives.TraceRegression(own.features[:, None], own.targets) for own in losses(other_units)]
    start = {"coefficients": np.zeros((1, 6)), "intercept": np.zeros(1)}
    first, *others = reported_of_units(strategy(), matrices, said="standard deviation", start=start, **WAYS[way])
    assert (len(others), ": column 2 (" in first) == (strategy is averaging, True)
    assert all(re.match("column 2 has.*at partition 2, the", own) for own in others)
    for scale, mean, said in ((30.0, 0.0, "client_lr=0.1 are far"), (0.0, 100.0, "are together more than 128 from")):
        large = [fco.Logistic(scale * f.features[m > 2 :] + mean, f.labels[m > 2 :]) for m, f in enumerate(losses())]
        assert len(reported_of_units(strategy(), large, said=said, **WAYS[way])) == len(others)


def test_a_private_run_receives_names_only():
    """No noise is added to deviations."""

    def private():
        noise = fco.GaussianDP(clip=1.0, noise_multiplier=1.0, delta=1e-3, noise_seed=0)
        exact = {"weighting": "uniform", "normalize_local_work": False}
        return fco.FedDualAvg(fraction_evaluate=0.0, work=fco.Steps(1), privacy=noise, **exact)

    sent = messages_of(private(), losses(other_units), 1)
    asked = [(kind, len(own["arrays"]) + len(own["metrics"])) for kind, _, own in sent if kind in (NAMES_ONLY, TABLE)]
    assert asked == [(NAMES_ONLY, 0)] * 4
    assert not reported_of_units(private(), losses(other_units))
    refused("another order", run_from, private(), losses(reordered), 1)


ALTERED_BOUNDS = [
    lambda content: content["arrays"].clear(),
    *(
        lambda content, array=array: content["arrays"].update(deviations=Array(array))
        for array in (np.array([5.0]), np.full(6, np.nan), np.full(6, -1.0), np.zeros(0))
    ),
    lambda content: content.pop("fco-names"),
    lambda content: content["fco-names"].update(columns=[0, 1]),
    lambda content: content.update({"more": ArrayRecord()}),
]


@pytest.mark.parametrize("alter", ALTERED_BOUNDS)
@pytest.mark.parametrize("liars", [{2}, {0, 1, 2, 3}])
def test_nonsense_about_a_table_is_not_compared_and_ends_no_run(alter, liars):
    def mod(message, context, call_next):
        reply = call_next(message, context)
        if context.node_config["partition-id"] in liars and message.metadata.message_type == TABLE:
            alter(reply.content)
        return reply

    strategy = averaging()
    assert not reported_of_units(strategy, losses(other_units), mods=[mod])
    assert not strategy.result.left_out
    assert strategy.state.dual.any()


@pytest.mark.parametrize("factor", [4.7, 5.0, 5.5, 6.0, 1e-9, 1e300])
def test_factors_above_5_are_reported_and_no_smaller_ones(factor):
    here = np.random.default_rng(0).uniform(0.1, 10.0, 50)
    scales = Scales(50)
    for site, own in (("a", here), ("b", factor * here), ("c", np.zeros(50)), ("d", np.ones(3))):
        scales.add(site, own)
    names = [f"x{j}" for j in range(50)]
    assert ("and 45 more" in scales.differing(names)) == (factor > 5.0 or factor < 0.1)
    assert not scales.differing(names)
    assert ("far too long" in scales.apart(names, 0.1)) == (factor > 1.0)

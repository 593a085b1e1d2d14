"""Questions to clients: answered, checked and bounded as replies are, without a trace at the client."""

from functools import partial

import numpy as np
import pytest
from adversarial_clients import in_messages
from kinks import Distance
from problems import app_of, arrays_of
from problems import run as run_from

import flwr_fco as fco
from flwr_fco.callbacks import Checkpoint
from flwr_fco.certificates import Request
from flwr_fco.client_apps.answers import find_answer
from flwr_fco.core.layout import Layout
from flwr_fco.errors import ConfigurationError
from flwr_fco.messages.protocol import Question
from flwr_fco.messages.records import QUESTIONS
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


@pytest.mark.parametrize(
    ("options", "weights"),
    [
        ({}, [6, 8, 10, 12, 14, 16]),
        ({"weighting": "uniform"}, [1, 1, 1, 1, 1, 1]),
        ({"site_weights": {m: 1.0 + m for m in range(6)}}, [1, 2, 3, 4, 5, 6]),
    ],
)
def test_answers_have_the_weights_of_training_and_are_the_clients(options, weights):
    objectives = objectives_of()
    _, answers = asked(objectives, **options)
    w = np.full(4, 0.5)
    assert [a.partition for a in answers] == list(range(6))
    assert [a.weight for a in answers] == pytest.approx([own / sum(weights) for own in weights])
    for answer, objective in zip(answers, objectives, strict=True):
        np.testing.assert_allclose(answer.vectors["gradient"], objective.gradient(w), rtol=1e-12)
        assert answer.numbers["loss"] == pytest.approx(objective.value(w))


@pytest.mark.parametrize(
    ("alter", "reason"),
    [
        (lambda numbers, vectors: vectors.update(extra=np.zeros(4)), "expected finite ['loss']"),
        (lambda numbers, vectors: numbers.pop("loss"), "expected finite ['loss']"),
        (lambda numbers, vectors: numbers.update({"num-examples": 100_000_000}), "more than max_share=0.9"),
        (lambda numbers, vectors: numbers.update(loss=np.nan), "expected finite"),
        (lambda numbers, vectors: vectors.update(gradient=np.full(4, np.inf)), "expected finite"),
    ],
)
def test_an_answer_is_checked_as_a_reply_is(alter, reason):
    objectives = objectives_of()
    liar = in_messages(lambda number, vectors, claims: alter(claims, vectors), 4, QUESTIONS)
    strategy, answers = asked(objectives, mods=[liar], bounds=fco.Bounds(max_share=0.9))
    assert [a.partition for a in answers] == [0, 1, 2, 3, 5]
    (row,) = run_of(strategy).left_out
    assert row.kind == "question"
    assert row.partition_id == 4
    assert reason in row.reason


# --- smoothness ------------------------------------------------------------------------------------------------------


def smoothness(objective, batch_size=0):
    point = {"primal": np.zeros(objective.layout.size)}
    numbers = {"batch-size": float(batch_size)}
    question = Question("smoothness", objective.layout, point, numbers)
    return find_answer("smoothness").answer(question, objective).numbers


def test_an_unknown_constant_is_probed():
    class Own(fco.LeastSquares):
        def lipschitz(self, norm="l2"):
            raise ConfigurationError("unknown")

    features = np.random.default_rng(0).normal(size=(20, 3)) * [3.0, 1.0, 0.5]
    known, unknown = fco.LeastSquares(features, np.ones(20)), Own(features, np.ones(20))
    found = smoothness(unknown)
    assert found["probed"] == 1.0
    assert found["l2"] == pytest.approx(known.lipschitz(), rel=1e-3)
    assert found["l1"] == found["l2"]
    assert smoothness(known)["probed"] == 0.0
    assert smoothness(known)["convexity"] == known.strong_convexity()


def test_counts_have_the_smoothness_of_the_rates_that_are_to_be_fitted():
    """At 0 every rate is 1; a row whose count is 9 bends nine times as much where it is fitted."""
    counts = np.array([0.0, 9.0, 1.0])
    features = np.array([[1.0], [2.0], [1e6]])
    objective = fco.Poisson(features, counts, intercept=False)
    assert smoothness(objective, batch_size=1)["l2"] == pytest.approx(1e12)
    assert smoothness(objective)["l2"] == pytest.approx((1.0 + 36.0 + 1e12) / 3)
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
    with pytest.raises(ConfigurationError, match="Unknown"):
        Unknown().smoothness(9.0, 1.0)
    with pytest.raises(ConfigurationError, match="by hand"):
        fco.Product({"*": Unknown()}).bind(layout).smoothness(9.0, 1.0)


# --- rates -----------------------------------------------------------------------------------------------------------


def by_theory(objectives, rounds=2, kind=FedDualAvg, **options):
    """Return a run with the rate that theory gives, and the rate."""
    names = ("mods", "callbacks", "resume")
    given = {name: options.pop(name) for name in names if name in options}
    strategy = kind(**{"client_lr": "auto", "work": fco.Epochs(1, batch_size=None), **options})
    run(strategy, objectives, rounds, **given)
    return run_of(strategy), run_of(strategy).problem.client_lr


#: The second eigenvalue of the chain of six, whose eigenvalues are 1/3 + 2/3 cos(pi k / 6).
SIGMA = (1 + 2 * np.cos(np.pi / 6)) / 3


@pytest.mark.parametrize(
    ("kind", "options", "constant"),
    [
        (FedDualAvg, {}, 1 / 4),
        (fco.FedDAGT, {}, 1 / 5),
        (fco.DFedDA, {"mixing": "chain"}, 2 * np.log(1 / SIGMA) / np.log(4 * 6) / 5),
        (fco.DFedDAGT, {"mixing": chain(6)}, (2 * np.log(1 / SIGMA) / np.log(8 * 6)) ** 2 / 5),
        (fco.DFedDAGT, {}, 1 / 5),
        (fco.FeDualEx, {}, 1 / np.sqrt(5)),
    ],
)
def test_the_rate_is_theorys(kind, options, constant):
    objectives = objectives_of()
    found, rate = by_theory(objectives, kind=kind, work=fco.Steps(5, batch_size=None), **options)
    assert rate == pytest.approx(constant / max(f.lipschitz() for f in objectives))
    assert found.options.client_lr == "auto"


def test_dual_fl_on_losses_that_are_not_smooth():
    objectives = [Distance(np.random.default_rng(m).normal(size=3), l2=0.2) for m in range(3)]
    start = {"coefficients": np.zeros(3)}
    strategy = fco.DualFL(nu="auto", rho="auto", work=fco.Minimise(rule="gap", tolerance=1e-6))
    run(strategy, objectives, 1, start=start)
    assert run_of(strategy).chosen["nu"] == pytest.approx(0.18)
    assert run_of(strategy).chosen["rho"] == 0.0
    with pytest.raises(ConfigurationError, match="as those of a loss with kinks do"):
        run(FedDualAvg(client_lr="auto"), objectives, 1, start=start)


@pytest.mark.parametrize("claim", [1e12, 1e-12, -5.0])
def test_one_liar_cannot_set_the_rate(claim):
    liar = in_messages(lambda number, vectors, claims: claims.update(l2=claim), 3, QUESTIONS)
    _, rate = by_theory(objectives_of())
    found, other = by_theory(objectives_of(), mods=[liar])
    assert rate / 10.0 <= other <= rate * 1.5
    assert ("1 said more than 10 times" in found.reasons["client_lr"]) == (claim > 1.0)


@pytest.mark.parametrize(
    ("numbers", "weights", "expected"),
    [
        ([0.0, 0.0, 3.0], [1.0] * 3, (3.0, 0)),
        # What half of the clients say, or those with half of the weight, is no outlier; of two alike one may be.
        ([1.0, 2.0, 1e3, 1e3], [1.0] * 4, (1e3, 0)),
        ([1.0, 1.0, 1.0, 1e3], [1.0, 1.0, 1.0, 4.0], (1e3, 0)),
        ([1.0, 1e3], [0.5, 0.5], (10.0, 1)),
    ],
)
def test_the_largest_number_is_bounded_by_those_of_the_others(numbers, weights, expected):
    assert bounded_largest(numbers, weights) == expected


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

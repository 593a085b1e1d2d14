"""What one client can do to a certificate: it is left out and named, and the rest is certified; nothing stops on it."""

import numpy as np
import pytest
from adversarial_clients import in_messages
from newton import sites
from problems import app_of, numpy_of, simulated, zeros

from flwr_fco.callbacks import EarlyStopping
from flwr_fco.objectives import LeastSquares
from flwr_fco.regularizers import L1
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import Epochs, FedDualAvg, FedNewton, Steps
from reproduction.pooled import centralized_solution, certify, composite_objective

LIAR = 1
CLIENTS = 4


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

    return in_messages(lie, LIAR, "query.question")


def run(objectives, mods, rounds=2, callbacks=(), psi=None):
    strategy = FedDualAvg(
        regularizer=psi or L1(0.1),
        client_lr=0.05,
        work=Steps(1, batch_size=None),
        fraction_evaluate=0.0,
        certificate_every=rounds if not callbacks else 1,
    )
    layout = objectives[0].layout
    options = {"initial_arrays": zeros(layout), "callbacks": list(callbacks)}
    result = simulated(strategy, app_of(objectives, mods), rounds, raise_errors=False, **options)
    return result, layout.flatten({name: array.numpy() for name, array in result.arrays.items()})


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
    last = result.train_metrics_clientapp[2]
    assert {row.partition_id for row in result.left_out} == {LIAR}
    rest = [own for m, own in enumerate(objectives) if m != LIAR]
    assert (last["certificate-clients"], last["certificate-of"]) == (CLIENTS - 1, CLIENTS)
    assert last["duality-gap"] == pytest.approx(certify(rest, None, L1(0.1), w).value, rel=1e-9)


@pytest.mark.parametrize("l2", [0.0, 0.2])
@pytest.mark.parametrize("kind", ALL)
def test_honest_answers_all_count(kind, l2):
    objectives = objectives_of(kind, l2)
    result, w = run(objectives, [])
    assert result.left_out == []
    last = result.train_metrics_clientapp[2]
    assert last["certificate-clients"] == last["certificate-of"] == CLIENTS
    assert last["duality-gap"] == pytest.approx(certify(objectives, None, L1(0.1), w).value, rel=1e-9)


@pytest.mark.parametrize(("name", "value"), [("conjugate", -1e9), ("loss", -1e9), ("convex", 0.0)])
def test_nothing_stops_on_a_certificate_of_a_part(name, value):
    stopping = EarlyStopping(tol=1e9, certificate="train/certificate")
    objectives = objectives_of("squares")
    result, _ = run(objectives, [lying(name, value)], rounds=4, callbacks=[stopping])
    assert stopping.stopped == 0
    assert all("certificate" in metrics for metrics in result.train_metrics_clientapp.values())
    result, _ = run(objectives, [], rounds=4, callbacks=[stopping])
    assert stopping.stopped == 1


def test_half_of_the_clients_with_other_losses_are_no_liars():
    """Where nobody is in the majority there is a gap of all data, with the mean of their ridges."""
    objectives = objectives_of("squares")
    objectives[:2] = [LeastSquares(own.features, own.targets, l2=0.3) for own in objectives[:2]]
    result, w = run(objectives, [])
    last = result.train_metrics_clientapp[2]
    assert result.left_out == []
    assert last["duality-gap"] == pytest.approx(certify(objectives, None, L1(0.1), w).value, rel=1e-9)
    assert last["certificate-clients"] == CLIENTS


# --- clients that are silent ------------------------------------------------------------------------------------------


class Silent(InProcessGrid):
    """Partitions that are silent when they are asked: ``silent[i]`` at the i-th question of a pass."""

    def __init__(self, objectives, silent):
        super().__init__(app_of(objectives), len(objectives))
        self.silent = silent
        self.passes = 0

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        replies = super().send_and_receive(messages, timeout=timeout)
        if messages and messages[0].metadata.message_type == "query.question":
            quiet = self.silent[self.passes % len(self.silent)]
            self.passes += 1
            replies = [r for r in replies if self.partition_ids[r.metadata.src_node_id] not in quiet]
        return replies


def certified(objectives, silent, caplog):
    strategy = FedDualAvg(
        regularizer=L1(0.1), client_lr=0.01, work=Epochs(1, batch_size=None), fraction_evaluate=0.0, certificate_every=1
    )
    layout = objectives[0].layout
    result = strategy.start(Silent(objectives, silent), zeros(layout), num_rounds=1)
    assert result.train_metrics_clientapp[1]["num-replies"] == CLIENTS
    return result.train_metrics_clientapp[1], layout.flatten(numpy_of(result.arrays)), caplog.text


def test_a_certificate_is_about_the_clients_that_answer_and_says_how_many(caplog):
    objectives = objectives_of("squares")
    metrics, w, text = certified(objectives, [set(), set()], caplog)
    assert metrics["certificate-clients"] == CLIENTS
    assert "did not answer" not in text
    # Of a client that was silent at first, later answers are about data that the first ones are not about.
    for silent in ([{3}, {3}], [{3}, set()]):
        with pytest.warns(UserWarning, match="certificate of round 1 is of the data of 3 of 4 clients"):
            metrics, w, _ = certified(objectives, silent, caplog)
        assert metrics["certificate-clients"] == 3
        assert metrics["duality-gap"] == pytest.approx(certify(objectives[:3], None, L1(0.1), w).value, rel=1e-9)


@pytest.mark.parametrize(
    ("silent", "reason"),
    [
        ([{*range(CLIENTS)}], "no client answered"),
        ([set(), {1}], "1 of the 4 clients"),
        ([set(), {*range(CLIENTS)}], "4 of the 4"),
    ],
)
def test_without_answers_there_is_no_certificate_and_the_run_goes_on(silent, reason, caplog):
    metrics, _, text = certified(objectives_of("squares"), silent, caplog)
    assert not {"objective", "certificate", "duality-gap", "certificate-clients"} & set(metrics)
    assert "There is no certificate of this round" in text
    assert reason in text


# --- FedNewton --------------------------------------------------------------------------------------------------------


def newton(kind, lie, rounds, *, start=0.3, **options):
    """Run FedNewton with a client that lies in some rounds; return the result and its distance to the optimum."""
    objectives, psi, (name, change) = objectives_of(kind), L1(0.05), lie
    layout = objectives[0].layout

    def lies(number, vectors, claims):
        if number in rounds and name in vectors:
            vectors[name] = change(vectors[name])

    strategy = FedNewton(regularizer=psi, fraction_evaluate=0.0, **options)
    begin = layout.unflatten(start * np.cos(np.arange(layout.size)))
    result = simulated(strategy, app_of(objectives, [in_messages(lies, LIAR)]), 40, initial_arrays=begin)
    w = layout.flatten({name: array.numpy() for name, array in result.arrays.items()})
    best = centralized_solution(objectives, psi, tol=1e-10)
    return result, composite_objective(objectives, None, psi, w) - composite_objective(objectives, None, psi, best)


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
    upper = np.full((order, order), -0.6) + 1.6 * np.eye(order)
    return 1e-3 * upper[np.triu_indices(order)]


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


@pytest.mark.parametrize("kind", ["squares", "logistic", "multinomial"])
@pytest.mark.parametrize("lie", NEWTON_LIES)
def test_a_lie_to_newton_costs_a_round_and_is_named(kind, lie):
    result, distance = newton(kind, NEWTON_LIES[lie], (1,))
    assert {(row.partition_id, row.round) for row in result.left_out} == {(LIAR, 1)}
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


@pytest.mark.parametrize("hessian", ["block", "none"])
@pytest.mark.parametrize("kind", ["squares", "logistic"])
@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_no_lie_to_newton_certifies_a_point_that_is_not_optimal(name, kind, hessian):
    """A lie about a point is found by what fits together at it, or by a lower bound above an objective."""
    lie, rounds, reason = CONTRADICTIONS[name]
    result, distance = newton(kind, lie, rounds, start=0.0, hessian=hessian)
    gaps = [own["duality-gap"] for own in result.train_metrics_clientapp.values() if "duality-gap" in own]
    if reason is None:
        assert not gaps
    elif gaps and gaps[-1] <= 1e-8:
        assert -1e-9 <= distance <= 2e-8
    assert not reason or any(reason in row.reason for row in result.left_out)

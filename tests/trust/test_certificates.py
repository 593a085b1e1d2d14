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

LIAR, CLIENTS = 1, 4


def objectives_of(kind, l2=0.0):
    return sites(kind, sizes=(12, 16, 20, 24), p=4, l2=l2)


def lying(change):
    """Return a mod: ``change(numbers, vectors)`` of a client's answers to questions about duality."""
    return in_messages(lambda number, vectors, claims: change(claims, vectors), LIAR, "query.question")


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


def says(**numbers):
    """A number of its own, wherever it is reported."""

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


ALL = ("squares", "logistic", "multinomial", "poisson")
LIES = [
    *[(kind, says(**{name: value})) for kind in ALL for name, value in (("loss", -1e9), ("convex", 0.0))],
    *[("squares", says(**{name: value})) for name, value in (("loss", -1e300), ("convex", 0.5), ("l2", 0.3))],
    # Beyond the whole numbers of 64 bits, of which NumPy makes objects.
    ("squares", says(conjugate=-(10**30))),
    ("squares", says(l2=-1.0)),
    # A conjugate may be as large as it likes: it makes the gap larger.
    *[(kind, says(conjugate=value)) for kind in ALL for value in (-1e9, -1e300)],
    *[(kind, scales(name, factor)) for kind in ALL for name, factor in (("rows", 3.0), ("loss", 0.5))],
]


@pytest.mark.parametrize(("kind", "lie"), LIES, ids=lambda value: getattr(value, "__name__", value))
def test_who_lies_in_a_field_is_left_out_and_the_rest_is_certified(kind, lie):
    objectives = objectives_of(kind)
    result, w = run(objectives, [lying(lie)])
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


@pytest.mark.parametrize("lie", [says(conjugate=-1e9), says(loss=-1e9), says(convex=0.0)], ids=lambda lie: lie.__name__)
def test_nothing_stops_on_a_certificate_of_a_part(lie):
    stopping = EarlyStopping(tol=1e9, certificate="train/certificate")
    objectives = objectives_of("squares")
    result, _ = run(objectives, [lying(lie)], rounds=4, callbacks=[stopping])
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
        self.silent, self.passes = silent, 0

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


def newton(kind, lie, rounds, *, start=0.3, liar=LIAR, psi=None, **options):
    """Run FedNewton with a client that lies in some rounds; return the result and its distance to the optimum."""
    objectives, psi = objectives_of(kind), psi or L1(0.05)
    layout = objectives[0].layout
    mod = in_messages(lambda number, vectors, claims: number in rounds and lie(vectors), liar)
    strategy = FedNewton(regularizer=psi, fraction_evaluate=0.0, **options)
    begin = layout.unflatten(start * np.cos(np.arange(layout.size)))
    result = simulated(strategy, app_of(objectives, [mod]), 40, initial_arrays=begin)
    w = layout.flatten({name: array.numpy() for name, array in result.arrays.items()})
    best = centralized_solution(objectives, psi, tol=1e-10)
    return result, composite_objective(objectives, None, psi, w) - composite_objective(objectives, None, psi, best)


def times(name, factor):
    def lie(vectors):
        if name in vectors:
            vectors[name] = factor * vectors[name]

    lie.__name__ = f"{name} times {factor}"
    return lie


def in_terms(changes):
    """Return a lie about what a client says of its loss: numbers by position."""

    def lie(vectors):
        vectors["terms"][[*changes]] = [*changes.values()]

    lie.__name__ = f"terms {changes}"
    return lie


def conjugate_moved(amount):
    """The conjugate at a gradient follows from the loss: neither less nor more will do."""

    def lie(vectors):
        vectors["terms"][1] += amount

    lie.__name__ = f"conjugate plus {amount}"
    return lie


def below_0(vectors):
    """By less than what is added before a factorisation."""
    order = int(np.sqrt(2 * vectors["block"].size))
    vectors["block"][:order] = np.r_[-1e-9, np.zeros(order - 1)]


def indefinite(vectors):
    """All minors of order 2 are positive, and the matrix is not."""
    order = int(np.sqrt(2 * vectors["block"].size))
    upper = np.full((order, order), -0.6) + 1.6 * np.eye(order)
    vectors["block"] = 1e-3 * upper[np.triu_indices(order)]


NEWTON_LIES = [
    conjugate_moved(-0.02),
    conjugate_moved(0.02),
    times("block", 1e6),
    indefinite,
    below_0,
    times("targets", 3.0),
    times("targets", -1.0),
    times("gradient", 2.0),
    # The intercept's column has the mean 1.
    times("columns", 5.0),
    # No mean square is below the square of a mean; it bounds how far a proof of a zero reaches.
    times("square", np.array([0.001, 1.0])),
    # A loss whose link the client does not know has no facts.
    in_terms({3: 0.0}),
]


@pytest.mark.parametrize("kind", ["squares", "logistic", "multinomial"])
@pytest.mark.parametrize("lie", NEWTON_LIES, ids=lambda lie: lie.__name__)
def test_a_lie_to_newton_costs_a_round_and_is_named(kind, lie):
    result, distance = newton(kind, lie, (1,))
    assert {row.partition_id for row in result.left_out} == {LIAR}
    assert {row.round for row in result.left_out} == {1}
    assert result.train_metrics_clientapp[1]["skipped"] == 1
    assert -1e-9 <= distance <= 2e-8


def lower_by_a_little(vectors):
    """Of the loss and, so that it fits, of the conjugate."""
    vectors["terms"][:2] += [-0.05, 0.05]


#: A lie, its rounds, and what is said of it; None: there is no gap.
CONTRADICTIONS = {
    "a factor of its own": (in_terms({6: 2.0}), range(1, 99), None),
    "no link any more": (in_terms({0: -1e9, **dict.fromkeys(range(1, 7), 0.0)}), (2,), "in the first round"),
    "a loss of 0 at 0": (in_terms({0: 0.0, 1: 0.0}), (1,), ""),
    "a lower loss": (lower_by_a_little, (3,), ""),
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

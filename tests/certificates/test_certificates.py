"""A certificate bounds the distance to the optimum, whatever the loss, psi and the split over clients are."""

import numpy as np
import pytest

from flwr_fco import certificates
from flwr_fco.core.layout import Layout
from flwr_fco.errors import NoAnswerError, ProtocolError
from flwr_fco.objectives import Huber, LeastSquares, Logistic, MultinomialLogistic, Objective, Poisson
from flwr_fco.regularizers import (
    L1,
    L2,
    Adapter,
    Box,
    ElasticNet,
    GroupLasso,
    HardSparsity,
    L1Ball,
    L2Squared,
    NonNegative,
    Nuclear,
)
from reproduction.pooled import centralized_solution, certify, client_weights, composite_objective

PSI = (
    L1(0.05),
    L1(0.3),
    L1(0.1, bound=0.5),
    L2Squared(0.1),
    ElasticNet(0.2),
    Box(-0.3, 0.4),
    L1Ball(0.7),
    L2(0.1),
    GroupLasso(0.1, groups=[0, 0, 1, 1]),
)


KINDS = {"squares": LeastSquares, "logistic": Logistic, "softmax": MultinomialLogistic}
KINDS |= {"huber": Huber, "poisson": Poisson}


def losses(kind, rng, sizes, d, more=(), **options):
    """Return the losses of unequal parts of one problem; `more` says whether rows have weights and offsets."""
    found = []
    truth = np.zeros(d)
    truth[:4] = 0.5, -0.5, 0.25, 0.35
    for size in sizes:
        features = rng.normal(size=(size, d)) + 0.2
        own = dict(options)
        scores = features @ truth
        if kind == "softmax":
            scores = np.stack([scores, -scores, 0.0 * scores], 1)
        if "weights" in more:
            own["sample_weight"] = rng.uniform(0.2, 2.0, size)
        if "offsets" in more:
            own["offset"] = 0.5 * rng.normal(size=scores.shape)
            scores = scores + own["offset"]
        targets = {
            "squares": lambda s: s + rng.normal(size=s.shape),
            "huber": lambda s: s + rng.standard_t(2, size=s.shape),
            "logistic": lambda s: (s + rng.logistic(size=s.shape) > 0.5).astype(int),
            "softmax": lambda s: np.argmax(s + rng.gumbel(size=s.shape), 1),
            "poisson": lambda s: rng.poisson(np.exp(s + 0.3)),
        }[kind](scores)
        if kind == "softmax":
            own["num_classes"] = 3
        found.append(KINDS[kind](features, targets, **own))
    return found


class HalfSquare:
    """An operator of another library, of which nobody knows the conjugate."""

    def __call__(self, x):
        return 0.5 * float(x @ x)

    def prox(self, x, tau):
        return x / (1.0 + tau)


Adapter.register("half-square", HalfSquare)


def clients_of(kind):
    """Unequal clients, so that the weights matter; of three classes nobody has the last."""
    rng = np.random.default_rng(0)
    found = []
    for size in (7, 12, 20):
        features = rng.normal(size=(size, 4)) + 0.3
        scores = features @ rng.normal(size=4) + 0.5 * rng.normal(size=size)
        labels = np.clip(np.round(scores) + 1, 0, 1).astype(int)
        squares = kind == "squares"
        found.append(
            LeastSquares(features, scores) if squares else MultinomialLogistic(features, labels, num_classes=3)
        )
    return found


class Cubic(Objective):
    """A loss of which nothing but value and gradient is known."""

    def __init__(self):
        self.layout = Layout.from_arrays({"coefficients": np.zeros(3)})
        self.num_examples = 4

    def value(self, w):
        return float(np.sum(np.abs(w - 1.0) ** 3))

    def gradient(self, w, batch=None, out=None):
        return np.multiply(3.0 * np.abs(w - 1.0), w - 1.0, out=out)


@pytest.mark.parametrize(
    ("clients", "psi", "reason"),
    [
        ([Cubic()], L1(0.1), "not known to be convex"),
        (clients_of("softmax"), L1(0.1), "no minimum in the intercept"),
        (clients_of("squares"), HardSparsity(2), "not convex"),
        (clients_of("squares"), NonNegative(), "some directions"),
        (clients_of("squares"), Adapter("half-square"), "the conjugate of Adapter("),
        (clients_of("squares"), L1(0.0), "psi leaves coefficients alone"),
        (clients_of("squares"), L1(0.1, weights=np.eye(4)[0]), "coefficients alone"),
    ],
)
def test_a_residual_where_there_is_no_gap_and_why(clients, psi, reason):
    w = np.full(clients[0].layout.size, 0.5)
    found = certify(clients, None, psi, w)
    assert found.kind == "residual"
    assert reason in found.reason
    shares = client_weights(clients)
    gradient = sum(p * c.gradient(w) for p, c in zip(shares, clients, strict=True))
    assert found.value == pytest.approx(np.linalg.norm(w - psi.bind(clients[0].layout).prox(w - gradient, 1.0)))


def test_nobody_answers():
    asked = certificates.certificate(L1(0.1).bind(Cubic().layout), np.zeros(3))
    with pytest.raises(ValueError, match="no client answered"):
        certificates.settle(asked, lambda request: [])


def test_answers_that_contradict_each_other_are_no_certificate():
    """Also where nobody has looked at each of them."""
    (own,) = losses("logistic", np.random.default_rng(1), (30,), 4)
    w = np.ones(own.layout.size)

    def ask(request):
        numbers, vectors = certificates.reported_at(own, w, request.numbers)
        numbers |= {"conjugate": -1e3} if "conjugate" in numbers else {}
        return [certificates.Answer(numbers, vectors, weight=1.0)]

    with pytest.raises(NoAnswerError, match="contradict each other"):
        certificates.settle(certificates.certificate(L1(0.1).bind(own.layout), w), ask)


def test_losses_of_several_kinds_have_a_gap_together():
    """Each bounds its own conjugate; their ridges add up by their weights."""
    rng = np.random.default_rng(5)
    clients = [
        own
        for kind, l2 in (("squares", 0.0), ("logistic", 0.3), ("huber", 0.1))
        for own in losses(kind, rng, (30,), 6, l2=l2)
    ]
    best = centralized_solution(clients, L1(0.05), tol=1e-12)
    found = [certify(clients, None, L1(0.05), best + size * rng.normal(size=best.size)) for size in (1.0, 0.1, 0.0)]
    assert all(own.kind == "duality-gap" for own in found)
    assert all(own.value >= own.objective - found[-1].objective - 1e-12 for own in found)
    assert found[-1].value <= 1e-12


@pytest.mark.parametrize("first", [0, pytest.param(40, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("case", range(40))
def test_no_gap_is_below_the_distance_to_what_a_solver_finds(first, case):
    """Weights, offsets, ridges, several outputs, constraints; near the optimum and far from it, and 0 at it."""
    rng = np.random.default_rng(first + case)
    kind = ("squares", "logistic", "softmax", "huber", "poisson")[case % 5]
    psi = PSI[rng.integers(len(PSI))]
    if isinstance(psi, GroupLasso):
        psi = Nuclear(0.1) if kind == "softmax" else psi
    more = [name for name in ("weights", "offsets") if rng.random() < 0.5]
    options = {"l2": float(rng.choice([0.0, 0.1])), "intercept": bool(rng.random() < 0.7)}
    clients = losses(kind, rng, (15, 25, 40), 4, more, **options)
    best = centralized_solution(clients, psi, tol=1e-10)
    least = composite_objective(clients, None, psi, best)
    bound = psi.bind(clients[0].layout)
    for size in (0.0, 1e-6, 1e-3, 0.1, 2.0):
        w = bound.prox(best + size * rng.normal(size=best.size), 0.1 * size)
        found = certify(clients, None, psi, w)
        assert found.kind == "duality-gap", found.reason
        assert found.value >= found.objective - least - 1e-12 * (1.0 + abs(least))
        if size == 0.0:
            assert found.value <= 1e-8 * (1.0 + abs(least))


class Reported:
    """A client's answers, of which some numbers are changed."""

    def __init__(self, objective, change):
        self.objective = objective
        self.change = change

    def __call__(self, w, request):
        numbers, vectors = certificates.reported_at(self.objective, w, request.numbers)
        self.change(numbers, vectors)
        answer = certificates.Answer(numbers, vectors, weight=1.0, node_id=1)
        request.check(answer)
        return [answer]


def _scaled(name, factor):
    def change(numbers, vectors):
        if name in numbers:
            numbers[name] *= factor
        if name == "rows" and name in vectors:
            vectors["rows"][0] *= factor

    return change


def _says(name, value):
    return lambda numbers, vectors: numbers.update({name: value}) if name in numbers else None


@pytest.mark.parametrize("kind", ["squares", "logistic", "softmax", "huber", "poisson"])
@pytest.mark.parametrize(
    "change",
    [
        _says("loss", -1e9), _scaled("loss", 0.5), _scaled("loss", 2.0), _says("convex", 0.5), _says("l2", -1.0),
        _scaled("rows", 0.5), _scaled("rows", 2.0), _says("conjugate", -1e3),
        lambda numbers, vectors: vectors["rows"].__setitem__((1, -1), -1e3) if vectors else None,
    ],
)  # fmt: skip
def test_what_a_client_says_is_of_one_convex_function(kind, change):
    rng = np.random.default_rng(1)
    (own,) = losses(kind, rng, (30,), 4, ("weights",), l2=0.1)
    w = rng.normal(size=own.layout.size)
    asked = certificates.certificate(L1(0.1).bind(own.layout), w)
    honest = certificates.settle(asked, lambda request: Reported(own, lambda *_: None)(w, request))
    assert honest.kind == "duality-gap"
    asked = certificates.certificate(L1(0.1).bind(own.layout), w)
    with pytest.raises(ProtocolError, match=r"of one convex function|(convex|l2)=.*expected"):
        certificates.settle(asked, lambda request: Reported(own, change)(w, request))


@pytest.mark.parametrize("value", [1e150, 1e300, -1e300, 1.7e308])
@pytest.mark.parametrize("place", [(0, 0), (0, -2), (1, -2), (2, -2), (1, -1), (slice(None), slice(None))], ids=str)
def test_numbers_that_overflow_end_in_words_or_bound_nothing(place, value):
    (own,) = losses("logistic", np.random.default_rng(1), (30,), 4)
    w = np.random.default_rng(2).normal(size=own.layout.size)

    def change(numbers, vectors):
        if vectors:
            vectors["rows"][place] = value

    asked = certificates.certificate(L1(0.1).bind(own.layout), w)
    with np.errstate(all="ignore"):
        try:
            found = certificates.settle(asked, lambda request: Reported(own, change)(w, request))
        except (ProtocolError, NoAnswerError):
            return
    assert not found.value < 0.1

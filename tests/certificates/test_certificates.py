"""A certificate bounds the distance to the optimum, whatever the loss, psi and the split over clients are."""

from types import SimpleNamespace

import numpy as np
import pytest
from together import together

from flwr_fco import certificates
from flwr_fco.certificates.certificate import _balance
from flwr_fco.core.layout import Layout
from flwr_fco.messages.protocol import Answer
from flwr_fco.objectives import Huber, LeastSquares, Logistic, MultinomialLogistic, Objective
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
from reproduction.pooled import certify, client_weights, composite_objective

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


class HalfSquare:
    """An operator of another library, of which nobody knows the conjugate."""

    def __call__(self, x):
        return 0.5 * float(x @ x)

    def prox(self, x, tau):
        return x / (1.0 + tau)


def clients_of(rng, kind, *, intercept=True, l2=0.0, missing=False):
    """Unequal clients, so that the weights matter."""
    found = []
    for size in (7, 12, 20):
        features = rng.normal(size=(size, 4)) + 0.3
        scores = features @ rng.normal(size=4) + 0.5 * rng.normal(size=size)
        if kind == "squares":
            found.append(LeastSquares(features, scores, scale=0.5, intercept=intercept, l2=l2))
        elif kind == "logistic":
            found.append(Logistic(features, (scores > 0.0).astype(int), intercept=intercept, l2=l2))
        elif kind == "huber":
            found.append(Huber(features, scores, intercept=intercept, l2=l2))
        else:
            labels = np.clip(np.round(scores) + 1, 0, 1 if missing else 2).astype(int)
            found.append(MultinomialLogistic(features, labels, num_classes=3, intercept=intercept, l2=l2))
    return found


def descend(clients, psi, w, steps=400):
    """Accelerated proximal gradient steps: a value near the minimum, from above."""
    shares = client_weights(clients)
    bound = psi.bind(clients[0].layout)
    step = 1.0 / sum(p * c.lipschitz() for p, c in zip(shares, clients, strict=True))
    momentum, before = w, w
    for k in range(steps):
        gradient = sum(p * c.gradient(momentum) for p, c in zip(shares, clients, strict=True))
        before, w = w, bound.prox(momentum - step * gradient, step)
        momentum = w + k / (k + 3) * (w - before)
    return composite_objective(clients, None, psi, w)


@pytest.mark.parametrize("first", [0, pytest.param(36, marks=pytest.mark.nightly)])
@together("case", range(36))
def test_the_true_gap_never_exceeds_the_certificate(first, case):
    """Every loss with every psi; with other data at night."""
    number = first + case
    rng = np.random.default_rng(number)
    kind = ("squares", "logistic", "softmax", "huber")[number % 4]
    psi = PSI[(number // 4) % len(PSI)]
    l2 = 0.1 if number % 3 == 0 else 0.0
    if kind == "softmax" and isinstance(psi, GroupLasso):
        psi = Nuclear(0.1)
    clients = clients_of(rng, kind, intercept=number % 2 == 0, l2=l2, missing=number % 5 == 0)
    bound = psi.bind(clients[0].layout)
    w = bound.prox(rng.normal(size=clients[0].layout.size) * rng.choice([0.01, 0.3, 2.0]), 0.1)
    found = certify(clients, None, psi, w)
    assert found.kind == "duality-gap", found.reason
    assert found.objective == pytest.approx(composite_objective(clients, None, psi, w))
    true_gap = found.objective - descend(clients, psi, w, steps=60)
    assert true_gap <= found.value * (1.0 + 1e-12) + 1e-12


@together("case", [(0.5, 0.05), (0.5, 9.0), (3.0, 0.05), (3.0, 9.0)])
def test_of_squares_with_a_norm_the_best_scaling_of_the_slopes_is_taken(case):
    """The bound is the best of all points s (A w - y) that the norm allows, s of both signs."""
    size, strength = case
    rng = np.random.default_rng(4)
    features, true = rng.normal(size=(20, 4)), rng.normal(size=4)
    targets, w = features @ true + 0.3 * rng.normal(size=20), size * true
    found = certify([LeastSquares(features, targets, scale=0.5, intercept=False)], None, L1(strength), w)
    rest = features @ w - targets
    limit = strength / np.abs(features.T @ rest / 20).max()
    scaled = np.linspace(-limit, limit, 100_001)[:, None] * rest
    best = np.max(-(scaled**2).mean(axis=1) / 2 - (scaled * targets).mean(axis=1))
    assert found.objective - found.value == pytest.approx(best, rel=1e-8)
    # A perfect fit leaves nothing to scale.
    assert (
        certify([LeastSquares(features, features @ w, scale=0.5, intercept=False)], None, L1(strength), w).kind
        == "duality-gap"
    )


@together("kind", ["squares", "logistic", "softmax"])
@together("psi", [*PSI, Nuclear(0.05)])
def test_it_vanishes_at_the_optimum(kind, psi):
    matrix = kind == "softmax"
    if (isinstance(psi, Nuclear) and not matrix) or (isinstance(psi, GroupLasso) and matrix):
        pytest.skip("psi has no form on this model")
    clients = clients_of(np.random.default_rng(3), kind)
    w = np.zeros(clients[0].layout.size)
    bound, shares = psi.bind(clients[0].layout), client_weights(clients)
    step = 1.0 / sum(p * c.lipschitz() for p, c in zip(shares, clients, strict=True))
    far = certify(clients, None, psi, w).value
    for _ in range(3000):
        w = bound.prox(w - step * sum(p * c.gradient(w) for p, c in zip(shares, clients, strict=True)), step)
    found = certify(clients, None, psi, w)
    assert found.kind == "duality-gap"
    assert found.value <= 1e-6 * (1.0 + far)


class Cubic(Objective):
    """A loss of which nothing but value and gradient is known."""

    def __init__(self):
        self.layout, self.num_examples = Layout.from_arrays({"coefficients": np.zeros(3)}), 4

    def value(self, w):
        return float(np.sum(np.abs(w - 1.0) ** 3))

    def gradient(self, w, batch=None, out=None):
        return np.multiply(3.0 * np.abs(w - 1.0), w - 1.0, out=out)


@pytest.mark.parametrize(
    ("clients", "psi", "reason"),
    [
        ([Cubic()], L1(0.1), "conjugate of the clients' loss"),
        (clients_of(np.random.default_rng(0), "squares"), HardSparsity(2), "not convex"),
        (clients_of(np.random.default_rng(0), "squares"), NonNegative(), "some directions"),
        (
            clients_of(np.random.default_rng(0), "squares"),
            Adapter(HalfSquare()),
            "the conjugate of Adapter(",
        ),
        (clients_of(np.random.default_rng(0), "squares"), L1(0.0), "psi leaves coefficients alone"),
        (clients_of(np.random.default_rng(0), "squares"), L1(0.1, weights=np.eye(4)[0]), "coefficients alone"),
        (
            [LeastSquares(np.eye(3), np.ones(3)), LeastSquares(np.eye(3), np.ones(3), scale=0.5)],
            L1(0.1),
            "differ in their factor",
        ),
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


@pytest.mark.parametrize("missing", [False, True])
def test_chances_are_moved_until_their_means_are_the_shares_of_the_classes(missing):
    """Otherwise a free intercept would leave the dual point infeasible, and the bound would bound nothing."""
    rng, weights = np.random.default_rng(4), [0.25, 0.75]
    chances = rng.dirichlet(np.ones(3), size=2)
    present = rng.dirichlet(np.ones(2), size=2) @ np.eye(2, 3) if missing else rng.dirichlet(np.ones(3), size=2)

    def answers():
        for own, shares, weight in zip(chances, present, weights, strict=True):
            yield Answer({}, vectors={"predicted": own, "present": shares}, weight=weight)

    asking = _balance(3, SimpleNamespace(chances=None))
    next(asking)
    if missing:
        # A class that nobody has: its chances go to the others, and the clients are asked again.
        asking.send([*answers()])
        chances = chances * (present > 0.0) / (chances * (present > 0.0)).sum(axis=1, keepdims=True)
    with pytest.raises(StopIteration) as end:
        asking.send([*answers()])
    said = end.value.value
    common = np.array([said[f"common-{i}"] for i in range(3)])
    assert (common == -1.0).tolist() == [False, False, missing]
    predicted, shares = (np.average(rows, axis=0, weights=weights) for rows in (chances, present))
    np.testing.assert_allclose(
        (1.0 - said["mix"]) * predicted + said["mix"] * np.maximum(common, 0.0), shares, rtol=1e-13
    )

"""The saddle-point rivals: the papers' boxes written out, and what is known of them."""

import numpy as np
import pytest
from halves import find_solver
from saddles import ADVERSARIAL, BILINEAR, RNG, SPARSE, run

from flwr_fco.engines import FirstOrder
from flwr_fco.messages.protocol import Downlink, Plan
from flwr_fco.mirror_maps import Euclidean
from flwr_fco.regularizers import L1, PerParameter
from flwr_fco.strategies import Steps
from reproduction.data.saddle_objectives import QuadraticSaddle
from reproduction.rivals import FedAvgS, ScaffoldS

#: A round.
WORK = FirstOrder(steps=4, batch_size=3)


def increment_of(solver, objective, psi, start, client_lr=0.07, **options):
    """Return what a client sends after a round from a point."""
    start.setflags(write=False)
    plan = Plan(solver, objective.layout, psi, Euclidean(), work=WORK, options=options)
    message = Downlink(plan, {"primal": start}, client_lr=client_lr, elapsed=0.3)
    return find_solver(solver)(message, objective, None, np.random.default_rng(0))[0].vectors["increment"]


def test_extra_step_is_extragradient_with_subgradients_and_projection():
    start = np.clip(RNG.normal(size=13), -0.5, 0.5)
    increment = increment_of("extra_step", BILINEAR, SPARSE, start)
    strength = np.r_[np.full(8, 0.1), np.full(5, 0.05)]
    side = np.r_[np.full(8, 0.5), np.full(5, np.inf)]
    batches = iter(BILINEAR.batches(np.random.default_rng(0), FirstOrder(steps=8, batch_size=3)))
    z = start
    for _ in range(4):
        half = np.clip(z - 0.07 * (BILINEAR.gradient(z, next(batches)) + strength * np.sign(z)), -side, side)
        z = np.clip(z - 0.07 * (BILINEAR.gradient(half, next(batches)) + strength * np.sign(half)), -side, side)
    np.testing.assert_allclose(increment, z - start, atol=1e-14)


@pytest.mark.parametrize("bound", [None, 0.05])
def test_descent_ascent_alternating(bound):
    """Universal adversarial training: descent of the classifier, then ascent of the attack on the same images.

    A classifier with bounds is within them before the attack sees it.
    """
    split = ADVERSARIAL.split
    start = np.clip(0.1 * RNG.normal(size=ADVERSARIAL.layout.size), -0.1, 0.1)
    psi = PerParameter({"coefficients": L1(0.01, bound=bound), "perturbation": L1(0.02, bound=0.1)})
    increment = increment_of("descent_ascent", ADVERSARIAL, psi, start, client_lr=0.3, alternating=True)
    strength = np.r_[np.full(12, 0.01), np.zeros(3), np.full(4, 0.02)]
    w = start.copy()
    for batch in ADVERSARIAL.batches(np.random.default_rng(0), WORK):
        w[:split] -= 0.3 * (ADVERSARIAL.gradient(w, batch) + strength * np.sign(w))[:split]
        if bound is not None:
            w[:12] = np.clip(w[:12], -bound, bound)
        ascent = -(ADVERSARIAL.gradient(w, batch) + strength * np.sign(w))[split:]
        w[split:] = np.clip(w[split:] + 0.3 * ascent, -0.1, 0.1)
    np.testing.assert_allclose(increment, w - start, atol=1e-14)


def test_one_local_step_has_no_bias_nor_any_number_with_control_variates():
    rng = np.random.default_rng(3)
    clients = [
        QuadraticSaddle(np.diag(rng.random(3) + 0.5), rng.normal(size=(2, 3)), np.eye(2), linear=rng.normal(size=3))
        for _ in range(3)
    ]
    saddle = QuadraticSaddle.pooled(clients, np.full(3, 1 / 3)).solution
    one = {"client_lr": 0.2, "work": Steps(1, batch_size=None)}
    assert np.abs(run(FedAvgS(**one), clients, 200) - saddle).max() <= 1e-9
    many = {"client_lr": 0.05, "work": Steps(5, batch_size=None)}
    assert np.abs(run(ScaffoldS(**many), clients, 400) - saddle).max() <= 1e-9
    assert np.abs(run(FedAvgS(**many), clients, 400) - saddle).max() >= 1e-3

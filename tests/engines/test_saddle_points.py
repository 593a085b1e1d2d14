"""Local solvers with an extra step, and descent-ascent: the papers' boxes written out, and what is known of them."""

import numpy as np
import pytest
from together import together

from flwr_fco.client_apps import find_solver
from flwr_fco.mirror_maps import Euclidean, Product, SimplexEntropy
from flwr_fco.objectives import (
    BilinearSaddle,
    LeastSquares,
    MatrixGame,
    QuadraticSaddle,
    UniversalAdversarialLogistic,
)
from flwr_fco.regularizers import L1, Box, PerParameter, Zero
from flwr_fco.wire.protocol import Downlink, Plan
from flwr_fco.work import FirstOrder
from reproduction.problems.sequential import dual_extrapolation

RNG = np.random.default_rng(7)
BILINEAR = BilinearSaddle(RNG.uniform(-1, 1, (5, 8)), RNG.uniform(-1, 1, 5), noise=0.2)
GAME = MatrixGame(RNG.uniform(-1, 1, (4, 3)), noise=0.2)
ADVERSARIAL = UniversalAdversarialLogistic(RNG.normal(size=(17, 4)), RNG.integers(0, 3, 17), num_classes=3)
SPARSE = PerParameter({"x": L1(0.1, bound=0.5), "y": L1(0.05)})
ATTACK = PerParameter({"coefficients": L1(0.01), "perturbation": L1(0.02, bound=0.1)})
ENTROPY = Product({"*": SimplexEntropy()})

CASES = {
    "bilinear": (BILINEAR, SPARSE, Euclidean()),
    "game": (GAME, Zero(), ENTROPY),
    "adversarial": (ADVERSARIAL, ATTACK, Euclidean()),
    "a convex loss": (LeastSquares(RNG.normal(size=(9, 4)), RNG.normal(size=9)), L1(0.1), Euclidean()),
}


def downlink(solver, objective, psi, h, vectors, *, steps=4, batch_size=3, client_lr=0.07, elapsed=0.3, numbers=None):
    options = {"trajectory": False, "alternating": False, "sign-ascent": False, **vectors.pop("options", {})}
    plan = Plan(solver, objective.layout, psi, h, work=FirstOrder(steps=steps, batch_size=batch_size), options=options)
    return Downlink(plan, vectors, client_lr=client_lr, elapsed=elapsed, numbers=numbers or {})


def answer(solver, objective, psi, h, vectors, seed=0, **options):
    message = downlink(solver, objective, psi, h, dict(vectors), **options)
    for vector in message.vectors.values():
        vector.setflags(write=False)
    uplink, state = find_solver(solver)(message, objective, None, np.random.default_rng(seed))
    assert state is None
    return message, uplink


def queries(objective, count, seed=0, batch_size=3):
    """Return the operators of a round: a fresh batch for each query."""
    work = FirstOrder(steps=count, batch_size=batch_size)
    return [lambda w, b=b: objective.gradient(w, b) for b in objective.batches(np.random.default_rng(seed), work)]


@together("case", CASES)
@together("trajectory", [False, True])
def test_dual_extrapolation_is_algorithm_1(case, trajectory):
    objective, psi, h = CASES[case]
    start = RNG.normal(size=objective.layout.size)
    vectors = {"dual": start.copy(), "options": {"trajectory": trajectory}}
    message, uplink = answer("dual_extrapolation", objective, psi, h, vectors)
    bound_psi, bound_h, g = message.plan.psi, message.plan.h, iter(queries(objective, 8))
    omega, halves = start.copy(), []
    for k in range(4):
        t = 0.3 + 0.07 * k
        z = bound_h.retrieve(omega, t, bound_psi)
        half = bound_h.retrieve(omega - 0.07 * next(g)(z), t + 0.07, bound_psi)
        halves.append((z, half))
        omega = omega - 0.07 * next(g)(half)
    np.testing.assert_allclose(uplink.vectors["increment"], omega - start, atol=1e-13)
    assert (uplink.steps, uplink.elapsed) == (4, pytest.approx(0.28))
    if trajectory:
        for k, (_, half) in enumerate(halves):
            dual = start + uplink.vectors["trajectory"][k]
            np.testing.assert_allclose(bound_h.retrieve(dual, 0.3 + 0.07 * (k + 1), bound_psi), half, atol=1e-13)
    else:
        assert set(uplink.vectors) == {"increment"}


@together("case", CASES)
@together("trajectory", [False, True])
def test_mirror_prox_is_algorithm_2(case, trajectory):
    objective, psi, h = CASES[case]
    layout = objective.layout
    start = h.bind(layout).retrieve(RNG.normal(size=layout.size), 0.0, psi.bind(layout))
    vectors = {"primal": start.copy(), "options": {"trajectory": trajectory}}
    message, uplink = answer("mirror_prox", objective, psi, h, vectors)
    bound_psi, bound_h, g = message.plan.psi, message.plan.h, iter(queries(objective, 8))
    z, halves = start.copy(), []
    for _ in range(4):
        half = bound_h.retrieve(bound_h.gradient(z) - 0.07 * next(g)(z), 0.07, bound_psi)
        halves.append(half)
        z = bound_h.retrieve(bound_h.gradient(z) - 0.07 * next(g)(half), 0.07, bound_psi)
    np.testing.assert_allclose(uplink.vectors["increment"], z - start, atol=1e-13)
    assert (uplink.steps, uplink.elapsed) == (4, pytest.approx(0.28))
    if trajectory:
        np.testing.assert_allclose(start + uplink.vectors["trajectory"], halves, atol=1e-13)


def test_extra_step_is_extragradient_with_subgradients_and_projection():
    start = np.clip(RNG.normal(size=13), -0.5, 0.5)
    _, uplink = answer("extra_step", BILINEAR, SPARSE, Euclidean(), {"primal": start.copy()})
    strength = np.r_[np.full(8, 0.1), np.full(5, 0.05)]
    side = np.r_[np.full(8, 0.5), np.full(5, np.inf)]
    g, z = iter(queries(BILINEAR, 8)), start.copy()
    for _ in range(4):
        half = np.clip(z - 0.07 * (next(g)(z) + strength * np.sign(z)), -side, side)
        z = np.clip(z - 0.07 * (next(g)(half) + strength * np.sign(half)), -side, side)
    np.testing.assert_allclose(uplink.vectors["increment"], z - start, atol=1e-14)


@pytest.mark.parametrize(("sign", "bound"), [(False, None), (True, None), (False, 0.05)])
def test_descent_ascent_alternating(sign, bound):
    """Universal adversarial training: descent of the classifier, then ascent of the attack on the same images.

    A classifier with bounds is within them before the attack sees it.
    """
    objective, split = ADVERSARIAL, ADVERSARIAL.split
    start = np.clip(0.1 * RNG.normal(size=objective.layout.size), -0.1, 0.1)
    psi = PerParameter({"coefficients": L1(0.01, bound=bound), "perturbation": L1(0.02, bound=0.1)})
    vectors = {"primal": start.copy(), "options": {"alternating": True, "sign-ascent": sign}}
    _, uplink = answer(
        "descent_ascent", objective, psi, Euclidean(), vectors, numbers={"ascent-lr": 0.02}, client_lr=0.3
    )
    strength = np.r_[np.full(12, 0.01), np.zeros(3), np.full(4, 0.02)]
    w = start.copy()
    for batch in objective.batches(np.random.default_rng(0), FirstOrder(steps=4, batch_size=3)):
        descent = objective.gradient(w, batch) + strength * np.sign(w)
        w[:split] -= 0.3 * descent[:split]
        if bound is not None:
            w[:12] = np.clip(w[:12], -bound, bound)
        ascent = -(objective.gradient(w, batch) + strength * np.sign(w))[split:]
        w[split:] = np.clip(w[split:] + 0.02 * (np.sign(ascent) if sign else ascent), -0.1, 0.1)
    np.testing.assert_allclose(uplink.vectors["increment"], w - start, atol=1e-14)


def test_alternating_ascends_from_where_the_attack_is():
    """A start outside of the attack's bound: the descent must not project it before its own step."""
    objective, split = ADVERSARIAL, ADVERSARIAL.split
    start = np.full(objective.layout.size, 0.3)
    psi = PerParameter({"coefficients": L1(0.01), "perturbation": L1(0.0, bound=0.1)})
    vectors = {"primal": start.copy(), "options": {"alternating": True, "sign-ascent": False}}
    _, uplink = answer(
        "descent_ascent", objective, psi, Euclidean(), vectors, numbers={"ascent-lr": 5.0}, client_lr=0.3
    )
    w = start.copy()
    for batch in objective.batches(np.random.default_rng(0), FirstOrder(steps=4, batch_size=3)):
        descent = objective.gradient(w, batch) + np.r_[np.full(12, 0.01), np.zeros(7)] * np.sign(w)
        w[:split] -= 0.3 * descent[:split]
        ascent = -objective.gradient(w, batch)[split:]
        w[split:] = np.clip(w[split:] + 5.0 * ascent, -0.1, 0.1)
    np.testing.assert_allclose(uplink.vectors["increment"], w - start, atol=1e-14)


def test_descent_ascent_simultaneous_is_gradient_descent_along_the_operator():
    start = RNG.normal(size=13)
    _, uplink = answer("descent_ascent", BILINEAR, Zero(), Euclidean(), {"primal": start.copy()})
    w = start.copy()
    for g in queries(BILINEAR, 4):
        w = w - 0.07 * g(w)
    np.testing.assert_allclose(uplink.vectors["increment"], w - start, atol=1e-14)


@pytest.mark.parametrize("alternating", [False, True])
def test_descent_ascent_descends_a_loss_without_a_maximising_player(alternating):
    objective = CASES["a convex loss"][0]
    start = RNG.normal(size=5)
    vectors = {"primal": start.copy(), "options": {"alternating": alternating, "sign-ascent": alternating}}
    _, uplink = answer("descent_ascent", objective, Zero(), Euclidean(), vectors)
    w = start.copy()
    for g in queries(objective, 4):
        w = w - 0.07 * g(w)
    np.testing.assert_allclose(uplink.vectors["increment"], w - start, atol=1e-14)


@pytest.mark.parametrize("solver", ["dual_extrapolation", "mirror_prox", "extra_step"])
def test_an_epoch_counts_batches_and_a_step_takes_two(solver):
    """17 rows in batches of 4 are five batches: three steps of two."""
    objective = ADVERSARIAL
    plan = Plan(
        solver,
        objective.layout,
        ATTACK,
        Euclidean(),
        work=FirstOrder(epochs=1, batch_size=4),
        options={"trajectory": False},
    )
    start = np.zeros(objective.layout.size)
    message = Downlink(plan, {"dual": start, "primal": start}, client_lr=0.1)
    uplink, _ = find_solver(solver)(message, objective, None, np.random.default_rng(0))
    assert (uplink.steps, uplink.elapsed) == (3, pytest.approx(0.3))


def federated(solver, objectives, rounds, *, client_lr, steps, psi=None, server_lr=1.0, start=None):
    """Run a method whose server averages increments, noise-free, and return its last vector."""
    layout = objectives[0].layout
    name = "dual" if solver == "dual_extrapolation" else "primal"
    vector, elapsed = np.zeros(layout.size) if start is None else start.copy(), 0.0
    for _ in range(rounds):
        uplinks = [
            answer(
                solver,
                objective,
                psi or Zero(),
                Euclidean(),
                {name: vector.copy()},
                steps=steps,
                batch_size=None,
                client_lr=client_lr,
                elapsed=elapsed,
            )[1]
            for objective in objectives
        ]
        vector = vector + server_lr * np.mean([uplink.vectors["increment"] for uplink in uplinks], axis=0)
        elapsed += server_lr * client_lr * steps
    return vector


def test_one_client_and_rate_one_is_the_sequential_method():
    """However the steps are cut into rounds: FeDualEx with M = 1 and server_lr = 1 is composite dual extrapolation."""
    start = np.clip(RNG.normal(size=13), -0.5, 0.5)
    psi = PerParameter({"x": L1(0.1, bound=0.5), "y": Box(-0.5, 0.5)})
    sequential = dual_extrapolation(BILINEAR, start, steps=12, step_size=0.1, regularizer=psi)
    for rounds, steps in ((12, 1), (3, 4), (1, 12)):
        dual = federated("dual_extrapolation", [BILINEAR], rounds, client_lr=0.1, steps=steps, psi=psi, start=start)
        np.testing.assert_allclose(dual, sequential.dual, atol=1e-13)


def test_bilinear_dual_extrapolation_converges_and_descent_ascent_diverges():
    """Equal clients, noise-free, unconstrained, full rank: the last iterate reaches the saddle, FedAvg-S runs away."""
    rng = np.random.default_rng(1)
    matrix = rng.normal(size=(6, 6)) / 3.0 + np.eye(6)
    clients = [BilinearSaddle(matrix, rng.normal(size=6))] * 2
    saddle = np.r_[np.linalg.solve(matrix, clients[0].offset), np.zeros(6)]
    rate = 0.9 / clients[0].lipschitz()
    found = federated("dual_extrapolation", clients, 200, client_lr=rate, steps=10)
    assert np.linalg.norm(found - saddle) <= 1e-6 * np.linalg.norm(saddle)
    found = federated("descent_ascent", clients, 200, client_lr=rate, steps=10)
    assert np.linalg.norm(found - saddle) >= 1e6 * np.linalg.norm(saddle)


def unequal_quadratics():
    rng = np.random.default_rng(2)

    def psd(n):
        a = rng.normal(size=(n, n))
        return a @ a.T / n + 0.5 * np.eye(n)

    return [
        QuadraticSaddle(psd(4), rng.normal(size=(3, 4)), psd(3), linear=rng.normal(size=4), offset=rng.normal(size=3))
        for _ in range(4)
    ]


def test_unequal_clients_leave_dual_extrapolation_a_bias_that_falls_with_the_rate():
    """Even for K = 1 the half steps differ; descent-ascent has no half step and is exact for K = 1."""
    clients = unequal_quadratics()
    saddle = QuadraticSaddle.pooled(clients, np.full(4, 0.25)).solution
    errors = {
        rate: np.linalg.norm(
            federated("dual_extrapolation", clients, int(10.0 / rate), client_lr=rate, steps=1, start=saddle) - saddle
        )
        for rate in (0.1, 0.01)
    }
    assert errors[0.1] >= 5.0 * errors[0.01] > 1e-4
    plain = federated("descent_ascent", clients, 300, client_lr=0.1, steps=1)
    assert np.linalg.norm(plain - saddle) <= 1e-8
    equal = [QuadraticSaddle.pooled(clients, np.full(4, 0.25))] * 3
    exact = federated("dual_extrapolation", equal, 300, client_lr=0.1, steps=1)
    assert np.linalg.norm(exact - saddle) <= 1e-8

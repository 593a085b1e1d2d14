"""Local solvers with an extra step: the papers' boxes written out, and what is known of them."""

import numpy as np
import pytest
from saddles import (
    BILINEAR,
    CASES,
    RNG,
    answer,
    equal_bilinear,
    federated,
    queries,
    takes_two_batches_a_step,
    unequal_quadratics,
)
from together import together

from flwr_fco.regularizers import L1, Box, PerParameter
from reproduction.data.saddle_objectives import QuadraticSaddle
from reproduction.problems.sequential import dual_extrapolation


@together("case", CASES)
@together("trajectory", [False, True])
def test_dual_extrapolation_is_algorithm_1(case, trajectory):
    objective, psi, h = CASES[case]
    start = RNG.normal(size=objective.layout.size)
    vectors = {"dual": start.copy(), "options": {"output": "ergodic" if trajectory else "last"}}
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
    vectors = {"primal": start.copy(), "options": {"output": "ergodic" if trajectory else "last"}}
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


@together("solver", ["dual_extrapolation", "mirror_prox"])
def test_an_epoch_counts_batches_and_a_step_takes_two(solver):
    takes_two_batches_a_step(solver)


def test_one_client_and_rate_one_is_the_sequential_method():
    """However the steps are cut into rounds: FeDualEx with M = 1 and server_lr = 1 is composite dual extrapolation."""
    start = np.clip(RNG.normal(size=13), -0.5, 0.5)
    psi = PerParameter({"x": L1(0.1, bound=0.5), "y": Box(-0.5, 0.5)})
    sequential = dual_extrapolation(BILINEAR, start, steps=12, step_size=0.1, regularizer=psi)
    for rounds, steps in ((12, 1), (3, 4), (1, 12)):
        dual = federated("dual_extrapolation", [BILINEAR], rounds, client_lr=0.1, steps=steps, psi=psi, start=start)
        np.testing.assert_allclose(dual, sequential.dual, atol=1e-13)


def test_bilinear_dual_extrapolation_converges():
    """Equal clients, noise-free, unconstrained, full rank: the last iterate reaches the saddle."""
    clients, saddle, rate = equal_bilinear()
    found = federated("dual_extrapolation", clients, 200, client_lr=rate, steps=10)
    assert np.linalg.norm(found - saddle) <= 1e-6 * np.linalg.norm(saddle)


def test_unequal_clients_leave_dual_extrapolation_a_bias_that_falls_with_the_rate():
    """Even for K = 1 the half steps differ."""
    clients = unequal_quadratics()
    saddle = QuadraticSaddle.pooled(clients, np.full(4, 0.25)).solution
    errors = {
        rate: np.linalg.norm(
            federated("dual_extrapolation", clients, int(10.0 / rate), client_lr=rate, steps=1, start=saddle) - saddle
        )
        for rate in (0.1, 0.01)
    }
    assert errors[0.1] >= 5.0 * errors[0.01] > 1e-4
    equal = [QuadraticSaddle.pooled(clients, np.full(4, 0.25))] * 3
    exact = federated("dual_extrapolation", equal, 300, client_lr=0.1, steps=1)
    assert np.linalg.norm(exact - saddle) <= 1e-8

"""Local solvers with an extra step: the papers' boxes written out."""

import numpy as np
import pytest
from halves import find_solver
from saddles import CASES, RNG, answer, queries

from flwr_fco.messages.protocol import Downlink, Plan
from flwr_fco.work import FirstOrder


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("trajectory", [False, True])
def test_dual_extrapolation_is_algorithm_1(case, trajectory):
    objective, psi, h = CASES[case]
    start = RNG.normal(size=objective.layout.size)
    vectors = {"dual": start.copy(), "options": {"output": "ergodic" if trajectory else "last"}}
    message, uplink = answer("dual_extrapolation", objective, psi, h, vectors)
    bound_psi = message.plan.psi
    bound_h = message.plan.h
    g = iter(queries(objective, 8))
    omega = start.copy()
    halves = []
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


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("trajectory", [False, True])
def test_mirror_prox_is_algorithm_2(case, trajectory):
    objective, psi, h = CASES[case]
    layout = objective.layout
    start = h.bind(layout).retrieve(RNG.normal(size=layout.size), 0.0, psi.bind(layout))
    vectors = {"primal": start.copy(), "options": {"output": "ergodic" if trajectory else "last"}}
    message, uplink = answer("mirror_prox", objective, psi, h, vectors)
    bound_psi = message.plan.psi
    bound_h = message.plan.h
    g = iter(queries(objective, 8))
    z = start.copy()
    halves = []
    for _ in range(4):
        half = bound_h.retrieve(bound_h.gradient(z) - 0.07 * next(g)(z), 0.07, bound_psi)
        halves.append(half)
        z = bound_h.retrieve(bound_h.gradient(z) - 0.07 * next(g)(half), 0.07, bound_psi)
    np.testing.assert_allclose(uplink.vectors["increment"], z - start, atol=1e-13)
    assert (uplink.steps, uplink.elapsed) == (4, pytest.approx(0.28))
    if trajectory:
        np.testing.assert_allclose(start + uplink.vectors["trajectory"], halves, atol=1e-13)


@pytest.mark.parametrize(("solver", "start"), [("dual_extrapolation", "dual"), ("mirror_prox", "primal")])
def test_an_epoch_counts_batches_and_a_step_takes_two(solver, start):
    """17 rows in batches of 4 are five batches, three steps of two."""
    objective, psi, h = CASES["adversarial"]
    plan = Plan(solver, objective.layout, psi, h, work=FirstOrder(epochs=1, batch_size=4))
    message = Downlink(plan, {start: np.zeros(objective.layout.size)}, client_lr=0.1)
    uplink, _ = find_solver(solver)(message, objective, None, np.random.default_rng(0))
    assert (uplink.steps, uplink.elapsed) == (3, pytest.approx(0.3))

"""Local solvers with an extra step: the papers' boxes written out."""

import numpy as np
import pytest
from halves import find_solver
from saddles import CASES, RNG, answer, queries

from flwr_fco.messages.protocol import Downlink, Plan
from flwr_fco.work import FirstOrder


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("output", ["last", "ergodic"])
@pytest.mark.parametrize("solver", ["dual_extrapolation", "mirror_prox"])
def test_extra_steps_are_those_of_algorithms_1_and_2(solver, output, case):
    objective, psi, h = CASES[case]
    layout = objective.layout
    psi, h = psi.bind(layout), h.bind(layout)
    of_duals = solver == "dual_extrapolation"
    start = RNG.normal(size=layout.size)
    if not of_duals:
        start = h.retrieve(start, 0.0, psi)
    vectors = {"dual" if of_duals else "primal": start.copy(), "options": {"output": output}}
    _, uplink = answer(solver, objective, CASES[case][1], CASES[case][2], vectors)
    g = iter(queries(objective, 8))
    end = start
    halves = []
    for k in range(4):
        t = 0.3 + 0.07 * k
        if of_duals:
            halves.append(h.retrieve(end - 0.07 * next(g)(h.retrieve(end, t, psi)), t + 0.07, psi))
            end = end - 0.07 * next(g)(halves[-1])
        else:
            halves.append(h.retrieve(h.gradient(end) - 0.07 * next(g)(end), 0.07, psi))
            end = h.retrieve(h.gradient(end) - 0.07 * next(g)(halves[-1]), 0.07, psi)
    np.testing.assert_allclose(uplink.vectors["increment"], end - start, atol=1e-13)
    assert (uplink.steps, uplink.elapsed) == (4, pytest.approx(0.28))
    moves = uplink.vectors.get("trajectory", ())
    assert len(moves) == (4 if output == "ergodic" else 0)
    for k, move in enumerate(moves):
        point = h.retrieve(start + move, 0.3 + 0.07 * (k + 1), psi) if of_duals else start + move
        np.testing.assert_allclose(point, halves[k], atol=1e-13)


@pytest.mark.parametrize(("solver", "start"), [("dual_extrapolation", "dual"), ("mirror_prox", "primal")])
def test_an_epoch_counts_batches_and_a_step_takes_two(solver, start):
    """17 rows in batches of 4 are five batches, three steps of two."""
    objective, psi, h = CASES["adversarial"]
    plan = Plan(solver, objective.layout, psi, h, work=FirstOrder(epochs=1, batch_size=4))
    message = Downlink(plan, {start: np.zeros(objective.layout.size)}, client_lr=0.1)
    uplink, _ = find_solver(solver)(message, objective, None, np.random.default_rng(0))
    assert (uplink.steps, uplink.elapsed) == (3, pytest.approx(0.3))

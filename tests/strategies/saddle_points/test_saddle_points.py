"""Strategies on saddle points: through messages, against the sequential method, the theory and the limits."""

import numpy as np
import pytest
from saddles import PSI, SIDE, bilinear, one_client, run

from flwr_fco.strategies import FeDualEx, Steps
from reproduction.pooled import duality_gap


@pytest.mark.parametrize("output", ["last", "ergodic"])
def test_one_client_is_composite_dual_extrapolation(output):
    """Algorithm 4, both its points, whatever the rounds are cut into; theorem 4 holds for the ergodic one."""
    objective = bilinear()
    start = {name: np.full(size, 0.1) for name, size in (("x", 10), ("y", 6))}
    psi = PSI.bind(objective.layout)
    dual = np.full(16, 0.1)
    halves = []
    for t in range(24):
        point = psi.prox(dual, 0.3 * t)
        halves.append(psi.prox(dual - 0.3 * objective.gradient(point), 0.3 * (t + 1)))
        dual = dual - 0.3 * objective.gradient(halves[-1])
    ergodic = np.mean(halves, axis=0)
    for rounds, steps in ((24, 1), (6, 4)):
        strategy = FeDualEx(
            **one_client(regularizer=PSI, client_lr=0.3, work=Steps(steps, batch_size=None), output=output)
        )
        found = run(strategy, [objective], rounds, start)
        np.testing.assert_allclose(found, ergodic if output == "ergodic" else psi.prox(dual, 0.3 * 24), atol=1e-13)
    diameter = 0.5 * 16 * (0.1 + SIDE) ** 2
    assert duality_gap([objective], None, PSI, ergodic) <= diameter / (0.3 * 24)


def test_the_ergodic_points_are_those_of_the_mean_duals():
    """Formula (4) of the paper: retrieve(mean_m omega_{r,k+1/2}, t_r + client_lr (k + 1)), averaged over r and k."""
    clients = [bilinear(seed) for seed in range(3)]
    strategy = FeDualEx(regularizer=PSI, client_lr=0.2, server_lr=0.7, work=Steps(2, batch_size=None), output="ergodic")
    found = run(strategy, clients, 3)
    psi = PSI.bind(clients[0].layout)
    omega = np.zeros(16)
    elapsed = 0.0
    points = []
    for _ in range(3):
        duals, halves = [], []
        for client in clients:
            own = omega.copy()
            own_halves = []
            for k in range(2):
                t = elapsed + 0.2 * k
                half = own - 0.2 * client.gradient(psi.prox(own, t))
                own_halves.append(half)
                own = own - 0.2 * client.gradient(psi.prox(half, t + 0.2))
            duals.append(own)
            halves.append(own_halves)
        for k, mean in enumerate(np.mean(halves, axis=0)):
            points.append(psi.prox(mean, elapsed + 0.2 * (k + 1)))
        omega = omega + 0.7 * (np.mean(duals, axis=0) - omega)
        elapsed += 0.7 * 0.4
    np.testing.assert_allclose(found, np.mean(points, axis=0), atol=1e-13)
    np.testing.assert_allclose(strategy.state.dual, omega, atol=1e-13)

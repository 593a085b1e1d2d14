"""Strategies on saddle points: through messages, against the sequential method, the theory's points and the limits."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from saddles import PSI, SIDE, bilinear, one_client, run

from flwr_fco.algorithms import MirrorProx
from flwr_fco.errors import ConfigurationError
from flwr_fco.mirror_maps import Product, SimplexEntropy
from flwr_fco.objectives import BilinearSaddle
from flwr_fco.regularizers import L1, PerParameter, Simplex
from flwr_fco.strategies import (
    Epochs,
    FedDualAvg,
    FedMid,
    FedMiP,
    FeDualEx,
    Scaffold,
    Steps,
)
from reproduction.data.saddle_objectives import QuadraticSaddle
from reproduction.pooled import duality_gap, saddle_metrics, saddle_point
from reproduction.problems.sequential import dual_extrapolation


def test_both_local_steps_of_mirror_prox_are_proximal():
    with pytest.raises(TypeError, match="client_prox"):
        MirrorProx(client_prox=False)
    assert MirrorProx(server_prox=False).describe(None) == [("Proximal steps", "client (True) | server (False)")]


@pytest.mark.parametrize("output", ["last", "ergodic"])
def test_one_client_is_composite_dual_extrapolation(output):
    """Algorithm 4, both its points, whatever the rounds are cut into; theorem 4 holds for the ergodic one."""
    objective = bilinear()
    start = {name: np.full(size, 0.1) for name, size in (("x", 10), ("y", 6))}
    sequential = dual_extrapolation(objective, np.full(16, 0.1), steps=24, step_size=0.3, regularizer=PSI)
    for rounds, steps in ((24, 1), (6, 4)):
        strategy = FeDualEx(
            **one_client(regularizer=PSI, client_lr=0.3, work=Steps(steps, batch_size=None), output=output)
        )
        found = run(strategy, [objective], rounds, start)
        np.testing.assert_allclose(found, getattr(sequential, output), atol=1e-13)
    diameter = 0.5 * 16 * (0.1 + SIDE) ** 2
    assert duality_gap([objective], None, PSI, sequential.ergodic) <= diameter / (0.3 * 24)


def test_the_ergodic_points_are_those_of_the_mean_duals():
    """Formula (4) of the paper: retrieve(mean_m omega_{r,k+1/2}, t_r + client_lr (k + 1)), averaged over r and k."""
    clients = [bilinear(seed) for seed in range(3)]
    strategy = FeDualEx(regularizer=PSI, client_lr=0.2, server_lr=0.7, work=Steps(2, batch_size=None), output="ergodic")
    found = run(strategy, clients, 3)
    psi = PSI.bind(clients[0].layout)
    omega, elapsed, points = np.zeros(16), 0.0, []
    for _ in range(3):
        duals, halves = [], []
        for client in clients:
            own, own_halves = omega.copy(), []
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


@pytest.mark.parametrize("strategy", [FeDualEx, FedMiP])
def test_ergodic_points_need_a_number_of_steps(strategy):
    with pytest.raises(ConfigurationError, match=r"work=Steps"):
        strategy(output="ergodic", work=Epochs(1))


def test_the_ergodic_average_of_mirror_prox_is_over_half_steps():
    objective = bilinear(1)
    found = run(
        FedMiP(
            **one_client(
                regularizer=PSI, client_lr=0.2, work=Steps(3, batch_size=None), output="ergodic", server_prox=False
            )
        ),
        [objective],
        2,
    )
    psi = PSI.bind(objective.layout)
    z, halves = np.zeros(16), []
    for _ in range(6):
        halves.append(psi.prox(z - 0.2 * objective.gradient(z), 0.2))
        z = psi.prox(z - 0.2 * objective.gradient(halves[-1]), 0.2)
    np.testing.assert_allclose(found, np.mean(halves, axis=0), atol=1e-13)


def test_mirror_prox_counts_psi_twice_as_printed_and_once_without_the_server():
    """Equal clients, strongly monotone: without the server's map the residual vanishes, as printed it stays."""
    objective = QuadraticSaddle(
        np.eye(3), np.ones((2, 3)) / 3.0, np.eye(2), linear=[2.0, -1.0, 0.3], offset=[1.0, -1.0]
    )
    psi = PerParameter({"*": L1(0.3)})
    options = {"regularizer": psi, "client_lr": 0.2, "work": Steps(1, batch_size=None)}
    once = run(FedMiP(server_prox=False, **options), [objective] * 2, 300)
    printed = run(FedMiP(**options), [objective] * 2, 300)
    residual = [saddle_metrics([objective], None, psi, w)["residual"] for w in (once, printed)]
    assert residual[0] <= 1e-10 < 1e-2 < residual[1]


def test_the_servers_map_of_mirror_prox_weighs_psi_by_what_has_elapsed():
    """Algorithm 2's server: retrieve(z + server_lr mean(increment), server_lr client_lr K), as printed."""
    clients = [bilinear(seed) for seed in range(2)]
    psi = PSI.bind(clients[0].layout)
    z = np.full(16, 0.2)
    start = {"x": z[:10], "y": z[10:]}
    options = {"regularizer": PSI, "client_lr": 0.1, "server_lr": 0.4, "work": Steps(3, batch_size=None)}
    for _ in range(2):
        moved = []
        for client in clients:
            own = z.copy()
            for _ in range(3):
                half = psi.prox(own - 0.1 * client.gradient(own), 0.1)
                own = psi.prox(own - 0.1 * client.gradient(half), 0.1)
            moved.append(own - z)
        z = psi.prox(z + 0.4 * np.mean(moved, axis=0), 0.4 * 0.3)
    np.testing.assert_allclose(run(FedMiP(**options), clients, 2, start), z, atol=1e-14)


def test_equal_clients_reach_the_saddle_and_unequal_ones_come_near():
    rng = np.random.default_rng(3)
    clients = [
        QuadraticSaddle(np.diag(rng.random(3) + 0.5), rng.normal(size=(2, 3)), np.eye(2), linear=rng.normal(size=3))
        for _ in range(3)
    ]
    saddle = saddle_point(clients)
    equal = [QuadraticSaddle.pooled(clients, np.full(3, 1 / 3))] * 3
    options = {"work": Steps(1, batch_size=None)}
    assert np.abs(run(FeDualEx(client_lr=0.2, **options), equal, 200) - saddle).max() <= 1e-9
    errors = [
        np.abs(run(FeDualEx(client_lr=rate, **options), clients, int(20 / rate)) - saddle).max() for rate in (0.2, 0.02)
    ]
    assert errors[0] >= 5 * errors[1] >= 1e-4
    # Control variates have no bias, for any number of steps.
    many = {"client_lr": 0.05, "work": Steps(5, batch_size=None)}
    assert np.abs(run(Scaffold(**many), clients, 400) - saddle).max() <= 1e-9


def test_on_a_bilinear_problem_the_extra_step_converges_and_steps_without_one_diverge():
    rng = np.random.default_rng(1)
    matrix = rng.normal(size=(4, 4)) / 3.0 + np.eye(4)
    clients = [BilinearSaddle(matrix, rng.normal(size=4))] * 2
    saddle = np.r_[np.linalg.solve(matrix, clients[0].offset), np.zeros(4)]
    options = {"client_lr": 0.9 / clients[0].lipschitz(), "work": Steps(5, batch_size=None)}
    for strategy in (FeDualEx, FedMiP):
        assert np.abs(run(strategy(**options), clients, 200) - saddle).max() <= 1e-6
    options["on_divergence"] = "warn"
    for strategy in (FedDualAvg, FedMid):
        assert np.abs(run(strategy(**options), clients, 200) - saddle).max() >= 1e3


def test_the_papers_problem_in_small():
    """Noisy, l1 in boxes: FeDualEx's last point is sparse and its gap below that of FedDualAvg."""
    a, b, c = (np.random.default_rng(np.random.SeedSequence(0, spawn_key=key)) for key in ((0,), (1,), (3, 0)))
    matrix, offset = a.uniform(-1.0, 1.0, (20, 30)), b.uniform(-1.0, 1.0, 20)
    clients = [BilinearSaddle(matrix, offset, noise=0.1) for _ in range(5)]
    start = {"x": c.uniform(-0.05, 0.05, 30), "y": c.uniform(-0.05, 0.05, 20)}
    psi = PerParameter({"*": L1(0.1, bound=0.05)})
    gaps, densities = {}, {}
    options = {"regularizer": psi, "client_lr": 0.03, "server_lr": 1.0, "work": Steps(10, batch_size=1)}
    for strategy in (FeDualEx, FedDualAvg, FedMiP):
        w = run(strategy(**options), clients, 40, start)
        metrics = saddle_metrics(clients[:1], None, psi, w)
        gaps[strategy], densities[strategy] = metrics["gap"], metrics["density"]
    assert np.isfinite(list(gaps.values())).all()
    assert gaps[FeDualEx] < 0.5 * gaps[FedDualAvg]
    assert densities[FeDualEx] < 0.9


def test_a_matrix_game_in_the_entropys_geometry():
    rng = np.random.default_rng(0)
    mean, own = rng.uniform(-1.0, 1.0, (6, 5)), 0.3 * rng.uniform(-1.0, 1.0, (6, 5))
    clients = [BilinearSaddle((mean + sign * own).T) for sign in (1.0, -1.0, 0.0)]
    start = {"x": np.full(6, 1 / 6), "y": np.full(5, 1 / 5)}
    h = Product({"x": SimplexEntropy(), "y": SimplexEntropy()})
    found = run(
        FeDualEx(mirror_map=h, client_lr=0.1, work=Steps(3, batch_size=None), output="ergodic"),
        clients,
        150,
        start,
    )
    assert duality_gap(clients, None, Simplex(), found) <= 0.06
    projected = run(
        FeDualEx(
            regularizer=PerParameter({"*": Simplex()}), client_lr=0.1, work=Steps(3, batch_size=None), output="ergodic"
        ),
        clients,
        150,
        start,
    )
    assert duality_gap(clients, None, Simplex(), projected) <= 0.06


def test_a_misspelt_player_is_an_error_before_the_first_round():
    strategy = FeDualEx(regularizer=PerParameter({"x": L1(0.1), "z": L1(0.1)}))
    arrays = ArrayRecord({"x": Array(np.zeros(3)), "y": Array(np.zeros(2))})
    with pytest.raises(ConfigurationError, match=r"\['z'\] match no array"):
        strategy.prepare(arrays)

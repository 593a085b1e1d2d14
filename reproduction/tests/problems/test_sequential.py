"""Dual extrapolation on one machine: the theorems of Bai, Bullins, section 5, as inequalities at every step."""

import numpy as np
import pytest
from together import together

from flwr_fco import FedMiP, Steps, client_app, simulate
from flwr_fco.errors import FlwrFcoError
from flwr_fco.mirror_maps import Euclidean, Product, SimplexEntropy
from flwr_fco.objectives import BilinearSaddle
from flwr_fco.regularizers import L1, Box, Nuclear, PerParameter, Simplex, SpectralBall, Zero
from reproduction.data.saddle_objectives import QuadraticSaddle
from reproduction.pooled import duality_gap
from reproduction.problems.sequential import dual_extrapolation

SIDE = 0.4


def sparse(seed, *, rows=6, columns=10, side=SIDE, strength=0.2):
    """Bilinear, l1 in a box; the start is feasible. Returns problem, psi, h, start, beta, B."""
    rng = np.random.default_rng(seed)
    objective = BilinearSaddle(rng.uniform(-1, 1, (rows, columns)), rng.uniform(-1, 1, rows))
    start = rng.uniform(-side, side, rows + columns)
    diameter = 0.5 * float(((np.abs(start) + side) ** 2).sum())
    return objective, L1(strength, bound=side), Euclidean(), start, objective.lipschitz(), diameter


def low_rank(seed):
    """Bilinear in matrices, nuclear norm in a spectral ball and a spectral ball."""
    rng = np.random.default_rng(seed)
    objective = BilinearSaddle(rng.uniform(-1, 1, (5, 6)), rng.uniform(-1, 1, (5, 3)))
    psi = PerParameter({"x": Nuclear(0.3, bound=SIDE), "y": SpectralBall(SIDE)})
    # From 0 the farthest feasible points have all singular values at the bound.
    return objective, psi, Euclidean(), np.zeros(33), objective.lipschitz(), 0.5 * SIDE**2 * (3 + 3)


def entropy_game(seed):
    """Two simplices in the entropy's geometry: beta is the largest payoff, B the sum of the logarithms."""
    objective = BilinearSaddle(np.random.default_rng(seed).uniform(-1, 1, (9, 7)).T)
    h = Product({"*": SimplexEntropy()})
    return objective, Zero(), h, None, objective.lipschitz("l1"), float(np.log(9) + np.log(7))


def mixed_game(seed):
    """The entropy for one player, projections for the other; beta for the larger of the two constants."""
    payoff = np.random.default_rng(seed).uniform(-1, 1, (9, 7))
    h, psi = Product({"x": SimplexEntropy(), "y": Euclidean()}), PerParameter({"y": Box(0.0, 0.5)})
    # ||(x, y)||^2 = ||x||_1^2 + ||y||_2^2: the operator's constant is that of P from l2 to l-infinity.
    beta = float(np.linalg.norm(payoff, axis=1).max())
    return BilinearSaddle(payoff.T), psi, h, None, beta, float(np.log(9) + 0.5 * 7 * 0.5**2)


INSTANCES = {make.__name__: make for make in (sparse, low_rank, entropy_game, mixed_game)}


def trace(objective, psi, h, start, *, steps, step_size, **options):
    """Return the gaps of the ergodic and of the last points after each step."""
    gaps = []
    # An entropy keeps its player on the simplex, of which psi says nothing.
    of_y = Simplex() if isinstance(psi, Zero) else psi.for_array("y")
    feasible = PerParameter({"x": Simplex(), "y": of_y}) if isinstance(h, Product) else psi

    def record(point):
        gaps.append([duality_gap([objective], None, feasible, w) for w in (point.ergodic, point.last)])

    dual_extrapolation(
        objective, start, steps=steps, step_size=step_size, regularizer=psi, mirror_map=h, callback=record, **options
    )
    return np.array(gaps)


@together("name", INSTANCES)
@together("seed", [0, 1, 2])
@together("mirror_prox", [False, True])
def test_theorem_4_holds_after_every_number_of_steps(name, seed, mirror_prox):
    """Gap(ergodic point) <= beta B / T at every T; of mirror prox by He, Juditsky, Nemirovski."""
    objective, psi, h, start, beta, diameter = INSTANCES[name](seed)
    gaps = trace(objective, psi, h, start, steps=300, step_size=1.0 / beta, mirror_prox=mirror_prox)
    bound = beta * diameter / np.arange(1, 301)
    assert (gaps >= -1e-12).all()
    assert (gaps[:, 0] <= bound * (1.0 + 1e-9)).all()
    # It is no empty statement: it is met within two orders of magnitude.
    assert (gaps[:, 0] >= 1e-3 * bound).any()


def test_mirror_prox_takes_the_steps_of_fedmip_with_one_client():
    objective, psi, _, start, beta, _ = sparse(0)
    x, y = np.split(start, [10])
    alone = {"min_train_nodes": 1, "min_available_nodes": 1, "fraction_evaluate": 0.0}
    strategy = FedMiP(regularizer=psi, client_lr=0.5 / beta, server_prox=False, work=Steps(7, batch_size=None), **alone)
    options = {"num_nodes": 1, "num_rounds": 1, "progress": False}
    result = simulate(strategy, client_app(lambda context: objective), initial_arrays={"x": x, "y": y}, **options)
    last = dual_extrapolation(objective, start, steps=7, step_size=0.5 / beta, regularizer=psi, mirror_prox=True).last
    np.testing.assert_allclose(np.concatenate([a.numpy() for a in result.arrays.values()]), last, rtol=0, atol=1e-14)


def test_without_psi_it_is_nesterovs_dual_extrapolation():
    """Nesterov 2007 in the Euclidean geometry: x_t = x_0 - mu_t, half = x_t - eta g(x_t), mu += eta g(half)."""
    rng = np.random.default_rng(0)
    objective = QuadraticSaddle(np.eye(3), rng.normal(size=(2, 3)), 2 * np.eye(2), linear=rng.normal(size=3))
    first, eta = rng.normal(size=5), 0.1
    mu, halves = np.zeros(5), []
    for _ in range(40):
        point = first - mu
        half = point - eta * objective.gradient(point)
        halves.append(half)
        mu = mu + eta * objective.gradient(half)
    found = dual_extrapolation(objective, first, steps=40, step_size=eta)
    np.testing.assert_allclose(found.last, first - mu, atol=1e-14)
    np.testing.assert_allclose(found.ergodic, np.mean(halves, axis=0), atol=1e-14)


@pytest.mark.parametrize("name", ["sparse", "entropy_game"])
def test_theorem_3_holds_in_the_mean_over_seeds(name):
    """E Gap(ergodic) <= B / (eta T) + 3 sigma^2 eta, sigma^2 the variance in the dual norm."""
    objective, psi, h, start, beta, diameter = INSTANCES[name](0)
    if name == "sparse":
        noisy = BilinearSaddle(objective.matrix, objective.offset, noise=0.5)
        variance = 0.5**2 * 16
    else:
        noisy = BilinearSaddle(objective.matrix, noise=0.5)
        # The dual norm is that of the two players' maxima.
        draws = 0.5 * np.random.default_rng(0).standard_normal((20000, 16))
        variance = float((np.abs(draws[:, :9]).max(axis=1) ** 2 + np.abs(draws[:, 9:]).max(axis=1) ** 2).mean())
    for steps in (30, 300):
        eta = min(1.0 / (np.sqrt(3.0) * beta), np.sqrt(diameter / (3.0 * variance * steps)))
        gaps = []
        for seed in range(20):
            found = dual_extrapolation(
                noisy, start, steps=steps, step_size=eta, regularizer=psi, mirror_map=h, batch_size=1, seed=seed
            )
            gaps.append(duality_gap([objective], None, psi if name == "sparse" else Simplex(), found.ergodic))
        assert np.mean(gaps) <= diameter / (eta * steps) + 3.0 * variance * eta
        rate = np.sqrt(3.0) * (beta * diameter / steps + np.sqrt(variance * diameter / steps))
        assert np.mean(gaps) <= rate * (1.0 + 1e-12) or eta < 1.0 / (np.sqrt(3.0) * beta)


def test_an_overflow_is_no_answer():
    with pytest.raises(FlwrFcoError, match=r"the dual is not finite after step [12]: step_size=1e\+300 is too large"):
        dual_extrapolation(BilinearSaddle(np.eye(2)), np.ones(4), steps=3, step_size=1e300)

"""Theorem 4 of Bai, Bullins (section 5) as an inequality: FeDualEx and FedMiP with one client."""

import numpy as np
import pytest
from problems import app_of, paired, simulated

from flwr_fco.mirror_maps import Euclidean, Product, SimplexEntropy
from flwr_fco.objectives import BilinearSaddle
from flwr_fco.regularizers import Box, Nuclear, PerParameter, Simplex, SpectralBall
from flwr_fco.strategies import FedMiP, FeDualEx, Steps
from reproduction.pooled import duality_gap

SIDE = 0.4


def low_rank(seed):
    """Bilinear in matrices, nuclear norm in a spectral ball and a spectral ball."""
    rng = np.random.default_rng(seed)
    objective = BilinearSaddle(rng.uniform(-1, 1, (5, 6)), rng.uniform(-1, 1, (5, 3)))
    psi = PerParameter({"x": Nuclear(0.3, bound=SIDE), "y": SpectralBall(SIDE)})
    # From 0 the farthest feasible points have all singular values at the bound.
    return objective, psi, Euclidean(), np.zeros(33), objective.lipschitz(), 0.5 * SIDE**2 * (3 + 3)


def mixed_game(seed):
    """The entropy for one player, projections for the other; beta for the larger of the two constants."""
    payoff = np.random.default_rng(seed).uniform(-1, 1, (9, 7))
    h = Product({"x": SimplexEntropy(), "y": Euclidean()})
    psi = PerParameter({"y": Box(0.0, 0.5)})
    # ||(x, y)||^2 = ||x||_1^2 + ||y||_2^2: the operator's constant is that of P from l2 to l-infinity.
    beta = float(np.linalg.norm(payoff, axis=1).max())
    return BilinearSaddle(payoff.T), psi, h, np.repeat([1 / 9, 0.0], [9, 7]), beta, float(np.log(9) + 0.5 * 7 * 0.5**2)


INSTANCES = {make.__name__: make for make in (low_rank, mixed_game)}


def gaps_of(kind, objective, psi, h, start, rounds, **options):
    """Return the gap of the ergodic point after each round."""
    # An entropy keeps its player on the simplex, of which psi says nothing.
    feasible = PerParameter({"x": Simplex(), "y": psi.for_array("y")}) if isinstance(h, Product) else psi
    gaps = []

    def record(number, arrays, metrics):
        w = objective.layout.flatten({name: array.numpy() for name, array in arrays.items()})
        gaps.append(duality_gap([objective], None, feasible, w))

    only = {"min_train_nodes": 1, "min_available_nodes": 1, "server_lr": 1.0, "fraction_evaluate": 0.0}
    strategy = kind(regularizer=psi, mirror_map=h, output="ergodic", **only, **options)
    begin = {"num_nodes": 1, "initial_arrays": objective.layout.unflatten(start)}
    simulated(strategy, app_of([objective]), rounds, callbacks=[record], **begin)
    return np.array(gaps)


METHODS = {FeDualEx: {}, FedMiP: {"server_prox": False}}


@pytest.mark.parametrize(("name", "seed", "kind"), paired(INSTANCES, [0, 1], METHODS))
def test_theorem_4_holds_after_every_number_of_steps(name, seed, kind):
    """Gap(ergodic point) <= beta B / T at every T; of mirror prox by He, Juditsky, Nemirovski."""
    objective, psi, h, start, beta, diameter = INSTANCES[name](seed)
    one_step = {"work": Steps(1, batch_size=None), "client_lr": 1.0 / beta, **METHODS[kind]}
    gaps = gaps_of(kind, objective, psi, h, start, 150, **one_step)
    bound = beta * diameter / np.arange(1, 151)
    assert (gaps >= -1e-12).all()
    assert (gaps <= bound * (1.0 + 1e-9)).all()
    # It is no empty statement: it is met within two orders of magnitude.
    assert (gaps >= 1e-3 * bound).any()

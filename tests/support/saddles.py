"""Small saddle points, and runs of strategies on them."""

import numpy as np
from problems import numpy_of
from problems import run as run_from

from flwr_fco.mirror_maps import Euclidean, Product, SimplexEntropy
from flwr_fco.objectives import BilinearSaddle, LeastSquares
from flwr_fco.regularizers import L1, PerParameter, Zero
from reproduction.data.saddle_objectives import UniversalAdversarialLogistic

RNG = np.random.default_rng(7)
BILINEAR = BilinearSaddle(RNG.uniform(-1, 1, (5, 8)), RNG.uniform(-1, 1, 5), noise=0.2)
GAME = BilinearSaddle(RNG.uniform(-1, 1, (4, 3)).T, noise=0.2)
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


def run(strategy, objectives, rounds, start=None):
    layout = objectives[0].layout
    start = layout.unflatten(np.zeros(layout.size)) if start is None else start
    return layout.flatten(numpy_of(run_from(strategy, objectives, rounds, start=start).arrays))

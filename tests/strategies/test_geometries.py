"""The strategies in other geometries reach the same optima."""

import numpy as np
import pytest
from problems import FEATURES, flat, run
from representatives import nightly

from flwr_fco.errors import UnsupportedPairError
from flwr_fco.mirror_maps import DiagonalMetric, PNorm, SimplexEntropy
from flwr_fco.objectives import LeastSquares
from flwr_fco.regularizers import L1, L1Ball, Nuclear
from flwr_fco.strategies import FedDualAvg, FedMid, Steps
from reproduction.pooled import centralized_solution

D = FEATURES + 1


def objectives(truth, sizes=(12, 25, 7, 16), intercept=True):
    found = []
    for m, size in enumerate(sizes):
        rng = np.random.default_rng((0, m, 1))
        features = rng.standard_normal((size, FEATURES))
        own = truth + 0.05 * rng.standard_normal(FEATURES)
        found.append(LeastSquares(features, features @ own + 0.5 * intercept, scale=0.5, intercept=intercept))
    return found


@pytest.mark.parametrize(
    "mirror_map",
    [PNorm.for_dimension(D), DiagonalMetric(np.linspace(0.5, 2.0, D)), *nightly(PNorm(3))],
    ids=["p = 2 log d", "diagonal", "p = 3"],
)
def test_one_step_reaches_the_sparse_optimum_in_every_geometry(mirror_map):
    clients = objectives(np.array([2.0, -2.0, 1.0, 0.0, 0.0, 0.0]))
    chosen = FedDualAvg(
        regularizer=L1(0.2), mirror_map=mirror_map, client_lr=0.2, work=Steps(1, batch_size=None), min_train_nodes=4
    )
    result = run(chosen, clients, 700, start=np.full(D, 0.1))
    optimum = centralized_solution(clients, L1(0.2), tol=1e-12)
    np.testing.assert_allclose(flat(result.arrays), optimum, rtol=0, atol=1e-6)


def test_fed_mid_adds_the_primal_increment_to_the_dual_as_printed():
    """Two rounds of algorithm 2 with h = 1/2 sum d_i w_i^2 by hand; its limit there is not the optimum."""
    clients = objectives(np.array([2.0, -2.0, 1.0, 0.0, 0.0, 0.0]))
    d = np.linspace(0.5, 2.0, D)
    chosen = FedMid(
        regularizer=L1(0.2),
        mirror_map=DiagonalMetric(d),
        client_lr=0.1,
        server_lr=0.7,
        work=Steps(2, batch_size=None),
        weighting="uniform",
    )
    start = np.linspace(-1.0, 1.0, D)
    result = run(chosen, clients, 2, start=start)

    def retrieve(z, t):
        threshold = np.append(np.full(FEATURES, 0.2 * t), 0.0)
        return np.sign(z) * np.maximum(np.abs(z) - threshold, 0.0) / d

    w = start
    for _ in range(2):
        increments = []
        for client in clients:
            v = w
            for _ in range(2):
                v = retrieve(d * v - 0.1 * client.gradient(v), 0.1)
            increments.append(v - w)
        w = retrieve(d * w + 0.7 * np.mean(increments, axis=0), 0.7 * 0.2)
    np.testing.assert_allclose(flat(result.arrays), w, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("mirror_map", "psi"), [(SimplexEntropy(), Nuclear(0.1)), (PNorm(4), L1Ball(1.0)), (PNorm(4), L1(0.1, bound=1.0))]
)
def test_a_pair_that_no_model_allows_is_refused_at_construction(mirror_map, psi):
    names = f"{type(mirror_map).__name__} cannot be combined with {type(psi).__name__}.*works with Zero.*Euclidean"
    with pytest.raises(UnsupportedPairError, match=names):
        FedDualAvg(regularizer=psi, mirror_map=mirror_map)

"""The strategies in other geometries reach the same optima."""

import numpy as np
import pytest
from problems import FEATURES, app_of, flat, run
from representatives import nightly

from flwr_fco.errors import ConfigurationError, UnsupportedPairError
from flwr_fco.mirror_maps import DiagonalMetric, Euclidean, PNorm, Product, SimplexEntropy
from flwr_fco.objectives import LeastSquares
from flwr_fco.regularizers import L1, L1Ball, Nuclear, PerParameter, Simplex
from flwr_fco.simulation import simulate
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


def test_entropy_for_the_weights_and_euclid_for_the_intercept():
    truth = np.array([0.4, 0.3, 0.15, 0.1, 0.05, 0.0])
    clients = objectives(truth)
    geometry = Product({"coefficients": SimplexEntropy(), "intercept": Euclidean()})
    chosen = FedDualAvg(mirror_map=geometry, client_lr=0.3, work=Steps(1, batch_size=None))
    result = run(chosen, clients, 1500, start=np.append(np.full(FEATURES, 1 / FEATURES), 0.0))
    optimum = centralized_solution(clients, PerParameter({"coefficients": Simplex()}), tol=1e-12)
    np.testing.assert_allclose(flat(result.arrays), optimum, rtol=0, atol=1e-3)


def test_a_start_where_the_gradient_does_not_exist_is_an_error():
    clients = objectives(np.ones(FEATURES))
    with pytest.raises(ConfigurationError, match="start"):
        run(FedDualAvg(mirror_map=SimplexEntropy()), clients, 1, start=np.zeros(D))


def test_an_unsupported_pair_is_refused_before_any_message():
    with pytest.raises(UnsupportedPairError, match=r"PNorm.*Nuclear"):
        simulate(
            FedDualAvg(mirror_map=PNorm(4), regularizer=Nuclear(0.1), fraction_evaluate=0.0),
            app_of([]),
            num_nodes=2,
            num_rounds=1,
            initial_arrays={"w": np.zeros((2, 2))},
            progress=False,
        )


@pytest.mark.parametrize(
    ("mirror_map", "psi"), [(SimplexEntropy(), Nuclear(0.1)), (PNorm(4), L1Ball(1.0)), (PNorm(4), L1(0.1, bound=1.0))]
)
def test_a_pair_that_no_model_allows_is_refused_at_construction(mirror_map, psi):
    names = f"{type(mirror_map).__name__} cannot be combined with {type(psi).__name__}.*works with Zero.*Euclidean"
    with pytest.raises(UnsupportedPairError, match=names):
        FedDualAvg(regularizer=psi, mirror_map=mirror_map)

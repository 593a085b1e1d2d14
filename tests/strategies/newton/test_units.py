"""FedNewton on features in units of any size, and far from 0: the steps, and the answer, are those of one unit."""

import numpy as np
import pytest
from newton import numbers, point, sites, solved

from flwr_fco.algorithms.newton.model import Penalty, minimise_model
from flwr_fco.core.layout import Layout
from flwr_fco.regularizers import L1, Box, ElasticNet, GroupLasso, L2Squared

UNITS = np.array([1.0, 1e6, 1e-5, 30.0, 1e-3, 7e4, 1e2, 1e-6, 1.0])


@pytest.mark.parametrize("kind", ["squares", "logistic"])
@pytest.mark.parametrize("ratio", [1.0, 0.5, 0.0])
def test_units_that_the_penalty_knows_change_no_round(kind, ratio):
    plain = sites(kind)
    other = [own.with_features(own.features * UNITS + 10.0 * UNITS) for own in plain]
    psi = ElasticNet(0.05, ratio)
    (one, _), (two, _) = solved(plain, psi), solved(other, ElasticNet(0.05, ratio, scales=UNITS))
    assert numbers(two, "duality-gap")[-1] <= 1e-8
    assert len(two.train_metrics_clientapp) <= len(one.train_metrics_clientapp) + 1
    np.testing.assert_allclose(point(two, other[0])[:-1] * UNITS, point(one, plain[0])[:-1], atol=1e-3)


@pytest.mark.parametrize(
    "psi",
    [L1(0.3), ElasticNet(0.3, 0.4), L2Squared(0.1), Box(-0.2, 0.3), GroupLasso(0.3, groups=np.arange(6) // 2)],
    ids=lambda psi: psi.kind,
)
def test_a_model_of_any_units_has_the_minimiser_of_one_unit(psi):
    """With u = scales * x, each group in one unit."""
    rng = np.random.default_rng(0)
    root = rng.normal(size=(20, 6))
    hessian, gradient, start = root.T @ root / 20, rng.normal(size=6), rng.uniform(-0.1, 0.2, 6)
    penalty = Penalty.of(psi.bind(Layout.from_arrays({"w": np.zeros(6)})))
    scales = np.repeat([1e6, 3e-4, 7.0], 2)
    expected = minimise_model(hessian, gradient, start, penalty)
    found = minimise_model(
        hessian * np.outer(scales, scales), gradient * scales, start / scales, penalty.scaled(1.0 / scales)
    )
    np.testing.assert_allclose(found * scales, expected, atol=1e-9)
    assert (found == 0.0).tolist() == (expected == 0.0).tolist()

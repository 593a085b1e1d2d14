"""The model of FedNewton on features in units of any size: its minimiser is that of one unit."""

import numpy as np
import pytest

from flwr_fco.algorithms.newton.model import Penalty, minimise_model
from flwr_fco.core.layout import Layout
from flwr_fco.regularizers import L1, Box, ElasticNet, GroupLasso, L2Squared


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

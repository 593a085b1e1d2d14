"""The number of examples of a package's loss is its number of rows."""

import numpy as np
import pytest

from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives import LeastSquares, Logistic

FEATURES = np.random.default_rng(0).standard_normal((12, 3))


@pytest.mark.parametrize("loss", [LeastSquares(FEATURES, FEATURES[:, 0]), Logistic(FEATURES, np.arange(12) % 2)])
def test_it_cannot_be_set_to_anything_else(loss):
    """It scaled the value and one of two gradients."""
    with pytest.raises(ConfigurationError, match="weighting="):
        loss.num_examples = 1200
    assert loss.num_examples == 12
    _, gradient = loss.value_and_gradient(np.ones(4))
    np.testing.assert_allclose(gradient, loss.gradient(np.ones(4)), rtol=1e-12)

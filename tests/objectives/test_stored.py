"""Linear losses say what they said when each had formulas, kernels and a class of rows of its own (stored numbers)."""

from pathlib import Path

import numpy as np
import pytest
from losses import CASES, Logistic, number_of

STORED = np.load(Path(__file__).parents[1] / "stored_runs" / "losses.npz")


def test_320_losses_say_what_is_stored():
    found = [number_of(number) for number in range(len(CASES))]
    np.testing.assert_allclose(found, STORED["losses"], rtol=0.0, atol=1e-12)


@pytest.mark.slow
def test_lanczos_finds_what_is_stored():
    features = np.random.default_rng(0).normal(size=(2200, 2300))
    np.testing.assert_allclose(Logistic(features, features[:, 0] > 0.0).lipschitz(), STORED["lanczos"], rtol=1e-9)

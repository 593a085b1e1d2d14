"""The schedule of the theorem, in its own formulas."""

from itertools import pairwise

import numpy as np
import pytest

from flwr_fco.errors import ConfigurationError
from reproduction.runs.theorem_stages import theorem_stages


def test_theorem_c2_doubles_the_steps_and_halves_the_radius():
    given = {"dimension": 256, "sparsity": 4, "smoothness": 1.0, "convexity": 0.5, "radius_squared": 64.0}
    given |= {"accuracy": 1.0, "num_clients": 8}
    stages = theorem_stages(noise=1.0, **given)
    assert len(stages) == 6
    assert {stage.rounds for stage in stages} == {int(np.ceil(64 * 4 * 2 * np.log(256)))}
    for n, stage in enumerate(stages, start=1):
        inside = np.log(256) ** 4 + 2 * np.log(2 * n * 256 / 0.05) / (stage.rounds * 8)
        assert stage.local_steps == int(np.ceil(2 ** (n + 14) * 16 / (0.25 * 64 * stage.rounds) * inside))
        # The three terms of theorem C.1, with Q of the stage.
        rounds, k, q, log_d = stage.rounds, stage.local_steps, stage.radius_squared, np.log(256)
        noisy = np.sqrt(2 * q / (rounds * k * log_d)), np.sqrt(2 * q * 8 * log_d / (k * np.log(512 / 0.05)))
        assert stage.client_lr == pytest.approx(min(1 / (48 * k), *noisy), rel=1e-14)
    assert all(a.radius_squared == 2 * b.radius_squared for a, b in pairwise(stages))
    assert all(1.9 < b.local_steps / a.local_steps < 2.1 for a, b in pairwise(stages))
    with pytest.raises(ConfigurationError, match="noise=0"):
        theorem_stages(noise=0.0, **given)

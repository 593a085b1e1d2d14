"""Clients with unequal work: who takes more steps counts no more than its weight, unless the mean is the raw one."""

import numpy as np
from problems import app_of
from quadratics import Quadratic, quadratics

from flwr_fco.simulation import simulate
from flwr_fco.strategies import Epochs

RATE = 0.05


class Sized(Quadratic):
    """A quadratic that stands for any number of examples: minibatches of them, all with the same gradient."""

    def __init__(self, matrix, vector, num_examples):
        super().__init__(matrix, vector)
        self.num_examples = num_examples


def takes_gradient_steps(make, normalize):
    """A method whose steps are plain ones: check a round; return the mean of the increments, and of the steps."""
    sizes = np.array([5, 15, 40])
    objectives = [Sized(f.matrix, f.vector, int(n)) for f, n in zip(quadratics(count=3), sizes, strict=True)]
    strategy = make(client_lr=RATE, work=Epochs(1, batch_size=5), normalize_local_work=normalize)
    strategy.fraction_evaluate = 0.0
    start = {"x": np.ones(6)}
    simulate(strategy, app_of(objectives), num_nodes=3, num_rounds=1, initial_arrays=start, progress=False)
    steps = sizes // 5
    weights = sizes / sizes.sum()
    increments = []
    for f, k in zip(objectives, steps, strict=True):
        x = np.ones(6)
        for _ in range(k):
            x = x - RATE * (f.matrix @ x - f.vector)
        increments.append(x - 1.0)
    mean_steps = weights @ steps
    factors = mean_steps / steps if normalize else np.ones(3)
    mean = (weights * factors) @ np.array(increments)
    np.testing.assert_allclose(strategy.state.primal, 1.0 + mean, atol=1e-12)
    return strategy, mean, mean_steps

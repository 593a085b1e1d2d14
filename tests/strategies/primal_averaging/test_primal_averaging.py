"""FedAvg and what is like it: work, weights and limits."""

import numpy as np
import pytest
from problems import D, app_of, clients, flat, optimum, problem, run
from quadratics import Quadratic, quadratics

from flwr_fco.simulation import simulate
from flwr_fco.strategies import (
    Epochs,
    FedCM,
    FedDualAvg,
    FedSAM,
    LocalSGD,
    Scaffold,
    Steps,
)


class Sized(Quadratic):
    """A quadratic that stands for any number of examples: minibatches of them, all with the same gradient."""

    def __init__(self, matrix, vector, num_examples):
        super().__init__(matrix, vector)
        self.num_examples = num_examples


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("cls", [FedCM, FedSAM])
def test_who_takes_more_steps_counts_no_more_than_its_weight(cls, normalize):
    sizes, rate = np.array([5, 15, 40]), 0.05
    objectives = [Sized(f.matrix, f.vector, int(n)) for f, n in zip(quadratics(count=3), sizes, strict=True)]
    plain = {"mix": 1.0} if cls is FedCM else {"radius": 0.0}
    strategy = cls(client_lr=rate, work=Epochs(1, batch_size=5), normalize_local_work=normalize, **plain)
    strategy.fraction_evaluate = 0.0
    start = {"x": np.ones(6)}
    simulate(strategy, app_of(objectives), num_nodes=3, num_rounds=1, initial_arrays=start, progress=False)
    steps, weights, increments = sizes // 5, sizes / sizes.sum(), []
    for f, k in zip(objectives, steps, strict=True):
        x = np.ones(6)
        for _ in range(k):
            x = x - rate * (f.matrix @ x - f.vector)
        increments.append(x - 1.0)
    mean_steps = weights @ steps
    factors = mean_steps / steps if normalize else np.ones(3)
    mean = (weights * factors) @ np.array(increments)
    np.testing.assert_allclose(strategy.state.primal, 1.0 + mean, atol=1e-12)
    if cls is FedCM:
        np.testing.assert_allclose(strategy.state.direction, -mean / (rate * mean_steps), atol=1e-11)


def test_local_sgd_is_fed_avg():
    objectives = clients()
    result = run(LocalSGD(client_lr=0.05, work=Steps(3, batch_size=None)), objectives, 2)
    w = np.zeros(D)
    sizes = np.array([f.num_examples for f in objectives], dtype=float)
    for _ in range(2):
        points = []
        for f in objectives:
            point = w.copy()
            for _ in range(3):
                point -= 0.05 * f.gradient(point)
            points.append(point)
        w = sizes / sizes.sum() @ np.array(points)
    np.testing.assert_allclose(flat(result.arrays), w, atol=1e-13)


def test_fed_dual_avg_without_psi_is_fed_avg_and_both_miss_what_scaffold_reaches():
    objectives = problem()
    sizes = np.array([f.num_examples for f in objectives], dtype=float)
    solution = optimum(objectives, sizes / sizes.sum())
    work = {"client_lr": 0.1, "work": Steps(10, batch_size=None)}
    averaged = flat(run(LocalSGD(**work), objectives, 150).arrays)
    np.testing.assert_allclose(flat(run(FedDualAvg(**work), objectives, 150).arrays), averaged, atol=1e-12)
    assert np.abs(averaged - solution).max() > 1e-2
    assert np.abs(flat(run(Scaffold(**work), objectives, 150).arrays) - solution).max() < 1e-8

"""FedAvg and what is like it: work, weights and limits."""

import numpy as np
import pytest
from problems import flat, optimum, problem, run
from unequal_work import takes_gradient_steps

from flwr_fco.strategies import FedDualAvg, LocalSGD, Scaffold, Steps


@pytest.mark.parametrize("normalize", [True, False])
def test_who_takes_more_steps_counts_no_more_than_its_weight(normalize):
    takes_gradient_steps(LocalSGD, normalize)


def test_without_psi_dual_averaging_is_fed_avg_and_misses_the_optimum():
    objectives = problem()
    sizes = np.array([f.num_examples for f in objectives], dtype=float)
    solution = optimum(objectives, sizes / sizes.sum())
    work = {"client_lr": 0.1, "work": Steps(10, batch_size=None)}
    averaged = flat(run(LocalSGD(**work), objectives, 150).arrays)
    np.testing.assert_allclose(flat(run(FedDualAvg(**work), objectives, 150).arrays), averaged, atol=1e-12)
    assert np.abs(averaged - solution).max() > 1e-2
    assert np.abs(flat(run(Scaffold(**work), objectives, 150).arrays) - solution).max() < 1e-8

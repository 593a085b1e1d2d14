"""Compile or load the kernels before the clock starts."""

from __future__ import annotations

import numpy as np

from flwr_fco.core.randomness import random_generator
from flwr_fco.engines.dual_steps import compiled_epoch
from flwr_fco.kernels.dual_averaging import NOTHING, Retrieval
from flwr_fco.objectives import LeastSquares, Logistic, MultinomialLogistic, Objective
from flwr_fco.regularizers import L1, ElasticNet, L1Ball, Zero


def warmup() -> None:
    """Call the kernels of the common objectives and regularizers once, on tiny data.

    The first call on a machine compiles them (some seconds) and caches them on disk; a new process loads them (about a
    quarter of a second). Benchmarks call it to exclude both from their timings.

    Examples
    --------
    >>> warmup()
    """
    for dtype in (np.float64, np.float32):
        features = np.eye(3, dtype=dtype)
        objectives: list[Objective] = [
            LeastSquares(features, np.ones(3)),
            Logistic(features, np.array([0, 1, 0])),
            MultinomialLogistic(features, np.array([0, 1, 2])),
        ]
        for objective in objectives:
            w = np.zeros(objective.layout.size)
            objective.value(w)
            objective.gradient(w)
            objective.value_and_gradient(w)
            objective.gradient(w, np.array([0, 2]))
    w = np.zeros(3)
    for regularizer in (Zero(), L1(0.1), L1(0.1, weights=np.ones(3)), L1(0.1, bound=1.0), ElasticNet(0.1), L1Ball(1.0)):
        regularizer.value(regularizer.prox(w, 1.0))
    order = random_generator(0, 1, 0).permutation(3)
    for objective in (LeastSquares(np.eye(3), np.ones(3)), Logistic(np.eye(3), np.array([0, 1, 0]))):
        data = objective.linear_data()
        assert data is not None
        compiled_epoch(data, order, 2, Retrieval(), 0.0, 0.1, NOTHING, np.zeros(4))

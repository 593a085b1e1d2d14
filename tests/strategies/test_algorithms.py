"""Every strategy against the paper's box, written again as a plain NumPy loop."""

import numpy as np
import pytest
from problems import FEATURES, clients, flat, run

from flwr_fco.core.computing import random_generator
from flwr_fco.regularizers import L1
from flwr_fco.strategies import Epochs, FedAvgSubgradient, FedDualAvg, FedDualAvgOSP, FedMid, FedMidOSP

ROUNDS, ETA_C, ETA_S, LAMBDA, SEED = 7, 0.02, 0.7, 0.4, 5
START = np.linspace(-1.0, 1.0, FEATURES + 1)


def soft(v, a):
    """prox of a * l1 on the coefficients, written differently from the package's kernel."""
    w = v.copy()
    w[:FEATURES] = np.sign(v[:FEATURES]) * np.maximum(np.abs(v[:FEATURES]) - a, 0.0)
    return w


def batches(objective, number, partition, epochs, size):
    rng = random_generator(SEED, number, partition)
    for _ in range(epochs):
        order = rng.permutation(objective.num_examples)
        yield from (order[i : i + size] for i in range(0, objective.num_examples, size))


def gradient(objective, w, rows):
    x, y = objective.features[rows], objective.targets[rows]
    residual = x @ w[:FEATURES] + w[FEATURES] - y
    return np.append(2 * x.T @ residual, 2 * residual.sum()) / len(rows)


def mean(values, weights):
    return sum(v * w for v, w in zip(values, weights, strict=True))


def paper(name, objectives, weights, normalize):
    w = z = START
    t = 0.0
    for number in range(1, ROUNDS + 1):
        increments, works = [], []
        for m, objective in enumerate(objectives):
            point, dual, k = w.copy(), z.copy(), 0
            for rows in batches(objective, number, m, epochs=2, size=5):
                if name == "FedAvgSubgradient":
                    s = LAMBDA * np.append(np.sign(point[:FEATURES]), 0.0)
                    point = point - ETA_C * (gradient(objective, point, rows) + s)
                elif name in ("FedMid", "FedMidOSP"):
                    point = point - ETA_C * gradient(objective, point, rows)
                    point = soft(point, ETA_C * LAMBDA) if name == "FedMid" else point
                else:
                    point = soft(dual, (t + ETA_C * k) * LAMBDA) if name == "FedDualAvg" else dual
                    dual = dual - ETA_C * gradient(objective, point, rows)
                k += 1
            increments.append(dual - z if "Dual" in name else point - w)
            works.append(ETA_C * k)
        work = mean(works, weights)
        if normalize:
            increments = [i * work / own for i, own in zip(increments, works, strict=True)]
        step = ETA_S * mean(increments, weights)
        if name == "FedAvgSubgradient":
            w = w + step
        elif name in ("FedMid", "FedMidOSP"):
            w = soft(w + step, ETA_S * work * LAMBDA)
        else:
            z, t = z + step, t + ETA_S * work
            w = soft(z, t * LAMBDA)
    return w


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("weighting", ["examples", "uniform"])
@pytest.mark.parametrize("strategy", [FedAvgSubgradient, FedMid, FedMidOSP, FedDualAvg, FedDualAvgOSP])
def test_strategy_is_the_papers_box(strategy, weighting, normalize):
    objectives = clients()
    result = run(
        strategy(
            regularizer=L1(LAMBDA),
            client_lr=ETA_C,
            server_lr=ETA_S,
            work=Epochs(2, batch_size=5),
            seed=SEED,
            weighting=weighting,
            normalize_local_work=normalize,
        ),
        objectives,
        ROUNDS,
        start=START,
    )
    sizes = np.array([objective.num_examples for objective in objectives])
    weights = sizes / sizes.sum() if weighting == "examples" else np.full(len(sizes), 1 / len(sizes))
    expected = paper(strategy.__name__, objectives, weights, normalize)
    np.testing.assert_allclose(flat(result.arrays), expected, rtol=0, atol=1e-13)


def test_a_schedule_that_leaves_the_positive_numbers_is_an_error():
    with pytest.raises(ValueError, match=r"client_lr\(2\)=0.0"):
        run(FedDualAvg(client_lr=lambda r: 2.0 - r, work=Epochs(1, batch_size=5)), clients(), 3)

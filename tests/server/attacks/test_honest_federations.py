"""Honest federations of unequal sites: nobody is left out, in training, evaluation, questions or certificates."""

import numpy as np
import pytest
from lies_of_one import make
from problems import app_of, simulated

from flwr_fco.core.computing import single_threaded_blas
from flwr_fco.objectives import LeastSquares, Logistic
from flwr_fco.regularizers import L1
from flwr_fco.strategies import DualFL, Epochs, Steps
from flwr_fco.wire import flower as _flower

STRATEGIES = (
    ("FedDualAvg", {}),
    ("FedDAGT", {}),
    ("FedNewton", {}),
    ("FedDualAvg", {"aggregation": "median"}),
    ("Scaffold", {"fraction_train": 0.6}),
    ("FedDR", {}),
    ("DFedDAGT", {}),
    ("FedNewton", {"hessian": "none"}),
    ("FedDAGT", {"tracker_start": "zero", "fraction_train": 0.5}),
)


def federation(seed):
    """Return sites with 10 to 1,000 rows, of units, truths, noise and intercepts of their own."""
    rng = np.random.default_rng((49, seed))
    found, d = [], 5
    truth, squares = rng.standard_normal(d), bool(rng.integers(2))
    for _ in range(rng.integers(3, 13)):
        rows = int(10 ** rng.uniform(1.0, 3.0))
        features = rng.standard_normal((rows, d)) * 10.0 ** rng.uniform(-0.7, 0.7)
        features += rng.standard_normal(d) * rng.integers(2)
        scores = features @ (truth + rng.uniform(0.0, 1.0) * rng.standard_normal(d)) + 2.0 * rng.standard_normal()
        noisy = scores + rng.uniform(0.0, 2.0) * rng.standard_normal(rows)
        found.append(LeastSquares(features, noisy, scale=0.5) if squares else Logistic(features, noisy > 0.0))
    return found


def largest_rate(objectives):
    return 1.0 / max(own.batch_lipschitz(None, "l2") for own in objectives)


def run(strategy, objectives, rounds):
    layout = objectives[0].layout
    with _flower.quiet(50), single_threaded_blas():
        return simulated(
            strategy,
            app_of(objectives),
            rounds,
            num_nodes=len(objectives),
            initial_arrays=layout.unflatten(np.zeros(layout.size)),
        )


SEEDS = [*range(10), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(10, 50))]


@pytest.mark.parametrize("seed", SEEDS)
def test_nobody_is_left_out(seed):
    objectives, (name, more) = federation(seed), STRATEGIES[seed % len(STRATEGIES)]
    work = Steps(4, batch_size=None) if seed % 3 else Epochs(1, batch_size=16)
    options = {"client_lr": 0.25 * largest_rate(objectives), "work": work, "regularizer": L1(0.01), **more}
    strategy = make(name, **options)
    strategy.fraction_evaluate, strategy.on_divergence, strategy.certificate_every = 1.0, "warn", 4
    result = run(strategy, objectives, 25)
    assert result.left_out == []
    told = [m for m in result.train_metrics_clientapp.values() if "certificate-of" in m]
    assert told or name == "FedNewton"
    assert all(m["certificate-clients"] == m["certificate-of"] == len(objectives) for m in told)


@pytest.mark.parametrize("seed", [100, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(101, 150))])
@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_nobody_is_left_out_of_dual_fl_even_where_nu_is_twice_what_theory_allows(seed, factor):
    objectives = federation(seed)
    alpha = 0.0 if isinstance(objectives[0], LeastSquares) else 0.05
    nu = alpha or min(float(np.linalg.eigvalsh(gram(own))[0]) for own in objectives)
    strategy = DualFL(nu=factor * nu, alpha=alpha, fraction_evaluate=0.0)
    strategy.on_divergence = "warn"
    assert run(strategy, objectives, 12).left_out == []


def gram(own):
    design = np.column_stack([own.features, np.ones(own.num_examples)])
    return design.T @ design / own.num_examples

"""Honest federations of unequal sites: nobody is left out, and no run ends, in training, evaluation or certificates."""

import numpy as np
import pytest
from adversarial_clients import make
from problems import REPRESENTATIVES, SADDLE, app_of, simulated, zeros

from flwr_fco.core.computing import quiet, single_threaded_blas
from flwr_fco.objectives import Huber, LeastSquares, Logistic, Poisson
from flwr_fco.regularizers import L1
from flwr_fco.strategies import STRATEGIES, Bounds, Epochs, FedDAGT, FedDR, FedDualAvg, MultistepReFedDAGT, Stage, Steps

METHODS = [name for name in STRATEGIES if name not in SADDLE]
FURTHER = ({"aggregation": "median"}, {"fraction_train": 0.5}, {"tracker_start": "zero"}, {"hessian": "none"})


def federation(seed):
    """Return sites with 10 to 1,000 rows, of units, truths, noise and intercepts of their own."""
    rng = np.random.default_rng((49, seed))
    found = []
    d = 5
    truth = rng.standard_normal(d)
    squares = bool(rng.integers(2))
    for _ in range(rng.integers(3, 13)):
        rows = int(10 ** rng.uniform(1.0, 3.0))
        features = rng.standard_normal((rows, d)) * 10.0 ** rng.uniform(-0.7, 0.7)
        features += rng.standard_normal(d) * rng.integers(2)
        scores = features @ (truth + rng.uniform(0.0, 1.0) * rng.standard_normal(d)) + 2.0 * rng.standard_normal()
        noisy = scores + rng.uniform(0.0, 2.0) * rng.standard_normal(rows)
        found.append(LeastSquares(features, noisy, scale=0.5) if squares else Logistic(features, noisy > 0.0))
    return found


def squares(rng, rows, columns, scale=1.0):
    """Return a site whose truth is 1 in each column, with noise."""
    features = scale * rng.standard_normal((rows, columns))
    return LeastSquares(features, features @ np.ones(columns) + rng.standard_normal(rows), scale=0.5)


def largest_rate(objectives):
    return 1.0 / max(own.batch_lipschitz(None, "l2") for own in objectives)


def run(strategy, objectives, rounds):
    layout = objectives[0].layout
    with quiet(50), single_threaded_blas():
        options = {"num_nodes": len(objectives), "initial_arrays": zeros(layout)}
        return simulated(strategy, app_of(objectives), rounds, **options)


#: In the default run each class of method in three federations; at night all methods in 150.
FEDERATIONS = [
    pytest.param(seed, name, marks=() if seed < 3 and name in REPRESENTATIVES else pytest.mark.nightly)
    for name in METHODS
    for seed in range(150)
]


@pytest.mark.filterwarnings("ignore:standard deviations differ")
@pytest.mark.parametrize(("seed", "name"), FEDERATIONS)
def test_nobody_is_left_out(seed, name):
    objectives = federation(seed)
    options = {"client_lr": 0.25 * largest_rate(objectives), "regularizer": L1(0.01)}
    options["work"] = Steps(4, batch_size=None) if seed % 3 else Epochs(1, batch_size=16)
    if name == "DualFL":
        options |= {"smoothness": 1.0 / largest_rate(objectives), "alpha": 0.05, "nu": 0.05}
    for key, value in FURTHER[seed % len(FURTHER)].items():
        known = STRATEGIES[name].__dataclass_fields__
        median = key == "aggregation" and STRATEGIES[name].algorithm.reads != "mean"
        all_ = key == "fraction_train" and STRATEGIES[name].algorithm.reads == "everyone"
        options |= {} if median or all_ or key not in known else {key: value}
    strategy = make(name, **options)
    strategy.fraction_evaluate = 1.0
    strategy.certificate_every = 5
    # Long runs of one federation by day, and of the others at night: there are two certificates in either.
    result = run(strategy, objectives, 11 if seed in (0, 2) else 25)
    assert result.left_out == []
    reported = [m for m in result.train_metrics_clientapp.values() if "certificate-of" in m]
    assert reported or name == "FedNewton"
    assert all(m["certificate-clients"] == m["certificate-of"] == len(objectives) for m in reported)


def test_a_sharp_honest_loss_among_ten_stays_and_ends_nothing():
    """Sampled now and then, at a small rate: its increments are many times those of the others."""
    rng = np.random.default_rng(0)
    objectives = [squares(rng, 20, 6, 12.0 if m == 32 else 1.0) for m in range(64)]
    options = {"fraction_train": 10 / 64, "client_lr": 0.001, "regularizer": L1(0.01), "bounds": Bounds()}
    result = run(FedDAGT(work=Steps(10, batch_size=5), fraction_evaluate=0.0, **options), objectives, 40)
    assert result.left_out == []


@pytest.mark.parametrize("sizes", [(10, 20_000), (10, 10, 12, 30_000)])
def test_a_large_site_among_small_ones_stays(sizes):
    rng = np.random.default_rng(1)
    objectives = [squares(rng, rows, 3) for rows in sizes]
    for name in ("FedDualAvg", "FedDAGT", "FedNewton"):
        assert run(make(name, work=Steps(4, batch_size=None)), objectives, 6).left_out == []


def test_slopes_that_do_not_change_are_sent_again_in_each_stage():
    own = [squares(np.random.default_rng(m), 20, 3) for m in range(4)]
    objectives = [Huber(one.features, one.targets + far) for one, far in zip(own, (1e4, 0, 0, 0), strict=True)]
    stages = {"stages": [Stage(2)] * 3, "client_lr": 0.05, "work": Steps(3, batch_size=None)}
    assert run(MultistepReFedDAGT(**stages, fraction_evaluate=0.0), objectives, 6).left_out == []


def far_from_0(rows, d=4):
    """Return features of which one is a million of its deviations from 0."""
    rng = np.random.default_rng((5, rows))
    return rng.standard_normal((rows, d)) + np.array([0.0, 1e6, *[0.0] * (d - 2)]), rng


def test_a_site_of_both_classes_stays_among_sites_of_one():
    """One column decides the classes of two sites, whose models hardly move; predictions at the third move as ever."""
    objectives = []
    for rows, both in ((25, False), (30, False), (60, True)):
        features, rng = far_from_0(rows)
        objectives.append(Logistic(features, rng.random(rows) < 0.5 if both else np.ones(rows)))
    assert run(FedDR(regularizer=L1(0.01), fraction_evaluate=0.0), objectives, 6).left_out == []


@pytest.mark.parametrize("work", [Steps(3, batch_size=None), Epochs(1, batch_size=1)])
def test_a_rate_by_theory_for_counts_overflows_nowhere(work):
    objectives = []
    for rows in (9, 46, 99):
        features, rng = far_from_0(rows)
        objectives.append(Poisson(features, rng.poisson(np.exp(features[:, 0] + 1.0)).astype(float)))
    result = run(FedDualAvg(client_lr="auto", regularizer=L1(0.01), work=work, fraction_evaluate=0.0), objectives, 6)
    assert result.left_out == []


def test_rare_features_of_a_large_unit_make_no_reply_too_long():
    """Of one row each most gradients of the first round are small, and one is 300 times as long."""
    rng = np.random.default_rng(2)
    objectives = []
    for m in range(5):
        features = np.zeros((40, 3))
        features[:, 0] = rng.standard_normal(40)
        features[rng.random(40) < (0.9 if m == 4 else 0.02), 1] = 1e5
        objectives.append(Logistic(features, rng.random(40) < 0.5))
    options = {"client_lr": "auto", "work": Steps(7, batch_size=1), "fraction_evaluate": 0.0}
    assert run(FedDualAvg(regularizer=L1(0.01), **options), objectives, 6).left_out == []

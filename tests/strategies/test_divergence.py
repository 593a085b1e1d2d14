"""A run that diverges ends with an error that says what to do; a run that converges is never stopped."""

import logging
from types import SimpleNamespace

import numpy as np
import pytest
from problems import clients, flat, run
from representatives import nightly

from flwr_fco.errors import DivergedError
from flwr_fco.objectives import LeastSquares
from flwr_fco.regularizers import L1
from flwr_fco.strategies import FedAvgSubgradient, FedDAGT, FedDualAvg, FedMid, Scaffold, Steps
from flwr_fco.strategies.divergence import Watch
from flwr_fco.strategies.replies import TOO_LONG, LeftOut
from reproduction.pooled import certify


def largest_stable_rate(objectives):
    """2 / L of the pooled quadratic, whose gradient steps diverge for any larger rate."""
    total = sum(objective.num_examples for objective in objectives)
    hessian = sum(
        objective.num_examples
        / total
        * np.stack([objective.hessian_product(np.zeros(7), column) for column in np.eye(7)])
        for objective in objectives
    )
    return 2.0 / float(np.linalg.eigvalsh(hessian).max())


@pytest.mark.parametrize("factor", [1.05, 1.5, 10.0, 1e3, 1e8, 1e14])
@pytest.mark.parametrize("cls", [FedDualAvg, FedMid, FedAvgSubgradient])
def test_every_rate_above_the_stability_limit_ends_in_the_error(cls, factor):
    """Oracle: full gradient steps on a quadratic diverge exactly above 2 / L."""
    objectives = clients()
    rate = factor * largest_stable_rate(objectives)
    strategy = cls(client_lr=rate, work=Steps(1, batch_size=None))
    with pytest.raises(DivergedError) as caught:
        run(strategy, objectives, 2000, start=np.ones(7))
    error = caught.value
    assert f"in round {error.server_round}" in str(error)
    assert f"client_lr={rate:g}" in str(error)
    assert f"{rate / 10:g}" in str(error)
    assert 0 <= error.good_round < error.server_round
    # Ten times the first model's norm, which a large rate has moved by its multiple of the gradient at the start.
    assert np.linalg.norm(flat(error.arrays)) < 1e3 * max(1.0, rate)
    assert error.arrays is error.result.arrays


@pytest.mark.parametrize("factor", [0.95, *nightly(0.05, 0.5)])
def test_no_rate_below_the_stability_limit_does(factor):
    objectives = clients()
    rate = factor * largest_stable_rate(objectives)
    strategy = FedDualAvg(regularizer=L1(0.3), client_lr=rate, work=Steps(1, batch_size=None))
    result = run(strategy, objectives, 450)
    assert certify(objectives, None, L1(0.3), flat(result.arrays)).value < 1e-2


def test_a_sparse_start_and_large_coefficients_are_no_divergence():
    """The first models are exactly 0 and the solution is 2e4: the norm grows from 0 by as much."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((60, 6))
    objectives = [LeastSquares(features, 1e4 * features[:, 0] * 2.0, scale=0.5) for _ in range(3)]
    strategy = FedDualAvg(regularizer=L1(1e4), client_lr=3e-3, work=Steps(1, batch_size=None))
    result = run(strategy, objectives, 1000)
    assert np.abs(flat(result.arrays)).max() > 5e3


def test_local_steps_that_overflow_name_the_client_rate(caplog):
    strategy = FedDualAvg(client_lr=50.0, work=Steps(400, batch_size=None))
    with pytest.raises(DivergedError, match=r"round 1: the local steps of all clients overflow. client_lr=50 .*try 5,"):
        run(strategy, clients(), 100)
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) < 10


def test_warn_says_so_once_and_goes_on(caplog):
    rounds = []
    strategy = FedDualAvg(client_lr=2.0, work=Steps(1, batch_size=None), on_divergence="warn")
    with caplog.at_level(logging.WARNING, logger="flwr"):
        run(strategy, clients(), 100, callbacks=[lambda number, arrays, metrics: rounds.append(number)])
    assert rounds[-1] == 100
    said = [record for record in caplog.records if "diverged" in record.getMessage()]
    assert len(said) == 1
    assert 'on_divergence="warn"' in said[0].getMessage()


@pytest.mark.parametrize("cls", [FedDAGT, Scaffold])
def test_methods_with_memories_too(cls):
    with pytest.raises(DivergedError):
        run(cls(client_lr=3.0, work=Steps(3, batch_size=None)), clients(), 2000)


@pytest.mark.parametrize(("beyond", "replied", "over"), [(1, 1, False), (1, 2, False), (2, 2, True), (3, 5, False)])
def test_a_run_is_over_where_half_of_the_clients_are_far_too_long(beyond, replied, over):
    options = SimpleNamespace(on_divergence="warn", _unmodified=True)
    rows = [LeftOut(number, 1, 1, f"it is {TOO_LONG}100 times 1") for number in (1, 2) for _ in range(beyond)]
    run = SimpleNamespace(options=options, point=np.ones(2), passed={}, privacy=None, overflowed=False)
    run.problem = SimpleNamespace(client_lr=1.0, server_lr=1.0)
    run.state = SimpleNamespace(round=1)
    run.method = None
    run.current, watch = SimpleNamespace(left_out=beyond, malformed=0), Watch(run)
    for number in (1, 2):
        run.left_out = [row for row in rows if row.round <= number]
        watch.look(number, replied, skipped=True, metrics={})
    assert watch.over is over

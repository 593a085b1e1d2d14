"""One reply is worth one reply: every strategy under faults, beside a run in which the same replies are missing."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from problems import app_of

from flwr_fco import _flower
from flwr_fco.client_apps.threads import single_threaded_blas
from flwr_fco.objectives import LeastSquares
from flwr_fco.pooled import centralized_solution
from flwr_fco.regularizers import L1, Zero
from flwr_fco.strategies import STRATEGIES
from flwr_fco.testing import FaultyGrid
from flwr_fco.testing.faults import lying

CLIENTS, FEATURES, ROUNDS = 8, 6, 200
#: Sums over all rounds: what one reply has put into them stays there, divided by the number of rounds.
REMEMBER = ("FastFedDA", "CFedDA", "MCFedDA")


def problem():
    """Well-conditioned clients of equal size whose data follow different models."""
    objectives = []
    for m in range(CLIENTS):
        rng = np.random.default_rng((3, m))
        features, _ = np.linalg.qr(rng.standard_normal((30, FEATURES)))
        truth = np.array([2.0, -2.0, 1.0, 0.0, 0.0, 0.0]) + 0.3 * rng.standard_normal(FEATURES)
        features *= np.sqrt(30)
        objectives.append(LeastSquares(features, features @ truth, scale=0.5))
    return objectives


OBJECTIVES = problem()
LAYOUT = OBJECTIVES[0].layout
OPTIMA = {psi: centralized_solution(OBJECTIVES, psi, tol=1e-12) for psi in (L1(0.3), Zero())}
KINDS = {
    "malformed": {"faults": {"malformed": 0.2}},
    "bytes": {"faults": {"garbage": 0.2}},
    "absurd numbers": {"faults": {"absurd": 0.2}},
    "one altered reply": {"faults": {lying(10.0): 1.0}, "partitions": [2]},
}


def start():
    return ArrayRecord({name: Array(array) for name, array in LAYOUT.unflatten(np.zeros(LAYOUT.size)).items()})


def psi_of(name):
    return Zero() if getattr(STRATEGIES[name], "no_psi", None) else L1(0.3)


def make(name):
    options = {"regularizer": psi_of(name), "client_lr": 0.1, "local_steps": 4, "batch_size": None}
    known = STRATEGIES[name].__dataclass_fields__
    strategy = STRATEGIES[name](**{key: value for key, value in options.items() if key in known})
    strategy.fraction_evaluate = 0.0
    return strategy


def trackers_of(strategy):
    """What must sum to zero (the clients have equal weights), as rows; None where nothing must."""
    if hasattr(strategy.state, "trackers"):
        rows = strategy.state.trackers
        return None if np.ndim(rows) != 2 else rows
    if hasattr(strategy, "trackers") and strategy.memories.ledger:
        return np.array(list(strategy.trackers().values()))
    return None


def check(strategy, number, arrays):
    for name, value in strategy.state._asdict().items():
        assert np.isfinite(value).all(), f"state.{name} after round {number}"
    for name, array in arrays.items():
        assert np.isfinite(array.numpy()).all(), f"{name} after round {number}"
    rows = trackers_of(strategy)
    if rows is not None and len(rows) == CLIENTS:
        assert np.abs(rows.sum(axis=0)).max() <= 1e-10 * max(np.abs(rows).max(), 1e-300), f"round {number}"


def run(name, num_rounds, *, missing=False, **options):
    grid = FaultyGrid(app_of(OBJECTIVES), CLIENTS, seed=5, missing=missing, **options)
    strategy = make(name)
    with _flower.identity(grid.run_id), _flower.quiet(50), single_threaded_blas():
        result = strategy.start(grid, start(), num_rounds, callbacks=[lambda n, a, m: check(strategy, n, a)])
    w = LAYOUT.flatten({name: array.numpy() for name, array in result.arrays.items()})
    return float(np.abs(w - OPTIMA[psi_of(name)]).max()), grid, strategy, result


def hold_the_bar(name, kind, rounds):
    options = dict(KINDS[kind])
    if kind == "one altered reply":
        options["rounds"] = [rounds // 4]
    error, grid, strategy, result = run(name, rounds, **options)
    reference, twin, _, _ = run(name, rounds, missing=True, **options)
    assert grid.injected == twin.injected
    assert grid.injected
    assert error <= max(2.0 * reference, 1e-8), f"error {error:.2g}, {reference:.2g} without these replies"
    if kind == "one altered reply":
        return
    hit = [fault for fault in grid.injected if fault.server_round > 0]
    left_out = {number: metrics["num-left-out"] for number, metrics in result.train_metrics_clientapp.items()}
    assert left_out == {n: sum(fault.server_round == n for fault in hit) for n in left_out}
    told = [entry for entry in strategy.left_out if entry.round > 0]
    assert sorted((entry.round, entry.partition_id) for entry in told) == sorted(
        (fault.server_round, fault.partition) for fault in hit
    )
    assert all(entry.reason for entry in told)


# Methods that need everyone skip a round in which a reply is bad, whatever it is: test_dual_fl.py has their faults.
CELLS = [
    (name, kind)
    for name, cls in STRATEGIES.items()
    for kind in KINDS
    if cls.participation == "sample" and not (kind == "one altered reply" and name in REMEMBER)
]
SAMPLE = [("FedDualAvg", "absurd numbers"), ("FedMid", "bytes"), ("DFedDAGT", "malformed"), ("FastFedDA", "bytes")]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), CELLS)
def test_what_is_wrong_counts_as_if_it_were_missing(name, kind):
    hold_the_bar(name, kind, ROUNDS)


@pytest.mark.parametrize(("name", "kind"), SAMPLE)
def test_what_is_wrong_counts_as_if_it_were_missing_in_short(name, kind):
    hold_the_bar(name, kind, 40)


@pytest.mark.parametrize("name", ["FedDAGT", "Scaffold"])
def test_a_tracker_forgets_one_altered_reply(name):
    hold_the_bar(name, "one altered reply", ROUNDS)

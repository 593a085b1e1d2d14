"""Runs of strategies whose clients remember something, with a fault at one client."""

import numpy as np
from faults import FaultyGrid, altering
from problems import D, app_of, flat, problem, started

from flwr_fco.client_apps.client import recall
from flwr_fco.core.layout import dense
from flwr_fco.messages.protocol import Downlink, MemoryLostError
from flwr_fco.strategies import run_of

SIZES = (30, 40, 20, 30, 25)
VICTIM = 2  # a partition; on the chain it has two neighbours


@altering
def corrupt(arrays, metrics, rng):
    arrays["increment"] = np.full(D, np.nan)


FAULTS = {"raises": "raise", "lost reply": "drop", "lost message": "lose", "restart": "restart", "NaN": corrupt}


def faulty_run(strategy, fault, *, rounds=(3, 4, 9), num_rounds=15, objectives=None, check=None, before=None):
    """Run, calling `check` after every round."""
    objectives = problem() if objectives is None else objectives
    faults = {} if fault is None else {fault: 1.0}
    grid = FaultyGrid(app_of(objectives), len(objectives), faults, rounds=rounds, partitions=[VICTIM])
    strategy.fraction_evaluate = 0.0

    def watch(number, arrays, metrics):
        if check is not None:
            check(strategy, grid, number, metrics)
        if before is not None:
            before(grid, number)

    result = started(strategy, grid, num_rounds, callbacks=[watch])
    return flat(result.arrays), grid, result


def held_alike(strategy, grid, *_):
    """Compare the ledger with the clients' own contexts; return how many have the memory that the ledger names."""
    ledger = strategy.memories
    plan = run_of(strategy).problem.plan
    compared = 0
    for node_id, partition in grid.partition_ids.items():
        member = ledger.members.get((0, partition))
        if member is None or not member.digest:
            continue
        try:
            held = recall(grid.context(node_id), Downlink(plan, {}, stamp=member.digest))
        except MemoryLostError:
            continue
        kept = ledger.memory((0, partition))
        # A client also keeps what everybody was sent, which the server has anyway.
        assert kept.keys() <= held.keys()
        for name, vector in kept.items():
            np.testing.assert_array_equal(dense(held[name]), dense(vector), err_msg=f"partition {partition}, {name}")
        compared += 1
    return compared


def weights_of(strategy, grid):
    uniform = strategy.weighting == "uniform"
    sizes = np.array([1 if uniform else SIZES[p] for p in sorted(grid.partition_ids.values())])
    return sizes / sizes.sum()


def leave(partition):
    def before(grid, number):
        if number == 5:
            gone = next(i for i, p in grid.partition_ids.items() if p == partition)
            del grid.contexts[gone], grid.partition_ids[gone]

    return before

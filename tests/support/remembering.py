"""Runs of strategies whose clients remember something, with a fault at one client."""

import numpy as np
from faults import FaultyGrid
from flwr.app import Array, ArrayRecord
from problems import D, app_of, flat, problem, start_arrays

from flwr_fco.core.computing import single_threaded_blas
from flwr_fco.core.logs import quiet

SIZES = (30, 40, 20, 30, 25)


VICTIM = 2  # a partition; on the chain it has two neighbours


def corrupt(delivery):
    reply = delivery.deliver()
    content = reply.content.copy()
    content["arrays"] = ArrayRecord({"increment": Array(np.full(D, np.nan))})
    reply.content = content
    return [reply]


FAULTS = {"raises": "raise", "lost reply": "drop", "lost message": "lose", "restart": "restart", "NaN": corrupt}


def faulty_run(strategy, fault, *, rounds=(3, 4, 9), num_rounds=15, objectives=None, check=None, before=None):
    """Run, calling `check` after every round."""
    objectives = problem() if objectives is None else objectives
    faults = {} if fault is None else {fault: 1.0}
    grid = FaultyGrid(app_of(objectives), len(objectives), faults, rounds=rounds, partitions=[VICTIM])
    strategy.fraction_evaluate = 0.0
    with grid.identity(), quiet(50), single_threaded_blas():
        result = strategy.start(
            grid,
            start_arrays(),
            num_rounds,
            callbacks=[
                lambda n, a, m: check(strategy, grid, n, m) if check else None,
                lambda n, a, m: before(grid, n) if before else None,
            ],
        )
    return flat(result.arrays), grid, result


def weights_of(strategy, grid):
    if strategy.weighting == "uniform":
        return np.full(len(grid.partition_ids), 1.0 / len(grid.partition_ids))
    sizes = np.array([SIZES[p] for p in sorted(grid.partition_ids.values())], dtype=float)
    return sizes / sizes.sum()


def leave(partition):
    def before(grid, number):
        if number == 5:
            gone = next(i for i, p in grid.partition_ids.items() if p == partition)
            del grid.contexts[gone], grid.partition_ids[gone]

    return before

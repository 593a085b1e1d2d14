"""A grid with faults at one node, and what the tests of faults have in common."""

import numpy as np
from faults import FaultyGrid, altering
from flwr.app import Error, Message, MetricRecord
from problems import D, app_of, arrays_of, flat, numpy_of, problem, start_arrays, started

from flwr_fco.client_apps.client import recall
from flwr_fco.core.layout import dense
from flwr_fco.messages.protocol import Downlink, MemoryLostError
from flwr_fco.regularizers import L1
from flwr_fco.strategies import Epochs, FedDualAvg, run_of

BAD_NODE = 3  # partition 1


class Faulty(FaultyGrid):
    """Replaces the training replies of one node in round 2 by what `fault(message, reply)` returns."""

    def __init__(self, app, num_nodes, fault, rounds=(2,), nodes=(BAD_NODE,), kind="train"):
        def injected(delivery):
            return fault(delivery.message, delivery.deliver())

        where = {"rounds": rounds, "partitions": [node - 2 for node in nodes], "message_types": (kind,)}
        super().__init__(app, num_nodes, {injected: 1.0}, raise_errors=True, **where)


def silent(message, reply):
    return []


def error(code, reason):
    """Return a fault: an error in the reply's place."""
    return lambda message, reply: [Message(error=Error(code, reason), reply_to=message)]


def with_content(change):
    """Return a fault: ``change(content)`` returns the records that the reply has instead, or besides."""

    def fault(message, reply):
        content = reply.content.copy()
        content.update(change(content))
        return [Message(content=content, reply_to=message)]

    return fault


def with_increment(change):
    """Return a fault: ``change(arrays)`` returns other arrays."""
    return with_content(lambda content: {"arrays": arrays_of(change(numpy_of(content["arrays"])))})


def changing(name, change):
    """Return a fault: ``change(array)`` returns another array of this name."""
    return with_increment(lambda arrays: {**arrays, name: change(arrays[name])})


def with_metrics(change):
    """Return a fault: ``change(metrics)`` returns other metrics."""
    return with_content(lambda content: {"metrics": MetricRecord(change(dict(content["metrics"])))})


def says(**numbers):
    """Return a fault that reports other numbers, or none of a name."""
    named = {name.replace("_", "-"): number for name, number in numbers.items()}
    return with_metrics(lambda own: {name: n for name, n in {**own, **named}.items() if n is not None})


def strategy(**options):
    common = {"regularizer": L1(0.3), "client_lr": 0.02, "work": Epochs(1, batch_size=5), "seed": 1}
    return FedDualAvg(**{**common, "fraction_evaluate": 0.0, **options})


def start_on(grid, chosen, rounds=3, **options):
    with grid.identity():
        return chosen.start(grid, start_arrays(), rounds, **options)


def scaled(factor):
    return with_increment(lambda arrays: {name: value * factor for name, value in arrays.items()})


# --- strategies whose clients remember something, with a fault at one client ---

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
    sizes = np.array([1 if strategy.weighting == "uniform" else SIZES[p] for p in sorted(grid.partition_ids.values())])
    return sizes / sizes.sum()


def leave(partition):
    def before(grid, number):
        if number == 5:
            gone = next(i for i, p in grid.partition_ids.items() if p == partition)
            del grid.contexts[gone], grid.partition_ids[gone]

    return before

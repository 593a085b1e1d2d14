"""A grid with faults at one node, and what the tests of faults have in common."""

from faults import FaultyGrid
from flwr.app import Error, Message, MetricRecord
from problems import arrays_of, numpy_of, start_arrays

from flwr_fco.regularizers import L1
from flwr_fco.strategies import Epochs, FedDualAvg

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

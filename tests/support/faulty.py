"""A grid with faults at one node, and what the tests of faults have in common."""

from faults import FaultyGrid
from flwr.app import Array, ArrayRecord, Message, MetricRecord
from problems import start_arrays

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


def with_increment(change):
    def fault(message, reply):
        arrays = {name: array.numpy().copy() for name, array in reply.content["arrays"].items()}
        arrays = change(arrays)
        content = reply.content.copy()
        content["arrays"] = ArrayRecord({name: Array(array) for name, array in arrays.items()})
        return [Message(content=content, reply_to=message)]

    return fault


def with_metrics(change):
    def fault(message, reply):
        metrics = change(dict(reply.content["metrics"]))
        content = reply.content.copy()
        content["metrics"] = MetricRecord(metrics)
        return [Message(content=content, reply_to=message)]

    return fault


def strategy(**options):
    return FedDualAvg(
        **{
            "regularizer": L1(0.3),
            "client_lr": 0.02,
            "work": Epochs(1, batch_size=5),
            "seed": 1,
            "fraction_evaluate": 0.0,
            **options,
        }
    )


def start_on(grid, chosen, rounds=3, **options):
    with grid.identity():
        return chosen.start(grid, start_arrays(), rounds, **options)


def scaled(factor):
    return with_increment(lambda arrays: {name: value * factor for name, value in arrays.items()})

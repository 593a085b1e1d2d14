"""A grid with faults at one node, and what the tests of faults have in common."""

from flwr.app import Array, ArrayRecord, Message, MetricRecord
from problems import start_arrays

from flwr_fco import _flower
from flwr_fco.regularizers import L1
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import FedDualAvg

BAD_NODE = 3  # partition 1


class Faulty(InProcessGrid):
    """Replaces the training replies of one node in round 2."""

    def __init__(self, app, num_nodes, fault, rounds=(2,), nodes=(BAD_NODE,), kind="train"):
        super().__init__(app, num_nodes)
        self.fault, self.rounds, self.nodes, self.kind = fault, rounds, nodes, kind

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        replies = super().send_and_receive(messages, timeout=timeout)
        result = []
        for message, reply in zip(messages, replies, strict=True):
            number = message.metadata.group_id
            hit = message.metadata.message_type == self.kind and message.metadata.dst_node_id in self.nodes
            if hit and int(number) in self.rounds:
                result.extend(self.fault(message, reply))
            else:
                result.append(reply)
        return result


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
        **{"regularizer": L1(0.3), "client_lr": 0.02, "batch_size": 5, "seed": 1, "fraction_evaluate": 0.0, **options}
    )


def start_on(grid, chosen, rounds=3, **options):
    with _flower.identity(grid.run_id):
        return chosen.start(grid, start_arrays(), rounds, **options)

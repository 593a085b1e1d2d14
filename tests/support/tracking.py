"""Gradient tracking as plain NumPy, and the options with which strategies are compared with it."""

import numpy as np
from problems import app_of, clients, start_arrays

from flwr_fco.core.logs import quiet
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import Steps

EQUAL = (20, 20, 20, 20)


def grad_conjugate(z, p, radius=np.inf):
    """The paper's map, straight from its formula."""
    n = np.sum(np.abs(z) ** p) ** (1 / p)
    if n == 0:
        return np.zeros_like(z)
    w = n / (p - 1) * np.abs(z / n) ** (p - 1) * np.sign(z)
    return w / (1 + max(n / ((p - 1) * radius) - 1, 0))


def options(**more):
    return {"client_lr": 0.02, "work": Steps(4, batch_size=None), "weighting": "uniform", **more}


def relative(a, b):
    return float(np.abs(a - b).max() / max(1e-300, np.abs(b).max()))


class Counting(InProcessGrid):
    """Counts the array values of each training round, down and up."""

    def __init__(self, app, num_nodes):
        super().__init__(app, num_nodes)
        self.values = {}

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        replies = super().send_and_receive(messages, timeout=timeout)
        if messages and messages[0].metadata.message_type == "train":
            down, up = (
                sum(
                    int(np.prod(array.shape))
                    for each in side
                    for record in each.content.array_records.values()
                    for array in record.values()
                )
                for side in (messages, replies)
            )
            self.values.setdefault(int(messages[0].metadata.group_id), []).append((down, up))
        return replies


def traffic(strategy, rounds=4):
    strategy.fraction_evaluate = 0.0
    grid = Counting(app_of(clients(EQUAL)), 4)
    with grid.identity(), quiet():
        result = strategy.start(grid, start_arrays(), rounds)
    metrics = result.train_metrics_clientapp
    return grid.values, [(metrics[r]["bytes-down"], metrics[r]["bytes-up"]) for r in sorted(metrics)]

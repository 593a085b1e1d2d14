"""CPU of a round with a small network of PyTorch, beside the bare loop over the same clients.

    python benchmarks/small_network.py            10,798 parameters, 10 clients, 53 steps each (two minutes)
    python benchmarks/small_network.py --quick    two clients, a few steps

A step takes a millisecond or two: it shows what an exchange and a step of ours add to PyTorch's own. The bare loop is
SGD: load the model, train, add up. Beside it the user's own training loop with our optimiser, and a `TorchObjective`
whose steps our local solver takes; both with an l1 norm. The ways alternate in one process; medians over their rounds.
Needs PyTorch.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from flwr_fco.strategies import Bounds, Epochs

try:
    import torch
except ImportError:
    print("skipped: benchmarks/small_network.py needs PyTorch (pip install torch)")
    sys.exit(0)
from flwr.app import ArrayRecord, Context, Message
from shared import Marks, federate, options_of, partition
from torch import nn
from torch.nn import functional

import flwr_fco.torch
from flwr_fco import L1, FedDualAvg, client_app
from flwr_fco.torch import TorchObjective

BATCH, RATE = 8, 0.01
Mark = Callable[..., None]


class Problem:
    """Clients with random images.

    Parameters
    ----------
    clients, steps : int
        Steps are those of a client in a round, an epoch.
    """

    def __init__(self, clients: int, steps: int) -> None:
        self.clients, self.size = clients, steps * BATCH
        self.images = torch.randn(clients, self.size, 1, 28, 28)
        self.labels = torch.randint(0, 10, (clients, self.size))

    @staticmethod
    def network() -> nn.Sequential:
        first = (nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        second = (nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
        return nn.Sequential(*first, *second, nn.Linear(16 * 7 * 7, 12), nn.ReLU(), nn.Linear(12, 10))

    def train(self, model: nn.Module, client: int, optimizer: torch.optim.Optimizer) -> None:
        for rows in torch.randperm(self.size).split(BATCH):
            optimizer.zero_grad()
            images, labels = self.images[client, rows], self.labels[client, rows]
            functional.cross_entropy(model(images), labels).backward()
            optimizer.step()

    def bare(self, rounds: int, mark: Mark) -> None:
        model = self.network()
        start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        for _ in range(rounds):
            total = {name: torch.zeros_like(tensor) for name, tensor in start.items()}
            for client in range(self.clients):
                model.load_state_dict(start)
                self.train(model, client, torch.optim.SGD(model.parameters(), lr=RATE))
                for name, tensor in model.state_dict().items():
                    total[name] += tensor / self.clients
            start = total
            mark()

    def own_loop(self, rounds: int, mark: Mark) -> None:
        app, models = flwr_fco.torch.ClientApp(), [self.network() for _ in range(self.clients)]

        @app.train()
        def train(message: Message, context: Context) -> Message:
            client = partition(context)
            with flwr_fco.torch.local_training(message, context, models[client]) as training:
                self.train(models[client], client, training.optimizer)
            return training.reply({"num-examples": self.size})

        self._simulate(app, rounds, mark, bounds=Bounds(own_loops=True))

    def objective(self, rounds: int, mark: Mark) -> None:
        def load(context: Context) -> TorchObjective:
            data = (self.images[partition(context)], self.labels[partition(context)])
            return TorchObjective(self.network(), lambda m, rows: functional.cross_entropy(m(rows[0]), rows[1]), data)

        self._simulate(client_app(load), rounds, mark)

    def _simulate(self, app: flwr_fco.torch.ClientApp, rounds: int, mark: Mark, **options: Any) -> None:
        work = Epochs(1, batch_size=BATCH)
        strategy = FedDualAvg(regularizer=L1(1e-5), client_lr=RATE, work=work, fraction_evaluate=0.0, **options)
        start = ArrayRecord(self.network().state_dict())
        federate(strategy, app, rounds, start, nodes=self.clients, callbacks=[mark])


def main() -> None:
    quick = options_of(__doc__).quick
    torch.set_num_threads(1)
    problem = Problem(2, 3) if quick else Problem(10, 53)
    ways = {"bare loop": problem.bare, "own loop": problem.own_loop, "TorchObjective": problem.objective}
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(2 if quick else 12):
        for name, way in ways.items():
            marks = Marks(time.process_time)
            way(4, marks)
            # What happens once is before the first mark.
            spent[name] += np.diff(marks, axis=0).ravel().tolist()
    bare = statistics.median(spent["bare loop"])
    for name, seconds in spent.items():
        median = statistics.median(seconds)
        each = median / problem.clients
        print(f"{name:16} {1e3 * median:8.1f} ms of CPU a round, {1e3 * each:6.2f} a client {median / bare:6.3f}")


if __name__ == "__main__":
    main()

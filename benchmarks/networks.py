"""CPU and memory of a round with a network of PyTorch: FedDualAvg beside Flower's FedAvg and the bare loop.

    python benchmarks/networks.py            10,798 parameters, then 9.9 million; 4 clients (three minutes)
    python benchmarks/networks.py --quick    small networks, three rounds

With the small one a step takes a millisecond or two: that shows what an exchange and a step of ours add to PyTorch's
own; the large one shows the memory. The bare loop is SGD: load the model, train, add up. Beside it the same training
under Flower's FedAvg, under `FedDualAvg(client="unmodified", density=)`, with our optimiser in the place of SGD, and as
a `TorchObjective` whose steps our local solver takes; these two with an l1 norm. Each way runs in a process of its own,
a fork of this one, by turns: CPU of a round is the median over the rounds after the first, memory the most that the
process had. Needs PyTorch.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any

try:
    import torch
except ImportError:
    print("skipped: benchmarks/networks.py needs PyTorch (pip install torch)")
    sys.exit(0)

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from shared import Marks, federate, middles, options_of, partition, print_head, print_row
from torch import nn
from torch.nn import functional

import flwr_fco.torch
from flwr_fco import L1, FedDualAvg, client_app
from flwr_fco.strategies import Bounds, Density, Epochs
from flwr_fco.torch import TorchObjective

WAYS = ("bare loop", "FedAvg", "unmodified", "own loop", "TorchObjective")
NODES = 4
RATE = 0.01
#: Rows of a batch, batches of a round, rounds.
SIZES = {"small": (8, 53, 6), "large": (32, 10, 5), "quick": (8, 2, 3)}


def network(size: str) -> nn.Module:
    """Return a convolutional network of 10,798 parameters, or three layers of 9.9 million."""
    if size == "large":
        hidden = (nn.Linear(784, 2900), nn.ReLU(), nn.Linear(2900, 2600), nn.ReLU())
        return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(2600, 10))
    first = (nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    second = (nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    return nn.Sequential(*first, *second, nn.Linear(16 * 7 * 7, 12), nn.ReLU(), nn.Linear(12, 10))


def run(way: str, size: str) -> dict[str, float]:
    """Return CPU milliseconds of a round and gigabytes of this process."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    batch, steps, rounds = SIZES[size]
    images = torch.randn(NODES, batch * steps, 1, 28, 28)
    labels = torch.randint(0, 10, (NODES, batch * steps))
    marks = Marks(time.process_time)
    start = network(size).state_dict()

    def fit(model: nn.Module, node: int, optimizer: torch.optim.Optimizer) -> None:
        for rows in torch.randperm(batch * steps).split(batch):
            optimizer.zero_grad()
            functional.cross_entropy(model(images[node, rows]), labels[node, rows]).backward()
            optimizer.step()

    def train(message: Message, context: Context) -> Message:
        model, node = network(size), partition(context)
        if way == "own loop":
            with flwr_fco.torch.local_training(message, context, model) as training:
                fit(model, node, training.optimizer)
            return training.reply({"num-examples": batch * steps})
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        fit(model, node, torch.optim.SGD(model.parameters(), lr=RATE))
        content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": batch * steps})}
        return Message(RecordDict(content), reply_to=message)

    def load(context: Context) -> TorchObjective:
        data = (images[partition(context)], labels[partition(context)])
        return TorchObjective(network(size), lambda m, rows: functional.cross_entropy(m(rows[0]), rows[1]), data)

    if way == "bare loop":
        model = network(size)
        for _ in range(rounds):
            marks()
            total = {name: torch.zeros_like(tensor) for name, tensor in start.items()}
            for node in range(NODES):
                model.load_state_dict(start)
                fit(model, node, torch.optim.SGD(model.parameters(), lr=RATE))
                for name, tensor in model.state_dict().items():
                    total[name] += tensor / NODES
            start = total
    else:
        own: dict[str, dict[str, Any]] = {
            "unmodified": {"client": "unmodified", "density": Density(0.1, rounds=rounds)},
            "own loop": {"regularizer": L1(1e-5), "client_lr": RATE, "bounds": Bounds(own_loops=True)},
            "TorchObjective": {"regularizer": L1(1e-5), "client_lr": RATE, "work": Epochs(1, batch_size=batch)},
        }
        kind: Any = FedAvg if way == "FedAvg" else FedDualAvg
        app = client_app(load) if way == "TorchObjective" else ClientApp()
        if way == "own loop":
            app = flwr_fco.torch.ClientApp()
        if way != "TorchObjective":
            app.train()(train)
        strategy = kind(fraction_evaluate=0.0, **own.get(way, {}))
        federate(strategy, app, rounds, ArrayRecord(start), nodes=NODES, evaluate_fn=marks)
    (cpu,) = marks.milliseconds(first=1)
    return {"cpu": cpu, "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6}


def main() -> None:
    """Print a table for each size."""
    given = options_of(__doc__, "small networks, three rounds", turns={"type": int, "default": 3})
    for size in ("quick",) if given.quick else ("small", "large"):
        found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
        for _ in range(1 if given.quick else given.turns):
            for way in WAYS:
                with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as process:
                    found[way].append(process.submit(run, way, size).result())
        middle = {way: middles(rows) for way, rows in found.items()}
        print_head(size, "CPU ms a round", "of the bare loop's", "of FedAvg's", "GB", "of FedAvg's")
        for way, own in middle.items():
            beside = [f"{own['cpu'] / middle[other]['cpu']:.2f}" for other in ("bare loop", "FedAvg")]
            share = own["memory"] / middle["FedAvg"]["memory"]
            print_row(way, f"{own['cpu']:.1f}", *beside, f"{own['memory']:.2f}", f"{share:.2f}")


if __name__ == "__main__":
    main()

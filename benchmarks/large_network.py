"""CPU and memory of a round with a large network in one process: FedDualAvg beside Flower's FedAvg.

    python benchmarks/large_network.py            9.9 million parameters, 4 clients, 10 steps of SGD each
    python benchmarks/large_network.py --quick    a small network, three rounds

Each strategy runs in a process of its own, by turns: CPU of a round is the median over the rounds after the first,
memory the most that the process had. Beside Flower's FedAvg with a training loop in PyTorch: the same client under
`FedDualAvg(client="unmodified", density=)`, and the loop with our optimiser. Needs PyTorch.
"""

from __future__ import annotations

import itertools
import json
import resource
import subprocess
import sys
import time
from typing import Any

try:
    import torch
except ImportError:
    print("skipped: benchmarks/large_network.py needs PyTorch (pip install torch)")
    sys.exit(0)
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from shared import Marks, federate, middles, options_of, partition, print_head, print_row
from torch import nn
from torch.nn import functional

import flwr_fco.torch
from flwr_fco import L1, FedDualAvg
from flwr_fco.strategies import Bounds, Density

WAYS = ("FedAvg", "unmodified", "own loop")
NODES, BATCH = 4, 32


def run(way: str, widths: tuple[int, ...], rounds: int, steps: int) -> dict[str, float]:
    """Return CPU seconds of a round and gigabytes of this process."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    inputs, labels = torch.randn(NODES, BATCH, 784), torch.randint(0, 10, (NODES, BATCH))

    def network() -> nn.Sequential:
        layers = [nn.Sequential(nn.Linear(ins, outs), nn.ReLU()) for ins, outs in itertools.pairwise((784, *widths))]
        return nn.Sequential(*layers, nn.Linear(widths[-1], 10))

    def fit(model: nn.Module, node: int, optimizer: Any) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs[node]), labels[node]).backward()
            optimizer.step()

    def train(message: Message, context: Context) -> Message:
        model, node = network(), partition(context)
        if way == "own loop":
            with flwr_fco.torch.local_training(message, context, model) as training:
                fit(model, node, training.optimizer)
            return training.reply({"num-examples": BATCH})
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        fit(model, node, torch.optim.SGD(model.parameters(), lr=0.01))
        content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": BATCH})}
        return Message(RecordDict(content), reply_to=message)

    app = flwr_fco.torch.ClientApp() if way == "own loop" else ClientApp()
    app.train()(train)
    strategy: Any
    if way == "FedAvg":
        strategy = FedAvg(fraction_evaluate=0.0)
    elif way == "unmodified":
        strategy = FedDualAvg(client="unmodified", density=Density(0.1, rounds=rounds), fraction_evaluate=0.0)
    else:
        strategy = FedDualAvg(
            regularizer=L1(1e-4), client_lr=0.01, bounds=Bounds(own_loops=True), fraction_evaluate=0.0
        )
    ends = Marks(time.process_time)
    federate(strategy, app, rounds, ArrayRecord(network().state_dict()), nodes=NODES, evaluate_fn=ends)
    (cpu,) = ends.milliseconds(first=1)
    return {"cpu": cpu / 1e3, "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6}


def main() -> None:
    only = {"choices": WAYS, "help": "one of them, in this process"}
    given = options_of(__doc__, "a small network, three rounds", turns={"type": int, "default": 3}, only=only)
    widths, rounds, steps = ((64, 64), 3, 2) if given.quick else ((2900, 2600), 5, 10)
    if given.only:
        print(json.dumps(run(given.only, widths, rounds, steps)))
        return
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for _ in range(1 if given.quick else given.turns):
        for way in WAYS:
            command = [sys.executable, __file__, "--only", way, *(["--quick"] if given.quick else [])]
            told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            found[way].append(json.loads(told.splitlines()[-1]))
    middle = {way: middles(rows) for way, rows in found.items()}
    print_head("", "CPU seconds a round", "of FedAvg's", "GB", "of FedAvg's")
    for way, own in middle.items():
        print_row(way, *(f"{part:.2f}" for key in own for part in (own[key], own[key] / middle["FedAvg"][key])))


if __name__ == "__main__":
    main()

"""Calls from one file of flwr_fco to another in a round: what a reader of the round has to follow.

    python benchmarks/crossings.py            both numbers (seconds)
    python benchmarks/crossings.py --top 20   also the pairs of files between which most calls go
    python benchmarks/crossings.py --strategy FedDAGT    another strategy; torch: FedDualAvg with a model of PyTorch
    python benchmarks/crossings.py --quick    the same: one round is all there is

The second of three rounds of a strategy on LASSO dataset I of 'Federated Composite Optimization', in the in-process
grid, from one `configure_train` to the next: 10 clients, one epoch of batch 10, l1 norm, evaluation off. Counted are
the files of flwr_fco whose code runs, and the calls from a function in one of them to a function in another. Resuming a
generator counts as a call; calls that go through compiled code or through Flower do not. A client's part begins when
the grid hands over what it is given and ends with its answer.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")

from flwr.app import Array, ArrayRecord
from shared import federate, options_of

import flwr_fco
from flwr_fco.datasets import lasso
from flwr_fco.objectives.base import Objective
from flwr_fco.regularizers import L1
from flwr_fco.strategies import STRATEGIES, CompositeStrategy, Epochs

NODES = 10
ROUND = 2
CLIENT = os.path.join("client_apps", "client.py")
PACKAGE = f"{Path(flwr_fco.__file__).parent}{os.sep}"


class Crossings:
    """Counts calls between files while it is switched on.

    Attributes
    ----------
    files : Counter of str
        Calls of functions of each file.
    pairs : Counter of (str, str)
        Calls by the files of caller and callee, which differ.
    on_clients : int
        How many of the latter were made while a client answered.
    """

    def __init__(self) -> None:
        self.files: Counter[str] = Counter()
        self.pairs: Counter[tuple[str, str]] = Counter()
        self.on_clients = 0
        self._delivery: FrameType | None = None

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Take note of a call; of the profiler's signature."""
        if event == "return" and frame is self._delivery:
            self._delivery = None
        if event != "call":
            return
        code = frame.f_code
        if not code.co_filename.startswith(PACKAGE):
            return
        own = code.co_filename.removeprefix(PACKAGE)
        self.files[own] += 1
        caller = frame.f_back
        if caller is not None and caller.f_code.co_filename.startswith(PACKAGE):
            theirs = caller.f_code.co_filename.removeprefix(PACKAGE)
            if theirs != own:
                self.pairs[theirs, own] += 1
                self.on_clients += self._delivery is not None
                # What follows is the client's: the grid hands over what it is given.
                if self._delivery is None and own == CLIENT and theirs.startswith("simulation"):
                    self._delivery = frame


def objectives_of(name: str) -> dict[int, Objective]:
    """Return the clients' losses by partition."""
    shards = {partition: lasso().objective(partition) for partition in range(NODES)}
    if name != "torch":
        return shards
    import torch

    from flwr_fco.torch import TorchObjective

    def loss(model: torch.nn.Module, batch: Any) -> torch.Tensor:
        return torch.nn.functional.mse_loss(model(batch[0])[:, 0], batch[1])

    models = {}
    for partition, own in shards.items():
        data = [torch.tensor(array, dtype=torch.float32) for array in (own.features, own.targets)]
        models[partition] = TorchObjective(torch.nn.Linear(own.features.shape[1], 1), loss, data)
    return models


def second_round(name: str) -> Crossings:
    """Return the crossings of a strategy's round in which every client has its data and the plan."""
    found = Crossings()
    hook = CompositeStrategy.configure_train

    def watched(self: CompositeStrategy, server_round: int, *arguments: Any, **options: Any) -> Any:
        sys.setprofile(found if server_round == ROUND else None)
        return hook(self, server_round, *arguments, **options)

    objectives = objectives_of(name)
    strategy = STRATEGIES["FedDualAvg" if name == "torch" else name](
        regularizer=L1(0.2), client_lr=0.0001, work=Epochs(1, batch_size=10), fraction_evaluate=0.0
    )
    entries = objectives[0].layout.entries
    start = ArrayRecord({entry.name: Array(np.zeros(entry.shape, entry.dtype)) for entry in entries})
    CompositeStrategy.configure_train = watched  # type: ignore[method-assign]
    try:
        federate(strategy, objectives, ROUND + 1, start)
    finally:
        sys.setprofile(None)
        CompositeStrategy.configure_train = hook  # type: ignore[method-assign]
    return found


def main() -> None:
    options = options_of(
        __doc__,
        "accepted, as of the other benchmarks",
        top={"type": int, "default": 0, "metavar": "N", "help": "print the N pairs of files with most calls"},
        strategy={"default": "FedDualAvg", "choices": ["FedDualAvg", "FedDAGT", "FeDualEx", "torch"]},
    )
    found = second_round(options.strategy)
    print(f"files of flwr_fco that run code   {len(found.files):5d}")
    print(f"calls from one file to another    {found.pairs.total():5d}")
    print(f"  of which per client             {found.on_clients / NODES:7.1f}")
    for (caller, callee), count in found.pairs.most_common(options.top):
        print(f"{count:5d}  {caller} -> {callee}")


if __name__ == "__main__":
    main()

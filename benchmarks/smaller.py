"""Networks that become smaller while they are trained: whole channels away, and 2:4 sparsity, beside FedAvg.

    python benchmarks/smaller.py --data FOLDER    MNIST, three seeds; digits, breast cancer, ten: half an hour of a core
    python benchmarks/smaller.py --quick          digits, one seed, some seconds

Channels: `Channels(share)` below is psi of all layers but the last; after every three rounds the channels that are 0
are taken out, six times, and six rounds of FedAvg follow (docs/how-to/smaller-networks.md). Beside it are
FedAvg and FedAvg whose channels are cut by the same norms afterwards. The times are those of the network on batches of
1, 64 and 256 images, by turns, smallest of nine. Needs PyTorch and torch-pruning; FOLDER, or $FLWR_FCO_DATA, holds
`mnist/`.
"""

from __future__ import annotations

import copy
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

try:
    import torch
    import torch_pruning as pruning
except ImportError:
    print("skipped: benchmarks/smaller.py needs PyTorch and torch-pruning (pip install torch torch-pruning)")
    sys.exit(0)
import density
from density import Task, convolutions, fed_avg, fed_dual_avg
from shared import options_of, print_head, print_row
from torch import nn

from flwr_fco.regularizers import NofM, PerParameter, Regularizer, Zero

#: How often channels are taken out, after so many rounds each; so many rounds of FedAvg follow.
CUTS = 6
EACH = 3
AFTER = 6
#: Of a run with 2 of 4.
ROUNDS = 24
SHARES = (0.5, 0.25)
#: How often times are measured.
TURNS = 9
WIDE = "mnist wide"
TWO_OF_FOUR = ("digits deep", "digits small", "cancer small", "cancer deep")
density.NARROW[WIDE] = ((28, 28, 1), lambda: convolutions(1, 28, (64, 128), 3, 256, 10), (0.05, 2e-3), 32)
density.NARROW["digits wide"] = ((8, 8, 1), lambda: convolutions(1, 8, (16, 32), 3, 64, 10), (0.05, 3e-3), 16)


@dataclass(frozen=True)
class Channels(Regularizer):
    """At most a share of an array's output channels is not 0: those of the largest norms are kept. Not convex."""

    kind = "channels"
    convex = False
    constraint = True
    share: float

    def value(self, w):
        return 0.0 if np.count_nonzero(w.any(axis=tuple(range(1, w.ndim)))) <= self.count(w) else np.inf

    def solve(self, v, step, out):
        norms = np.nan_to_num(np.linalg.norm(v.reshape(len(v), -1), axis=1), nan=np.inf)  # NaN stays NaN
        kept = np.argsort(-norms, kind="stable")[: self.count(v)]
        channels = v[kept] + 0.0
        out[:] = 0.0
        out[kept] = channels

    def count(self, v):
        return max(1, round(self.share * len(v)))


def shrink(network, example):
    """Return a network without the output channels whose weights are all 0; their biases go with them."""
    small = copy.deepcopy(network).eval()
    graph = pruning.DependencyGraph().build_dependency(small, example)
    ways = {nn.Conv2d: pruning.prune_conv_out_channels, nn.Linear: pruning.prune_linear_out_channels}
    layers = [layer for layer in small.modules() if type(layer) in ways]
    for layer in layers[:-1]:
        way = ways[type(layer)]
        group = graph.get_pruning_group(layer, way, idxs=list(range(len(layer.weight))))
        # Layers whose outputs are added share their channels: one goes where it is 0 in all of them.
        makers = [step.target.module for step, _ in group if step.handler in ways.values()]
        zero = torch.stack([~maker.weight.flatten(1).any(dim=1) for maker in makers]).all(dim=0)
        if zero.any():
            graph.get_pruning_group(layer, way, idxs=zero.nonzero().flatten().tolist()).prune()
    return small.train()


def two_of_four(network):
    """Return 2 of 4 for the layers that tensor cores take (as NVIDIA's ASP does)."""
    shapes = {name: p.shape for name, p in network.named_parameters() if p.ndim > 1}
    others = [name for name, (outs, ins, *_) in shapes.items() if outs % 8 or ins % 16]
    whole = {name: Zero() for name in others}
    return PerParameter({**whole, "*": NofM(2, 4)})


def copy_of(task: Task, network: nn.Module) -> Task:
    """Return the same data and seed with another network."""
    again = copy.copy(task)
    again.network = copy.deepcopy(network)
    again.params = list(again.network.parameters())
    ends = np.cumsum([p.numel() for p in again.params])
    again.blocks = [slice(int(end) - p.numel(), int(end)) for end, p in zip(ends, again.params, strict=True)]
    again.start = again.get()
    return again


def psi_of(task: Task, psi: Regularizer) -> PerParameter:
    """Return psi on all weights but those of the last layer."""
    names = [name for name, p in task.network.named_parameters() if p.ndim > 1]
    return PerParameter({names[-1]: Zero(), "*": psi})


def smaller(task: Task, share: float) -> Task:
    """Return the task with the small network, trained."""
    task.set(task.start)
    task = copy_of(task, task.network)
    for _ in range(CUTS):
        w = fed_dual_avg(task, EACH, None, regularizer=psi_of(task, Channels(share ** (1.0 / CUTS))))
        task.set(w)
        task = copy_of(task, shrink(task.network, task.test[0][:2]))
    w = task.start
    for number in range(CUTS * EACH + 1, CUTS * EACH + AFTER + 1):
        w = task.mean(w, number)
    task.set(w)
    return task


def cut(task: Task, w: Any, psi: Regularizer) -> Any:
    """Return a model with psi's projection of all weights but the last layer's."""
    result = w.copy()
    for block, p in list(zip(task.blocks, task.params, strict=True))[:-2]:
        if p.ndim > 1:
            result[block] = psi.prox(w[block].reshape(p.shape), 1.0).ravel()
    return result


def times(networks: Mapping[Any, Callable[[torch.Tensor], Any]], images: torch.Tensor) -> dict[Any, float]:
    """Return the seconds of a processor that each network takes, by turns."""
    found: dict[Any, list[float]] = {name: [] for name in networks}
    with torch.inference_mode():
        for name, network in list(networks.items()) * TURNS:
            network(images)
            begin = time.process_time()
            count = 0
            while time.process_time() - begin < 0.08:
                network(images)
                count += 1
            found[name].append((time.process_time() - begin) / count)
    return {name: min(own) for name, own in found.items()}


def print_channels(problem: str, seeds: list[int], folder: Path | None) -> None:
    print_head("channels", "seed", "accuracy", "parameters", "cut afterwards", "1 image", "64 images", "256 images")
    for seed in seeds:
        task = Task(problem, "sgd", seed, folder)
        dense = fed_avg(task, CUTS * EACH + AFTER)
        accuracies = {1.0: (task.accuracy(dense), task.accuracy(dense))}
        networks: dict[Any, nn.Module] = {1.0: copy.deepcopy(task.network).eval()}
        for share in SHARES:
            small = smaller(task, share)
            afterwards = task.accuracy(cut(task, dense, Channels(share)))
            accuracies[share] = (small.accuracy(small.get()), afterwards)
            networks[share] = copy.deepcopy(small.network).eval()
        found = [times(networks, task.test[0][:size]) for size in (1, 64, 256)]
        for share, network in networks.items():
            faster = (f"{own[1.0] / own[share]:.1f}x" for own in found)
            count = sum(p.numel() for p in network.parameters())
            ours, afterwards = (f"{value:.4f}" for value in accuracies[share])
            print_row(f"{share:g}", seed, ours, count, afterwards, *faster)


def print_two_of_four(problems: Sequence[str], seeds: Sequence[int]) -> None:
    """Print means over seeds, and the standard error of the difference of the last and the first, by seed."""
    print_head("2:4", "seeds", "FedAvg", "cut afterwards", "FedDualAvg, NofM(2, 4)", "below FedAvg", "standard error")
    for problem in problems:
        found = []
        for seed in seeds:
            task = Task(problem, "sgd", seed, None)
            dense = fed_avg(task, ROUNDS)
            psi = two_of_four(task.network)
            ours = fed_dual_avg(task, ROUNDS, None, regularizer=psi)
            cut_afterwards = dense.copy()
            for (name, p), block in zip(task.network.named_parameters(), task.blocks, strict=True):
                if p.ndim > 1 and (own := psi.for_array(name)) is not None:
                    cut_afterwards[block] = own.prox(dense[block].reshape(p.shape), 1.0).ravel()
            found.append([task.accuracy(w) for w in (dense, cut_afterwards, ours)])
        accuracies = np.array(found)
        below = accuracies[:, 0] - accuracies[:, 2]
        error = below.std(ddof=1) / len(below) ** 0.5 if len(below) > 1 else np.nan
        print_row(problem, len(seeds), *(f"{value:.4f}" for value in (*accuracies.mean(0), below.mean(), error)))


def print_linear(width: int = 4096, density: float = 0.05) -> None:
    """Print how much faster a linear layer is with single weights of 0: as it is, and as a sparse matrix."""
    weight = torch.randn(width, width) * (torch.rand(width, width) < density)
    layers = {"dense": torch.randn(width, width), "with zeros": weight, "to_sparse_csr()": weight.to_sparse_csr()}
    print_head(f"{width} x {width}, {density:.0%} not 0", *layers)
    for batch in (1, 32):
        inputs = torch.randn(width, batch)
        found = times({name: partial(torch.mm, layer) for name, layer in layers.items()}, inputs)
        print_row(f"batch {batch}", *(f"{found['dense'] / own:.1f}x" for own in found.values()))


def main() -> None:
    data: dict[str, Any] = {"type": Path, "default": os.environ.get("FLWR_FCO_DATA"), "help": "folder of mnist/"}
    seeds: dict[str, Any] = {"type": int, "nargs": "+", "default": (0, 1, 2), "help": "of the channels"}
    settings = options_of(__doc__, "digits, one seed", data=data, seeds=seeds)
    torch.set_num_threads(1)
    if settings.quick:
        globals().update(CUTS=2, EACH=1, AFTER=1, ROUNDS=2, TURNS=1)
        print_channels("digits wide", [0], None)
        print_two_of_four(["digits small"], [0])
        print_linear(256)
        return
    try:
        print_channels(WIDE, settings.seeds, settings.data)
    except FileNotFoundError as error:
        print(f"skipped: {error}", file=sys.stderr)
    print()
    print_two_of_four(TWO_OF_FOUR, range(10))
    print()
    print_linear()


if __name__ == "__main__":
    main()

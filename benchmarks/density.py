"""Networks that become sparse while they are trained: FedDualAvg(density=...) beside pruning, masks and a rival.

    python benchmarks/density.py --out density.jsonl --data FOLDER --seeds 0   one seed: under four hours of a core
    python benchmarks/density.py --out density.jsonl --data FOLDER             three of them
    python benchmarks/density.py --out density.jsonl --table                   print what is in the file, train nothing
    python benchmarks/density.py --out short.jsonl --data FOLDER --short       short messages beside rivals, with bytes
    python benchmarks/density.py --quick                                       a small network, two cells, some seconds

Small and deep networks on breast cancer (a table), digits, MNIST and CIFAR-10, with SGD and Adam, 5 nodes, one local
epoch a round; rounds x densities x 3 seeds; accuracy on the test images. FOLDER, or $FLWR_FCO_DATA, holds `mnist/`
(the four IDX files) and `cifar10/` (the binary batches, or one .npz file); what is absent is skipped. A run that was
stopped goes on: results that are in the file of --out are not made again. Needs PyTorch.

The ways: FedAvg; FedAvg pruned by magnitude afterwards, of all layers together or each layer by itself; FedAvg with
masks that shrink by the cubic schedule of Zhu and Gupta (2017) over three quarters of the rounds, with either pruning;
FedSparsify (Stripelis et al. 2022), where clients prune and the server keeps what a majority has kept; and
FedDualAvg(client="unmodified", density=...), through `simulate`. Of two prunings the better one counts. With --more, in
some cells: Fed-HT and FedIter-HT (Tong et al. 2020), hard thresholding of the mean, or of each local step as well, and
SSFL (Ohib et al. 2024), a mask from the saliency of the start. Their density is that of the end from round 1 on.

With --short, 24 rounds and density 0.1: the same FedDualAvg with whole and with short messages, and rivals with the
bytes that int8 values and deflated bitmaps of their places would take (their values are not rounded, except as said):
FedAvg in float16 down and int8 up, or int8 both ways; FedAvg with the largest changes and error feedback both ways
(Sattler et al. 2019) at the bytes of ours; masks, Fed-HT, SSFL. Bytes are parts of FedAvg's in float32, both ways.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from flwr_fco.datasets import breast_cancer, digits
from reproduction.data.images import cifar10, mnist, on_clients

try:
    import torch
except ImportError:
    print("skipped: benchmarks/density.py needs PyTorch (pip install torch)")
    sys.exit(0)
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from shared import federate, options_of, partition, print_head, print_row
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import update_bn

from flwr_fco.client_apps import short_mod
from flwr_fco.messages.short import bits_of, rounded
from flwr_fco.strategies import FedDualAvg, Short, Wire

NODES = 5
ROUNDS = (12, 24, 3, 40, 80)
DENSITIES = (0.2, 0.1, 0.05)
SEEDS = (0, 1, 2)
OURS = "FedDualAvg(density)"
#: Rivals in some cells only (--more): their density is that of the end from round 1 on.
MORE = ("Fed-HT", "FedIter-HT", "SSFL")
#: With --short: the share of the entries that FedAvg with error feedback sends, which takes as many bytes as ours.
SHARE = 0.33
WHOLE = "whole messages"
INT8 = "Short()"
FLOAT16 = 'Short(down="float16")'
#: What makes a result one of its kind.
NAMES = ("rounds", "problem", "optimizer", "seed", "way", "density")
#: What a cell compares with; of several ways the best counts.
AFTERWARDS = ("pruned afterwards, global", "pruned afterwards, layers")
MASKED = ("masks, global", "masks, layers")
Vector = np.ndarray[Any, np.dtype[Any]]


def linear_layers(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Flatten()]
    for ins, outs in itertools.pairwise(widths):
        layers += [nn.Linear(ins, outs), nn.ReLU()]
        if len(widths) > 5:  # a deep one does not start to learn from PyTorch's own initial weights
            nn.init.kaiming_normal_(layers[-2].weight, nonlinearity="relu")  # type: ignore[arg-type]
    return nn.Sequential(*layers[:-1])


def convolutions(channels: int, side: int, filters: tuple[int, ...], kernel: int, *widths: int) -> nn.Sequential:
    """Return convolutions with a pooling after each second filter size that grows, then linear layers."""
    layers: list[nn.Module] = []
    for number, outs in enumerate(filters):
        layers += [nn.Conv2d(channels, outs, kernel, padding=kernel // 2), nn.ReLU()]
        if len(filters) == 2 or number % 2:
            layers.append(nn.MaxPool2d(2))
            side //= 2
        channels = outs
    return nn.Sequential(*layers, *linear_layers(channels * side * side, *widths))


def narrow(running: bool = False) -> nn.Sequential:
    """Return nine convolutions of eight channels with BatchNorm, over the batch or running: 5,154 parameters."""
    layers: list[nn.Module] = []
    for number in range(9):
        conv = nn.Conv2d(8 if number else 1, 8, 3, 1 if number % 3 else 2, 1, bias=False)
        layers += [conv, nn.BatchNorm2d(8, track_running_stats=running), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 10))


def image_files(name: str, folder: Path | None) -> Path:
    path = None if folder is None else folder / name
    if path is None or not path.is_dir():
        raise FileNotFoundError(f"{name}: no folder {path or name}; give --data FOLDER or FLWR_FCO_DATA")
    files = sorted(path.glob("*.npz"))
    return files[0] if files else path


def images_of(read: Callable[[Path], Any], name: str, folder: Path | None, count: int, seed: int) -> Any:
    return on_clients(read(image_files(name, folder)), NODES, 1.0, num_examples=count, seed=seed)


#: Clients of a data set by seed and folder.
DATA: dict[str, Callable[[int, Path | None], Any]] = {
    "cancer": lambda seed, _: breast_cancer(NODES, None, seed=seed),
    "digits": lambda seed, _: digits(NODES, 1.0, seed=seed),
    "mnist": lambda seed, folder: images_of(mnist, "mnist", folder, 2000, seed),
    "cifar10": lambda seed, folder: images_of(cifar10, "cifar10", folder, 2500, seed),
}
#: Shape of an example, network, learning rates of SGD (momentum 0.9) and Adam, batch; a problem begins with its data.
Problem = tuple[tuple[int, ...], Callable[[], nn.Module], tuple[float, float], int]
PROBLEMS: dict[str, Problem] = {
    "cancer small": ((30,), lambda: linear_layers(30, 128, 64, 2), (0.05, 3e-3), 16),
    "cancer deep": ((30,), lambda: linear_layers(30, *6 * [64], 2), (0.02, 1e-3), 16),
    "digits small": ((8, 8, 1), lambda: convolutions(1, 8, (8, 16), 3, 64, 10), (0.05, 3e-3), 16),
    "digits deep": ((64,), lambda: linear_layers(64, *6 * [64], 10), (0.02, 1e-3), 16),
    "mnist small": ((28, 28, 1), lambda: convolutions(1, 28, (6, 16), 5, 120, 84, 10), (0.05, 2e-3), 32),
    "mnist deep": ((784,), lambda: linear_layers(784, *6 * [100], 10), (0.02, 1e-3), 32),
    "cifar10 small": ((32, 32, 3), lambda: convolutions(3, 32, (6, 16), 5, 120, 84, 10), (0.02, 2e-3), 32),
    "cifar10 deep": ((32, 32, 3), lambda: convolutions(3, 32, (8, 8, 16, 16, 32, 32), 3, 64, 10), (0.02, 2e-3), 32),
}
#: Only run if they are named, and counted in no summary.
NARROW: dict[str, Problem] = {
    "mnist narrow": ((28, 28, 1), narrow, (0.05, 3e-3), 32),
    "mnist narrow slow": ((28, 28, 1), narrow, (0.003, 3e-3), 32),
    "mnist running": ((28, 28, 1), partial(narrow, running=True), (0.05, 3e-3), 32),
}


class Task:
    """The data, the network and the local training of a seed: what all ways have in common."""

    def __init__(self, problem: str, optimizer: str, seed: int, folder: Path | None) -> None:
        self.shape, network, rates, self.batch = (PROBLEMS | NARROW)[problem]
        data = DATA[problem.partition(" ")[0]](seed, folder)
        torch.manual_seed(seed)
        self.seed = seed
        self.network = network()
        self.optimizer = optimizer
        self.rate = rates[optimizer == "adam"]
        examples = [data.client(node) for node in range(NODES)]
        features = np.concatenate([own.features for own in examples])
        self.centre = features.mean(0)
        self.spread = features.std(0) + 0.1
        self.parts = [self.tensors(own) for own in examples]
        self.test = self.tensors(data.test_examples())
        sizes = np.array([len(labels) for _, labels in self.parts])
        self.weights = sizes / sizes.sum()
        self.params = list(self.network.parameters())
        # Running means and variances travel behind the parameters, and no way prunes them.
        self.statistics = [buffer for buffer in self.network.buffers() if buffer.is_floating_point()]
        ends = np.cumsum([p.numel() for p in self.params])
        self.blocks = [slice(int(end) - p.numel(), int(end)) for end, p in zip(ends, self.params, strict=True)]
        self.layers = [block for block, p in zip(self.blocks, self.params, strict=True) if p.ndim > 1]
        self.pruned = np.zeros(ends[-1] + sum(buffer.numel() for buffer in self.statistics), bool)
        for block in self.layers:
            self.pruned[block] = True
        self.start = self.get()
        #: Bytes that a client gets and sends, of a way that counts them.
        self.bytes = 0.0
        #: Number of nodes that take part in a round.
        self.asked = NODES

    def sent(self, *masks: Vector | None, item: float = 1.0) -> None:
        """Count messages of entries, each of some bytes, with a bitmap of their places; None sends all of them."""
        for mask in masks:
            on = np.ones(int(self.pruned.sum()), bool) if mask is None else mask[self.pruned]
            self.bytes += item * on.sum() + (0 if mask is None else bits_of(on).size) + 4 * (~self.pruned).sum()

    def tensors(self, examples: Any) -> tuple[torch.Tensor, torch.Tensor]:
        scaled = torch.tensor((examples.features - self.centre) / self.spread, dtype=torch.float32)
        labels = torch.tensor(np.asarray(examples.targets)).long().clamp(min=0)
        if len(self.shape) == 3:
            scaled = scaled.reshape(-1, *self.shape).permute(0, 3, 1, 2).contiguous()
        return scaled, labels

    def get(self) -> Vector:
        vector = nn.utils.parameters_to_vector([*self.params, *self.statistics])
        return vector.detach().numpy().astype(np.float64)

    def set(self, w: Vector) -> None:
        vector = torch.tensor(w, dtype=torch.float32)
        nn.utils.vector_to_parameters(vector, [*self.params, *self.statistics])

    def train(
        self, node: int, server_round: int, mask: Vector | None = None, after_step: Callable[[], None] | None = None
    ) -> float:
        """Train the network on a node's data for an epoch; where the mask is 0, weights stay as they are."""
        images, labels = self.parts[node]
        make = {"sgd": lambda: torch.optim.SGD(self.params, self.rate, 0.9, fused=True)}
        make["adam"] = lambda: torch.optim.Adam(self.params, self.rate, fused=True)
        optimizer = make[self.optimizer]()
        total = 0.0
        masks = () if mask is None else [torch.tensor(mask[block]) for block in self.blocks]
        order = torch.Generator().manual_seed((self.seed * 1000 + server_round) * NODES + node)
        for rows in torch.randperm(len(labels), generator=order).split(self.batch):
            optimizer.zero_grad()
            loss = functional.cross_entropy(self.network(images[rows]), labels[rows])
            loss.backward()
            for p, own in zip(self.params, masks, strict=False):
                p.grad.mul_(own.reshape(p.shape))  # type: ignore[union-attr]
            optimizer.step()
            if after_step is not None:
                after_step()
            total += loss.item() * len(rows)
        return total / len(labels)

    def trained(self, w: Vector, server_round: int, *how: Any) -> Iterator[Vector]:
        """Return what each node makes of a model."""
        for node in self.chosen(server_round):
            self.set(w)
            self.train(node, server_round, *how)
            yield self.get()

    def chosen(self, server_round: int) -> list[int]:
        """Return the nodes of a round."""
        everybody = list(range(NODES))
        if self.asked == NODES:
            return everybody
        drawn = np.random.default_rng((self.seed, server_round)).choice(everybody, self.asked, replace=False)
        return sorted(drawn.tolist())

    def mean(self, w: Vector, server_round: int, *how: Any) -> Vector:
        """Return the mean of what the nodes make of a model."""
        shares = self.shares(server_round)
        return sum(p * own for p, own in zip(shares, self.trained(w, server_round, *how), strict=True))

    def shares(self, server_round: int) -> Vector:
        """Return the weights of a round's nodes."""
        weights = self.weights[self.chosen(server_round)]
        return weights / weights.sum()

    def saliency(self, node: int) -> Vector:
        """Return |w g| at the start, g the gradient of a node's mean loss."""
        self.set(self.start)
        images, labels = self.parts[node]
        self.network.zero_grad()
        functional.cross_entropy(self.network(images), labels).backward()
        grads = [p.grad for p in self.params if p.grad is not None]
        grads += [torch.zeros_like(buffer) for buffer in self.statistics]
        return np.abs(self.start * nn.utils.parameters_to_vector(grads).numpy())

    @torch.no_grad()
    def accuracy(self, w: Vector, *, anew: bool = False) -> float:
        """Return the accuracy on the test examples; `anew` with BatchNorm's statistics of the model as it is now."""
        self.set(w)
        images, labels = self.test
        if anew:
            update_bn((own for own, _ in self.parts), self.network)
        self.network.eval()
        parts = zip(images.split(1000), labels.split(1000), strict=True)
        right = sum(int((self.network(x).argmax(1) == y).sum()) for x, y in parts)
        self.network.train()
        return right / len(labels)


def largest(v: Vector, density: float) -> Vector:
    """Return whether each entry is among the largest."""
    count = max(1, round(density * v.size))
    return np.abs(v) >= np.partition(np.abs(v), v.size - count)[v.size - count]


def mask_of(task: Task, w: Vector, density: float, how: str) -> Vector:
    """Return what stays when a model is pruned: of all layers together, or of each by itself."""
    mask = np.ones(w.size, bool)
    if how == "global":
        mask[task.pruned] = largest(w[task.pruned], density)
    else:
        for block in task.layers:
            mask[block] = largest(w[block], density)
    return mask


def fed_avg(task: Task, rounds: int) -> Vector:
    """Return FedAvg's model."""
    w = task.start
    for number in range(1, rounds + 1):
        w = task.mean(w, number)
    return w


def cubic(number: int, density: float, end: int) -> float:
    return density + (1.0 - density) * max(0.0, 1.0 - number / max(1, end)) ** 3


def masks(task: Task, rounds: int, density: float, how: str) -> Vector:
    """Return the model of FedAvg whose clients train the weights that the server has not pruned yet."""
    w = task.start
    mask = np.ones(task.start.size, bool)
    for number in range(1, rounds + 1):
        task.sent(mask, mask)
        w = task.mean(w, number, mask)
        mask = mask_of(task, w, cubic(number, density, 3 * rounds // 4), how)
        w = w * mask
    return w


def fed_sparsify(task: Task, rounds: int, density: float) -> Vector:
    """Return FedSparsify's model: clients purge what is smallest, the server merges what a majority has kept."""
    w = task.start
    mask = np.ones(task.start.size, bool)
    for number in range(1, rounds + 1):
        merged, votes = np.zeros_like(w), np.zeros_like(w)
        for weight, own in zip(task.weights, task.trained(w, number, mask), strict=True):
            kept = mask_of(task, own, cubic(number, density, rounds), "global")
            merged += weight * own * kept
            votes += weight * kept
        mask = votes > 0.5
        w = merged * mask
    return w * mask_of(task, w, density, "global")


def hard_thresholding(task: Task, rounds: int, density: float, *, locally: bool) -> Vector:
    """Return Fed-HT's model, the largest entries of each mean, or FedIter-HT's, whose clients cut after each step."""

    def cut() -> None:
        w = task.get()
        task.set(w * mask_of(task, w, density, "global"))

    w = task.start
    for number in range(1, rounds + 1):
        task.sent(w != 0.0, None)
        w = task.mean(w, number, None, cut if locally else None)
        w = w * mask_of(task, w, density, "global")
    return w


def salient(task: Task, rounds: int, density: float) -> Vector:
    """Return SSFL's model: the mean saliency of the start says which weights are trained, from round 1 to the end."""
    scores = sum(p * task.saliency(node) for node, p in enumerate(task.weights))
    mask = mask_of(task, scores, density, "global")
    w = task.start * mask
    for number in range(1, rounds + 1):
        task.sent(mask, mask)
        w = task.mean(w, number, mask)
    return w


def quantised(task: Task, v: Vector, rng: np.random.Generator) -> Vector:
    """Return int8 with random rounding and a scale for each array."""
    v = v.copy()
    for block in task.layers:
        scale, parts = rounded(v[block], "int8", rng)
        v[block] = parts * float(scale)
    return v


def fed_avg_quantised(task: Task, rounds: int, item: float) -> Vector:
    """Return FedAvg's model: int8 increments up, int8 or float16 models down."""
    w = task.start
    rng = np.random.default_rng(0)
    for number in range(1, rounds + 1):
        task.sent(None, item=item)
        task.sent(None)
        sent = quantised(task, w, rng) if item == 1.0 else w.astype(np.float16).astype(np.float64)
        moves = (own - sent for own in task.trained(sent, number))
        w = w + sum(p * quantised(task, move, rng) for p, move in zip(task.shares(number), moves, strict=True))
    return w


def error_feedback(task: Task, rounds: int, share: float) -> Vector:
    """Return FedAvg's model: each side sends its largest changes in int8, and keeps the rest for the next round."""
    w = task.start
    sent = task.start
    rng = np.random.default_rng(0)
    kept = [np.zeros_like(w) for _ in task.weights]
    for number in range(1, rounds + 1):
        total = np.zeros_like(w)
        trained = task.trained(sent, number)
        for node, share_of_node, own in zip(task.chosen(number), task.shares(number), trained, strict=True):
            change = own - sent + kept[node]
            up = mask_of(task, change, share, "global")
            part = quantised(task, change * up, rng)
            kept[node] = change - part
            total += share_of_node * part
        w = w + total
        down = mask_of(task, w - sent, share, "global")
        sent = sent + quantised(task, (w - sent) * down, rng)
        task.sent(down, up)
    return w


def short_ways(task: Task, rounds: int, density: float = 0.1) -> dict[tuple[str, float], Callable[[], Vector]]:
    """Return short messages and what there is beside them."""
    found: dict[tuple[str, float], Callable[[], Vector]] = {("FedAvg", 1.0): partial(fed_avg, task, rounds)}
    found["FedAvg, float16 / int8", 1.0] = partial(fed_avg_quantised, task, rounds, 2.0)
    found["FedAvg, int8 / int8", 1.0] = partial(fed_avg_quantised, task, rounds, 1.0)
    found["FedAvg, error feedback", 1.0] = partial(error_feedback, task, rounds, SHARE)
    found["masks, global", density] = partial(masks, task, rounds, density, "global")
    found["Fed-HT", density] = partial(hard_thresholding, task, rounds, density, locally=False)
    found["SSFL", density] = partial(salient, task, rounds, density)
    for name, wire in ((WHOLE, Wire()), (INT8, Short()), (FLOAT16, Short(down="float16"))):
        found[name, density] = partial(fed_dual_avg, task, rounds, density, wire=wire)
    return found


def fed_dual_avg(task: Task, rounds: int, density: float, **options: Any) -> Vector:
    """Return our model; the ClientApp is that of any FedAvg project."""
    app = ClientApp(mods=[short_mod()])

    @app.train()
    def train(message: Message, context: Any) -> Message:
        node = partition(context)
        task.network.load_state_dict(message.content["arrays"].to_torch_state_dict())
        loss = task.train(node, message.content["config"]["server-round"])
        metrics = MetricRecord({"train_loss": loss, "num-examples": len(task.parts[node][1])})
        content = RecordDict({"arrays": ArrayRecord(task.network.state_dict()), "metrics": metrics})
        return Message(content, reply_to=message)

    options |= {"fraction_train": task.asked / NODES, "fraction_evaluate": 0.0}
    strategy = FedDualAvg(client="unmodified", density=density, **options)
    task.set(task.start)
    start = ArrayRecord(task.network.state_dict())
    result = federate(strategy, app, rounds, start, nodes=NODES)
    numbers = [dict(row) for row in result.train_metrics_clientapp.values()]
    down_and_up, theirs = (
        sum(sum(row.get(f"bytes-{name}", 0) for name in names) for row in numbers)
        for names in (("down", "up"), ("fedavg",))
    )
    # Of a client in a round of FedAvg's, which has messages of all arrays of this model.
    task.bytes = 8.0 * rounds * task.start.size * (down_and_up / theirs if theirs else 1.0)
    task.network.load_state_dict(result.arrays.to_torch_state_dict())
    return task.get()


def ways(
    task: Task, rounds: int, densities: tuple[float, ...], *, more: bool = False
) -> dict[tuple[str, float], Callable[[], Vector]]:
    """Return the ways to a model, by name and density; with `more` those whose density does not fall by a schedule."""
    dense = cache(partial(fed_avg, task, rounds))
    found: dict[tuple[str, float], Callable[[], Vector]] = {("FedAvg", 1.0): dense}
    for density in densities:
        found[OURS, density] = partial(fed_dual_avg, task, rounds, density)
        for how in ("global", "layers"):
            found[f"pruned afterwards, {how}", density] = partial(pruned, task, dense, density, how)
            found[f"masks, {how}", density] = partial(masks, task, rounds, density, how)
        found["FedSparsify", density] = partial(fed_sparsify, task, rounds, density)
        if more:
            found["Fed-HT", density] = partial(hard_thresholding, task, rounds, density, locally=False)
            found["FedIter-HT", density] = partial(hard_thresholding, task, rounds, density, locally=True)
            found["SSFL", density] = partial(salient, task, rounds, density)
    return found


def pruned(task: Task, dense: Callable[[], Vector], density: float, how: str) -> Vector:
    return dense() * mask_of(task, dense(), density, how)


def cells(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the cells that have all seeds of some way: means over them."""
    found: dict[tuple[Any, ...], dict[str, list[float]]] = {}
    for row in results:
        for density in DENSITIES if row["way"] == "FedAvg" else (row["density"],):
            cell = found.setdefault((row["problem"], row["optimizer"], row["rounds"], density), {})
            cell.setdefault(row["way"], []).append(row["accuracy"])
    means = []
    for key, ways in sorted(found.items(), key=lambda item: (*item[0][:3], -item[0][3])):
        if len(ways.keys() - set(MORE)) == 7 and len(set(map(len, ways.values()))) == 1:
            cell = {way: float(np.mean(own)) for way, own in ways.items()}
            cell["afterwards"], cell["masked"] = (max(cell[way] for way in names) for names in (AFTERWARDS, MASKED))
            means.append({"key": key, "seeds": len(ways[OURS]), **cell})
    return means


def print_table(results: list[dict[str, Any]]) -> None:
    key = ("problem", "optimiser", "rounds", "density")
    print_head(*key, "seeds", "FedAvg", "afterwards", "masks", "FedSparsify", "ours", "")
    found = cells(results)
    for cell in found:
        ours = cell[OURS]
        afterwards = cell["afterwards"]
        masked = cell["masked"]
        remarks = ["below 0.9 of afterwards"] if ours < 0.9 * afterwards else []
        remarks += ["below afterwards"] if ours < afterwards - 0.01 and cell["key"][2] >= 12 else []
        remarks += ["below masks"] if ours < masked - 0.01 else []
        numbers = (f"{value:.3f}" for value in (cell["FedAvg"], afterwards, masked, cell["FedSparsify"], ours))
        print_row(*cell["key"], cell["seeds"], *numbers, ", ".join(remarks))
    every = found
    found = [cell for cell in found if cell["key"][0] in PROBLEMS]
    long = [cell for cell in found if cell["key"][2] >= 12]
    if not long:
        return
    print(
        f"\n{sum(c[OURS] < 0.9 * c['afterwards'] for c in found)} of {len(found)} cells below 0.9 of pruned afterwards"
    )
    for name, other in (("pruned afterwards", "afterwards"), ("masks", "masked"), ("FedSparsify", "FedSparsify")):
        share = np.mean([cell[OURS] >= cell[other] - 0.01 for cell in long])
        print(f"{share:.0%} of {len(long)} cells with 12 rounds or more: within one point of {name}, or above")
    extra = [cell for cell in every if MORE[0] in cell]
    if extra:
        print()
        print_head(*key, "FedAvg", "masks", *MORE, "ours")
    for cell in extra:
        numbers = (f"{cell[way]:.3f}" if way in cell else "-" for way in ("FedAvg", "masked", *MORE, OURS))
        print_row(*cell["key"], *numbers)
    print()
    print_head("networks of which `density=` has 95 % / 99 % of FedAvg's accuracy", "3 rounds", "12", "24", "40", "80")
    for depth, density in itertools.product(("small", "deep"), DENSITIES):
        row = [f"{depth}, {density}"]
        of = [c for c in found if c["key"][0].endswith(depth) and c["key"][3] == density]
        for rounds in sorted(ROUNDS):
            alike = [c for c in of if c["key"][2] == rounds]
            shares = (sum(c[OURS] >= part * c["FedAvg"] for c in alike) for part in (0.95, 0.99))
            row.append(f"{' / '.join(map(str, shares))} of {len(alike)}" if alike else "")
        print_row(*row)


def print_short(results: list[dict[str, Any]]) -> None:
    """Print accuracy, and the part of FedAvg's bytes, of each way: means over the seeds."""
    found: dict[tuple[Any, ...], dict[str, list[dict[str, Any]]]] = {}
    for row in results:
        key = row["problem"], row["optimizer"], row["rounds"]
        found.setdefault(key, {}).setdefault(row["way"], []).append(row)
    names = list(dict.fromkeys(row["way"] for row in results))
    print_head("problem", "optimiser", "rounds", "seeds", *names)
    for key, ways_of in sorted(found.items()):
        means = {
            way: [np.mean([row[n] for row in rows]) for n in ("accuracy", "bytes")] for way, rows in ways_of.items()
        }
        texts = (f"{means[way][0]:.3f} 1/{1 / means[way][1]:.1f}" if way in means else "-" for way in names)
        print_row(*key, max(map(len, ways_of.values())), *texts)


def main() -> None:
    global NODES  # data sets are of so many clients
    data: dict[str, Any] = {"type": Path, "default": os.environ.get("FLWR_FCO_DATA")}
    settings = options_of(
        __doc__,
        "one small network and two cells",
        out={"type": Path, "help": "gets one line of JSON for each result, and is gone on with"},
        data=data | {"help": "folder of mnist/, cifar10/"},
        problems={"nargs": "+", "default": list(PROBLEMS), "choices": [*PROBLEMS, *NARROW]},
        rounds={"type": int, "nargs": "+", "default": ROUNDS},
        seeds={"type": int, "nargs": "+", "default": SEEDS},
        more={"action": "store_true", "help": "Fed-HT, FedIter-HT and SSFL too"},
        short={"action": "store_true", "help": "short messages and rivals, with bytes; 24 rounds unless --rounds"},
        optimizers={"nargs": "+", "default": ("sgd", "adam"), "choices": ("sgd", "adam")},
        nodes={"type": int, "default": NODES, "help": "number of clients"},
        asked={"type": int, "default": 0, "help": "clients in a round; by default all"},
        table={"action": "store_true", "help": "print the table of --out, and end"},
    )
    torch.set_num_threads(1)
    NODES = settings.nodes
    known = settings.out is not None and settings.out.exists()
    results = [json.loads(line) for line in settings.out.read_text().splitlines()] if known else []
    if settings.quick:
        grid: Any = [(12, "cancer small", "sgd", 0)]
    else:
        rounds = (24,) if settings.short and settings.rounds == ROUNDS else settings.rounds
        grid = itertools.product(rounds, settings.problems, settings.optimizers, settings.seeds)
    done = {tuple(row[name] for name in NAMES) for row in results}
    for rounds, problem, optimizer, seed in () if settings.table else grid:
        densities = DENSITIES[:2] if settings.quick else DENSITIES
        try:
            task = Task(problem, optimizer, seed, settings.data)
        except FileNotFoundError as error:
            print(f"skipped: {error}", file=sys.stderr)
            continue
        task.asked = settings.asked or NODES
        found = short_ways(task, rounds) if settings.short else ways(task, rounds, densities, more=settings.more)
        for (way, density), model in found.items():
            key = (rounds, problem, optimizer, seed, way, density)
            if key in done:
                continue
            task.bytes = 0.0
            w = model()
            results.append(dict(zip(NAMES, key, strict=True)) | {"accuracy": task.accuracy(w)})
            if settings.short:
                results[-1]["bytes"] = task.bytes / (8.0 * rounds * w.size) or 1.0
            if task.statistics:
                results[-1]["anew"] = task.accuracy(w, anew=True)
            if settings.out:
                with settings.out.open("a") as file:
                    file.write(json.dumps(results[-1]) + "\n")
    (print_short if settings.short else print_table)(results)


if __name__ == "__main__":
    main()

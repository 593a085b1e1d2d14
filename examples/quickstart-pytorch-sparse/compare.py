"""Accuracy and density of the ways to a sparse network, in one process: the table of README.md.

    python compare.py FOLDER-OF-MNIST --out compare.jsonl
    python compare.py --out compare.jsonl --write ../../docs/benchmarks/networks.md
    python compare.py FOLDER-OF-MNIST --out density.jsonl --only density=    some of the ways

Every way has the same nodes, images, network, local epochs, rate and number of rounds, also those that prune and train
on: their last quarter of the rounds is the training after pruning. A run that was stopped goes on: results that are in
the file of `--out` are not made again. The second line trains nothing and writes the table between the marks in files.
"""

import argparse
import copy
import json
import random
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from pytorch_sparse.task import Net, density, load_data, load_test, prune
from pytorch_sparse.task import test as test_fn
from pytorch_sparse.task import train as train_fn
from torch.nn import functional

from flwr_fco.client_apps import client_app
from flwr_fco.regularizers import L1
from flwr_fco.simulation import simulate
from flwr_fco.strategies import Bounds, Epochs, FedDualAvg
from flwr_fco.torch import ClientApp as OurClientApp
from flwr_fco.torch import TorchObjective, local_training

NODES = 10
BATCH = 32
LR = 0.2
CPU = torch.device("cpu")


def loader_of(context, settings):
    """Return a node's training loader."""
    node = context.node_config["partition-id"]
    return load_data(node, NODES, BATCH, settings.mnist, settings.images)[0]


def quickstart_app(settings):
    """Return Flower's quickstart ClientApp; with ``masked`` in its config, weights that are 0 stay 0."""
    app = ClientApp()

    @app.train()
    def train(msg, context):
        model = Net()
        model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
        loader = loader_of(context, settings)
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
        if msg.content["config"].get("masked", False):
            for weights in (p for p in model.parameters() if p.ndim > 1):
                weights.register_hook((weights.detach() != 0).mul)
        loss = train_fn(model, loader, 1, optimizer, CPU)
        metrics = MetricRecord({"train_loss": loss, "num-examples": len(loader.dataset)})
        return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=msg)

    return app


def training_app(settings):
    """Return the ClientApp of this example: a loop of one's own with `local_training`."""
    app = OurClientApp()

    @app.train()
    def train(msg, context):
        model = Net()
        loader = loader_of(context, settings)
        with local_training(msg, context, model) as training:
            loss = train_fn(model, loader, 1, training.optimizer, CPU)
        return training.reply({"train_loss": loss, "num-examples": len(loader.dataset)})

    return app


def objective_app(settings):
    """Return a ClientApp without a training loop: a model, a loss and a data set."""

    def loss(model, batch):
        return functional.cross_entropy(model(batch[0]), batch[1])

    return client_app(lambda context: TorchObjective(Net(), loss, loader_of(context, settings).dataset))


class Prune(FedAvg):
    """FedAvg whose model is pruned after each round to the density that a schedule says."""

    def __init__(self, schedule, **options):
        super().__init__(**options)
        self.schedule = schedule

    def aggregate_train(self, server_round, replies):
        """Average, and prune."""
        arrays, metrics = super().aggregate_train(server_round, replies)
        fraction = self.schedule(server_round)
        if arrays is not None and fraction < 1.0:
            net = Net()
            net.load_state_dict(arrays.to_torch_state_dict())
            prune(net, fraction)
            arrays = ArrayRecord(net.state_dict())
        return arrays, metrics


def gradually(fraction, rounds):
    """Return the cubic schedule of Zhu and Gupta (2017), over the first three quarters of the rounds."""
    end = 3 * rounds // 4
    return lambda number: fraction + (1.0 - fraction) * max(0.0, 1.0 - number / end) ** 3


def at_three_quarters(fraction, rounds):
    """Return a schedule that prunes once."""
    return lambda number: 1.0 if number < 3 * rounds // 4 else fraction


def ways(settings):
    """Return name, strategy, ClientApp and the densities to which the result is pruned."""
    plain = quickstart_app(settings)
    rounds = settings.rounds
    off = {"fraction_evaluate": 0.0}
    ours = {"regularizer": L1(settings.strength), "client_lr": LR, "work": Epochs(1, batch_size=BATCH), **off}
    yield "FedAvg", FedAvg(**off), plain, (0.2, 0.1, 0.05)
    yield "FedDualAvg, own training loop", FedDualAvg(**ours, bounds=Bounds(own_loops=True)), training_app(settings), ()
    yield "FedDualAvg, TorchObjective", FedDualAvg(**ours), objective_app(settings), ()
    for fraction in (0.1, 0.05):
        name = f"FedDualAvg(client='unmodified', density={fraction})"
        yield name, FedDualAvg(client="unmodified", density=fraction, **off), plain, ()
    for fraction in (0.1, 0.05):
        strategy = Prune(at_three_quarters(fraction, rounds), **off)
        yield f"FedAvg, pruned to {fraction} after 3/4 of the rounds and trained on", strategy, plain, ()
    for fraction in (0.1, 0.05):
        yield f"FedAvg, pruned to {fraction} while it trains", Prune(gradually(fraction, rounds), **off), plain, ()


def scores_of(net, loader):
    """Return accuracy and density."""
    return {"accuracy": test_fn(net, loader, CPU)[1], "density": density(net)}


def table(results):
    """Return the table over the seeds that have all ways: means, and what the accuracies lie between."""
    names = list(dict.fromkeys(result["way"] for result in sorted(results, key=lambda result: result["seed"])))
    found = {(result["way"], result["seed"]): result for result in results}
    seeds = [seed for seed in sorted({seed for _, seed in found}) if all((name, seed) in found for name in names)]
    lines = [
        f"| {len(seeds)} seed{'s' * (len(seeds) > 1)} | accuracy | smallest to largest | weights that are not 0 |",
        "|---|---|---|---|",
    ]
    for name in names:
        own = [found[name, seed] for seed in seeds]
        accuracy, share = (np.array([result[key] for result in own]) for key in ("accuracy", "density"))
        spread = f"{accuracy.min():.3f} to {accuracy.max():.3f}"
        lines.append(f"| {name} | {accuracy.mean():.3f} | {spread} | {share.mean():.1%} |")
    return lines


def write(path, results):
    """Put the table between the marks of a file."""
    begin, end = "<!-- sparse networks: begin -->\n", "<!-- sparse networks: end -->"
    before, rest = path.read_text(encoding="utf-8").split(begin)
    path.write_text(before + begin + "\n".join(["", *table(results), "", end]) + rest.split(end)[1], encoding="utf-8")


def options():
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mnist", nargs="?", help="the folder with MNIST's four files; not needed with --write")
    parser.add_argument("--rounds", type=int, default=80)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--images", type=int, default=6000)
    parser.add_argument("--strength", type=float, default=1e-3)
    parser.add_argument(
        "--out", type=Path, help="a file that gets one line of JSON for each result, and is gone on with"
    )
    parser.add_argument("--only", metavar="TEXT", default="", help="train only the ways with this in their names")
    parser.add_argument("--write", type=Path, nargs="+", help="write the table of --out into these files, and end")
    settings = parser.parse_args()
    if not settings.mnist and not (settings.write and settings.out):
        parser.error("give the folder with MNIST's four files, or --write with --out")
    return settings


def train(strategy, app, seed, rounds):
    """Return the trained network, and its densities after each round."""
    # The seed is that of the start point, of the batches, and of the order in which FedAvg calls the nodes.
    torch.manual_seed(seed)
    random.seed(seed)
    if isinstance(strategy, FedDualAvg):
        strategy.seed = seed
    net = Net()
    densities = []

    def note_density(number, arrays):
        net.load_state_dict(arrays.to_torch_state_dict())
        densities.append(density(net))
        return MetricRecord({"density": densities[-1]})

    result = simulate(
        strategy,
        app,
        num_nodes=NODES,
        num_rounds=rounds,
        initial_arrays=ArrayRecord(net.state_dict()),
        evaluate_fn=note_density,
        train_config=ConfigRecord({"masked": isinstance(strategy, Prune)}),
        progress=False,
    )
    net.load_state_dict(result.arrays.to_torch_state_dict())
    return net, densities


def main():
    """Run all ways with all seeds, and print the table."""
    settings = options()
    asked = {"rounds": settings.rounds, "images": settings.images, "strength": settings.strength}
    results = []
    if settings.out and settings.out.exists():
        results = [json.loads(line) for line in settings.out.read_text().splitlines()]
        results = [result for result in results if asked.items() <= result.items()]

    if settings.write:
        for path in settings.write:
            write(path, results)
        return
    loader = load_test(settings.mnist)

    def keep(name, seed, net, **more):
        results.append({"way": name, "seed": seed, **scores_of(net, loader), **more, **asked})
        line = json.dumps(results[-1])
        print(line, flush=True)
        if settings.out:
            with settings.out.open("a") as file:
                file.write(line + "\n")

    for seed in range(settings.seeds):
        for name, strategy, app, fractions in ways(settings):
            if settings.only not in name:
                continue
            afterwards = [(f"FedAvg, pruned to {fraction} afterwards", fraction) for fraction in fractions]
            done = {result["way"] for result in results if result["seed"] == seed}
            if {name, *(other for other, _ in afterwards)} <= done:
                continue
            net, densities = train(strategy, app, seed, settings.rounds)
            last = densities[1 + 3 * settings.rounds // 4 :]
            keep(name, seed, net, lowest=min(last), highest=max(last))
            for other, fraction in afterwards:
                pruned = copy.deepcopy(net)
                prune(pruned, fraction)
                keep(other, seed, pruned)
    print("\n" + "\n".join(table(results)))


if __name__ == "__main__":
    main()

"""Accuracy and density of the ways to a sparse network, in one process: the table of README.md.

    python compare.py FOLDER-OF-MNIST --rounds 60 --seeds 3

Every way has the same nodes, images, network, local epochs, rate and number of rounds, also those that prune and train
on: their last quarter of the rounds is the training after pruning.
"""

import argparse
import copy
import json
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from pytorch_sparse.task import Net, density, load_data, load_test, prune
from pytorch_sparse.task import test as test_fn
from pytorch_sparse.task import train as train_fn

from flwr_fco.regularizers import L1
from flwr_fco.simulation import simulate
from flwr_fco.strategies import FedDualAvg
from flwr_fco.torch import ClientApp as OurClientApp
from flwr_fco.torch import local_training

NODES, BATCH, LR, CPU = 10, 32, 0.2, torch.device("cpu")


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
        model, loader = Net(), loader_of(context, settings)
        with local_training(msg, context, model) as training:
            loss = train_fn(model, loader, 1, training.optimizer, CPU)
        return training.reply({"train_loss": loss, "num-examples": len(loader.dataset)})

    return app


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
    plain, rounds = quickstart_app(settings), settings.rounds
    off = {"fraction_evaluate": 0.0}
    ours = {"regularizer": L1(settings.strength), "client_lr": LR, "batch_size": BATCH, **off}
    yield "FedAvg", FedAvg(**off), plain, (0.2, 0.1, 0.05)
    yield "FedDualAvg, own training loop", FedDualAvg(**ours), training_app(settings), ()
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


def main():
    """Run all ways with all seeds, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mnist", help="the folder with MNIST's four files")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--images", type=int, default=6000)
    parser.add_argument("--strength", type=float, default=1e-3)
    parser.add_argument("--out", type=Path, help="a file that gets one line of JSON for each result")
    settings = parser.parse_args()
    loader = load_test(settings.mnist)
    rows = {}

    def keep(name, seed, net):
        scores = scores_of(net, loader)
        rows.setdefault(name, []).append(scores)
        line = json.dumps({"way": name, "seed": seed, **scores})
        print(line, flush=True)
        if settings.out:
            with settings.out.open("a") as file:
                file.write(line + "\n")

    for seed in range(settings.first_seed, settings.first_seed + settings.seeds):
        for name, strategy, app, fractions in ways(settings):
            # The seed is that of the start point and of the batches.
            torch.manual_seed(seed)
            strategy.seed = seed
            net = Net()
            result = simulate(
                strategy,
                app,
                num_nodes=NODES,
                num_rounds=settings.rounds,
                initial_arrays=ArrayRecord(net.state_dict()),
                train_config=ConfigRecord({"masked": isinstance(strategy, Prune)}),
                progress=False,
            )
            net.load_state_dict(result.arrays.to_torch_state_dict())
            keep(name, seed, net)
            for fraction in fractions:
                pruned = copy.deepcopy(net)
                prune(pruned, fraction)
                keep(f"FedAvg, pruned to {fraction} afterwards", seed, pruned)
    print("\n| | accuracy | of the seeds | weights that are not 0 |\n|---|---|---|---|")
    for name, scores in rows.items():
        accuracy = np.array([score["accuracy"] for score in scores])
        share = np.mean([score["density"] for score in scores])
        print(f"| {name} | {accuracy.mean():.3f} | {accuracy.min():.3f} to {accuracy.max():.3f} | {share:.1%} |")


if __name__ == "__main__":
    main()

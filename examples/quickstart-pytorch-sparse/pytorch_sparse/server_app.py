"""The ServerApp: a network that is exactly sparse after training, and FedAvg's, pruned to the same density."""

import copy

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from flwr_fco.regularizers import L1, Zero
from flwr_fco.strategies import Bounds, FedDualAvg
from pytorch_sparse.task import Net, density, load_test, prune
from pytorch_sparse.task import test as test_fn

app = ServerApp()


def make_strategy(config):
    """Return FedDualAvg with an l1 norm, or without one, which is FedAvg to the last digit."""
    regularizers = {"FedDualAvg": L1(config["strength"]), "FedAvg": Zero()}
    return FedDualAvg(
        regularizer=regularizers[config["strategy"]],
        client_lr=config["client-lr"],
        server_lr=config["server-lr"],
        bounds=Bounds(own_loops=True),
        fraction_evaluate=config["fraction-evaluate"],
        seed=config["seed"],
    )


def scores_of(net, loader):
    """Return accuracy, where the server has images, and density."""
    scores = {} if loader is None else {"accuracy": test_fn(net, loader, torch.device("cpu"))[1]}
    return {**scores, "density": density(net)}


def shown(scores):
    """Return them as text."""
    return ", ".join(f"{name} {value:.4f}" for name, value in scores.items())


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for some rounds; print accuracy and density."""
    config = context.run_config
    torch.manual_seed(config["seed"])
    net = Net()
    loader = load_test(config["mnist"]) if config["mnist"] else None

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        net.load_state_dict(arrays.to_torch_state_dict())
        scores = scores_of(net, loader)
        print(f"round {server_round}: {shown(scores)}", flush=True)
        return MetricRecord(scores)

    result = make_strategy(config).start(
        grid=grid,
        initial_arrays=ArrayRecord(net.state_dict()),
        num_rounds=config["num-server-rounds"],
        evaluate_fn=evaluate,
    )
    net.load_state_dict(result.arrays.to_torch_state_dict())
    if config["strategy"] == "FedAvg":
        for fraction in (0.05, 0.1, 0.2):
            pruned = copy.deepcopy(net)
            prune(pruned, fraction)
            print(f"pruned: {shown(scores_of(pruned, loader))}")

"""A small network on scikit-learn's digits, and the ClientApps of a project with it: Flower's own, and ours."""

import pytest

# Its docstrings are looked at too, and nothing here can be imported without it.
pytest.importorskip("torch.optim", reason="needs PyTorch: make test-torch, or pip install torch")

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from problems import foreign_app, simulated
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

from flwr_fco.client_apps import client_app
from flwr_fco.torch import ClientApp, TorchObjective, local_training

NODES = 4
TRAIN = 800
BATCH = 25
DIGITS = load_digits()
ORDER = torch.randperm(len(DIGITS.target), generator=torch.Generator().manual_seed(0))
IMAGES = torch.tensor(DIGITS.data).float()[ORDER] / 16.0
LABELS = torch.tensor(DIGITS.target)[ORDER]


class Linear(nn.Module):
    """Predicts X w + b under the names of our objectives."""

    def __init__(self, *shape):
        super().__init__()
        self.coefficients = nn.Parameter(torch.zeros(shape, dtype=torch.float64))
        self.intercept = nn.Parameter(torch.zeros(shape[1:] or 1, dtype=torch.float64))

    def forward(self, features):
        return features @ self.coefficients + self.intercept


class Net(nn.Sequential):
    def __init__(self, width=24):
        super().__init__(nn.Linear(64, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 10))


def load(arrays):
    net = Net()
    net.load_state_dict(arrays.to_torch_state_dict())
    return net


def data_of(partition):
    return IMAGES[:TRAIN][partition::NODES], LABELS[:TRAIN][partition::NODES]


def loss(model, batch):
    return functional.cross_entropy(model(batch[0]), batch[1])


def train(net, partition, optimizer, work=None):
    """One epoch, in an order of its own for each partition; or steps on all rows, where the work says so."""
    net.train()
    images, labels = data_of(partition)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(partition))
    full = work is not None and work.batch_size is None
    for rows in [order] * work.steps if full else order.split(BATCH):
        optimizer.zero_grad()
        loss(net, (images[rows], labels[rows])).backward()
        optimizer.step()


@torch.no_grad()
def accuracy(net):
    net.eval()
    return float((net(IMAGES[TRAIN:]).argmax(1) == LABELS[TRAIN:]).float().mean())


def density(net):
    weights = [p for p in net.parameters() if p.ndim > 1]
    return sum(int((p != 0).sum()) for p in weights) / sum(p.numel() for p in weights)


@torch.no_grad()
def evaluated(message, context):
    net = load(message.content["arrays"]).eval()
    return {"eval_loss": float(loss(net, data_of(context.node_config["partition-id"]))), "num-examples": TRAIN // NODES}


def unmodified_app(momentum=0.0, *, mods=()):
    """A ClientApp of Flower's, which knows nothing of this package; its rate is in the run config."""

    def trained(arrays, message, context):
        net = load(message.content["arrays"])
        lr = context.run_config.get("lr", 0.2)
        train(net, context.node_config["partition-id"], torch.optim.SGD(net.parameters(), lr=lr, momentum=momentum))
        return ArrayRecord(net.state_dict())

    return foreign_app(trained, metrics={"num-examples": TRAIN // NODES}, evaluated=evaluated, mods=mods)


def loop_app(*, mods=None, **options):
    """A ClientApp with a training loop of one's own."""
    app = ClientApp(mods=mods)

    @app.train()
    def training(message, context):
        with local_training(message, context, net := Net(), **options) as own:
            train(net, context.node_config["partition-id"], own.optimizer, own.work)
            assert {tensor.dtype for tensor in own.optimizer.increments().values()} == {torch.float32}
        net.requires_grad_(False)  # as for an evaluation of its own
        return own.reply({"num-examples": TRAIN // NODES, "rate": context.run_config.get("lr", 0.0)})

    @app.evaluate()
    def evaluate(message, context):
        return Message(RecordDict({"metrics": MetricRecord(evaluated(message, context))}), reply_to=message)

    return app


def objective_app():
    """A ClientApp without a training loop."""
    return client_app(lambda c: TorchObjective(Net(), loss, data_of(c.node_config["partition-id"])))


def run(strategy, app, rounds, arrays=None, **options):
    """Train on four nodes, by default from a network that is drawn with the seed 0."""
    if arrays is None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            arrays = ArrayRecord(Net().state_dict())
    return simulated(strategy, app, rounds, num_nodes=NODES, initial_arrays=arrays, **options)

"""A small network on scikit-learn's digits, and the ClientApps of a project with it: Flower's own, and ours."""

import pytest

# Its docstrings are looked at too, and nothing here can be imported without it.
pytest.importorskip("torch.optim", reason="needs PyTorch: make test-torch, or pip install torch")

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp as FlowersClientApp
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

from flwr_fco.client_apps import client_app
from flwr_fco.simulation import simulate
from flwr_fco.torch import ClientApp, TorchObjective, local_training

NODES = 4
TRAIN = 800
BATCH = 25
IMAGES, LABELS = (torch.tensor(array) for array in load_digits(return_X_y=True))
IMAGES = IMAGES.float() / 16.0
ORDER = torch.randperm(len(IMAGES), generator=torch.Generator().manual_seed(0))
IMAGES = IMAGES[ORDER]
LABELS = LABELS[ORDER]


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


def start(seed=0, make=Net):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ArrayRecord(make().state_dict())


def load(arrays, make=Net):
    net = make()
    net.load_state_dict(arrays.to_torch_state_dict())
    return net


def rows_of(partition):
    return torch.arange(TRAIN)[partition::NODES]


def loss(model, batch):
    return functional.cross_entropy(model(batch[0]), batch[1])


def train(net, partition, optimizer):
    """One epoch, in an order of its own for each partition."""
    net.train()
    rows = rows_of(partition)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(partition))
    for batch in rows[order].split(BATCH):
        optimizer.zero_grad()
        loss(net, (IMAGES[batch], LABELS[batch])).backward()
        optimizer.step()


@torch.no_grad()
def accuracy(net):
    net.eval()
    return float((net(IMAGES[TRAIN:]).argmax(1) == LABELS[TRAIN:]).float().mean())


def density(net):
    weights = [p for p in net.parameters() if p.ndim > 1]
    return sum(int((p != 0).sum()) for p in weights) / sum(p.numel() for p in weights)


def with_evaluation(app):
    @app.evaluate()
    def evaluate(message, context):
        net, rows = load(message.content["arrays"]), rows_of(context.node_config["partition-id"])
        net.eval()
        with torch.no_grad():
            found = float(loss(net, (IMAGES[rows], LABELS[rows])))
        metrics = MetricRecord({"eval_loss": found, "num-examples": len(rows)})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def unmodified_app(make_optimizer=None, *, mods=None, make=Net, metrics=None):
    """A ClientApp of Flower's, which knows nothing of this package; its rate is in the run config."""
    app = FlowersClientApp(mods=mods)
    make_optimizer = make_optimizer or (lambda net, lr: torch.optim.SGD(net.parameters(), lr=lr))

    @app.train()
    def training(message, context):
        net = load(message.content["arrays"], make)
        partition = context.node_config["partition-id"]
        train(net, partition, make_optimizer(net, context.run_config.get("lr", 0.2)))
        own = {"num-examples": len(rows_of(partition)), **(metrics or {})}
        content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord(own)})
        return Message(content, reply_to=message)

    return with_evaluation(app)


def loop_app(*, mods=None, **options):
    """A ClientApp with a training loop of one's own."""
    app = ClientApp(mods=mods)

    @app.train()
    def training(message, context):
        net = Net()
        partition = context.node_config["partition-id"]
        with local_training(message, context, net, **options) as own:
            train(net, partition, own.optimizer)
        return own.reply({"num-examples": len(rows_of(partition)), "rate": context.run_config.get("lr", 0.0)})

    return with_evaluation(app)


def objective_app(*, mods=None):
    """A ClientApp without a training loop."""

    def load_objective(context):
        rows = rows_of(context.node_config["partition-id"])
        return TorchObjective(Net(), loss, (IMAGES[rows], LABELS[rows]))

    return client_app(load_objective, mods=mods)


def run(strategy, app, rounds, arrays=None, **options):
    arrays = start() if arrays is None else arrays
    options = {"progress": False, **options}
    return simulate(strategy, app, num_nodes=NODES, num_rounds=rounds, initial_arrays=arrays, **options)

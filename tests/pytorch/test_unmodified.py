"""A ClientApp as Flower's users write theirs, which knows nothing of this package: BatchNorm, momentum, SGD."""

import numpy as np
import pytest

pytest.importorskip("torch.optim", reason="needs PyTorch: make test-torch, or pip install torch")

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from flwr_fco.core.layout import Layout
from flwr_fco.errors import ConfigurationError, ProtocolError
from flwr_fco.regularizers import L1
from flwr_fco.simulation import simulate
from flwr_fco.strategies import FedDualAvg, Steps
from flwr_fco.wire.uplink import read_unmodified

NODES, ROUNDS = 4, 16

# --- task.py and client_app.py of a project, after Flower's quickstart-pytorch ---------------------------------------


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(16)
        self.pool = nn.MaxPool2d(2)
        self.fc1 = nn.Linear(16 * 2 * 2, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x):
        x = self.pool(torch.relu(self.norm1(self.conv1(x))))
        x = self.pool(torch.relu(self.norm2(self.conv2(x)))).flatten(1)
        return self.fc2(torch.relu(self.fc1(x)))


def digits():
    images, labels = load_digits(return_X_y=True)
    images = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16.0
    rows = np.random.default_rng(0).permutation(len(labels))
    return images[rows], torch.tensor(labels[rows])


IMAGES, LABELS = digits()


def load_data(partition_id, num_partitions):
    rows = np.arange(600)[partition_id::num_partitions]
    # Whichever client comes first (Flower's FedAvg shuffles them), each has its own order of images.
    order = torch.Generator().manual_seed(partition_id)
    return DataLoader(TensorDataset(IMAGES[rows], LABELS[rows]), batch_size=20, shuffle=True, generator=order)


def train_fn(net, trainloader, epochs, lr):
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    net.train()
    running_loss = 0.0
    for _ in range(epochs):
        for images, labels in trainloader:
            optimizer.zero_grad()
            loss = criterion(net(images), labels)
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
    return running_loss / (epochs * len(trainloader))


@torch.no_grad()
def test_fn(net):
    net.eval()
    return float((net(IMAGES[600:]).argmax(1) == LABELS[600:]).float().mean())


test_fn.__test__ = False
app = ClientApp()


@app.train()
def train(msg: Message, context):
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    trainloader = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    train_loss = train_fn(model, trainloader, 2, msg.content["config"]["lr"])
    metrics = {"train_loss": train_loss, "num-examples": len(trainloader.dataset)}
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=msg)


# --- the server ------------------------------------------------------------------------------------------------------


def run(strategy, rounds=ROUNDS, lr=0.05):
    torch.manual_seed(0)
    net = Net()
    result = simulate(
        strategy,
        app,
        num_nodes=NODES,
        num_rounds=rounds,
        initial_arrays=ArrayRecord(net.state_dict()),
        train_config=ConfigRecord({"lr": lr}),
        progress=False,
    )
    net.load_state_dict(result.arrays.to_torch_state_dict())
    return net, result


def density(net):
    weights = [p for p in net.parameters() if p.ndim > 1]
    return sum(int((p != 0).sum()) for p in weights) / sum(p.numel() for p in weights)


def test_one_word_on_the_server_makes_the_network_sparse():
    """Density within .01 of what was asked for over the last quarter of the rounds, and the network has learnt."""
    net, result = run(FedDualAvg(client="unmodified", density=0.1, fraction_evaluate=0.0))
    dense, _ = run(FedAvg(fraction_evaluate=0.0))
    for number in range(3 * ROUNDS // 4, ROUNDS + 1):
        assert abs(result.train_metrics_clientapp[number]["density"] - 0.1) <= 0.01
    assert abs(density(net) - 0.1) <= 0.01
    assert density(dense) == 1.0
    assert test_fn(net) > 0.9
    assert test_fn(dense) - test_fn(net) < 0.08


def test_without_psi_it_is_flowers_fedavg():
    """Parameters, running statistics and integer counters."""
    ours, _ = run(FedDualAvg(client="unmodified", fraction_evaluate=0.0), rounds=3)
    flowers, _ = run(FedAvg(fraction_evaluate=0.0), rounds=3)
    assert int(ours.norm1.num_batches_tracked) == int(flowers.norm1.num_batches_tracked) > 0
    for (name, mine), theirs in zip(ours.state_dict().items(), flowers.state_dict().values(), strict=True):
        assert mine.dtype == theirs.dtype
        torch.testing.assert_close(mine, theirs, rtol=2e-4, atol=2e-5, msg=name)


def test_the_statistics_are_averaged_and_not_optimised():
    """They are not cut by the threshold, and the server's rate does not reach them."""
    options = {"regularizer": L1(1.0), "client_lr": 10.0, "work": Steps(1), "fraction_evaluate": 0.0}
    net, _ = run(FedDualAvg(client="unmodified", server_lr=0.5, **options), 2)
    assert density(net) == 0.0
    assert torch.count_nonzero(net.norm1.running_var) == 8
    assert int(net.norm1.num_batches_tracked) == 2 * 2 * 8


def test_only_the_product_of_strength_rate_and_steps_matters():
    """To an unmodified client: bit by bit the same where two of the three change against each other."""

    def train(strength, client_lr, local_steps):
        psi = L1(strength)
        options = {"regularizer": psi, "client_lr": client_lr, "work": Steps(local_steps), "fraction_evaluate": 0.0}
        return run(FedDualAvg(client="unmodified", **options), rounds=2)

    net, result = train(2e-3, 0.05, 16)
    for other in ((4e-3, 0.025, 16), (2e-3, 0.1, 8), (8e-3, 0.05, 4)):
        _, same = train(*other)
        for name in result.arrays:
            np.testing.assert_array_equal(same.arrays[name].numpy(), result.arrays[name].numpy(), err_msg=name)
    assert 0.5 < density(net) < 1.0


@pytest.mark.nightly
def test_a_factor_of_three_too_much_leaves_nothing():
    """Which is why `density=` takes the place of the product: the threshold outruns the gradients."""

    def train(threshold):
        psi = {"regularizer": L1(1.0), "client_lr": threshold, "work": Steps(1)}
        net, _ = run(FedDualAvg(client="unmodified", fraction_evaluate=0.0, **psi), rounds=12)
        return density(net), test_fn(net)

    some, learnt = train(0.04)
    none, lost = train(0.12)
    assert 0.05 < some < 0.2  # measured .12
    assert learnt > 0.8  # measured .88
    assert none < 0.02
    assert lost < 0.25  # chance is .1


def test_what_a_new_user_would_try_first_is_an_error():
    with pytest.raises(ConfigurationError, match=r"Give density=0\.1"):
        FedDualAvg(client="unmodified", regularizer=L1(1e-3))


def test_the_change_of_a_float32_model_stays_float32_and_nan_is_named():
    arrays = {"weight": np.ones((3, 2), np.float32), "bias": np.zeros(3, np.float32)}
    layout = Layout.from_arrays(arrays)
    sent = layout.flatten(arrays)

    def read(changed):
        content = RecordDict({"arrays": ArrayRecord(changed), "metrics": MetricRecord({"num-examples": 3})})
        options = {"client_lr": 0.1, "local_steps": 1, "weighted_by_key": "num-examples"}
        return read_unmodified(content, layout, sent=sent, **options)

    changed = {name: torch.from_numpy(array + np.float32(0.1)) for name, array in arrays.items()}
    uplink = read(changed)
    assert uplink.vectors["increment"].dtype == np.float32
    assert uplink.norms["increment"] == pytest.approx(float(np.linalg.norm(uplink.vectors["increment"])))
    assert np.array_equal(
        sent + uplink.vectors["increment"], layout.flatten({k: v.numpy() for k, v in changed.items()})
    )
    changed["bias"][1] = float("nan")
    with pytest.raises(ProtocolError, match="'bias' holds 1 NaN"):
        read(changed)

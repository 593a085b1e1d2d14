"""A ClientApp as Flower's users write theirs, which knows nothing of this package: BatchNorm, momentum, SGD."""

import numpy as np
import pytest

pytest.importorskip("torch.optim", reason="needs PyTorch: make test-torch, or pip install torch")

import networks
import torch
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAvg
from networks import accuracy, density, load, unmodified_app
from torch import nn

from flwr_fco.core.layout import Layout
from flwr_fco.errors import ConfigurationError, ProtocolError
from flwr_fco.messages.arrays import increment_of
from flwr_fco.regularizers import L1
from flwr_fco.strategies import FedDualAvg, Steps

ROUNDS = 16
OFF = {"fraction_evaluate": 0.0}


class Net(nn.Sequential):
    def __init__(self):
        convolutions = (
            layer
            for ins, outs in ((1, 8), (8, 16))
            for layer in (nn.Conv2d(ins, outs, 3, padding=1), nn.BatchNorm2d(outs), nn.ReLU(), nn.MaxPool2d(2))
        )
        head = nn.Flatten(), nn.Linear(16 * 2 * 2, 32), nn.ReLU(), nn.Linear(32, 10)
        super().__init__(nn.Unflatten(1, (1, 8, 8)), *convolutions, *head)


def momentum(net, lr):
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


def run(strategy, rounds=ROUNDS, make=Net):
    result = networks.run(strategy, unmodified_app(momentum, make=make), rounds, networks.start(make=make))
    return load(result.arrays, make), result


def test_one_word_on_the_server_makes_the_network_sparse():
    """Density within .01 of what was asked for over the last quarter of the rounds, and the network has learnt."""
    net, result = run(FedDualAvg(client="unmodified", density=0.1, **OFF))
    dense, _ = run(FedAvg(**OFF))
    for number in range(3 * ROUNDS // 4, ROUNDS + 1):
        assert abs(result.train_metrics_clientapp[number]["density"] - 0.1) <= 0.01
    assert abs(density(net) - 0.1) <= 0.01
    assert density(dense) == 1.0
    assert accuracy(net) > 0.9
    assert accuracy(dense) - accuracy(net) < 0.08


def test_the_statistics_are_averaged_and_not_optimised():
    """They are not cut by the threshold, and the server's rate does not reach them."""
    psi = {"regularizer": L1(1.0), "client_lr": 10.0, "work": Steps(1)}
    net, _ = run(FedDualAvg(client="unmodified", server_lr=0.5, **psi, **OFF), 2)
    assert density(net) == 0.0
    assert torch.count_nonzero(net[2].running_var) == 8
    assert int(net[2].num_batches_tracked) == 2 * networks.TRAIN // networks.NODES // networks.BATCH


def test_what_a_new_user_would_try_first_is_an_error():
    with pytest.raises(ConfigurationError, match=r"Give density=0\.1"):
        FedDualAvg(client="unmodified", regularizer=L1(1e-3))


def test_the_change_of_a_float32_model_stays_float32_and_nan_is_named():
    arrays = {"weight": np.ones((3, 2), np.float32), "bias": np.zeros(3, np.float32)}
    layout = Layout.from_arrays(arrays)
    changed = {n: torch.from_numpy(a + np.float32(0.1)) for n, a in arrays.items()}
    sent = layout.flatten(arrays)
    increment, _ = increment_of(layout, ArrayRecord(changed), sent)
    assert increment.dtype == np.float32
    assert np.array_equal(sent + increment, layout.flatten({name: own.numpy() for name, own in changed.items()}))
    changed["bias"][1] = float("nan")
    with pytest.raises(ProtocolError, match="'bias' holds 1 NaN"):
        increment_of(layout, ArrayRecord(changed), sent)

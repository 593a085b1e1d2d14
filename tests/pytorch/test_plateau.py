"""A network that has not begun to learn when its weights are cut: seven layers with PyTorch's own initial weights."""

import pytest

pytest.importorskip("torch.optim", reason="needs PyTorch: make test-torch, or pip install torch")

import networks
import torch
from torch import nn

from flwr_fco.strategies import FedDualAvg


class Plateau(nn.Sequential):
    def __init__(self):
        super().__init__(*(layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.ReLU())), nn.Linear(64, 10))


@pytest.mark.slow
def test_a_network_that_has_not_begun_to_learn_begins_while_it_is_cut():
    """FedAvg is at chance for 24 of 40 rounds, then has .45; pruned afterwards .23 by layers, and .13 globally."""

    def optimizer(net, lr):
        return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), None

    strategy = FedDualAvg(client="unmodified", density=0.1, fraction_evaluate=0.0)
    app = networks.unmodified_app(optimizer, make=Plateau)
    result = networks.run(strategy, app, 40, networks.start(make=Plateau))
    net = networks.load(result.arrays, Plateau)
    assert networks.density(net) == pytest.approx(0.1, abs=1e-3)
    assert networks.accuracy(net) > 0.25

"""What a training loop of one's own may report."""

import numpy as np
import pytest

from flwr_fco.strategies import Bounds

pytest.importorskip("torch.optim", reason="needs PyTorch: make test-torch, or pip install torch")
import torch
from problems import clients
from torch import nn

from flwr_fco import FedDualAvg, simulate
from flwr_fco.errors import ClientError, ConfigurationError
from flwr_fco.torch import ClientApp, local_training


@pytest.mark.parametrize("value", [[1.0, 2.0], None, "high", torch.zeros(2)])
def test_a_metric_that_is_no_number_is_named(value):
    app, objectives = ClientApp(), clients()

    @app.train()
    def train(message, context):
        own = objectives[int(context.node_config["partition-id"])]
        net = nn.Linear(own.features.shape[1], 1).double()
        with local_training(message, context, net) as training:
            training.optimizer.zero_grad()
            net(torch.tensor(own.features)).square().mean().backward()
            training.optimizer.step()
        return training.reply({"num-examples": 4, "loss": torch.tensor(0.5), "histogram": value})

    start = {"weight": np.zeros((1, clients()[0].features.shape[1])), "bias": np.zeros(1)}
    strategy = FedDualAvg(client_lr=0.1, bounds=Bounds(own_loops=True), fraction_evaluate=0.0)
    with pytest.raises(ClientError, match=r"the metric 'histogram' is a .*'histogram-0'") as caught:
        simulate(strategy, app, num_nodes=2, num_rounds=1, initial_arrays=start)
    assert isinstance(caught.value.__cause__, ConfigurationError)

"""A hundred thousand nodes in this process, of which only those are made that are used."""

import numpy as np
import pytest
from problems import start_arrays

from flwr_fco.client_apps import client_app
from flwr_fco.core.logs import quiet
from flwr_fco.objectives import LeastSquares
from flwr_fco.regularizers import L1
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import FedDAGT, FedDualAvg, Steps

MANY = 100_000


def load(context):
    rng = np.random.default_rng(int(context.node_config["partition-id"]))
    features = rng.standard_normal((5, 6))
    return LeastSquares(features, features[:, 0])


def strategy(cls, **options):
    return cls(regularizer=L1(0.1), client_lr=0.01, fraction_evaluate=0.0, seed=1, work=Steps(1), **options)


@pytest.mark.parametrize(("cls", "options"), [(FedDualAvg, {}), (FedDAGT, {"tracker_start": "zero"})])
def test_nothing_is_made_for_nodes_that_are_not_asked(cls, options):
    chosen, grid = strategy(cls, fraction_train=10 / MANY, **options), InProcessGrid(client_app(load), MANY)
    with grid.identity(), quiet(50):
        result = chosen.start(grid, start_arrays(), 3)
    assert [metrics["num-replies"] for metrics in result.train_metrics_clientapp.values()] == [10, 10, 10]
    assert 10 < len(grid.contexts) <= 30
    assert grid.states().keys() <= grid.contexts.keys()

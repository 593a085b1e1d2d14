"""A million known nodes cost what is used of them."""

import numpy as np
import pytest

from flwr_fco.client_apps import client_app
from flwr_fco.objectives import LeastSquares
from flwr_fco.regularizers import L1
from flwr_fco.server.clients.nodes import Numbered
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import FedDAGT, FedDualAvg, run_of
from flwr_fco.wire import flower
from flwr_fco.wire.protocol import Node
from tests.problems import app_of, clients, start_arrays

MILLION = 1_000_000


def load(context):
    rng = np.random.default_rng(int(context.node_config["partition-id"]))
    features = rng.standard_normal((5, 6))
    return LeastSquares(features, features[:, 0])


@pytest.mark.parametrize("options", [(FedDualAvg, {}), (FedDAGT, {"tracker_start": "zero"})], ids=["mean", "tracking"])
def test_nothing_is_made_for_nodes_that_are_not_asked(options):
    cls, more = options
    chosen = cls(
        regularizer=L1(0.1), client_lr=0.01, fraction_train=10 / MILLION, fraction_evaluate=0.0, seed=1, **more
    )
    grid = InProcessGrid(client_app(load), MILLION)
    with flower.identity(grid.run_id), flower.quiet(50):
        result = chosen.start(grid, start_arrays(), 3)
    assert [metrics["num-replies"] for metrics in result.train_metrics_clientapp.values()] == [10, 10, 10]
    assert 10 < len(grid.contexts.made) <= 30
    assert len(grid.partition_ids.made) == 0
    assert len(grid.states()) == len(grid.contexts.made)
    assert isinstance(run_of(chosen).nodes.ordered, Numbered)
    if chosen.memories is not None:
        assert len(chosen.memories.members) <= 30
        assert len(chosen.memories.present) == MILLION


def test_a_numbered_list_of_nodes_is_a_list_of_nodes():
    nodes = Numbered(range(2, 7))
    plain = [Node(i + 2, i) for i in range(5)]
    assert list(nodes) == plain
    assert nodes[1:4] == plain[1:4]
    assert nodes[-1] == plain[-1]
    assert plain[2] in nodes
    assert Node(4, 3) not in nodes
    with pytest.raises(IndexError):
        nodes[5]


def test_a_node_that_goes_or_comes_is_seen():
    grid = InProcessGrid(app_of(clients()), 4)
    assert grid.get_node_ids() == range(2, 6)
    context = grid.contexts.pop(3)
    del grid.partition_ids[3]
    assert list(grid.get_node_ids()) == [2, 4, 5]
    assert len(grid.contexts) == 3
    with pytest.raises(KeyError):
        grid.contexts[3]
    grid.contexts[90], grid.partition_ids[90] = context, 1
    assert sorted(grid.get_node_ids()) == [2, 4, 5, 90]
    chosen = FedDualAvg(regularizer=L1(0.1), client_lr=0.02, fraction_evaluate=0.0)
    with flower.identity(grid.run_id), flower.quiet(50):
        chosen.start(grid, start_arrays(), 1)
    assert sorted(run_of(chosen).nodes.ordered) == [(2, 0), (4, 2), (5, 3), (90, 1)]

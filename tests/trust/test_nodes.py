"""Who is asked: partition ids, samples, nodes that come and go."""

import logging

import numpy as np
import pytest
from flwr.clientapp import ClientApp
from problems import Discreet, app_of, clients, flat, run, start_arrays

from flwr_fco.errors import ConfigurationError
from flwr_fco.regularizers import L1
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import Epochs, FedDAGT, FedDualAvg, Participation, Scaffold


def strategy(**options):
    return FedDualAvg(
        **{
            "regularizer": L1(0.3),
            "client_lr": 0.02,
            "work": Epochs(1, batch_size=5),
            "fraction_evaluate": 0.0,
            **options,
        }
    )


class Recording(InProcessGrid):
    """A grid that writes down whom a round asks."""

    def __init__(self, app, num_nodes):
        super().__init__(app, num_nodes)
        self.asked = []

    def uplinks(self, number, tasks):
        self.asked.append([node.partition_id for node, _ in tasks])
        return super().uplinks(number, tasks)


def start_on(grid, chosen, rounds=3):
    with grid.identity():
        return chosen.start(grid, start_arrays(), rounds)


def test_the_handshake_makes_the_order_of_nodes_irrelevant():
    grid = Discreet(app_of(clients()), 4)
    asked = start_on(grid, strategy(fraction_train=0.5), rounds=6)
    known = run(strategy(fraction_train=0.5), clients(), 6)
    assert flat(asked.arrays).tobytes() == flat(known.arrays).tobytes()
    assert grid.questions == 4


def test_what_a_run_waits_for_is_told_once(caplog):
    grid = Discreet(app_of(clients()), 4)
    chosen = strategy(min_available_nodes=5, participation=Participation(node_timeout=0.05))
    with (
        caplog.at_level(logging.INFO, logger="flwr"),
        pytest.raises(ConfigurationError, match=r"only 4 nodes .*min_available_nodes"),
    ):
        start_on(grid, chosen)
    reported = [record.getMessage() for record in caplog.records if "Waiting for nodes" in record.getMessage()]
    assert reported == ["Waiting for nodes to connect: 4 connected, 5 needed; gives up after node_timeout=0.05 seconds"]


def test_without_partition_ids_the_run_says_that_it_is_not_reproducible(caplog):
    inner = app_of(clients())
    app = ClientApp()

    @app.train()
    def train(message, context):
        return inner(message, context)

    grid = Discreet(app, 4, raise_errors=False)
    with caplog.at_level(logging.INFO, logger="flwr"):
        result = start_on(grid, strategy(), rounds=1)
    assert result.train_metrics_clientapp[1]["num-replies"] == 4
    assert "4 of 4 nodes have no partition id" in caplog.text


def test_of_two_nodes_with_one_partition_the_first_takes_part():
    class Twins(InProcessGrid):
        def __init__(self, app, num_nodes):
            super().__init__(app, num_nodes)
            self.partition_ids[5] = self.partition_ids[4]

    for chosen in (strategy(), FedDAGT(fraction_evaluate=0.0), Scaffold(fraction_evaluate=0.0)):
        result = start_on(Twins(app_of(clients()), 4), chosen, rounds=1)
        rows = [row for row in result.left_out if row.round == 1]
        assert [(row.node_id, row.partition_id) for row in rows] == [(5, 2)]
        assert "partition id 2, which node 4 had first" in rows[0].reason
        assert result.train_metrics_clientapp[1]["num-left-out"] == 1


def test_nodes_may_come_and_go():
    class Coming(Recording):
        def get_node_ids(self):
            everybody = list(self.partition_ids)
            return [everybody[:2], everybody, everybody[1:]][len(self.asked)]

    grid = Coming(app_of(clients()), 4)
    assert start_on(grid, strategy()).train_metrics_clientapp[3]["skipped"] == 0
    assert grid.asked == [[0, 1], [0, 1, 2, 3], [1, 2, 3]]


def test_fractions_are_not_rounded_down_by_binary_arithmetic():
    """int(0.29 * 100) is 28."""
    grid = Recording(app_of(clients(sizes=(3,) * 100)), 100)
    start_on(grid, strategy(fraction_train=0.29), rounds=1)
    assert len(grid.asked[0]) == 29


def test_the_sample_is_uniform():
    """Each of 10 nodes is in 3 of 10 samples, up to five standard deviations of a binomial over 600 rounds."""
    grid = Recording(app_of(clients(sizes=(3,) * 10)), 10)
    start_on(grid, strategy(fraction_train=0.3), rounds=600)
    counts = np.bincount(np.concatenate(grid.asked))
    assert np.abs(counts - 180).max() < 5 * np.sqrt(600 * 0.3 * 0.7)


def test_the_summary_is_a_tree_that_says_where_psi_acts(caplog):
    chosen = strategy(client_lr=lambda r: 0.1 / r)
    chosen.prepare(start_arrays())
    with caplog.at_level(logging.INFO, logger="flwr"):
        chosen.summary()
    assert "├──> FedDualAvg settings:" in caplog.text
    assert "L1(strength=0.3, weights=None, bound=None) on coefficients (scope: each)" in caplog.text
    assert "1 epoch(s) in batches of 5" in caplog.text
    assert "Sampling:" in caplog.text

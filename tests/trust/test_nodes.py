"""Who is asked: partition ids, samples, nodes that come and go."""

import numpy as np
from faulty import start_on, strategy
from problems import Discreet, app_of, clients, flat, run

from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import FedDAGT, Scaffold


class Recording(InProcessGrid):
    """A grid that writes down whom a round asks."""

    def __init__(self, app, num_nodes):
        super().__init__(app, num_nodes)
        self.asked = []

    def uplinks(self, number, tasks):
        self.asked.append([node.partition_id for node, _ in tasks])
        return super().uplinks(number, tasks)


def test_the_handshake_makes_the_order_of_nodes_irrelevant():
    grid = Discreet(app_of(clients()), 4)
    asked = start_on(grid, strategy(fraction_train=0.5), rounds=6)
    known = run(strategy(fraction_train=0.5), clients(), 6)
    assert flat(asked.arrays).tobytes() == flat(known.arrays).tobytes()
    assert grid.questions == 4


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

"""Graphs when things go wrong: the trackers' sum stays 0 and the optimum is still found."""

import numpy as np
import pytest
from problems import optimum, problem
from remembering import FAULTS, faulty_run, leave

from flwr_fco.strategies import DFedDAGT, DReFedDAGT, Steps, run_of


def check_graph_sums(strategy, grid, number, metrics):
    trackers = strategy.state.trackers
    here = [m for m in range(len(trackers)) if m not in run_of(strategy).graph.gone]
    assert np.abs(trackers[here].sum(axis=0)).max() <= 1e-10 * max(1e-300, np.abs(trackers).max()), f"round {number}"


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("cls", [DFedDAGT, DReFedDAGT])
def test_on_a_graph_the_trackers_sum_to_zero_and_the_optimum_is_reached(fault, cls):
    graph, rate, num_rounds = {DFedDAGT: ("ring", 0.1, 100), DReFedDAGT: ("complete", 0.2, 50)}[cls]
    strategy = cls(mixing=graph, client_lr=rate, work=Steps(4, batch_size=None))
    w, grid, result = faulty_run(strategy, FAULTS[fault], num_rounds=num_rounds, check=check_graph_sums)
    assert len(grid.injected) >= 3
    assert np.abs(w - optimum(problem(), np.ones(5))).max() <= 1e-8
    assert result.train_metrics_clientapp[num_rounds]["consensus-error"] <= 1e-8


def test_on_a_graph_sampled_nodes_reach_the_optimum():
    strategy = DFedDAGT(mixing="ring", fraction_train=0.6, client_lr=0.05, work=Steps(4, batch_size=None))
    w, _, _ = faulty_run(strategy, None, rounds=(), num_rounds=360, check=check_graph_sums)
    assert np.abs(w - optimum(problem(), np.ones(5))).max() <= 1e-8


@pytest.mark.parametrize(
    ("graph", "partition", "rate", "num_rounds"),
    [("chain", 4, 0.03, 250), ("complete", 0, 0.2, 60), pytest.param("ring", 2, 0.05, 250, marks=pytest.mark.nightly)],
)
def test_a_node_of_the_graph_that_leaves_for_good(graph, partition, rate, num_rounds):
    objectives = problem()
    strategy = DFedDAGT(mixing=graph, client_lr=rate, work=Steps(4, batch_size=None))
    w, _, _ = faulty_run(
        strategy, None, rounds=(), num_rounds=num_rounds, check=check_graph_sums, before=leave(partition)
    )
    rest = [f for m, f in enumerate(objectives) if m != partition]
    assert run_of(strategy).graph.gone == {partition}
    assert np.abs(w - optimum(rest, np.ones(4))).max() <= 1e-8

"""Strategies on graphs, against their matrices and their centralised forms."""

import numpy as np
import pytest
from one_faulty_client import FAULTS, faulty_run, leave
from problems import clients, optimum, problem, run, start_arrays
from tracking import EQUAL, options, relative

from flwr_fco import topology
from flwr_fco.errors import ConfigurationError
from flwr_fco.mirror_maps import PNorm
from flwr_fco.regularizers import L1, Zero
from flwr_fco.strategies import DFedDA, DFedDAGT, DReFedDAGT, FedDA, FedDAGT, ReFedDAGT, Steps, run_of


@pytest.mark.parametrize("cls", [DFedDA, DFedDAGT, DReFedDAGT])
def test_a_graph_may_be_given_by_its_matrix(cls):
    matrix = topology.chain(4).mixing
    for given in (matrix, matrix.tolist(), list(matrix)):
        np.testing.assert_array_equal(cls(mixing=given).prepare(start_arrays()).graph.topology.mixing, matrix)


@pytest.mark.parametrize("psi", [Zero(), L1(0.3)])
@pytest.mark.parametrize("batch_size", [None, 7])
def test_the_complete_graph_is_the_centralised_method(psi, batch_size):
    """U = 11'/M, also with psi and minibatches; unequal work is normalised on both sides."""
    more = options(regularizer=psi, work=Steps(4, batch_size=batch_size), mirror_map=PNorm(3.0), server_lr=0.7)
    for graph, central in [(DFedDAGT, FedDAGT), (DFedDA, FedDA), (DReFedDAGT, ReFedDAGT)]:
        a = graph(mixing="complete", **more)
        b = central(**more)
        run(a, clients(EQUAL), 20)
        run(b, clients(EQUAL), 20)
        assert relative(a.state.dual, np.repeat(b.state.dual[None], 4, axis=0)) <= 1e-10, graph.__name__


def test_the_metrics_name_consensus_and_trackers():
    strategy = DFedDAGT(mixing="ring", **options())
    metrics = run(strategy, clients(EQUAL), 3).train_metrics_clientapp[3]
    points, trackers = strategy.state.dual, strategy.state.trackers
    assert metrics["consensus-error"] == pytest.approx(np.sqrt(((points - points.mean(0)) ** 2).sum() / 4))
    assert metrics["tracker-norm"] == pytest.approx(np.sqrt((trackers**2).sum() / 4))


def test_a_graph_of_another_size_is_refused():
    with pytest.raises(ConfigurationError, match="3 nodes, but 4"):
        run(DFedDA(mixing=topology.chain(3), **options()), clients(EQUAL), 1)


# --- where things go wrong, the trackers' sum stays 0 and the optimum is still found ----------------------------------


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

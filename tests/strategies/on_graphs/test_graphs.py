"""Strategies on graphs, against their matrices and their centralised forms."""

import numpy as np
import pytest
from problems import clients, run, start_arrays
from tracking import EQUAL, options, relative

from flwr_fco import topology
from flwr_fco.errors import ConfigurationError
from flwr_fco.mirror_maps import PNorm
from flwr_fco.regularizers import L1, Zero
from flwr_fco.strategies import DFedDA, DFedDAGT, DReFedDAGT, FedDA, FedDAGT, ReFedDAGT, Steps


@pytest.mark.parametrize("cls", [DFedDA, DFedDAGT, DReFedDAGT])
def test_a_graph_may_be_given_by_its_matrix(cls):
    matrix = topology.chain(4).mixing
    for given in (matrix, matrix.tolist(), list(matrix)):
        np.testing.assert_array_equal(cls(mixing=given).prepare(start_arrays()).graph.topology.mixing, matrix)
    with pytest.raises(ConfigurationError, match="mixing=4 is a int; expected a Topology"):
        cls(mixing=4)
    with pytest.raises(ConfigurationError, match="no array of numbers"):
        cls(mixing=[[0.5, 0.5], [1.0]])


@pytest.mark.parametrize("psi", [Zero(), L1(0.3)])
@pytest.mark.parametrize("batch_size", [None, 7])
def test_the_complete_graph_is_the_centralised_method(psi, batch_size):
    """U = 11'/M, also with psi and minibatches; unequal work is normalised on both sides."""
    more = options(regularizer=psi, work=Steps(4, batch_size=batch_size), mirror_map=PNorm(3.0), server_lr=0.7)
    for graph, central in [(DFedDAGT, FedDAGT), (DFedDA, FedDA), (DReFedDAGT, ReFedDAGT)]:
        a, b = graph(mixing="complete", **more), central(**more)
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

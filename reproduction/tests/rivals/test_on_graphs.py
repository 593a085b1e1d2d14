"""The rivals on graphs, against their matrices and their centralised forms."""

import numpy as np
import pytest
from problems import D, clients, run
from tracking import EQUAL, options, relative

from flwr_fco import topology
from flwr_fco.regularizers import L1
from flwr_fco.strategies import Epochs, FedMid, Scaffold
from reproduction.rivals import DFedMid, DScaffold


@pytest.mark.parametrize("normalize", [True, False])
def test_fed_mid_on_the_complete_graph_is_fed_mid(normalize):
    # Unequal work: psi's weight is the mean of the elapsed times.
    more = options(regularizer=L1(0.3), server_lr=0.7, work=Epochs(1, batch_size=7), normalize_local_work=normalize)
    a, b = DFedMid(**more), FedMid(**more)
    run(a, clients(), 20)
    run(b, clients(), 20)
    assert relative(a.state.primal, np.repeat(b.state.primal[None], 4, axis=0)) <= 1e-12


def test_fed_mid_on_a_chain_is_the_printed_one():
    objectives, mixing = clients(EQUAL), topology.chain(4).mixing
    soft = lambda x, a: np.concatenate([np.sign(x[:-1]) * np.maximum(np.abs(x[:-1]) - a, 0), x[-1:]])  # noqa: E731
    w = np.zeros((4, D))
    for _ in range(15):
        end = w.copy()
        for m, f in enumerate(objectives):
            for _ in range(4):
                end[m] = soft(end[m] - 0.02 * f.gradient(end[m]), 0.3 * 0.02)
        w = np.array([soft(row, 0.3 * 0.02 * 4 * 0.7) for row in mixing @ (w + 0.7 * (end - w))])
    strategy = DFedMid(mixing="chain", regularizer=L1(0.3), **options(server_lr=0.7))
    run(strategy, objectives, 15)
    assert relative(strategy.state.primal, w) <= 1e-12


def test_scaffold_on_the_complete_graph_is_scaffold():
    more = options(regularizer=L1(0.3), server_lr=0.7)
    a, b = DScaffold(mixing="complete", **more), Scaffold(**more)
    run(a, clients(EQUAL), 20)
    run(b, clients(EQUAL), 20)
    assert relative(a.state.dual, np.repeat(b.state.dual[None], 4, axis=0)) <= 1e-10

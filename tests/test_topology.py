"""Graphs and their gossip matrices."""

import math
import re

import networkx
import numpy as np
import pytest
from problems import refused

from flwr_fco import topology
from flwr_fco.topology import Topology, chain, complete, effective_mixing, from_edges, from_graph, ring, star

GRAPHS = [
    *(make(m) for make in topology.TOPOLOGIES.values() for m in (1, 2, 3, 4, 7, 16)),
    *(from_graph(networkx.connected_watts_strogatz_graph(12, 4, 0.5, seed=seed)) for seed in range(4)),
    from_graph(networkx.grid_2d_graph(3, 4, periodic=True)),
]


@pytest.mark.parametrize("graph", GRAPHS)
def test_every_graph_has_a_gossip_matrix_and_its_gap(graph):
    u, m = graph.mixing, graph.num_nodes
    assert (u.dtype, u.flags.writeable, (u >= 0).all()) == (np.float64, False, True)
    assert np.array_equal(u, u.T)
    np.testing.assert_allclose(u.sum(axis=0), 1.0, rtol=0, atol=1e-14)
    assert networkx.is_connected(networkx.from_numpy_array(u))
    sigma = float(np.linalg.norm(u - np.full((m, m), 1 / m), 2))
    assert graph.spectral_gap == pytest.approx(1 - sigma, abs=1e-12)
    decay = math.exp(-1.0 / graph.mixing_time) if graph.mixing_time else 0.0
    assert decay == pytest.approx(sigma, rel=1e-9, abs=1e-12)


def test_closed_forms():
    """Eigenvalues of the chain and the ring, the hub of the star."""
    assert 1 - chain(16).spectral_gap == pytest.approx(1 / 3 + 2 / 3 * math.cos(math.pi / 16))
    assert 1 - ring(16).spectral_gap == pytest.approx(1 / 3 + 2 / 3 * math.cos(2 * math.pi / 16))
    assert (star(8).spectral_gap, complete(5).spectral_gap) == (pytest.approx(1 / 8), 1.0)
    assert chain(16).mixing[0, :3].tolist() == [2 / 3, 1 / 3, 0.0]
    assert chain(2).mixing.tolist() == [[2 / 3, 1 / 3], [1 / 3, 2 / 3]]
    swapping = Topology("swap", [[0.0, 1.0], [1.0, 0.0]])
    assert (swapping.spectral_gap, swapping.mixing_time) == (0.0, math.inf)
    refused("never agree", swapping.theorem_time, 4)


def test_named_graphs_are_those_of_networkx_and_lists_of_edges_too():
    for ours, theirs in ((ring(12), networkx.cycle_graph(12)), (star(12), networkx.star_graph(11))):
        # The nodes of a file of edges are texts.
        assert {from_graph(theirs), from_graph(networkx.relabel_nodes(theirs, str))} == {ours}
    np.testing.assert_allclose(from_graph(networkx.path_graph(6)).mixing, chain(6).mixing, atol=1e-15)
    np.testing.assert_allclose(from_graph(networkx.complete_graph(6)).mixing, complete(6).mixing, atol=1e-15)
    edges = [(0, 1), (1, 2), (2, 0), (2, 3), (3, 2)]
    own = from_edges(edges, np.int8(4))
    assert (own.edges, own.neighbours(2)) == (((0, 1), (0, 2), (1, 2), (2, 3)), (0, 1, 3))
    # Degrees 2, 2, 3, 1.
    assert (own.mixing[0, 1], own.mixing[2, 3]) == (pytest.approx(1 / 3), pytest.approx(1 / 4))
    # Node m is the m-th name; directions and loops do not matter.
    assert from_graph(networkx.DiGraph([("dcba"[3 - i], "dcba"[3 - j]) for i, j in [*edges, (3, 3)]])) == own
    assert own != from_edges(edges[:-2], 3)


def test_disagreement_of_rows():
    rows = np.random.default_rng(0).normal(size=(7, 5))
    spread = np.linalg.norm(rows - rows.mean(axis=0), axis=1)
    assert topology.consensus_error(rows + 3.0) == pytest.approx(math.sqrt((spread**2).mean()))
    assert topology.root_mean_square_norm(rows) == pytest.approx(math.sqrt((rows**2).sum() / 7))


NO_EDGES = ((0, 3), (1, 1), (0, 1, 2), 4)
WRONG = [
    (lambda: Topology("own", np.ones((2, 3))), r"shape \(2, 3\)"),
    (lambda: Topology("own", [[1.0], [0.5, 0.5]]), "no array of numbers"),
    (lambda: Topology("own", [[0.5, np.nan], [0.5, 0.5]]), "weight nan"),
    (lambda: Topology("own", [[1.5, -0.5], [-0.5, 1.5]]), "1.5 between the nodes 0 and 0; expected .* 0 to 1"),
    (lambda: Topology("own", [[0.9, 0.1], [0.2, 0.8]]), "not symmetric"),
    (lambda: Topology("own", [[0.5, 0.4], [0.4, 0.5]]), "node 0 sum to 0.9"),
    (lambda: Topology("own", np.eye(3)), r"3 parts \(0; 1; 2\)"),
    *((lambda own=own: from_edges([own], 3), re.escape(f"edge {own} does not join")) for own in NO_EDGES),
    (lambda: ring(0), "num_nodes=0"),
    (lambda: chain(2.5), "num_nodes=2.5"),
]


@pytest.mark.parametrize(("make", "message"), WRONG)
def test_what_is_no_graph_is_refused_in_words(make, message):
    refused(message, make)


@pytest.mark.parametrize("graph", [g for g in GRAPHS if g.num_nodes > 3])
def test_missing_nodes_keep_to_themselves(graph):
    rng = np.random.default_rng(graph.num_nodes)
    for count in range(graph.num_nodes + 1):
        missing = sorted(rng.permutation(graph.num_nodes)[:count].tolist())
        u = effective_mixing(graph.mixing, missing)
        there = np.delete(np.arange(graph.num_nodes), missing)
        assert np.array_equal(u, u.T)
        assert np.array_equal(u[missing], np.eye(graph.num_nodes)[missing])
        others = np.ix_(there, there)
        expected = graph.mixing[others] + np.diag(graph.mixing[np.ix_(there, missing)].sum(axis=1))
        np.testing.assert_allclose(u[others], expected, rtol=0, atol=1e-14)
    assert effective_mixing(graph.mixing, []) is graph.mixing
    refused("missing=-1; expected numbers of nodes, below", effective_mixing, graph.mixing, {-1})

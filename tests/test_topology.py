"""Graphs and their gossip matrices."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from together import together

from flwr_fco import topology
from flwr_fco.errors import ConfigurationError
from flwr_fco.topology import Topology, check_mixing, effective_mixing, from_edges, from_graph, from_matrix, metropolis

GRAPHS = [
    *(topology.TOPOLOGIES[name](m) for name in topology.TOPOLOGIES for m in (1, 2, 3, 4, 7, 16)),
    *(topology.grid(r, c) for r, c in ((1, 1), (1, 5), (2, 2), (3, 4))),
    *(topology.torus(r, c) for r, c in ((1, 1), (1, 5), (2, 2), (3, 4))),
    *(topology.erdos_renyi(12, 0.3, seed=seed) for seed in range(4)),
]
NAMES = [f"{graph.name}-{graph.num_nodes}" for graph in GRAPHS]


@together("graph", GRAPHS)
def test_every_graph_has_a_gossip_matrix(graph):
    u = graph.mixing
    assert u.dtype == np.float64
    assert np.array_equal(u, u.T)
    assert (u >= 0).all()
    np.testing.assert_allclose(u.sum(axis=0), 1.0, rtol=0, atol=1e-14)
    assert not u.flags.writeable
    linked = np.linalg.matrix_power((u > 0).astype(float) + np.eye(len(u)), len(u))
    assert (linked > 0).all()


@together("graph", GRAPHS)
def test_the_gap_is_how_fast_averaging_agrees(graph):
    u, m = graph.mixing, graph.num_nodes
    sigma = float(np.linalg.norm(u - np.full((m, m), 1 / m), 2))
    assert graph.spectral_gap == pytest.approx(1 - sigma, abs=1e-12)
    if sigma < 1e-12:
        assert graph.mixing_time == 0.0
    else:
        assert math.exp(-1.0 / graph.mixing_time) == pytest.approx(sigma, rel=1e-9)


def test_closed_forms():
    """Eigenvalues of the chain and the ring, the hub of the star; the paper's 0.987."""
    assert 1 - topology.chain(16).spectral_gap == pytest.approx(1 / 3 + 2 / 3 * math.cos(math.pi / 16))
    assert round(1 - topology.chain(16).spectral_gap, 3) == 0.987
    assert 1 - topology.ring(16).spectral_gap == pytest.approx(1 / 3 + 2 / 3 * math.cos(2 * math.pi / 16))
    assert topology.star(8).spectral_gap == pytest.approx(1 / 8)
    assert topology.complete(5).spectral_gap == 1.0
    assert topology.chain(16).mixing[0, :3].tolist() == [2 / 3, 1 / 3, 0.0]


@together(
    ("graph", "node", "expected"),
    [
        (topology.chain(5), 0, {1}),
        (topology.ring(5), 0, {1, 4}),
        (topology.grid(3, 3), 4, {1, 3, 5, 7}),
        (topology.grid(3, 3), 0, {1, 3}),
        (topology.torus(3, 4), 0, {1, 3, 4, 8}),
        (topology.star(5), 0, {1, 2, 3, 4}),
        (topology.complete(4), 2, {0, 1, 3}),
        (topology.exponential(16), 0, {1, 2, 4, 8, 12, 14, 15}),
    ],
)
def test_neighbours(graph, node, expected):
    assert set(graph.neighbours(node)) == expected


def test_random_graphs_are_seeded_and_connected():
    draws = [topology.erdos_renyi(20, 0.2, seed=seed) for seed in (1, 1, 2)]
    assert draws[0] == draws[1]
    assert hash(draws[0]) == hash(draws[1])
    assert draws[0] != draws[2]
    with pytest.raises(ConfigurationError, match="none of 5 random graphs of 30 nodes"):
        topology.erdos_renyi(30, 0.01, attempts=5)


def test_edge_lists_and_graphs():
    edges = [(0, 1), (1, 2), (2, 0), (2, 3), (3, 2)]
    ours = from_edges(edges, 4)
    assert ours.edges == ((0, 1), (0, 2), (1, 2), (2, 3))
    # Degrees 2, 2, 3, 1.
    assert ours.mixing[0, 1] == pytest.approx(1 / 3)
    assert ours.mixing[2, 3] == pytest.approx(1 / 4)
    duck = SimpleNamespace(
        nodes=["d", "b", "a", "c"], edges=[("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("d", "d")]
    )
    assert from_graph(duck) == ours
    with pytest.raises(ConfigurationError, match="no nodes and edges"):
        from_graph([(0, 1)])


def test_networkx_graphs():
    networkx = pytest.importorskip("networkx")
    assert from_graph(networkx.cycle_graph(6)) == topology.ring(6)
    np.testing.assert_allclose(from_graph(networkx.path_graph(6)).mixing, topology.chain(6).mixing, atol=1e-15)
    weights = metropolis(networkx.petersen_graph().edges, 10)
    assert weights[0, 1] == pytest.approx(1 / 4)


def test_the_parts_of_a_graph_are_those_of_networkx():
    networkx = pytest.importorskip("networkx")
    for seed in range(40):
        graph = networkx.gnp_random_graph(2 + seed % 12, 0.12, seed=seed)
        parts = sorted(map(sorted, networkx.connected_components(graph)))
        assert topology._components(networkx.to_numpy_array(graph)) == parts
        if len(parts) > 1:
            with pytest.raises(ConfigurationError, match=f"{len(parts)} parts"):
                from_edges(graph.edges, graph.number_of_nodes())


def test_disagreement_of_rows():
    rows = np.random.default_rng(0).normal(size=(7, 5))
    spread = np.linalg.norm(rows - rows.mean(axis=0), axis=1)
    assert topology.consensus_error(rows) == pytest.approx(math.sqrt((spread**2).mean()))
    assert topology.consensus_error(rows + 3.0) == pytest.approx(topology.consensus_error(rows))
    assert topology.root_mean_square_norm(rows) == pytest.approx(math.sqrt((rows**2).sum() / 7))


@together(
    ("matrix", "message"),
    [
        (np.ones(3), r"shape \(3,\)"),
        (np.ones((2, 3)), r"shape \(2, 3\)"),
        ([[0.5, np.nan], [0.5, 0.5]], "NaN"),
        ([[1.5, -0.5], [-0.5, 1.5]], "-0.5 between the nodes 0 and 1"),
        ([[0.9, 0.1], [0.2, 0.8]], "not symmetric"),
        ([[0.5, 0.4], [0.4, 0.5]], "node 0 sum to 0.9"),
        (np.eye(3), "3 parts"),
        ([[0.5, 0.5, 0, 0], [0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5], [0, 0, 0.5, 0.5]], "2 parts"),
    ],
)
def test_other_matrices_are_refused(matrix, message):
    with pytest.raises(ConfigurationError, match=message):
        check_mixing(matrix)
    with pytest.raises(ConfigurationError, match=message):
        from_matrix(matrix)
    with pytest.raises(ConfigurationError, match=message):
        Topology("own", matrix)


@together(
    ("make", "message"),
    [
        (lambda: topology.ring(0), "num_nodes=0"),
        (lambda: topology.grid(2, 2.5), "columns=2.5"),
        (lambda: from_edges([(0, 3)], 3), r"edge \(0, 3\)"),
        (lambda: from_edges([(1, 1)], 3), r"edge \(1, 1\)"),
        (lambda: from_edges([(0, 1)], 3), "not connected"),
        (lambda: from_edges([(0, 1, 2)], 3), r"edge \(0, 1, 2\) is no pair"),
        (lambda: from_edges([(0.0, 1.0)], 3), r"edge \(0.0, 1.0\) is no pair"),
        (lambda: topology.erdos_renyi(3, 0.0), "probability=0.0"),
        (lambda: topology.erdos_renyi(3, "half"), "probability='half' is a str; expected a number"),
    ],
)
def test_other_graphs_are_refused(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()


@together("graph", [g for g in GRAPHS if g.num_nodes > 3])
def test_missing_nodes_keep_to_themselves(graph):
    rng = np.random.default_rng(graph.num_nodes)
    for count in range(graph.num_nodes + 1):
        missing = rng.permutation(graph.num_nodes)[:count]
        u = effective_mixing(graph.mixing, missing.tolist())
        assert np.array_equal(u, u.T)
        assert (u >= 0).all()
        np.testing.assert_allclose(u.sum(axis=0), 1.0, rtol=0, atol=1e-14)
        for m in range(graph.num_nodes):
            if m in missing:
                assert u[m].tolist() == np.eye(graph.num_nodes)[m].tolist()
            else:
                lost = sum(graph.mixing[m, j] for j in missing)
                assert u[m, m] == pytest.approx(graph.mixing[m, m] + lost)
                for j in set(range(graph.num_nodes)) - set(missing.tolist()) - {m}:
                    assert u[m, j] == graph.mixing[m, j]
    assert effective_mixing(graph.mixing, []) is graph.mixing

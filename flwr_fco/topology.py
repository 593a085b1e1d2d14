"""Topologies: which nodes of a graph communicate, and with which weights.

A gossip matrix U is symmetric and doubly stochastic: row m holds the weights with which node m averages itself and its
neighbours. How fast repeated averaging makes the nodes agree depends on its spectral gap.

Flower has no channel between clients. The decentralised strategies therefore use the server as a relay: it receives
every node's increment, mixes the increments that each node's neighbours would have sent, and sends each node only its
mixture. The relay sees all increments and all duals. A node sees nothing of other nodes but this mixture.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import index
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from flwr_fco.core.validation import AT_LEAST_ONE, CHANCE, checked
from flwr_fco.errors import ConfigurationError

__all__ = [
    "TOPOLOGIES",
    "Mixing",
    "Topology",
    "chain",
    "check_mixing",
    "complete",
    "consensus_error",
    "effective_mixing",
    "erdos_renyi",
    "exponential",
    "from_edges",
    "from_graph",
    "from_matrix",
    "grid",
    "metropolis",
    "mixing_time",
    "ring",
    "root_mean_square_norm",
    "spectral_gap",
    "star",
    "torus",
]

Matrix = NDArray[np.float64]

#: Tolerance for the row and column sums, symmetry and signs of a gossip matrix.
TOLERANCE = 1e-12


@dataclass(frozen=True, eq=False, repr=False)
class Topology:
    """A connected graph with a gossip matrix.

    Parameters
    ----------
    name : str
        Name shown in logs.
    mixing : ndarray of float64, shape (M, M)
        The gossip matrix U: symmetric, doubly stochastic and connected; checked.

    Raises
    ------
    ConfigurationError
        If `mixing` is not a gossip matrix.

    Examples
    --------
    >>> round(1.0 - chain(16).spectral_gap, 3)
    0.987
    >>> complete(4).mixing_time
    0.0
    """

    name: str
    mixing: Matrix

    def __post_init__(self) -> None:
        mixing = check_mixing(self.mixing).copy()
        mixing.flags.writeable = False
        object.__setattr__(self, "mixing", mixing)

    @property
    def num_nodes(self) -> int:
        """Number of nodes, M."""
        return int(self.mixing.shape[0])

    @cached_property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """The pairs (i, j), i < j, with a positive weight."""
        rows, columns = np.nonzero(np.triu(self.mixing, 1))
        return tuple(zip(rows.tolist(), columns.tolist(), strict=True))

    def neighbours(self, node: int) -> tuple[int, ...]:
        """Return the nodes that share an edge with this one."""
        return tuple(int(j) for j in np.flatnonzero(self.mixing[node]) if j != node)

    @cached_property
    def spectral_gap(self) -> float:
        """1 - max(|lambda_2|, |lambda_M|); see :func:`spectral_gap`."""
        return spectral_gap(self.mixing)

    @cached_property
    def mixing_time(self) -> float:
        """Rounds of averaging until the disagreement is divided by e; see :func:`mixing_time`."""
        return mixing_time(self.mixing)

    def theorem_time(self, factor: int) -> float:
        """Return max(1, log(factor M) / (2 log(1/sigma_2))), the tau of Liang, Peng, Zhang's theorems.

        Parameters
        ----------
        factor : int
            4 in theorem B.1 (DFedDA), 8 in theorem B.2 (DFedDA-GT).

        Raises
        ------
        ConfigurationError
            If `factor` is below 1, or the nodes never agree: two groups of them swap their values for ever.

        Examples
        --------
        >>> complete(4).theorem_time(8)
        1.0
        """
        if not 1 <= factor < math.inf:
            raise ConfigurationError(f"factor={factor!r}; expected a number >= 1: the theorems' are 4 and 8")
        if math.isinf(self.mixing_time):
            raise ConfigurationError(
                f"{self}: its nodes never agree, and no rate follows from its mixing time; let nodes keep a part of "
                "their own value, or give client_lr by hand"
            )
        return max(1.0, 0.5 * math.log(factor * self.num_nodes) * self.mixing_time)

    def __str__(self) -> str:
        gap, time = self.spectral_gap, self.mixing_time
        return f"{self.name} of {self.num_nodes} nodes (spectral gap {gap:.3g}, mixing time {time:.3g} rounds)"

    def __repr__(self) -> str:
        return f"Topology({self.name!r}, {self.num_nodes} nodes)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Topology) and np.array_equal(self.mixing, other.mixing)

    def __hash__(self) -> int:
        return hash((self.num_nodes, self.mixing.tobytes()))


#: A gossip matrix, a topology, or the name of one.
Mixing = Topology | NDArray[Any] | Sequence[Sequence[float] | NDArray[Any]] | str


def check_mixing(mixing: ArrayLike) -> Matrix:
    """Check a gossip matrix and return it as float64.

    Parameters
    ----------
    mixing : array of shape (M, M)
        The gossip matrix U.

    Returns
    -------
    ndarray of float64, shape (M, M)
        The same matrix.

    Raises
    ------
    ConfigurationError
        If it is not square, finite, non-negative, symmetric and doubly stochastic (all to 1e-12), or not connected.

    Examples
    --------
    >>> check_mixing([[0.5, 0.5], [0.5, 0.5]]).shape
    (2, 2)
    """
    try:
        matrix = np.asarray(mixing, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"the mixing matrix is no array of numbers ({error}); expected M rows of M weights"
        ) from error
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.shape[0] == 0:
        raise ConfigurationError(f"the mixing matrix has shape {matrix.shape}; expected (M, M), a row for each node")
    if not np.isfinite(matrix).all():
        raise ConfigurationError("the mixing matrix holds NaN or infinite weights; expected weights from 0 to 1")
    if matrix.min() < -TOLERANCE:
        i, j = np.unravel_index(int(matrix.argmin()), matrix.shape)
        raise ConfigurationError(
            f"the mixing matrix has the weight {matrix[i, j]:g} between the nodes {i} and {j}; expected weights >= 0"
        )
    asymmetry = np.abs(matrix - matrix.T)
    if asymmetry.max() > TOLERANCE:
        i, j = np.unravel_index(int(asymmetry.argmax()), matrix.shape)
        raise ConfigurationError(
            f"the mixing matrix is not symmetric: {matrix[i, j]:g} from {j} to {i}, {matrix[j, i]:g} back. "
            "metropolis(edges, M) gives symmetric weights for any graph"
        )
    sums = matrix.sum(axis=1)
    if np.abs(sums - 1.0).max() > TOLERANCE * matrix.shape[0]:
        worst = int(np.abs(sums - 1.0).argmax())
        raise ConfigurationError(
            f"the mixing matrix is not doubly stochastic: the weights of node {worst} sum to {sums[worst]:.12g}. "
            "Give the node itself what is missing, or take metropolis(edges, M)"
        )
    components = _components(matrix)
    if len(components) > 1:
        parts = "; ".join(", ".join(map(str, part[:6])) + (", ..." if len(part) > 6 else "") for part in components[:4])
        raise ConfigurationError(
            f"the graph is not connected: it falls into {len(components)} parts ({parts}), which would never agree. "
            "Add edges between them"
        )
    return matrix


def spectral_gap(mixing: Matrix) -> float:
    """Return 1 - sigma, where sigma = max(|lambda_2|, |lambda_M|) of a symmetric doubly stochastic matrix.

    A round of averaging multiplies the disagreement by at most sigma. The gap is 0 for a graph that is not connected
    (or is bipartite with zero self-weights), and 1 for 11'/M and for a single node.

    Parameters
    ----------
    mixing : ndarray, shape (M, M)
        The gossip matrix U.

    Examples
    --------
    >>> round(spectral_gap(ring(4).mixing), 3)
    0.667
    """
    if mixing.shape[0] == 1:
        return 1.0
    values = np.linalg.eigvalsh(mixing)
    gap = 1.0 - float(max(abs(values[0]), abs(values[-2])))
    return min(1.0, 0.0 if gap < TOLERANCE else (1.0 if gap > 1.0 - TOLERANCE else gap))


def mixing_time(mixing: Matrix) -> float:
    """Return 1/log(1/sigma): the rounds of averaging that divide the disagreement by e.

    Parameters
    ----------
    mixing : ndarray, shape (M, M)
        The gossip matrix U.

    Returns
    -------
    float
        0 if the nodes agree after one round (11'/M); inf if they never do.

    Examples
    --------
    >>> round(mixing_time(ring(4).mixing), 2)
    0.91
    """
    sigma = 1.0 - spectral_gap(mixing)
    if sigma >= 1.0:
        return math.inf
    return 0.0 if sigma <= 0.0 else 1.0 / math.log(1.0 / sigma)


def effective_mixing(mixing: Matrix, missing: Collection[int]) -> Matrix:
    """Return the gossip matrix of a round in which some nodes do not take part.

    A missing node keeps its value; each neighbour moves the missing node's weight to itself. The result is again
    symmetric and doubly stochastic. The graph of the remaining nodes need not be connected.

    Parameters
    ----------
    mixing : ndarray, shape (M, M)
        The gossip matrix U.
    missing : collection of int
        Numbers of the nodes.

    Returns
    -------
    ndarray, shape (M, M)
        `mixing` itself if no node is missing.

    Examples
    --------
    >>> effective_mixing(chain(3).mixing, [2]).round(2).tolist()
    [[0.67, 0.33, 0.0], [0.33, 0.67, 0.0], [0.0, 0.0, 1.0]]
    """
    absent = np.array(sorted(set(missing)), dtype=np.int64)
    if absent.size == 0:
        return mixing
    matrix = mixing.copy()
    diagonal = np.arange(matrix.shape[0])
    matrix[diagonal, diagonal] += matrix[:, absent].sum(axis=1)
    matrix[absent, :] = 0.0
    matrix[:, absent] = 0.0
    matrix[absent, absent] = 1.0
    return matrix


def root_mean_square_norm(rows: ArrayLike) -> float:
    """Return sqrt(mean over rows of ||row||_2^2), for example the size of M clients' trackers.

    Parameters
    ----------
    rows : array-like of shape (M, d)
        A vector per row.

    Examples
    --------
    >>> root_mean_square_norm([[3.0, 4.0], [0.0, 5.0]])
    5.0
    """
    matrix = np.asarray(rows, dtype=np.float64)
    return math.sqrt(float(np.vdot(matrix, matrix)) / matrix.shape[0])


def consensus_error(rows: ArrayLike) -> float:
    """Return sqrt(mean over rows of ||row - mean row||_2^2): how far M nodes are from agreeing.

    Parameters
    ----------
    rows : array-like of shape (M, d)
        The nodes' duals or primal points.

    Examples
    --------
    >>> consensus_error([[1.0, 0.0], [3.0, 0.0]])
    1.0
    """
    matrix = np.asarray(rows, dtype=np.float64)
    return root_mean_square_norm(matrix - matrix.mean(axis=0))


def metropolis(edges: Iterable[tuple[int, int]], num_nodes: int) -> Matrix:
    """Return Metropolis weights: 1/(1 + max(degree_i, degree_j)) on an edge, the rest on the diagonal.

    Parameters
    ----------
    edges : iterable of pairs of int
        Nodes are numbered from 0; direction and repetition do not matter; self-loops raise an error.
    num_nodes : int
        M.

    Returns
    -------
    ndarray of float64, shape (M, M)
        Symmetric and doubly stochastic for every graph.

    Examples
    --------
    >>> metropolis([(0, 1), (1, 2)], 3).round(3).tolist()
    [[0.667, 0.333, 0.0], [0.333, 0.333, 0.333], [0.0, 0.333, 0.667]]
    """
    num_nodes = _count("num_nodes", num_nodes)
    linked = np.zeros((num_nodes, num_nodes), dtype=np.bool_)
    for i, j in map(_pair, edges):
        if not (0 <= i < num_nodes and 0 <= j < num_nodes) or i == j:
            raise ConfigurationError(
                f"the edge ({i}, {j}) does not join two different nodes of 0 .. {num_nodes - 1}; a node's weight on "
                "itself is what its edges leave"
            )
        linked[i, j] = linked[j, i] = True
    degrees = linked.sum(axis=1)
    weights = np.where(linked, 1.0 / (1.0 + np.maximum.outer(degrees, degrees)), 0.0)
    diagonal = np.arange(num_nodes)
    weights[diagonal, diagonal] = 1.0 - weights.sum(axis=1)
    return weights


def from_matrix(mixing: ArrayLike, name: str = "matrix") -> Topology:
    """Check a gossip matrix and return its topology.

    Parameters
    ----------
    mixing : array of shape (M, M)
        The gossip matrix U.
    name : str, default "matrix"
        The topology's name.

    Examples
    --------
    >>> from_matrix([[0.5, 0.5], [0.5, 0.5]]).num_nodes
    2
    """
    return Topology(name, check_mixing(mixing))


def from_edges(edges: Iterable[tuple[int, int]], num_nodes: int, name: str = "edges") -> Topology:
    """Return a graph with Metropolis weights.

    Parameters
    ----------
    edges : iterable of pairs of int
        Nodes are numbered from 0.
    num_nodes : int
        M, the number of nodes.
    name : str, default "edges"
        The topology's name.

    Raises
    ------
    ConfigurationError
        If an edge joins a node that does not exist, or the graph is not connected.

    Examples
    --------
    >>> from_edges([(0, 1), (1, 2)], 3).neighbours(1)
    (0, 2)
    """
    return Topology(name, metropolis(edges, num_nodes))


def from_graph(graph: Any, name: str = "graph") -> Topology:
    """Return the topology of a networkx graph, with Metropolis weights.

    Parameters
    ----------
    graph : networkx.Graph
        Or any object with ``nodes`` and ``edges``. Node m of the federation is the m-th of ``graph.nodes``, sorted if
        they can be sorted. Directions, weights and self-loops are ignored.
    name : str, default "graph"
        The topology's name.

    Raises
    ------
    ConfigurationError
        If the object has no nodes and edges, or the graph is not connected.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> print(from_graph(SimpleNamespace(nodes=["a", "b"], edges=[("a", "b")])).edges)
    ((0, 1),)
    """
    if not (hasattr(graph, "nodes") and hasattr(graph, "edges")):
        raise ConfigurationError(f"{graph!r} has no nodes and edges; expected a networkx graph, or use from_edges")
    nodes = list(graph.nodes)
    try:
        nodes.sort()
    except TypeError:
        nodes = list(graph.nodes)
    number = {node: m for m, node in enumerate(nodes)}
    return from_edges(_without_loops((number[edge[0]], number[edge[1]]) for edge in graph.edges), len(nodes), name)


def chain(num_nodes: int) -> Topology:
    """Return a path with the paper's weights: 1/3 on the three diagonals, 2/3 at the two corners.

    Parameters
    ----------
    num_nodes : int
        M. (For M = 2 the weights are 2/3 and 1/3; for M = 1 there is nothing to mix.)

    References
    ----------
    Liang, Peng, Zhang: Gradient tracking for high dimensional federated optimization, section 7. These are also the
    Metropolis weights for M >= 3.

    Examples
    --------
    >>> (chain(3).mixing * 3).round(12).tolist()
    [[2.0, 1.0, 0.0], [1.0, 1.0, 1.0], [0.0, 1.0, 2.0]]
    """
    num_nodes = _count("num_nodes", num_nodes)
    if num_nodes == 1:
        return Topology("chain", np.ones((1, 1)))
    weights = np.zeros((num_nodes, num_nodes))
    steps = np.arange(num_nodes)
    weights[steps, steps] = 1.0 / 3.0
    weights[steps[1:], steps[:-1]] = weights[steps[:-1], steps[1:]] = 1.0 / 3.0
    weights[0, 0] = weights[-1, -1] = 2.0 / 3.0
    return Topology("chain", weights)


def ring(num_nodes: int) -> Topology:
    """Return a cycle with Metropolis weights: 1/3 on each node itself and on each neighbour.

    Parameters
    ----------
    num_nodes : int
        M, the number of nodes.

    Examples
    --------
    >>> ring(5).neighbours(0)
    (1, 4)
    """
    num_nodes = _count("num_nodes", num_nodes)
    return from_edges(_without_loops((m, (m + 1) % num_nodes) for m in range(num_nodes)), num_nodes, "ring")


def grid(rows: int, columns: int) -> Topology:
    """Return a rectangular grid, each node linked to its horizontal and vertical neighbours; Metropolis weights.

    Parameters
    ----------
    rows, columns : int
        Node (i, j) has the number i * columns + j.

    Examples
    --------
    >>> grid(2, 3).neighbours(1)
    (0, 2, 4)
    """
    rows, columns = _count("rows", rows), _count("columns", columns)
    edges = [(i * columns + j, i * columns + j + 1) for i in range(rows) for j in range(columns - 1)]
    edges += [(i * columns + j, (i + 1) * columns + j) for i in range(rows - 1) for j in range(columns)]
    return from_edges(edges, rows * columns, "grid")


def torus(rows: int, columns: int) -> Topology:
    """Return a rectangular grid with opposite sides joined; Metropolis weights.

    Parameters
    ----------
    rows, columns : int
        Node (i, j) has the number i * columns + j.

    Examples
    --------
    >>> torus(3, 3).neighbours(0)
    (1, 2, 3, 6)
    """
    rows, columns = _count("rows", rows), _count("columns", columns)
    nodes = [(i, j) for i in range(rows) for j in range(columns)]
    edges = [(i * columns + j, i * columns + (j + 1) % columns) for i, j in nodes]
    edges += [(i * columns + j, (i + 1) % rows * columns + j) for i, j in nodes]
    return from_edges(_without_loops(edges), rows * columns, "torus")


def star(num_nodes: int) -> Topology:
    """Return a hub, node 0, linked to all others; Metropolis weights, 1/M on each edge.

    Parameters
    ----------
    num_nodes : int
        M, the number of nodes.

    Examples
    --------
    >>> star(4).neighbours(2)
    (0,)
    """
    num_nodes = _count("num_nodes", num_nodes)
    return from_edges([(0, m) for m in range(1, num_nodes)], num_nodes, "star")


def complete(num_nodes: int) -> Topology:
    """Return the complete graph: U = 11'/M, the centralised method.

    Parameters
    ----------
    num_nodes : int
        M, the number of nodes.

    Examples
    --------
    >>> complete(4).mixing[0].tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    num_nodes = _count("num_nodes", num_nodes)
    return Topology("complete", np.full((num_nodes, num_nodes), 1.0 / num_nodes))


def exponential(num_nodes: int) -> Topology:
    """Return the exponential graph: node m is linked to m +- 1, 2, 4, 8, ... (modulo M); Metropolis weights.

    Parameters
    ----------
    num_nodes : int
        M, the number of nodes.

    Examples
    --------
    >>> exponential(8).neighbours(0)
    (1, 2, 4, 6, 7)
    """
    num_nodes = _count("num_nodes", num_nodes)
    hops = [2**k for k in range(max(1, (num_nodes - 1).bit_length())) if 2**k < num_nodes]
    edges = ((m, (m + hop) % num_nodes) for m in range(num_nodes) for hop in hops)
    return from_edges(_without_loops(edges), num_nodes, "exponential")


def erdos_renyi(num_nodes: int, probability: float, *, seed: int = 0, attempts: int = 1000) -> Topology:
    """Return a connected random graph in which each edge exists with a given probability; Metropolis weights.

    Parameters
    ----------
    num_nodes : int
        M, the number of nodes.
    probability : float
        Probability of each edge, 0 < probability <= 1. Well above log(M)/M, almost every draw is connected.
    seed : int, default 0
        The same seed gives the same graph.
    attempts : int, default 1000
        Maximum number of draws.

    Raises
    ------
    ConfigurationError
        If no draw is connected.

    Examples
    --------
    >>> erdos_renyi(10, 0.4, seed=1) == erdos_renyi(10, 0.4, seed=1)
    True
    """
    num_nodes = _count("num_nodes", num_nodes)
    checked("probability", probability, float, CHANCE)
    rng = np.random.default_rng(seed)
    for _ in range(attempts):
        drawn = np.triu(rng.random((num_nodes, num_nodes)) < probability, 1)
        if len(_components(drawn + drawn.T + 0.0)) == 1:
            rows, columns = np.nonzero(drawn)
            return from_edges(zip(rows.tolist(), columns.tolist(), strict=True), num_nodes, "Erdos-Renyi")
    raise ConfigurationError(
        f"none of {attempts} random graphs of {num_nodes} nodes with probability {probability:g} is connected; "
        f"take at least about log(M)/M = {math.log(max(2, num_nodes)) / num_nodes:.2g}"
    )


#: Topologies determined by the number of nodes, by name.
TOPOLOGIES: dict[str, Callable[[int], Topology]] = {f.__name__: f for f in (chain, complete, exponential, ring, star)}


def _components(weights: NDArray[Any]) -> list[list[int]]:
    """Return the connected components of the graph of positive weights."""
    count, labels = connected_components(csr_array(weights > 0.0), directed=False)
    return [np.flatnonzero(labels == label).tolist() for label in range(count)]


def _without_loops(edges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    return [(i, j) for i, j in edges if i != j]


def _pair(edge: Any) -> tuple[int, int]:
    """Return the two ends of an edge as Python integers."""
    try:
        i, j = map(index, edge)
    except (TypeError, ValueError):
        raise ConfigurationError(
            f"the edge {edge!r} is no pair of whole numbers; expected two nodes, such as (0, 1)"
        ) from None
    return i, j


def _count(name: str, value: int) -> int:
    """Return a number of nodes as a Python integer, because small NumPy integers would overflow in later arithmetic."""
    return int(checked(name, value, int, AT_LEAST_ONE))

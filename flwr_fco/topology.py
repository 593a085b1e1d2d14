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
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse.csgraph import connected_components

from flwr_fco.core.validation import AT_LEAST_ONE, checked
from flwr_fco.errors import ConfigurationError, in_words

__all__ = ["TOPOLOGIES", "Mixing", "Topology", "chain", "complete", "consensus_error", "effective_mixing"]
__all__ += ["from_edges", "from_graph", "ring", "root_mean_square_norm", "star"]

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
    mixing : array-like of float, shape (M, M)
        The gossip matrix U.

    Raises
    ------
    ConfigurationError
        If `mixing` is not square, finite, non-negative, symmetric and doubly stochastic (all to 1e-12), or the graph is
        not connected.

    Examples
    --------
    >>> round(1.0 - chain(16).spectral_gap, 3)
    0.987
    >>> Topology("pair", [[0.5, 0.5], [0.5, 0.5]]).mixing_time
    0.0
    """

    name: str
    mixing: Matrix

    def __post_init__(self) -> None:
        with in_words("the mixing matrix is no array of numbers; expected M rows of M weights", ConfigurationError):
            mixing = np.array(self.mixing, dtype=np.float64)
        objection = _objection(mixing)
        if objection:
            raise ConfigurationError(f"the mixing matrix {objection}")
        mixing.flags.writeable = False
        object.__setattr__(self, "mixing", mixing)

    @property
    def num_nodes(self) -> int:
        """Number of nodes, M."""
        return len(self.mixing)

    @cached_property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """The pairs (i, j), i < j, with a positive weight."""
        return tuple((i, j) for i, j in np.argwhere(np.triu(self.mixing, 1)).tolist())

    def neighbours(self, node: int) -> tuple[int, ...]:
        """Return the nodes that share an edge with this one."""
        return tuple(j for j in np.flatnonzero(self.mixing[node]).tolist() if j != node)

    @cached_property
    def spectral_gap(self) -> float:
        """1 - sigma, where sigma = max(|lambda_2|, |lambda_M|): averaging multiplies disagreement by at most sigma.

        It is 0 for a bipartite graph with zero self-weights, and 1 for 11'/M.
        """
        gap = 1.0 - float(np.sort(np.abs(np.linalg.eigvalsh(self.mixing)))[:-1].max(initial=0.0))
        return 0.0 if gap < TOLERANCE else 1.0 if gap > 1.0 - TOLERANCE else gap

    @cached_property
    def mixing_time(self) -> float:
        """1/log(1/sigma): rounds of averaging that divide the disagreement by e; 0 after one round, inf if never."""
        sigma = 1.0 - self.spectral_gap
        if sigma in (0.0, 1.0):
            return math.inf if sigma else 0.0
        return 1.0 / math.log(1.0 / sigma)

    def theorem_time(self, factor: int) -> float:
        """Return max(1, log(factor M) / (2 log(1/sigma_2))), the tau of Liang, Peng, Zhang's theorems.

        Parameters
        ----------
        factor : int
            4 in theorem B.1 (DFedDA), 8 in theorem B.2 (DFedDA-GT).

        Raises
        ------
        ConfigurationError
            If the nodes never agree: two groups of them swap their values for ever.

        Examples
        --------
        >>> complete(4).theorem_time(8)
        1.0
        """
        if math.isinf(self.mixing_time):
            raise ConfigurationError(f"{self}: its nodes never agree; let them keep part of theirs, or give client_lr")
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


def _objection(mixing: Matrix) -> str:
    """Return what a matrix lacks to be a gossip matrix of a connected graph, and what to do; or nothing."""
    if mixing.ndim != 2 or mixing.shape[0] != mixing.shape[1] or not mixing.size:
        return f"has shape {mixing.shape}; expected (M, M), a row for each node"
    i, j = np.unravel_index(int(np.abs(mixing - 0.5).argmax()), mixing.shape)
    if not -TOLERANCE <= mixing[i, j] <= 1.0 + TOLERANCE * len(mixing):
        return f"has the weight {mixing[i, j]:g} between the nodes {i} and {j}; expected weights from 0 to 1"
    instead = "from_edges(edges, M) gives weights for any graph"
    asymmetry = np.abs(mixing - mixing.T)
    i, j = np.unravel_index(int(asymmetry.argmax()), mixing.shape)
    if asymmetry[i, j] > TOLERANCE:
        return f"is not symmetric: {mixing[i, j]:g} from {j} to {i}, {mixing[j, i]:g} back. {instead}"
    sums = mixing.sum(axis=1)
    worst = int(np.abs(sums - 1.0).argmax())
    if abs(sums[worst] - 1.0) > TOLERANCE * len(mixing):
        return f"is not doubly stochastic: the weights of node {worst} sum to {sums[worst]:.12g}. {instead}"
    count, labels = connected_components(mixing > 0.0)
    if count > 1:
        parts = "; ".join(", ".join(map(str, np.flatnonzero(labels == part)[:6])) for part in range(min(count, 4)))
        return f"is of {count} parts ({parts}) that are not connected and would never agree. Add edges between them"
    return ""


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
    node = {"range": (range(len(mixing)).__contains__, f"numbers of nodes, below {len(mixing)}")}
    absent = sorted({checked("missing", each, int, node) for each in missing})
    if not absent:
        return mixing
    matrix = mixing + np.diag(mixing[:, absent].sum(axis=1))
    matrix[absent] = matrix[:, absent] = 0.0
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
    return math.sqrt(float(np.vdot(matrix, matrix)) / len(matrix))


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


def from_edges(edges: Iterable[tuple[int, int]], num_nodes: int, name: str = "edges") -> Topology:
    """Return a graph with Metropolis weights: 1/(1 + max(degree_i, degree_j)) on an edge, the rest on the diagonal.

    Parameters
    ----------
    edges : iterable of pairs of int
        Nodes are numbered from 0; direction and repetition do not matter.
    num_nodes : int
        M, the number of nodes.
    name : str, default "edges"
        The topology's name.

    Raises
    ------
    ConfigurationError
        If an edge does not join two different nodes, or the graph is not connected.

    Examples
    --------
    >>> from_edges([(0, 1), (1, 2)], 3).neighbours(1)
    (0, 2)
    """
    num_nodes = _count(num_nodes)
    linked = np.zeros((num_nodes, num_nodes), dtype=np.bool_)
    for edge in edges:
        ends = tuple(edge) if isinstance(edge, Iterable) else ()
        known = all(isinstance(end, int | np.integer) and 0 <= end < num_nodes for end in ends)
        if not known or len(ends) != 2 or ends[0] == ends[1]:
            prefix = f"the edge {edge!r} does not join two different nodes of 0 .. {num_nodes - 1}, as (0, 1) does"
            raise ConfigurationError(f"{prefix}. A node's weight on itself is what its edges leave")
        linked[ends] = linked[ends[::-1]] = True
    degrees = linked.sum(axis=1)
    weights = np.where(linked, 1.0 / (1.0 + np.maximum.outer(degrees, degrees)), 0.0)
    return Topology(name, weights + np.diag(1.0 - weights.sum(axis=1)))


def from_graph(graph: Any, name: str = "graph") -> Topology:
    """Return the topology of a networkx graph, with Metropolis weights.

    Parameters
    ----------
    graph : networkx.Graph
        Or any object with ``nodes`` and ``edges``. Node m of the federation is the m-th of ``graph.nodes``, sorted if
        they can be sorted; texts of numbers, as of files, as numbers. Directions, weights and self-loops are ignored.
    name : str, default "graph"
        The topology's name.

    Raises
    ------
    ConfigurationError
        If the graph is not connected.

    Examples
    --------
    >>> import networkx
    >>> from_graph(networkx.grid_2d_graph(2, 3, periodic=True)).num_nodes
    6
    """
    nodes = list(graph.nodes)
    for order in (None, int):
        with suppress(TypeError, ValueError):  # Numbers beside texts have no order.
            nodes = sorted(nodes, key=order)
    number = {node: m for m, node in enumerate(nodes)}
    pairs = [(number[edge[0]], number[edge[1]]) for edge in graph.edges]
    return from_edges([(i, j) for i, j in pairs if i != j], len(nodes), name)


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
    num_nodes = _count(num_nodes)
    weights = (np.eye(num_nodes, k=-1) + np.eye(num_nodes) + np.eye(num_nodes, k=1)) / 3.0
    weights[[0, -1], [0, -1]] = 2.0 / 3.0 if num_nodes > 1 else 1.0
    return Topology("chain", weights)


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
    return Topology("complete", np.full((_count(num_nodes), num_nodes), 1.0 / num_nodes))


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
    # One node has no edge to itself.
    return from_edges([(m, (m + 1) % num_nodes) for m in range(_count(num_nodes)) if num_nodes > 1], num_nodes, "ring")


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
    return from_edges([(0, m) for m in range(1, _count(num_nodes))], num_nodes, "star")


#: Topologies determined by the number of nodes, by name; networkx has others, for :func:`from_graph`.
TOPOLOGIES: dict[str, Callable[[int], Topology]] = {f.__name__: f for f in (chain, complete, ring, star)}


def _count(num_nodes: int) -> int:
    """Return a number of nodes as a Python integer, because small NumPy integers would overflow in later arithmetic."""
    return int(checked("num_nodes", num_nodes, int, AT_LEAST_ONE))

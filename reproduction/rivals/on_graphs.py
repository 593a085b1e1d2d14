"""Rivals on a graph: federated mirror descent, and SCAFFOLD with gossip in the place of the server's mean.

DFedMid of Liang, Peng, Zhang, 'Gradient tracking for high dimensional federated optimization', section 7; rows of a
matrix are nodes, U is the gossip matrix::

    each node takes proximal steps primal <- retrieve(grad h(primal) - client_lr g, client_lr); then
        primal <- retrieve(U (grad h(primal_0) + server_lr increment), server_lr elapsed of the round)

It has no box in the paper: this is the method of its authors' public code. It applies psi in the local steps and again
after mixing, so it solves the problem with twice a finite psi, as FedMid does; ``server_prox=False`` counts it once.

Differs from the code in: 1. the server stands for the edges, as in the library's methods on a graph; 2. nodes with more
steps do not weigh more (``normalize_local_work``); 3. the second proximal map acts after mixing in the dual, which
agrees with the code in the Euclidean geometry.

DScaffold is ``DFedDAGT`` with trackers that start at 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flwr_fco.algorithms import Change, Downlink, MirrorDescent, Problem, Replies, To
from flwr_fco.objectives import Vector
from flwr_fco.strategies import DFedDAGT, StepStrategy, strategy
from flwr_fco.topology import Mixing, consensus_error

Matrix = NDArray[np.float64]


class PrimalGraphState(NamedTuple):
    """State of a method on a graph that mixes primal points; rows are nodes.

    Parameters
    ----------
    primal : ndarray of float64, shape (M, d)
        The nodes' points W. One row until the number of nodes is known.
    round : int
        Number of successful rounds, r.
    """

    primal: Matrix
    round: int = 0

    def with_rows(self, count: int) -> PrimalGraphState:
        """Return the state with a row for each node."""
        known = len(self.primal) == count
        return self if known else self._replace(primal=np.repeat(self.primal, count, axis=0))


@dataclass(frozen=True, kw_only=True)
class DecentralizedMirrorDescent(MirrorDescent):
    """Mirror descent over a graph: local proximal steps, mixing of primal points, and a proximal step.

    Parameters
    ----------
    client_prox, server_prox : bool, default True
        Where psi acts.

    References
    ----------
    Liang, Peng, Zhang: Gradient tracking for high dimensional federated optimization, section 7.
    """

    name = "decentralized_mirror_descent"
    reads = "rows"

    normalize_local_work: bool = True

    def init(self, problem: Problem, primal: Vector) -> PrimalGraphState:
        """Return the state before round 1: every node at the start point."""
        problem.h.gradient(primal)  # raises where the map has no gradient, before any node starts there
        return PrimalGraphState(primal[None, :]).with_rows(_graph(problem).num_rows)

    def downlink(self, problem: Problem, state: PrimalGraphState, to: To | None) -> Downlink:
        """Return a node's own point."""
        row = 0 if to is None else _graph(problem).rows[to.key]
        return Downlink(problem.plan, {"primal": state.primal[row]}, problem.client_lr)

    def aggregate(self, problem: Problem, state: Any, replies: Replies) -> Any:
        """Return W = retrieve(U (grad h(W) + server_lr increments), server_lr elapsed), row by row."""
        graph = _graph(problem)
        h = problem.h
        server_lr = problem.server_lr
        rows, mixing = graph.rows_of(replies)
        state = state.with_rows(len(mixing))
        increments, elapsed = graph.increments(replies, rows, normalize=self.normalize_local_work)
        duals = mixing @ (np.array([h.gradient(point) for point in state.primal]) + server_lr * increments)
        weights = server_lr * (mixing @ elapsed)
        point = problem.retrieve if self.server_prox else lambda dual, _: h.conjugate_gradient(dual)
        primal = state.primal.copy()
        for row in rows:
            primal[row] = point(duals[row], float(weights[row]))
        return PrimalGraphState(primal, state.round + 1)

    def retrieve(self, problem: Problem, state: PrimalGraphState) -> Vector:
        """Return the mean of the connected nodes' points, taken in the dual."""
        duals = np.array([problem.h.gradient(point) for point in _graph(problem).here(state.primal)])
        return problem.h.conjugate_gradient(duals.mean(axis=0))

    def node_points(self, problem: Problem, state: PrimalGraphState) -> Matrix:
        """Return the primal points of all nodes, shape (M, d), in the order of their rows."""
        return np.array(state.primal)

    def restart(self, problem: Problem, state: PrimalGraphState, change: Change) -> PrimalGraphState:
        """Return the state with a row for each node."""
        return state.with_rows(_graph(problem).num_rows)

    def metrics(self, problem: Problem, state: PrimalGraphState) -> dict[str, Any]:
        """Return the nodes' disagreement."""
        return {"consensus-error": consensus_error(_graph(problem).here(state.primal))}


def _graph(problem: Problem) -> Any:
    """Return the graph, which these methods always have."""
    assert problem.graph is not None
    return problem.graph


@strategy
class DFedMid(StepStrategy):
    """Federated mirror descent on a graph: local proximal steps, mixing of primal points, and a proximal step.

    Parameters
    ----------
    client_prox, server_prox : bool, default True
        Where psi acts; with both, as printed, psi counts twice.

    References
    ----------
    Liang, Peng, Zhang: Gradient tracking for high dimensional federated optimization, section 7; Yuan, Zaheer, Reddi:
    Federated Composite Optimization (ICML 2021), algorithm 2.

    Examples
    --------
    >>> DFedMid(mixing="ring").server_prox
    True
    """

    algorithm = DecentralizedMirrorDescent
    theory = "1/(tau L K)"
    mixing: Mixing = "complete"
    weighting: Literal["uniform"] = "uniform"
    client_prox: bool = True
    server_prox: bool = True


@strategy
class DScaffold(DFedDAGT):
    """SCAFFOLD on a graph: :class:`DFedDAGT` with trackers that start at 0, in the Euclidean geometry by default.

    psi and other mirror maps are extensions: SCAFFOLD has none.

    References
    ----------
    Karimireddy and others: SCAFFOLD (ICML 2020), with gossip instead of the server's mean.

    Examples
    --------
    >>> DScaffold(mixing="ring").weighting
    'uniform'
    """

    tracker_start: Literal["gradient", "zero"] = field(init=False, default="zero")

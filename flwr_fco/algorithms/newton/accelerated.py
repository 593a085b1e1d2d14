"""Accelerated proximal gradient with restarts: the Newton method's exchanges, without a block of the Hessian.

At the point y the clients send loss and gradient; x_{k+1} = prox(y_k - g_k / L; 1/L), and the next exchange is about

    y_{k+1} = x_{k+1} + (t_k - 1) / t_{k+1} (x_{k+1} - x_k),    t_{k+1} = (1 + sqrt(1 + 4 t_k^2)) / 2

with t = 1 again where <y_k - x_{k+1}, x_{k+1} - x_k> > 0. L begins at sum_m p_m L_m, a bound for the pooled loss that
is several times too large where sites differ, and follows the curvature ||g_{k+1} - g_k|| / ||y_{k+1} - y_k|| that the
exchanges have seen: down by a factor each, up at once. The model is the best point that was asked about, so its
objective and its lower bound are known; after 30 exchanges without a better one, the next one is about it again, with
twice the L.

References: Beck, Teboulle: A fast iterative shrinkage-thresholding algorithm (SIAM J. Imaging Sci. 2009). O'Donoghue,
Candes: Adaptive restart for accelerated gradient schemes (Found. Comput. Math. 2015), the gradient scheme.

Differs from the papers in: 1. L from the curvature along the way instead of a backtracking line search, whose trials
would be exchanges of their own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from flwr_fco.algorithms.contract import (
    Client,
    Downlink,
    Memory,
    Moved,
    Option,
    Problem,
    Replies,
    To,
    Uplink,
    Vector,
)
from flwr_fco.algorithms.contract.problem import LARGEST_CLAIM
from flwr_fco.algorithms.newton.exchange import (
    UNKNOWN,
    CertifiedMethod,
    check_facts,
    check_first,
    check_terms,
    feasible_start,
    first_shapes,
    handed_out,
    heard,
    progress,
)
from flwr_fco.algorithms.newton.terms import (
    FACTS_OF_LOSS,
    TERMS,
    evaluation_terms,
    first_terms,
    reference_size,
    short,
)
from flwr_fco.core.sparse import dense
from flwr_fco.errors import ConfigurationError, ProtocolError
from flwr_fco.objectives.base import Objective, probed_curvature

#: By what L falls in an exchange, at most, and exchanges without a better point until it doubles.
_FALL, _PATIENCE = 0.9, 30
#: Rounding error of an objective, relative to its size.
_EPSILON = 1e-15


class AcceleratedState(NamedTuple):
    """State of the accelerated proximal gradient method.

    Parameters
    ----------
    point : ndarray of float64, shape (d,)
        The best point that was asked about.
    trial : ndarray of float64, shape (d,)
        y, the point that the clients are asked about next.
    previous : ndarray of float64, shape (d,)
        x, the last proximal point.
    asked, gradient : ndarray of float64, shape (d,)
        The point of the last exchange, and the pooled loss's gradient there.
    columns, targets : ndarray of float64, shape (d,)
        A'1/n and A'y/n of the pooled data.
    facts : ndarray of float64, shape (5,)
        What the clients' losses agree on; -1 each if they do not.
    references : ndarray of float64
        Further dual points of losses that need them for their intercepts.
    rows : ndarray of float64
        Those for coefficients that psi leaves alone; none but of a Newton method that goes on by these steps.
    objective, lower, residual : float
        Of the best point, as in :class:`~flwr_fco.algorithms.newton.method.NewtonState`.
    momentum : float
        t.
    smoothness, largest : float
        L, and sum_m p_m L_m; -1 where the clients must say it.
    population : float
        A digest of the clients and their weights; -1 before the first round.
    since : float
        Exchanges since the best point.
    stalled : float
        1.0 if the point of an exchange is that of the last one.
    round : int
        Number of successful rounds.
    """

    point: Vector
    trial: Vector
    previous: Vector
    asked: Vector
    gradient: Vector
    columns: Vector
    targets: Vector
    facts: Vector
    references: Vector
    rows: Vector
    objective: float = UNKNOWN
    lower: float = -UNKNOWN
    residual: float = UNKNOWN
    momentum: float = 1.0
    smoothness: float = 0.0
    largest: float = 0.0
    population: float = -1.0
    since: float = 0.0
    stalled: float = 0.0
    round: int = 0


@dataclass(frozen=True, kw_only=True)
class AcceleratedGradient(CertifiedMethod):
    """Accelerated proximal gradient steps with restarts, one exchange each, from sums of the clients' gradients.

    Parameters
    ----------
    tolerance : float, default 1e-8
        Duality gap at which the run ends.

    References
    ----------
    Beck, Teboulle: A fast iterative shrinkage-thresholding algorithm for linear inverse problems (SIAM J. Imaging Sci.
    2009); O'Donoghue, Candes: Adaptive restart for accelerated gradient schemes (Found. Comput. Math. 2015).
    """

    name: ClassVar[str] = "accelerated_gradient"
    refuses: ClassVar[Mapping[str, str]] = {"mirror_map": "takes Euclidean steps, whose length it finds"}

    @staticmethod
    def local(client: Client, downlink: Downlink, memory: Memory | None) -> tuple[dict[str, Vector], Moved]:
        """Return loss and gradient at the server's point; at first also what never changes."""
        w, objective = downlink.vectors["primal"], client.objective
        _, gradient = objective.value_and_gradient(w)
        first = bool(downlink.numbers["first"])
        sent = short(objective, {"gradient": gradient}) | (first_terms(objective, w) if first else {})
        sent["terms"] = evaluation_terms(objective, w)
        if first or downlink.numbers.get("smoothness"):
            sent["smoothness"] = np.array([_smoothness(objective, w)])
        return sent, Moved(gradient, None, 1)

    def init(self, problem: Problem, primal: Vector) -> AcceleratedState:
        """Return the state before round 1."""
        start = feasible_start(problem, primal)
        nothing = np.zeros(primal.size)
        facts = np.full(len(FACTS_OF_LOSS), -1.0)
        references = np.zeros(reference_size(problem.layout))
        return AcceleratedState(start, start, start, start, nothing, nothing, nothing, facts, references, np.zeros(0))

    def options(self, numbers: Mapping[str, float]) -> dict[str, Option]:
        """Return nothing that clients must know."""
        return {}

    def downlink(self, problem: Problem, state: AcceleratedState, to: To | None) -> Downlink:
        """Return the point of the exchange."""
        numbers = {"first": float(state.population < 0.0)}
        # A Newton method that goes on by these steps knows all but L.
        numbers |= {"smoothness": 1.0} if state.largest < 0.0 else {}
        return Downlink(problem.plan, {"primal": state.trial}, numbers=numbers)

    def shapes(self, problem: Problem, state: AcceleratedState) -> dict[str, tuple[int, ...]]:
        """Return the shapes of gradient and terms; of the first round also of what never changes."""
        d = state.trial.size
        shapes: dict[str, tuple[int, ...]] = {"gradient": (d,), "terms": (len(TERMS),)}
        if state.population < 0.0:
            shapes |= {"smoothness": (1,), **first_shapes(state)}
        elif state.largest < 0.0:
            shapes |= {"smoothness": (1,)}
        return shapes

    def check(self, problem: Problem, state: AcceleratedState, uplink: Uplink) -> None:
        """Check what a client says by its meaning."""
        vectors = {name: dense(vector) for name, vector in uplink.vectors.items()}
        check_facts(state, vectors["terms"])
        check_terms(vectors["terms"], vectors["gradient"], state.trial, self.tolerance)
        check_first(vectors, state.trial, self.tolerance)
        if "smoothness" in vectors and not vectors["smoothness"][0] >= 0.0:
            raise ProtocolError(f"its smoothness is {vectors['smoothness'][0]:.3g}; expected a number >= 0")

    def aggregate(self, problem: Problem, state: AcceleratedState, replies: Replies) -> AcceleratedState:
        """Return the state after a proximal gradient step from the point of the exchange."""
        psi, y, first = problem.psi, state.trial, state.population < 0.0
        told = heard(state, psi, replies, self.tolerance)
        if told is None:
            return _begun_anew(state)
        state, known, objective, lower = told
        begins = first or state.largest < 0.0
        if begins:
            largest = mean_smoothness(replies)
            state = state._replace(smoothness=largest, largest=largest)
        # Of points that differ by rounding the last one: its gradient is the smallest.
        better = first or objective <= state.objective + _EPSILON * (1.0 + abs(objective))
        if better:
            residual = float(np.linalg.norm(y - psi.prox(y - known.gradient, 1.0)))
            state = state._replace(point=y, objective=objective, residual=residual)
        smoothness = state.smoothness if begins else _followed(state, y, known.gradient)
        state = state._replace(lower=lower, smoothness=smoothness, since=0.0 if better else state.since + 1.0)
        return _stepped(problem, state, y, known.gradient)

    def metrics(self, problem: Problem, state: AcceleratedState) -> dict[str, float | int]:
        """Return the objective, and the duality gap or else the residual."""
        return {**progress(state), "smoothness": state.smoothness}


def mean_smoothness(replies: Replies) -> float:
    """Return the mean Lipschitz constant of a round's replies, of which each counts as ten times the median at most.

    A larger one is seen in the next exchange, and a single client's would end the run at steps of nothing.
    """
    claims = [(float(uplink.vectors["smoothness"][0]), uplink.weight) for uplink in replies]
    median = sorted(claim for claim, _ in claims)[(len(claims) - 1) // 2]
    most = LARGEST_CLAIM * median if median > 0.0 else math.inf
    return math.fsum(weight * min(claim, most) for claim, weight in claims)


def _smoothness(objective: Objective, w: Vector) -> float:
    """Return the gradient's Lipschitz constant; of a loss without one its curvature at the point."""
    try:
        return objective.lipschitz()
    except ConfigurationError:
        return probed_curvature(objective, w)


def _followed(state: AcceleratedState, y: Vector, gradient: Vector) -> float:
    """Return L after an exchange: the curvature between the last two points, or a little less than before."""
    move = float(np.linalg.norm(y - state.asked))
    seen = float(np.linalg.norm(gradient - state.gradient)) / move if move > 0.0 else 0.0
    return max(seen, _FALL * state.smoothness)


def _stepped(problem: Problem, state: AcceleratedState, y: Vector, gradient: Vector) -> AcceleratedState:
    """Return the state after a proximal step from y, with the next point ahead of it."""
    psi, step = problem.psi, 1.0 / state.smoothness if state.smoothness > 0.0 else 1.0
    state = state._replace(asked=y, gradient=gradient, round=state.round + 1)
    if state.since >= _PATIENCE:
        twice = min(2.0 * state.smoothness, max(state.smoothness, state.largest))
        return state._replace(trial=state.point, previous=state.point, momentum=1.0, since=0.0, smoothness=twice)
    x = psi.prox(y - step * gradient, step)
    turns = float((y - x) @ (x - state.previous)) > 0.0
    t = 1.0 if turns else state.momentum
    following = 0.5 * (1.0 + math.sqrt(1.0 + 4.0 * t * t))
    ahead = x + (t - 1.0) / following * (x - state.previous)
    trial = handed_out(problem.layout, ahead if math.isfinite(psi.value(ahead)) else psi.prox(ahead, 0.0))
    return state._replace(
        trial=trial, previous=x, momentum=following, stalled=float(np.array_equal(trial, y) and t == 1.0)
    )


def _begun_anew(state: AcceleratedState) -> AcceleratedState:
    """Return the state at its best point with nothing known of its objective: other clients have another one."""
    return state._replace(
        trial=state.point,
        previous=state.point,
        objective=UNKNOWN,
        lower=-UNKNOWN,
        rows=np.zeros(state.rows.size),
        residual=UNKNOWN,
        momentum=1.0,
        population=-1.0,
        since=0.0,
        stalled=0.0,
        round=state.round + 1,
    )

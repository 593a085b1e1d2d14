"""Gradient steps: the Newton method's exchanges without a block of the Hessian, accelerated or by L-BFGS.

**Accelerated proximal gradient with restarts.** At the point y the clients send loss and gradient;
x_{k+1} = prox(y_k - g_k / L; 1/L), and the next exchange is about

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

**L-BFGS, where psi is an l2 term.** Without an l1 term all coefficients are non-zero, and a block on them would be a
square of the model. At the point y the clients send loss and gradient; with B the approximation of the inverse Hessian
from the last ten pairs of a step s and the change z of the objective's gradient, the next exchange is about

    y = x - t B grad Phi(x),    t = 1, and half of it after an exchange whose objective is too large,

where x is the last point that decreased the objective enough. B begins at 1 / (sum_m p_m L_m + largest b_j), and later
at s'z / z'z of the last pair; a pair without curvature is left out.

References: Nocedal: Updating quasi-Newton matrices with limited storage (Math. Comp. 1980). Liu, Nocedal: On the
limited memory BFGS method for large scale optimization (Math. Programming 1989), algorithm 2.1.

Differs from the paper in: 1. steps are halved until they decrease the objective enough, without Wolfe's condition on
the slope: the objective is convex, so that s'z is never negative.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flwr_fco.algorithms.contract import Client, Downlink, Memory, Moved, Problem, Replies, Sent, To, Uplink, Vector
from flwr_fco.algorithms.contract.problem import LARGEST_CLAIM
from flwr_fco.algorithms.newton import exchange
from flwr_fco.algorithms.newton.exchange import UNKNOWN, CertifiedMethod
from flwr_fco.algorithms.newton.terms import terms_at
from flwr_fco.errors import ConfigurationError, ProtocolError
from flwr_fco.objectives.base import probed_curvature

#: By what L falls in an exchange, at most.
_FALL = 0.9
#: Exchanges without a better point until L doubles; of L-BFGS without a smaller gap, after which rounding decides.
_PATIENCE = 30
#: Pairs that L-BFGS keeps, and the fraction of the predicted decrease that its steps must reach.
_PAIRS, _SUFFICIENT = 10, 1e-4
#: Rounding error of an objective, relative to its size, and curvature of a pair that is none.
_EPSILON, _FLAT = 1e-15, 1e-14


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
    objective, lower, residual : float
        Of the best point, as in :class:`~flwr_fco.algorithms.newton.method.NewtonState`.
    momentum : float
        t.
    smoothness, largest : float
        L, and sum_m p_m L_m.
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

    name, refuses = "accelerated_gradient", {"mirror_map": "takes Euclidean steps, whose length it finds"}

    def local(self, client: Client, downlink: Downlink, memory: Memory | None) -> tuple[Sent, Moved]:
        """Return loss and gradient at the server's point; at first also what never changes."""
        w, objective = downlink.vectors["primal"], client.objective
        _, gradient = objective.value_and_gradient(w)
        first = bool(downlink.numbers["first"])
        sent = terms_at(objective, w, gradient, first)
        if first:
            try:
                smoothness = objective.lipschitz()
            except ConfigurationError:
                smoothness = probed_curvature(objective, w)
            sent["smoothness"] = np.array([smoothness])
        return sent, Moved(None, 1)

    def init(self, problem: Problem, primal: Vector) -> Any:
        """Return the state before round 1."""
        nothing = np.zeros(primal.size)
        start, facts, references = exchange.beginning(problem, primal)
        return AcceleratedState(start, start, start, start, nothing, nothing, nothing, facts, references)

    def downlink(self, problem: Problem, state: Any, to: To | None) -> Downlink:
        """Return the point of the exchange."""
        return Downlink(problem.plan, {"primal": state.trial}, numbers={"first": float(state.population < 0.0)})

    def shapes(self, problem: Problem, state: Any) -> dict[str, tuple[int, ...]]:
        """Return the shapes of gradient and terms; of the first round also of what never changes."""
        return super().shapes(problem, state) | ({"smoothness": (1,)} if state.population < 0.0 else {})

    def _check(self, problem: Problem, state: Any, uplink: Uplink) -> None:
        """Check what a client says by its meaning."""
        vectors = exchange.checked(state, uplink, self.tolerance)
        if "smoothness" in vectors and not vectors["smoothness"][0] >= 0.0:
            raise ProtocolError(f"its smoothness is {vectors['smoothness'][0]:.3g}; expected a number >= 0")

    def _step(self, problem: Problem, state: Any, replies: Replies) -> Any:
        """Return the state after a proximal gradient step from the point of the exchange."""
        psi, y, first = problem.psi, state.trial, state.population < 0.0
        told = exchange.heard(state, psi, replies, self.tolerance)
        if told is None:
            return exchange.begun_anew(state, previous=state.point, momentum=1.0, since=0.0)
        state, known, objective, lower = told
        if first:
            largest = mean_smoothness(replies)
            state = state._replace(smoothness=largest, largest=largest)
        # Of points that differ by rounding the last one: its gradient is the smallest.
        better = first or objective <= state.objective + _EPSILON * (1.0 + abs(objective))
        if better:
            residual = exchange.residual_of(psi, y, known.gradient)
            state = state._replace(point=y, objective=objective, residual=residual)
        smoothness, move = state.smoothness, float(np.linalg.norm(y - state.asked))
        if not first:
            # The curvature between the last two points, or a little less than before.
            seen = float(np.linalg.norm(known.gradient - state.gradient)) / move if move > 0.0 else 0.0
            smoothness = max(seen, _FALL * smoothness)
        state = state._replace(lower=lower, smoothness=smoothness, since=0.0 if better else state.since + 1.0)
        return _stepped(problem, state, y, known.gradient)

    def metrics(self, problem: Problem, state: Any) -> dict[str, Any]:
        """Return the objective, the duality gap or else the residual, and the smoothness."""
        return {**super().metrics(problem, state), "smoothness": state.smoothness}


def mean_smoothness(replies: Replies) -> float:
    """Return the mean Lipschitz constant of a round's replies, of which each counts as ten times the median at most.

    A larger one is seen in the next exchange, and a single client's would end the run at steps of nothing.
    """
    claims = [(float(uplink.vectors["smoothness"][0]), uplink.weight) for uplink in replies]
    median = sorted(claim for claim, _ in claims)[(len(claims) - 1) // 2]
    most = LARGEST_CLAIM * median if median > 0.0 else math.inf
    return math.fsum(weight * min(claim, most) for claim, weight in claims)


def _stepped(problem: Problem, state: Any, y: Vector, gradient: Vector) -> Any:
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
    trial = exchange.handed_out(problem.layout, ahead if math.isfinite(psi.value(ahead)) else psi.prox(ahead, 0.0))
    stalled = float(np.array_equal(trial, y) and t == 1.0)
    return state._replace(trial=trial, previous=x, momentum=following, stalled=stalled)


class QuasiNewtonState(NamedTuple):
    """State of the L-BFGS method.

    Parameters
    ----------
    point : ndarray of float64, shape (d,)
        x, the best point that was asked about.
    trial : ndarray of float64, shape (d,)
        y, the point that the clients are asked about next.
    direction : ndarray of float64, shape (d,)
        -B grad Phi(x).
    gradient : ndarray of float64, shape (d,)
        grad Phi(x), of loss and psi.
    moves, bends : ndarray of float64, shape (10, d)
        Steps s and changes z of the gradient, the last one at the end; 0 where there is none yet.
    columns, targets : ndarray of float64, shape (d,)
        A'1/n and A'y/n of the pooled data.
    facts : ndarray of float64, shape (5,)
        What the clients' losses agree on; -1 each if they do not.
    references : ndarray of float64
        Further dual points of losses that need them for their intercepts.
    objective, lower, residual : float
        Of the best point, as in :class:`~flwr_fco.algorithms.newton.method.NewtonState`.
    step : float
        t.
    smoothness : float
        sum_m p_m L_m.
    population : float
        A digest of the clients and their weights; -1 before the first round.
    since : float
        Exchanges since the gap, or the residual, was last smaller.
    stalled : float
        1.0 if rounding decides what follows.
    round : int
        Number of successful rounds.
    """

    point: Vector
    trial: Vector
    direction: Vector
    gradient: Vector
    moves: NDArray[np.float64]
    bends: NDArray[np.float64]
    columns: Vector
    targets: Vector
    facts: Vector
    references: Vector
    objective: float = UNKNOWN
    lower: float = -UNKNOWN
    residual: float = UNKNOWN
    step: float = 1.0
    smoothness: float = 0.0
    population: float = -1.0
    since: float = 0.0
    stalled: float = 0.0
    round: int = 0


@dataclass(frozen=True, kw_only=True)
class QuasiNewton(AcceleratedGradient):
    """L-BFGS steps, one exchange each, from sums of the clients' gradients, for an l2 term.

    Parameters
    ----------
    tolerance : float, default 1e-8
        Duality gap at which the run ends.

    References
    ----------
    Liu, Nocedal: On the limited memory BFGS method for large scale optimization (Math. Programming 1989).
    """

    name, refuses = "quasi_newton", {"mirror_map": "takes steps in a metric that it finds"}

    def init(self, problem: Problem, primal: Vector) -> Any:
        """Return the state before round 1."""
        zero, pairs = np.zeros(primal.size), np.zeros((_PAIRS, primal.size))
        start, facts, references = exchange.beginning(problem, primal)
        return QuasiNewtonState(start, start, zero, zero, pairs, pairs, zero, zero, facts, references)

    def _step(self, problem: Problem, state: Any, replies: Replies) -> Any:
        """Return the state after a step, or half of the last one."""
        psi, y, first = problem.psi, state.trial, state.population < 0.0
        told = exchange.heard(state, psi, replies, self.tolerance)
        if told is None:
            nothing = np.zeros_like(state.moves)
            return exchange.begun_anew(state, moves=nothing, bends=nothing, step=1.0, since=0.0)
        state, known, objective, lower = told
        if first:
            state = state._replace(smoothness=mean_smoothness(replies))
        terms = psi.terms()
        assert terms is not None  # of an l2 term
        gradient = known.gradient + terms.shrinkage * y
        enough = state.objective + _SUFFICIENT * state.step * float(state.gradient @ state.direction)
        accepted = first or objective <= enough + _EPSILON * (1.0 + abs(objective))
        residual = exchange.residual_of(psi, y, known.gradient) if accepted else state.residual
        # What is left to do: the gap, or without one the residual.
        left, before = (
            (objective - lower, state.objective - state.lower) if lower > -UNKNOWN else (residual, state.residual)
        )
        nearer = first or (left < before if accepted else lower > state.lower)
        state = state._replace(lower=lower, since=0.0 if nearer else state.since + 1.0, round=state.round + 1)
        if accepted:
            largest = state.smoothness + float(np.max(terms.shrinkage, initial=0.0))
            state = _turned(state, y, gradient, largest, first)._replace(objective=objective, residual=residual)
        else:
            state = state._replace(step=0.5 * state.step)
        trial = exchange.handed_out(problem.layout, state.point + state.step * state.direction)
        over = state.since >= _PATIENCE or np.array_equal(trial, state.point)
        return state._replace(trial=trial, stalled=float(over))

    def metrics(self, problem: Problem, state: Any) -> dict[str, Any]:
        """Return the objective, the duality gap or else the residual, and the step size."""
        return {**super().metrics(problem, state), "step": state.step}


def _turned(state: QuasiNewtonState, y: Vector, gradient: Vector, largest: float, first: bool) -> QuasiNewtonState:
    """Return the state at a new point, with the direction from there."""
    moves, bends = state.moves, state.bends
    if not first:
        move, bend = y - state.point, gradient - state.gradient
        if move @ bend > _FLAT * (bend @ bend) / max(largest, 1e-300):
            moves, bends = np.vstack([moves[1:], move]), np.vstack([bends[1:], bend])
    direction = -gradient
    curved = [(s, z, 1.0 / float(s @ z)) for s, z in zip(moves, bends, strict=True) if s.any()]
    factors = []
    for s, z, inverse in reversed(curved):
        factors.append(inverse * float(s @ direction))
        direction = direction - factors[-1] * z
    if curved:
        s, z, _ = curved[-1]
        direction *= float(s @ z) / float(z @ z)
    else:
        direction /= largest if largest > 0.0 else 1.0
    for (s, z, inverse), factor in zip(curved, reversed(factors), strict=True):
        direction += (factor - inverse * float(z @ direction)) * s
    return state._replace(point=y, gradient=gradient, moves=moves, bends=bends, direction=direction, step=1.0)

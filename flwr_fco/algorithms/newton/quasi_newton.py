"""L-BFGS: the Newton method's exchanges without a block of the Hessian, where psi is an l2 term.

Without an l1 term all coefficients are non-zero, and a block on them would be a square of the model. At the point y the
clients send loss and gradient; with B the approximation of the inverse Hessian from the last ten pairs of a step s and
the change z of the objective's gradient, the next exchange is about

    y = x - t B grad Phi(x),    t = 1, and half of it after an exchange whose objective is too large,

where x is the last point that decreased the objective enough. B begins at 1 / (sum_m p_m L_m + largest b_j), and later
at s'z / z'z of the last pair; a pair without curvature is left out.

References: Nocedal: Updating quasi-Newton matrices with limited storage (Math. Comp. 1980). Liu, Nocedal: On the
limited memory BFGS method for large scale optimization (Math. Programming 1989), algorithm 2.1.

Differs from the paper in: 1. steps are halved until they decrease the objective enough, without Wolfe's condition on
the slope: the objective is convex, so that s'z is never negative.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flwr_fco.algorithms.contract import Problem, Replies, Vector
from flwr_fco.algorithms.newton.accelerated import AcceleratedGradient, mean_smoothness
from flwr_fco.algorithms.newton.exchange import (
    UNKNOWN,
    feasible_start,
    handed_out,
    heard,
)
from flwr_fco.algorithms.newton.terms import FACTS_OF_LOSS, reference_size

#: Pairs that are kept, the fraction of the predicted decrease that a step must reach, and exchanges without a smaller
#: gap after which rounding decides.
_PAIRS, _SUFFICIENT, _PATIENCE = 10, 1e-4, 30
#: Rounding error of an objective, relative to its size, and curvature of a pair that is none.
_EPSILON, _FLAT = 1e-15, 1e-14


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
    rows : ndarray of float64
        None.
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
    rows: Vector
    objective: float = UNKNOWN
    lower: float = -UNKNOWN
    residual: float = UNKNOWN
    step: float = 1.0
    smoothness: float = 0.0
    largest: float = 0.0
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

    name: ClassVar[str] = "quasi_newton"
    refuses: ClassVar[Mapping[str, str]] = {"mirror_map": "takes steps in a metric that it finds"}

    def init(self, problem: Problem, primal: Vector) -> QuasiNewtonState:  # type: ignore[override]
        """Return the state before round 1."""
        start, nothing = feasible_start(problem, primal), np.zeros(primal.size)
        pairs, facts = np.zeros((_PAIRS, primal.size)), np.full(len(FACTS_OF_LOSS), -1.0)
        references = np.zeros(reference_size(problem.layout))
        return QuasiNewtonState(
            start, start, nothing, nothing, pairs, pairs, nothing, nothing, facts, references, np.zeros(0)
        )

    def aggregate(  # type: ignore[override]
        self, problem: Problem, state: QuasiNewtonState, replies: Replies
    ) -> QuasiNewtonState:
        """Return the state after a step, or half of the last one."""
        psi, y, first = problem.psi, state.trial, state.population < 0.0
        told = heard(state, psi, replies, self.tolerance)
        if told is None:
            return _begun_anew(state)
        state, known, objective, lower = told
        if first:
            state = state._replace(smoothness=mean_smoothness(replies))
        terms = psi.separable_terms(y.shape)
        assert terms is not None  # of an l2 term
        gradient = known.gradient + terms.shrinkage * y
        enough = state.objective + _SUFFICIENT * state.step * float(state.gradient @ state.direction)
        accepted = first or objective <= enough + _EPSILON * (1.0 + abs(objective))
        residual = float(np.linalg.norm(y - psi.prox(y - known.gradient, 1.0))) if accepted else state.residual
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
        trial = handed_out(problem.layout, state.point + state.step * state.direction)
        over = state.since >= _PATIENCE or np.array_equal(trial, state.point)
        return state._replace(trial=trial, stalled=float(over))

    def metrics(self, problem: Problem, state: QuasiNewtonState) -> dict[str, float | int]:  # type: ignore[override]
        """Return the objective, the duality gap or else the residual, and the step size."""
        return {**super().metrics(problem, state), "step": state.step}  # type: ignore[arg-type]


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


def _begun_anew(state: QuasiNewtonState) -> QuasiNewtonState:
    """Return the state at its best point with nothing known of its objective: other clients have another one."""
    nothing = np.zeros_like(state.moves)
    return state._replace(
        trial=state.point,
        moves=nothing,
        bends=nothing,
        objective=UNKNOWN,
        lower=-UNKNOWN,
        residual=UNKNOWN,
        step=1.0,
        population=-1.0,
        since=0.0,
        stalled=0.0,
        round=state.round + 1,
    )

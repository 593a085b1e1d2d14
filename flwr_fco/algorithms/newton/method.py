"""A federated proximal Newton method on a working set.

For Phi(w) = F(w) + psi(w), F = sum_m p_m F_m, with w the point, W the working set (a set of coordinates)::

    server: w = trial = the user's start
    each round, every client, at the trial point and with W: loss, gradient, the Hessian's block on W (a triangle) and
        two numbers of the conjugate; in the first round also its column means, the largest mean square of a column and,
        unless w = 0, A'y/n
    server: sums of all of these with the clients' weights
        lower <- max(lower, the dual's value at a point made of the same sums);  gap = Phi(trial) - lower
        if Phi(trial) > Phi(w) + 1e-4 step slope:  shorten the step, by half at least, with the gradient at its end
        w <- trial, step <- 1
        x = argmin over the coordinates of W of <gradient, x - w> + 1/2 (x - w)' block (x - w) + psi(x)
        trial <- x,  slope <- <gradient, x - w> + psi(x) - psi(w)
        W <- the non-zeros of x, all coordinates that psi leaves alone, and those that violate optimality at x most

A round is one exchange: gradient and block ride in one message, because W is chosen from the gradient before. The
iterates are those of the centralised method on the pooled data, whatever the clients' data are.

Squares need no line search, because the model is the loss. The null model: if all coefficients begin at 0, the best
intercept b and the gradient there are known from the first round; of two classes also the Hessian, which is that at
b = 0 times 4 q (1 - q). Then the first step begins there.

``hessian="none"`` asks for no block: accelerated proximal gradient steps, or those of L-BFGS if psi is an l2 term
(:mod:`.gradient_steps`).

Differs from the paper in: 1. the subproblem is solved on a working set, which grows with the number of non-zeros, and
to rounding instead of to an adaptive tolerance, because a sweep on the server costs nothing next to a round; 2. each
trial of the line search is an exchange, whose gradient says by how much to shorten a step that is too long.

References: Lee, Sun, Saunders: Proximal Newton-type methods for minimizing composite functions (SIAM J. Optim. 2014),
algorithm 1. Massias, Gramfort, Salmon: Celer, a fast solver for the lasso with dual extrapolation (ICML 2018), the
working sets. Ndiaye, Fercoq, Gramfort, Salmon: Gap safe screening rules for sparsity enforcing penalties (JMLR 2017),
the dual points.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flwr_fco.algorithms.contract import Client, Memory, Moved, Problem, Replies, Sent, To, Vector
from flwr_fco.algorithms.newton import exchange
from flwr_fco.algorithms.newton.exchange import UNKNOWN, CertifiedMethod, distance
from flwr_fco.algorithms.newton.model import (
    LEAST,
    SMALL,
    Indices,
    Matrix,
    Penalty,
    minimise_model,
    whole_groups,
    working_set,
)
from flwr_fco.algorithms.newton.terms import Evaluated, largest_square, terms_at
from flwr_fco.core.sparse import NonZeros
from flwr_fco.errors import ConfigurationError
from flwr_fco.messages.protocol import CONVEX, Downlink, ReceivedVectors, Uplink
from flwr_fco.objectives.base import Objective

#: Fraction of the predicted decrease that a step must reach, the shortest step, and what is left of a step at least.
_SUFFICIENT, _SHORTEST, _SHORTENED = 1e-4, 1e-60, 1e-9
#: Rounding error of an objective, relative to its size.
_EPSILON = 1e-15
#: By how much a step must lower the gap where it lowers the objective by rounding only.
_LESS = 0.5
#: Smallest ratio of eigenvalues of a block that is not singular.
_SINGULAR = 1e-10
#: Ratio of events to expected ones that is rounding.
_NO_EVENTS = 1e-12
#: Ratio to its start below which the unpenalised block's smallest eigenvalue says that the classes are separable.
_SEPARABLE = 1e-6


class NewtonState(NamedTuple):
    """State of the proximal Newton method.

    Parameters
    ----------
    point : ndarray of float64, shape (d,)
        w, the best point whose objective is known.
    trial : ndarray of float64, shape (d,)
        The point that the clients are asked about next.
    mask : ndarray of float64, shape (d,)
        1.0 on the working set, 0.0 elsewhere.
    columns, targets : ndarray of float64, shape (d,)
        A'1/n and A'y/n of the pooled data.
    facts : ndarray of float64, shape (5,)
        What the clients' losses agree on; -1 each if they do not.
    proved : ndarray of float64, shape (d,)
        1.0 for each coefficient that is proved zero in every optimum.
    references : ndarray of float64
        Further dual points of losses that need them for their intercepts.
    square : float
        The weighted mean of each client's largest mean square of a column.
    objective : float
        Phi(point).
    lower : float
        The largest lower bound of min Phi so far.
    residual : float
        ||w - prox(w - gradient)|| at the point.
    slope : float
        Predicted decrease of a whole step, at most 0.
    step : float
        Step size of the trial point.
    curvature : float
        Smallest eigenvalue of the Hessian on the coordinates that psi leaves alone, at the first point.
    population : float
        A digest of the clients and their weights, whose sums the bounds are about; -1 before the first round.
    stalled : float
        1.0 if no step decreases the objective by more than its rounding error.
    round : int
        Number of successful rounds.
    """

    point: Vector
    trial: Vector
    mask: Vector
    columns: Vector
    targets: Vector
    facts: Vector
    proved: Vector
    references: Vector
    square: float = 0.0
    objective: float = UNKNOWN
    lower: float = -UNKNOWN
    residual: float = UNKNOWN
    slope: float = 0.0
    step: float = 1.0
    curvature: float = 0.0
    population: float = -1.0
    stalled: float = 0.0
    round: int = 0


@dataclass(frozen=True, kw_only=True)
class ProximalNewton(CertifiedMethod):
    """Proximal Newton steps on a working set, from sums of the clients' gradients and Hessian blocks.

    Parameters
    ----------
    tolerance : float, default 1e-8
        Duality gap at which the run ends.
    sizes : tuple of int
        The size of a model that is its own working set, and the smallest size of a working set.

    References
    ----------
    Lee, Sun, Saunders: Proximal Newton-type methods for minimizing composite functions (SIAM J. Optim. 2014).

    Examples
    --------
    >>> ProximalNewton.reads, dict(ProximalNewton.discloses)
    ('everyone', {'gradient': 'derivatives', 'block': 'derivatives'})
    """

    name, refuses = "proximal_newton", {"mirror_map": "takes steps in the metric of the Hessian"}
    discloses: ClassVar[Mapping[str, Any]] = {**CertifiedMethod.discloses, "block": "derivatives"}

    #: Whether a block's diagonal is held against the curvature of its loss.
    bounded: ClassVar[bool] = True

    sizes: tuple[int, int] = (SMALL, LEAST)

    # --- a client -------------------------------------------------------------------------------------------------

    def local(self, client: Client, downlink: Downlink, memory: Memory | None) -> tuple[Sent, Moved]:
        """Return loss, gradient and the Hessian's block at the server's point; at first also what never changes."""
        vectors = downlink.vectors
        size = client.objective.layout.size
        ((w, on),) = exchange.parted(_places(vectors, "primal"), size)
        if "working-set" in vectors:
            ((_, on),) = exchange.parted(_places(vectors, "working-set"), size)
        sent = answer(client.objective, w, on, bool(downlink.numbers["first"]))
        return sent, Moved(None, 1)

    # --- the server -----------------------------------------------------------------------------------------------

    def init(self, problem: Problem, primal: Vector) -> NewtonState:
        """Return the state before round 1."""
        penalty = Penalty.of(problem.psi)
        start, facts, references = exchange.beginning(problem, primal)
        mask = (start != 0.0) | penalty.idle | (primal.size <= self.sizes[0])
        on = whole_groups(mask, penalty).astype(np.float64)
        zeros = np.zeros(primal.size)
        return NewtonState(start, start, on, zeros, zeros, facts, zeros, references)

    def downlink(self, problem: Problem, state: NewtonState, to: To | None) -> Downlink:
        """Return the trial point at the coordinates of the working set; where it is not 0 elsewhere, both apart."""
        on = _set_of(state).astype(np.int32)
        size, values = state.trial.size, state.trial[on]
        vectors: dict[str, Any] = {"primal": NonZeros(on, values, size)}
        if np.count_nonzero(state.trial) > np.count_nonzero(values):
            vectors = {"primal": NonZeros.of(state.trial), "working-set": NonZeros(on, np.ones(on.size), size)}
        return Downlink(problem.plan, vectors, numbers={"first": float(state.population < 0.0)})

    def shapes(self, problem: Problem, state: NewtonState) -> dict[str, tuple[int, ...]]:
        """Return the shapes of gradient, block and terms; of the first round also of what never changes."""
        k, once = _set_of(state).size, {"square": (1,)} if state.population < 0.0 else {}
        return super().shapes(problem, state) | {"block": (k * (k + 1) // 2,)} | once

    def _check(self, problem: Problem, state: NewtonState, uplink: Uplink) -> None:
        """Check what a client says by its meaning: bounds of losses and conjugates, and a Hessian's entries."""
        vectors = exchange.checked(state, uplink, self.tolerance)
        square = float(vectors["square"][0]) if "square" in vectors else math.inf
        block, on, terms = unpacked(vectors["block"]), _set_of(state), vectors["terms"]
        exchange.check_block(block, on, terms, state.trial.size if self.bounded else None, square)

    def _step(self, problem: Problem, state: Any, replies: Replies) -> Any:
        """Return the state after the trial point is known: a shorter step, or the next Newton step."""
        first, told = state.population < 0.0, exchange.opened(state, problem.psi, replies)
        if told is None:
            return _begun_anew(state)
        state, known = told
        if first:
            state = state._replace(square=float(replies.sum("square")[0]))
        objective = known.loss + problem.psi.value(state.trial)
        rounding = _EPSILON * (1.0 + abs(objective))
        enough = state.objective + _SUFFICIENT * state.step * state.slope + rounding
        if not first and objective > enough and state.step > _SHORTEST:
            return self._shortened(problem, state, known, objective)
        if not first and objective > state.objective + rounding:
            # An ascent is refused, however short the step.
            return state._replace(trial=state.point, step=1.0, stalled=1.0, round=state.round + 1)
        lower, proved = state.lower, state.proved
        if not known.reason and state.facts[0] >= 0.0:
            found, slopes = known.dual(problem.psi, state)
            zeros = known.zeros(problem.psi, objective, found, slopes, state)
            lower, proved = max(lower, found), np.maximum(proved, zeros)
        if exchange.contradicts(objective, lower, self.tolerance):
            return _begun_anew(state)
        before = state
        residual = exchange.residual_of(problem.psi, state.trial, known.gradient)
        state = state._replace(point=state.trial, objective=objective, lower=lower, proved=proved, residual=residual)
        state = state._replace(step=1.0, round=state.round + 1)
        # Near the optimum a step that no longer lowers the objective's digits still lowers the gap.
        state = state._replace(stalled=float(not first and distance(state) > _LESS * distance(before)))
        if state.stalled and before.step < 1.0 and objective >= before.objective - rounding:
            # Nor does any shorter one: the next search would end as this one did.
            return state._replace(trial=state.point)
        return self._next_step(problem, state, known, unpacked(replies.sum("block")), first)

    def _shortened(self, problem: Problem, state: NewtonState, known: Evaluated, objective: float) -> NewtonState:
        """Return the state with a trial point nearer to the best one.

        The tangents at both ends meet where a piecewise linear function would have its minimum: half of the step, or
        there if that is less. A whole step from where all chances are 0 or 1 can be many powers of ten too long.
        """
        psi, move = problem.psi, state.trial - state.point
        begin = state.step * state.slope
        end = float(known.gradient @ move) + psi.value(state.trial) - psi.value(state.point)
        factor = 0.5
        if end > begin:
            factor = min(max((objective - state.objective - end) / (begin - end), _SHORTENED), 0.5)
        trial = exchange.handed_out(problem.layout, state.point + factor * move)
        same = np.array_equal(trial, state.point) or np.array_equal(trial, state.trial)
        mask = whole_groups((state.mask > 0.0) | (trial != 0.0), Penalty.of(psi))
        state = state._replace(trial=trial, mask=mask.astype(np.float64), step=factor * state.step)
        return state._replace(stalled=float(same), round=state.round + 1)

    def _next_step(self, problem: Problem, state: NewtonState, known: Evaluated, block: Matrix, first: bool) -> Any:
        """Return the state with the next trial point, its working set and the decrease that the step promises."""
        psi, w, on = problem.psi, state.point, _set_of(state)
        penalty = Penalty.of(psi)
        state = self._with_curvature(penalty, state, known, block)
        x, gradient = w.copy(), known.gradient.copy()
        if first and not w.any() and known.has_free_intercept(psi):
            x, gradient, block = _null_model(known, state, block)
        if block.size:
            own = minimise_model(block, gradient[on], x[on], penalty.at(on))
            gradient[on] += block @ (own - x[on])
            x[on] = own
        x = exchange.handed_out(problem.layout, x)
        mask = working_set(x, gradient, penalty, *self.sizes, outputs=known.outputs).astype(np.float64)
        slope = min(0.0, float(known.gradient @ (x - w)) + psi.value(x) - psi.value(w))
        nothing = np.array_equal(mask, state.mask) and -slope <= 0.1 * _EPSILON * abs(state.objective)
        stalled = nothing and (state.stalled > 0.0 or np.array_equal(x, w))
        return state._replace(trial=x, mask=mask, slope=slope, stalled=float(stalled))

    def _with_curvature(self, penalty: Penalty, state: NewtonState, known: Evaluated, block: Matrix) -> NewtonState:
        """Return the state, unless the classes are separable along coefficients that psi leaves alone.

        Raises
        ------
        ConfigurationError
            If they are: these coefficients grow without end, and the loss has no minimum.
        """
        on, outputs = _set_of(state), max(1, known.outputs)
        places = np.arange(state.point.size)
        idle = penalty.idle & (known.facts["l2"] == 0.0)
        if known.facts["intercept"]:
            idle &= places < places.size - outputs
        if outputs > 1:
            # A common change of all classes' coefficients has no effect.
            idle &= places % outputs < outputs - 1
        idle_places = np.flatnonzero(idle[on])
        # Of some of them the smallest eigenvalue is another one.
        if not idle_places.size or idle_places.size < np.count_nonzero(idle):
            return state
        spectrum = np.linalg.eigvalsh(block[np.ix_(idle_places, idle_places)])
        smallest, largest = float(spectrum[0]), float(spectrum[-1])
        if state.curvature == 0.0:
            return state._replace(curvature=smallest if smallest > _SINGULAR * largest else -1.0)
        if smallest < _SEPARABLE * state.curvature and state.residual > self.tolerance:
            size = float(np.abs(state.point[on[idle_places]]).max())
            raise ConfigurationError(
                f"the classes are separable along coefficients that psi leaves alone: the largest of them is "
                f"{size:.3g} and grows without end (the curvature has fallen from {state.curvature:.3g} to "
                f"{smallest:.3g}): the loss has no minimum. Let psi act on them, or add an l2 term to the losses"
            )
        return state

    # --- what else it says ----------------------------------------------------------------------------------------

    def metrics(self, problem: Problem, state: NewtonState) -> dict[str, Any]:
        """Return the objective, the duality gap or else the residual, and the size of the working set."""
        return {**super().metrics(problem, state), "working-set": _set_of(state).size, "step": state.step}


def answer(objective: Objective, w: Vector, on: Indices, first: bool) -> dict[str, Any]:
    """Return what a client says of its loss at a point: derivatives and terms, at first also what never changes."""
    _, gradient = objective.value_and_gradient(w)
    sent = terms_at(objective, w, gradient, first) | {"block": objective.newton_block(w, on)}
    return sent | {"square": largest_square(objective)} if first else sent


def _set_of(state: NewtonState) -> NDArray[np.int64]:
    """Return the coordinates of the working set, ascending."""
    return np.flatnonzero(state.mask)


def _places(vectors: Any, name: str) -> Any:
    """Return a vector with its places, on a client or in this process."""
    return vectors.as_sent(name) if isinstance(vectors, ReceivedVectors) else vectors[name]


def unpacked(triangle: Vector) -> Matrix:
    """Return the symmetric matrix of an upper triangle by rows."""
    order = math.isqrt(2 * triangle.size)
    upper = np.zeros((order, order))
    upper[np.triu_indices(order)] = triangle
    return upper + np.triu(upper, 1).T


def _begun_anew(state: NewtonState) -> Any:
    """Return the state at its best point with nothing known of its objective: other clients have another one."""
    mask = np.maximum(state.mask, state.point != 0.0)
    return exchange.begun_anew(state, mask=mask, proved=np.zeros(mask.size), step=1.0, slope=0.0, curvature=0.0)


def _null_model(known: Evaluated, state: NewtonState, block: Matrix) -> tuple[Vector, Vector, Matrix]:
    """Return the best point with an intercept alone, the gradient there, and the block; empty if it is not known.

    Only from 0, where the block is at the same predictions for all examples.
    """
    size, outputs = state.point.size, known.outputs
    x, targets, on = np.zeros(size), state.targets, _set_of(state)
    if known.link == "softmax":
        if on.size == size:
            return x, known.gradient.copy(), block
        shares = known.shares(targets)
        x[size - outputs :] = np.log(shares) - np.log(shares).mean()
        return x, np.resize(shares, size) * state.columns - targets, np.zeros((0, 0))
    if known.link in CONVEX and known.link != "poisson":
        return x, known.gradient.copy(), block
    factor, bend = 1.0, 1.0
    if known.link == "logistic":
        level = float(known.shares(targets)[0])
        x[-1], bend = math.log(level / (1.0 - level)), 4.0 * level * (1.0 - level)
    elif known.link == "poisson":
        level = bend = float(targets[-1] / state.columns[-1])
        if not level > _NO_EVENTS:
            raise ConfigurationError(
                f"the clients have {max(0.0, level):.1g} times the events that the offsets alone expect, exp(offset): "
                "none, or too few beside rounding. Without any, and without a regularized intercept "
                "(arrays=Arrays(apply_to=...)), the loss has no minimum. Otherwise subtract a constant from all "
                "offsets, which the intercept takes up"
            )
        x[-1] = math.log(level)
    else:
        x[-1], level, factor = targets[-1], targets[-1], known.facts["factor"]
    ridge = (1.0 - bend) * known.facts["l2"] * (on < size - 1)
    return x, factor * (level * state.columns - targets), bend * block + np.diag(ridge)

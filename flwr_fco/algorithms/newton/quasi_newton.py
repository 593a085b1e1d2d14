"""The Newton method's exchanges without a block of the Hessian: what gradients have shown of it takes its place.

At each point the clients send loss and gradient. With the last pairs of a move s and the change y of the gradient, the
Hessian is approximated by

    B = sigma I + sum_i y_i y_i' / s_i'y_i - b_i b_i' / s_i'b_i,    b_i = B_i s_i,

B_i that of the pairs before (BFGS). sigma is at first that of Polyak's step; then s'y / s's of the last pair, or where
psi has no kink and no bound y'y / s'y, which is larger: with it an l1 norm's coordinates enter slowly (two to five
times the rounds on wide data), and without it a ridge's steps are too long (four times).

All else are the steps of :mod:`.method`: the model with B in place of the block is minimised on the working set, or of
a smooth psi on all coordinates, by one solution of a system as small as the pairs are many. A step that is too long is
shortened, and its exchange is a pair as well.

References: Nocedal: Updating quasi-Newton matrices with limited storage (Math. Comp. 1980). Nocedal, Wright: Numerical
optimization (2006), section 7.2, the sums. Lee, Sun, Saunders: Proximal Newton-type methods for minimizing composite
functions (SIAM J. Optim. 2014), section 2.1, proximal quasi-Newton steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from flwr_fco.algorithms.contract.problem import Client, Memory, Moved, Problem, Sent, To
from flwr_fco.algorithms.contract.replies import Replies
from flwr_fco.algorithms.newton import asking
from flwr_fco.algorithms.newton.asking import NOTHING, Known
from flwr_fco.algorithms.newton.method import Block, ProximalNewton
from flwr_fco.algorithms.newton.model import Matrix, Penalty, minimise_model
from flwr_fco.core.layout import Vector
from flwr_fco.messages.protocol import Downlink

#: Pairs that are kept for a smooth psi and for another one, and for a large model; the numbers that they may take.
_SMOOTH = 20
_MANY = 60
_FEW = 10
_NUMBERS = 2**22
#: Curvature of a pair that is none, relative to the largest.
_FLAT = 1e-14


@dataclass(frozen=True, kw_only=True)
class QuasiNewton(ProximalNewton):
    """Proximal quasi-Newton steps, one exchange each, from sums of the clients' gradients.

    Parameters
    ----------
    tolerance : float, default 1e-8
        Duality gap at which the run ends.

    References
    ----------
    Lee, Sun, Saunders: Proximal Newton-type methods for minimizing composite functions (SIAM J. Optim. 2014).
    """

    name = "quasi_newton"
    refuses: ClassVar[Mapping[str, str]] = {"mirror_map": "takes steps in a metric that it finds"}
    discloses: ClassVar[Mapping[str, Any]] = {"gradient": "derivatives"}
    patience: ClassVar[int] = 30

    def local(self, client: Client, downlink: Downlink, memory: Memory | None) -> tuple[Sent, Moved]:
        """Return loss and gradient at the server's point; at first also what never changes."""
        sent = asking.answer(client.objective, downlink.vectors["primal"], bool(downlink.numbers["first"]))
        return asking.shortened(sent), Moved(None, 1)

    def init(self, problem: Problem, primal: Vector) -> Any:
        """Return the state before round 1."""
        most = _SMOOTH if Penalty.of(problem.psi).smooth else _MANY
        pairs = np.zeros((2, min(max(_NUMBERS // primal.size, _FEW), most), primal.size))
        return super().init(problem, primal)._replace(pairs=pairs, gradient=np.zeros(primal.size))

    def downlink(self, problem: Problem, state: Any, to: To | None) -> Downlink:
        """Return the trial point."""
        return Downlink(problem.plan, {"primal": state.trial}, numbers={"first": float(state.population < 0.0)})

    def shapes(self, problem: Problem, state: Any) -> dict[str, tuple[int, ...]]:
        """Return the shapes of gradient and terms; of the first round also of what never changes."""
        return {name: shape for name, shape in super().shapes(problem, state).items() if name != "block"}

    def _after(self, problem: Problem, state: Any, replies: Replies) -> Any:
        """Return the state after a step or a shorter one, with what the exchange has shown of the Hessian."""
        gradient = replies.sum("gradient")
        if state.population < 0.0:
            state = state._replace(pairs=np.zeros_like(state.pairs))
        elif asking.population_of(replies) == state.population:
            move = state.trial - state.point
            change = gradient - state.gradient
            if move @ change > _FLAT * float(np.linalg.norm(move) * np.linalg.norm(change)):
                # A shorter step has the direction of the one before, and the curvature next to the point.
                kept = state.pairs[:, :-1] if state.step < 1.0 else state.pairs[:, 1:]
                pairs = np.concatenate([kept, np.stack([move, change])[:, None]], axis=1)
                state = state._replace(pairs=pairs)
        after = self._step(problem, state, replies, Block(np.flatnonzero(state.mask), NOTHING))
        return after._replace(gradient=gradient) if np.array_equal(after.point, state.trial) else after

    def _minimised(
        self, state: Any, known: Known, block: Block, penalty: Penalty, x: Vector, gradient: Vector, share: float
    ) -> tuple[Any, Vector, Vector]:
        """Return the minimiser of the model with B, and the gradient there."""
        smooth = penalty.smooth
        start = x.copy()
        # Of Polyak's step, if there is no pair: no smaller curvature allows such a slope above the least loss.
        left = known.reported.loss - known.reported.least
        steepest = float(gradient @ gradient) / (2.0 * left) if left > 0.0 else 0.0
        sigma, plus, minus = approximation(state.pairs[0], state.pairs[1], steepest, smooth)
        if smooth:
            diagonal = sigma + penalty.terms[1]
            both = np.concatenate([plus, minus])
            slope = gradient + penalty.terms[1] * x
            signs = np.diag(np.r_[np.ones(len(plus)), -np.ones(len(minus))])
            inner = signs + (both / diagonal) @ both.T
            x = x - (slope - both.T @ np.linalg.lstsq(inner, both @ (slope / diagonal))[0]) / diagonal
        else:
            on = block.on
            hessian = sigma * np.eye(on.size) + plus[:, on].T @ plus[:, on] - minus[:, on].T @ minus[:, on]
            x[on] = minimise_model(hessian, gradient[on], x[on], penalty.at(on))
        move = x - start
        return state, x, gradient + sigma * move + plus.T @ (plus @ move) - minus.T @ (minus @ move)


def approximation(moves: Matrix, changes: Matrix, largest: float, smooth: bool) -> tuple[float, Matrix, Matrix]:
    """Return sigma and the rows y_i / root of s_i'y_i, and b_i / root of s_i'b_i.

    Parameters
    ----------
    moves, changes : ndarray of float64, shape (k, d)
        The s_i and y_i, the last ones at the end; 0 where there is none yet.
    largest : float
        sigma without a pair.
    smooth : bool
        Whether it is y'y / s'y of the last pair, or s'y / s's.

    Examples
    --------
    >>> sigma, plus, minus = approximation(np.eye(1, 2), np.array([[2.0, 1.0]]), 1.0, True)
    >>> (sigma * np.eye(2) + plus.T @ plus - minus.T @ minus).round(6).tolist()
    [[2.0, 1.0], [1.0, 3.0]]
    """
    known = moves.any(axis=1)
    moves, changes = moves[known], changes[known]
    sigma = largest or 1.0
    if len(moves):
        move, change = moves[-1], changes[-1]
        sigma = float(change @ change / (move @ change) if smooth else move @ change / (move @ move))
    plus = changes / np.sqrt(np.einsum("ij,ij->i", moves, changes))[:, None]
    minus = np.zeros_like(changes)
    for i, move in enumerate(moves):
        own = sigma * move + (plus[:i] @ move) @ plus[:i] - (minus[:i] @ move) @ minus[:i]
        curved = float(own @ move)
        if curved > 0.0:
            minus[i] = own / math.sqrt(curved)
        else:
            # It is rounding beside the curvature of other pairs.
            plus[i] = 0.0
    return sigma, plus, minus

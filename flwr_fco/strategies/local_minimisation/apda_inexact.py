"""APDA-Inexact: an accelerated primal-dual algorithm whose proximal step is taken inexactly.

Sadiev, Kovalev, Richtarik (NeurIPS 2022), reconstructed from the abstract and from the parameters in Park and Xu's
table 2: the constraint that all clients agree is dualised, and the server projects the duals.

    each client: y <- V - mean(V)                                           x_hat ~ prox_{eta_x f}(x - eta_x y)
                 x+ <- x - eta_x (grad f(x_hat) + y)                        x_bar = x+ + theta (x+ - x)
                 V <- y - eta_y beta_y (y + grad f(x_hat)) + eta_y x_bar; send the change of V
    server: mean(V), and mean(x), which is the model

The changes of x are sent up only to give the server the model: the method itself needs V alone.

Differs from the paper in: 1. it is a reconstruction, see above; 2. client m has weight p_m, not 1/M; 3. the proximal
step is as exact as its stopping rule says.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from flwr_fco.core.layout import Vector
from flwr_fco.server.algorithm import Problem
from flwr_fco.server.clients.memory import Change
from flwr_fco.server.convergence import Exact, Limit
from flwr_fco.server.options import POSITIVE, EveryoneOptions, MemoryOptions, MinimiseOptions
from flwr_fco.server.replies.replies import Replies
from flwr_fco.strategies.local_minimisation.mean_methods import MeanState, rescaled
from flwr_fco.strategies.primal_averaging.primal import PrimalStrategy
from flwr_fco.wire.protocol import Downlink, Node


def advance(state: MeanState, change: Vector, local_change: Vector) -> MeanState:
    """Return the state after a round.

    Parameters
    ----------
    state : MeanState
        Its primal is the mean of the clients' x, its mean the mean of their V.
    change, local_change : ndarray of float64, shape (d,)
        Weighted means of the changes of V and of x.
    """
    return state._replace(primal=state.primal + local_change, mean=state.mean + change, round=state.round + 1)


def extrapolation(primal_step: float, dual_step: float, damping: float, convexity: float) -> float:
    """Return theta = max(2/(2 + mu eta_x), 1 - beta_y eta_y), as in Park and Xu's table 2.

    Parameters
    ----------
    primal_step, dual_step : float
        eta_x and eta_y.
    damping : float
        beta_y.
    convexity : float
        mu.
    """
    return max(2.0 / (2.0 + convexity * primal_step), 1.0 - damping * dual_step)


@dataclass(repr=False, eq=False, kw_only=True)
class APDAInexact(MinimiseOptions, EveryoneOptions, MemoryOptions, PrimalStrategy):
    """APDA-Inexact: an accelerated primal-dual method on 'all clients agree', with inexact proximal steps.

    Parameters
    ----------
    primal_step : float, default 1.0
        eta_x, of the clients' proximal steps.
    dual_step : float, optional
        eta_y; by default 1/(32 eta_x).
    damping : float, default 0.1
        beta_y; the theory needs at most 1/L.
    convexity : float, default 0.01
        mu, from which the extrapolation follows.

    References
    ----------
    Sadiev, Kovalev, Richtarik: Communication acceleration of local gradient methods via an accelerated primal-dual
    algorithm with an inexact prox (NeurIPS 2022).

    Examples
    --------
    >>> APDAInexact(primal_step=0.25).dual_step
    0.125
    """

    local_solver: ClassVar[str] = "apda_inexact"
    personal: ClassVar[bool] = True
    limit: ClassVar[Limit] = Exact("the solution", problem="smooth")
    deterministic: ClassVar[bool] = True
    source: ClassVar[str] = "Sadiev and others 2022"
    sends: ClassVar[str] = "the changes of V_m and x_m"
    traffic: ClassVar[str] = "1 / 2"
    remembers: ClassVar[str] = "V_m, x_m"
    no_psi: ClassVar[str | None] = "its only constraint is that all clients agree"

    primal_step: float = field(default=1.0, metadata=POSITIVE)
    dual_step: float | None = field(default=None, metadata=POSITIVE)
    damping: float = field(default=0.1, metadata=POSITIVE)
    convexity: float = field(default=0.01, metadata=POSITIVE)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dual_step is None:
            self.dual_step = 1.0 / (32.0 * self.primal_step)

    def uplink_shapes(self, problem: Problem) -> dict[str, tuple[int, ...]]:
        """Return the shapes of both changes."""
        shapes = super().uplink_shapes(problem)
        return {**shapes, "local-increment": shapes["increment"]}

    def init(self, problem: Problem, primal: Vector) -> MeanState:
        """Return the state before round 1."""
        return MeanState(primal, np.zeros(primal.size))

    def numbers(self, state: MeanState) -> dict[str, float]:
        """Return eta_x, eta_y, beta_y and theta."""
        assert self.dual_step is not None
        theta = extrapolation(self.primal_step, self.dual_step, self.damping, self.convexity)
        return {
            "primal-step": self.primal_step,
            "dual-step": self.dual_step,
            "damping": self.damping,
            "extrapolation": theta,
        }

    def downlink(self, problem: Problem, state: MeanState, node: Node | None) -> Downlink:
        """Return the message to a node: the model if it begins, mean(V) otherwise."""
        told = super().downlink(problem, state, node)
        if node is None or problem.clients.member(node).accepted < 0:
            return told
        return told._replace(vectors={"dual-mean": state.mean})

    def aggregate(self, problem: Problem, state: MeanState, replies: Replies) -> MeanState:
        """Return the means of all clients' V and x."""
        population = replies.population
        change, local_change = (replies.sum(name) / population for name in ("increment", "local-increment"))
        return advance(rescaled(state, population), change, local_change)

    def memories_changed(self, problem: Problem, state: MeanState, change: Change) -> MeanState:
        """Return the state with the mean over the current clients."""
        population = change.population
        if change.reason is not None:
            return state._replace(mean=np.zeros_like(state.mean), population=population)
        return rescaled(state, population)

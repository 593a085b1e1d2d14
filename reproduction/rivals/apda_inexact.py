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

import numpy as np

from flwr_fco.algorithms import (
    Change,
    Client,
    Downlink,
    MeanState,
    Memory,
    Moved,
    PrimalAveraging,
    Problem,
    Replies,
    Sent,
    To,
    rescaled,
)
from flwr_fco.objectives import Vector
from flwr_fco.strategies import POSITIVE, Everyone, Ledger, MinimiseStrategy, strategy


@dataclass(frozen=True, kw_only=True)
class APDA(PrimalAveraging):
    """Project the dual using the new mean, take a proximal step, and send the point whose projection is the next dual.

    With V the last point sent and mean(V) its mean over clients, received from the server::

        y <- V - mean(V)                                                  x_hat ~ prox_{eta_x f}(x - eta_x y)
        x+ <- x - eta_x (grad f(x_hat) + y)                               x_bar = x+ + theta (x+ - x)
        V <- y - eta_y beta_y (y + grad f(x_hat)) + eta_y x_bar

    A client that begins has no V yet: y = 0, x = x_hat = x_bar = primal, and only V is computed. The message has the
    vectors ``primal`` (to a client that begins) and ``dual-mean`` (to the others). The client sends the change of V
    and, which only tells the server the model, that of x. Sadiev, Kovalev, Richtarik: Communication acceleration of
    local gradient methods via an accelerated primal-dual algorithm with an inexact prox (NeurIPS 2022); reconstructed
    from the abstract and from Park and Xu's table 2.

    Parameters
    ----------
    primal_step : float
        eta_x; eta_y is 1/(32 eta_x).
    damping : float
        beta_y.
    convexity : float
        mu.
    """

    name = "apda_inexact"
    memory = ("sent", "local")
    reads = "everyone"
    refuses = {**PrimalAveraging.refuses, "regularizer": "its only constraint is that all clients agree"}

    primal_step: float = 1.0
    damping: float = 0.1
    convexity: float = 0.01

    def local(self, client: Client, downlink: Downlink, memory: Memory | None) -> tuple[Sent, Moved]:
        """Compute the change of V and of x."""
        gradient_of = client.objective.gradient
        eta_x = self.primal_step
        eta_y = 1.0 / (32.0 * eta_x)
        damping = eta_y * self.damping
        if memory is None:
            point = downlink.vectors["primal"]
            sent = eta_y * point - damping * gradient_of(point)
            return {"increment": sent, "local-increment": np.zeros_like(point)}, Moved(None, 1)
        before, local = memory["sent"], memory["local"]
        dual = before - downlink.vectors["dual-mean"]
        point, moved = client.minimise(local, center=local - eta_x * dual, penalty=1.0 / eta_x)
        gradient = gradient_of(point)
        change = client.as_sent(-eta_x * (gradient + dual))
        theta = max(2.0 / (2.0 + self.convexity * eta_x), 1.0 - damping)
        extrapolated = local + change + theta * change
        sent = dual - damping * (dual + gradient) + eta_y * extrapolated
        return {"increment": sent - before, "local-increment": change}, moved

    def remember(self, downlink: Downlink, memory: Memory | None, sent: Memory, elapsed: float | None) -> Memory:
        """Return V and x."""
        if memory is None:
            return {"sent": sent["increment"], "local": downlink.vectors["primal"] + sent["local-increment"]}
        return {name: memory[name] + sent[own] for name, own in (("sent", "increment"), ("local", "local-increment"))}

    def shapes(self, problem: Problem, state: MeanState) -> dict[str, tuple[int, ...]]:
        """Return the shapes of both changes."""
        shapes = super().shapes(problem, state)
        return {**shapes, "local-increment": shapes["increment"]}

    def init(self, problem: Problem, primal: Vector) -> MeanState:
        """Return the state before round 1."""
        return MeanState(primal, np.zeros(primal.size))

    def downlink(self, problem: Problem, state: MeanState, to: To | None) -> Downlink:
        """Return the message to a client: the model if it begins, mean(V) otherwise."""
        message = super().downlink(problem, state, to)
        return message if to is None or to.begins else message._replace(vectors={"dual-mean": state.mean})

    def aggregate(self, problem: Problem, state: MeanState, replies: Replies) -> MeanState:
        """Return the means of all clients' V and x."""
        state = rescaled(state, replies.population)
        primal = state.primal + replies.sum("local-increment") / replies.population
        mean = state.mean + replies.sum("increment") / replies.population
        return state._replace(primal=primal, mean=mean, round=state.round + 1)

    def restart(self, problem: Problem, state: MeanState, change: Change) -> MeanState:
        """Return the state with the mean over the current clients."""
        return rescaled(state, change.population)


@strategy
class APDAInexact(MinimiseStrategy):
    """APDA-Inexact: an accelerated primal-dual method on 'all clients agree', with inexact proximal steps.

    Parameters
    ----------
    primal_step : float, default 1.0
        eta_x, of the clients' proximal steps; the dual ones are eta_y = 1/(32 eta_x).
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
    >>> APDAInexact(primal_step=0.25).primal_step
    0.25
    """

    algorithm = APDA
    participation: Everyone = field(default=Everyone())
    client_state: Ledger = field(default=Ledger())
    primal_step: float = field(default=1.0, metadata=POSITIVE)
    damping: float = field(default=0.1, metadata=POSITIVE)
    convexity: float = field(default=0.01, metadata=POSITIVE)

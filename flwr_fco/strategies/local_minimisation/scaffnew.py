"""Scaffnew: shifted local gradient steps, averaged after random numbers of steps (ProxSkip).

Mishchenko, Malinovsky, Stich, Richtarik (ICML 2022), algorithm 2; their symbols in brackets::

    each client, shift [h_i] = 0: x <- x - client_lr [gamma] (g(x) - shift), until the shared coin, which falls with
        probability p after every step, says to average; then send the increment
    server: primal <- mean(x)
    client, when the new primal arrives: shift <- shift + p/client_lr (primal - x)

The weighted sum of the shifts is 0. With p = 1 it is gradient descent with step size client_lr. The server tosses the
coin in advance and sends the number of steps until it falls.

Differs from the paper in: 1. client i has weight p_i, not 1/n; 2. the coin is tossed once a round, which gives the same
distribution; 3. ``coin="periodic"`` averages after every 1/p-th step, as often done in practice; 4. minibatch gradients
are allowed (then the limit is a neighbourhood of the solution).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from flwr_fco.core.layout import Vector
from flwr_fco.core.randomness import random_generator
from flwr_fco.errors import ConfigurationError
from flwr_fco.server.algorithm import Problem
from flwr_fco.server.convergence import Exact, Limit
from flwr_fco.server.options import AT_LEAST_ONE, POSITIVE, EveryoneOptions, MemoryOptions, Rate
from flwr_fco.server.replies.replies import Replies
from flwr_fco.strategies.primal_averaging.primal import PrimalStrategy
from flwr_fco.work import FirstOrder, Work

#: Stream of the coin's random numbers, next to seed and round.
_COIN = 17


def steps_until_heads(probability: float, rng: np.random.Generator | None) -> int:
    """Return the number of local steps before the next averaging.

    Parameters
    ----------
    probability : float
        p in (0, 1].
    rng : numpy.random.Generator or None
        Source of the coin tosses; None: every 1/p-th step, rounded.

    Raises
    ------
    ConfigurationError
        If p is out of range.

    Examples
    --------
    >>> steps_until_heads(0.25, None)
    4
    """
    if not 0.0 < probability <= 1.0:
        raise ConfigurationError(f"probability={probability!r}; expected 0 < probability <= 1")
    return max(1, round(1.0 / probability)) if rng is None else int(rng.geometric(probability))


class ScaffnewState(NamedTuple):
    """The server's state.

    Parameters
    ----------
    primal : ndarray of float64, shape (d,)
    rate : float
        client_lr of the last successful round, from which the clients derive their shifts; 1.0 before round 1.
    round : int
        Number of successful rounds.
    """

    primal: Vector
    rate: float = 1.0
    round: int = 0


@dataclass(repr=False, eq=False, kw_only=True)
class Scaffnew(EveryoneOptions, MemoryOptions, PrimalStrategy):
    """Scaffnew (ProxSkip): shifted local gradient steps, with a coin that decides when to communicate.

    With p = kappa^(-1/2) it needs O(sqrt(kappa) log 1/eps) rounds.

    Parameters
    ----------
    client_lr : float, callable or "auto", default 0.1
        gamma, at most 1/L in theory; or a function of Flower's round (from 1).
    probability : float, default 0.1
        p, the probability that the clients communicate after a step.
    coin : {"random", "periodic"}, default "random"
        Whether the coin is tossed, or falls after every 1/p-th step.
    batch_size : int or None, default None
        Rows in a minibatch; None: full batches, as in the paper.

    References
    ----------
    Mishchenko, Malinovsky, Stich, Richtarik: ProxSkip, yes! Local gradient steps provably lead to communication
    acceleration! Finally! (ICML 2022), algorithm 2.

    Examples
    --------
    >>> Scaffnew(client_lr=0.1, probability=0.2, coin="periodic").work()
    FirstOrder(steps=5, epochs=None, batch_size=None)
    """

    local_solver: ClassVar[str] = "scaffnew"
    limit: ClassVar[Limit] = Exact("the solution (with full batches)", problem="smooth")
    source: ClassVar[str] = "Mishchenko and others 2022"
    sends: ClassVar[str] = "x_K - x_0"
    remembers: ClassVar[str] = "h_i, x_K"
    no_psi: ClassVar[str | None] = "its proximal map is that of 'all clients agree', the mean"

    client_lr: Rate = field(default=0.1, metadata=POSITIVE)
    probability: float = field(default=0.1, metadata={"range": (lambda p: 0.0 < p <= 1.0, "0 < probability <= 1")})
    coin: Literal["random", "periodic"] = "random"
    batch_size: int | None = field(default=None, metadata=AT_LEAST_ONE)

    def work(self) -> Work:
        """Return the mean number of steps in a round."""
        return FirstOrder(max(1, round(1.0 / self.probability)), None, self.batch_size)

    def work_of_round(self, problem: Problem, state: ScaffnewState) -> Work | None:
        """Return the number of steps until the coin falls."""
        if self.coin == "periodic":
            return None
        coin = random_generator(self.seed, problem.round, 0, _COIN)
        return FirstOrder(steps_until_heads(self.probability, coin), None, self.batch_size)

    def client_rate(self, problem: Problem, smoothness: float, steps: int) -> tuple[float, str]:
        """Return 1/L, the largest step size in the method's theory."""
        return 1.0 / smoothness, "1/L"

    def init(self, problem: Problem, primal: Vector) -> ScaffnewState:
        """Return the state before round 1."""
        return ScaffnewState(primal)

    def numbers(self, state: ScaffnewState) -> dict[str, float]:
        """Return p, and the step size of the round that the clients' shifts come from."""
        return {"probability": self.probability, "last-rate": state.rate}

    def aggregate(self, problem: Problem, state: ScaffnewState, replies: Replies) -> ScaffnewState:
        """Return the mean of the clients' points."""
        primal = state.primal + replies.sum() / replies.weight
        return ScaffnewState(primal, problem.client_lr, state.round + 1)

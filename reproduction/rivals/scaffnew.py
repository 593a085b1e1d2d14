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
from typing import Literal, NamedTuple

import numpy as np

from flwr_fco.algorithms import Client, Downlink, Memory, Moved, PrimalAveraging, Problem, Replies, Sent, Setting, To
from flwr_fco.engines import FirstOrder
from flwr_fco.objectives import Vector
from flwr_fco.strategies import AT_LEAST_ONE, POSITIVE, CompositeStrategy, Everyone, Ledger, Rate, strategy

_CHANCE = {"range": (lambda p: 0.0 < p <= 1.0, "0 < probability <= 1")}
#: Stream of the coin's random numbers, next to seed and round.
_COIN = 17


class ScaffnewState(NamedTuple):
    """The server's state.

    Parameters
    ----------
    primal : ndarray of float64, shape (d,)
        The averaged model.
    rate : float
        client_lr of the last successful round, from which the clients derive their shifts; 1.0 before round 1.
    round : int
        Number of successful rounds.
    """

    primal: Vector
    rate: float = 1.0
    round: int = 0


@dataclass(frozen=True, kw_only=True)
class ShiftedSteps(PrimalAveraging):
    """Update the shift with the new average, then take steps x <- x - client_lr (g(x) - shift) until the next one.

    shift <- shift + p/last-rate (primal - local) ends the round before. The message has the vector ``primal`` and the
    number ``last-rate`` (client_lr of the last round that counted); its work has the number of steps that the server
    drew. Mishchenko, Malinovsky, Stich, Richtarik: ProxSkip (ICML 2022), algorithm 2.

    Parameters
    ----------
    probability : float
        p.
    coin : {"random", "periodic"}
        Whether the coin is tossed, or falls after every 1/p-th step.
    batch_size : int or None
        Rows in a minibatch; None: full batches.
    seed : int
        Of the coin.
    """

    name = "scaffnew"
    memory = ("shift", "local")
    reads = "everyone"
    refuses = {**PrimalAveraging.refuses, "regularizer": "its proximal map is that of 'all clients agree', the mean"}

    probability: float = 0.1
    coin: str = "random"
    batch_size: int | None = None
    seed: int = 0

    # --- a client -------------------------------------------------------------------------------------------------

    def local(self, client: Client, downlink: Downlink, memory: Memory | None) -> tuple[Sent, Moved]:
        """Begin at the average, with the shift that it completes; take shifted gradient steps."""
        return client.dual_steps(downlink.vectors["primal"], -self._shift(downlink, memory), psi=False)

    def remember(self, downlink: Downlink, memory: Memory | None, sent: Memory, elapsed: float | None) -> Memory:
        """Return the shift of the round, which the next message changes, and the point before averaging."""
        return {"shift": self._shift(downlink, memory), "local": downlink.vectors["primal"] + sent["increment"]}

    def _shift(self, downlink: Downlink, memory: Memory | None) -> Vector:
        """Return shift + p/last-rate (primal - local); 0 of a client that begins."""
        primal = downlink.vectors["primal"]
        if memory is None:
            return np.zeros_like(primal)
        gain = self.probability / downlink.numbers["last-rate"]
        return np.asarray(memory["shift"] + gain * (primal - memory["local"]))

    # --- the server -----------------------------------------------------------------------------------------------

    def init(self, problem: Problem, primal: Vector) -> ScaffnewState:
        """Return the state before round 1."""
        return ScaffnewState(primal)

    def downlink(self, problem: Problem, state: ScaffnewState, to: To | None) -> Downlink:
        """Return the average, the step size that the clients' shifts come from, and the steps until the coin falls."""
        work = None
        if self.coin == "random":
            coin = np.random.default_rng([self.seed, problem.round, 0, 0, _COIN])
            work = FirstOrder(int(coin.geometric(self.probability)), None, self.batch_size)
        return super().downlink(problem, state, to)._replace(numbers={"last-rate": state.rate}, work=work)

    def aggregate(self, problem: Problem, state: ScaffnewState, replies: Replies) -> ScaffnewState:
        """Return the mean of the clients' points."""
        primal = state.primal + replies.sum() / replies.weight
        return ScaffnewState(primal, problem.client_lr, state.round + 1)

    def setting(self, given: Setting, state: ScaffnewState | None) -> Setting:
        """Return the mean number of steps in a round."""
        return given._replace(work=FirstOrder(max(1, round(1.0 / self.probability)), None, self.batch_size))


@strategy
class Scaffnew(CompositeStrategy):
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
    >>> Scaffnew(client_lr=0.1, probability=0.2, coin="periodic")
    Scaffnew(probability=0.2, coin='periodic')
    """

    algorithm = ShiftedSteps
    theory = "1/L"
    participation: Everyone = field(default=Everyone())
    client_state: Ledger = field(default=Ledger())
    client_lr: Rate = field(default=0.1, metadata=POSITIVE)
    probability: float = field(default=0.1, metadata=_CHANCE)
    coin: Literal["random", "periodic"] = "random"
    batch_size: int | None = field(default=None, metadata=AT_LEAST_ONE)

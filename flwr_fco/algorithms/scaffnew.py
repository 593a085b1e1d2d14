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

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from flwr_fco.algorithms.contract import Batch, Downlink, FirstOrder, Implied, Option, Replies, Vector, Work
from flwr_fco.algorithms.contract.client import Client, Memory, Start, Step, zeros_like
from flwr_fco.algorithms.contract.problem import LossFacts, Problem, Setting
from flwr_fco.algorithms.primal_averaging import PrimalAveraging, no_psi
from flwr_fco.core.computing import random_generator
from flwr_fco.core.validation import CHANCE, checked

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
    checked("probability", probability, float, CHANCE)
    return max(1, round(1.0 / probability)) if rng is None else int(rng.geometric(probability))


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
    numbers ``probability`` (p) and ``last-rate`` (client_lr of the last round that counted); its work has the number of
    steps that the server drew. Mishchenko, Malinovsky, Stich, Richtarik: ProxSkip (ICML 2022), algorithm 2.

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

    Examples
    --------
    >>> ShiftedSteps.engine, ShiftedSteps.memory, ShiftedSteps.reads
    ('primal steps', ('shift', 'local'), 'everyone')
    """

    name, memory, reads = "scaffnew", ("shift", "local"), "everyone"
    refuses = no_psi("its proximal map is that of 'all clients agree', the mean")

    probability: float
    coin: str
    batch_size: int | None
    seed: int

    # --- a client -------------------------------------------------------------------------------------------------

    @staticmethod
    def fresh(downlink: Downlink) -> Memory:
        """Return a shift of 0, and the model."""
        return {"shift": zeros_like(downlink), "local": downlink.vectors["primal"]}

    @staticmethod
    def begin(downlink: Downlink, memory: Memory) -> Start:
        """Begin at the average, with the shift that it completes."""
        primal, numbers = downlink.vectors["primal"], downlink.numbers
        gain = numbers["probability"] / numbers["last-rate"]
        return Start(primal, memory["shift"] + gain * (primal - memory["local"]))

    @staticmethod
    def local_step(client: Client, downlink: Downlink, start: Start) -> Step:
        """Return a shifted gradient step."""
        rate, gradient_of, shift = client.rate, client.objective.gradient, start.shift
        assert shift is not None

        def step(point: Vector, batch: Batch) -> None:
            gradient = gradient_of(point, batch)
            gradient -= shift
            point -= rate * gradient

        return step

    @staticmethod
    def remember(downlink: Downlink, memory: Memory, sent: Memory, elapsed: float | None) -> dict[str, Vector]:
        """Return the shift of the round, which the next message changes, and the point before averaging."""
        shift = ShiftedSteps.begin(downlink, memory).shift
        assert shift is not None
        return {"shift": shift, "local": downlink.vectors["primal"] + sent["increment"]}

    # --- the server -----------------------------------------------------------------------------------------------

    @staticmethod
    def implied(downlink: Downlink, memory: Memory, sent: Memory, elapsed: float | None) -> Implied:
        """Return the mean of the client's gradients in this round."""
        assert elapsed is not None
        return Implied(memory["shift"] - sent["increment"] / elapsed)

    def init(self, problem: Problem, primal: Vector) -> ScaffnewState:
        """Return the state before round 1."""
        return ScaffnewState(primal)

    def numbers(self, problem: Problem, state: ScaffnewState) -> dict[str, float]:
        """Return p, and the step size of the round that the clients' shifts come from."""
        return {"probability": self.probability, "last-rate": state.rate}

    def work_of_round(self, problem: Problem, state: ScaffnewState) -> Work | None:
        """Return the number of steps until the coin falls."""
        if self.coin == "periodic":
            return None
        coin = random_generator(self.seed, problem.round, 0, _COIN)
        return FirstOrder(steps_until_heads(self.probability, coin), None, self.batch_size)

    def aggregate(self, problem: Problem, state: ScaffnewState, replies: Replies) -> ScaffnewState:
        """Return the mean of the clients' points."""
        primal = state.primal + replies.sum() / replies.weight
        return ScaffnewState(primal, problem.client_lr, state.round + 1)

    def setting(self, given: Setting, state: ScaffnewState | None) -> Setting:
        """Return the mean number of steps in a round."""
        return given._replace(work=FirstOrder(max(1, round(1.0 / self.probability)), None, self.batch_size))

    def options(self, numbers: Mapping[str, float]) -> dict[str, Option]:
        """Return p and the coin's kind; a state saved with others is not resumed."""
        return {"probability": self.probability, "coin": self.coin}

    def theory(self, problem: Problem, facts: LossFacts) -> dict[str, tuple[float, str]]:
        """Return 1/L, the largest step size in the method's theory."""
        return {"client_lr": (1.0 / facts.curvature, "1/L")}

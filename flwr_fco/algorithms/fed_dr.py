"""FedDR: randomised Douglas-Rachford splitting.

Tran-Dinh, Pham, Phan, Nguyen (NeurIPS 2021), algorithm 1; their symbols in brackets::

    each client of the sample: center [y_i] <- center + alpha (primal [x-bar] - local [x_i])
                               local <- prox_{eta f_i}(center); send the change of 2 local - center [x-hat_i]
    server: mean [x-tilde] <- mean of all clients' last 2 local - center; primal <- prox_{eta psi}(mean)

Differs from the paper in: 1. client i has weight p_i, not 1/n; 2. centers and local points begin at 0, without the
paper's round that asks all clients for prox_{eta f_i}(x^0): the method converges from any start, and a client that was
never asked counts as 0; 3. the local minimisation is as exact as its stopping rule says.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from flwr_fco.algorithms.contract import Change, Client, Downlink, Memory, Moved, Problem, Replies, Sent
from flwr_fco.algorithms.primal_averaging import PrimalAveraging
from flwr_fco.core.layout import Vector


class MeanState(NamedTuple):
    """The server's state.

    Parameters
    ----------
    primal : ndarray of float64, shape (d,)
        The model, which clients are sent.
    mean : ndarray of float64, shape (d,)
        Weighted mean over all clients of the quantity that the method names; zeros, or its start value, before round 1.
    round : int
        Number of successful rounds.
    population : float
        Sum of the weights of all clients behind `mean`; 0 before round 1.

    Examples
    --------
    >>> MeanState(np.zeros(2), np.array([1.0, -1.0]), round=3, population=4.0).mean
    array([ 1., -1.])
    """

    primal: Vector
    mean: Vector
    round: int = 0
    population: float = 0.0


def rescaled(state: MeanState, population: float) -> MeanState:
    """Return the state with its mean taken over another population; the sum stays the same.

    Parameters
    ----------
    state : MeanState
        The state, with its mean over the former population.
    population : float
        Sum of the weights of all clients.

    Examples
    --------
    >>> rescaled(MeanState(np.zeros(1), np.array([3.0]), population=2.0), 6.0).mean
    array([1.])
    """
    if state.population in (0.0, population):
        return state._replace(population=population)
    return state._replace(mean=state.mean * (state.population / population), population=population)


class MeanOfMemories(PrimalAveraging):
    """A method that samples clients and keeps the mean of what all of them remember.

    Examples
    --------
    >>> MeanOfMemories.reads
    'sums'
    """

    reads: ClassVar[Any] = "sums"

    @abstractmethod
    def part_of(self, remembered: Mapping[str, Vector]) -> Vector:
        """Return the linear function of a client's memory that the mean is over.

        Parameters
        ----------
        remembered : mapping of str to ndarray
            A client's memory, or a weighted sum of memories.
        """

    def init(self, problem: Problem, primal: Vector) -> MeanState:
        """Return the state before round 1."""
        return MeanState(primal, np.zeros(primal.size))

    def restart(self, problem: Problem, state: MeanState, change: Change) -> MeanState:
        """Return the state with the mean over the current clients."""
        if change.means is None:
            return rescaled(state, change.population)
        return state._replace(mean=self.part_of(change.means), population=change.population)


@dataclass(frozen=True, kw_only=True)
class DouglasRachford(MeanOfMemories):
    """Take a Douglas-Rachford step: y <- y + alpha (primal - x), x <- prox_{eta f}(y), send the change of 2 x - y.

    The message has the vector ``primal`` (x-bar). Tran-Dinh, Pham, Phan, Nguyen: FedDR (NeurIPS 2021), algorithm 1.

    Parameters
    ----------
    step : float
        eta, of the proximal steps of clients and server.
    relaxation : float
        alpha.

    Examples
    --------
    >>> DouglasRachford.name, DouglasRachford.memory, DouglasRachford.reads
    ('fed_dr', ('center', 'local'), 'sums')
    """

    name = "fed_dr"
    memory = ("center", "local")

    step: float = 1.0
    relaxation: float = 1.0

    def _center(self, downlink: Downlink, memory: Memory | None) -> Vector:
        """Return the new y; x = y = 0 of a client that begins."""
        primal = downlink.vectors["primal"]
        if memory is None:
            return self.relaxation * primal
        return np.asarray(memory["center"] + self.relaxation * (primal - memory["local"]))

    def local(self, client: Client, downlink: Downlink, memory: Memory | None) -> tuple[Sent, Moved]:
        """Minimise with the proximal term around the new y, from the last x or else the model."""
        start = (memory or {"local": downlink.vectors["primal"]})["local"]
        center = self._center(downlink, memory)
        local, moved = client.minimise(start, center=center, penalty=1.0 / self.step)
        return {"increment": 2.0 * local - center - _last(memory)}, moved

    def remember(self, downlink: Downlink, memory: Memory | None, sent: Memory, elapsed: float | None) -> Memory:
        """Return y and x, from the change that was sent."""
        center = self._center(downlink, memory)
        return {"center": center, "local": 0.5 * (_last(memory) + sent["increment"] + center)}

    def part_of(self, remembered: Mapping[str, Vector]) -> Vector:
        """Return 2 x_i - y_i."""
        return 2.0 * remembered["local"] - remembered["center"]

    def aggregate(self, problem: Problem, state: MeanState, replies: Replies) -> MeanState:
        """Return the mean of all clients' points and its prox_{eta psi}."""
        state = rescaled(state, replies.population)
        mean = state.mean + replies.sum() / state.population
        return state._replace(primal=problem.psi.prox(mean, self.step), mean=mean, round=state.round + 1)


def _last(memory: Memory | None) -> Any:
    """Return 2 x - y of the client's last round."""
    return 0.0 if memory is None else 2.0 * memory["local"] - memory["center"]

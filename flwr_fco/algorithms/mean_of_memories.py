"""Methods whose server keeps a mean of what all clients remember: FedDR, FedDyn.

A sample of clients changes its part of the mean, and the part of absent clients stays. So the mean must follow which
clients there are and how much each of them weighs.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from flwr_fco.algorithms.contract import Change, Problem, Vector
from flwr_fco.algorithms.primal_averaging import PrimalAveraging


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


@dataclass(frozen=True, kw_only=True)
class MeanOfMemories(PrimalAveraging):
    """A method that samples clients and keeps the mean of what all of them remember."""

    engine: ClassVar[str | None] = "minimise"
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
        population = change.population
        if change.means is None:
            return rescaled(state, population)
        return state._replace(mean=self.part_of(change.means), population=population)

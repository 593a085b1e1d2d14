"""What FedDR, FedDyn, 5GCS and APDA-Inexact have in common: the server keeps a mean of what all clients remember.

A sample of clients changes its part of the mean, and the part of the absent ones stays. So the mean has to follow who
is there and what everyone weighs.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from flwr_fco.core.layout import Vector
from flwr_fco.server.clients.memory import Change
from flwr_fco.server.primal_methods import NO_AVERAGE, RememberingStrategy
from flwr_fco.wire.protocol import Uplink

__all__ = ["MeanState", "MeanStrategy", "rescaled"]


class MeanState(NamedTuple):
    """The server's state.

    Parameters
    ----------
    primal : ndarray of float64, shape (d,)
        The model: what the clients are sent.
    mean : ndarray of float64, shape (d,)
        The weighted mean over all clients of what the method says; zeros before round 1, or what it begins with.
    round : int
        Rounds that have counted.
    total : ndarray of float64
        What the output averages; see :class:`PointAverage`.
    averaged : int
        Number of points in `total`.
    population : float
        Sum of the weights of all clients behind `mean`; 0 before round 1.
    """

    primal: Vector
    mean: Vector
    round: int = 0
    total: Vector = NO_AVERAGE
    averaged: int = 0
    population: float = 0.0


def rescaled(state: MeanState, population: float) -> MeanState:
    """Return a state whose mean is one over another population, the sum being the same.

    Parameters
    ----------
    state : MeanState
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


@dataclass(repr=False, eq=False, kw_only=True)
class MeanStrategy(RememberingStrategy):
    """A strategy that takes samples of clients and keeps the mean of what all of them remember."""

    @abstractmethod
    def part_of(self, remembered: Mapping[str, Vector]) -> Vector:
        """Return what of a client's memory the mean is over: a linear function.

        Parameters
        ----------
        remembered : mapping of str to ndarray
            A client's memory, or a weighted sum of memories.
        """

    def init_state(self, primal: Vector) -> MeanState:
        """Return the state before round 1."""
        self.memories.forget(primal.size)
        return MeanState(primal, np.zeros(primal.size), total=self.averaging.start(primal.size))

    def balanced(self, state: MeanState, uplinks: Sequence[Uplink]) -> MeanState:
        """Return the state with the mean by the weights that clients have now, before what they send is added.

        Parameters
        ----------
        state : MeanState
        uplinks : sequence of Uplink
        """
        population = self.memories.population(uplinks)
        state = rescaled(state, population)
        reweighed = self.memories.reweighed(uplinks)
        return state._replace(mean=state.mean + self.part_of(reweighed) / population) if reweighed else state

    def memories_changed(self, state: MeanState, change: Change) -> MeanState:
        """Return the state with the mean over the clients that are there."""
        population = self.memories.population()
        if change.means is None:
            return rescaled(state, population)
        return state._replace(mean=self.part_of(change.means), population=population)

"""Rounds of sparse replies: the server's step and its primal point, at the cost of the touched coordinates.

As long as a run has touched few coordinates of its dual, dual and primal point are zero in all others, so only the
touched coordinates are checked, retrieved, measured and counted. The numbers equal those of the whole vectors up to
rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fco.core.layout import Vector, all_finite
from flwr_fco.core.sparse import NonZeros, SparseVector
from flwr_fco.mirror_maps import DiagonalMetric, Euclidean
from flwr_fco.mirror_maps.base import Coordinates
from flwr_fco.server.algorithm import Algorithm, Problem
from flwr_fco.wire.protocol import Plan, Uplink

#: Minimum ratio of all coordinates to the touched ones, overall and in a round.
_FEW = 4


class Touched:
    """The coordinates of a run's state that may be non-zero; an object that a strategy holds.

    Attributes
    ----------
    primal : ndarray of float64, shape (d,)
        Point of the last step; the next step writes into it in place.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Return to the state before the first round."""
        self.primal: Vector = np.zeros(0)
        self._state: Any = None
        self._plan: Plan | None = None
        self._places: NDArray[np.int32] = np.zeros(0, dtype=np.int32)
        #: Coordinates at which the point is non-zero.
        self._nonzero = self._places
        self._coordinates: Coordinates | None = None
        #: Mask of the coordinates in replies, and the number of each.
        self._mask, self._numbers = np.zeros(0, dtype=bool), self._places
        self._refused: Plan | None = None

    def step(
        self, algorithm: Algorithm, problem: Problem, before: Any, uplinks: Sequence[Uplink], *, lent: bool
    ) -> tuple[Any, NonZeros] | None:
        """Return the next state and its primal point: the algorithm's step on all coordinates touched so far.

        Parameters
        ----------
        algorithm : Algorithm
            An algorithm that acts coordinate by coordinate.
        problem : Problem
        before : NamedTuple
            The state.
        uplinks : sequence of Uplink
        lent : bool
            Whether others hold the state, so that its vectors must not change in place.

        Returns
        -------
        (NamedTuple, NonZeros) or None
            None, with nothing changed, if the step needs whole vectors: replies are not sparse or touch too much, h or
            psi do not preserve zeros, or a number overflows float64.
        """
        vectors = [vector for uplink in uplinks for vector in uplink.vectors.values()]
        if not all(isinstance(vector, SparseVector) for vector in vectors):
            return None
        # Unsorted coordinates cost several times as much as a pass over the same number of sorted ones.
        if _FEW * sum(vector.indices.size for vector in vectors) > before.dual.size or not self._knows(problem, before):
            return None
        if not self._touch(problem, [vector.indices for vector in vectors]):
            return None
        assert self._coordinates is not None
        size = self._places.size

        def here(vector: SparseVector) -> SparseVector:
            return SparseVector(self._numbers[vector.indices], vector.values, size)

        short = [own._replace(vectors={name: here(own.vectors[name]) for name in own.vectors}) for own in uplinks]
        known = before._replace(**{name: vector[self._places] for name, vector in _vectors_of(before).items()})
        after = algorithm.aggregate(problem, known, short)
        if not all(all_finite(value) for value in after):
            return None
        values = self._coordinates.retrieve(after.dual, after.elapsed)
        if not all_finite(values):
            return None
        # psi has set most of the touched coordinates back to zero.
        kept = np.flatnonzero(values.view(np.int64))
        point = NonZeros(self._places[kept], values[kept], before.dual.size)
        self.primal[self._nonzero] = 0.0
        self.primal[point.indices], self._nonzero = point.values, point.indices
        whole = _vectors_of(before)
        if lent or before is not self._state:
            whole = {name: vector.copy() for name, vector in whole.items()}
        for name, vector in whole.items():
            vector[self._places] = getattr(after, name)
        self._state = after._replace(**whole)
        return self._state, point

    def _knows(self, problem: Problem, before: Any) -> bool:
        """Whether the non-zeros of a state are known; they are searched for in an unknown state."""
        plan = problem.plan
        if plan is self._refused:
            return False
        if before is self._state and plan is self._plan:
            return True
        self.forget()
        size = before.dual.size
        self._mask = np.zeros(size, dtype=bool)
        for vector in _vectors_of(before).values():
            self._mask |= vector.view(np.int64) != 0
        if not (self._few(int(np.count_nonzero(self._mask))) and _leaves_zeros(problem)):
            self._refused = plan
            return False
        self._plan, self.primal, self._numbers = plan, np.zeros(size), np.zeros(size, dtype=np.int32)
        return True

    def _few(self, count: int) -> bool:
        return _FEW * count <= self._mask.size

    def _touch(self, problem: Problem, touched: Sequence[NDArray[np.int32]]) -> bool:
        """Record coordinates; return whether there are few."""
        grown = self._coordinates is None
        for indices in touched:
            known = self._mask[indices]
            if not known.all():
                self._mask[indices] = grown = True
        if grown:
            self._places = np.flatnonzero(self._mask).astype(np.int32)
            if not self._few(self._places.size):
                self._refused = problem.plan
                return False
            self._numbers[self._places] = np.arange(self._places.size, dtype=np.int32)
            self._coordinates = problem.h.at(problem.psi, self._places)
        return True


def _vectors_of(state: Any) -> dict[str, Vector]:
    """Return the vectors of a state by their names."""
    return {name: value for name, value in state._asdict().items() if isinstance(value, np.ndarray)}


def _leaves_zeros(problem: Problem) -> bool:
    """Whether a coordinate with a zero dual is zero itself."""
    if type(problem.plan.mirror_map) not in (Euclidean, DiagonalMetric):
        return False
    found = problem.h.at(problem.psi, np.arange(problem.layout.size))
    return found is not None and bool(np.all(found.terms.lower <= 0.0) and np.all(found.terms.upper >= 0.0))

"""Rounds of sparse replies: the server's step and its primal point, at the cost of what replies have touched.

While a run has touched few places of its dual, both the dual and the primal point are zero in all others: so what is
to be checked, retrieved, measured and counted are these places. The numbers are those of the whole vectors to
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
from flwr_fco.server.algorithm import Problem
from flwr_fco.server.replies.centres import Centre, factors_of
from flwr_fco.wire.protocol import Plan, Uplink

#: How many times as many coordinates there are at least as places that were touched, ever, and in a round.
_FEW = 4


class Touched:
    """The places of a run's dual that may not be zero; an object that a strategy holds.

    Attributes
    ----------
    primal : ndarray of float64, shape (d,)
        The point of the last step, written in place by the next one.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Return to the state before the first round."""
        self.primal: Vector = np.zeros(0)
        self._state: Any = None
        self._plan: Plan | None = None
        self._places: NDArray[np.int32] = np.zeros(0, dtype=np.int32)
        #: Those at which the point is not zero.
        self._nonzero = self._places
        self._coordinates: Coordinates | None = None
        #: Where replies have written, and a sum of zeros that is written to for a moment.
        self._mask, self._sum = np.zeros(0, dtype=bool), np.zeros(0)
        self._refused: Plan | None = None

    def step(
        self, problem: Problem, before: Any, uplinks: Sequence[Uplink], *, lent: bool
    ) -> tuple[Any, NonZeros] | None:
        """Return the state dual + server_lr mean(increment), elapsed + server_lr mean(elapsed), and its primal point.

        Parameters
        ----------
        problem : Problem
        before : NamedTuple
            The state, with fields ``dual``, ``elapsed`` and ``round``.
        uplinks : sequence of Uplink
        lent : bool
            Whether others have the state, so that its dual must not be changed in place.

        Returns
        -------
        (NamedTuple, NonZeros) or None
            None, and nothing has changed, where it takes whole vectors: replies are not sparse or touch too much, h or
            psi do not leave zeros, or a number has no room in float64.
        """
        vectors = [uplink.vectors["increment"] for uplink in uplinks]
        if not all(isinstance(vector, SparseVector) for vector in vectors):
            return None
        # Places in no order cost several times what a pass over the same number does.
        if _FEW * sum(vector.indices.size for vector in vectors) > before.dual.size or not self._knows(problem, before):
            return None
        if not self._touch(problem, [vector.indices for vector in vectors]):
            return None
        assert isinstance(problem.centre, Centre)
        factors, mean = factors_of(uplinks, normalize=problem.centre.normalize)
        elapsed = before.elapsed + problem.server_lr * mean
        dual = before.dual.copy() if lent or before is not self._state else before.dual
        undo = self._add(dual, vectors, [problem.server_lr, *factors])
        assert self._coordinates is not None
        values = self._coordinates.retrieve(dual[self._places], elapsed)
        # Most of what was touched is zero again where psi makes it so.
        kept = np.flatnonzero(values.view(np.int64))
        point = NonZeros(self._places[kept], values[kept], dual.size)
        if not (undo is not None and np.isfinite(elapsed) and all_finite(point.values)):
            for indices, old in reversed(undo or ()):
                dual[indices] = old
            return None
        self.primal[self._nonzero] = 0.0
        self.primal[point.indices], self._nonzero = point.values, point.indices
        self._state = before._replace(dual=dual, elapsed=elapsed, round=before.round + 1)
        return self._state, point

    def _knows(self, problem: Problem, before: Any) -> bool:
        """Whether it is known where a state's dual is not zero; it is looked for if it is another one's."""
        plan = problem.plan
        if plan is self._refused:
            return False
        if before is self._state and plan is self._plan:
            return True
        self.forget()
        self._mask = before.dual.view(np.int64) != 0
        if not (self._few(int(np.count_nonzero(self._mask))) and _leaves_zeros(problem)):
            self._refused = plan
            return False
        self._plan, self.primal, self._sum = plan, np.zeros(before.dual.size), np.zeros(before.dual.size)
        return True

    def _few(self, count: int) -> bool:
        return _FEW * count <= self._mask.size

    def _touch(self, problem: Problem, touched: Sequence[NDArray[np.int32]]) -> bool:
        """Take note of places; return whether these are few."""
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
            self._coordinates = problem.h.at(problem.psi, self._places)
        return True

    def _add(self, dual: Vector, vectors: Sequence[Any], factors: Sequence[float]) -> list[Any] | None:
        """Add server_lr times a weighted sum to the dual; return what it was, None if it has become too large."""
        server_lr, total = factors[0], self._sum
        for factor, vector in zip(factors[1:], vectors, strict=True):
            total[vector.indices] += factor * vector.values.astype(np.float64, copy=False)
        undo = []
        finite = True
        for vector in vectors:
            indices = vector.indices
            old = dual[indices]
            moved = total[indices]
            # Where two replies have written, the second finds what is added already.
            total[indices] = 0.0
            moved *= server_lr
            moved += old
            undo.append((indices, old))
            finite = finite and all_finite(moved)
            dual[indices] = moved
        if not finite:
            for indices, old in reversed(undo):
                dual[indices] = old
            return None
        return undo


def _leaves_zeros(problem: Problem) -> bool:
    """Whether a coordinate whose dual is zero is zero itself."""
    if type(problem.plan.mirror_map) not in (Euclidean, DiagonalMetric):
        return False
    found = problem.h.at(problem.psi, np.arange(problem.layout.size))
    return found is not None and bool(np.all(found.terms.lower <= 0.0) and np.all(found.terms.upper >= 0.0))

"""Detection of diverged runs, with the cause and the last good model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from flwr_fco.core.layout import Vector

#: A model with this many times the first models' norm has diverged. No convergent run grows like that: with
#: sufficiently small steps a run never moves further in a round than in the first ones, so its solution would be a
#: million rounds away.
_TOO_LARGE = 1e6
#: A model with at most this many times the first models' norm is worth keeping.
_GOOD = 10.0


class DivergenceWatch:
    """Tracks the norm of the model from round to round.

    A run has diverged when the norm of its model exceeds 1e6 times the largest of: the norm of the initial model, the
    norm after the first round that counted, sqrt(d) (coefficients of size 1). That first round has only to be finite:
    it may be the one that finds the units of the model. The last good model is the last one with at most ten times
    that size.

    Parameters
    ----------
    arrays : ArrayRecord
        The initial model.
    w : ndarray of float64, shape (d,)
        The initial model as a vector.

    Attributes
    ----------
    good : (int, ArrayRecord)
        The last good model and its round.

    Examples
    --------
    >>> watch = DivergenceWatch(ArrayRecord(), np.zeros(4))
    >>> [watch.look(number, ArrayRecord(), np.full(4, 10.0**number)) for number in (1, 5, 6)]
    ['', '', '']
    >>> watch.look(8, ArrayRecord(), np.full(4, 1e8))
    'the norm of the model is 2e+08; it was 20 in the first rounds'
    >>> watch.good[0]
    1
    """

    def __init__(self, arrays: ArrayRecord, w: Vector) -> None:
        self._scale = max(math.sqrt(w.size), _norm(w))
        self._first = True
        self.good = (0, arrays)

    def look(self, server_round: int, arrays: ArrayRecord, w: Vector) -> str:
        """Check the model after a round; return what is wrong with it, or an empty string.

        Parameters
        ----------
        server_round : int
            Flower's round, from 1.
        arrays : ArrayRecord
            The model.
        w : ndarray of float64
            The model's entries, all or only those that may be non-zero.
        """
        norm = _norm(w)
        if self._first and math.isfinite(norm):
            self._first, self._scale = False, max(self._scale, norm)
        if not norm <= _TOO_LARGE * self._scale:
            return f"the norm of the model is {norm:.2g}; it was {self._scale:.2g} in the first rounds"
        if norm <= _GOOD * self._scale:
            self.good = (server_round, arrays)
        return ""

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the size of the first models, and the last good model."""
        number, arrays = self.good
        return {
            "sizes": np.array([self._scale, self._first, number]),
            **{f"good/{name}": array.numpy() for name, array in arrays.items()},
        }

    def from_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore what :meth:`to_arrays` returned."""
        scale, first, number = arrays["sizes"].tolist()
        self._scale, self._first = scale, bool(first)
        good = {name.removeprefix("good/"): Array(value) for name, value in arrays.items() if name != "sizes"}
        self.good = (int(number), ArrayRecord(good))


def _norm(w: Vector) -> float:
    # A dot product with itself needs no second array; if it overflows, the norm is too large anyway.
    return math.sqrt(np.vdot(w, w))

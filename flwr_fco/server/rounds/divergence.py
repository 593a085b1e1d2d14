"""When a run has diverged, what that was due to, and the last model before it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from flwr_fco.core.layout import Vector

#: A model of this many times the first models' norm has diverged. No run that converges grows like that: one whose
#: steps are small enough moves no further in a round than in the first ones, and its solution would be a million
#: rounds away.
_TOO_LARGE = 1e6
#: A model of at most this many times the first models' norm is worth keeping.
_GOOD = 10.0


class DivergenceWatch:
    """Follows the norm of the model from round to round.

    A run has diverged in a round whose model has a norm beyond 1e6 times the largest of: that of the initial model,
    that after the first round that counted, sqrt(d) (coefficients of size 1). The last good model is the last one of
    at most ten times that size.

    Parameters
    ----------
    arrays : ArrayRecord
        The initial model.
    w : ndarray of float64, shape (d,)
        The same as a vector.

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
        """Look at the model after a round; return what is wrong with it, nothing if it is as it should be.

        Parameters
        ----------
        server_round : int
        arrays : ArrayRecord
        w : ndarray of float64
            Its entries, all or those that may not be zero.
        """
        norm = _norm(w)
        if not norm <= _TOO_LARGE * self._scale:
            return f"the norm of the model is {norm:.2g}; it was {self._scale:.2g} in the first rounds"
        if self._first:
            self._first, self._scale = False, max(self._scale, norm)
        if norm <= _GOOD * self._scale:
            self.good = (server_round, arrays)
        return ""

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the size of the first models, and the last good one."""
        number, arrays = self.good
        return {
            "sizes": np.array([self._scale, self._first, number]),
            **{f"good/{name}": array.numpy() for name, array in arrays.items()},
        }

    def from_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take back what :meth:`to_arrays` gave."""
        scale, first, number = arrays["sizes"].tolist()
        self._scale, self._first = scale, bool(first)
        good = {name.removeprefix("good/"): Array(value) for name, value in arrays.items() if name != "sizes"}
        self.good = (int(number), ArrayRecord(good))


def _norm(w: Vector) -> float:
    # A product with itself needs no second array; where it overflows, the norm is too large for anything anyway.
    return math.sqrt(np.vdot(w, w))

"""Which primal point the user sees: the last one, an average, a moving average, each as it is or made sparse.

One implementation for all strategies. What it has summed is in the strategy's state (fields `total` and `averaged`),
so that it is saved and restored with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from flwr_fco.core.layout import Vector
from flwr_fco.errors import ConfigurationError

__all__ = ["PointAverage", "largest_entries"]

_State = TypeVar("_State")


def largest_entries(vector: Vector, count: int) -> Vector:
    """Return the vector with only its `count` entries of largest absolute value; of equal ones the first are kept.

    Parameters
    ----------
    vector : ndarray of float64, shape (d,)
    count : int
        s.

    Examples
    --------
    >>> import numpy as np
    >>> largest_entries(np.array([1.0, -3.0, 2.0]), 2)
    array([ 0., -3.,  2.])
    """
    if count >= vector.size:
        return vector.copy()
    kept = np.argsort(-np.abs(vector), kind="stable")[:count]
    result = np.zeros_like(vector)
    result[kept] = vector[kept]
    return result


@dataclass(frozen=True)
class PointAverage:
    """The output of a strategy.

    Parameters
    ----------
    output : {"last", "average", "moving-average"} or another word
        The last point, the mean over all rounds, or the mean over the last `window` rounds. Any other word is the mean
        of points that the strategy sums by itself, such as FedDualAvg's ``"shadow"``.
    window : int, default 100
        Number of rounds in the moving average.
    sparsity : int, optional
        How many entries of the output are kept; all by default.

    Examples
    --------
    >>> from typing import NamedTuple
    >>> class State(NamedTuple):
    ...     total: Vector
    ...     averaged: int
    >>> averaging = PointAverage("average")
    >>> state = State(averaging.start(2), 0)
    >>> state = averaging.add(averaging.add(state, np.array([1.0, 0.0])), np.array([3.0, 2.0]))
    >>> averaging.point(state, lambda: np.zeros(2))
    array([2., 1.])
    """

    output: str
    window: int = 100
    sparsity: int | None = None

    @property
    def averages(self) -> bool:
        """Whether there is anything to sum."""
        return self.output != "last"

    def start(self, size: int) -> Vector:
        """Return the field `total` of the first state: nothing, a sum, or the last points one below the other.

        Parameters
        ----------
        size : int
            d.

        Raises
        ------
        ConfigurationError
            If that many points do not fit into the memory.
        """
        if not self.averages:
            return np.zeros(0)
        if self.output != "moving-average":
            return np.zeros(size)
        try:
            return np.zeros((self.window, size))
        except (MemoryError, ValueError) as error:
            raise ConfigurationError(
                f"window={self.window}: that many models of {size} numbers do not fit into the memory; expected the "
                "number of the last rounds whose mean is wanted, such as 100"
            ) from error

    def add(self, state: _State, point: Vector | Callable[[], Vector]) -> _State:
        """Return the state after one more point.

        Parameters
        ----------
        state : NamedTuple
            With the fields `total` and `averaged`.
        point : ndarray of float64, shape (d,), or callable
            The point, or a function that returns it, which is called only if there is something to sum.
        """
        if not self.averages:
            return state
        primal = point() if callable(point) else point
        before: Any = state
        if self.output == "moving-average":
            total = before.total.copy()
            total[before.averaged % self.window] = primal
        else:
            total = before.total + primal
        after: _State = before._replace(total=total, averaged=before.averaged + 1)
        return after

    def mean(self, state: Any) -> Vector:
        """Return the mean of the points that have been summed."""
        if self.output == "moving-average":
            return np.asarray(state.total[: min(state.averaged, self.window)].mean(axis=0))
        return np.asarray(state.total / state.averaged)

    def point(self, state: Any, last: Callable[[], Vector]) -> Vector:
        """Return the primal point that evaluation and the user see.

        Parameters
        ----------
        state : NamedTuple
        last : callable
            Returns the primal point of the state.
        """
        point = self.mean(state) if self.averages and state.averaged else last()
        return point if self.sparsity is None else largest_entries(point, self.sparsity)

    def __str__(self) -> str:
        window = f" of {self.window} rounds" if self.output == "moving-average" else ""
        return f"{self.output}{window}" + ("" if self.sparsity is None else f", its {self.sparsity} largest entries")

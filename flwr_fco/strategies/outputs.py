"""Which primal point the user sees: the last one, an average, a moving average, each as it is or made sparse."""

from __future__ import annotations

from typing import Any, ClassVar, Unpack

import numpy as np

from flwr_fco.errors import ConfigurationError
from flwr_fco.parameters import Vector
from flwr_fco.strategies.base import CompositeOptions, CompositeStrategy

__all__ = ["PointOutputs", "largest_entries"]


def largest_entries(vector: Vector, count: int) -> Vector:
    """Return the vector with all but its `count` largest entries (by size) set to zero; of equal ones the first stay.

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


class PointOutputs(CompositeStrategy):
    """Strategies that offer the last, the average and the moving average of their primal points, sparsified or not.

    Their state has the fields ``total`` and ``averaged`` that :meth:`summed` returns.

    Parameters
    ----------
    output : {"last", "average", "moving-average"}, default "last"
        The primal point of the last state, the mean over all rounds, or over the last `window` ones.
    window : int, default 100
        Rounds of the moving average.
    sparsity : int, optional
        Keep the so many largest entries of the output and set the others to zero; all are kept by default. The state
        does not change by it.
    **options
        See :class:`CompositeStrategy`.
    """

    outputs: ClassVar[tuple[str, ...]] = ("last", "average", "moving-average")

    def __init__(self, *, window: int = 100, sparsity: int | None = None, **options: Unpack[CompositeOptions]) -> None:
        super().__init__(**options)
        for name, value in (("window", window), ("sparsity", sparsity)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ConfigurationError(f"{name}={value!r}; expected a whole number >= 1")
        self.window, self.sparsity = window, sparsity

    def empty_sum(self, size: int) -> Vector:
        """Return the field ``total`` of the first state: nothing, a sum, or the last points one below the other."""
        if self.output == "last":
            return np.zeros(0)
        return np.zeros(size) if self.output == "average" else np.zeros((self.window, size))

    def summed(self, state: Any, primal: Vector) -> tuple[Vector, int]:
        """Return the fields ``total`` and ``averaged`` after one more point."""
        if self.output == "last":
            return state.total, 0
        if self.output == "average":
            return state.total + primal, state.averaged + 1
        recent = state.total.copy()
        recent[state.averaged % self.window] = primal
        return recent, state.averaged + 1

    def mean_point(self, state: Any) -> Vector:
        """Return the mean of the points that have been summed."""
        if self.output == "average":
            return np.asarray(state.total / state.averaged)
        return np.asarray(state.total[: min(state.averaged, self.window)].mean(axis=0))

    def output_point(self, state: Any) -> Vector:
        """Return the primal point that evaluation and the user see."""
        point = self.retrieve(state) if self.output == "last" or state.averaged == 0 else self.mean_point(state)
        return point if self.sparsity is None else largest_entries(point, self.sparsity)

    def output_text(self) -> str:
        """Return what :meth:`summary` says about the output."""
        window = f" of {self.window} rounds" if self.output == "moving-average" else ""
        return f"{self.output}{window}" + ("" if self.sparsity is None else f", its {self.sparsity} largest entries")

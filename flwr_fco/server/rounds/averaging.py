"""The primal point that the user sees: the last one, an average, or a moving average, each dense or sparsified."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fco.core.layout import Vector, largest_entries
from flwr_fco.core.validation import saved_array
from flwr_fco.errors import ConfigurationError
from flwr_fco.server.parts import Part


class PointAverage(Part):
    """The output of a strategy: the last point, or a mean of the points of earlier rounds.

    Parameters
    ----------
    output : {"last", "average", "moving-average"} or another word
        The last point, the mean over all rounds, or the mean over the last `window` rounds. Any other word means the
        mean of points that the strategy provides, such as FedDualAvg's ``"shadow"``.
    window : int, default 100
        Number of rounds in the moving average.
    sparsity : int, optional
        Number of entries of the output to keep; all by default.

    Examples
    --------
    >>> average = PointAverage("average")
    >>> average.start(2)
    >>> average.add([np.array([1.0, 0.0]), np.array([3.0, 2.0])])
    >>> average.point(lambda: np.zeros(2))
    array([2., 1.])
    """

    def __init__(self, output: str, window: int = 100, sparsity: int | None = None) -> None:
        self.output, self.window, self.sparsity = output, window, sparsity
        self.averages = output != "last"
        #: Whether the output is the unchanged last point.
        self.idle = not self.averages and sparsity is None
        self.forget()

    def forget(self) -> None:
        #: Sum and number of the averaged points; for a moving average also the last points.
        self._total: Vector = np.zeros(0)
        self._count = 0
        self._points: Vector = np.zeros((0, 0))
        self._before: tuple[Vector, int, list[tuple[int, Vector]]] = (self._total, 0, [])

    def start(self, size: int) -> None:
        """Start without points: a zero sum, and room for the last points, one per row.

        Raises
        ------
        ConfigurationError
            If the points do not fit into memory.
        """
        self._count = 0
        if not self.averages:
            return
        try:
            self._total = np.zeros(size)
            self._points = np.zeros((self.window if self.output == "moving-average" else 0, size))
        except (MemoryError, ValueError) as error:
            raise ConfigurationError(
                f"Average(window={self.window}): that many models of {size} numbers do not fit into the memory; "
                "expected the number of the last rounds whose mean is wanted, such as 100"
            ) from error

    def add(self, points: Iterable[Vector]) -> None:
        """Add points to the average.

        Parameters
        ----------
        points : iterable of ndarray of float64, shape (d,)
            The points of a round.
        """
        for point in points:
            if self.output == "moving-average":
                place = self._count % self.window
                replaced = self._points[place].copy()
                self._before[2].append((place, replaced))
                self._points[place] = point
                # Once per window the sum is recomputed, so that its rounding error does not grow with the rounds.
                self._total = self._total + (point - replaced) if place else self._points.sum(axis=0)
            else:
                self._total = self._total + point
            self._count += 1

    def begin_round(self) -> None:
        """Store the state that :meth:`take_back` restores."""
        self._before = (self._total, self._count, [])

    def take_back(self) -> None:
        """Undo the changes since :meth:`begin_round`, because the round did not count."""
        self._total, self._count, replaced = self._before
        for place, point in reversed(replaced):
            self._points[place] = point

    def mean(self) -> Vector:
        """Return the mean of the averaged points."""
        return np.asarray(self._total / min(self._count, self.window if len(self._points) else self._count))

    def point(self, last: Callable[[], Vector]) -> Vector:
        """Return the primal point that evaluation and the user see.

        Parameters
        ----------
        last : callable
            Returns the primal point of the state.
        """
        point = self.mean() if self.averages and self._count else last()
        return point if self.sparsity is None else largest_entries(point, self.sparsity)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the averaged points, or their sum, and their number."""
        if not self.averages:
            return {}
        points = {"points": self._points} if len(self._points) else {}
        return {"total": self._total, "count": np.array(self._count), **points}

    def from_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore what :meth:`to_arrays` returned.

        Raises
        ------
        ValueError
            If the points have another shape.
        """
        if not self.averages:
            return
        total = np.array(saved_array(arrays, "total", np.float64, self._total.shape))
        if len(self._points):
            self._points = np.array(saved_array(arrays, "points", np.float64, self._points.shape))
        self._total, self._count = total, int(saved_array(arrays, "count", np.int64, (), smallest=0))

    def __str__(self) -> str:
        window = f" of {self.window} rounds" if self.output == "moving-average" else ""
        return f"{self.output}{window}" + ("" if self.sparsity is None else f", its {self.sparsity} largest entries")

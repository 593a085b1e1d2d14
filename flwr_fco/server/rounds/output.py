"""What a round hands out: the point or its mean over rounds, what psi promises of it, and momentum."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from flwr_fco.algorithms.contract import Algorithm
from flwr_fco.algorithms.contract.replies import Mean
from flwr_fco.core.layout import Layout, Vector, all_finite, largest_entries
from flwr_fco.core.validation import saved_array
from flwr_fco.errors import ConfigurationError
from flwr_fco.regularizers.base import Array, BoundRegularizer
from flwr_fco.regularizers.separable import Zero
from flwr_fco.regularizers.spectral import MatrixRegularizer
from flwr_fco.server.parts import Host, Part
from flwr_fco.wire.arrays import primal_record
from flwr_fco.wire.protocol import Plan, Uplink


class Output(NamedTuple):
    """A primal model and what it was made from.

    Parameters
    ----------
    state : NamedTuple
        The server's state.
    plan : Plan
        Names, shapes and dtypes of the user's arrays.
    arrays : ArrayRecord
        Under the user's names, in the user's shapes and dtypes.
    point : ndarray of float64, shape (d,)
        The model as one vector.
    passed : dict of str to ndarray
        The arrays that are not optimised.
    """

    state: Any
    plan: Plan
    arrays: ArrayRecord
    point: Vector
    passed: dict[str, NDArray[Any]]

    @classmethod
    def of(
        cls, state: Any, plan: Plan, point: Vector, passed: dict[str, NDArray[Any]], *, takes: bool = False
    ) -> Output:
        """Return a point as the user sees it.

        Parameters
        ----------
        state : NamedTuple
            The server's state.
        plan : Plan
            What the clients were told before round 1.
        point : ndarray of float64, shape (d,)
            The point, flat.
        passed : dict of str to ndarray
            The arrays that are not optimised.
        takes : bool, default False
            Whether the point may be rounded in place, unless it is part of the state.
        """
        takes = takes and not any(isinstance(part, np.ndarray) and np.may_share_memory(part, point) for part in state)
        point = plan.layout.rounded(point, point if takes else None)
        return cls(state, plan, primal_record(plan.layout, point, passed), point, passed)

    def finite(self) -> bool:
        """Whether the model is finite: a map's exponential, or a conversion to the user's dtype, may overflow."""
        return all(map(all_finite, (self.point, *(a for a in self.passed.values() if a.dtype.kind == "f"))))


def check_state(algorithm: Algorithm, before: Any, after: Any) -> None:
    """Reject what an algorithm's ``aggregate`` has returned, unless it is the next state.

    Raises
    ------
    ConfigurationError
        If it is of another type, or of another round.
    """
    who = f"{type(algorithm).__name__}.aggregate returned"
    if type(after) is not type(before):
        raise ConfigurationError(f"{who} {_kind_of(after)}; expected a {type(before).__name__}, as `init` returns")
    if after.round != before.round + 1:
        what = f"{who} a state with round={after.round!r} after round={before.round!r}"
        raise ConfigurationError(f"{what}; expected {before.round + 1}, the number of rounds that have counted")


def check_point(algorithm: Algorithm, point: Any, size: int) -> None:
    """Reject what an algorithm's ``retrieve`` has returned, unless it is a flat model.

    Raises
    ------
    ConfigurationError
        If it has another shape.
    """
    if np.shape(point) != (size,):
        what = f"{type(algorithm).__name__}.retrieve returned {_kind_of(point)}"
        raise ConfigurationError(f"{what}; expected an array of shape ({size},), the flat model")


def _kind_of(value: object) -> str:
    return f"an array of shape {value.shape}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"


#: Rounding error of a zero singular value, in units of eps times the largest one times the longer side.
_NOISE = 64.0


def structure(psi: BoundRegularizer, layout: Layout, w: Vector) -> dict[str, int | float]:
    """Return metrics of the structure that psi promises, for a model.

    Parameters
    ----------
    psi : BoundRegularizer
        The regularizer, bound to the model's arrays.
    layout : Layout
        Layout with the user's dtypes: a float32 model on the boundary of a set, up to float32 rounding, is feasible.
    w : ndarray of float64, shape (d,)
        The flat model.

    Returns
    -------
    dict of str to number
        ``density``, the fraction of non-zero entries over all arrays whose psi is not about matrices; ``rank``, the
        largest rank over the arrays whose psi is about matrices; ``feasible``, 1 or 0, if a psi is a constraint. Empty
        without psi.

    Examples
    --------
    >>> from flwr_fco.regularizers import L1
    >>> layout = Layout.from_arrays({"coefficients": np.zeros(4), "intercept": np.zeros(1)})
    >>> structure(L1(1.0).bind(layout), layout, np.array([0.0, 0.0, 0.0, 1.0, 5.0]))
    {'density': 0.25}
    """
    if isinstance(psi.regularizer, Zero):
        return {}
    parts = [(w[block], shape, regularizer) for block, shape, regularizer in psi.blocks]
    if not parts and psi.scope == "joint":
        scattered = w[layout.regularized_mask()]
        parts = [(scattered, scattered.shape, psi.regularizer)]
    numbers: dict[str, int | float] = {}
    nonzero = size = rank = 0
    feasible = True
    for part, shape, regularizer in parts:
        if isinstance(regularizer, Zero) or not part.size:
            continue
        array = (part if layout.double else part.astype(np.float32)).reshape(shape)
        if isinstance(regularizer, MatrixRegularizer):
            rank = max(rank, _rank(regularizer.matrix(array)))
            numbers["rank"] = rank
        else:
            nonzero, size = nonzero + int(np.count_nonzero(part)), size + part.size
            numbers["density"] = nonzero / size
        if regularizer.constraint:
            feasible = feasible and math.isfinite(regularizer.value(array))
            numbers["feasible"] = int(feasible)
    return numbers


def _rank(matrix: Array) -> int:
    """Return the number of singular values that are not rounding error."""
    sigma = np.linalg.svd(matrix, compute_uv=False)
    noise = _NOISE * float(np.finfo(matrix.dtype).eps) * max(matrix.shape)
    return int((sigma > noise * float(sigma.max(initial=0.0))).sum())


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


class Momentum(Part):
    """Replaces a centre: velocity <- beta velocity + centre, and likewise for `elapsed`.

    Parameters
    ----------
    beta : float
        In (0, 1).
    centre : Mean
        Centre of a round's increments.
    """

    def __init__(self, beta: float, centre: Mean) -> None:
        self.beta, self.centre, self._size = beta, centre, 0
        self.forget()

    def forget(self) -> None:
        self._velocity: tuple[Vector, float] | None = None
        self._next: tuple[Vector, float] | None = None

    def start(self, size: int) -> None:
        """Take note of the size of the model."""
        self._size = size

    def __call__(self, uplinks: Sequence[Uplink]) -> tuple[Vector, float]:
        """Return the velocity after a round, which counts once the round has succeeded.

        Parameters
        ----------
        uplinks : sequence of Uplink
            Those of the round, with weights.
        """
        mean, elapsed = self.centre(uplinks)
        if self._velocity is not None:
            mean += self.beta * self._velocity[0]
            elapsed += self.beta * self._velocity[1]
        self._next = (mean.copy(), elapsed)
        return mean, elapsed

    def mean(self, uplinks: Sequence[Uplink], name: str = "increment", *, normalize: bool = False) -> Vector:
        """Return the plain weighted mean of a vector that clients send, without momentum.

        Parameters
        ----------
        uplinks : sequence of Uplink
            Those of the round, with weights.
        name : str, default "increment"
            Name of the vector.
        normalize : bool, default False
            Whether all clients are scaled to the same work, if the strategy does that.
        """
        return self.centre.mean(uplinks, name, normalize=normalize)

    def after_round(self, host: Host, before: Any, uplinks: Sequence[Uplink]) -> None:
        """Keep the velocity of a successful round."""
        self._velocity = self._next

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the velocity."""
        velocity, elapsed = (np.zeros(0), 0.0) if self._velocity is None else self._velocity
        return {"velocity": velocity, "elapsed": np.array(elapsed)}

    def from_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        velocity = saved_array(arrays, "velocity", np.float64, (None,))
        elapsed = saved_array(arrays, "elapsed", float, ())
        if velocity.size not in (0, self._size):
            raise ValueError(f"its velocity has {velocity.size} entries, expected {self._size}")
        self._velocity = (velocity, float(elapsed)) if velocity.size else None

    def describe(self) -> list[tuple[str, str]]:
        """Return the line about the momentum."""
        return [("Server momentum", f"{self.beta:g}")]

"""The model that the user sees after a round, and what psi promises of it: last or mean point, momentum, structure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fco.algorithms.contract.choices import Average, Last
from flwr_fco.algorithms.contract.replies import Mean
from flwr_fco.core.layout import Layout, Vector, largest_entries
from flwr_fco.messages.protocol import Uplink
from flwr_fco.regularizers import Zero
from flwr_fco.regularizers.base import BoundRegularizer


class PointAverage:
    """The last point, or the mean of the points of all rounds.

    Parameters
    ----------
    output : str, Last or Average
        The strategy's option.
    """

    saved = ("total", "count")

    def __init__(self, output: str | Last | Average) -> None:
        self.nonzeros = output.nonzeros if isinstance(output, Last) else None
        self.averages = output != "last" and not isinstance(output, Last)
        self.total: Vector | None = None
        self.count = 0

    def forget(self) -> None:
        """Restart, as for a new stage."""
        self.total, self.count = None, 0

    def add(self, points: Iterable[Vector]) -> None:
        """Add the points of a round; nothing changes in place, so that a round can be taken back."""
        for point in points:
            self.total = point if self.total is None else self.total + point
            self.count += 1

    def point(self, last: Vector) -> Vector:
        """Return the point that the user sees.

        Parameters
        ----------
        last : ndarray of float64, shape (d,)
            The primal point of the state.
        """
        if self.averages and self.total is not None:
            return np.asarray(self.total / self.count)
        return last if self.nonzeros is None else largest_entries(last, self.nonzeros)


class Momentum:
    """The mean with momentum: velocity <- beta velocity + mean(increment), and likewise for elapsed.

    Parameters
    ----------
    beta : float
        From 0 to 1, exclusive.
    centre : Mean
        The mean, or another centre.
    """

    saved = ("velocity",)

    def __init__(self, beta: float, centre: Mean) -> None:
        self.beta, self.centre = beta, centre
        self.velocity: tuple[Vector, float] | None = None
        #: What the velocity becomes when the round's update is kept.
        self.next: tuple[Vector, float] | None = None

    def __call__(self, uplinks: Sequence[Uplink]) -> tuple[Vector, float]:
        """Return the direction of the server's step, and its elapsed time."""
        mean, elapsed = self.centre(uplinks)
        if self.velocity is not None:
            mean += self.beta * self.velocity[0]
            elapsed += self.beta * self.velocity[1]
        self.next = mean.copy(), elapsed
        return mean, elapsed


def centre_of(mean: Mean) -> Callable[[Sequence[float], Sequence[float]], float]:
    """Return the centre of numbers with weights that sum to 1: their mean, or the strategy's robust centre.

    Examples
    --------
    >>> centre_of(Mean(aggregation="median"))([1.0, 2.0, -1e9], [0.3, 0.3, 0.4])
    1.0
    """

    def centre(values: Sequence[float], shares: Sequence[float]) -> float:
        if mean.aggregation == "mean":
            return math.fsum(value * share for value, share in zip(values, shares, strict=True))
        return float(mean.of([np.array([value], np.float64) for value in values], shares)[0])

    return centre


def structure(psi: BoundRegularizer, layout: Layout, w: Vector, given: Layout) -> dict[str, int | float]:
    """Return density, rank and feasibility of a model, as far as psi is about them.

    Parameters
    ----------
    psi : BoundRegularizer
        On the flat vector.
    layout : Layout
        Of the model.
    w : ndarray of float64, shape (d,)
        The model.
    given : Layout
        The user's: the density is also about arrays that psi is to act on once somebody trains them.
    """
    if isinstance(psi.regularizer, Zero):
        return {}
    acted_on = {*layout.regularized_names}
    still = [w[entry.block] for entry in given.optimized if entry.regularized and entry.name not in acted_on]
    nonzero, size = sum(int(np.count_nonzero(part)) for part in still), sum(part.size for part in still)
    numbers: dict[str, int | float] = {"density": nonzero / size} if size and not psi.parts else {}
    for place, shape, regularizer in psi.parts:
        part = w[place]
        if isinstance(regularizer, Zero) or not part.size:
            continue
        array = (part if layout.double else part.astype(np.float32)).reshape(shape)
        if regularizer.of_values() is not None:
            numbers["rank"] = max(numbers.get("rank", 0), _rank(regularizer.matrix(array)))
        else:
            nonzero, size = nonzero + int(np.count_nonzero(part)), size + part.size
            numbers["density"] = nonzero / size
        if regularizer.constraint:
            feasible = math.isfinite(regularizer.value(array))
            numbers["feasible"] = int(bool(numbers.get("feasible", 1)) and feasible)
    return numbers


def _rank(matrix: NDArray[Any]) -> int:
    """Return the number of singular values above the rounding of the largest."""
    sigma = np.linalg.svd(matrix, compute_uv=False)
    noise = 64.0 * float(np.finfo(matrix.dtype).eps) * max(matrix.shape) * float(sigma.max(initial=0.0))
    return int((sigma > noise).sum())


def average_metrics(reports: Sequence[Mapping[str, Any]], weights: Sequence[float], centre: Any) -> dict[str, Any]:
    """Return the weighted means of what more than half of the clients report, in the same form.

    Parameters
    ----------
    reports : sequence of mapping of str to number or list
        One for each client.
    weights : sequence of float
        Sum to 1.
    centre : callable
        ``(values, weights) -> float``: the mean, or the strategy's robust centre.
    """
    means: dict[str, Any] = {}
    for name in dict.fromkeys(name for report in reports for name in report):
        pairs = [(report[name], share) for report, share in zip(reports, weights, strict=True) if name in report]
        form = type(pairs[0][0]) is list and len(pairs[0][0])
        pairs = [(v, share) for v, share in pairs if (type(v) is list and len(v)) == form]
        part = math.fsum(share for _, share in pairs)
        if 2 * len(pairs) <= len(reports) or part <= 0.0:
            continue
        first, shares = pairs[0][0], [share / part for _, share in pairs]
        if all(value == first for value, _ in pairs):
            means[name] = first
        elif form is False:
            means[name] = centre([value for value, _ in pairs], shares)
        else:
            means[name] = [centre([value[k] for value, _ in pairs], shares) for k in range(form)]
    return means

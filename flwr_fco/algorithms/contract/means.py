"""The mean of the clients' increments, and robust ones that a minority cannot move far.

Robust are the trimmed mean, the median and the geometric median.
The algorithms are defined for the mean, but a single client controls it: whatever the other clients send, it can move
the mean anywhere. A robust centre bounds the influence of a minority (by weight). The price is that with honest but
different clients it is not the mean, so the limit is another point.

All centres are weighted: a client has its weight p_m, and a liar's weight is what it reports, within ``max_examples``
and ``max_ratio``; with ``weighting="uniform"`` or weights by partition clients do not report a weight.

Sources: Yin, Chen, Ramchandran, Bartlett (ICML 2018) for the median and the trimmed mean, coordinate by coordinate;
Pillutla, Kakade, Harchaoui (IEEE TSP 2022) for the geometric median by smoothed Weiszfeld steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from flwr_fco.core.layout import Vector
from flwr_fco.core.sparse import dense, weighted_sum
from flwr_fco.wire.protocol import Uplink

Matrix = NDArray[np.float64]

#: Coordinates sorted at a time, so that the clients' rows of them fit into the cache.
_BLOCK = 4096
#: Maximum number of Weiszfeld steps, and the relative change at which they stop.
_STEPS, _TOLERANCE = 100, 1e-10


def robust_mean(rule: str, rows: Sequence[Vector], weights: Sequence[float], *, trim: float) -> Vector:
    """Return a centre of the rows.

    Parameters
    ----------
    rule : {"trimmed", "median", "geometric-median"}
        Which centre.
    rows : sequence of ndarray of float64, shape (d,)
        One for each client.
    weights : sequence of float
        Sum to 1.
    trim : float
        For the trimmed mean.
    """
    matrix, shares = np.array(rows), np.array(weights)
    if rule == "trimmed":
        return trimmed_mean(matrix, shares, trim)
    return median(matrix, shares) if rule == "median" else geometric_median(matrix, shares)


def trimmed_mean(rows: Matrix, weights: Vector, trim: float) -> Vector:
    """Return the mean of each coordinate, without the fraction `trim` of the weight at each end.

    Parameters
    ----------
    rows : ndarray of float64, shape (M, d)
        One for each client.
    weights : ndarray of float64, shape (M,)
        Sum to 1.
    trim : float
        From 0 to 1/2, exclusive.

    Examples
    --------
    >>> trimmed_mean(np.array([[-9.0], [1.0], [2.0], [3.0], [99.0]]), np.full(5, 0.2), 0.2)
    array([2.])
    """

    def part(values: Matrix, shares: Matrix) -> Vector:
        ends = np.cumsum(shares, axis=0)
        kept = np.minimum(ends, 1.0 - trim) - np.maximum(ends - shares, trim)
        np.maximum(kept, 0.0, out=kept)
        return np.asarray((kept * values).sum(axis=0) / kept.sum(axis=0))

    return _by_coordinate(rows, weights, part)


def median(rows: Matrix, weights: Vector) -> Vector:
    """Return the weighted median of each coordinate; the midpoint if half of the weight is on either side.

    Parameters
    ----------
    rows : ndarray of float64, shape (M, d)
        One for each client.
    weights : ndarray of float64, shape (M,)
        Sum to 1.

    Examples
    --------
    >>> median(np.array([[1.0], [2.0], [99.0]]), np.array([0.25, 0.5, 0.25])), median(np.eye(2), np.full(2, 0.5))
    (array([2.]), array([0.5, 0.5]))
    """

    def part(values: Matrix, shares: Matrix) -> Vector:
        ends = np.cumsum(shares, axis=0)
        # 1e-12: sums of equal weights must find the middle despite rounding.
        low = (ends < 0.5 - 1e-12).sum(axis=0)
        high = np.minimum((ends <= 0.5 + 1e-12).sum(axis=0), len(rows) - 1)
        columns = np.arange(values.shape[1])
        return np.asarray(0.5 * (values[low, columns] + values[np.maximum(low, high), columns]))

    return _by_coordinate(rows, weights, part)


def geometric_median(rows: Matrix, weights: Vector) -> Vector:
    """Return the point with the smallest weighted sum of distances to the rows, by smoothed Weiszfeld steps.

    Parameters
    ----------
    rows : ndarray of float64, shape (M, d)
        One for each client.
    weights : ndarray of float64, shape (M,)
        Sum to 1.

    Examples
    --------
    >>> geometric_median(np.array([[0.0], [1.0], [1e6]]), np.full(3, 1 / 3)).round(3)
    array([1.])
    """
    point = median(rows, weights)
    scale = float(np.median(np.linalg.norm(rows - point, axis=1)))
    smallest = 1e-9 * scale
    if scale == 0.0:
        return point
    for _ in range(_STEPS):
        shares = weights / np.maximum(np.linalg.norm(rows - point, axis=1), smallest)
        following = (shares / shares.sum()) @ rows
        moved = float(np.linalg.norm(following - point))
        point = following
        if moved <= _TOLERANCE * scale:
            break
    return np.asarray(point)


def _by_coordinate(rows: Matrix, weights: Vector, part: Callable[[Matrix, Matrix], Vector]) -> Vector:
    """Apply a function to the sorted values of each coordinate and their weights, block by block."""
    result = np.empty(rows.shape[1])
    for begin in range(0, rows.shape[1], _BLOCK):
        block = rows[:, begin : begin + _BLOCK]
        order = np.argsort(block, axis=0, kind="stable")
        result[begin : begin + _BLOCK] = part(np.take_along_axis(block, order, axis=0), weights[order])
    return result


def mean_increment(
    uplinks: Sequence[Uplink],
    *,
    normalize: bool,
    name: str = "increment",
    aggregation: str = "mean",
    trim: float = 0.0,
) -> tuple[Vector, float]:
    """Return the weighted mean of the clients' increments and of their elapsed times, or another centre of both.

    Parameters
    ----------
    uplinks : sequence of Uplink
        With weights p_m that sum to 1.
    normalize : bool
        Multiply each increment and its elapsed time by mean(elapsed) / elapsed_m first, so that all clients have done
        the same work (the idea of FedNova). With equal work the result is bit-identical.
    name : str, default "increment"
        Name of the vector.
    aggregation : {"mean", "trimmed", "median", "geometric-median"}, default "mean"
        Centre to use instead of the means.
    trim : float, default 0.0
        For ``"trimmed"``.

    Returns
    -------
    mean : ndarray of float64
    elapsed : float

    Examples
    --------
    >>> import numpy as np
    >>> short = Uplink({"increment": np.array([1.0])}, elapsed=1.0, steps=1, weight=0.5)
    >>> long = Uplink({"increment": np.array([3.0])}, elapsed=3.0, steps=3, weight=0.5)
    >>> mean_increment([short, long], normalize=True)
    (array([2.]), 2.0)
    """
    if aggregation != "mean":
        first = uplinks[0].step_sizes
        equal = all(uplink.elapsed == first for uplink in uplinks)
        elapsed = first
        weights = [uplink.weight for uplink in uplinks]
        if not equal:
            times = [np.array([uplink.step_sizes]) for uplink in uplinks]
            elapsed = float(robust_mean(aggregation, times, weights, trim=trim)[0])
        factors = [1.0 if equal or not normalize else elapsed / uplink.step_sizes for uplink in uplinks]
        rows = [
            np.multiply(dense(uplink.vectors[name]), factor, dtype=np.float64)
            for uplink, factor in zip(uplinks, factors, strict=True)
        ]
        return robust_mean(aggregation, rows, weights, trim=trim), elapsed
    factors, elapsed = factors_of(uplinks, normalize=normalize)
    vectors = [uplink.vectors[name] for uplink in uplinks]
    return weighted_sum(zip(factors, vectors, strict=True), vectors[0].shape), elapsed


def factors_of(uplinks: Sequence[Uplink], *, normalize: bool) -> tuple[list[float], float]:
    """Return the factors of the clients' increments in the mean, and the mean of the elapsed times.

    Parameters
    ----------
    uplinks : sequence of Uplink
        Those of the round, with weights.
    normalize : bool
        As for :func:`mean_increment`.
    """
    first = uplinks[0].step_sizes
    equal = all(uplink.elapsed == first for uplink in uplinks)
    elapsed = first if equal else math.fsum(uplink.weight * uplink.step_sizes for uplink in uplinks)
    scale = not (equal or not normalize)
    return [uplink.weight * (elapsed / uplink.step_sizes) if scale else uplink.weight for uplink in uplinks], elapsed


class Direction(Protocol):
    """The direction of the server's step: a :class:`Mean`, or a part that modifies one."""

    def __call__(self, uplinks: Sequence[Uplink]) -> tuple[Vector, float]:
        """Return the centre of the increments, a new array, and the mean of the elapsed times."""

    def mean(self, uplinks: Sequence[Uplink], name: str = "increment", *, normalize: bool = False) -> Vector:
        """Return the plain weighted mean of a vector that clients send."""


class Mean(NamedTuple):
    """The direction of the server's step: the mean of the increments, or another centre.

    Parameters
    ----------
    normalize : bool, default True
        Whether all clients are scaled to the same work; see :func:`mean_increment`.
    aggregation : {"mean", "trimmed", "median", "geometric-median"}, default "mean"
        Which centre.
    trim : float, default 0.2
        For ``"trimmed"``.
    """

    normalize: bool = True
    aggregation: str = "mean"
    trim: float = 0.2

    def of(self, rows: Sequence[Vector], weights: Sequence[float]) -> Vector:
        """Return this centre of vectors: their weighted mean, or another one.

        Parameters
        ----------
        rows : sequence of ndarray of float64, shape (d,)
            One for each client.
        weights : sequence of float
            Sum to 1.

        Examples
        --------
        >>> Mean(aggregation="median").of([np.array([1.0]), np.array([2.0]), np.array([-1e9])], [0.3, 0.4, 0.3])
        array([1.])
        """
        if self.aggregation != "mean":
            return robust_mean(self.aggregation, rows, weights, trim=self.trim)
        mean: Vector = weighted_sum(zip(weights, rows, strict=True), rows[0].shape)
        return mean

    def __call__(self, uplinks: Sequence[Uplink]) -> tuple[Vector, float]:
        """Return the centre of the increments and the mean of the elapsed times.

        Parameters
        ----------
        uplinks : sequence of Uplink
            Those of the round, with weights.
        """
        return mean_increment(uplinks, normalize=self.normalize, aggregation=self.aggregation, trim=self.trim)

    def mean(self, uplinks: Sequence[Uplink], name: str = "increment", *, normalize: bool = False) -> Vector:
        """Return the plain weighted mean of a vector that clients send.

        Parameters
        ----------
        uplinks : sequence of Uplink
            Those of the round, with weights.
        name : str, default "increment"
            Name of the vector.
        normalize : bool, default False
            Whether all clients are scaled to the same work, if the strategy does that.
        """
        return mean_increment(uplinks, normalize=normalize and self.normalize, name=name)[0]

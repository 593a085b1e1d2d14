"""A round's replies, as an algorithm reads them: the mean of increments, and robust ones.

Robust are the trimmed mean, the median and the geometric median.
The algorithms are defined for the mean, but a single client controls it: whatever the other clients send, it can move
the mean anywhere. A robust centre bounds the influence of a minority (by weight). The price is that with honest but
different clients it is not the mean, so the limit is another point.

All centres are weighted: a client has its weight p_m, and a liar's weight is what it reports, within what ``Bounds``
allows; with ``weighting="uniform"`` all weights are equal.

Sources: Yin, Chen, Ramchandran, Bartlett (ICML 2018) for the median and the trimmed mean, coordinate by coordinate;
Pillutla, Kakade, Harchaoui (IEEE TSP 2022) for the geometric median by smoothed Weiszfeld steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import repeat
from operator import mul
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flwr_fco.core.layout import SparseVector, Vector, dense
from flwr_fco.errors import ProtocolError
from flwr_fco.kernels.losses import add_scaled
from flwr_fco.messages.protocol import Uplink

Matrix = NDArray[np.float64]

#: How many times the clients' median a claim of smoothness, or of work, may be.
LARGEST_CLAIM = 10.0
#: Coordinates sorted at a time, so that the clients' rows of them fit into the cache.
_BLOCK = 4096
#: Numbers in a block of a sum: half a megabyte.
_SUMMED = 65_536
#: Dtypes that a sum reads; NumPy makes a new dtype of a type each time.
_READ = np.dtype(np.float64), np.dtype(np.float32)
#: Maximum number of Weiszfeld steps, and the relative change, and smoothing, at which they stop.
_STEPS = 100
_TOLERANCE = 1e-10
#: Without factors.
_EQUAL = repeat(1.0)


def weighted_sum(pairs: Iterable[tuple[float, NDArray[Any] | SparseVector]], shape: tuple[int, ...]) -> Any:
    """Return the sum of factors times vectors, in their order.

    float32 vectors are read without conversion and added in float64. The result is bit-identical to adding one vector
    after another, in no more memory than that of the result: all are added to a block of it that stays in the cache.

    Parameters
    ----------
    shape : tuple of int
        Shape of each vector.

    Examples
    --------
    >>> weighted_sum([(0.5, np.ones(2)), (2.0, SparseVector(np.array([1], np.int32), np.ones(1), 2))], (2,))
    array([0.5, 2.5])
    """
    total = np.zeros(shape)
    flat = total.reshape(-1)
    held = [(float(factor), _readable(vector)) for factor, vector in pairs]
    # Sparse vectors alone are short enough to be added whole.
    size = flat.size + 1 if all(isinstance(vector, SparseVector) for _, vector in held) else _SUMMED
    for begin in range(0, flat.size, size):
        end = begin + size
        part = flat[begin:end]
        for factor, vector in held:
            if isinstance(vector, SparseVector):
                here = slice(*np.searchsorted(vector.indices, (begin, end)))
                part[vector.indices[here] - begin] += factor * vector.values[here].astype(np.float64, copy=False)
            else:
                add_scaled(part, factor, vector[begin:end])
    return total


def _readable(vector: Any) -> Any:
    """Return a vector as the kernel reads it, which is compiled separately for writable and read-only arrays."""
    if isinstance(vector, SparseVector):
        return vector
    plain = vector if vector.dtype in _READ else vector.astype(np.float64)
    flags = plain.flags
    if type(plain) is not np.ndarray or plain.ndim != 1 or flags.writeable or not flags.c_contiguous:
        plain = np.ascontiguousarray(plain).reshape(-1).view()
        plain.flags.writeable = False
    return plain


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
    return _by_coordinate(rows, weights, lambda begin, end: np.minimum(end, 1.0 - trim) - np.maximum(begin, trim))


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
    # 1e-12: sums of equal weights must find the middle despite rounding.
    return _by_coordinate(rows, weights, lambda begin, end: (end >= 0.5 - 1e-12) & (begin <= 0.5 + 1e-12))


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
    scale = smoothing = float(np.median(np.linalg.norm(rows - point, axis=1)))
    if scale == 0.0:
        return point
    for _ in range(_STEPS):
        # Less of it from step to step: from a point that is a client's own, no step would lead away without it.
        smoothing = max(0.5 * smoothing, _TOLERANCE * scale)
        shares = weights / (lengths := np.maximum(np.linalg.norm(rows - point, axis=1), smoothing))
        before, point = point, (shares / shares.sum()) @ rows
        # Nothing is smoothed where every row is further away.
        if max(float(np.linalg.norm(point - before)), smoothing * (lengths.min() <= smoothing)) <= _TOLERANCE * scale:
            break
    return np.asarray(point)


def _by_coordinate(rows: Matrix, weights: Vector, part: Callable[[Matrix, Matrix], Any]) -> Vector:
    """Return the mean of each coordinate's values, by what counts of each, block by block.

    That is a function of the weight of all smaller values and of that with its own.
    """
    result = np.empty(rows.shape[1])
    for first in range(0, rows.shape[1], _BLOCK):
        block = rows[:, first : first + _BLOCK]
        order = np.argsort(block, axis=0, kind="stable")
        shares = weights[order]
        ends = np.cumsum(shares, axis=0)
        kept = np.where(shares > 0.0, np.maximum(part(ends - shares, ends), 0.0), 0.0)
        # A value that does not count may be infinite.
        sums = np.multiply(kept, np.take_along_axis(block, order, axis=0), out=np.zeros_like(kept), where=kept > 0.0)
        result[first : first + _BLOCK] = sums.sum(axis=0) / kept.sum(axis=0)
    return result


class Rejected(ProtocolError):
    """A reply cannot be, by the meaning of its numbers.

    Parameters
    ----------
    uplink : Uplink
        The reply.
    reason : str
        Why it does not count.
    """

    def __init__(self, uplink: Uplink, reason: str) -> None:
        super().__init__(reason)
        self.uplink = uplink


class Mean(NamedTuple):
    """The direction of the server's step: the mean of the increments and of the elapsed times, or another centre.

    Parameters
    ----------
    normalize : bool, default True
        Multiply each increment and its elapsed time by mean(elapsed) / elapsed_m first, so that all clients have done
        the same work (the idea of FedNova); in this mean a time counts as ten times the median at most. With equal work
        the result is bit-identical.
    aggregation : {"mean", "trimmed", "median", "geometric-median"}, default "mean"
        Which centre.
    trim : float, default 0.2
        For ``"trimmed"``.

    Examples
    --------
    >>> short = Uplink({"increment": np.array([1.0])}, elapsed=1.0, steps=1, weight=0.5)
    >>> long = Uplink({"increment": np.array([3.0])}, elapsed=3.0, steps=3, weight=0.5)
    >>> Mean()([short, long])
    (array([2.]), 2.0)
    >>> Mean()([short._replace(weight=0.75), long._replace(elapsed=1e9, weight=0.25)])
    (array([2.4375]), 3.25)
    """

    normalize: bool = True
    aggregation: str = "mean"
    trim: float = 0.2

    def of(self, rows: Sequence[Any], weights: Iterable[float], factors: Iterable[float] = _EQUAL) -> Vector:
        """Return this centre of vectors, multiplied by factors: their weighted mean, or another one.

        Parameters
        ----------
        rows : sequence of ndarray, shape (d,), or SparseVector
            One for each client.
        weights : iterable of float
            Sum to 1.
        factors : iterable of float
            By default 1.

        Examples
        --------
        >>> Mean(aggregation="median").of([np.array([1.0]), np.array([2.0]), np.array([-1e9])], [0.3, 0.4, 0.3])
        array([1.])
        """
        if self.aggregation == "mean":
            return np.asarray(weighted_sum(zip(map(mul, weights, factors), rows, strict=True), rows[0].shape))
        matrix = np.array([own * dense(row) for row, own in zip(rows, factors, strict=False)])
        shares = np.array(list(weights))
        if self.aggregation == "trimmed":
            return trimmed_mean(matrix, shares, self.trim)
        return median(matrix, shares) if self.aggregation == "median" else geometric_median(matrix, shares)

    def of_numbers(self, values: Sequence[float], weights: Sequence[float]) -> float:
        """Return this centre of numbers, with weights that sum to 1; the mean is rounded once.

        Examples
        --------
        >>> Mean(aggregation="median").of_numbers([1.0, 2.0, -1e9], [0.3, 0.3, 0.4])
        1.0
        """
        if self.aggregation == "mean":
            return math.fsum(value * weight for value, weight in zip(values, weights, strict=True))
        return float(self.of([np.array([value], np.float64) for value in values], weights)[0])

    def errors(self, losses: Matrix, weights: Vector) -> Matrix:
        """Return each model's centre of losses, its standard error, and that of its difference to the smallest centre.

        With weights p_c that sum to 1 and losses l_c: l = sum_c p_c l_c, and sqrt(C / (C - 1) sum_c p_c^2 (l_c - l)^2),
        the usual standard error for equal weights. In differences of the same data the levels of the sites cancel. With
        another centre both sums are that centre, with the weights p_c: by p_c^2 a site with a third of the rows can be
        most of it.

        Parameters
        ----------
        losses : ndarray of float64, shape (C, L)
            Of each part of the data, at each model.
        weights : ndarray of float64, shape (C,)
            Of each part.

        Returns
        -------
        ndarray of float64, shape (3, L)

        Examples
        --------
        >>> Mean().errors(np.array([[3.0, 2.0], [9.0, 8.5]]), np.array([0.5, 0.5])).tolist()
        [[6.0, 5.25], [3.0, 3.25], [0.25, 0.0]]
        >>> losses, weights = np.array([[9e9], [1.0], [2.0], [3.0]]), np.array([3.0, 1.0, 1.0, 2.0])
        >>> Mean(aggregation="median").errors(losses, weights).round(2).tolist()
        [[3.0], [1.28], [0.0]]
        """
        parts, shares = weights.size, weights / weights.sum()
        scale = float(shares @ shares) * parts / (parts - 1) if parts > 1 else 0.0
        of_squares = shares**2 / (shares @ shares) if self.aggregation == "mean" else shares
        rows = [self.of([*losses], shares)]
        for own in (losses, losses - losses[:, [int(np.argmin(rows[0]))]]):
            rows.append(np.sqrt(scale * self.of([*(own - self.of([*own], shares)) ** 2], of_squares)))
        return np.array(rows)

    def factors(self, uplinks: Sequence[Uplink]) -> tuple[list[float], float]:
        """Return what the clients' increments are multiplied by, and the centre of the elapsed times.

        Parameters
        ----------
        uplinks : sequence of Uplink
            Those of the round, with weights.
        """
        first = uplinks[0].step_sizes
        each = [1.0] * len(uplinks)
        if all(uplink.elapsed == first for uplink in uplinks):
            return each, first
        times = [uplink.step_sizes for uplink in uplinks]
        weights = [uplink.weight for uplink in uplinks]
        # Whoever claims more rows, and so more work, makes nobody's step much longer: any common time is as right.
        most = LARGEST_CLAIM * Mean(aggregation="median").of_numbers(times, weights) if self.normalize else math.inf
        elapsed = self.of_numbers([min(own, most) for own in times], weights)
        return [elapsed / own for own in times] if self.normalize else each, elapsed

    def __call__(self, uplinks: Sequence[Uplink], name: str = "increment") -> tuple[Vector, float]:
        """Return the centre of the increments and of the elapsed times.

        Parameters
        ----------
        uplinks : sequence of Uplink
            Those of the round, with weights.
        name : str, default "increment"
            Name of the vector.
        """
        factors, elapsed = self.factors(uplinks)
        return self.of([up.vectors[name] for up in uplinks], [up.weight for up in uplinks], factors), elapsed


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
        self.beta = beta
        self.centre = centre
        self.velocity: tuple[Any, float] = (0.0, 0.0)

    def __call__(self, uplinks: Sequence[Uplink]) -> tuple[Vector, float]:
        """Return the direction of the server's step, and its elapsed time."""
        mean, elapsed = self.centre(uplinks)
        mean += self.beta * self.velocity[0]
        elapsed += self.beta * self.velocity[1]
        self.velocity = mean.copy(), elapsed
        return mean, elapsed


class Replies:
    """The replies that count, sorted by partition id, with weights that sum to 1.

    Iterated over, they are uplinks with dense float64 vectors. Means and sums read vectors as they arrived (sparse, or
    float32) and cost no copies.

    Parameters
    ----------
    uplinks : sequence of Uplink
        Those of the round, with weights.
    centre : Mean, or callable of the uplinks, optional
        The direction of the server's step; by default the mean, with all clients scaled to the same work.
    memories : Ledger, optional
        The record of clients that remember something.

    Examples
    --------
    >>> replies = Replies([Uplink({"increment": np.ones(2)}, 0.5, 1, weight=w) for w in (0.25, 0.75)])
    >>> replies.mean()
    (array([1., 1.]), 0.5)
    """

    def __init__(self, uplinks: Sequence[Uplink], centre: Any = None, memories: Any = None) -> None:
        self._uplinks = uplinks
        self._centre = Mean() if centre is None else centre
        self._memories = memories

    def __len__(self) -> int:
        """Return the number of replies."""
        return len(self._uplinks)

    def __iter__(self) -> Iterator[Uplink]:
        """Yield the replies with dense float64 vectors."""
        return map(_whole, self._uplinks)

    def mean(self, common: Vector | None = None) -> tuple[Vector, float]:
        """Return the mean of the increments, or the centre that ``aggregation=`` chose, and of the elapsed times.

        With unequal work all clients are scaled to the same, if the strategy does that. The vector is a new array.

        Parameters
        ----------
        common : ndarray of float64, shape (d,), optional
            The vector that the method's `sparse` names, whose effect clients with sparse features have left out.
        """
        mean, elapsed = self._centre(self._uplinks)
        if common is not None and any(map(_is_sparse, self._uplinks)):
            pairs = zip(self._centre.factors(self._uplinks)[0], self._uplinks, strict=True)
            mean -= sum(f * up.weight * up.step_sizes for f, up in pairs if _is_sparse(up)) * common
        return mean, elapsed

    def moves(self, common: Vector | None = None) -> Vector:
        """Return the sum of the clients' weights times their moves, increment / elapsed.

        Parameters
        ----------
        common : ndarray of float64, shape (d,), optional
            As for :meth:`mean`.
        """
        each = [*zip(self._weights, self._uplinks, strict=True)]
        moves = Mean().of([up.vectors["increment"] for up in self._uplinks], [w / up.step_sizes for w, up in each])
        if common is not None and any(map(_is_sparse, self._uplinks)):
            moves -= sum(weight for weight, up in each if _is_sparse(up)) * common
        return moves

    def plain_mean(self, name: str, *, normalize: bool = False) -> Vector:
        """Return the weighted mean of a vector, whatever ``aggregation=`` is.

        Parameters
        ----------
        name : str
            Name of the vector.
        normalize : bool, default False
            Whether all clients are scaled to the same work, if the strategy does that.
        """
        return Mean(normalize and self._centre.normalize)(self._uplinks, name)[0]

    def sum(self, name: str = "increment") -> Vector:
        """Return the sum of the clients' weights times a vector.

        Parameters
        ----------
        name : str, default "increment"
            Name of the vector.
        """
        return Mean().of([up.vectors[name] for up in self._uplinks], self._weights)

    @property
    def weight(self) -> float:
        """Sum of the clients' weights in sums."""
        return sum(self._weights)

    @property
    def population(self) -> float:
        """Sum of the weights of all current clients, those without a reply too; of methods with memories."""
        return float(self._memories.population(self._uplinks))

    @cached_property
    def _weights(self) -> list[float]:
        return [up.weight if self._memories is None else self._memories.weight_of(up) for up in self._uplinks]


def _is_sparse(uplink: Uplink) -> bool:
    return isinstance(uplink.vectors["increment"], SparseVector)


def _whole(uplink: Uplink) -> Uplink:
    """Return an uplink with dense float64 vectors."""
    if all(type(vector) is np.ndarray and vector.dtype == np.float64 for vector in uplink.vectors.values()):
        return uplink
    return uplink._replace(vectors={name: dense(vector) for name, vector in uplink.vectors.items()})

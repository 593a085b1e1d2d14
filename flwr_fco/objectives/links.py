"""Links: the loss of a row as a function of its score, in formulas on arrays."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from flwr_fco.core.layout import Vector
from flwr_fco.errors import ConfigurationError
from flwr_fco.kernels.losses import cross_entropies, slopes
from flwr_fco.objectives.design import as_numbers

#: Of one number, or of one for each output, a row.
Scores = NDArray[np.float64]
#: Numbers, signs or classes, one a row.
Targets = NDArray[Any]
#: By how much rounding may leave the domain of a conjugate.
_ROUNDING = 1e-12
_NAMES = "for names, encode them first (the same way on every client)"


class Link(ABC):
    """A convex loss phi(s, y) of a score s = <x, w> + b + o; with several outputs, of a score for each.

    Formulas are on arrays with a row for each example. :class:`~flwr_fco.objectives.Linear` makes everything else of
    them.

    Attributes
    ----------
    outputs : int, default 1
        Number of scores of a row.
    bounds : tuple of float, or None
        What the second derivative is never above: its spectral norm, and its largest entry; with one output the same
        number twice. None if there is no bound.
    least : float, default 0.0
        A number that no value is below.
    quadratic : bool, default False
        Whether the second derivative is the same everywhere.
    code, parameter : int, float
        Which compiled slope it is (:func:`flwr_fco.kernels.losses.slope`), with its parameter; -1 for your own.
    targets : str
        What the targets are called in error messages.
    lowest : float, default -inf
        A number that no target may be below.
    conjugate : callable, optional
        A method ``conjugate(a, y)`` that returns sup over s of <a, s> - phi(s, y) of each row; inf outside its domain.
        Without it a duality gap is larger: it takes a bound by convexity.

    Examples
    --------
    >>> Squares(2.0).slope(np.array([1.0, 3.0]), np.array([1.0, 2.0]))
    array([0., 2.])
    """

    outputs: int = 1
    bounds: tuple[float, float] | None = None
    least: float = 0.0
    quadratic: ClassVar[bool] = False
    code: ClassVar[int] = -1
    parameter: float = 0.0
    targets: str = "targets"
    lowest: ClassVar[float] = -math.inf
    conjugate: Callable[[Scores, Targets], Vector] | None = None

    def encoded(self, targets: Targets) -> Targets:
        """Return checked targets as the formulas take them: finite numbers in float64, unless overridden.

        Parameters
        ----------
        targets : ndarray, shape (n,)
            As given.
        """
        return as_numbers(self.targets, targets, targets.shape, self.lowest)

    @abstractmethod
    def value(self, s: Scores, y: Targets) -> Vector:
        """Return phi of each row."""

    @abstractmethod
    def slope(self, s: Scores, y: Targets) -> Scores:
        """Return phi', of the scores' shape."""

    def value_and_slope(self, s: Scores, y: Targets) -> tuple[Vector, Scores]:
        """Return both, which may share exponentials."""
        return self.value(s, y), self.slope(s, y)

    @abstractmethod
    def curvature(self, s: Scores, y: Targets, change: Scores) -> Scores:
        """Return phi'' times a change of the scores."""

    def curvature_times(self, s: Scores, y: Targets, factors: Vector) -> Callable[[Scores, Any], Scores]:
        """Return (change, rows) -> phi'' times a change of the scores of some rows, for many changes.

        Parameters
        ----------
        s : ndarray of float64, shape of the scores
            Where, of all rows.
        y : ndarray, shape (n,)
            The targets.
        factors : ndarray of float64 or float32, shape (n,)
            A factor of each row, in the precision of the changes.
        """
        if self.outputs > 1:
            return lambda change, rows: self.curvature(s[rows], y[rows], change) * factors[rows, None]
        each = (self.curvature(s, y, np.ones_like(s)) * factors).astype(factors.dtype)
        return lambda change, rows: each[rows] * change

    def steady(self) -> Link:
        """Return a link with the curvature of Newton steps, for a loss that has none in places; itself by default."""
        return self

    def predicted(self, s: Scores) -> NDArray[Any]:
        """Return the predictions for scores, the scores by default."""
        return s

    def scored(self, s: Scores, y: Targets, mean: Callable[[NDArray[Any]], float]) -> dict[str, float]:
        """Return metrics besides the loss, none by default; `mean` takes the weighted mean of the rows."""
        return {}


class Coupled(Link):
    """A loss of all rows, whose formulas are of the scores of all of them."""

    @abstractmethod
    def of_rows(self, rows: NDArray[np.int64]) -> Coupled:
        """Return the loss of some rows alone."""

    @abstractmethod
    def sample(self, counts: Vector) -> Coupled:
        """Return a loss whose gradient is that of a batch, in which each row is so many times; their mean is 1."""

    def curvature_times(self, s: Scores, y: Targets, factors: Vector) -> Callable[[Scores, Any], Scores]:
        return lambda change, rows: self.curvature(s, y, change) * factors


class _Coded(Link):
    """A loss whose slope is compiled."""

    def slope(self, s: Scores, y: Targets) -> Scores:
        return np.asarray(slopes(self.code, self.parameter, s, y))


@dataclass(frozen=True)
class Squares(_Coded):
    """parameter / 2 (s - y)^2."""

    parameter: float = 2.0
    quadratic = True
    code = 0
    bounds = property(lambda self: (self.parameter, self.parameter))

    def value(self, s: Scores, y: Targets) -> Vector:
        squares = s - y
        # A loss that overflows is infinite.
        with np.errstate(over="ignore"):
            return np.multiply(np.square(squares, out=squares), 0.5 * self.parameter, out=squares)

    def curvature(self, s: Scores, y: Targets, change: Scores) -> Scores:
        return change * self.parameter

    def conjugate(self, a: Scores, y: Targets) -> Vector:
        return np.asarray(a * (y + a / (2.0 * self.parameter)))

    def scored(self, s: Scores, y: Targets, mean: Callable[[NDArray[Any]], float]) -> dict[str, float]:
        mse = mean(np.square(s - y))
        total = mean(np.square(y - mean(y)))
        return {"mse": mse, "r2": 1.0 - mse / total if total > 0.0 else float(mse == 0.0)}


@dataclass(frozen=True)
class HuberLoss(_Coded):
    """r^2 / 2 for |r| <= parameter, and parameter (|r| - parameter / 2) beyond, with r = s - y.

    A Newton step is taken with a little of parameter / |r|, `beyond`, where the curvature is 0. With all of it the
    model is the parabola above the loss, whose steps are never too long, but do not become Newton's; a hundredth gives
    steps from afar a length, which the line search then finds.
    """

    parameter: float = 1.35
    beyond: float = 0.0
    code = 2
    bounds = (1.0, 1.0)

    def value(self, s: Scores, y: Targets) -> Vector:
        size = np.abs(s - y)
        inside = np.minimum(size, self.parameter)
        return np.asarray(inside * (size - 0.5 * inside))

    def curvature(self, s: Scores, y: Targets, change: Scores) -> Scores:
        size = np.abs(s - y)
        rest = self.beyond * self.parameter / np.maximum(size, self.parameter)
        return np.where(size <= self.parameter, 1.0, rest) * change

    def conjugate(self, a: Scores, y: Targets) -> Vector:
        return np.where(np.abs(a) <= self.parameter * (1.0 + _ROUNDING), a * (y + 0.5 * a), np.inf)

    def steady(self) -> Link:
        return replace(self, beyond=0.01)


class PoissonLoss(_Coded):
    """Half the deviance mu - y + y log(y / mu) of counts with mu = exp(s); beyond s = 300 it goes on by its tangent."""

    code = 3
    parameter = 300.0
    targets = "counts"
    lowest = 0.0

    def value(self, s: Scores, y: Targets) -> Vector:
        inside = np.minimum(s, self.parameter)
        rates = np.exp(inside)
        some = y > 0.0
        # y (exp(r) - 1 - r) with r = log(mu / y), whose terms are no larger than the loss is.
        apart = inside - np.log(np.where(some, y, 1.0))
        return np.asarray(np.where(some, y * (np.expm1(apart) - apart), rates) + (s - inside) * (rates - y))

    def curvature(self, s: Scores, y: Targets, change: Scores) -> Scores:
        return np.asarray(np.exp(np.minimum(s, self.parameter)) * change)

    def conjugate(self, a: Scores, y: Targets) -> Vector:
        mu = np.maximum(a + y, 0.0)
        return np.where(a + y < -_ROUNDING * (1.0 + y), np.inf, _entropy(mu) - _entropy(y) - (mu - y))

    def predicted(self, s: Scores) -> NDArray[Any]:
        return np.exp(s)


class _Signs(_Coded):
    """A loss of y s, for classes coded as 0 and 1 or as -1 and +1, whose formulas take signs."""

    targets = "labels"

    def encoded(self, targets: Targets) -> Targets:
        # NumPy compares no fields.
        if targets.dtype.names or not any(((targets == low) | (targets == 1)).all() for low in (0, -1)):
            advice = f"For more classes use MultinomialLogistic; {_NAMES}"
            raise ConfigurationError(f"labels hold {examples_of(targets)}; expected 0 and 1, or -1 and +1. {advice}")
        return np.where(targets == 1, 1.0, -1.0)

    def predicted(self, s: Scores) -> NDArray[Any]:
        return np.where(s > 0.0, 1, -1)

    def scored(self, s: Scores, y: Targets, mean: Callable[[NDArray[Any]], float]) -> dict[str, float]:
        return {"accuracy": mean((s > 0.0) == (y > 0.0))}


class LogisticLoss(_Signs):
    """log(1 + exp(-y s))."""

    code = 1
    bounds = (0.25, 0.25)

    def value(self, s: Scores, y: Targets) -> Vector:
        return np.asarray(np.log1p(np.exp(-np.abs(s))) - np.minimum(0.0, y * s))

    def curvature(self, s: Scores, y: Targets, change: Scores) -> Scores:
        from scipy.special import expit

        return np.asarray(expit(s) * expit(-s) * change)

    def conjugate(self, a: Scores, y: Targets) -> Vector:
        return _entropy(-a * y) + _entropy(1.0 + a * y)


class SquaredHingeLoss(_Signs):
    """max(0, 1 - y s)^2."""

    code = 4
    bounds = (2.0, 2.0)

    def value(self, s: Scores, y: Targets) -> Vector:
        return np.square(np.maximum(0.0, 1.0 - y * s))

    def curvature(self, s: Scores, y: Targets, change: Scores) -> Scores:
        return np.asarray(2.0 * (y * s < 1.0) * change)

    def conjugate(self, a: Scores, y: Targets) -> Vector:
        size = -a * y
        return np.where(size < -_ROUNDING, np.inf, size * (0.25 * size - 1.0))


@dataclass(frozen=True)
class Categories(Link):
    """The cross entropy log sum_c exp(s_c) - s_y of classes 0 .. outputs - 1."""

    outputs: int = 2
    # diag(p) - pp' has norm at most 1/2 (two classes at 1/2 each) and entries at most 1/4.
    code = -2
    bounds = (0.5, 0.25)
    targets = "labels"

    def encoded(self, targets: Targets) -> Targets:
        if not is_integral(targets) or targets.min() < 0 or targets.max() >= self.outputs:
            prefix = f"labels hold {examples_of(targets)}; expected integers 0 .. {self.outputs - 1}"
            raise ConfigurationError(f"{prefix}; {_NAMES}")
        return np.require(targets, np.int64, ["C", "W"])

    def value(self, s: Scores, y: Targets) -> Vector:
        return self.value_and_slope(s, y)[0]

    def slope(self, s: Scores, y: Targets) -> Scores:
        return self.value_and_slope(s, y)[1]

    def value_and_slope(self, s: Scores, y: Targets) -> tuple[Vector, Scores]:
        slopes = s.copy()
        return cross_entropies(slopes, y), slopes

    def curvature(self, s: Scores, y: Targets, change: Scores) -> Scores:
        # A change of all scores changes nothing: without that of the likeliest class, p (1 - p) is not 0 where p is 1.
        change = change - np.take_along_axis(change, s.argmax(axis=1, keepdims=True), axis=1)
        return self.curvature_times(s, y, np.ones(len(s)))(change, slice(None))

    def curvature_times(self, s: Scores, y: Targets, factors: Vector) -> Callable[[Scores, Any], Scores]:
        from scipy.special import softmax

        probabilities = softmax(s, axis=1).astype(factors.dtype)
        shares = probabilities * factors[:, None]
        ones = np.ones((self.outputs, 1), factors.dtype)
        return lambda change, rows: shares[rows] * (change - (probabilities[rows] * change) @ ones)

    def conjugate(self, a: Scores, y: Targets) -> Vector:
        probabilities = a.copy()
        probabilities[np.arange(y.size), y] += 1.0
        return np.asarray(_entropy(probabilities).sum(axis=1))

    def predicted(self, s: Scores) -> NDArray[Any]:
        return np.asarray(s.argmax(axis=1), dtype=np.int64)

    def scored(self, s: Scores, y: Targets, mean: Callable[[NDArray[Any]], float]) -> dict[str, float]:
        return {"accuracy": mean(s.argmax(axis=1) == y)}


def _entropy(q: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return q log q; inf of a negative number, but for rounding."""
    # Imported here, as in the formulas: a deployment imports this module for every message, and needs it for few.
    from scipy.special import xlogy

    return np.where(q < -_ROUNDING, np.inf, xlogy(q, np.abs(q)))


def is_integral(targets: Targets) -> bool:
    """Whether targets are whole numbers, of any type."""
    return targets.dtype.kind in "iub" or (targets.dtype.kind == "f" and bool((targets == np.floor(targets)).all()))


def examples_of(values: NDArray[Any], limit: int = 6) -> str:
    """Return the distinct values for an error message, cut short."""
    # Objects of several types have no order.
    distinct = np.unique(values.astype(str) if values.dtype == object else values)
    texts = [repr(value) for value in distinct[:limit].tolist()]
    return ", ".join(texts) + (f", ... ({distinct.size} different ones)" if distinct.size > limit else "")

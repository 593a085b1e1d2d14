"""An intercept of each client, which never leaves it: profiled out of a linear model's loss."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from flwr_fco.core.layout import Vector
from flwr_fco.errors import ConfigurationError, PublicError
from flwr_fco.objectives import design
from flwr_fco.objectives.linear import Linear, Logistic
from flwr_fco.objectives.links import Coupled, Link, Scores, Targets

#: Rows of a logistic client: refused below the first number, with a warning below the second.
FEWEST_ROWS = 10
FEW_ROWS = 25
#: Distances that are tried until the best intercept is within, and a score without loss, where there is one.
_LENGTHS = 4.0 ** np.arange(1, 25)
_FAR = 1e9
#: Rounding error of a column's second moment, relative to it: what is left of a constant column's variance.
_CONSTANT = 1e-13


class Profiled(Coupled):
    """min over b of the weighted loss of the scores s + b, of a link with one output.

    Parameters
    ----------
    link : Link
        The loss of a row.
    weights : ndarray of float64, shape (n,)
        Of the rows, of mean 1.
    counts : ndarray of float64, shape (n,), default 1.0
        How often each row is in a batch, relative to all rows; the best b is that of all rows.
    """

    def __init__(self, link: Link, weights: Vector, counts: Vector | float = 1.0) -> None:
        self.link = link
        self.weights = weights
        self.counts = counts
        self.bounds = link.bounds
        self.least = link.least
        self._known: tuple[Scores, float] | None = None

    def of_rows(self, rows: NDArray[np.int64]) -> Profiled:
        return Profiled(self.link, self.weights[rows] / self.weights[rows].mean())

    def sample(self, counts: Vector) -> Profiled:
        return Profiled(self.link, self.weights, counts)

    def idle(self, y: Targets) -> float:
        """Return the infinite intercept that fits all rows without loss; 0.0 if there is none."""
        sides = (side for side in (1.0, -1.0) if not self.link.slope(np.full(y.shape, side * _FAR), y).any())
        return next((side * math.inf for side in sides), 0.0)

    def best(self, s: Scores, y: Targets) -> float:
        """Return the best b, to machine precision; of one that is infinite a number so large that nothing is lost."""
        known = self._known
        if known is None or not np.array_equal(known[0], s):
            # In a variable: another thread may set it meanwhile.
            known = self._known = s.copy(), min(max(self.idle(y), -_FAR), _FAR) or self._root(s, y)
        return known[1]

    def _root(self, s: Scores, y: Targets) -> float:
        from scipy.optimize import brentq

        def slope(b: float) -> float:
            return float(self.weights @ self.link.slope(s + b, y))

        if self.link.quadratic:
            # In the units of the targets, however small or large; a second step takes off the rounding of the first.
            curvature = float(self.weights @ self.link.curvature(s, y, np.ones_like(s)))
            b = -slope(0.0) / curvature
            return b - slope(b) / curvature
        middle = -float(s.mean())
        for length in _LENGTHS:
            low, high = middle - length, middle + length
            if slope(low) <= 0.0 <= slope(high):
                return float(brentq(slope, low, high, xtol=1e-16, rtol=1e-15, maxiter=1000))
        raise ConfigurationError("the loss has no best intercept on this client's rows")

    def value(self, s: Scores, y: Targets) -> Vector:
        return self.counts * self.link.value(s + self.best(s, y), y)

    def slope(self, s: Scores, y: Targets) -> Scores:
        return self.counts * self.link.slope(s + self.best(s, y), y)

    def curvature(self, s: Scores, y: Targets, change: Scores) -> Scores:
        # The intercept moves with w, which centres the change of the scores.
        each = self.each(s, y)
        total = float(each.sum())
        return each / self.weights * (change - float(each @ change) / total) if total > 0.0 else each

    def each(self, s: Scores, y: Targets) -> Vector:
        """Return the second derivative of each row's loss at the best intercept, times its weight."""
        return self.counts * self.weights * self.link.curvature(s + self.best(s, y), y, np.ones_like(s))

    def steady(self) -> Profiled:
        return Profiled(self.link.steady(), self.weights)

    def scored(self, s: Scores, y: Targets, mean: Callable[[NDArray[Any]], float]) -> dict[str, float]:
        return {} if self.idle(y) else self.link.scored(s + self.best(s, y), y, mean)


class SiteIntercept(Linear):
    """A linear model's loss at the client's best intercept: F(w) = min_b G(w, b).

    Its sum over the clients is the loss of a model with an intercept of each client's own, as one dummy variable a
    client would give, and no client sends its intercept. The gradient is that of G at the best b; the Hessian is that
    of w less what b takes up, X' (W - W 1 1'W / 1'W 1) X with W the second derivatives. Strata within a client are
    dummy variables of it, all but one, in its features.

    Parameters
    ----------
    objective : Linear
        G, with an intercept and one output. Of a logistic client with one class, or of counts that are all 0, nothing
        is learnt: F is 0 besides its l2 term.

    Attributes
    ----------
    layout : Layout
        ``coefficients`` of shape (d,).

    Raises
    ------
    ConfigurationError
        If the objective is another one or has no intercept, or a logistic one has fewer than 10 rows.

    Warns
    -----
    UserWarning
        If a logistic one has fewer than 25 rows.

    Notes
    -----
    An intercept for each client biases logistic coefficients away from 0 where clients have few rows: a true 1 becomes
    1.95 with 2 rows each, 1.4 with 5 and 1.17 with 10. Squares and counts have no such bias. A batch's gradient is that
    of its rows at the best intercept of all rows. :meth:`subset` has an intercept of its own, so that a
    cross-validation compares losses at the best intercept of the left-out rows.

    References
    ----------
    Neyman, Scott: Consistent estimates based on partially consistent observations (Econometrica 1948), the bias.

    Examples
    --------
    >>> from flwr_fco.objectives import LeastSquares
    >>> objective = SiteIntercept(LeastSquares(np.array([[1.0], [3.0]]), np.array([1.0, 2.0]), scale=0.5))
    >>> objective.value(np.zeros(1)), objective.gradient(np.zeros(1)), objective.own_intercept(np.zeros(1))
    (0.125, array([-0.5]), 1.5)
    """

    #: The objective with its intercept.
    with_intercept: Linear
    link: Profiled

    def __init__(self, objective: Linear) -> None:
        if not isinstance(objective, Linear) or isinstance(objective.link, Coupled) or objective.num_outputs > 1:
            prefix = f"{type(objective).__name__} has no intercept of each site"
            raise ConfigurationError(f"{prefix}; a linear loss with one output has one")
        if not objective.intercept:
            raise ConfigurationError("the objective has intercept=False; an intercept of each site needs True")
        if isinstance(objective, Logistic):
            check_site_rows({"this site": objective.num_examples})
        # All that there is of the rows, and of the labels.
        vars(self).update(vars(objective))
        self.with_intercept = objective
        self.intercept = False
        self.link = Profiled(objective.link, objective.weights)
        self._set_features(objective.features, objective._row_shape)

    @property
    def adds_nothing(self) -> bool:
        """Whether all rows are of one class, or have no events: the best intercept is infinite, and fits all rows."""
        return self.link.idle(self.targets) != 0.0

    num_events = property(attrgetter("with_intercept.num_events"), doc="Those of the objective, if it has events.")

    def own_intercept(self, w: Vector) -> float:
        """Return the best intercept for coefficients `w` on the client's rows, to machine precision."""
        return self.link.idle(self.targets) or self.link.best(self.scores(w), self.targets)

    def predict(self, w: Vector) -> NDArray[Any]:
        """Return the predictions for the client's examples, with the best intercept."""
        return self.with_intercept.predict(np.append(w, self.own_intercept(w)))

    def _hessian(self, w: Vector, indices: NDArray[np.int64]) -> NDArray[np.float64]:
        each = self.link.each(self.scores(w), self.targets) / self.num_examples
        values = design.dense(self.features[:, indices]).astype(np.float64)
        mean_squares = each @ values**2
        values = self._centred(values, w)
        # Of a column that is constant here rounding is left, which is no variance.
        values[:, each @ values**2 <= _CONSTANT * mean_squares] = 0.0
        return design.product_of(values, each, values) + self.l2 * np.eye(indices.size)

    def _centred(self, values: NDArray[np.float64], w: Vector) -> NDArray[np.float64]:
        each = self.link.each(self.scores(w), self.targets)
        total = float(each.sum())
        return values - each @ values / total if total > 0.0 else values

    def shift(self, centre: Vector) -> None:
        super().shift(centre)
        self.with_intercept.shift(centre)

    def subset(self, rows: NDArray[np.int64]) -> tuple[Self, float]:
        other, share = super().subset(rows)
        other.with_intercept = self.with_intercept.subset(rows)[0]
        return other, share

    def largest_square(self) -> float:
        """Return the largest variance of a feature times the curvature of the loss; 0 of what adds nothing."""
        return 0.0 if self.adds_nothing else self._bounds()[1] * float(self.moments()[1].max(initial=0.0))

    def lipschitz(self, norm: str = "l2") -> float:
        """Return that of the objective with its intercept, which is no smaller."""
        return self.with_intercept.lipschitz(norm)

    def batch_lipschitz(self, batch_size: int | None, norm: str = "l2") -> float:
        """Return that of the objective with its intercept."""
        return self.with_intercept.batch_lipschitz(batch_size, norm)


def unwarned(objective: Linear) -> SiteIntercept:
    """Return the loss without the warning of few rows: who knows all sites names those."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return SiteIntercept(objective)


def check_site_rows(rows: dict[str, int]) -> None:
    """Refuse logistic sites with too few rows for an intercept of their own, and warn of those with few.

    Parameters
    ----------
    rows : dict of str to int
        Number of rows of each site.

    Raises
    ------
    ConfigurationError
        If one has fewer than 10.

    Examples
    --------
    >>> check_site_rows({"north": 40, "south": 8})
    Traceback (most recent call last):
    ...
    flwr_fco.errors.PublicError: too few rows for an intercept of their own, which biases logistic coefficients away from 0: south has fewer than 10. Leave such rows out, join them with others, or take a common intercept
    """  # noqa: E501
    least = [site for site, count in rows.items() if count < FEWEST_ROWS]
    if least:
        prefix = "too few rows for an intercept of their own, which biases logistic coefficients away from 0"
        advice = "Leave such rows out, join them with others, or take a common intercept"
        raise PublicError(f"{prefix}: {', '.join(least)} has fewer than {FEWEST_ROWS}. {advice}")
    less = [site for site, count in rows.items() if count < FEW_ROWS]
    if less:
        prefix = f"few rows for an intercept of their own: {', '.join(less)} has fewer than {FEW_ROWS}"
        warnings.warn(f"{prefix}, and logistic coefficients are biased from 0, with 10 by about 17 %", stacklevel=3)

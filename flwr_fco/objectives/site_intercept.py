"""An intercept of each client, which never leaves it: profiled out of a linear model's loss."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flwr_fco.core.layout import Vector
from flwr_fco.core.logs import printable
from flwr_fco.errors import ConfigurationError, PublicError
from flwr_fco.objectives._linear import LinearModel
from flwr_fco.objectives.base import Batch, DualTerms, Objective
from flwr_fco.objectives.classification import Logistic
from flwr_fco.objectives.design import Design, Scores
from flwr_fco.objectives.regression import LeastSquares, Poisson

#: Rows of a logistic client: refused below the first number, with a warning below the second.
FEWEST_ROWS, FEW_ROWS = 10, 25
#: Newton steps for an intercept, which is known to rounding after about ten.
_STEPS = 100
#: Names of sites in a warning.
_SHOWN = 5
#: Rounding error of a column's second moment, relative to it: what is left of a constant column's variance.
_CONSTANT = 1e-13


class SiteIntercept(LinearModel):
    """A linear model's loss at the client's best intercept: F(w) = min_b G(w, b).

    Its sum over the clients is the loss of a model with an intercept of each client's own, as one dummy variable a
    client would give, and no client sends its intercept. The gradient is that of G at the best b; the Hessian is that
    of w less what b takes up, X' (W - W 1 1'W / 1'W 1) X with W the second derivatives. Strata within a client are
    dummy variables of it, all but one, in its features.

    Parameters
    ----------
    objective : LeastSquares, Logistic or Poisson
        G, with an intercept. Of a logistic client with one class, or of counts that are all 0, nothing is learnt: F is
        0 besides its l2 term.

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
    >>> objective = SiteIntercept(LeastSquares(np.array([[1.0], [3.0]]), np.array([1.0, 2.0]), scale=0.5))
    >>> objective.value(np.zeros(1)), objective.gradient(np.zeros(1)), objective.own_intercept(np.zeros(1))
    (0.125, array([-0.5]), 1.5)
    """

    _compiled = False
    _separable = False
    dual_terms, least = Objective.dual_terms, 0.0

    #: The objective with its intercept, and coefficients with their best intercept.
    with_intercept: LinearModel
    _known: tuple[Vector, float] | None

    def __init__(self, objective: LinearModel) -> None:
        # One that a subclass has changed has another best intercept, and no terms.
        if not isinstance(objective, LeastSquares | Logistic | Poisson) or objective.duality() is None:
            raise ConfigurationError(
                f"{type(objective).__name__} has no intercept of each site; LeastSquares, Logistic and Poisson have one"
            )
        if not objective.intercept:
            raise ConfigurationError(
                "the objective has intercept=False; an intercept of each site needs intercept=True"
            )
        if isinstance(objective, Logistic):
            check_site_rows({"this site": objective.num_examples})
        self._wrap(objective)

    def _wrap(self, objective: Any) -> None:
        self.with_intercept, design = objective, objective.design
        self._set_data(design, design.shape[1:], intercept=False, l2=objective.l2)
        self._weights, self._mean_weight = objective._weights, objective._mean_weight
        self.class_names = objective.class_names
        self._targets = objective._targets
        if isinstance(objective, Logistic):
            self.labels = objective.labels
        self._known = None

    @property
    def adds_nothing(self) -> bool:
        """Whether all rows are of one class, or have no events: the best intercept is infinite, and fits all rows."""
        objective: Any = self.with_intercept
        if isinstance(objective, Logistic):
            return bool((self._targets == self._targets[0]).all())
        return isinstance(objective, Poisson) and not self._targets.any()

    def own_intercept(self, w: Vector) -> float:
        """Return the best intercept for coefficients `w` on the client's rows, to machine precision."""
        self._check(w)
        if self._known is None or not np.array_equal(self._known[0], w):
            self._known = (w.copy(), self._best(self.with_intercept._scores(np.append(w, 0.0))))
        return self._known[1]

    def _best(self, scores: Scores) -> float:
        objective, targets = self.with_intercept, self._targets
        weights = np.ones(scores.size) if self._weights is None else self._weights
        if isinstance(objective, LeastSquares):
            return float(weights @ (targets - scores) / weights.sum())
        if isinstance(objective, Poisson):
            top = float(scores.max())
            events = float(weights @ targets)
            return math.log(events / float(weights @ np.exp(scores - top))) - top if events else -math.inf
        events = float(weights @ (targets > 0.0))
        if self.adds_nothing or not 0.0 < events < weights.sum():
            return math.inf if events else -math.inf
        return _log_odds(scores, weights, events)

    def _at_best(self, w: Vector) -> Vector:
        """Return the coefficients with the best intercept."""
        return np.append(w, self.own_intercept(w))

    def value(self, w: Vector) -> float:
        self._check(w)
        if self.adds_nothing:
            return self._l2_value(w)
        return self.with_intercept.value(self._at_best(w))

    def _accumulate(self, w: Vector, batch: Batch, scale: float, out: Vector) -> None:
        found = self.l2 * w
        if not self.adds_nothing:
            found = self.with_intercept.gradient(self._at_best(w), batch)[:-1]
        out += scale * found

    def value_and_gradient(self, w: Vector, batch: Batch = None, out: Vector | None = None) -> tuple[float, Vector]:
        """Return the mean over a batch and its gradient, both at the best intercept of all rows."""
        self._check(w)
        out = self._zeros(out)
        if self.adds_nothing:
            out += self.l2 * w
            return self._l2_value(w), out
        value, gradient = self.with_intercept.value_and_gradient(self._at_best(w), batch)
        out += gradient[:-1]
        return value, out

    def hessian_product(self, w: Vector, v: Vector) -> Vector:
        """Return the Hessian over all examples at `w` times `v`, in three passes over the rows."""
        self._check(v)
        if self.adds_nothing:
            return np.asarray(self.l2 * v)
        whole, product = self._at_best(w), self.with_intercept.hessian_product
        bend = float(product(whole, np.append(np.zeros(v.size), 1.0))[-1])
        # The intercept moves with w, which centres the predictions' change.
        move = -float(product(whole, np.append(v, 0.0))[-1]) / bend if bend > 0.0 else 0.0
        return product(whole, np.append(v, move))[:-1]

    def hessian_block(self, w: Vector, indices: NDArray[np.int64]) -> Vector:
        """Return the Hessian at `w` on some coordinates, less what the intercept takes up, as a packed triangle."""
        self._check(w)
        upper, count = np.triu_indices(indices.size), indices.size
        if self.adds_nothing:
            return np.asarray(self.l2 * np.eye(count)[upper])
        own = np.zeros((count + 1, count + 1))
        on = np.append(indices, self.layout.size)
        own[np.triu_indices(count + 1)] = self.with_intercept.hessian_block(self._at_best(w), on)
        block, beside, bend = own[:-1, :-1] - self.l2 * np.eye(count), own[:-1, -1], float(own[-1, -1])
        if bend > 0.0:
            block = np.triu(block - np.outer(beside, beside) / bend)
        # Of a column that is constant here rounding is left, which is no variance.
        diagonal = np.diag(block)
        variance = np.where(diagonal > _CONSTANT * (np.diag(own)[:-1] - self.l2), diagonal, 0.0)
        most = np.sqrt(np.outer(variance, variance))
        return np.asarray((np.clip(block, -most, most) + self.l2 * np.eye(count))[upper])

    def subset(self, rows: NDArray[np.int64]) -> tuple[Self, float]:
        objective, share = self.with_intercept.subset(rows)
        return self._of(objective), share

    def with_features(self, features: ArrayLike | Design) -> Self:
        """Return the same loss for the same examples with other features."""
        return self._of(self.with_intercept.with_features(features))

    def _of(self, objective: Any) -> Self:
        other = type(self).__new__(type(self))
        other._wrap(objective)
        return other

    def duality(self) -> DualTerms:
        objective = self.with_intercept
        kind = f"{type(objective).__name__} {objective._factor:g}, own intercepts"
        # The curvature of counts has no bound.
        return DualTerms(kind, l2=self.l2, link="convex" if isinstance(objective, Poisson) else "profiled")

    def metrics(self, w: Vector) -> dict[str, float]:
        """Return the metrics of the objective with its best intercept."""
        if self.adds_nothing:
            return {"loss": self.value(w)}
        return self.with_intercept.metrics(self._at_best(w))

    def largest_square(self) -> float:
        """Return the largest variance of a feature times the curvature of the loss; 0 of what adds nothing."""
        if self.adds_nothing:
            return 0.0
        return self.with_intercept._curvature[0] * float(self.with_intercept.moments()[1].max(initial=0.0))

    def lipschitz(self, norm: str = "l2") -> float:
        """Return that of the objective with its intercept, which is no smaller."""
        return self.with_intercept.lipschitz(norm)

    def batch_lipschitz(self, batch_size: int | None, norm: str = "l2") -> float:
        """Return that of the objective with its intercept."""
        return self.with_intercept.batch_lipschitz(batch_size, norm)


def name_idle(names: Sequence[str], stacklevel: int = 3) -> None:
    """Warn of sites of one class by their names, if there are any.

    Examples
    --------
    >>> name_idle([])
    """
    if names:
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        warnings.warn(
            f"{', '.join(map(printable, names[:_SHOWN]))}{more}: all rows of one class, which tell nothing beside an "
            "intercept of their own",
            UserWarning,
            stacklevel=stacklevel,
        )


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
        raise PublicError(
            "too few rows for an intercept of their own, which biases logistic coefficients away from 0: "
            f"{', '.join(least)} has fewer than {FEWEST_ROWS}. Leave such rows out, join them with others, or take a "
            "common intercept"
        )
    less = [site for site, count in rows.items() if count < FEW_ROWS]
    if less:
        warnings.warn(
            f"few rows for an intercept of their own: {', '.join(less)} has fewer than {FEW_ROWS}, and logistic "
            "coefficients are biased away from 0, by about 17 % with 10 rows for every intercept",
            UserWarning,
            stacklevel=3,
        )


def _log_odds(scores: Scores, weights: Vector, events: float) -> float:
    """Return b with sum_i weights_i expit(scores_i + b) = events, by Newton steps within a bracket."""
    from scipy.special import expit

    total = float(weights.sum())
    odds = math.log(events / (total - events))
    low, high = odds - float(scores.max()), odds - float(scores.min())
    b: float = min(max(odds - float(weights @ scores) / total, low), high)
    for _ in range(_STEPS):
        chances = expit(scores + b)
        missing = events - float(weights @ chances)
        low, high = (b, high) if missing > 0.0 else (low, b)
        bend = float(weights @ (chances * (1.0 - chances)))
        after = b + missing / bend if bend > 0.0 else math.inf
        if not low <= after <= high:
            after = 0.5 * (low + high)
        if after == b or abs(after - b) <= 4e-16 * max(1.0, abs(b)):
            return after
        b = after
    return b

"""Poisson regression: counts of events, per exposure."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flwr_fco.core.layout import Vector
from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives._linear import LinearModel, Scores, as_targets
from flwr_fco.objectives.base import DualTerms
from flwr_fco.objectives.design import Design

#: Logarithm of the mean beyond which the loss goes on by its tangent, so that no number overflows: 1e130 events.
_LARGEST = 300.0


class Poisson(LinearModel):
    """Poisson regression with the logarithm as link: half the mean deviance, plus l2/2 ||w||^2.

    F(w, b) = mean_i [ mu_i - y_i + y_i log(y_i / mu_i) ] + l2/2 ||w||^2 with mu_i = exp(<x_i, w> + b + o_i): the
    negative log likelihood less its smallest value, so that it is never negative.

    Parameters
    ----------
    features : array-like or sparse matrix, shape (n, d)
        float32 and float64 are used as they are; sums are in float64.
    counts : array-like, shape (n,)
        The y_i >= 0; fractions are allowed.
    intercept : bool, default True
        Whether to fit an intercept b, on which the regularizer and `l2` do not act.
    l2 : float, default 0.0
        Strength of a ridge term on the coefficients, not on the intercept.
    sample_weight : array-like, shape (n,), optional
        As in :class:`LeastSquares`.
    offset : array-like, shape (n,), optional
        The o_i: the logarithm of the exposure, such as person-years, whose rate of events is modelled.

    Attributes
    ----------
    layout : Layout
        ``coefficients`` of shape (d,), then ``intercept`` of shape (1,).

    Raises
    ------
    ConfigurationError
        If shapes do not match, there is no example, a number is not finite, or a count, `l2` or a weight is out of
        range.

    Notes
    -----
    Its gradient has no Lipschitz constant: :meth:`lipschitz` raises an error, and ``client_lr="auto"`` measures the
    curvature at the start. Where log mu_i > 300 the loss goes on by its tangent. In scikit-learn's ``PoissonRegressor``
    ``alpha`` is `l2`.

    Examples
    --------
    >>> objective = Poisson(np.array([[1.0], [1.0]]), np.array([2.0, 0.0]), intercept=False)
    >>> round(objective.value(np.zeros(1)), 6), objective.gradient(np.zeros(1))
    (0.693147, array([0.]))
    """

    _compiled = False

    def __init__(
        self,
        features: ArrayLike,
        counts: ArrayLike,
        *,
        intercept: bool = True,
        l2: float = 0.0,
        sample_weight: ArrayLike | None = None,
        offset: ArrayLike | None = None,
    ) -> None:
        design = Design.of(features)
        self._set_data(design, design.shape[1:], intercept=intercept, l2=l2)
        self.targets = self._targets = as_targets("counts", counts, self.num_examples)
        if (self._targets < 0.0).any():
            row = int(np.argmin(self._targets))
            raise ConfigurationError(f"counts[{row}] is {self._targets[row]:g}; expected numbers >= 0")
        self._set_rows(sample_weight, offset)

    def dual_terms(self) -> DualTerms:
        return DualTerms("Poisson", l2=self.l2, link="poisson")

    def _losses(self, scores: Scores, targets: NDArray[Any]) -> Vector:
        rates, beyond = _rates(scores)
        # y (exp(r) - 1 - r) with r = log(mu / y), whose terms are no larger than the loss is.
        apart = np.minimum(scores, _LARGEST) - np.log(np.where(targets > 0.0, targets, 1.0))
        losses = np.where(targets > 0.0, targets * (np.expm1(apart) - apart), rates)
        return np.asarray(losses + beyond * (rates - targets))

    def _slopes(self, scores: Scores, targets: NDArray[Any], weight: float) -> float:
        total = float(self._losses(scores, targets).sum())
        scores[:] = weight * (_rates(scores)[0] - targets)
        return total

    def _bend(self, scores: Scores, targets: NDArray[Any], change: Scores, weight: float) -> Scores:
        return np.asarray(weight * _rates(scores)[0] * change)

    def predict(self, w: Vector) -> Vector:
        """Return the expected counts of the client's examples."""
        return np.exp(self._scores(w))

    def lipschitz(self, norm: str = "l2") -> float:
        """Raise a :class:`ConfigurationError`, because the gradient grows like an exponential."""
        self._does_not_know("its Lipschitz constant, for there is none", "give the rates by hand, or client_lr='auto'")

    def batch_lipschitz(self, batch_size: int | None, norm: str = "l2") -> float:
        """Raise a :class:`ConfigurationError`, as :meth:`lipschitz` does."""
        return self.lipschitz(norm)


def _rates(scores: Scores) -> tuple[Vector, Vector]:
    """Return the expected counts of log means up to the largest, and by how much the log means are beyond it."""
    inside = np.minimum(scores, _LARGEST)
    return np.exp(inside), scores - inside

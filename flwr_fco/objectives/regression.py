"""Losses of numbers and counts: least squares, trace regression, Huber and Poisson."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flwr_fco.core.layout import Vector
from flwr_fco.core.validation import POSITIVE, checked
from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives._linear import LinearModel, as_targets
from flwr_fco.objectives.base import DualTerms
from flwr_fco.objectives.design import Design, Scores
from flwr_fco.objectives.links import HuberLoss, Link, PoissonLoss, Squares

_SCALE = {
    "range": (POSITIVE["range"][0], "a finite number > 0: 1.0 for mean squares, 0.5 for scikit-learn's convention")
}


class _SquaredLoss(LinearModel):
    """scale * mean (prediction - target)^2 + l2/2 ||coefficients||^2."""

    _link = "identity"
    quadratic = True
    targets: Vector
    scale: float

    def _set_targets(
        self, targets: ArrayLike, scale: float, sample_weight: ArrayLike | None, offset: ArrayLike | None
    ) -> None:
        self.scale = checked("scale", scale, float, _SCALE)
        self.targets = self._targets = as_targets("targets", targets, self.num_examples)
        self._set_rows(sample_weight, offset)
        if self._offset is not None:
            # The loss is that of other targets, and its compiled loops are theirs.
            self._targets, self._offset = self.targets - self._offset, None
        self._factor = 2.0 * self.scale
        # One number for both norms, because the second derivative of the quadratic loss is constant.
        self._curvature = (self._factor, self._factor)

    def _of_row(self) -> Link:
        return Squares(self._factor)

    def _losses(self, scores: Scores, targets: NDArray[Any]) -> Vector:
        return np.asarray(self.scale * (scores - targets) ** 2)

    def _mean_loss(self, scores: Scores) -> float:
        return self.scale * self._sum_of_squares(scores - self._targets) / self.num_examples

    def _sum_of_squares(self, residuals: Vector) -> float:
        return float((residuals if self._weights is None else self._weights * residuals) @ residuals)

    def _slopes(self, scores: Scores, targets: NDArray[Any], weight: float) -> float:
        scores -= targets
        total = self.scale * float(scores @ scores)
        scores *= weight * self._factor
        return total

    def _bend(self, scores: Scores, targets: NDArray[Any], change: Scores, weight: float) -> Scores:
        return (weight * self._factor) * change

    def predict(self, w: Vector) -> Vector:
        """Return the predictions for the client's examples."""
        return np.asarray(self._scores(w) + (self.targets - self._targets))

    def metrics(self, w: Vector) -> dict[str, float]:
        """Return ``loss``, :meth:`value`, the mean squared residual ``mse`` (no `scale` or `l2`), and R^2 as ``r2``.

        R^2 is as in scikit-learn: for constant targets 1.0 if the predictions are exact, otherwise 0.0. Means are by
        the sample weights.
        """
        squares = self._sum_of_squares(self._scores(w) - self._targets)
        total = self._sum_of_squares(self.targets - self._mean(self.targets))
        r2 = 1.0 - squares / total if total > 0.0 else float(squares == 0.0)
        mse = squares / self.num_examples
        return {"loss": self.scale * mse + self._l2_value(w), "mse": mse, "r2": r2}


class LeastSquares(_SquaredLoss):
    """Least squares: F(w, b) = scale * mean_i (<x_i, w> + b - y_i)^2 + l2/2 ||w||^2.

    Parameters
    ----------
    features : array-like or sparse matrix, shape (n, d)
        float32 and float64 are used as they are, without a copy if C-contiguous (also a memory map), or sorted by rows
        and columns if sparse; sums are in float64.
    targets : array-like, shape (n,)
        The y_i.
    scale : float, default 1.0
        1.0: the mean of the squares. 0.5: half the mean, as in `sklearn.linear_model.Lasso`.
    intercept : bool, default True
        Whether to fit an intercept b, on which the regularizer and `l2` do not act.
    l2 : float, default 0.0
        Strength of a ridge term on the coefficients, not on the intercept.
    sample_weight : array-like, shape (n,), optional
        Weight > 0 of each row in the mean; 1 by default. Only their ratios matter: a client counts by its rows in the
        pooled mean, so where they have other mean weights take :mod:`flwr_fco.sklearn`, which weighs sites by sums.
    offset : array-like, shape (n,), optional
        Added to each prediction x_i' w + b, with a coefficient that is not fitted; 0 by default.

    Attributes
    ----------
    layout : Layout
        ``coefficients`` of shape (d,), then ``intercept`` of shape (1,).

    Raises
    ------
    ConfigurationError
        If shapes do not match, there is no example, a number is not finite, or `scale`, `l2` or a weight is out of
        range.

    Notes
    -----
    The strength of psi on scikit-learn's scale is ``alpha = strength / (2 scale)``: with the default `scale`,
    ``L1(0.1)`` corresponds to ``Lasso(alpha=0.05)``; with ``scale=0.5`` the two scales agree
    (:mod:`flwr_fco.objectives.scikit_learn`).

    Examples
    --------
    >>> import numpy as np
    >>> objective = LeastSquares(np.array([[1.0], [3.0]]), np.array([1.0, 2.0]))
    >>> w = objective.layout.flatten({"coefficients": [1.0], "intercept": [0.0]})
    >>> objective.value(w), objective.gradient(w)
    (0.5, array([3., 1.]))
    """

    def __init__(
        self,
        features: ArrayLike,
        targets: ArrayLike,
        *,
        scale: float = 1.0,
        intercept: bool = True,
        l2: float = 0.0,
        sample_weight: ArrayLike | None = None,
        offset: ArrayLike | None = None,
    ) -> None:
        design = Design.of(features)
        self._set_data(design, design.shape[1:], intercept=intercept, l2=l2)
        self._set_targets(targets, scale, sample_weight, offset)


class TraceRegression(_SquaredLoss):
    """Least squares on matrices: F(W, b) = scale * mean_i (<X_i, W> + b - y_i)^2 + l2/2 ||W||_F^2.

    Parameters
    ----------
    matrices : array-like, shape (n, rows, columns)
        float32 and float64 are used as they are, without a copy if C-contiguous (also a memory map); sums are in
        float64.
    targets : array-like, shape (n,)
        The y_i.
    scale : float, default 1.0
        1.0: the mean of the squares. 0.5: half the mean.
    intercept : bool, default True
        Whether to fit an intercept b, on which the regularizer and `l2` do not act.
    l2 : float, default 0.0
        Strength of a ridge term on the coefficients, not on the intercept.
    sample_weight : array-like, shape (n,), optional
        Weight > 0 of each row in the mean; 1 by default. Only their ratios matter: a client counts by its rows in the
        pooled mean, so where they have other mean weights take :mod:`flwr_fco.sklearn`, which weighs sites by sums.
    offset : array-like, shape (n,), optional
        Added to each prediction x_i' w + b, with a coefficient that is not fitted; 0 by default.

    Attributes
    ----------
    layout : Layout
        ``coefficients`` of shape (rows, columns), then ``intercept`` of shape (1,).
    features : ndarray, shape (n, rows * columns)
        The matrices, flattened in C order.

    Raises
    ------
    ConfigurationError
        If shapes do not match, there is no example, a number is not finite, or `scale`, `l2` or a weight is out of
        range.

    Notes
    -----
    The strength of psi on scikit-learn's scale is ``alpha = strength / (2 scale)``: with the default `scale`,
    ``L1(0.1)`` corresponds to ``Lasso(alpha=0.05)``; with ``scale=0.5`` the two scales agree
    (:mod:`flwr_fco.objectives.scikit_learn`).

    Examples
    --------
    >>> import numpy as np
    >>> objective = TraceRegression(np.array([np.eye(2), np.ones((2, 2))]), np.array([2.0, 3.0]), intercept=False)
    >>> objective.layout
    Layout(coefficients[2, 2]*; size 4, * regularized)
    >>> objective.value(np.eye(2).reshape(-1))
    0.5
    """

    def __init__(
        self,
        matrices: ArrayLike,
        targets: ArrayLike,
        *,
        scale: float = 1.0,
        intercept: bool = True,
        l2: float = 0.0,
        sample_weight: ArrayLike | None = None,
        offset: ArrayLike | None = None,
    ) -> None:
        design = Design.of(matrices, "matrices", 3)
        self._set_data(design, np.shape(matrices)[1:], intercept=intercept, l2=l2)
        self._set_targets(targets, scale, sample_weight, offset)


#: That of a Newton step.
_BEYOND = 0.01


class Huber(LinearModel):
    """Robust regression: F(w, b) = mean_i h(<x_i, w> + b - y_i) + l2/2 ||w||^2.

    h(r) = r^2/2 for |r| <= delta, and delta (|r| - delta/2) beyond: its slope is never more than delta.

    Parameters
    ----------
    features : array-like or sparse matrix, shape (n, d)
        float32 and float64 are used as they are; sums are in float64.
    targets : array-like, shape (n,)
        The y_i.
    delta : float, default 1.35
        Where the loss becomes linear, in units of the targets: 1.35 standard deviations of the noise keep 95 % of the
        efficiency of least squares. It is not estimated, and must be the same on every client.
    intercept : bool, default True
        Whether to fit an intercept b, on which the regularizer and `l2` do not act.
    l2 : float, default 0.0
        Strength of a ridge term on the coefficients, not on the intercept.
    sample_weight : array-like, shape (n,), optional
        As in :class:`LeastSquares`.
    offset : array-like, shape (n,), optional
        As in :class:`LeastSquares`.

    Attributes
    ----------
    layout : Layout
        ``coefficients`` of shape (d,), then ``intercept`` of shape (1,).

    Raises
    ------
    ConfigurationError
        If shapes do not match, there is no example, a number is not finite, or `delta`, `l2` or a weight is out of
        range.

    References
    ----------
    Huber: Robust estimation of a location parameter (Ann. Math. Stat. 1964).

    Examples
    --------
    >>> objective = Huber(np.array([[1.0], [3.0]]), np.array([1.0, 9.0]), delta=2.0, intercept=False)
    >>> objective.value(np.array([1.0])), objective.gradient(np.array([1.0]))
    (5.0, array([-3.]))
    """

    #: Curvature of a row beyond delta, relative to that of the parabola above the loss.
    _beyond = 0.0

    _compiled = False
    _curvature = (1.0, 1.0)

    def __init__(
        self,
        features: ArrayLike,
        targets: ArrayLike,
        *,
        delta: float = 1.35,
        intercept: bool = True,
        l2: float = 0.0,
        sample_weight: ArrayLike | None = None,
        offset: ArrayLike | None = None,
    ) -> None:
        design = Design.of(features)
        self._set_data(design, design.shape[1:], intercept=intercept, l2=l2)
        self.delta = checked("delta", delta, float, POSITIVE)
        self.targets = self._targets = as_targets("targets", targets, self.num_examples)
        self._set_rows(sample_weight, offset)

    @property
    def _kind(self) -> str:
        return f"Huber {self.delta!r}"

    def _of_row(self) -> Link:
        return HuberLoss(self.delta)

    def _losses(self, scores: Scores, targets: NDArray[Any]) -> Vector:
        size = np.abs(scores - targets)
        inside = np.minimum(size, self.delta)
        return np.asarray(inside * (size - 0.5 * inside))

    def _slopes(self, scores: Scores, targets: NDArray[Any], weight: float) -> float:
        total = float(self._losses(scores, targets).sum())
        scores[:] = weight * np.clip(scores - targets, -self.delta, self.delta)
        return total

    def _bend(self, scores: Scores, targets: NDArray[Any], change: Scores, weight: float) -> Scores:
        size = np.abs(scores - targets)
        bend = np.where(size <= self.delta, 1.0, self._beyond * self.delta / np.maximum(size, self.delta))
        return bend * (weight * change)

    def newton_block(self, w: Vector, indices: NDArray[np.int64]) -> Vector:
        """Return the Hessian's block with a little of delta / |r| for rows beyond delta, where the Hessian is 0.

        With all of it the model is the parabola above the loss, whose steps are never too long, but do not become
        Newton's. A hundredth gives steps from afar a length, which the line search then finds.
        """
        curved = copy.copy(self)
        curved._beyond = _BEYOND
        return curved.hessian_block(w, indices)

    def predict(self, w: Vector) -> Vector:
        """Return the predictions for the client's examples."""
        return self._scores(w)


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

    def _of_row(self) -> Link:
        return PoissonLoss()

    def duality(self) -> DualTerms:
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

"""Least squares on vectors and on matrices (trace regression)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flwr_fco.core.layout import Vector
from flwr_fco.errors import ConfigurationError
from flwr_fco.kernels.losses import add_least_squares_gradient
from flwr_fco.objectives._linear import LinearModel, Scores, as_targets
from flwr_fco.objectives.design import Design


class _SquaredLoss(LinearModel):
    """scale * mean (prediction - target)^2 + l2/2 ||coefficients||^2."""

    _link = "identity"
    _quadratic = True
    targets: Vector
    scale: float

    def _set_targets(
        self, targets: ArrayLike, scale: float, sample_weight: ArrayLike | None, offset: ArrayLike | None
    ) -> None:
        if not (math.isfinite(scale) and scale > 0.0):
            raise ConfigurationError(
                f"scale={scale!r}; expected a positive number: 1.0 for mean squares, 0.5 for scikit-learn's convention"
            )
        self.scale = float(scale)
        self.targets = self._targets = as_targets("targets", targets, self.num_examples)
        self._set_rows(sample_weight, offset)
        if self._offset is not None:
            # The loss is that of other targets, and its compiled loops are theirs.
            self._targets, self._offset = self.targets - self._offset, None
        self._factor = 2.0 * self.scale
        # One number for both norms, because the second derivative of the quadratic loss is constant.
        self._curvature = (self._factor, self._factor)

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

    def _add_compiled(self, w: Vector, rows: NDArray[np.int64], scale: float, out: Vector) -> None:
        factor, shrinkage = self._factor * scale, self.l2 * scale
        add_least_squares_gradient(self.design.matrix, self._targets, rows, w, factor, shrinkage, out)

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
        1.0: the mean of the squares. 0.5: half the mean, as in scikit-learn's `Lasso`.
    intercept : bool, default True
        Whether to fit an intercept b, on which the regularizer and `l2` do not act.
    l2 : float, default 0.0
        Strength of a ridge term on the coefficients, not on the intercept.
    sample_weight : array-like, shape (n,), optional
        Weight > 0 of each row in the mean; 1 by default. Only their ratios matter: a client counts by its rows in the
        pooled mean, so where they have other mean weights give the strategy ``weighting={partition: sum of weights}``.
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
    (:mod:`flwr_fco.objectives.scales`).

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
        pooled mean, so where they have other mean weights give the strategy ``weighting={partition: sum of weights}``.
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
    (:mod:`flwr_fco.objectives.scales`).

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

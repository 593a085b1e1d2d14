"""Least squares on vectors and on matrices (trace regression)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flwr_fco.errors import ConfigurationError
from flwr_fco.kernels.dual_averaging import Retrieval, dual_averaging
from flwr_fco.kernels.losses import add_least_squares_gradient, margins
from flwr_fco.objectives._linear import LinearModel, as_features, as_targets
from flwr_fco.objectives.base import Batch, DualAveragingKernel
from flwr_fco.parameters import Vector

__all__ = ["LeastSquares", "TraceRegression"]


class _SquaredLoss(LinearModel, DualAveragingKernel):
    """scale * mean (prediction - target)^2 + l2/2 ||coefficients||^2."""

    targets: Vector
    scale: float

    def _set_targets(self, targets: ArrayLike, scale: float) -> None:
        if not (math.isfinite(scale) and scale > 0.0):
            raise ConfigurationError(
                f"scale={scale!r}; expected a positive number: 1.0 for mean squares, 0.5 for scikit-learn's convention"
            )
        self.scale = float(scale)
        self.targets = as_targets("targets", targets, self.num_examples)
        self._factor = 2.0 * self.scale
        # One number for both norms: the loss is quadratic, its second derivative constant.
        self._curvature = (self._factor, self._factor)

    def value(self, w: Vector) -> float:
        """Return F_m(w), the mean over all examples plus the l2 term.

        Parameters
        ----------
        w : ndarray of float64, shape (layout.size,)

        Returns
        -------
        float
        """
        residuals = self.predict(w) - self.targets
        return self.scale * float(residuals @ residuals) / self.num_examples + self._l2_value(w)

    def add_gradient(self, w: Vector, batch: Batch, scale: float, out: Vector) -> None:
        """Add scale times the gradient to `out` in place, in one pass over the rows; `out` may be `w`.

        Parameters
        ----------
        w : ndarray of float64, shape (layout.size,)
        batch : ndarray of int64 or None
            Rows; None for all.
        scale : float
            Usually minus the step size.
        out : ndarray of float64, shape (layout.size,)
        """
        rows = self._rows if batch is None else batch
        add_least_squares_gradient(self.features, self.targets, rows, w, self._factor * scale, self.l2 * scale, out)

    def dual_averaging_epoch(
        self,
        order: NDArray[np.int64],
        batch_size: int,
        retrieval: Retrieval,
        elapsed: float,
        client_lr: float,
        shift: Vector,
        dual: Vector,
    ) -> int:
        """Run local dual averaging over an epoch in one kernel call; see the base class."""
        data = (False, self.features, self.targets, order, batch_size)
        steps: int = dual_averaging(*data, *retrieval, elapsed, client_lr, self._factor, self.l2, shift, dual)
        return steps

    def predict(self, w: Vector) -> Vector:
        """Return the predictions on the client's examples.

        Parameters
        ----------
        w : ndarray of float64, shape (layout.size,)

        Returns
        -------
        ndarray of float64, shape (num_examples,)
        """
        self._check(w)
        return np.asarray(margins(self.features, self._rows, w))

    def metrics(self, w: Vector) -> dict[str, float]:
        """Return the loss, the mean squared error and R^2.

        Parameters
        ----------
        w : ndarray of float64, shape (layout.size,)

        Returns
        -------
        dict
            ``loss``: :meth:`value`. ``mse``: the mean squared residual, whatever `scale` and `l2` are. ``r2``: as in
            scikit-learn, so 1.0 or 0.0 (exact or not) where the targets are constant.
        """
        residuals = self.predict(w) - self.targets
        squares = float(residuals @ residuals)
        centred = self.targets - self.targets.mean()
        total = float(centred @ centred)
        r2 = 1.0 - squares / total if total > 0.0 else float(squares == 0.0)
        mse = squares / self.num_examples
        return {"loss": self.scale * mse + self._l2_value(w), "mse": mse, "r2": r2}


class LeastSquares(_SquaredLoss):
    """Least squares: F(w, b) = scale * mean_i (<x_i, w> + b - y_i)^2 + l2/2 ||w||^2.

    Parameters
    ----------
    features : array-like, shape (n, d)
        float32 and float64 are used as they are, without a copy if C-contiguous (also a memory map); sums are in
        float64.
    targets : array-like, shape (n,)
    scale : float, default 1.0
        1.0: the mean of the squares. 0.5: half of it, as in scikit-learn's `Lasso`.
    intercept : bool, default True
        Whether there is a b. The regularizer and `l2` leave it alone.
    l2 : float, default 0.0
        Strength of a ridge term on the coefficients, not on the intercept.

    Attributes
    ----------
    layout : Layout
        ``coefficients`` of shape (d,), then ``intercept`` of shape (1,).

    Raises
    ------
    ConfigurationError
        If shapes do not match, there is no example, a number is not finite, or `scale` or `l2` is out of range.

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
    ) -> None:
        rows = as_features("features", features, 2)
        self._set_data(rows, (rows.shape[1],), (1,) if intercept else None, l2)
        self._set_targets(targets, scale)


class TraceRegression(_SquaredLoss):
    """Least squares on matrices: F(W, b) = scale * mean_i (<X_i, W> + b - y_i)^2 + l2/2 ||W||_F^2.

    Parameters
    ----------
    matrices : array-like, shape (n, rows, columns)
        float32 and float64 are used as they are, without a copy if C-contiguous (also a memory map); sums are in
        float64.
    targets : array-like, shape (n,)
    scale : float, default 1.0
        1.0: the mean of the squares. 0.5: half of it.
    intercept : bool, default True
        Whether there is a b. The regularizer and `l2` leave it alone.
    l2 : float, default 0.0
        Strength of a ridge term on the coefficients, not on the intercept.

    Attributes
    ----------
    layout : Layout
        ``coefficients`` of shape (rows, columns), then ``intercept`` of shape (1,).
    features : ndarray, shape (n, rows * columns)
        The matrices, flattened in C order.

    Raises
    ------
    ConfigurationError
        If shapes do not match, there is no example, a number is not finite, or `scale` or `l2` is out of range.

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
    ) -> None:
        stack = as_features("matrices", matrices, 3)
        n, rows, columns = stack.shape
        self._set_data(stack.reshape(n, rows * columns), (rows, columns), (1,) if intercept else None, l2)
        self._set_targets(targets, scale)

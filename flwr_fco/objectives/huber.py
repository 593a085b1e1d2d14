"""Huber's loss: least squares that a few wild targets cannot bend."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flwr_fco.core.layout import Vector
from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives._linear import LinearModel, Scores, as_targets
from flwr_fco.objectives.design import Design

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
        if not (math.isfinite(delta) and delta > 0.0):
            raise ConfigurationError(f"delta={delta!r}; expected a finite number > 0, in units of the targets")
        design = Design.of(features)
        self._set_data(design, design.shape[1:], intercept=intercept, l2=l2)
        self.delta = float(delta)
        self.targets = self._targets = as_targets("targets", targets, self.num_examples)
        self._set_rows(sample_weight, offset)

    @property
    def _kind(self) -> str:
        return f"Huber {self.delta!r}"

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
        return np.where(size <= self.delta, 1.0, self._beyond * self.delta / np.maximum(size, self.delta)) * (
            weight * change
        )

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

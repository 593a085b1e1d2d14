"""The hinge loss: convex, not smooth."""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flwr_fco.core.layout import Vector
from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives._linear import Scores, TwoClassModel
from flwr_fco.objectives.base import Objective


class Hinge(TwoClassModel):
    """A linear support vector machine: the mean hinge loss, plus l2/2 ||w||^2.

    F(w) = mean_i max(0, 1 - s_i <x_i, w>) + l2/2 ||w||^2 with signs s_i = -1 or +1. Strongly convex with modulus `l2`,
    not smooth: :meth:`gradient` is a subgradient (0 for an example with a margin of exactly 1), and there is no Hessian
    or Lipschitz constant. Methods that take gradient steps need small or decreasing learning rates; DualFL minimises it
    exactly with ``engine="dual-ascent"``.

    Parameters
    ----------
    features : array-like or sparse matrix, shape (n, d)
        float32 and float64 are used as they are. There is no intercept, because the loss would not be strongly convex
        in it: append a column of ones, whose coefficient is regularized like all others.
    labels : array-like, shape (n,)
        0 and 1, or -1 and +1; one class alone is fine.
    l2 : float, default 0.0
        Strength of the ridge term.
    sample_weight : array-like, shape (n,), optional
        Weight > 0 of each row in the mean; 1 by default. Only their ratios matter: a client counts by its rows in the
        pooled mean, so where they have other mean weights give the strategy ``weighting={partition: sum of weights}``.
    offset : array-like, shape (n,), optional
        Added to each prediction x_i' w + b, with a coefficient that is not fitted; 0 by default.
        With either, there is no ``engine="dual-ascent"``.

    Attributes
    ----------
    layout : Layout
        ``coefficients`` of shape (d,).
    signs : ndarray of float64, shape (n,)
        The s_i.

    Raises
    ------
    ConfigurationError
        If shapes do not match, there is no example, a feature is not finite, a label is neither 0/1 nor -1/+1, or
        `l2` or a weight is out of range.

    Examples
    --------
    >>> import numpy as np
    >>> objective = Hinge(np.array([[1.0], [2.0]]), np.array([-1, 1]))
    >>> objective.value(np.array([0.25])), objective.gradient(np.array([0.25]))
    (0.875, array([-0.5]))
    """

    smooth: ClassVar[bool] = False
    _link = "hinge"

    # The inherited versions are valid only for smooth losses, and the compiled loops do not support this one.
    _compiled: ClassVar[bool] = False
    linear_data = Objective.linear_data
    hessian_product = Objective.hessian_product
    hessian_block = Objective.hessian_block

    def __init__(
        self,
        features: ArrayLike,
        labels: ArrayLike,
        *,
        l2: float = 0.0,
        sample_weight: ArrayLike | None = None,
        offset: ArrayLike | None = None,
    ) -> None:
        self._set_examples(features, labels, intercept=False, l2=l2, sample_weight=sample_weight, offset=offset)

    @property
    def signs(self) -> Vector:
        """-1.0 or +1.0 for each example."""
        return self._targets

    def _losses(self, scores: Scores, targets: NDArray[Any]) -> Vector:
        return np.maximum(0.0, 1.0 - targets * scores)

    def _slopes(self, scores: Scores, targets: NDArray[Any], weight: float) -> float:
        losses = 1.0 - targets * scores
        active = losses > 0.0
        scores[:] = np.where(active, -weight * targets, 0.0)
        return float(losses[active].sum())

    def _bend(self, scores: Scores, targets: NDArray[Any], change: Scores, weight: float) -> NoReturn:
        self._does_not_know("its Hessian", "which does not exist everywhere")

    def lipschitz(self, norm: str = "l2") -> float:
        """Raise a :class:`ConfigurationError`, because a discontinuous gradient has no Lipschitz constant."""
        raise ConfigurationError(
            "the hinge loss is not smooth, so its gradient has no Lipschitz constant; give the rates by hand"
        )

    def strong_convexity(self) -> float:
        """Return `l2`."""
        return self.l2

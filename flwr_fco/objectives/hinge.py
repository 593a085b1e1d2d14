"""The hinge loss: convex, not smooth."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives._linear import as_labels, examples_of
from flwr_fco.objectives.base import Batch, Objective
from flwr_fco.objectives.design import Design
from flwr_fco.parameters import Layout, Vector

__all__ = ["Hinge"]


class Hinge(Objective):
    """A linear support vector machine: the mean hinge loss, plus l2/2 ||w||^2.

    F(w) = mean_i max(0, 1 - s_i <x_i, w>) + l2/2 ||w||^2 with signs s_i = -1 or +1. Strongly convex with modulus `l2`,
    not smooth: :meth:`gradient` is a subgradient (0 where the margin is exactly 1).

    Parameters
    ----------
    features : array-like, shape (n, d)
        float32 and float64 are used as they are. There is no intercept, which would not be strongly convex: append a
        column of ones, whose weight is then regularized like the others.
    labels : array-like, shape (n,)
        0 and 1, or -1 and +1.
    l2 : float, default 0.0
        Strength of the ridge term.

    Attributes
    ----------
    layout : Layout
        ``coefficients`` of shape (d,).

    Raises
    ------
    ConfigurationError
        If shapes do not match, a feature is not finite, the labels are not of two classes, or `l2` is negative.

    Examples
    --------
    >>> import numpy as np
    >>> objective = Hinge(np.array([[1.0], [2.0]]), np.array([-1, 1]))
    >>> objective.value(np.array([0.25])), objective.gradient(np.array([0.25]))
    (0.875, array([-0.5]))
    """

    def __init__(self, features: ArrayLike, labels: ArrayLike, *, l2: float = 0.0) -> None:
        if not (math.isfinite(l2) and l2 >= 0.0):
            raise ConfigurationError(f"l2={l2!r}; expected a finite number that is not negative")
        self.design = Design.of(features)
        self.layout = Layout.from_arrays({"coefficients": np.empty(self.design.shape[1])})
        self.num_examples = self.design.shape[0]
        self.l2 = float(l2)
        self.labels = as_labels("labels", labels, self.num_examples)
        found = np.unique(self.labels)
        if not (np.isin(found, (0, 1)).all() or np.isin(found, (-1, 1)).all()):
            raise ConfigurationError(f"labels hold {examples_of(found)}; expected 0 and 1, or -1 and +1")
        self._negative = -1 if -1 in found else 0
        self.signs = np.where(self.labels == 1, 1.0, -1.0)

    def margins(self, w: Vector) -> Vector:
        """Return <x_i, w>.

        Parameters
        ----------
        w : ndarray of float64, shape (layout.size,)

        Returns
        -------
        ndarray of float64, shape (num_examples,)
        """
        return self.design.predict(w)

    def value(self, w: Vector) -> float:
        """Return F_m(w), the mean over all examples plus the l2 term.

        Parameters
        ----------
        w : ndarray of float64, shape (layout.size,)

        Returns
        -------
        float
        """
        return float(np.maximum(0.0, 1.0 - self.signs * self.margins(w)).mean()) + 0.5 * self.l2 * float(w @ w)

    def gradient(self, w: Vector, batch: Batch = None, out: Vector | None = None) -> Vector:
        """Return a subgradient of the mean over a batch, plus l2 times the coefficients.

        Parameters
        ----------
        w : ndarray of float64, shape (layout.size,)
        batch : ndarray of int64, optional
            Rows; all by default.
        out : ndarray, optional
            Where to write the result; must not be `w`.

        Returns
        -------
        ndarray of float64, shape (layout.size,)
        """
        signs = self.signs if batch is None else self.signs[batch]
        slopes = np.where(signs * self.design.predict(w, batch) < 1.0, -signs / signs.size, 0.0)
        out = np.zeros(self.layout.size) if out is None else out
        np.multiply(w, self.l2, out=out)
        self.design.add_rows(slopes, out, batch)
        return out

    def lipschitz(self, norm: str = "l2") -> float:
        """Raise: a gradient that jumps has no Lipschitz constant.

        Raises
        ------
        ConfigurationError
            Always.
        """
        raise ConfigurationError(
            "the hinge loss is not smooth, so its gradient has no Lipschitz constant; give the rates by hand"
        )

    def strong_convexity(self) -> float:
        """Return `l2`."""
        return self.l2

    def predict(self, w: Vector) -> NDArray[Any]:
        """Return the label of each of the client's examples, in the coding of `labels`; at a margin of 0 the negative.

        Parameters
        ----------
        w : ndarray of float64, shape (layout.size,)

        Returns
        -------
        ndarray of int64, shape (num_examples,)
        """
        return np.where(self.margins(w) > 0.0, 1, self._negative)

    def metrics(self, w: Vector) -> dict[str, float]:
        """Return the loss and the accuracy.

        Parameters
        ----------
        w : ndarray of float64, shape (layout.size,)

        Returns
        -------
        dict
            ``loss``: :meth:`value`. ``accuracy``: the share of the examples whose label :meth:`predict` finds.
        """
        return {"loss": self.value(w), "accuracy": float((self.predict(w) == self.labels).mean())}

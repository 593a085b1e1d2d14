"""Logistic regression with two classes and with many."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp

from flwr_fco.errors import ConfigurationError
from flwr_fco.kernels.dual_averaging import Retrieval, dual_averaging
from flwr_fco.kernels.losses import add_logistic_gradient, add_multinomial_gradient, margins
from flwr_fco.objectives._linear import CHUNK, LinearModel, as_features, as_labels, examples_of
from flwr_fco.objectives.base import Batch, DualAveragingKernel
from flwr_fco.parameters import Vector

__all__ = ["Logistic", "MultinomialLogistic"]


class Logistic(LinearModel, DualAveragingKernel):
    """Logistic regression: F(w, b) = mean_i log(1 + exp(-s_i (<x_i, w> + b))) + l2/2 ||w||^2, s_i = -1 or +1.

    Parameters
    ----------
    features : array-like, shape (n, d)
        float32 and float64 are used as they are, without a copy if C-contiguous (also a memory map); sums are in
        float64.
    labels : array-like, shape (n,)
        0 and 1, or -1 and +1; one class alone is fine.
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
        If shapes do not match, there is no example, a feature is not finite, a label is neither 0/1 nor -1/+1, or
        `l2` is negative.

    Examples
    --------
    >>> import numpy as np
    >>> objective = Logistic(np.array([[1.0], [-1.0]]), np.array([1, 0]))
    >>> round(objective.value(np.zeros(2)), 6), objective.gradient(np.zeros(2))
    (0.693147, array([-0.5,  0. ]))
    """

    _curvature = (0.25, 0.25)

    def __init__(self, features: ArrayLike, labels: ArrayLike, *, intercept: bool = True, l2: float = 0.0) -> None:
        rows = as_features("features", features, 2)
        self._set_data(rows, (rows.shape[1],), (1,) if intercept else None, l2)
        self.labels = as_labels("labels", labels, self.num_examples)
        found = np.unique(self.labels)
        if np.isin(found, (0, 1)).all():
            self._negative = 0
        elif np.isin(found, (-1, 1)).all():
            self._negative = -1
        else:
            raise ConfigurationError(
                f"labels hold {examples_of(found)}; expected 0 and 1, or -1 and +1. "
                "For more classes use MultinomialLogistic; for names, encode them first (the same way on every client)."
            )
        self._signs = np.where(self.labels == 1, 1.0, -1.0)

    def value(self, w: Vector) -> float:
        """Return F_m(w), the mean over all examples plus the l2 term.

        Parameters
        ----------
        w : ndarray of float64, shape (layout.size,)

        Returns
        -------
        float
        """
        return self._value(w, self.margins(w))

    def _value(self, w: Vector, scores: Vector) -> float:
        return float(np.logaddexp(0.0, -self._signs * scores).mean()) + self._l2_value(w)

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
        add_logistic_gradient(self.features, self._signs, rows, w, scale, self.l2 * scale, out)

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
        data = (True, self.features, self._signs, order, batch_size)
        steps: int = dual_averaging(*data, *retrieval, elapsed, client_lr, 1.0, self.l2, shift, dual)
        return steps

    def margins(self, w: Vector) -> Vector:
        """Return <x_i, w> + b: the log odds of label 1.

        Parameters
        ----------
        w : ndarray of float64, shape (layout.size,)

        Returns
        -------
        ndarray of float64, shape (num_examples,)
        """
        self._check(w)
        return np.asarray(margins(self.features, self._rows, w))

    def predict(self, w: Vector) -> NDArray[Any]:
        """Return the more likely label of each of the client's examples, in the coding of `labels`.

        Parameters
        ----------
        w : ndarray of float64, shape (layout.size,)

        Returns
        -------
        ndarray of int64, shape (num_examples,)
            At a margin of exactly 0 the negative label, as in scikit-learn.
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
        scores = self.margins(w)
        return {"loss": self._value(w, scores), "accuracy": float(((scores > 0.0) == (self._signs > 0.0)).mean())}


class MultinomialLogistic(LinearModel):
    """Multinomial logistic regression: the mean cross entropy of softmax(W' x_i + b), plus l2/2 ||W||_F^2.

    F(W, b) = mean_i [ log sum_c exp(m_ic) - m_{i, y_i} ] + l2/2 ||W||_F^2 with m_i = W' x_i + b.

    Parameters
    ----------
    features : array-like, shape (n, d)
        float32 and float64 are used as they are, without a copy if C-contiguous (also a memory map); sums are in
        float64.
    labels : array-like, shape (n,)
        Integers 0 .. num_classes - 1.
    num_classes : int, optional
        Number of classes of the whole federation. By default one more than the largest label, if every class
        occurs. Give it wherever a client may lack a class: all clients must have models of the same shape.
    intercept : bool, default True
        Whether there is a b. The regularizer and `l2` leave it alone.
    l2 : float, default 0.0
        Strength of a ridge term on the coefficients, not on the intercepts.

    Attributes
    ----------
    layout : Layout
        ``coefficients`` of shape (d, num_classes), then ``intercept`` of shape (num_classes,).

    Raises
    ------
    ConfigurationError
        If shapes do not match, there is no example, a feature is not finite, a label is not one of the classes, a
        class is missing and `num_classes` was not given, or `l2` is negative.

    Examples
    --------
    >>> import numpy as np
    >>> objective = MultinomialLogistic(np.array([[1.0], [2.0]]), np.array([0, 2]), num_classes=3, intercept=False)
    >>> w = np.array([0.0, 0.0, 1.0])
    >>> round(objective.value(w), 6), objective.predict(w)
    (0.895495, array([2, 2]))
    """

    # diag(p) - pp' has norm at most 1/2 (two classes at 1/2 each) and entries at most 1/4.
    _curvature = (0.5, 0.25)

    def __init__(
        self,
        features: ArrayLike,
        labels: ArrayLike,
        *,
        num_classes: int | None = None,
        intercept: bool = True,
        l2: float = 0.0,
    ) -> None:
        rows = as_features("features", features, 2)
        given = as_labels("labels", labels, rows.shape[0])
        self.num_classes = _count_classes(given, num_classes)
        self._set_data(rows, (rows.shape[1], self.num_classes), (self.num_classes,) if intercept else None, l2)
        self.labels = np.ascontiguousarray(given, dtype=np.int64)

    def value(self, w: Vector) -> float:
        """Return F_m(w), the mean over all examples plus the l2 term.

        Parameters
        ----------
        w : ndarray of float64, shape (layout.size,)

        Returns
        -------
        float
        """
        return self._value(w, self.margins(w))

    def _value(self, w: Vector, scores: NDArray[np.float64]) -> float:
        losses = logsumexp(scores, axis=1) - scores[self._rows, self.labels]
        return float(losses.mean()) + self._l2_value(w)

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
        add_multinomial_gradient(self.features, self.labels, rows, w, self.num_classes, scale, self.l2 * scale, out)

    def margins(self, w: Vector) -> NDArray[np.float64]:
        """Return W' x_i + b, the unnormalised log probabilities.

        Parameters
        ----------
        w : ndarray of float64, shape (layout.size,)

        Returns
        -------
        ndarray of float64, shape (num_examples, num_classes)
        """
        self._check(w)
        coefficients = w[: self._num_coefficients].reshape(-1, self.num_classes)
        scores = np.empty((self.num_examples, self.num_classes))
        for start in range(0, self.num_examples, CHUNK):
            block = self.features[start : start + CHUNK].astype(np.float64, copy=False)
            np.matmul(block, coefficients, out=scores[start : start + CHUNK])
        if self.intercept:
            scores += w[self._num_coefficients :]
        return scores

    def predict(self, w: Vector) -> NDArray[np.int64]:
        """Return the most likely class of each of the client's examples.

        Parameters
        ----------
        w : ndarray of float64, shape (layout.size,)

        Returns
        -------
        ndarray of int64, shape (num_examples,)
        """
        return np.asarray(self.margins(w).argmax(axis=1), dtype=np.int64)

    def metrics(self, w: Vector) -> dict[str, float]:
        """Return the loss and the accuracy.

        Parameters
        ----------
        w : ndarray of float64, shape (layout.size,)

        Returns
        -------
        dict
            ``loss``: :meth:`value`. ``accuracy``: the share of the examples whose class :meth:`predict` finds.
        """
        scores = self.margins(w)
        return {
            "loss": self._value(w, scores),
            "accuracy": float((scores.argmax(axis=1) == self.labels).mean()),
        }


def _count_classes(labels: NDArray[Any], num_classes: int | None) -> int:
    """Return the number of classes, having checked that the labels are among them."""
    found = np.unique(labels)
    integral = labels.dtype.kind in "iub" or (labels.dtype.kind == "f" and bool((found == np.floor(found)).all()))
    if not integral or found[0] < 0:
        raise ConfigurationError(
            f"labels hold {examples_of(found)}; expected integers 0 .. num_classes - 1. "
            "For names, encode them first (the same way on every client)."
        )
    largest = int(found[-1])
    if num_classes is None:
        if found.size != largest + 1 or largest == 0:
            raise ConfigurationError(
                f"labels hold {examples_of(found)}, so some class is missing on this client and the number of classes "
                "cannot be read off them. Give num_classes= (that of the whole federation): all clients must have "
                "models of the same shape."
            )
        return largest + 1
    if num_classes < 2 or num_classes <= largest:
        raise ConfigurationError(
            f"num_classes={num_classes}, but labels hold {examples_of(found)}; expected at least {max(2, largest + 1)}"
        )
    return int(num_classes)

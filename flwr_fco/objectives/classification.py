"""Losses of classes: logistic and multinomial logistic regression."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from flwr_fco.core.layout import Vector
from flwr_fco.errors import ConfigurationError
from flwr_fco.kernels.losses import add_multinomial_gradient, logistic_slopes, softmax_slopes
from flwr_fco.objectives._linear import LinearModel, as_labels, examples_of
from flwr_fco.objectives.design import Design, Scores
from flwr_fco.objectives.links import Categories, Link, LogisticLoss


class Logistic(LinearModel):
    """Logistic regression: F(w, b) = mean_i log(1 + exp(-s_i (<x_i, w> + b))) + l2/2 ||w||^2, s_i = -1 or +1.

    Parameters
    ----------
    features : array-like or sparse matrix, shape (n, d)
        float32 and float64 are used as they are, without a copy if C-contiguous (also a memory map), or sorted by rows
        and columns if sparse; sums are in float64.
    labels : array-like, shape (n,)
        0 and 1, or -1 and +1; one class alone is fine.
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
        If shapes do not match, there is no example, a feature is not finite, a label is neither 0/1 nor -1/+1, or
        `l2` or a weight is out of range.

    Notes
    -----
    The strength of psi on scikit-learn's scale is ``C = 1 / (n strength)`` in ``LogisticRegression`` with the l1
    penalty, where n is the number of examples of all clients (:mod:`flwr_fco.objectives.scikit_learn`).

    Examples
    --------
    >>> import numpy as np
    >>> objective = Logistic(np.array([[1.0], [-1.0]]), np.array([1, 0]))
    >>> round(objective.value(np.zeros(2)), 6), objective.gradient(np.zeros(2))
    (0.693147, array([-0.5,  0. ]))
    """

    _link = "logistic"
    _curvature = (0.25, 0.25)

    def __init__(
        self,
        features: ArrayLike,
        labels: ArrayLike,
        *,
        intercept: bool = True,
        l2: float = 0.0,
        sample_weight: ArrayLike | None = None,
        offset: ArrayLike | None = None,
    ) -> None:
        design = Design.of(features)
        self._set_data(design, design.shape[1:], intercept=intercept, l2=l2)
        self._set_rows(sample_weight, offset)
        self.labels = as_labels("labels", labels, self.num_examples)
        values = np.unique(self.labels)
        if np.isin(values, (0, 1)).all():
            self._negative = 0
        elif np.isin(values, (-1, 1)).all():
            self._negative = -1
        else:
            raise ConfigurationError(
                f"labels hold {examples_of(values)}; expected 0 and 1, or -1 and +1. "
                "For more classes use MultinomialLogistic; for names, encode them first (the same way on every client)."
            )
        self._targets = np.where(self.labels == 1, 1.0, -1.0)
        # Of labels that are all 1 the other one is not known.
        self.class_names = (f"{self._negative}", "1") if (values != 1).any() else None

    def _of_row(self) -> Link:
        return LogisticLoss()

    def margins(self, w: Vector) -> Vector:
        """Return the margins <x_i, w> + b; above 0 the positive label is the more likely one."""
        return self._scores(w)

    def predict(self, w: Vector) -> NDArray[Any]:
        """Return the more likely label of each of the client's examples, in the coding of `labels`.

        Returns
        -------
        ndarray of int64, shape (num_examples,)
            The negative label at a margin of exactly 0, as in scikit-learn.
        """
        return np.where(self.margins(w) > 0.0, 1, self._negative)

    def metrics(self, w: Vector) -> dict[str, float]:
        """Return ``loss``, :meth:`value`, and ``accuracy``, the share of examples that :meth:`predict` gets right."""
        scores = self.margins(w)
        loss = self._mean_loss(scores) + self._l2_value(w)
        return {"loss": loss, "accuracy": self._mean((scores > 0.0) == (self._targets > 0.0))}

    def _losses(self, scores: Scores, targets: NDArray[Any]) -> Vector:
        return np.asarray(np.logaddexp(0.0, -targets * scores))

    def _slopes(self, scores: Scores, targets: NDArray[Any], weight: float) -> float:
        return float(logistic_slopes(scores, targets, weight))

    def _bend(self, scores: Scores, targets: NDArray[Any], change: Scores, weight: float) -> Scores:
        from scipy.special import expit

        return np.asarray(weight * expit(scores) * expit(-scores) * change)


class MultinomialLogistic(LinearModel):
    """Multinomial logistic regression: the mean cross entropy of softmax(W' x_i + b), plus l2/2 ||W||_F^2.

    F(W, b) = mean_i [ log sum_c exp(m_ic) - m_{i, y_i} ] + l2/2 ||W||_F^2 with m_i = W' x_i + b.

    Parameters
    ----------
    features : array-like or sparse matrix, shape (n, d)
        float32 and float64 are used as they are, without a copy if C-contiguous (also a memory map), or sorted by rows
        and columns if sparse; sums are in float64.
    labels : array-like, shape (n,)
        Integers 0 .. num_classes - 1.
    num_classes : int, optional
        Number of classes in the whole federation. By default one more than the largest label, if every class occurs.
        Required if a client may lack a class, because all clients' models must have the same shape.
    intercept : bool, default True
        Whether to fit an intercept b, on which the regularizer and `l2` do not act.
    l2 : float, default 0.0
        Strength of a ridge term on the coefficients, not on the intercepts.
    sample_weight : array-like, shape (n,), optional
        Weight > 0 of each row in the mean; 1 by default. Only their ratios matter: a client counts by its rows in the
        pooled mean, so where they have other mean weights take :mod:`flwr_fco.sklearn`, which weighs sites by sums.
    offset : array-like, shape (n, num_classes), optional
        Added to the predictions W' x_i + b, with coefficients that are not fitted; 0 by default.

    Attributes
    ----------
    layout : Layout
        ``coefficients`` of shape (d, num_classes), then ``intercept`` of shape (num_classes,).

    Raises
    ------
    ConfigurationError
        If shapes do not match, there is no example, a feature is not finite, a label is not one of the classes, a
        class is missing and `num_classes` was not given, or `l2` or a weight is out of range.

    Notes
    -----
    The strength of psi on scikit-learn's scale is ``C = 1 / (n strength)`` in ``LogisticRegression`` with the l1
    penalty, where n is the number of examples of all clients (:mod:`flwr_fco.objectives.scikit_learn`).

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
    _link = "softmax"

    def __init__(
        self,
        features: ArrayLike,
        labels: ArrayLike,
        *,
        num_classes: int | None = None,
        intercept: bool = True,
        l2: float = 0.0,
        sample_weight: ArrayLike | None = None,
        offset: ArrayLike | None = None,
    ) -> None:
        design = Design.of(features)
        classes = as_labels("labels", labels, design.shape[0])
        self.num_classes = _count_classes(classes, num_classes)
        shape = (design.shape[1], self.num_classes)
        self._set_data(design, shape, intercept=intercept, l2=l2, num_outputs=self.num_classes)
        self.labels = self._targets = np.require(classes, np.int64, ["C", "W"])
        self._set_rows(sample_weight, offset)

    def _losses(self, scores: Scores, targets: NDArray[Any]) -> Vector:
        # SciPy's logsumexp takes more than twice as long for a client's hundred examples.
        return np.asarray(np.logaddexp.reduce(scores, axis=1) - scores[np.arange(targets.size), targets])

    def _slopes(self, scores: Scores, targets: NDArray[Any], weight: float) -> float:
        return float(softmax_slopes(scores, targets, weight))

    def _bend(self, scores: Scores, targets: NDArray[Any], change: Scores, weight: float) -> Scores:
        from scipy.special import softmax

        chances = softmax(scores, axis=1)
        centred = change - (chances * change).sum(axis=1, keepdims=True)
        return np.asarray(weight * chances * centred)

    def _bent(self, scores: Scores, dtype: DTypeLike) -> Callable[[Scores, slice], Scores]:
        from scipy.special import softmax

        chances = softmax(scores, axis=1).astype(dtype)
        shares = chances / np.asarray(self.num_examples, dtype)
        if self._weights is not None:
            shares *= self._weights[:, None].astype(dtype)
        ones = np.ones((self.num_classes, 1), dtype)
        return lambda change, rows: shares[rows] * (change - (chances[rows] * change) @ ones)

    def _add_compiled(self, w: Vector, rows: NDArray[np.int64], scale: float, out: Vector) -> None:
        shrinkage = self.l2 * scale
        add_multinomial_gradient(self.design.matrix, self.labels, rows, w, self.num_classes, scale, shrinkage, out)

    def _of_row(self) -> Link:
        return Categories(self.num_classes)

    def margins(self, w: Vector) -> NDArray[np.float64]:
        """Return W' x_i + b, the unnormalised log probabilities, of shape (num_examples, num_classes)."""
        return self._scores(w)

    def predict(self, w: Vector) -> NDArray[np.int64]:
        """Return the most likely class of each of the client's examples, as int64 of shape (num_examples,)."""
        return np.asarray(self.margins(w).argmax(axis=1), dtype=np.int64)

    def metrics(self, w: Vector) -> dict[str, float]:
        """Return ``loss``, :meth:`value`, and ``accuracy``, the share of examples that :meth:`predict` gets right."""
        scores = self.margins(w)
        accuracy = self._mean(scores.argmax(axis=1) == self.labels)
        return {"loss": self._mean_loss(scores) + self._l2_value(w), "accuracy": accuracy}


def _count_classes(labels: NDArray[Any], num_classes: int | None) -> int:
    """Check the labels and return the number of classes."""
    values = np.unique(labels)
    integral = labels.dtype.kind in "iub" or (labels.dtype.kind == "f" and bool((values == np.floor(values)).all()))
    if not integral or values[0] < 0:
        raise ConfigurationError(
            f"labels hold {examples_of(values)}; expected integers 0 .. num_classes - 1. "
            "For names, encode them first (the same way on every client)."
        )
    largest = int(values[-1])
    if num_classes is None:
        if values.size != largest + 1 or largest == 0:
            raise ConfigurationError(
                f"labels hold {examples_of(values)}, so some class is missing on this client and the number of classes "
                "cannot be read off them. Give num_classes= (that of the whole federation): all clients must have "
                "models of the same shape."
            )
        return largest + 1
    if num_classes < 2 or num_classes <= largest:
        raise ConfigurationError(
            f"num_classes={num_classes}, but labels hold {examples_of(values)}; expected at least {max(2, largest + 1)}"
        )
    return int(num_classes)

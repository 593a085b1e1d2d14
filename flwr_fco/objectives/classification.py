"""Losses of classes: logistic and multinomial logistic regression, and the hinge loss."""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flwr_fco.core.layout import Vector
from flwr_fco.errors import ConfigurationError
from flwr_fco.kernels.losses import add_multinomial_gradient, logistic_slopes, softmax_slopes
from flwr_fco.objectives._linear import LinearModel, TwoClassModel, as_labels, examples_of
from flwr_fco.objectives.base import Objective
from flwr_fco.objectives.design import Design, Scores


class Logistic(TwoClassModel):
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
        self._set_examples(features, labels, intercept=intercept, l2=l2, sample_weight=sample_weight, offset=offset)

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
        pooled mean, so where they have other mean weights give the strategy ``weighting={partition: sum of weights}``.
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

    def _add_compiled(self, w: Vector, rows: NDArray[np.int64], scale: float, out: Vector) -> None:
        shrinkage = self.l2 * scale
        add_multinomial_gradient(self.design.matrix, self.labels, rows, w, self.num_classes, scale, shrinkage, out)

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

"""Universal adversarial training: a classifier against one perturbation of all its images."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flwr_fco.core.layout import Vector
from flwr_fco.kernels.adversarial import add_adversarial_operator
from flwr_fco.kernels.losses import softmax_slopes
from flwr_fco.objectives.base import gradient_from_zeros
from flwr_fco.objectives.design import SparseDesign
from flwr_fco.objectives.logistic import MultinomialLogistic
from flwr_fco.objectives.saddle.base import SaddleObjective


class UniversalAdversarialLogistic(SaddleObjective):
    """Multinomial logistic regression against one perturbation of all examples, which is maximised.

    f(W, b, delta) = mean_i [ log sum_c exp(m_ic) - m_{i, y_i} ] with m_i = W'(x_i + delta) + b. The classifier (W, b)
    minimises f; the perturbation delta, which has the shape of an example and is the same for all examples, maximises
    it.

    Sign of the penalty on the perturbation: the paper prints max over delta of f + lambda ||delta||_1, which would
    reward large perturbations. A penalty that makes an attack sparse must be concave for the maximising player, so it
    enters as - lambda ||delta||_1. In this package psi is always the sum of the players' own convex functions and the
    problem is min max f + psi_1 - psi_2, so the penalty is written with a positive sign:
    ``PerParameter({"perturbation": L1(0.1, bound=0.05)})``, including the box |delta_j| <= 0.05.

    The loss is convex in delta, not concave: there may be no saddle point, and theorems about convex-concave functions
    do not apply. The loss, the accuracy and the operator's natural residual can be measured. Perturbed examples are not
    clipped to the range of the originals.

    Parameters
    ----------
    features : array-like, shape (n, d)
        float32 and float64 are used as they are, without a copy if C-contiguous.
    labels : array-like, shape (n,)
        Integers 0 .. num_classes - 1.
    num_classes : int, optional
        Number of classes in the whole federation. By default one more than the largest label, if every class occurs.
    intercept : bool, default True
        Whether to fit an intercept b. The paper's model has none.

    Attributes
    ----------
    layout : Layout
        ``coefficients`` of shape (d, num_classes) and ``intercept`` of shape (num_classes,), minimised, then
        ``perturbation`` of shape (d,), maximised. The regularizer does not act on the intercept.

    Raises
    ------
    ConfigurationError
        As for :class:`flwr_fco.objectives.MultinomialLogistic`.

    References
    ----------
    Bai, Bullins: Local Composite Saddle Point Optimization (ICLR 2024), section 6, appendix A.3; Shafahi et al.:
    Universal Adversarial Training (AAAI 2020).

    Examples
    --------
    >>> import numpy as np
    >>> objective = UniversalAdversarialLogistic(np.array([[1.0], [-1.0]]), [0, 1], intercept=False)
    >>> objective.layout
    Layout(coefficients[1, 2]*, perturbation[1]*; size 3, * regularized)
    >>> objective.gradient(np.array([2.0, 0.0, 0.5])).round(3)
    array([-0.103,  0.103, -0.222])
    """

    monotone: ClassVar[bool] = False

    def __init__(
        self, features: ArrayLike, labels: ArrayLike, *, num_classes: int | None = None, intercept: bool = True
    ) -> None:
        # A perturbation shifts every margin by W' delta, which is equivalent to another intercept.
        self._classifier = MultinomialLogistic(features, labels, num_classes=num_classes, intercept=True)
        self.num_classes, self.intercept = self._classifier.num_classes, intercept
        self.num_examples = self._classifier.num_examples
        self._shape = (self._classifier.layout["coefficients"].shape[0], self.num_classes)
        size = (self.num_classes,)
        classifier = {"coefficients": self._shape, "intercept": size} if intercept else {"coefficients": self._shape}
        self._set_players(classifier, {"perturbation": self._shape[:1]}, ("coefficients", "perturbation"))
        self._count = self._shape[0] * self.num_classes

    def value(self, w: Vector) -> float:
        """Return the mean cross entropy of the perturbed examples."""
        return self._classifier.value(self._shifted(w))

    def add_gradient(self, w: Vector, batch: NDArray[np.int64] | None, scale: float, out: Vector) -> None:
        """Add scale times the operator (grad_W f, grad_b f, -grad_delta f) of the mean over a batch to `out` in place.

        With r_i = softmax(m_i) - e_{y_i} and r their mean it is (mean_i (x_i + delta) r_i', r, -W r). This takes two
        products with the examples, as many as plain multinomial logistic regression. A batch is row numbers; `out`
        may be `w`.
        """
        self._check(w)
        design = self._classifier.design
        rows, point = design.rows if batch is None else batch, w.copy() if out is w else w
        intercepts = self.num_classes if self.intercept else 0
        if isinstance(design, SparseDesign):
            self._add_sparse(point, rows, scale, out)
            return
        data = (design.matrix, self._classifier.labels, rows)
        add_adversarial_operator(*data, point, self.num_classes, intercepts, scale, out)

    def _add_sparse(self, w: Vector, rows: NDArray[np.int64], scale: float, out: Vector) -> None:
        """Add the operator for sparse examples, without forming the perturbed ones, which are dense."""
        design, perturbation = self._classifier.design, w[self.split :]
        slopes = design.predict(self._shifted(w), rows, self.num_classes)
        softmax_slopes(slopes, self._classifier.labels[rows], scale / rows.size)
        total, coefficients = slopes.sum(axis=0), w[: self._count].reshape(self._shape)
        design.add_rows(slopes, out[: self.split], rows)
        out[: self._count] += np.outer(perturbation, total).reshape(-1)
        out[self.split :] -= coefficients @ total

    gradient = gradient_from_zeros(add_gradient)

    def predict(self, w: Vector, *, perturbed: bool = True) -> NDArray[np.int64]:
        """Return the most likely class of each of the client's examples, as int64 of shape (num_examples,).

        Parameters
        ----------
        w : ndarray of float64, shape (layout.size,)
            The point.
        perturbed : bool, default True
            Whether the examples are perturbed.
        """
        return self._classifier.predict(self._shifted(w) if perturbed else self._clean(w))

    def metrics(self, w: Vector) -> dict[str, float]:
        """Return ``loss`` and ``accuracy``, perturbed, and ``clean-loss`` and ``clean-accuracy`` of the originals."""
        attacked, clean = self._classifier.metrics(self._shifted(w)), self._classifier.metrics(self._clean(w))
        return {**attacked, **{f"clean-{name}": number for name, number in clean.items()}}

    def _clean(self, w: Vector) -> Vector:
        """Return the classifier's coefficients and intercept."""
        self._check(w)
        plain = np.zeros(self._count + self.num_classes)
        plain[: self.split] = w[: self.split]
        return plain

    def _shifted(self, w: Vector) -> Vector:
        """Return coefficients and the intercept shifted by the perturbation."""
        shifted = self._clean(w)
        shifted[self._count :] += w[self.split :] @ w[: self._count].reshape(self._shape)
        return shifted

"""Saddle functions of the papers beside the bilinear one: quadratics, and an attack on all images of a classifier."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives import BilinearSaddle, Layout, MultinomialLogistic, SaddleObjective, Vector


def pooled_bilinear(objectives: Sequence[BilinearSaddle], shares: ArrayLike) -> BilinearSaddle:
    """Return the mean of the clients' functions, which is also bilinear, without noise.

    Parameters
    ----------
    objectives : sequence of BilinearSaddle
        The clients' functions.
    shares : array-like, shape (num_clients,)
        The weights p_m, which sum to 1.
    """
    first = objectives[0]
    if all(objective.matrix is first.matrix and objective.offset is first.offset for objective in objectives):
        return BilinearSaddle(first.matrix, first.offset)
    return BilinearSaddle(_mean(objectives, shares, "matrix"), _mean(objectives, shares, "offset"))


class QuadraticSaddle(BilinearSaddle):
    """The quadratic saddle function f(x, y) = 1/2 x'P x + <a, x> + <A x - b, y> - 1/2 y'Q y.

    Its operator is affine, (P x + A' y + a, Q y - A x + b).

    Parameters
    ----------
    convexity : array-like, shape (m, m)
        P, symmetric and positive semidefinite.
    coupling : array-like, shape (n, m)
        A.
    concavity : array-like, shape (n, n)
        Q, symmetric and positive semidefinite.
    linear : array-like, shape (m,), optional
        a; 0 by default.
    offset : array-like, shape (n,), optional
        b; 0 by default.
    noise : float, default 0.0
        Standard deviation of the Gaussian noise in each coordinate of a query with a batch size.
    num_examples : int, default 1
        The client's weight in pooled means.

    Raises
    ------
    ConfigurationError
        If P or Q is not symmetric and positive semidefinite; see also :class:`flwr_fco.objectives.BilinearSaddle`.

    Examples
    --------
    >>> objective = QuadraticSaddle([[2.0]], [[1.0]], [[1.0]], linear=[-3.0])
    >>> objective.solution, objective.gradient(objective.solution)
    (array([1., 1.]), array([0., 0.]))
    """

    def __init__(
        self,
        convexity: ArrayLike,
        coupling: ArrayLike,
        concavity: ArrayLike,
        *,
        linear: ArrayLike | None = None,
        offset: ArrayLike | None = None,
        noise: float = 0.0,
        num_examples: int = 1,
    ) -> None:
        super().__init__(coupling, offset, noise=noise, num_examples=num_examples)
        self.convexity = _curved("convexity", convexity)
        self.concavity = _curved("concavity", concavity)
        self.linear = np.zeros(len(self.convexity)) if linear is None else np.asarray(linear, dtype=np.float64)
        self.operator = np.block([[self.convexity, self.matrix.T], [-self.matrix, self.concavity]])
        self._constant = np.concatenate([self.linear, self.offset])

    def value(self, w: Vector) -> float:
        """Return f(x, y)."""
        x, y = self.players(w)
        return super().value(w) + float(0.5 * (x @ self.convexity @ x - y @ self.concavity @ y) + self.linear @ x)

    def add_operator(self, w: Vector, scale: float, out: Vector) -> None:
        """Add scale (P x + A' y + a, Q y - A x + b)."""
        out += scale * (self.operator @ w + self._constant)

    @cached_property
    def solution(self) -> Vector:
        """The saddle point (x, y), at which the operator is 0; it exists if P and Q are positive definite."""
        return np.asarray(np.linalg.solve(self.operator, -self._constant))

    def strong_convexity(self) -> float:
        """Return the modulus of strong monotonicity: the smallest eigenvalue of P and Q."""
        return max(0.0, min(float(np.linalg.eigvalsh(matrix)[0]) for matrix in (self.convexity, self.concavity)))

    @classmethod
    def pooled(cls, objectives: Sequence[QuadraticSaddle], shares: ArrayLike) -> QuadraticSaddle:
        """Return the mean of the clients' functions, which is also quadratic, without noise.

        Parameters
        ----------
        objectives : sequence of QuadraticSaddle
            The clients' functions.
        shares : array-like, shape (num_clients,)
            The weights p_m, which sum to 1.
        """
        names = ("convexity", "matrix", "concavity", "linear", "offset")
        *matrices, linear, offset = (_mean(objectives, shares, name) for name in names)
        return cls(*matrices, linear=linear, offset=offset)


def _mean(objectives: Sequence[Any], shares: ArrayLike, name: str) -> Vector:
    """Return the mean of an array of the clients."""
    weights = np.asarray(shares, dtype=np.float64)
    return np.asarray(sum(p * getattr(objective, name) for p, objective in zip(weights, objectives, strict=True)))


def _curved(name: str, matrix: ArrayLike) -> NDArray[np.float64]:
    """Return a symmetric and positive semidefinite matrix."""
    array = np.ascontiguousarray(matrix, dtype=np.float64)
    rounding = 1e-10 * float(np.abs(array).max())
    if not np.allclose(array, array.T, rtol=0.0, atol=rounding) or np.linalg.eigvalsh(array)[0] < -rounding:
        raise ConfigurationError(f"{name} is not symmetric and positive semidefinite; give such a matrix")
    return array


class UniversalAdversarialLogistic(SaddleObjective):
    """Multinomial logistic regression against one perturbation of all examples, which is maximised.

    f(W, b, delta) = mean_i [ log sum_c exp(m_ic) - m_{i, y_i} ] with m_i = W'(x_i + delta) + b. The classifier (W, b)
    minimises f; the perturbation delta, which has the shape of an example and is the same for all examples, maximises
    it.

    Sign of the penalty on the perturbation: the paper prints max over delta of f + lambda ||delta||_1, which would
    reward large perturbations. A penalty that makes an attack sparse must be concave for the maximising player, so it
    enters as - lambda ||delta||_1: ``PerParameter({"perturbation": L1(0.1, bound=0.05)})``, including the box
    |delta_j| <= 0.05.

    The loss is convex in delta, not concave: there may be no saddle point, and theorems about convex-concave functions
    do not apply. The loss, the accuracy and the operator's natural residual can be measured. Perturbed examples are not
    clipped to the range of the originals.

    Parameters
    ----------
    features : array-like, shape (n, d)
        Dense.
    labels : array-like, shape (n,)
        Integers 0 .. num_classes - 1.
    num_classes : int, optional
        Number of classes in the whole federation. By default one more than the largest label, if every class occurs.
    intercept : bool, default True
        Whether to fit an intercept b. The paper's model has none.

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
        self.num_examples = self._classifier.num_examples
        self.num_classes = self._classifier.num_classes
        shape = self._classifier.layout["coefficients"].shape
        self._count = shape[0] * shape[1]
        arrays = {"coefficients": np.empty(shape), "intercept": np.empty(shape[1]), "perturbation": np.empty(shape[0])}
        if not intercept:
            del arrays["intercept"]
        self.layout = Layout.from_arrays(arrays, apply_to=("coefficients", "perturbation"))
        self.split = self.layout["perturbation"].offset

    def value(self, w: Vector) -> float:
        """Return the mean cross entropy of the perturbed examples."""
        return self._classifier.value(self._shifted(w))

    def add_gradient(self, w: Vector, batch: NDArray[np.int64] | None, scale: float, out: Vector) -> None:
        """Add scale times the operator (grad_W f, grad_b f, -grad_delta f) of the mean over a batch of row numbers.

        With r the mean of r_i = softmax(m_i) - e_{y_i} it is (mean_i (x_i + delta) r_i', r, -W r). `out` may be `w`.
        """
        self._check(w)
        features, labels = self._classifier.features, self._classifier.labels
        if batch is not None:
            features, labels = features[batch], labels[batch]
        coefficients = w[: self._count].reshape(-1, self.num_classes)
        perturbed = features + w[self.split :]
        slopes = perturbed @ coefficients
        if self.split > self._count:
            slopes += w[self._count : self.split]
        np.exp(slopes - slopes.max(axis=1, keepdims=True), out=slopes)
        slopes *= scale / labels.size / slopes.sum(axis=1, keepdims=True)
        slopes[np.arange(labels.size), labels] -= scale / labels.size
        total = slopes.sum(axis=0)
        along = coefficients @ total
        out[: self._count] += (perturbed.T @ slopes).reshape(-1)
        out[self._count : self.split] += total[: self.split - self._count]
        out[self.split :] -= along

    def gradient(self, w: Vector, batch: NDArray[np.int64] | None = None, out: Vector | None = None) -> Vector:
        """Return the operator of the mean over a batch of row numbers."""
        out = np.empty(self.layout.size) if out is None else out
        out[:] = 0.0
        self.add_gradient(w, batch, 1.0, out)
        return out

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
        shifted[self._count :] += w[self.split :] @ w[: self._count].reshape(-1, self.num_classes)
        return shifted

"""What the engines minimise: a client's loss with a linear and a quadratic term.

An engine moves points along lines. For a model that is linear in its data it moves their margins along with them, so
that a trial step costs O(n k) and only gradients touch the features. A point therefore comes with its `image`: the
margins, or an empty array where the loss has none; images are combined as the points are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from flwr_fco.kernels import margin_losses as kernels
from flwr_fco.objectives.base import Objective
from flwr_fco.objectives.least_squares import LeastSquares
from flwr_fco.objectives.logistic import Logistic, MultinomialLogistic
from flwr_fco.parameters import Vector

__all__ = ["LARGEST_GRAM", "Curvature", "Image", "LocalProblem", "local_problem"]

#: Margins of a point, shape (n, k); an empty array for a loss without margins.
Image = NDArray[np.float64]
#: A Hessian, or the inverse of something near it, applied to a vector.
Curvature = Callable[[Vector], Vector]

#: Up to this many features a Gram matrix is formed and factorised.
LARGEST_GRAM = 2048
#: Derived from the data alone, so that a result does not depend on what was kept.
_grams: WeakKeyDictionary[Objective, NDArray[np.float64]] = WeakKeyDictionary()
_single: WeakKeyDictionary[Objective, NDArray[np.float32]] = WeakKeyDictionary()


class LocalProblem:
    """F(theta) = f(theta) - <shift, theta> + penalty/2 ||theta - center||^2, for any smooth objective.

    Parameters
    ----------
    objective : Objective
        f.
    shift : ndarray of float64, shape (d,), optional
        Default zeros.
    center : ndarray of float64, shape (d,), optional
        Default zeros.
    penalty : float, default 0.0
        May be negative where f is more strongly convex than that.

    Attributes
    ----------
    evaluations : int
        How many gradients of f have been taken, in passes over the data.
    products : int
        How many products with the Hessian of f.
    """

    def __init__(
        self, objective: Objective, shift: Vector | None = None, center: Vector | None = None, penalty: float = 0.0
    ) -> None:
        self.objective = objective
        self.shift = shift
        self.center = center
        self.penalty = penalty
        self.size = objective.layout.size
        self.evaluations = 0
        self.products = 0

    @cached_property
    def strong_convexity(self) -> float:
        """A modulus that is known; 0.0 if there is none."""
        return max(0.0, strong_convexity(self.objective) + self.penalty)

    @property
    def quadratic(self) -> bool:
        """Whether the Hessian is the same everywhere."""
        return bool(getattr(self.objective, "quadratic", False))

    @property
    def has_hessian(self) -> bool:
        """Whether products with the Hessian can be taken."""
        return hasattr(self.objective, "hessian_product")

    def image(self, theta: Vector) -> Image:
        """Return the margins of a point or a direction."""
        return _NO_MARGINS

    def value(self, theta: Vector, image: Image) -> float:
        """Return F at a point."""
        return self._loss(theta, image) + self._terms_value(theta)

    def value_and_gradient(self, theta: Vector, image: Image) -> tuple[float, Vector]:
        """Return F and its gradient at a point."""
        self.evaluations += 1
        value, gradient = self._loss_and_gradient(theta, image)
        if self.shift is not None:
            gradient -= self.shift
        if self.penalty != 0.0:
            gradient += self.penalty * (theta if self.center is None else theta - self.center)
        return value + self._terms_value(theta), gradient

    def hessian(self, theta: Vector, image: Image) -> Curvature:
        """Return v -> (second derivative of F at a point) v, to the accuracy that conjugate gradients need."""

        def multiply(v: Vector) -> Vector:
            self.products += 1
            product = np.array(self.objective.hessian_product(theta, v))  # type: ignore[attr-defined]
            product += self.penalty * v
            return product

        return multiply

    def preconditioner(self, image: Image) -> Curvature | None:
        """Return something near the inverse of the Hessian at the start; None where nothing is known."""
        return None

    def _loss(self, theta: Vector, image: Image) -> float:
        return float(self.objective.value(theta))

    def _loss_and_gradient(self, theta: Vector, image: Image) -> tuple[float, Vector]:
        both = getattr(self.objective, "value_and_gradient", None)
        if both is None:
            return self.objective.value(theta), self.objective.gradient(theta)
        value, gradient = both(theta)
        return float(value), np.array(gradient)

    def _terms_value(self, theta: Vector) -> float:
        value = 0.0 if self.shift is None else -float(self.shift @ theta)
        if self.penalty != 0.0:
            apart = theta if self.center is None else theta - self.center
            value += 0.5 * self.penalty * float(apart @ apart)
        return value


class LinearProblem(LocalProblem):
    """The same for a loss that sees the data through margins X W + b only, plus l2/2 ||W||^2."""

    objective: LeastSquares | Logistic | MultinomialLogistic

    def __init__(
        self,
        objective: LeastSquares | Logistic | MultinomialLogistic,
        shift: Vector | None = None,
        center: Vector | None = None,
        penalty: float = 0.0,
    ) -> None:
        super().__init__(objective, shift, center, penalty)
        self._features = objective.features
        self._n, self._d = self._features.shape
        self._outputs = objective.num_classes if isinstance(objective, MultinomialLogistic) else 1
        self._rows = self._d * self._outputs
        self._l2 = objective.l2
        self._residuals = np.empty((self._n, self._outputs))
        self._probabilities = np.empty((self._n, self._outputs))

    @property
    def quadratic(self) -> bool:
        """Whether the Hessian is the same everywhere."""
        return isinstance(self.objective, LeastSquares)

    @property
    def has_hessian(self) -> bool:
        """Whether products with the Hessian can be taken."""
        return True

    def image(self, theta: Vector) -> Image:
        """Return the margins of a point or a direction."""
        margins = np.asarray(self._features @ theta[: self._rows].reshape(self._d, self._outputs), dtype=np.float64)
        if theta.size > self._rows:
            margins += theta[self._rows :]
        return margins

    def _loss(self, theta: Vector, image: Image) -> float:
        return self._margin_value(image) + self._ridge(theta)

    def _loss_and_gradient(self, theta: Vector, image: Image) -> tuple[float, Vector]:
        value = self._fill_residuals(image)
        return value + self._ridge(theta), self._pull_back(self._residuals, theta, self._features)

    def _ridge(self, theta: Vector) -> float:
        weights = theta[: self._rows]
        return 0.5 * self._l2 * float(weights @ weights) if self._l2 else 0.0

    def _pull_back(self, residuals: NDArray[Any], theta: Vector, features: NDArray[Any]) -> Vector:
        """Return X' R, sums of R for the intercept, and l2 times the coefficients."""
        result = np.empty(theta.size)
        result[: self._rows] = (features.T @ residuals).reshape(-1)
        result[: self._rows] += self._l2 * theta[: self._rows]
        if theta.size > self._rows:
            result[self._rows :] = residuals.sum(axis=0, dtype=np.float64)
        return result

    def _margin_value(self, image: Image) -> float:
        objective = self.objective
        if isinstance(objective, MultinomialLogistic):
            return float(kernels.multinomial_value(image, objective.labels))
        if isinstance(objective, Logistic):
            return float(kernels.logistic_value(image, objective._signs))
        errors = image[:, 0] - objective.targets
        return objective.scale * float(errors @ errors) / self._n

    def _fill_residuals(self, image: Image) -> float:
        objective = self.objective
        if isinstance(objective, MultinomialLogistic):
            return float(
                kernels.multinomial_residuals(image, objective.labels, self._residuals, self._probabilities)
            )
        if isinstance(objective, Logistic):
            return float(kernels.logistic_residuals(image, objective._signs, self._residuals, self._probabilities))
        errors = image[:, 0] - objective.targets
        self._residuals[:, 0] = (2.0 * objective.scale / self._n) * errors
        return objective.scale * float(errors @ errors) / self._n

    def _bend(self, probabilities: NDArray[Any], direction: NDArray[Any]) -> None:
        """Apply the second derivative of the loss in the margins, in place."""
        if isinstance(self.objective, MultinomialLogistic):
            kernels.multinomial_curvature(probabilities, direction)
        elif isinstance(self.objective, Logistic):
            kernels.logistic_curvature(probabilities, direction)
        else:
            direction *= direction.dtype.type(2.0 * self.objective.scale / self._n)

    def hessian(self, theta: Vector, image: Image) -> Curvature:
        """Return v -> (second derivative of F at a point) v.

        In single precision, which is twice as fast, except for a quadratic: conjugate gradients inside of Newton steps
        correct themselves, because every outer gradient is in double precision.
        """
        self._fill_residuals(image)
        exact = self.quadratic
        features = self._features if exact else self._single_features()
        probabilities = self._probabilities.astype(features.dtype)

        def multiply(v: Vector) -> Vector:
            self.products += 1
            direction = features @ v[: self._rows].reshape(self._d, self._outputs).astype(features.dtype, copy=False)
            if v.size > self._rows:
                direction += v[self._rows :].astype(features.dtype)
            self._bend(probabilities, direction)
            product = self._pull_back(direction, v, features)
            product += self.penalty * v
            return product

        return multiply

    def preconditioner(self, image: Image) -> Curvature | None:
        """Return the inverse of (c X'X/n + l2 I + penalty I), c the mean curvature of the loss at the start.

        The same for each class and found by one Cholesky factorisation; X'X is formed once per objective. With more
        than `LARGEST_GRAM` features, the inverse of its diagonal.
        """
        self._fill_residuals(image)
        p = self._probabilities
        mean = 2.0 * self.objective.scale if isinstance(self.objective, LeastSquares) else float((p * (1.0 - p)).mean())
        order = self._d + (self.size > self._rows)
        ridge = np.full(order, self._l2 + self.penalty)
        if order > self._d:
            ridge[-1] = self.penalty
        # Never singular, whatever the data: a small part of the mean diagonal.
        if order > LARGEST_GRAM:
            squares = np.einsum("ij,ij->j", self._features, self._features, dtype=np.float64) / self._n
            diagonal = mean * np.append(squares, np.ones(order - self._d)) + ridge
            diagonal += 1e-8 * diagonal.mean()
            return lambda v: (v.reshape(order, self._outputs) / diagonal[:, None]).reshape(-1)

        from scipy.linalg import cho_factor, cho_solve

        matrix = mean * self.gram()
        matrix[np.arange(order), np.arange(order)] += ridge
        matrix[np.arange(order), np.arange(order)] += 1e-8 * np.trace(matrix) / order
        factor = cho_factor(matrix, overwrite_a=True, check_finite=False)
        return lambda v: np.asarray(
            cho_solve(factor, v.reshape(order, self._outputs), check_finite=False), dtype=np.float64
        ).reshape(-1)

    def gram(self) -> NDArray[np.float64]:
        """Return (X, 1)'(X, 1)/n, a copy; formed once per objective."""
        known = _grams.get(self.objective)
        if known is None:
            order = self._d + (self.size > self._rows)
            known = np.ones((order, order))
            features = self._features.astype(np.float64, copy=False)
            known[: self._d, : self._d] = features.T @ features / self._n
            if order > self._d:
                known[: self._d, -1] = known[-1, : self._d] = features.mean(axis=0)
            _grams[self.objective] = known
        return known.copy()

    def _single_features(self) -> NDArray[np.float32]:
        if self._features.dtype == np.float32:
            return self._features
        known = _single.get(self.objective)
        if known is None:
            known = _single[self.objective] = self._features.astype(np.float32)
        return known


def local_problem(
    objective: Objective, shift: Vector | None = None, center: Vector | None = None, penalty: float = 0.0
) -> LocalProblem:
    """Return the problem of an objective, with margins where it has them.

    Parameters
    ----------
    objective : Objective
        f.
    shift, center, penalty
        As in :class:`LocalProblem`.
    """
    # The very classes: a subclass may have another loss.
    kind: Any = LinearProblem if type(objective) in (LeastSquares, Logistic, MultinomialLogistic) else LocalProblem
    problem: LocalProblem = kind(objective, shift, center, penalty)
    return problem


def strong_convexity(objective: Objective) -> float:
    """Return the modulus of strong convexity that an objective knows; 0.0 if it knows none."""
    known = getattr(objective, "strong_convexity", None)
    if known is not None:
        return float(known())
    if getattr(objective, "intercept", True):
        return 0.0
    return float(getattr(objective, "l2", 0.0))


_NO_MARGINS: Image = np.zeros(0)

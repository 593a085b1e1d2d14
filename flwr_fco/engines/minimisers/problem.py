"""The engines' problem, a client's loss with a linear and a quadratic term; their stopping rule and their result.

An engine moves points along lines. For a model that is linear in its data, the engine updates the margins together with
the points, so that a trial step costs O(n k) and only gradients use the features. A point therefore has an `image`: its
margins, or an empty array if the loss has none. Images are combined in the same way as the points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from functools import cached_property
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from flwr_fco.core.layout import Vector
from flwr_fco.errors import ConfigurationError
from flwr_fco.kernels.losses import logistic_curvature, logistic_slopes, softmax_curvature, softmax_slopes
from flwr_fco.objectives.base import Objective
from flwr_fco.objectives.design import LinearData
from flwr_fco.work import Minimise

#: Margins of a point, shape (n, k); an empty array for a loss without margins.
Image = NDArray[np.float64]
#: Applies a Hessian, or an approximate inverse of it, to a vector.
Curvature = Callable[[Vector], Vector]

#: Uncertainty of a function value, relative to 1 + |value|; smaller decreases are not informative.
ROUNDING = 4e-16
#: Largest rows x features x outputs that BLAS multiplies without repacking its arguments, at about twice the speed.
SMALL_PRODUCT = 10**6
#: Values by objective and name that depend only on the data, so that caching does not change results.
_derived: WeakKeyDictionary[Objective, dict[Any, Any]] = WeakKeyDictionary()
_Derived = TypeVar("_Derived")


def once(objective: Objective, name: Hashable, make: Callable[[], _Derived]) -> _Derived:
    """Return a value that depends only on an objective's data, computed at the first call."""
    values = _derived.setdefault(objective, {})
    if name not in values:
        values[name] = make()
    value: _Derived = values[name]
    return value


class Iterate(NamedTuple):
    """A point of an engine, with its image, the value of F, its gradient and the gradient's norm."""

    point: Vector
    image: Image
    value: float
    gradient: Vector
    norm: float


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
        May be negative if f's strong convexity is larger than its absolute value.
    """

    def __init__(
        self, objective: Objective, shift: Vector | None = None, center: Vector | None = None, penalty: float = 0.0
    ) -> None:
        self.objective = objective
        self.shift = shift
        self.center = center
        self.penalty = penalty
        self.size = objective.layout.size
        self.evaluations = self.products = 0

    def count(self, *, evaluations: int = 0, products: int = 0) -> None:
        """Count evaluations of the objective or products with its Hessian."""
        self.evaluations, self.products = self.evaluations + evaluations, self.products + products

    @cached_property
    def strong_convexity(self) -> float:
        """The known modulus of strong convexity; 0.0 if there is none."""
        modulus = once(self.objective, "modulus", lambda: _modulus(self.objective))
        return max(0.0, modulus + self.penalty)

    @property
    def quadratic(self) -> bool:
        """Whether the Hessian is constant."""
        return bool(getattr(self.objective, "quadratic", False))

    @property
    def has_hessian(self) -> bool:
        """Whether products with the Hessian are available."""
        return type(self.objective).hessian_product is not Objective.hessian_product

    def image(self, theta: Vector) -> Image:
        """Return the margins of a point or a direction."""
        return _NO_MARGINS

    def at(self, theta: Vector, image: Image | None = None) -> Iterate:
        """Return a point with all that an engine needs of it."""
        image = self.image(theta) if image is None else image
        value, gradient = self.value_and_gradient(theta, image)
        return Iterate(theta, image, value, gradient, float(np.linalg.norm(gradient)))

    def value(self, theta: Vector, image: Image) -> float:
        """Return F at a point."""
        return self._loss(theta, image) + self._terms_value(theta)

    def value_and_gradient(self, theta: Vector, image: Image) -> tuple[float, Vector]:
        """Return the value and the gradient at a point with its image."""
        return self.evaluate(theta)

    def slope(self, theta: Vector, image: Image, direction: Vector, along: Image) -> float:
        """Return the derivative of F at a point along a direction with the image `along`."""
        return float(self.value_and_gradient(theta, image)[1] @ direction)

    def evaluate(self, theta: Vector) -> tuple[float, Vector]:
        """Return the value and the gradient at a point without an image."""
        self.count(evaluations=1)
        value, gradient = self.objective.value_and_gradient(theta)
        gradient = np.array(gradient)
        self._add_terms(theta, gradient)
        return float(value) + self._terms_value(theta), gradient

    def hessian(self, theta: Vector, image: Image) -> Curvature:
        """Return v -> (Hessian of F at a point) v, with the accuracy that conjugate gradients need."""

        def multiply(v: Vector) -> Vector:
            self.count(products=1)
            product = np.array(self.objective.hessian_product(theta, v))
            product += self.penalty * v
            return product

        return multiply

    def _loss(self, theta: Vector, image: Image) -> float:
        return float(self.objective.value(theta))

    def _add_terms(self, theta: Vector, gradient: Vector) -> None:
        """Add the gradient of the linear and quadratic terms."""
        if self.shift is not None:
            gradient -= self.shift
        if self.penalty != 0.0:
            gradient += self.penalty * (theta if self.center is None else theta - self.center)

    def _terms_value(self, theta: Vector) -> float:
        value = 0.0 if self.shift is None else -float(self.shift @ theta)
        if self.penalty != 0.0:
            apart = theta if self.center is None else theta - self.center
            value += 0.5 * self.penalty * float(apart @ apart)
        return value


class LinearProblem(LocalProblem):
    """The problem for a loss that depends on the data only through the margins X W + b, plus l2/2 ||W||^2.

    Parameters
    ----------
    data : LinearData
        The objective's ``linear_data``.
    shift, center, penalty
        As in :class:`LocalProblem`.
    """

    def __init__(self, objective: Objective, data: LinearData, *terms: Any) -> None:
        super().__init__(objective, *terms)
        self._data = data
        self._features = data.design.matrix
        self._n, self._d = data.design.shape
        #: Number of coefficients, which precede the intercepts.
        self._rows = self._d * data.num_outputs
        self._weight = data.factor / self._n

    @property
    def quadratic(self) -> bool:
        return self._data.link == "identity"

    @property
    def has_hessian(self) -> bool:
        return True

    @property
    def _doubles(self) -> NDArray[np.float64]:
        """The features in float64."""
        return _in_precision(self.objective, self._features, np.float64)

    def image(self, theta: Vector) -> Image:
        features, outputs = self._doubles, self._data.num_outputs
        if outputs == 1:
            margins = features @ theta[: self._rows]
        else:
            margins = np.empty((self._n, outputs))
            weights = theta[: self._rows].reshape(self._d, outputs)
            for part in self._parts():
                margins[part] = features[part] @ weights
        if theta.size > self._rows:
            margins += theta[self._rows :]
        return np.asarray(margins)

    def value_and_gradient(self, theta: Vector, image: Image) -> tuple[float, Vector]:
        """Return the value and the gradient, which is X' times the slopes of the margins, plus the terms' gradients."""
        self.count(evaluations=1)
        features, outputs = self._doubles, self._data.num_outputs
        value, slopes = self._slopes(image)
        gradient = np.empty(theta.size)
        if outputs == 1:
            gradient[: self._rows] = slopes @ features
        else:
            product = np.zeros((outputs, self._d))
            for part in self._parts():
                product += slopes[part].T @ features[part]
            gradient[: self._rows] = product.T.reshape(-1)
        if theta.size > self._rows:
            gradient[self._rows :] = slopes.sum(axis=0, dtype=np.float64)
        if self._data.l2 != 0.0:
            gradient[: self._rows] += self._data.l2 * theta[: self._rows]
        self._add_terms(theta, gradient)
        return value + self._ridge(theta) + self._terms_value(theta), gradient

    def _parts(self) -> list[slice]:
        """Return blocks of rows that keep products small; one block if the blocks would have very few rows."""
        rows = SMALL_PRODUCT // (self._d * self._data.num_outputs)
        step = rows if rows >= 16 else self._n
        return [slice(start, start + step) for start in range(0, self._n, step)]

    def slope(self, theta: Vector, image: Image, direction: Vector, along: Image) -> float:
        terms = np.zeros(self.size)
        self._add_terms(theta, terms)
        terms[: self._rows] += self._data.l2 * theta[: self._rows]
        return float(np.vdot(self._slopes(image)[1], along)) + float(terms @ direction)

    def _slopes(self, image: Image) -> tuple[float, NDArray[np.float64]]:
        """Return the mean loss and its derivatives with respect to the margins."""
        link, targets = self._data.link, self._data.targets
        slopes = image.copy()
        if link == "softmax":
            total = float(softmax_slopes(slopes, targets, self._weight))
        elif link == "logistic":
            total = float(logistic_slopes(slopes, targets, self._weight))
        else:
            slopes -= targets
            total = 0.5 * float(slopes @ slopes)
            slopes *= self._weight
        return self._weight * total, slopes

    def _loss(self, theta: Vector, image: Image) -> float:
        return self._slopes(image)[0] + self._ridge(theta)

    def _ridge(self, theta: Vector) -> float:
        weights = theta[: self._rows]
        return 0.5 * self._data.l2 * float(weights @ weights) if self._data.l2 != 0.0 else 0.0

    def _chances(self, image: Image) -> NDArray[np.float64]:
        """Return the probabilities for the margins."""
        from scipy.special import expit, softmax

        return np.asarray(softmax(image, axis=1) if self._data.link == "softmax" else expit(image), dtype=np.float64)

    def hessian(self, theta: Vector, image: Image) -> Curvature:
        """Return v -> (Hessian of F at a point) v.

        Except for a quadratic, it uses single precision, which is nearly twice as fast: the next Newton step, with its
        double-precision gradient, corrects the errors of the conjugate gradients.
        """
        link, weight = self._data.link, self._weight
        single = link != "identity"
        features = _in_precision(self.objective, self._features, np.float32) if single else self._doubles
        chances = self._chances(image).astype(features.dtype) if single else np.zeros(0)
        bend = softmax_curvature if link == "softmax" else logistic_curvature
        outputs, size = self._data.num_outputs, self._rows

        def multiply(v: Vector) -> Vector:
            self.count(products=1)
            direction = v.astype(features.dtype, copy=False)
            weights, offsets = direction[:size].reshape(self._d, outputs), direction[size:]
            total = np.zeros((outputs, self._d))
            sums = np.zeros(outputs)
            # Compute both products with a block of rows while it is in the cache.
            for part in self._parts():
                rows = features[part]
                change = rows @ weights
                if offsets.size:
                    change += offsets
                if link == "identity":
                    change *= weight
                else:
                    bend(chances[part], change if link == "softmax" else change[:, 0], weight)
                total += change.T @ rows
                if offsets.size:
                    sums += change.sum(axis=0)
            product = np.append(total.T.reshape(-1), sums[: offsets.size])
            if self._data.l2 != 0.0:
                product[:size] += self._data.l2 * v[:size]
            product += self.penalty * v
            return product

        return multiply


def local_problem(
    objective: Objective, shift: Vector | None = None, center: Vector | None = None, penalty: float = 0.0
) -> LocalProblem:
    """Return the problem of an objective, with margins if its predictions are linear.

    Parameters
    ----------
    objective : Objective
        f.
    shift, center, penalty
        As in :class:`LocalProblem`.
    """
    data = objective.linear_data()
    if data is None:
        return LocalProblem(objective, shift, center, penalty)
    return LinearProblem(objective, data, shift, center, penalty)


def _modulus(objective: Objective) -> float:
    """Return an objective's modulus of strong convexity; 0.0 if it is not known."""
    try:
        return objective.strong_convexity()
    except ConfigurationError:
        return 0.0


def _in_precision(objective: Objective, features: NDArray[Any], dtype: type[np.floating[Any]]) -> NDArray[Any]:
    """Return the features in a precision, copied at most once per objective."""
    return features if features.dtype == dtype else once(objective, dtype.__name__, lambda: features.astype(dtype))


_NO_MARGINS: Image = np.zeros(0)


class Minimum(NamedTuple):
    """Result of an engine.

    Parameters
    ----------
    point : ndarray of float64, shape (d,)
        The final point.
    iterations : int
        Number of the engine's steps.
    gradient_evaluations : int
        Number of gradients of f over all of the client's examples.
    hessian_products : int
        Number of products with the Hessian of f.
    gradient_norm : float
        Norm of the gradient of F computed at the point.
    gap : float
        A certified bound on F(point) - min F; infinity if the modulus of strong convexity is not known.
    reached : bool
        Whether the stopping rule was met; False at the iteration limit, or if rounding stopped the engine earlier.
    """

    point: Vector
    iterations: int
    gradient_evaluations: int
    hessian_products: int
    gradient_norm: float
    gap: float
    reached: bool

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics that a client reports, by their names in the reply."""
        return {
            "inner-iterations": float(self.iterations),
            "gradient-evaluations": float(self.gradient_evaluations),
            "hessian-products": float(self.hessian_products),
            "gradient-norm": float(self.gradient_norm),
            "gap": float(self.gap),
            "capped": 0.0 if self.reached else 1.0,
        }


class StoppingRule:
    """Stopping rule of a smooth minimisation: by its gradient, its energy, or a certified gap.

    For F with modulus m of strong convexity, F(theta) - min F <= ||grad F(theta)||^2 / (2 m). DualFL's primal-dual gap
    (3.6) is at most ||grad F(theta)||^2 / (2 (m - duality)), a bound that requires duality < m.

    Parameters
    ----------
    work : Minimise
        The rule, its tolerance, and the limit on iterations.
    problem : LocalProblem
        The problem.
    duality : float, default 0.0
        DualFL's nu, for the rule ``"gap"``.
    """

    def __init__(self, work: Minimise, problem: LocalProblem, duality: float = 0.0) -> None:
        self.work = work
        self._convexity, self._duality = problem.strong_convexity, duality
        self._previous = math.nan

    def reached(self, value: float, gradient_norm: float) -> bool:
        """Whether a point meets the rule; call it once per iteration, as the energy is compared with the last call's.

        Parameters
        ----------
        value : float
            F at the point.
        gradient_norm : float
            Norm of the gradient of F at the point.

        Raises
        ------
        ConfigurationError
            If the rule is ``"gap"`` and the gradient bounds no gap.
        """
        if self.work.rule == "energy" and gradient_norm != 0.0:
            return self.settled(value)
        return gradient_norm <= self.gradient_target

    def settled(self, value: float) -> bool:
        """Whether |F - F of the last call| <= tolerance |F|; F may be 0 or negative."""
        previous, self._previous = self._previous, value
        return abs(value - previous) <= self.work.tolerance * abs(value)

    @cached_property
    def gradient_target(self) -> float:
        """The largest gradient norm that meets the rule; 0.0 for the energy rule."""
        if self.work.rule == "gradient":
            return self.work.tolerance
        if self.work.rule == "energy":
            return 0.0
        margin = self._convexity - self._duality
        if not margin > 0.0:
            raise ConfigurationError(
                f"rule='gap' needs a strong convexity above {self._duality:g}, but only {self._convexity:g} is known "
                "of the client's problem, so the primal-dual gap cannot be bounded. Use rule='gradient', add an l2 "
                "term to the objective, or choose DualFL's nu below it"
            )
        return math.sqrt(2.0 * margin * self.work.tolerance)

    def minimum(
        self, problem: LocalProblem, point: Vector, gradient: Vector, iterations: int, reached: bool
    ) -> Minimum:
        """Return the result, with its certificate."""
        norm = float(np.linalg.norm(gradient))
        gap = norm**2 / (2.0 * self._convexity) if self._convexity > 0.0 else math.inf
        return Minimum(point, iterations, problem.evaluations, problem.products, norm, gap, reached)

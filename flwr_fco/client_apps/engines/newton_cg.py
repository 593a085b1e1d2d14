"""Newton's method, its equations solved by conjugate gradients only as well as it pays."""

from __future__ import annotations

import math

import numpy as np

from flwr_fco.client_apps.engines.line_search import backtrack
from flwr_fco.client_apps.engines.problem import Curvature, LocalProblem
from flwr_fco.client_apps.engines.result import Minimum, StoppingRule
from flwr_fco.errors import ConfigurationError
from flwr_fco.parameters import Vector

__all__ = ["newton_cg"]

#: The residual of a Newton equation relative to the gradient, at most and at least: products may be in single precision.
LOOSEST, TIGHTEST = 0.1, 1e-5


def newton_cg(problem: LocalProblem, start: Vector, rule: StoppingRule) -> Minimum:
    """Minimise F by inexact Newton steps with a backtracking line search.

    Parameters
    ----------
    problem : LocalProblem
        With products with its Hessian.
    start : ndarray of float64, shape (d,)
    rule : StoppingRule

    Returns
    -------
    Minimum
        `iterations` counts Newton steps, `hessian_products` the conjugate gradient steps.

    Raises
    ------
    ConfigurationError
        If the objective has no products with its Hessian.

    References
    ----------
    Nocedal, Wright: Numerical optimization (2006), algorithm 7.1.
    """
    if not problem.has_hessian:
        raise ConfigurationError(
            f"engine='newton-cg' needs hessian_product, which {type(problem.objective).__name__} does not have. "
            "Use engine='auto'"
        )
    theta = start.copy()
    image = problem.image(theta)
    value, gradient = problem.value_and_gradient(theta, image)
    first = norm = float(np.linalg.norm(gradient))
    for iteration in range(rule.work.max_iterations):
        if rule.reached(value, norm):
            return rule.minimum(problem, theta, gradient, iteration, True)
        # No better than the next gradient needs to be: superlinear, but without going below the target in vain.
        wanted = max(min(LOOSEST, math.sqrt(norm / first)), 0.3 * rule.gradient_target / norm, TIGHTEST)
        direction = _conjugate_gradients(problem.hessian(theta, image), -gradient, wanted * norm)
        slope = float(gradient @ direction)
        moved = backtrack(problem, theta, image, value, direction, slope) if slope < 0.0 else None
        if moved is None:
            return rule.minimum(problem, theta, gradient, iteration, False)
        theta, image = moved
        value, gradient = problem.value_and_gradient(theta, image)
        norm = float(np.linalg.norm(gradient))
    return rule.minimum(problem, theta, gradient, rule.work.max_iterations, rule.reached(value, norm))


def _conjugate_gradients(multiply: Curvature, target: Vector, tolerance: float) -> Vector:
    """Return v with ||H v - target|| <= tolerance, or where the curvature ends."""
    solution = np.zeros_like(target)
    residual = target.copy()
    search = target.copy()
    square = float(residual @ residual)
    for _ in range(target.size):
        product = multiply(search)
        curvature = float(search @ product)
        if curvature <= 0.0:
            # A flat direction: the gradient itself, if there is nothing better yet.
            return solution if solution.any() else target
        length = square / curvature
        solution += length * search
        residual -= length * product
        last, square = square, float(residual @ residual)
        if math.sqrt(square) <= tolerance:
            break
        search *= square / last
        search += residual
    return solution

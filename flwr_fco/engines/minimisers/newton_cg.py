"""Newton's method: inexact, with conjugate gradient steps, or for quadratics exact, from the linear equations."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import numpy as np

from flwr_fco.core.layout import Vector
from flwr_fco.engines.minimisers.problem import LARGEST_GRAM, Curvature, LocalProblem, once
from flwr_fco.engines.minimisers.result import Minimum, StoppingRule, backtrack
from flwr_fco.errors import ConfigurationError

#: Largest and smallest relative residual of a Newton equation (products may be in single precision).
LOOSEST, TIGHTEST = 0.3, 1e-5
#: Number of stored products with the Hessian.
MEMORY = 40
#: Curvature, relative to the largest one seen, that consists of rounding errors.
FLAT = float(np.finfo(np.float64).eps)
#: Slope along a flat direction, relative to the first gradient, that rounding errors do not explain.
STEEP = math.sqrt(FLAT)


def newton_cg(problem: LocalProblem, start: Vector, rule: StoppingRule) -> Minimum:
    """Minimise F by inexact Newton steps with a backtracking line search.

    A step's products with the Hessian precondition the next step, because the Hessian changes less and less.
    The result's `iterations` counts Newton steps, its `hessian_products` the conjugate gradient steps.

    Raises
    ------
    ConfigurationError
        If the objective has no Hessian products, or the problem is flat in some direction.

    References
    ----------
    Nocedal, Wright: Numerical optimization (2006), algorithm 7.1; Morales, Nocedal: Automatic preconditioning by
    limited memory quasi-Newton updating (2000).
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
    learnt = _Curvatures()
    for iteration in range(rule.work.max_iterations):
        if rule.reached(value, norm):
            return rule.minimum(problem, theta, gradient, iteration, True)
        # As accurate as superlinear convergence needs, but no more accurate than the target gradient requires.
        wanted = max(min(LOOSEST, math.sqrt(norm / first)), 0.3 * rule.gradient_target / norm, TIGHTEST)
        # Where the Hessian is constant, nothing ends a descent along a flat direction.
        steep = STEEP * first if problem.quadratic else math.inf
        direction = _conjugate_gradients(problem.hessian(theta, image), -gradient, wanted * norm, learnt, steep)
        slope = float(gradient @ direction)
        moved = backtrack(problem, theta, image, value, direction, slope) if slope < 0.0 else None
        if moved is None:
            return rule.minimum(problem, theta, gradient, iteration, False)
        theta, image = moved
        value, gradient = problem.value_and_gradient(theta, image)
        norm = float(np.linalg.norm(gradient))
    return rule.minimum(problem, theta, gradient, rule.work.max_iterations, rule.reached(value, norm))


class _Curvatures:
    """The last directions s, their products y = H s, and the L-BFGS inverse Hessian built from them."""

    def __init__(self) -> None:
        self._steps: deque[Vector] = deque(maxlen=MEMORY)
        self._changes: deque[Vector] = deque(maxlen=MEMORY)

    def add(self, step: Vector, change: Vector) -> None:
        """Store a direction and its Hessian product; their inner product must be positive."""
        self._steps.append(step)
        self._changes.append(change)

    def inverse(self) -> Curvature:
        """Return the inverse Hessian in its compact form: four products with matrices of `MEMORY` rows."""
        if not self._steps:
            return lambda v: v
        steps, changes = np.array(self._steps), np.array(self._changes)
        products = steps @ changes.T
        # R: upper triangle of S'Y, D: its diagonal.
        from scipy.linalg import LinAlgError, solve_triangular

        try:
            inverse = solve_triangular(np.triu(products), np.eye(len(steps)))
        except LinAlgError as error:
            raise _no_minimiser(str(error)) from error
        scale = products[-1, -1] / float(changes[-1] @ changes[-1])
        middle = inverse.T @ (np.diag(np.diag(products)) + scale * (changes @ changes.T)) @ inverse

        def multiply(v: Vector) -> Vector:
            along, across = steps @ v, changes @ v
            result = (middle @ along - scale * (inverse.T @ across)) @ steps
            result -= (scale * (inverse @ along)) @ changes
            result += scale * v
            return np.asarray(result)

        return multiply


def _conjugate_gradients(
    multiply: Curvature, target: Vector, tolerance: float, learnt: _Curvatures, steep: float = math.inf
) -> Vector:
    """Return v with ||H v - target|| <= tolerance, or the last iterate before a direction without curvature.

    Raises
    ------
    ConfigurationError
        If the slope along a direction without curvature is above `steep`.
    """
    precondition = learnt.inverse()
    solution = np.zeros_like(target)
    residual = target.copy()
    search = precondition(residual).copy()
    energy = float(residual @ search)
    largest = 0.0
    for _ in range(target.size):
        product = multiply(search)
        curvature, square = float(search @ product), float(search @ search)
        if curvature <= FLAT * largest * square:
            slope = abs(energy) / math.sqrt(square) if square > 0.0 else 0.0
            if slope > steep:
                raise _no_minimiser(f"it falls with the slope {slope:.2g} along a direction without curvature")
            # Return the target itself if there is no solution yet.
            return solution if solution.any() else target
        largest = max(largest, curvature / square)
        learnt.add(search, product)
        length = energy / curvature
        solution += length * search
        residual -= length * product
        if float(np.linalg.norm(residual)) <= tolerance:
            break
        better = precondition(residual)
        last, energy = energy, float(residual @ better)
        search = better + (energy / last) * search
    return solution


def _no_minimiser(reason: str) -> ConfigurationError:
    return ConfigurationError(
        f"the client's problem has no unique minimiser, it is flat in some direction: {reason}. Add an l2 term to the "
        "objective, or a penalty; for DualFL alpha > 0"
    )


def exact(problem: LocalProblem, start: Vector, rule: StoppingRule) -> Minimum:
    """Solve H theta = H start - grad F(start) by a Cholesky factorisation, which later rounds reuse.

    One or two steps of iterative refinement follow until the rule is met. With more than 2,048 parameters, conjugate
    gradients are used instead.

    Raises
    ------
    ConfigurationError
        If the objective is not quadratic, or F is not strictly convex.
    """
    from scipy.linalg import LinAlgError, cho_factor, cho_solve

    if not problem.quadratic:
        raise ConfigurationError(
            f"engine='exact' is for quadratics; {type(problem.objective).__name__} is none. Use engine='auto'"
        )
    if problem.size > LARGEST_GRAM:
        return newton_cg(problem, start, rule)

    def factorised() -> Any:
        multiply = problem.hessian(start, problem.image(start))
        hessian = np.stack([multiply(unit) for unit in np.eye(problem.size)])
        try:
            return cho_factor((hessian + hessian.T) / 2.0)
        except LinAlgError as error:
            raise ConfigurationError(
                f"the client's problem has no unique minimiser: {error}. Add an l2 term to the objective, or a penalty"
            ) from error

    factor = once(problem.objective, ("factor", problem.penalty), factorised)
    theta = start.copy()
    value, gradient = problem.value_and_gradient(theta, problem.image(theta))
    norm = float(np.linalg.norm(gradient))
    for iteration in range(rule.work.max_iterations):
        if rule.reached(value, norm):
            return rule.minimum(problem, theta, gradient, iteration, True)
        trial = theta - cho_solve(factor, gradient, check_finite=False)
        value, following = problem.value_and_gradient(trial, problem.image(trial))
        better = float(np.linalg.norm(following))
        if iteration and better >= norm:
            # Rounding prevents further improvement.
            return rule.minimum(problem, theta, gradient, iteration, False)
        theta, gradient, norm = trial, following, better
    return rule.minimum(problem, theta, gradient, rule.work.max_iterations, rule.reached(value, norm))

"""Newton's method: inexact, with conjugate gradient steps, or for quadratics exact, from the linear equations."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from flwr_fco.core.layout import Vector
from flwr_fco.engines.minimisers.problem import (
    ROUNDING,
    Curvature,
    Iterate,
    LocalProblem,
    Minimum,
    StoppingRule,
    once,
)
from flwr_fco.errors import ConfigurationError

#: Largest number of parameters for which a quadratic's Hessian is factorised.
LARGEST_FACTORED = 2048
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
        what = f"engine='newton-cg' needs hessian_product, which {type(problem.objective).__name__} does not have"
        raise ConfigurationError(f"{what}. Use engine='auto'")
    first, learnt = math.nan, Products(maxlen=MEMORY)

    def step(at: Iterate, iteration: int) -> Iterate | None:
        nonlocal first
        first = first if iteration else at.norm
        # As accurate as superlinear convergence needs, but no more accurate than the target gradient requires.
        wanted = max(min(LOOSEST, math.sqrt(at.norm / first)), 0.3 * rule.gradient_target / at.norm, TIGHTEST)
        # Where the Hessian is constant, nothing ends a descent along a flat direction.
        steep = STEEP * first if problem.quadratic else math.inf
        multiply = problem.hessian(at.point, at.image)
        return backtrack(problem, at, _conjugate_gradients(multiply, -at.gradient, wanted * at.norm, learnt, steep))

    return descend(problem, start, rule, step)


#: The last directions s and their products y = H s; the inner product of each pair is positive.
Products = deque[tuple[Vector, Vector]]


def inverse_of(learnt: Products) -> Curvature:
    """Return the L-BFGS inverse Hessian in its compact form: four products with matrices of `MEMORY` rows."""
    if not learnt:
        return lambda v: v
    steps, changes = map(np.array, zip(*learnt, strict=True))
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
    multiply: Curvature, target: Vector, tolerance: float, learnt: Products, steep: float = math.inf
) -> Vector:
    """Return v with ||H v - target|| <= tolerance, or the last iterate before a direction without curvature.

    Raises
    ------
    ConfigurationError
        If the slope along a direction without curvature is above `steep`.
    """
    precondition = inverse_of(learnt)
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
        learnt.append((search, product))
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
    what = f"the client's problem has no unique minimiser, it is flat in some direction: {reason}"
    return ConfigurationError(f"{what}. Add an l2 term to the objective, or a penalty; for DualFL alpha > 0")


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
        what = f"engine='exact' is for quadratics; {type(problem.objective).__name__} is none"
        raise ConfigurationError(f"{what}. Use engine='auto'")
    if problem.size > LARGEST_FACTORED:
        return newton_cg(problem, start, rule)

    def factorised() -> Any:
        multiply = problem.hessian(start, problem.image(start))
        hessian = np.stack([multiply(unit) for unit in np.eye(problem.size)])
        try:
            return cho_factor((hessian + hessian.T) / 2.0)
        except LinAlgError as error:
            what = f"the client's problem has no unique minimiser: {error}"
            raise ConfigurationError(f"{what}. Add an l2 term to the objective, or a penalty") from error

    factor = once(problem.objective, ("factor", problem.penalty), factorised)

    def step(at: Iterate, iteration: int) -> Iterate | None:
        after = problem.at(at.point - cho_solve(factor, at.gradient, check_finite=False))
        # Rounding prevents further improvement.
        return None if iteration and after.norm >= at.norm else after

    return descend(problem, start, rule, step)


#: Fraction of the predicted decrease that a step must achieve.
SUFFICIENT = 1e-4
#: Smallest step size; a direction without a decrease even at this size consists of rounding errors.
SMALLEST = 2.0**-40


def backtrack(problem: LocalProblem, at: Iterate, direction: Vector) -> Iterate | None:
    """Return the first point theta + t d, t = 1, 1/2, 1/4, ..., with a sufficient decrease of F.

    None if F does not fall along the direction, or no step size gives a sufficient decrease.
    """
    slope = float(at.gradient @ direction)
    if not slope < 0.0:
        return None
    along = problem.image(direction)
    slack = ROUNDING * (1.0 + abs(at.value))
    t = 1.0
    while t >= SMALLEST:
        trial, image = at.point + t * direction, at.image + t * along
        if problem.value(trial, image) <= at.value + SUFFICIENT * t * slope + slack:
            return problem.at(trial, image)
        t *= 0.5
    return None


def descend(
    problem: LocalProblem, start: Vector, rule: StoppingRule, step: Callable[[Iterate, int], Iterate | None]
) -> Minimum:
    """Take steps ``step(point, number)`` until a point meets the rule, there is no further one, or the limit is met."""
    at, iteration = problem.at(start.copy()), 0
    while True:
        reached = rule.reached(at.value, at.norm)
        after = None if reached or iteration == rule.work.max_iterations else step(at, iteration)
        if after is None:
            return rule.minimum(problem, at.point, at.gradient, iteration, reached)
        at, iteration = after, iteration + 1

"""Limited-memory BFGS: SciPy's version, and one with a preconditioner that works on margins."""

from __future__ import annotations

from collections import deque

import numpy as np

from flwr_fco.core.layout import Vector
from flwr_fco.engines.minimisers.problem import LocalProblem
from flwr_fco.engines.minimisers.result import Minimum, StoppingRule, backtrack

#: Number of pairs that the preconditioned method stores.
MEMORY = 30


class _Reached(Exception):
    """Raised to leave SciPy's loop."""


def lbfgs(problem: LocalProblem, start: Vector, rule: StoppingRule) -> Minimum:
    """Minimise F by SciPy's L-BFGS-B.

    The rule is not met if SciPy's line search fails, which for losses near 1 happens at gradients of about 1e-8.
    """
    from scipy.optimize import minimize

    best: tuple[float, Vector, Vector] | None = None
    accepted: tuple[Vector, Vector] | None = None

    def evaluate(theta: Vector) -> tuple[float, Vector]:
        nonlocal best, accepted
        value, gradient = problem.evaluate(theta)
        norm = float(np.linalg.norm(gradient))
        if best is None or norm < best[0]:
            best = norm, theta.copy(), gradient.copy()
        if rule.work.rule != "energy" and rule.reached(value, norm):
            accepted = theta.copy(), gradient.copy()
            raise _Reached
        return value, gradient

    iterations = 0

    def after_step(intermediate_result: object) -> None:
        nonlocal iterations, accepted
        iterations += 1
        # Uses SciPy's OptimizeResult, so that the energy is compared between steps, not between trial points.
        value, theta = intermediate_result.fun, intermediate_result.x  # type: ignore[attr-defined]
        if rule.work.rule == "energy" and rule.settled(float(value)):
            accepted = theta.copy(), problem.evaluate(theta)[1]
            raise _Reached

    limit = rule.work.max_iterations
    try:
        minimize(
            evaluate,
            start.copy(),
            jac=True,
            method="L-BFGS-B",
            callback=after_step,
            options={"gtol": 0.0, "ftol": 0.0, "maxiter": limit, "maxfun": 20 * limit, "maxcor": 10},
        )
    except _Reached:
        assert accepted is not None
        return rule.minimum(problem, *accepted, iterations, True)
    assert best is not None
    return rule.minimum(problem, best[1], best[2], iterations, best[0] == 0.0)


def preconditioned_lbfgs(problem: LocalProblem, start: Vector, rule: StoppingRule) -> Minimum:
    """Minimise F by L-BFGS whose initial inverse Hessian is the problem's preconditioner, scaled to the last step.

    A step costs one product with the features for the direction's margins and one for the gradient; trial steps of the
    line search need no products.

    References
    ----------
    Nocedal, Wright: Numerical optimization (2006), algorithms 7.4 and 7.5.
    """
    theta = start.copy()
    image = problem.image(theta)
    value, gradient = problem.value_and_gradient(theta, image)
    precondition = problem.preconditioner(image) or (lambda v: v)
    pairs: deque[tuple[Vector, Vector, float]] = deque(maxlen=MEMORY)
    scale = 1.0
    for iteration in range(rule.work.max_iterations):
        if rule.reached(value, float(np.linalg.norm(gradient))):
            return rule.minimum(problem, theta, gradient, iteration, True)
        direction = -gradient
        shares: list[float] = []
        for step, change, inverse in reversed(pairs):
            share = inverse * float(step @ direction)
            direction -= share * change
            shares.append(share)
        direction = scale * precondition(direction)
        for (step, change, inverse), share in zip(pairs, reversed(shares), strict=True):
            direction += (share - inverse * float(change @ direction)) * step
        slope = float(gradient @ direction)
        moved = backtrack(problem, theta, image, value, direction, slope) if slope < 0.0 else None
        if moved is None:
            if not pairs:
                return rule.minimum(problem, theta, gradient, iteration, False)
            # Pairs from distant points are misleading: restart with the preconditioner alone.
            pairs.clear()
            scale = 1.0
            continue
        step = moved[0] - theta
        theta, image = moved
        value, following = problem.value_and_gradient(theta, image)
        change = following - gradient
        gradient = following
        curvature = float(step @ change)
        if curvature > 1e-14 * float(np.linalg.norm(step) * np.linalg.norm(change)):
            pairs.append((step, change, 1.0 / curvature))
            scale = curvature / float(change @ precondition(change))
    reached = rule.reached(value, float(np.linalg.norm(gradient)))
    return rule.minimum(problem, theta, gradient, rule.work.max_iterations, reached)

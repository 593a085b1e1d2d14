"""Limited-memory BFGS: SciPy's version, and one with a preconditioner that works on margins."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from flwr_fco.core.layout import Vector
from flwr_fco.engines.minimisers.problem import Curvature, Iterate, LocalProblem
from flwr_fco.engines.minimisers.result import Minimum, StoppingRule, backtrack, descend

#: Number of pairs that the preconditioned method stores.
MEMORY = 30


class _Reached(Exception):
    """Raised to leave SciPy's loop."""


def lbfgs(problem: LocalProblem, start: Vector, rule: StoppingRule) -> Minimum:
    """Minimise F by SciPy's L-BFGS-B.

    The rule is not met if SciPy's line search fails, which for losses near 1 happens at gradients of about 1e-8.
    """
    from scipy.optimize import minimize

    by_energy, limit, iterations, reached = rule.work.rule == "energy", rule.work.max_iterations, 0, True
    best: tuple[float, Vector, Vector] | None = None

    def evaluate(theta: Vector) -> tuple[float, Vector]:
        nonlocal best
        value, gradient = problem.evaluate(theta)
        norm = float(np.linalg.norm(gradient))
        met = not by_energy and rule.reached(value, norm)
        if met or best is None or norm < best[0]:
            best = norm, theta.copy(), gradient.copy()
        if met:
            raise _Reached
        return value, gradient

    def after_step(intermediate_result: Any) -> None:
        nonlocal iterations, best
        iterations += 1
        # Uses SciPy's OptimizeResult, so that the energy is compared between steps, not between trial points.
        if by_energy and rule.settled(float(intermediate_result.fun)):
            theta = intermediate_result.x.copy()
            best = 0.0, theta, problem.evaluate(theta)[1]
            raise _Reached

    options = {"gtol": 0.0, "ftol": 0.0, "maxiter": limit, "maxfun": 20 * limit, "maxcor": 10}
    try:
        minimize(evaluate, start.copy(), jac=True, method="L-BFGS-B", callback=after_step, options=options)
        reached = best is not None and best[0] == 0.0
    except _Reached:
        pass
    assert best is not None
    return rule.minimum(problem, best[1], best[2], iterations, reached)


def preconditioned_lbfgs(problem: LocalProblem, start: Vector, rule: StoppingRule) -> Minimum:
    """Minimise F by L-BFGS whose initial inverse Hessian is the problem's preconditioner, scaled to the last step.

    A step costs one product with the features for the direction's margins and one for the gradient; trial steps of the
    line search need no products.

    References
    ----------
    Nocedal, Wright: Numerical optimization (2006), algorithms 7.4 and 7.5.
    """
    pairs: deque[tuple[Vector, Vector, float]] = deque(maxlen=MEMORY)
    precondition: Curvature | None = None
    scale = 1.0

    def step(at: Iterate, iteration: int) -> Iterate | None:
        nonlocal precondition, scale
        if precondition is None:
            precondition = problem.preconditioner(at.image) or (lambda v: v)
        direction = -at.gradient
        shares: list[float] = []
        for moved, change, inverse in reversed(pairs):
            share = inverse * float(moved @ direction)
            direction -= share * change
            shares.append(share)
        direction = scale * precondition(direction)
        for (moved, change, inverse), share in zip(pairs, reversed(shares), strict=True):
            direction += (share - inverse * float(change @ direction)) * moved
        after = backtrack(problem, at, direction)
        if after is None:
            # Pairs from distant points are misleading: restart with the preconditioner alone.
            again = at if pairs else None
            pairs.clear()
            scale = 1.0
            return again
        moved, change = after.point - at.point, after.gradient - at.gradient
        curvature = float(moved @ change)
        if curvature > 1e-14 * float(np.linalg.norm(moved) * np.linalg.norm(change)):
            pairs.append((moved, change, 1.0 / curvature))
            scale = curvature / float(change @ precondition(change))
        return after

    return descend(problem, start, rule, step)

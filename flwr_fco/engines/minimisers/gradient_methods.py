"""Methods that need gradients only: AOGM of the DualFL paper, and SciPy's limited-memory BFGS."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flwr_fco.core.layout import Vector
from flwr_fco.engines.minimisers.problem import ROUNDING, LocalProblem, Minimum, StoppingRule

#: Factor of backtracking (delta): the step size is divided by it once before every step, then multiplied as needed.
SHRINK = 0.5
#: Smallest decrease, in multiples of F's rounding error, that is informative about the step size.
INFORMATIVE = 100.0
#: Smallest step size to try.
SMALLEST = 1e-30


def aogm(problem: LocalProblem, start: Vector, rule: StoppingRule) -> Minimum:
    """Minimise F by AOGM.

    Gradients are taken at the points x; y are the points after a gradient step::

        y+ <- x - tau grad F(x)             tau: first tau/delta, then times delta until F(y+) <= F(x) - tau/2 |grad|^2
        t+ <- (1 + sqrt(1 + 4 (tau/tau+) t^2)) / 2
        x+ <- y+ + (t - 1)/t+ (y+ - y) + t/t+ (y+ - x)
        if <-grad F(x), y+ - y> <= 0: t+ <- 1                                                      (adaptive restart)

    Parameters
    ----------
    rule : StoppingRule
        ``"energy"`` compares F(y+) with F(y), as in the paper; all other rules use the gradient at x, and x is returned
        if it meets the rule.

    References
    ----------
    Kim, Fessler: Adaptive restart of the optimized gradient method (2018), keeping the momentum of the restarting step,
    as in the authors' code; Calatroni, Chambolle: Backtracking strategies for accelerated descent methods (2019).

    Notes
    -----
    Differs from the paper in: 1. restart and backtracking are combined by the ratio rule above, which the DualFL paper
    does not state; 2. if the required decrease is below the rounding error of F, the step size is tested by
    <grad F(y+), grad F(x)> >= 0 instead, which is equivalent for a quadratic; with F the step size would collapse or
    grow without bound; 3. a step is repeated with the step size times delta if tau |g+ - g|^2 > <g+ - g, x+ - x>, where
    g and g+ are the gradients at x and x+, and the next step tries no larger step size: a step size chosen only for the
    decrease makes the optimised momentum unstable (on 7,500 MNIST images, to a gradient of 1e-12: 1,309 iterations
    without this rule, 319 with it); 4. the first step size tried is 1.
    """
    y, x = start.copy(), start.copy()
    image_y = problem.image(y)
    image_x = image_y
    value_x, gradient = problem.value_and_gradient(x, image_x)
    t, tau, held = 1.0, SHRINK, False
    if rule.work.rule == "energy":
        rule.settled(value_x)
    for iteration in range(rule.work.max_iterations):
        square = float(gradient @ gradient)
        if square == 0.0 or (rule.work.rule != "energy" and rule.reached(value_x, math.sqrt(square))):
            return rule.minimum(problem, x, gradient, iteration, True)
        image_step = problem.image(gradient)
        previous, tau = tau, tau if held else tau / SHRINK
        held = False
        slack = ROUNDING * (1.0 + abs(value_x))
        while True:
            y_next = x - tau * gradient
            image_next = image_x - tau * image_step
            value_next = problem.value(y_next, image_next)
            if 0.5 * tau * square > INFORMATIVE * slack:
                if value_next <= value_x - 0.5 * tau * square:
                    break
            elif problem.slope(y_next, image_next, gradient, image_step) >= 0.0 or tau < SMALLEST:
                break
            tau *= SHRINK
        if rule.work.rule == "energy" and rule.settled(value_next):
            gradient = problem.value_and_gradient(y_next, image_next)[1]
            return rule.minimum(problem, y_next, gradient, iteration + 1, True)
        while True:
            t_next = (1.0 + math.sqrt(1.0 + 4.0 * (previous / tau if iteration else 1.0) * t * t)) / 2.0
            beta, gamma = (t - 1.0) / t_next, t / t_next
            x_next = y_next + beta * (y_next - y) + gamma * (y_next - x)
            image_x_next = image_next + beta * (image_next - image_y) + gamma * (image_next - image_x)
            value_x, gradient_next = problem.value_and_gradient(x_next, image_x_next)
            change = gradient_next - gradient
            if tau * float(change @ change) <= (1.0 + 1e-9) * float(change @ (x_next - x)) or tau < SMALLEST:
                break
            # The momentum is not safe with this step size: repeat from the same x, and try no larger one next time.
            tau *= SHRINK
            held = True
            y_next, image_next = x - tau * gradient, image_x - tau * image_step
        if float(gradient @ (y_next - y)) >= 0.0:
            t_next = 1.0
        x, image_x, gradient, y, image_y, t = x_next, image_x_next, gradient_next, y_next, image_next, t_next
        if iteration % 100 == 99:
            # Recompute: by rounding, accumulated differences drift away from the point's margins.
            image_x, image_y = problem.image(x), problem.image(y)
    image_x = problem.image(x)
    _, gradient = problem.value_and_gradient(x, image_x)
    reached = rule.work.rule != "energy" and rule.reached(value_x, float(np.linalg.norm(gradient)))
    return rule.minimum(problem, x, gradient, rule.work.max_iterations, reached)


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

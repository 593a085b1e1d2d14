"""Local solvers in the place of the library's: DualFL takes any, and its paper AOGM."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from flwr_fco.engines import Minimise, Minimum, minimise
from flwr_fco.objectives import Batch, Objective, Vector

#: Factor of backtracking (delta): the step size is divided by it once before every step, then multiplied as needed.
SHRINK = 0.5
#: Rounding error of a value, and a decrease, in multiples of it, that is informative about the step size.
ROUNDING = 4e-16
INFORMATIVE = 100.0
#: Smallest step size to try.
SMALLEST = 1e-30

LocalSolver = Callable[[Objective, Vector, float, Vector, Minimise, float], Minimum]


def aogm(objective: Objective, pull: Vector, penalty: float, start: Vector, work: Minimise, duality: float) -> Minimum:
    """Minimise F(x) = f(x) - <pull, x> + penalty/2 ||x||^2 by AOGM.

    Gradients are taken at the points x; y are the points after a gradient step::

        y+ <- x - tau grad F(x)             tau: first tau/delta, then times delta until F(y+) <= F(x) - tau/2 |grad|^2
        t+ <- (1 + sqrt(1 + 4 (tau/tau+) t^2)) / 2
        x+ <- y+ + (t - 1)/t+ (y+ - y) + t/t+ (y+ - x)
        if <-grad F(x), y+ - y> <= 0: t+ <- 1                                                      (adaptive restart)

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
    without this rule, 319 with it); 4. the first step size tried is 1; 5. it stops at a gradient or a gap, not at a
    relative change of the value.
    """
    convexity = objective.strong_convexity() + penalty
    count = 0
    target = work.stopping_norm(convexity, duality)

    def evaluate(x: Vector) -> tuple[float, Vector]:
        nonlocal count
        count += 1
        value, gradient = objective.value_and_gradient(x)
        return value + float(x @ (0.5 * penalty * x - pull)), gradient + penalty * x - pull

    def value_at(x: Vector) -> float:
        return objective.value(x) + float(x @ (0.5 * penalty * x - pull))

    y = x = np.array(start)
    value, gradient = evaluate(x)
    t = 1.0
    tau = SHRINK
    held = False
    iteration = 0
    while not (norm := float(np.linalg.norm(gradient))) <= target and iteration < work.max_iterations:
        square = norm * norm
        previous = tau
        tau = tau if held else tau / SHRINK
        held = False
        while True:
            y_next = x - tau * gradient
            if 0.5 * tau * square > INFORMATIVE * ROUNDING * (1.0 + abs(value)):
                if value_at(y_next) <= value - 0.5 * tau * square:
                    break
            elif evaluate(y_next)[1] @ gradient >= 0.0 or tau < SMALLEST:
                break
            tau *= SHRINK
        while True:
            t_next = (1.0 + math.sqrt(1.0 + 4.0 * (previous / tau if iteration else 1.0) * t * t)) / 2.0
            x_next = y_next + (t - 1.0) / t_next * (y_next - y) + t / t_next * (y_next - x)
            value, gradient_next = evaluate(x_next)
            change = gradient_next - gradient
            if tau * float(change @ change) <= (1.0 + 1e-9) * float(change @ (x_next - x)) or tau < SMALLEST:
                break
            # The momentum is not safe with this step size: repeat from the same x, and try no larger one next time.
            tau *= SHRINK
            held = True
            y_next = x - tau * gradient
        if float(gradient @ (y_next - y)) >= 0.0:
            t_next = 1.0
        x = x_next
        gradient = gradient_next
        y = y_next
        t = t_next
        iteration += 1
    return Minimum(x, iteration, count, 0, norm, norm * norm / (2.0 * convexity), norm <= target)


def lbfgs(objective: Objective, pull: Vector, penalty: float, start: Vector, work: Minimise, duality: float) -> Minimum:
    """Minimise by SciPy's L-BFGS-B, which the library takes for a loss of which only the gradient is known."""
    return minimise(GradientsOnly(objective), work, shift=pull, penalty=penalty, start=start, duality=duality)


class GradientsOnly(Objective):
    """A loss of which nothing is known but values, gradients and its strong convexity."""

    def __init__(self, objective: Objective) -> None:
        self.layout = objective.layout
        self.num_examples = objective.num_examples
        self._objective = objective

    def value(self, w: Vector) -> float:
        """Return the loss."""
        return self._objective.value(w)

    def gradient(self, w: Vector, batch: Batch = None, out: Vector | None = None) -> Vector:
        """Return its gradient."""
        return self._objective.gradient(w, batch, out)

    def strong_convexity(self) -> float:
        """Return its modulus."""
        return self._objective.strong_convexity()


#: By their names in the settings of a problem.
LOCAL_SOLVERS: Mapping[str, LocalSolver] = {"aogm": aogm, "lbfgs": lbfgs}

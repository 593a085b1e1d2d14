"""The result of an engine, its stopping rule, and a line search on margins."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from flwr_fco.core.layout import Vector
from flwr_fco.engines.minimisers.problem import Iterate, LocalProblem
from flwr_fco.errors import ConfigurationError
from flwr_fco.work import Minimise

#: Uncertainty of a function value, relative to 1 + |value|; smaller decreases are not informative.
ROUNDING = 4e-16


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
        Norm of the gradient of F computed at the point; for dual ascent, the largest violation of its conditions.
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
    duality : float, default 0.0
        DualFL's nu, for the rule ``"gap"``.

    Raises
    ------
    ConfigurationError
        If the rule is ``"gap"`` and no gap can be computed.
    """

    def __init__(self, work: Minimise, problem: LocalProblem, duality: float = 0.0) -> None:
        self.work = work
        self._convexity = problem.strong_convexity
        self._margin = problem.strong_convexity - duality
        self._previous = math.nan
        if work.rule == "gap" and not self._margin > 0.0:
            raise ConfigurationError(
                f"rule='gap' needs a strong convexity above {duality:g}, but only {self._convexity:g} is known of the "
                "client's problem, so the primal-dual gap cannot be bounded. Use rule='gradient', add an l2 term to "
                "the objective, or choose DualFL's nu below it"
            )

    def reached(self, value: float, gradient_norm: float) -> bool:
        """Whether a point meets the rule; call it once per iteration, as the energy is compared with the last call's.

        Parameters
        ----------
        value : float
            F at the point.
        gradient_norm : float
            Norm of the gradient of F at the point.
        """
        if self.work.rule == "gradient" or gradient_norm == 0.0:
            return gradient_norm <= self.work.tolerance
        if self.work.rule == "gap":
            return gradient_norm**2 <= 2.0 * self._margin * self.work.tolerance
        return self.settled(value)

    def settled(self, value: float) -> bool:
        """Whether |F - F of the last call| <= tolerance |F|; F may be 0 or negative."""
        previous, self._previous = self._previous, value
        return abs(value - previous) <= self.work.tolerance * abs(value)

    @property
    def gradient_target(self) -> float:
        """The largest gradient norm that meets the rule; 0.0 for the energy rule."""
        if self.work.rule == "gradient":
            return self.work.tolerance
        return 0.0 if self.work.rule == "energy" else math.sqrt(2.0 * self._margin * self.work.tolerance)

    def minimum(
        self, problem: LocalProblem, point: Vector, gradient: Vector, iterations: int, reached: bool
    ) -> Minimum:
        """Return the result, with its certificate."""
        norm = float(np.linalg.norm(gradient))
        gap = norm**2 / (2.0 * self._convexity) if self._convexity > 0.0 else math.inf
        return Minimum(point, iterations, problem.evaluations, problem.products, norm, gap, reached)


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

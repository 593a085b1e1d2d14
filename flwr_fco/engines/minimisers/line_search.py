"""A backtracking line search on margins, for directions with a natural step size of 1."""

from __future__ import annotations

from flwr_fco.core.layout import Vector
from flwr_fco.engines.minimisers.problem import Image, LocalProblem
from flwr_fco.engines.minimisers.result import ROUNDING

#: Fraction of the predicted decrease that a step must achieve.
SUFFICIENT = 1e-4
#: Smallest step size; a direction without a decrease even at this size consists of rounding errors.
SMALLEST = 2.0**-40


def backtrack(
    problem: LocalProblem, theta: Vector, image: Image, value: float, direction: Vector, slope: float
) -> tuple[Vector, Image] | None:
    """Return the first point theta + t d, t = 1, 1/2, 1/4, ..., with a sufficient decrease of F, and its image.

    None if no step size gives a sufficient decrease. The slope is the product of the direction and the gradient,
    negative.
    """
    along = problem.image(direction)
    slack = ROUNDING * (1.0 + abs(value))
    t = 1.0
    while t >= SMALLEST:
        trial, image_trial = theta + t * direction, image + t * along
        if problem.value(trial, image_trial) <= value + SUFFICIENT * t * slope + slack:
            return trial, image_trial
        t *= 0.5
    return None

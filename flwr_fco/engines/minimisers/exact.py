"""The minimiser of a quadratic, from its linear equations."""

from __future__ import annotations

from typing import Any

import numpy as np

from flwr_fco.core.layout import Vector
from flwr_fco.engines.minimisers.problem import LARGEST_GRAM, LocalProblem, once
from flwr_fco.engines.minimisers.result import Minimum, StoppingRule
from flwr_fco.errors import ConfigurationError


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
        from flwr_fco.engines.minimisers.newton_cg import newton_cg

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

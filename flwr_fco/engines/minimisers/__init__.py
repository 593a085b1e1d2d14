"""Engines: interchangeable methods that minimise f(theta) - <shift, theta> + penalty/2 ||theta - center||^2."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from flwr_fco.core.layout import Vector
from flwr_fco.engines.minimisers.dual_ascent import dual_ascent
from flwr_fco.engines.minimisers.gradient_methods import aogm, lbfgs, preconditioned_lbfgs
from flwr_fco.engines.minimisers.newton_cg import exact, newton_cg
from flwr_fco.engines.minimisers.problem import LARGEST_GRAM, LocalProblem, RowSpace, local_problem, row_space
from flwr_fco.engines.minimisers.result import Minimum, StoppingRule
from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives.base import Objective
from flwr_fco.work import Minimise

__all__ = [
    "ENGINES",
    "Engine",
    "LocalProblem",
    "Minimum",
    "StoppingRule",
    "fastest_engine",
    "local_problem",
    "minimise",
]

Engine = Callable[[LocalProblem, Vector, StoppingRule], Minimum]

#: The engines by their names in ``Minimise(engine=...)``; "auto" selects one of them.
ENGINES: Mapping[str, Engine] = MappingProxyType(
    {
        "aogm": aogm,
        "lbfgs": lbfgs,
        "preconditioned-lbfgs": preconditioned_lbfgs,
        "newton-cg": newton_cg,
        "exact": exact,
        "dual-ascent": dual_ascent,
    }
)


#: Engines that work in the row space if there are fewer examples than features. AOGM and SciPy's method are references
#: for comparisons and remain unchanged.
_IN_ROW_SPACE = ("newton-cg", "preconditioned-lbfgs")


def fastest_engine(problem: LocalProblem) -> str:
    """Return the name of the engine that ``"auto"`` stands for.

    ``"dual-ascent"`` for the hinge loss, ``"exact"`` for quadratics with up to 2,048 parameters, ``"newton-cg"`` if
    products with the Hessian are available, otherwise ``"preconditioned-lbfgs"`` (then without a preconditioner).
    """
    if not problem.objective.smooth:
        return "dual-ascent"
    if problem.quadratic and problem.size <= LARGEST_GRAM and problem.strong_convexity > 0.0:
        return "exact"
    return "newton-cg" if problem.has_hessian else "preconditioned-lbfgs"


def minimise(
    objective: Objective,
    work: Minimise | None = None,
    *,
    shift: Vector | None = None,
    center: Vector | None = None,
    penalty: float = 0.0,
    start: Vector | None = None,
    duality: float = 0.0,
) -> Minimum:
    """Return argmin_theta f(theta) - <shift, theta> + penalty/2 ||theta - center||^2.

    Parameters
    ----------
    objective : Objective
        f.
    work : Minimise, optional
        Engine, stopping rule and tolerance; by default the fastest engine, to a gradient norm of 1e-10.
    shift, center : ndarray of float64, shape (d,), optional
        Default zeros.
    penalty : float, default 0.0
        Modulus of the quadratic term, >= 0.
    start : ndarray of float64, shape (d,), optional
        The starting point; by default `center`, or zeros.
    duality : float, default 0.0
        DualFL's nu, which its gap (3.6) depends on; used for the rule ``"gap"``.

    Returns
    -------
    Minimum
        The point, the numbers of iterations and gradients, the gradient's norm, a certified gap, and whether the rule
        was met within `max_iterations`.

    Raises
    ------
    ConfigurationError
        If the engine cannot minimise this objective.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fco.objectives import LeastSquares
    >>> objective = LeastSquares(np.eye(2), np.array([2.0, 4.0]), intercept=False)
    >>> minimum = minimise(objective, penalty=1.0)
    >>> minimum.point.round(6), minimum.reached
    (array([1., 2.]), True)
    """
    work = Minimise() if work is None else work
    problem = local_problem(objective, shift, center, penalty)
    name = fastest_engine(problem) if work.engine == "auto" else work.engine
    engine = ENGINES[name]
    if not objective.smooth and name != "dual-ascent":
        what = f"engine={name!r} needs gradients, which {type(objective).__name__} lacks"
        raise ConfigurationError(f"{what}: it is not smooth. For the hinge loss use 'dual-ascent'")
    if start is None:
        start = np.zeros(problem.size) if center is None else center
    start = np.asarray(start, dtype=np.float64)
    # The energy rule compares values, to which the coordinates outside the row space contribute.
    space = row_space(problem) if name in _IN_ROW_SPACE and work.rule != "energy" else None
    if space is not None:
        return _minimise_in_row_space(space, problem, replace(work, engine=name), start, duality)
    # The dual ascent's gap is a bound on DualFL's gap for every nu up to the modulus.
    rule = StoppingRule(work, problem, 0.0 if engine is dual_ascent else duality)
    return engine(problem, start, rule)


def _minimise_in_row_space(
    space: RowSpace, problem: LocalProblem, work: Minimise, start: Vector, duality: float
) -> Minimum:
    """Minimise over the span of the examples, and certify the result in the full space."""
    linear = np.zeros(problem.size) if problem.shift is None else problem.shift
    if problem.center is not None:
        linear = linear + problem.penalty * problem.center
    minimum = minimise(
        space.objective,
        replace(work, tolerance=0.99 * work.tolerance),
        shift=space.coordinates(problem.shift),
        center=space.coordinates(problem.center),
        penalty=problem.penalty,
        start=space.coordinates(start),
        duality=duality,
    )
    point = space.point(minimum.point, linear / (space.objective.l2 + problem.penalty))
    _, gradient = problem.evaluate(point)
    problem.count(evaluations=minimum.gradient_evaluations, products=minimum.hessian_products)
    rule = StoppingRule(work, problem, duality)
    norm = float(np.linalg.norm(gradient))
    return rule.minimum(problem, point, gradient, minimum.iterations, minimum.reached and rule.reached(0.0, norm))

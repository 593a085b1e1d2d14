"""Engines: interchangeable methods that minimise f(theta) - <shift, theta> + penalty/2 ||theta - center||^2."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from flwr_fco.core.layout import Vector
from flwr_fco.engines.minimisers.gradient_methods import aogm, lbfgs
from flwr_fco.engines.minimisers.newton_cg import LARGEST_FACTORED, exact, newton_cg
from flwr_fco.engines.minimisers.problem import LocalProblem, Minimum, StoppingRule, local_problem
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
ENGINES: Mapping[str, Engine] = MappingProxyType({"aogm": aogm, "lbfgs": lbfgs, "newton-cg": newton_cg, "exact": exact})


def fastest_engine(problem: LocalProblem) -> str:
    """Return the name of the engine that ``"auto"`` stands for.

    ``"exact"`` for quadratics with up to 2,048 parameters, ``"newton-cg"`` if products with the Hessian are available,
    otherwise ``"lbfgs"``.
    """
    if problem.quadratic and problem.size <= LARGEST_FACTORED and problem.strong_convexity > 0.0:
        return "exact"
    return "newton-cg" if problem.has_hessian else "lbfgs"


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
    engine: Engine | None = objective.minimiser if work.engine == "auto" else None
    if engine is None:
        if not objective.smooth:
            raise ConfigurationError(
                f"{type(objective).__name__} is not smooth: engine={work.engine!r} cannot minimise it. Give it a "
                "method minimiser(problem, start, rule), which engine='auto' calls, or take a strategy whose clients "
                "take (sub)gradient steps, such as LocalSGD"
            )
        engine = ENGINES[fastest_engine(problem) if work.engine == "auto" else work.engine]
    if start is None:
        start = np.zeros(problem.size) if center is None else center
    return engine(problem, np.asarray(start, dtype=np.float64), StoppingRule(work, problem, duality))

"""Engines: interchangeable ways to minimise f(theta) - <shift, theta> + penalty/2 ||theta - center||^2 on a client."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from flwr_fco.client_apps.engines.aogm import aogm
from flwr_fco.client_apps.engines.dual_ascent import dual_ascent
from flwr_fco.client_apps.engines.exact import exact
from flwr_fco.client_apps.engines.lbfgs import lbfgs, preconditioned_lbfgs
from flwr_fco.client_apps.engines.newton_cg import newton_cg
from flwr_fco.client_apps.engines.problem import LARGEST_GRAM, LocalProblem, local_problem
from flwr_fco.client_apps.engines.result import Minimum, StoppingRule
from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives.base import Objective
from flwr_fco.objectives.hinge import Hinge
from flwr_fco.parameters import Vector
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

#: The engines by the names that ``Minimise(engine=...)`` takes, besides "auto".
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


def fastest_engine(problem: LocalProblem) -> str:
    """Return the name of the engine that ``"auto"`` stands for.

    ``"dual-ascent"`` for the hinge loss, ``"exact"`` for quadratics of up to 2,048 parameters, ``"newton-cg"`` where
    products with the Hessian are known, ``"preconditioned-lbfgs"`` (there without a preconditioner) otherwise.

    Parameters
    ----------
    problem : LocalProblem
    """
    if isinstance(problem.objective, Hinge):
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
        Engine, stopping rule and tolerance; by default the fastest engine to a gradient norm of 1e-10.
    shift, center : ndarray of float64, shape (d,), optional
        Default zeros.
    penalty : float, default 0.0
    start : ndarray of float64, shape (d,), optional
        Where to begin; default `center`, or zeros.
    duality : float, default 0.0
        DualFL's nu: what its gap (3.6) needs for the rule ``"gap"``.

    Returns
    -------
    Minimum
        With the number of iterations and gradients, the norm of the gradient, a certified gap, and whether the rule
        was met: a cap is never silent.

    Raises
    ------
    ConfigurationError
        If the engine cannot minimise this objective.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fco.objectives import LeastSquares
    >>> objective = LeastSquares(np.eye(2), np.array([2.0, 4.0]), intercept=False)
    >>> found = minimise(objective, penalty=1.0)
    >>> found.point.round(6), found.reached
    (array([1., 2.]), True)
    """
    work = Minimise() if work is None else work
    problem = local_problem(objective, shift, center, penalty)
    name = fastest_engine(problem) if work.engine == "auto" else work.engine
    engine = ENGINES[name]
    if isinstance(objective, Hinge) and name != "dual-ascent":
        raise ConfigurationError(f"engine={name!r} needs gradients, which the hinge loss lacks. Use 'dual-ascent'")
    if start is None:
        start = np.zeros(problem.size) if center is None else center
    # The gap of the dual ascent bounds DualFL's for every nu up to the modulus.
    rule = StoppingRule(work, problem, 0.0 if engine is dual_ascent else duality)
    return engine(problem, np.asarray(start, dtype=np.float64), rule)

"""Exact coordinate ascent on the dual of the hinge loss with quadratic terms, which yields the gap at no cost."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fco.core.layout import Vector
from flwr_fco.engines.minimisers.problem import LocalProblem
from flwr_fco.engines.minimisers.result import Minimum, StoppingRule
from flwr_fco.errors import ConfigurationError
from flwr_fco.kernels.dual_ascent import hinge_epoch, sparse_hinge_epoch
from flwr_fco.objectives.classification import Hinge
from flwr_fco.objectives.design import SparseDesign


def dual_ascent(problem: LocalProblem, start: Vector, rule: StoppingRule) -> Minimum:
    """Minimise mean_i max(0, 1 - s_i <x_i, theta>) + m/2 ||theta - v||^2 by dual coordinate ascent.

    The problem's l2 term, shift and penalty determine m and v. With alpha in [0, 1]^n and
    theta = v + 1/(m n) sum_i alpha_i s_i x_i, the dual is mean_i alpha_i (1 - s_i <x_i, v>) - m/2 ||theta - v||^2, and
    the primal minus the dual value is a bound on F(theta) - min F. It is also a bound on DualFL's gap (3.6) for any
    nu <= m, because the conjugate in (3.6) can be bounded at alpha.

    Parameters
    ----------
    problem : LocalProblem
        The problem of a :class:`flwr_fco.objectives.classification.Hinge` objective.
    start : ndarray of float64, shape (d,)
        Determines the initial alpha: 1 where the margin at `start` is below 1, otherwise 0.
    rule : StoppingRule
        The tolerance is compared with the largest violation of the dual's optimality conditions (``"gradient"``), with
        the gap (``"gap"``), or with the relative change of the value (``"energy"``).

    Returns
    -------
    Minimum
        `iterations` counts passes over the examples; `gradient_norm` is the largest violation.

    Raises
    ------
    ConfigurationError
        If the objective is not a Hinge, or the problem is not strongly convex.

    References
    ----------
    Hsieh and others: A dual coordinate descent method for large-scale linear SVM (ICML 2008), with shrinking: most
    passes visit only the examples with alpha strictly between 0 and 1.
    """
    objective = _checked(problem)
    modulus = objective.l2 + problem.penalty
    anchor = np.zeros(problem.size)
    if problem.shift is not None:
        anchor += problem.shift
    if problem.penalty != 0.0 and problem.center is not None:
        anchor += problem.penalty * problem.center
    anchor /= modulus
    design, signs, n = objective.design, objective.signs, objective.num_examples
    features = design.matrix
    scale = 1.0 / (modulus * n)
    epoch: Any = hinge_epoch
    data: tuple[Any, ...] = (features,)
    if isinstance(design, SparseDesign):
        epoch, data, squares = sparse_hinge_epoch, design.rows_data, design.row_squares()
    else:
        squares = np.einsum("ij,ij->i", features, features, dtype=np.float64)
    # It is unknown which alpha are inside (0, 1), but at the start the margins predict the bound of most others.
    alpha = (signs * (features @ start) < 1.0).astype(np.float64)
    rng = np.random.default_rng(0)
    everyone = np.arange(n)
    tolerance, theta = rule.work.tolerance, anchor
    value = gap = violation = np.inf

    def sweep(which: NDArray[np.int64]) -> float:
        return float(epoch(*data, signs, squares, rng.permutation(which), scale, alpha, theta))

    for passes in range(rule.work.max_iterations + 1):
        if passes:
            violation = sweep(everyone)
            # Cheap passes over the interior alpha, until their violation is a tenth of the last full pass's.
            for _ in range(20):
                free = np.flatnonzero((alpha > 0.0) & (alpha < 1.0))
                if free.size in (0, n) or sweep(free) < 0.1 * violation:
                    break
        # Recompute theta from alpha, which removes the rounding errors of many small updates.
        theta = anchor + scale * (features.T @ (alpha * signs))
        problem.count(evaluations=1)
        losses = np.maximum(0.0, 1.0 - signs * (features @ theta))
        apart = theta - anchor
        quadratic = modulus * float(apart @ apart)
        # Primal minus dual value, as a sum of non-negative terms, which avoids cancellation.
        gap = float((losses - alpha * (1.0 - signs * (features @ theta))).mean())
        value = float(losses.mean()) + 0.5 * quadratic
        done = {"gap": gap <= tolerance, "gradient": violation <= tolerance, "energy": rule.settled(value)}
        if done[rule.work.rule]:
            return Minimum(theta, passes, problem.evaluations, 0, float(violation), max(gap, 0.0), True)
    return Minimum(theta, rule.work.max_iterations, problem.evaluations, 0, float(violation), max(gap, 0.0), False)


def _checked(problem: LocalProblem) -> Hinge:
    """Return a problem's objective, if the engine can minimise the problem."""
    objective = problem.objective
    if not isinstance(objective, Hinge):
        instead = "Use engine='auto'"
        if not objective.smooth:
            instead = "No engine minimises it; take a method whose clients take (sub)gradient steps, such as LocalSGD"
        what = f"engine='dual-ascent' is for the hinge loss, not for {type(objective).__name__}"
        raise ConfigurationError(f"{what}. {instead}")
    if objective._weights is not None or objective._offset is not None:
        what = "engine='dual-ascent' knows neither sample_weight nor offset of Hinge; leave them out"
        raise ConfigurationError(f"{what}, or take a method whose clients take (sub)gradient steps, such as LocalSGD")
    if not objective.l2 + problem.penalty > 0.0:
        what = f"l2={objective.l2:g} and penalty={problem.penalty:g} leave no strong convexity"
        raise ConfigurationError(f"{what}; give Hinge an l2 > 0")
    return objective

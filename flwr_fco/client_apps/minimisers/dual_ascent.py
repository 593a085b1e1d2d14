"""The hinge loss with quadratic terms, by exact coordinate ascent on its dual, which gives the gap for free."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fco.client_apps.minimisers.problem import LocalProblem
from flwr_fco.client_apps.minimisers.result import Minimum, StoppingRule
from flwr_fco.core.layout import Vector
from flwr_fco.errors import ConfigurationError
from flwr_fco.kernels.dual_ascent import hinge_epoch
from flwr_fco.kernels.sparse import sparse_hinge_epoch
from flwr_fco.objectives.design import SparseDesign
from flwr_fco.objectives.hinge import Hinge


def dual_ascent(problem: LocalProblem, start: Vector, rule: StoppingRule) -> Minimum:
    """Minimise mean_i max(0, 1 - s_i <x_i, theta>) + m/2 ||theta - v||^2 by dual coordinate ascent.

    The l2 term, shift and penalty of the problem make m and v. With alpha in [0, 1]^n and
    theta = v + 1/(m n) sum_i alpha_i s_i x_i, the dual is mean_i alpha_i (1 - s_i <x_i, v>) - m/2 ||theta - v||^2, and
    the primal minus the dual value bounds the distance to the minimum. It bounds DualFL's gap (3.6) too, for any
    nu <= m, because alpha is a point at which the conjugate in (3.6) can be bounded.

    Parameters
    ----------
    problem : LocalProblem
        Of a :class:`flwr_fco.objectives.hinge.Hinge` objective.
    start : ndarray of float64, shape (d,)
        Decides which alpha to begin with: 1 where the margin is below 1.
    rule : StoppingRule
        ``"gradient"`` compares the tolerance with the largest violation of the dual's optimality conditions, a number
        between 0 and 1 for alpha itself; ``"gap"`` with the gap; ``"energy"`` with the relative change of the value.

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
    passes visit only the examples whose alpha can still move.
    """
    objective = problem.objective
    if not isinstance(objective, Hinge):
        instead = "Use engine='auto'"
        if not objective.smooth:
            instead = "No engine minimises it; take a method whose clients take (sub)gradient steps, such as LocalSGD"
        raise ConfigurationError(
            f"engine='dual-ascent' is for the hinge loss, not for {type(objective).__name__}. {instead}"
        )
    modulus = objective.l2 + problem.penalty
    if not modulus > 0.0:
        raise ConfigurationError(
            f"l2={objective.l2:g} and penalty={problem.penalty:g} leave no strong convexity; give Hinge an l2 > 0"
        )
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
    # Which alpha are inside of (0, 1) is unknown; the start point says on which side most of them are.
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
            # Cheap passes over those that can still move, until they are as good as the last full pass asks.
            for _ in range(20):
                free = np.flatnonzero((alpha > 0.0) & (alpha < 1.0))
                if free.size in (0, n) or sweep(free) < 0.1 * violation:
                    break
        # From alpha, without the rounding of many small moves.
        theta = anchor + scale * (features.T @ (alpha * signs))
        problem.count(evaluations=1)
        losses = np.maximum(0.0, 1.0 - signs * (features @ theta))
        apart = theta - anchor
        quadratic = modulus * float(apart @ apart)
        # Primal minus dual: each term of the sum is not negative by itself, so nothing cancels but rounding.
        gap = float((losses - alpha * (1.0 - signs * (features @ theta))).mean())
        value = float(losses.mean()) + 0.5 * quadratic
        done = {"gap": gap <= tolerance, "gradient": violation <= tolerance, "energy": rule.settled(value)}
        if done[rule.work.rule]:
            return Minimum(theta, passes, problem.evaluations, 0, float(violation), max(gap, 0.0), True)
    return Minimum(theta, rule.work.max_iterations, problem.evaluations, 0, float(violation), max(gap, 0.0), False)

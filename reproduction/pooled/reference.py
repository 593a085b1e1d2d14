"""The minimiser of the pooled problem, to which a federated run should converge."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from flwr_fco.errors import ConfigurationError, FlwrFcoError
from flwr_fco.objectives import Vector
from flwr_fco.regularizers import BoundRegularizer
from reproduction.pooled.certificates import Clients, Psi, bound_to, client_weights, pooled_gradient

#: Norm of the mapping, relative to its norm at the start, below which only rounding errors are left.
_ROUNDING = 1e-14


def centralized_solution(
    objectives: Clients,
    regularizer: Psi,
    weights: ArrayLike | None = None,
    tol: float = 1e-10,
    max_iterations: int = 200_000,
) -> Vector:
    """Return argmin_w sum_m p_m F_m(w) + psi(w) for any smooth objectives and any convex psi.

    Uses the accelerated proximal gradient method (FISTA) with backtracking, and restarts whenever the momentum points
    uphill. It stops when the proximal gradient mapping L ||w - prox_{psi/L}(w - grad F(w) / L)|| is at most
    `tol` ||grad F(w)||, or at most `tol` / 1000 of its value at the start (without psi the gradient itself vanishes).

    Parameters
    ----------
    objectives : sequence of Objective
        One per client.
    regularizer : Regularizer or BoundRegularizer
        psi; if it is not bound to a layout, it is bound to the objectives' layout.
    weights : array-like, shape (num_clients,), optional
        The p_m up to a factor; numbers of examples by default (the pooled empirical risk).
    tol : float, default 1e-10
        Relative tolerance of the proximal gradient mapping.
    max_iterations : int, default 200,000
        Iterations after which the tolerance counts as out of reach.

    Returns
    -------
    ndarray of float64, shape (layout.size,)
        The solution, a value of psi's proximal map and so exactly sparse, low rank or feasible.

    Raises
    ------
    FlwrFcoError
        If the tolerance is not reached.
    ConfigurationError
        If psi is not convex, an objective is not smooth or is a saddle function, or weights or layouts do not match
        (see :func:`reproduction.pooled.client_weights`).

    Notes
    -----
    The intercepts of multinomial logistic regression are unique only up to a constant. With an l1 norm and an even
    number of classes, its coefficients are unique only up to an interval.

    :func:`reproduction.pooled.stationarity` measures the optimality of the result, and
    :func:`reproduction.pooled.certify` certifies it where a duality gap is known.

    Examples
    --------
    >>> from flwr_fco.objectives import LeastSquares
    >>> from flwr_fco.regularizers import L1
    >>> client = LeastSquares(np.array([[1.0], [-1.0]]), np.array([2.0, -2.0]), scale=0.5)
    >>> centralized_solution([client], L1(0.5)).round(6) + 0.0
    array([1.5, 0. ])
    """
    shares = client_weights(objectives, weights)
    psi = bound_to(regularizer, objectives[0].layout)
    _check_solvable(psi, objectives)

    def value(point: Vector) -> float:
        return float(sum(p * objective.value(point) for p, objective in zip(shares, objectives, strict=True)))

    w = psi.prox(np.zeros(psi.layout.size), 0.0)
    y = w
    momentum = 1.0
    curvature = _curvature_guess(objectives, shares, w)
    first: float | None = None
    for _ in range(max_iterations):
        gradient = pooled_gradient(objectives, shares, y)
        y_value = value(y)
        while True:
            new = psi.prox(y - gradient / curvature, 1.0 / curvature)
            step = new - y
            square = float(step @ step)
            bound = 0.5 * curvature * square
            if bound > 1e-10 * (1.0 + abs(y_value)):
                fits = value(new) - y_value - float(gradient @ step) <= bound
            else:
                # The difference of the values is lost in rounding, but the difference of the gradients is not.
                change = pooled_gradient(objectives, shares, new) - gradient
                fits = float(change @ step) <= 2.0 * bound * (1.0 + 1e-6) + 1e-300
            if fits or not np.isfinite(curvature):
                break
            curvature *= 2.0
        mapping = curvature * float(np.sqrt(square))
        first = mapping if first is None else first
        if mapping <= max(tol * float(np.linalg.norm(gradient)), max(1e-3 * tol, _ROUNDING) * first):
            return new
        if float((y - new) @ (new - w)) > 0.0:
            momentum = 1.0
            y = new
        else:
            following = 0.5 * (1.0 + float(np.sqrt(1.0 + 4.0 * momentum**2)))
            y = new + (momentum - 1.0) / following * (new - w)
            momentum = following
        w = new
    raise FlwrFcoError(
        f"after {max_iterations} iterations the proximal gradient mapping is {mapping:.3g}, at the start it was "
        f"{first:.3g}, and the gradient is {np.linalg.norm(gradient):.3g}; expected tol={tol:g} of the latter. "
        "Scale the features, raise max_iterations or be content with a larger tol."
    )


def _check_solvable(psi: BoundRegularizer, objectives: Clients) -> None:
    if not psi.convex:
        raise ConfigurationError(
            f"{psi.regularizer!r} is not convex: there is no way to tell a global minimiser from a stationary point"
        )
    for objective in objectives:
        # At a kink, steps become so short that rounding would look like convergence.
        if not objective.smooth or objective.ascends is not None:
            why = "is a saddle function" if objective.smooth else "is not smooth"
            raise ConfigurationError(f"{type(objective).__name__} {why}: gradient steps do not find a minimiser")


def _curvature_guess(objectives: Clients, shares: Vector, w: Vector) -> float:
    """Return a lower bound on the curvature, from a small step along the gradient; backtracking raises it."""
    gradient = pooled_gradient(objectives, shares, w)
    norm = float(np.linalg.norm(gradient))
    if norm == 0.0:
        return 1.0
    probe = gradient / norm * 1e-3
    change = pooled_gradient(objectives, shares, w + probe) - gradient
    return max(float(np.linalg.norm(change)) / 1e-3, 1e-8)

"""Coordinate and block descent on a quadratic model with psi: the subproblem of a proximal Newton step.

The model is m(x) = <g, x - x_0> + 1/2 (x - x_0)' H (x - x_0) + psi(x) with a positive semidefinite H and

    psi(x) = sum_j a_j |x_j| + b_j/2 x_j^2 + indicator(lower_j <= x_j <= upper_j) + sum_G s_G ||x_G||_2

Friedman, Hastie, Tibshirani: Regularization paths for generalized linear models via coordinate descent (J. Stat.
Softw. 2010). A group's block takes proximal gradient steps with the largest eigenvalue of its part of H, as in Qin,
Scheinberg, Goldfarb: Efficient block-coordinate descent algorithms for the group lasso (Math. Prog. Comp. 2013).
"""

import math

import numpy as np

from flwr_fco.kernels import njit, prox

#: Proximal gradient steps on a group before the next group.
_STEPS_ON_A_GROUP = 8


@njit(cache=True)
def _move(hessian, slope, point, j, new):  # type: ignore[no-untyped-def]
    """Set a coordinate, and add the effect on the slopes; return by how much it has moved."""
    change = new - point[j]
    if change != 0.0:
        row = hessian[j]
        for i in range(slope.shape[0]):
            slope[i] += change * row[i]
        point[j] = new
    return abs(change)


@njit(cache=True)
def _group_step(hessian, slope, point, threshold, members, strength, curvature):  # type: ignore[no-untyped-def]
    """Take a proximal gradient step on a group; return by how much it has moved."""
    size = members.shape[0]
    best = np.empty(size)
    square = 0.0
    for k in range(size):
        j = members[k]
        best[k] = prox.point(point[j] - slope[j] / curvature, 1.0, threshold[j] / curvature, 0.0, -np.inf, np.inf, 1.0)
        square += best[k] * best[k]
    norm = math.sqrt(square)
    factor = 0.0 if norm * curvature <= strength else 1.0 - strength / (curvature * norm)
    moved = 0.0
    for k in range(size):
        moved = max(moved, _move(hessian, slope, point, members[k], factor * best[k]))
    return moved


@njit(cache=True)
def descend(  # type: ignore[no-untyped-def]
    hessian, slope, point, terms, singles, members, starts, strengths, curvatures, sweeps, relative, absolute
):
    """Minimise the model by sweeps over coordinates and groups.

    Parameters
    ----------
    hessian : ndarray of float64, shape (k, k)
        H, symmetric.
    slope : ndarray of float64, shape (k,)
        g + H (x - x_0); changed in place.
    point : ndarray of float64, shape (k,)
        x; changed in place.
    terms : ndarray of float64, shape (4, k)
        a, b, lower and upper.
    singles : ndarray of int64
        The coordinates in no group.
    members, starts : ndarray of int64
        The coordinates of group G are ``members[starts[G] : starts[G + 1]]``.
    strengths : ndarray of float64
        The s_G.
    curvatures : ndarray of float64
        For each coordinate in no group its H_jj, for each group the largest eigenvalue of its part of H, both above 0;
        the coordinates first.
    sweeps : int
        Largest number of sweeps.
    relative, absolute : float
        A sweep is the last one if its largest move, times the square root of its curvature, is below `absolute`, or
        below `relative` times that of the first one.

    Returns
    -------
    bool
        Whether there was such a sweep.
    """
    first = 0.0
    for sweep in range(sweeps):
        most = 0.0
        for k in range(singles.shape[0]):
            j, h = singles[k], curvatures[k]
            a, b, lower, upper = terms[0, j], terms[1, j], terms[2, j], terms[3, j]
            new = prox.point(h * point[j] - slope[j], 1.0, a, b, lower, upper, h)
            most = max(most, _move(hessian, slope, point, j, new) * math.sqrt(h))
        for group in range(strengths.shape[0]):
            own = members[starts[group] : starts[group + 1]]
            h = curvatures[singles.shape[0] + group]
            for _ in range(_STEPS_ON_A_GROUP):
                moved = _group_step(hessian, slope, point, terms[0], own, strengths[group], h) * math.sqrt(h)
                most = max(most, moved)
                if moved <= absolute:
                    break
        if sweep == 0:
            first = most
        if most <= max(absolute, relative * first):
            return True
    return False

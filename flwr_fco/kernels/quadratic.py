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
def _step(hessian, slope, point, terms, members, strength, curvature, best):  # type: ignore[no-untyped-def]
    """Take a proximal gradient step on a block, the minimiser along a coordinate; return by how much it has moved."""
    square = 0.0
    for k, j in enumerate(members):
        a, b, lower, upper = terms[0, j], terms[1, j], terms[2, j], terms[3, j]
        best[k] = prox.point(curvature * point[j] - slope[j], 1.0, a, b, lower, upper, curvature)
        square += best[k] * best[k]
    pull = curvature * math.sqrt(square)
    factor = 1.0
    if strength > 0.0:
        factor = 1.0 - strength / pull if pull > strength else 0.0
    moved = 0.0
    for k, j in enumerate(members):
        new = factor * best[k]
        change = new - point[j]
        point[j] = new
        moved = max(moved, abs(change))
        if change != 0.0:
            for i in range(slope.shape[0]):
                slope[i] += change * hessian[j, i]
    return moved


@njit(cache=True)
def descend(  # type: ignore[no-untyped-def]
    hessian, slope, point, terms, members, starts, strengths, curvatures, sweeps, relative, absolute
):
    """Minimise the model by sweeps over blocks, which are single coordinates and groups.

    Parameters
    ----------
    hessian : ndarray of float64, shape (k, k)
        H, symmetric.
    slope : ndarray of float64, shape (k,)
        g + H (x - x_0); changed in place.
    point : ndarray of float64, shape (k,)
        x; changed in place.
    terms : ndarray of float64, shape (4, k)
        a, b, lower and upper; in a group neutral but for a.
    members, starts : ndarray of int64
        The coordinates of block G are ``members[starts[G] : starts[G + 1]]``.
    strengths : ndarray of float64
        The s_G, 0 of a single coordinate.
    curvatures : ndarray of float64
        The largest eigenvalue of each block's part of H, above 0.
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
    best = np.empty(point.shape[0])
    for sweep in range(sweeps):
        most = 0.0
        for block in range(strengths.shape[0]):
            own = members[starts[block] : starts[block + 1]]
            h = curvatures[block]
            for _ in range(_STEPS_ON_A_GROUP):
                moved = _step(hessian, slope, point, terms, own, strengths[block], h, best) * math.sqrt(h)
                most = max(most, moved)
                if own.shape[0] == 1 or moved <= absolute:
                    break
        if sweep == 0:
            first = most
        if most <= max(absolute, relative * first):
            return True
    return False

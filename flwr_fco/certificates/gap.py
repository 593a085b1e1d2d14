"""One duality gap for every convex loss: what a lower bound of the optimum takes of psi, and of gradients.

For Phi = G + l2/2 ||W||^2 + psi with a convex G, and any r,

    min Phi >= -G*(r) - (psi + l2/2 ||.||^2)*(-r).

r is a mixture of gradients of G: at the point w, and at points of the intercept alone, the :func:`references`, between
which the intercept's slope changes its sign. So some mixture has no slope in an intercept that psi leaves alone, where
psi* would be infinite; scaled down, it is within psi's domain too. As long as the shares sum to 1 at most, every loss
bounds G* of a mixture of its own gradients by convexity, and knows it where it is a sum over rows
(:meth:`flwr_fco.objectives.Objective.dual_terms`). At an optimum r is the gradient itself, and the gap is 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from flwr_fco.core.layout import Vector
from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives.base import Objective, num_intercepts
from flwr_fco.regularizers import BoundRegularizer

#: Intercepts that are tried until one is large enough.
_LENGTHS = 4.0 ** np.arange(25)
#: Residual of a mixture that is to be 0, relative to what it balances, and rounding error of its parts.
_UNBALANCED = 1e-9
_ROUNDING = 1e-14


def references(objective: Objective) -> list[Vector]:
    """Return points of the intercept alone, too large and too small; of several intercepts each is too large in turn.

    Some mixture of the gradients there with any other gradient is 0 in the intercepts, unless the loss has no minimum
    in these. Without an intercept there are none.

    Examples
    --------
    >>> from flwr_fco.objectives import LeastSquares
    >>> references(LeastSquares(np.ones((2, 1)), np.array([3.0, 4.0])))
    [array([0., 4.]), array([ 0., -1.])]
    """
    size = objective.layout.size
    count = num_intercepts(objective.layout)
    points = []
    for sides in np.array([[1.0], [-1.0]]) if count == 1 else 2.0 * np.eye(count) - 1.0:
        point = np.zeros(size)
        for length in _LENGTHS:
            point[size - count :] = length * (sides if count == 1 else sides > 0.0)
            if (objective.gradient(point)[size - count :] * sides >= 0.0).all():
                break
        points.append(point)
    return points


def reported_at(
    objective: Objective, w: Vector, numbers: Mapping[str, float]
) -> tuple[dict[str, float], dict[str, Vector]]:
    """Return a client's part of a gap: gradients with the conjugates there, or the conjugate at a mixture of them.

    Parameters
    ----------
    objective : Objective
        The loss F = G + l2/2 ||W||^2.
    w : ndarray of float64, shape (d,)
        The point.
    numbers : mapping of str to float
        ``references``, not 0 if these points are wanted besides w; ``share-0``, ``share-1``, ...: of each point in a
        mixture, if the conjugate there is wanted.

    Returns
    -------
    dict of str to float
        ``loss``, ``l2`` and ``convex``, 1.0 if G is known to be; or ``conjugate``, at the mixture.
    dict of str to ndarray
        ``rows``, of shape (number of points, d + 1): the gradient of G at each point, and its conjugate there.

    Examples
    --------
    >>> from flwr_fco.objectives import LeastSquares
    >>> objective = LeastSquares(np.array([[1.0], [3.0]]), np.array([1.0, 2.0]), scale=0.5, intercept=False)
    >>> reported_at(objective, np.zeros(1), {"references": 0.0})
    ({'loss': 1.25, 'l2': 0.0, 'convex': 1.0}, {'rows': array([[-3.5 , -1.25]])})
    """
    convex = objective.least is not None
    points = [w, *references(objective)] if numbers["references"] else [w]
    if "share-0" in numbers:
        return {"conjugate": objective.dual_terms(points, [numbers[f"share-{k}"] for k in range(len(points))])[0]}, {}
    loss, gradient = objective.value_and_gradient(w)
    reported = {"loss": float(loss), "l2": float(objective.l2), "convex": float(convex)}
    if not convex:
        return reported, {
            "rows": np.array([np.append(gradient - objective.l2 * objective.ridged(w), 0.0)] * len(points))
        }
    dual = [objective.dual_terms([point], [1.0]) for point in points]
    return reported, {"rows": np.array([np.append(slopes, value) for value, slopes in dual])}


def free_intercepts(psi: BoundRegularizer) -> int:
    """Return the number of intercepts, the model's last array, if psi leaves them alone; else 0."""
    count = num_intercepts(psi.layout)
    return 0 if count == 0 or psi.layout.regularized_mask()[-count:].any() else count


def why_none(psi: BoundRegularizer, l2: float) -> str:
    """Return why psi has no dual points near an optimum, or none that is known; an empty string if it has.

    Parameters
    ----------
    psi : BoundRegularizer
        The regularizer, bound to the clients' layout.
    l2 : float
        Strength of the losses' l2 term, with which any convex psi has them.
    """
    if not psi.convex:
        return f"{psi.regularizer!r} is not convex"
    count = psi.layout.size - num_intercepts(psi.layout)
    if l2 > 0.0:
        held = psi.layout.regularized_mask()[count:].any()
        return "psi acts on the intercept, which the l2 term leaves alone" if held else ""
    free = psi.free_coordinates()
    if free[:count].any():
        return "psi leaves coefficients alone"
    terms = psi.terms()
    if terms is not None:
        unbounded = ~np.isfinite(terms.lower) | ~np.isfinite(terms.upper)
        idle = (terms.threshold == 0.0) & (terms.shrinkage == 0.0) & unbounded & ~free
        return "psi does not act in some directions" if bool(idle.any()) else ""
    try:
        psi.conjugate(np.zeros(psi.layout.size))
    except ConfigurationError:
        return f"the conjugate of {psi.regularizer!r} is not known"
    return ""


def feasible(psi: BoundRegularizer, gradients: NDArray[np.float64], l2: float) -> tuple[Vector, Vector] | None:
    """Return the shares of gradients in a mixture within psi's domain, and the mixture r; None if there is none.

    Parameters
    ----------
    psi : BoundRegularizer
        The regularizer, for which there is no :func:`why_none`.
    gradients : ndarray of float64, shape (k, d)
        Of G, the first one at the point that the bound is to be close at.
    l2 : float
        Strength of the l2 term.

    Returns
    -------
    tuple of ndarray of float64, shapes (k,) and (d,), or None
        Shares >= 0 of a sum of at most 1, and the mixture.
    """
    shares = np.eye(1, len(gradients))[0]
    count = free_intercepts(psi)
    size = float(np.linalg.norm(gradients[0, -count:])) if count else 0.0
    if size > 0.0 and len(gradients) == 1:
        return None
    if size > 0.0:
        from scipy.optimize import nnls

        try:
            found, rest = nnls(gradients[1:, -count:].T, -gradients[0, -count:] / size)
        except (RuntimeError, ValueError):
            # Of numbers that are none, or too large.
            return None
        shares[1:] = size * found
        if rest > _UNBALANCED + _ROUNDING * float(np.abs(gradients[:, -count:]).max()) / size:
            return None
    point = shares @ gradients
    point[point.size - count :] = 0.0
    scale = min(1.0 / float(shares.sum()), math.inf if l2 > 0.0 else psi.largest_scaling(-point))
    return (scale * shares, scale * point) if scale > 0.0 else None


def conjugate_at(psi: BoundRegularizer, u: Vector, l2: float) -> float:
    """Return (psi + l2/2 ||W||^2)*(u), for u = -r of a :func:`feasible` r."""
    if l2 > 0.0:
        # For any psi, the maximiser in the conjugate is a proximal point.
        best = psi.prox(u / l2, 1.0 / l2)
        best[u.size - num_intercepts(psi.layout) :] = 0.0
        return float(u @ best) - psi.value(best) - 0.5 * l2 * float(best @ best)
    return psi.conjugate(u)

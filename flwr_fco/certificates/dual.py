"""What a dual point needs to be feasible for psi, and psi's conjugate there: shared by all duality gaps.

Where psi leaves coefficients alone, such as a confounder's, the dual point is a mixture that is 0 in their columns.
There psi* is infinite unless A'u is 0 in the free columns, and what makes it so must stay within the domain of the
losses' conjugates. The slopes at any point are in it, and so are mixtures: with r_k the pooled gradients at some points
w_k, and c_k = <r_k, w_k> - F(w_k) their conjugates,

    u + sum_k mu_k r_k,    mu_k >= 0,

has a conjugate of at most c + sum_k mu_k c_k up to its scaling, and is 0 in the free columns for some mu if the r_k
surround 0 there. The w_k are the corners of a simplex about the optimum in the free coefficients, in the metric of the
Hessian. mu is as small as the slopes in the free columns, so that the gap of an optimum is rounding. Where the r_k do
not surround 0 there is no bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from flwr_fco.core.layout import Vector
from flwr_fco.errors import ConfigurationError
from flwr_fco.regularizers import BoundRegularizer, Regularizer
from flwr_fco.regularizers.conjugates import conjugate
from flwr_fco.wire.questions import LINKS

Matrix = NDArray[np.float64]
Parts = tuple[float, float, float]

_CONVEX = LINKS.index("convex")
#: Coordinates that psi may leave alone, each of which takes one more gradient.
MOST_FREE = 64
#: Residual of a mixture that is to be 0, relative to what it balances, and rounding error of its parts.
_UNBALANCED, _ROUNDING = 1e-9, 1e-14
#: Factor that keeps a scaled dual vector within the domain of psi* despite rounding.
_INWARDS = 1.0 - 1e-15


def why_none(told: Sequence[Mapping[str, float]], psi: BoundRegularizer, w: Vector) -> str:
    """Return the reason why there is no duality gap; an empty string if there is one.

    Parameters
    ----------
    told : sequence of mapping of str to float
        What each client says of its loss: ``link``, ``outputs``, ``intercept``, ``l2``, ``factor``.
    psi : BoundRegularizer
        The regularizer, bound to the clients' layout.
    w : ndarray of float64, shape (d,)
        The point.
    """
    facts = told[0]
    for name in ("link", "outputs", "intercept", "l2", "factor"):
        if any(own[name] != facts[name] for own in told):
            told_of = "kind" if name == "link" or facts["link"] >= _CONVEX else name
            return f"the clients' losses differ in their {told_of}"
    if not 0.0 < facts["link"] < len(LINKS) or facts["link"] != int(facts["link"]) or not facts["factor"] > 0.0:
        return "the conjugate of the clients' loss is not known"
    if not 1.0 <= facts["outputs"] <= w.size or facts["l2"] < 0.0:
        return "what the clients say of their loss is not possible"
    if not psi.convex:
        return f"{psi.regularizer!r} is not convex"
    acts = psi.layout.regularized_mask()
    coefficients = acts[: w.size - int(facts["outputs"])] if facts["intercept"] else acts
    if facts["intercept"] and acts[w.size - int(facts["outputs"]) :].any() and facts["l2"] > 0.0:
        return "psi acts on the intercept, which the l2 term leaves alone"
    if facts["l2"] > 0.0:
        return ""
    free = psi.free_coordinates()
    if free[: coefficients.size].any():
        if free.all():
            return "psi does not act in some directions" if coefficients.all() else "psi leaves coefficients alone"
        if free.sum() > MOST_FREE:
            return f"psi leaves {free.sum()} coordinates alone, more than {MOST_FREE}"
    terms = psi.separable_terms(w.shape)
    if terms is not None:
        unbounded = ~np.isfinite(terms.lower) | ~np.isfinite(terms.upper)
        idle = (np.asarray(terms.threshold) == 0.0) & (np.asarray(terms.shrinkage) == 0.0) & unbounded & ~free
        return "psi does not act in some directions" if bool(idle.any()) else ""
    try:
        for _, shape, regularizer in psi.blocks:
            if not is_norm(regularizer, shape):
                conjugate(regularizer, np.zeros(shape))
    except ConfigurationError:
        return f"the conjugate of {psi.regularizer!r} is not known"
    return "" if psi.blocks else f"the conjugate of {psi.regularizer!r} is not known"


def mixed_coordinates(psi: BoundRegularizer, intercepts: int) -> NDArray[np.int64]:
    """Return the coordinates that psi leaves alone, if a coefficient is among them and a gap can be had; else none.

    Parameters
    ----------
    psi : BoundRegularizer
        The regularizer.
    intercepts : int
        Number of intercepts, which come last.
    """
    free = psi.free_coordinates()
    possible = free[: free.size - intercepts].any() and not free.all() and free.sum() <= MOST_FREE
    return np.flatnonzero(free if possible else np.zeros_like(free))


def is_norm(regularizer: Regularizer, shape: tuple[int, ...]) -> bool:
    """Whether psi is strength times a norm: psi* is 0 up to the strength in the dual norm, and infinite beyond."""
    if not getattr(regularizer, "strength", 0.0) > 0.0 or getattr(regularizer, "bound", None) is not None:
        return False
    if type(regularizer).strength_max is Regularizer.strength_max:
        return False
    terms = regularizer.separable_terms(shape)
    if terms is None:
        return True
    curved = bool(np.any(np.asarray(terms.shrinkage) > 0.0))
    return not curved and not np.isfinite(np.concatenate([np.ravel(terms.lower), np.ravel(terms.upper)])).any()


def only_norms(psi: BoundRegularizer, l2: float) -> bool:
    """Whether psi* takes only the values 0 and infinity, so that any scaling within the limit is feasible."""
    return l2 == 0.0 and bool(psi.blocks) and all(is_norm(regularizer, shape) for _, shape, regularizer in psi.blocks)


def free_intercept(facts: Mapping[str, float], psi: BoundRegularizer, w: Vector) -> bool:
    """Whether there is an intercept on which psi does not act."""
    return bool(facts["intercept"]) and not psi.layout.regularized_mask()[w.size - int(facts["outputs"]) :].any()


def largest_scaling(psi: BoundRegularizer, dual: Vector, l2: float) -> float:
    """Return the largest factor for which psi* of the scaled dual vector is finite."""
    if l2 > 0.0:
        return math.inf
    terms = psi.separable_terms(dual.shape)
    if terms is not None:
        a, b, lower, upper = (np.broadcast_to(np.asarray(term, dtype=np.float64), dual.shape) for term in terms)
        bound = (b == 0.0) & np.where(dual > 0.0, np.isinf(upper), np.isinf(lower)) & (dual != 0.0)
        return float((a[bound] / np.abs(dual[bound])).min(initial=math.inf))
    limits = [math.inf]
    for block, shape, regularizer in psi.blocks:
        if is_norm(regularizer, shape):
            largest = regularizer.strength_max(dual[block].reshape(shape))
            limits.append(getattr(regularizer, "strength", 0.0) / largest if largest > 0.0 else math.inf)
    return min(limits)


def convex_bound(
    psi: BoundRegularizer, slopes: Vector, values: tuple[float, float], l2: float, outputs: int, rows: Matrix | None
) -> tuple[float, Vector]:
    """Return a lower bound of the optimum of a convex loss, and the dual point that it is the value of.

    Parameters
    ----------
    psi : BoundRegularizer
        The regularizer.
    slopes : ndarray of float64, shape (d,)
        The gradient u of the pooled loss without its l2 term.
    values : tuple of float
        The conjugate at u, and at 0 at most.
    l2 : float
        Strength of the l2 term.
    outputs : int
        Number of intercepts; 0 without one.
    rows : ndarray of float64, shape (k, d + 1), optional
        Further dual points with their conjugates (:func:`flwr_fco.objectives.duality.references`), if psi leaves the
        intercepts alone: the mixture with them is 0 there.
    """
    count, (own, at_zero), total = slopes.size - outputs, values, 1.0
    if rows is not None:
        share = balance(rows[:, count:-1], slopes[count:])
        if share is None:
            return -math.inf, np.zeros(slopes.size)
        slopes, own = slopes + share @ rows[:, :-1], own + float(share @ rows[:, -1])
        total += float(share.sum())
        slopes[count:] = 0.0
    return scaled_bound(psi, slopes, (own, 0.0, at_zero), l2, count, total=total)


def best_scaling(
    psi: BoundRegularizer, slopes: Vector, linear: float, quadratic: float, l2: float, *, squares: bool, most: float
) -> float:
    """Return the scaling of a dual point with the largest bound, or one near it.

    Of squares the conjugates are a parabola in it: its vertex, or the end of the feasible interval.
    """
    limit = largest_scaling(psi, -slopes, l2)
    if not (squares and only_norms(psi, l2)):
        return min(most, limit)
    vertex = -linear / (2.0 * quadratic) if quadratic > 0.0 else 1.0
    return min(max(vertex, -limit), limit)


def scaled_bound(
    psi: BoundRegularizer, slopes: Vector, own: Parts, l2: float, count: int, total: float = 1.0, squares: bool = False
) -> tuple[float, Vector]:
    """Return the lower bound at the best scaling of a dual point that may be scaled up to 1/total, and that point.

    Its own conjugates are what they are linearly in the scaling, quadratically, and at 0 at most.
    """
    linear, quadratic, at_zero = own
    scaling = best_scaling(psi, slopes, linear, quadratic, l2, squares=squares, most=1.0 / total)
    value = scaling * linear + scaling**2 * quadratic + (1.0 - scaling * total) * at_zero
    return -value - conjugate_at(psi, -scaling * slopes, l2, count), scaling * slopes


def balance(rows: NDArray[np.float64], slopes: Vector) -> Vector | None:
    """Return weights >= 0 of the rows with which they sum to minus the slopes; None if there are none."""
    size = float(np.linalg.norm(slopes))
    if size == 0.0:
        return np.zeros(len(rows))
    from scipy.optimize import nnls

    found, residual = nnls(rows.T, -slopes / size)
    most = _UNBALANCED + _ROUNDING * float(np.abs(rows).max()) / size
    return np.asarray(size * found) if residual <= most else None


def conjugate_at(psi: BoundRegularizer, u: Vector, l2: float, count: int) -> float:
    """Return psi*(u), with l2/2 ||.||^2 on the first `count` coordinates; u is scaled so that this is finite."""
    if l2 > 0.0:
        # For any psi, the maximiser in the conjugate is a proximal point.
        best = psi.prox(u / l2, 1.0 / l2)
        best[count:] = 0.0
        return float(u @ best) - psi.value(best) - 0.5 * l2 * float(best @ best)
    # For a norm it is 0, but at the end of the interval rounding may give infinity.
    others = [(block, shape, part) for block, shape, part in psi.blocks if not is_norm(part, shape)]
    return sum(conjugate(part, u[block].reshape(shape) * _INWARDS) for block, shape, part in others)


#: Radius of the simplex, relative to where a quadratic loss of this curvature would be twice the one at its centre, and
#: what is left of it at each further try: of a small one the corners' gradients differ as the Hessian says.
_REACH, _SMALLER = 0.25, 0.25
#: Ratio of eigenvalues below which columns are the same up to rounding.
_SINGULAR = 1e-11
#: Smallest weight of a point among those that surround 0; rounding of what they balance, relative to it and to them.
_LEAST, _SAME, _BESIDE = 1e-6, 1e-9, 1e-12


def corners(values: Vector, slopes: Vector, bend: Matrix, room: float, tries: int = 0) -> tuple[Matrix, float]:
    """Return points about the optimum in the free coefficients, from a point and its derivatives.

    Parameters
    ----------
    values, slopes : ndarray of float64, shape (k,)
        The free coefficients, and the gradient in them.
    bend : ndarray of float64, shape (k, k)
        The Hessian in them.
    room : float
        By how much the loss is above its smallest value, at most.
    tries : int, default 0
        How often corners have not surrounded 0.

    Returns
    -------
    ndarray of float64, shape (k + 1, k)
        The free coefficients of each point.
    float
        How far in the metric of the Hessian their centre may be from the optimum that they are to surround.

    Examples
    --------
    >>> corners(np.array([3.0]), np.array([4.0]), np.array([[4.0]]), 8.0)[0].round(6).tolist()
    [[1.5], [2.5]]
    """
    own = np.maximum(np.diag(bend), 0.0)
    scales = np.where(own > 0.0, np.sqrt(own), 1.0)
    spectrum, axes = np.linalg.eigh(0.5 * (bend + bend.T) / np.outer(scales, scales))
    kept = spectrum > max(_SINGULAR * float(spectrum[-1]), 0.0)
    # The inverse root of the Hessian: steps along its columns change the loss alike.
    root = axes[:, kept] / np.sqrt(spectrum[kept]) / scales[:, None]
    centre, rank = values - root @ (root.T @ slopes), int(kept.sum())
    reach = _REACH * _SMALLER**tries * math.sqrt(2.0 * max(room, 0.0))
    points = np.repeat(centre[None, :], values.size + 1, axis=0)
    if rank:
        directions = np.linalg.svd(np.eye(rank + 1) - 1.0 / (rank + 1))[2][:rank].T * math.sqrt((rank + 1) / rank)
        points[: rank + 1] += reach * directions @ root.T
    return points, reach / max(1, rank)


def surround(rows: Matrix) -> bool:
    """Whether 0 is inside of the convex hull of some slopes, within the space that they span.

    Examples
    --------
    >>> surround(np.array([[1.0], [-2.0]])), surround(np.array([[1.0], [2.0]]))
    (True, False)
    """
    from scipy.optimize import nnls

    scaled = rows / _sizes(rows)
    rank = int(np.linalg.matrix_rank(scaled, tol=_SAME)) if scaled.size else 0
    shares, residual = nnls(np.vstack([scaled.T, np.ones(len(rows))]), np.append(np.zeros(rows.shape[1]), 1.0))
    return bool(rank and residual <= _SAME and np.count_nonzero(shares > _LEAST) > rank)


def _sizes(rows: Matrix) -> Vector:
    sizes = np.abs(rows).max(axis=0, initial=0.0)
    return np.asarray(np.where(sizes > 0.0, sizes, 1.0))


def _shares(rows: Matrix, slopes: Vector) -> Vector | None:
    """Return weights >= 0 of the rows with which they sum to minus the slopes; None if there are none."""
    sizes = _sizes(rows)
    scaled, wanted = rows / sizes, slopes / sizes
    _, spectrum, axes = np.linalg.svd(scaled, full_matrices=False)
    axes = axes[spectrum > _SAME]
    # Columns that depend on each other have slopes that do, but for rounding.
    within = axes @ wanted
    beside = float(np.linalg.norm(wanted - axes.T @ within))
    most = _SAME * float(np.linalg.norm(wanted)) + _BESIDE
    return None if beside > most else balance(scaled @ axes.T, within)


def as_row(gradient: Vector, w: Vector, loss: float) -> Vector:
    """Return a dual point: the gradient of a pooled loss at w, its conjugate and the loss, shape (d + 2,)."""
    return np.concatenate([gradient, [float(gradient @ w) - loss, loss]])


def mixed_bound(
    psi: BoundRegularizer, own: Vector, rows: Matrix, on: NDArray[np.int64], at_zero: float, squares: bool
) -> tuple[float, Vector]:
    """Return a lower bound of the optimum, and the gradient A'u of the dual point that it is the value of.

    Parameters
    ----------
    psi : BoundRegularizer
        The regularizer, which leaves the coordinates `on` alone.
    own : ndarray of float64, shape (d + 2,)
        :func:`as_row` of the point.
    rows : ndarray of float64, shape (k, d + 2)
        Those of the points that are mixed with it.
    on : ndarray of int64
        The coordinates that psi leaves alone.
    at_zero : float
        The conjugate at 0 at most: minus the smallest value of the loss.
    squares : bool
        Whether the loss is a mean of squares, whose conjugate grows in a known way.

    Returns
    -------
    float
        Minus infinity without such a mixture.
    ndarray of float64, shape (d,)
        0 then.
    """
    slopes, conjugate, loss = own[:-2].copy(), float(own[-2]), float(own[-1])
    shares = _shares(rows[:, on], slopes[on])
    if shares is None:
        return -math.inf, np.zeros(slopes.size)
    slopes += shares @ rows[:, :-2]
    slopes[on] = 0.0
    total, conjugate = 1.0 + float(shares.sum()), conjugate + float(shares @ rows[:, -2])
    if not squares:
        return scaled_bound(psi, slopes, (conjugate, 0.0, at_zero), 0.0, slopes.size, total=total)
    # A parabola in the scaling: f*(s u) = s mean u y + s^2 mean u^2 / (2 factor), the second one the loss.
    losses = loss, float(shares @ rows[:, -1])
    linear, quadratic = conjugate - losses[0] - losses[1], total * (losses[0] + losses[1])
    return scaled_bound(psi, slopes, (linear, quadratic, 0.0), 0.0, slopes.size, squares=True)

"""What a dual point needs to be feasible for psi, and psi's conjugate there: shared by all duality gaps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from flwr_fco.core.layout import Vector
from flwr_fco.errors import ConfigurationError
from flwr_fco.messages.protocol import LINKS
from flwr_fco.regularizers import BoundRegularizer, Regularizer

Matrix = NDArray[np.float64]
Parts = tuple[float, float, float]

_CONVEX = LINKS.index("convex")
#: Residual of a mixture that is to be 0, relative to what it balances, and rounding error of its parts.
_UNBALANCED, _ROUNDING = 1e-9, 1e-14


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
        return "psi leaves coefficients alone"
    terms = psi.terms()
    if terms is not None:
        unbounded = ~np.isfinite(terms.lower) | ~np.isfinite(terms.upper)
        idle = (np.asarray(terms.threshold) == 0.0) & (np.asarray(terms.shrinkage) == 0.0) & unbounded & ~free
        return "psi does not act in some directions" if bool(idle.any()) else ""
    try:
        psi.conjugate(np.zeros(w.size))
    except ConfigurationError:
        return f"the conjugate of {psi.regularizer!r} is not known"
    return ""


def is_norm(regularizer: Regularizer) -> bool:
    """Whether psi is strength times a norm: psi* is 0 up to the strength in the dual norm, and infinite beyond."""
    if not getattr(regularizer, "strength", 0.0) > 0.0 or getattr(regularizer, "bound", None) is not None:
        return False
    if type(regularizer).strength_max is Regularizer.strength_max:
        return False
    terms = regularizer.terms()
    if terms is None:
        return True
    curved = bool(np.any(np.asarray(terms.shrinkage) > 0.0))
    return not curved and not np.isfinite(np.concatenate([np.ravel(terms.lower), np.ravel(terms.upper)])).any()


def only_norms(psi: BoundRegularizer, l2: float) -> bool:
    """Whether psi* takes only the values 0 and infinity, so that any scaling within the limit is feasible."""
    return l2 == 0.0 and bool(psi.parts) and all(is_norm(regularizer) for *_, regularizer in psi.parts)


def free_intercept(facts: Mapping[str, float], psi: BoundRegularizer, w: Vector) -> bool:
    """Whether there is an intercept on which psi does not act."""
    return bool(facts["intercept"]) and not psi.layout.regularized_mask()[w.size - int(facts["outputs"]) :].any()


def largest_scaling(psi: BoundRegularizer, dual: Vector, l2: float) -> float:
    """Return the largest factor for which psi* of the scaled dual vector is finite."""
    if l2 > 0.0:
        return math.inf
    return psi.largest_scaling(dual)


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
    return psi.conjugate(u)

"""Dual points where psi leaves coefficients alone, such as a confounder's: mixtures that are 0 in their columns.

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
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flwr_fco.certificates.dual import balance, conjugate_at, largest_scaling, only_norms
from flwr_fco.core.layout import Vector
from flwr_fco.regularizers import BoundRegularizer

Matrix = NDArray[np.float64]

#: Radius of the simplex, relative to where a quadratic loss of this curvature would be twice the one at its centre, and
#: what is left of it at each further try: of a small one the corners' gradients differ as the Hessian says.
_REACH, _SMALLER = 0.25, 0.25
#: Ratio of eigenvalues below which columns are the same up to rounding.
_SINGULAR = 1e-11
#: Smallest weight of a point among those that surround 0; rounding of what they balance, relative to it and to them.
_LEAST, _SAME, _ROUNDING = 1e-6, 1e-9, 1e-12


class Corners(NamedTuple):
    """Where to ask for further gradients.

    Parameters
    ----------
    values : ndarray of float64, shape (k + 1, k)
        The free coefficients of each point.
    near : float
        How far in the metric of the Hessian their centre may be from the optimum that they are to surround.
    """

    values: Matrix
    near: float


def corners(values: Vector, slopes: Vector, bend: Matrix, room: float, tries: int = 0) -> Corners:
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

    Examples
    --------
    >>> corners(np.array([3.0]), np.array([4.0]), np.array([[4.0]]), 8.0).values.round(6).tolist()
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
    return Corners(points, reach / max(1, rank))


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
    if beside > _SAME * float(np.linalg.norm(wanted)) + _ROUNDING:
        return None
    return balance(scaled @ axes.T, within)


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
    limit = largest_scaling(psi, -slopes, 0.0)
    if squares:
        # A parabola in the scaling: f*(s u) = s mean u y + s^2 mean u^2 / (2 factor), the second one the loss.
        quadratic = total * (loss + float(shares @ rows[:, -1]))
        linear = conjugate - loss - float(shares @ rows[:, -1])
        scaling = min(1.0, limit)
        if only_norms(psi, 0.0):
            scaling = min(max(-linear / (2.0 * quadratic) if quadratic > 0.0 else 1.0, -limit), limit)
        value = scaling * linear + scaling**2 * quadratic
    else:
        scaling = min(1.0 / total, limit)
        value = scaling * conjugate + (1.0 - scaling * total) * at_zero
    return -value - conjugate_at(psi, -scaling * slopes, 0.0, slopes.size), scaling * slopes

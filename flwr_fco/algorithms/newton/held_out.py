"""What losses on left-out rows say of a path's strengths: means, standard errors, and the strength to take."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from flwr_fco.core.layout import Vector

Matrix = NDArray[np.float64]


def errors_of(losses: Matrix, weights: Vector) -> tuple[Vector, Vector, Vector]:
    """Return each strength's mean loss, its standard error, and that of its difference to the smallest mean loss.

    With weights p_c that sum to 1 and losses l_c: l = sum_c p_c l_c, and sqrt(C / (C - 1) sum_c p_c^2 (l_c - l)^2), the
    usual standard error for equal weights. In differences of the same data the levels of the sites cancel.

    Parameters
    ----------
    losses : ndarray of float64, shape (C, L)
        Of each part of the data, at each strength.
    weights : ndarray of float64, shape (C,)
        Of each part.

    Examples
    --------
    >>> errors_of(np.array([[3.0, 2.0], [9.0, 8.5]]), np.array([0.5, 0.5]))
    (array([6.  , 5.25]), array([3.  , 3.25]), array([0.25, 0.  ]))
    """
    shares = weights / weights.sum()
    mean, parts = shares @ losses, shares.size
    apart = losses - losses[:, [int(np.argmin(mean))]]
    scale = math.sqrt(parts / (parts - 1)) if parts > 1 else 0.0
    level, difference = (scale * np.sqrt(shares**2 @ (own - shares @ own) ** 2) for own in (losses, apart))
    return mean, level, difference


def chosen(held_out: Vector, difference_error: Vector, rule: str) -> int:
    """Return the number of the strength that a rule chooses; ties go to the larger one.

    Parameters
    ----------
    held_out, difference_error : ndarray of float64, shape (L,)
        Mean losses, and the standard errors of their differences to the smallest one.
    rule : {"best", "one-standard-error"}
        The smallest loss; or the largest strength whose loss is above it by at most one standard error.

    Examples
    --------
    >>> [chosen(np.array([5.3, 5.2, 5.25]), np.array([0.2, 0.0, 0.1]), rule) for rule in ("best", "one-standard-error")]
    [1, 0]
    """
    best = int(np.argmin(held_out))
    if rule == "best":
        return best
    return int(np.argmax(held_out - held_out[best] <= difference_error))

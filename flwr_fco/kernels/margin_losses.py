"""Losses of linear models as functions of their margins: values, residuals and curvature, without the features.

A line search along a direction, or a Hessian at a point, needs the features for nothing but the margins of the point
and of the direction: these kernels do the rest in O(n k).
"""

import math

import numpy as np
from numba import njit

__all__ = [
    "logistic_curvature",
    "logistic_residuals",
    "logistic_value",
    "multinomial_curvature",
    "multinomial_residuals",
    "multinomial_value",
]


@njit(cache=True)
def multinomial_value(margins, labels):  # type: ignore[no-untyped-def]
    """Return mean_i [ log sum_c exp(m_ic) - m_{i, y_i} ].

    Parameters
    ----------
    margins : ndarray of float64, shape (n, k)
    labels : ndarray of int64, shape (n,)

    Returns
    -------
    float
    """
    n, k = margins.shape
    total = 0.0
    for i in range(n):
        top = -np.inf
        for c in range(k):
            top = max(top, margins[i, c])
        mass = 0.0
        for c in range(k):
            mass += math.exp(margins[i, c] - top)
        total += math.log(mass) + (top - margins[i, labels[i]])
    return total / n


@njit(cache=True)
def multinomial_residuals(margins, labels, residuals, probabilities):  # type: ignore[no-untyped-def]
    """Write (softmax(m_i) - e_{y_i}) / n and softmax(m_i); return the value.

    Parameters
    ----------
    margins : ndarray of float64, shape (n, k)
    labels : ndarray of int64, shape (n,)
    residuals, probabilities : ndarray of float64, shape (n, k)
        Where to write.

    Returns
    -------
    float
        As :func:`multinomial_value`.
    """
    n, k = margins.shape
    total = 0.0
    for i in range(n):
        top = -np.inf
        for c in range(k):
            top = max(top, margins[i, c])
        mass = 0.0
        for c in range(k):
            power = math.exp(margins[i, c] - top)
            probabilities[i, c] = power
            mass += power
        for c in range(k):
            probabilities[i, c] /= mass
            residuals[i, c] = probabilities[i, c] / n
        residuals[i, labels[i]] -= 1.0 / n
        total += math.log(mass) + (top - margins[i, labels[i]])
    return total / n


@njit(cache=True)
def multinomial_curvature(probabilities, direction):  # type: ignore[no-untyped-def]
    """Replace each row d of `direction` by (diag(p) - pp') d / n.

    Parameters
    ----------
    probabilities : ndarray of float64 or float32, shape (n, k)
    direction : ndarray of the same type and shape
        Margins of the direction; changed in place.
    """
    n, k = direction.shape
    for i in range(n):
        mean = 0.0
        for c in range(k):
            mean += probabilities[i, c] * direction[i, c]
        for c in range(k):
            direction[i, c] = probabilities[i, c] * (direction[i, c] - mean) / n


@njit(cache=True)
def logistic_value(margins, signs):  # type: ignore[no-untyped-def]
    """Return mean_i log(1 + exp(-s_i m_i)).

    Parameters
    ----------
    margins : ndarray of float64, shape (n, 1)
    signs : ndarray of float64, shape (n,)
        -1 or +1.

    Returns
    -------
    float
    """
    n = margins.shape[0]
    total = 0.0
    for i in range(n):
        margin = signs[i] * margins[i, 0]
        total += math.log1p(math.exp(-abs(margin))) + max(0.0, -margin)
    return total / n


@njit(cache=True)
def logistic_residuals(margins, signs, residuals, probabilities):  # type: ignore[no-untyped-def]
    """Write -s_i / (1 + exp(s_i m_i)) / n and the probability of label +1; return the value.

    Parameters
    ----------
    margins : ndarray of float64, shape (n, 1)
    signs : ndarray of float64, shape (n,)
    residuals, probabilities : ndarray of float64, shape (n, 1)
        Where to write.

    Returns
    -------
    float
        As :func:`logistic_value`.
    """
    n = margins.shape[0]
    total = 0.0
    for i in range(n):
        margin = signs[i] * margins[i, 0]
        # exp of a negative number only: it underflows to 0, exp of a large positive one would overflow.
        small = math.exp(-abs(margin))
        wrong = (small if margin > 0.0 else 1.0) / (1.0 + small)
        residuals[i, 0] = -signs[i] * wrong / n
        probabilities[i, 0] = 1.0 - wrong if signs[i] > 0.0 else wrong
        total += math.log1p(small) + max(0.0, -margin)
    return total / n


@njit(cache=True)
def logistic_curvature(probabilities, direction):  # type: ignore[no-untyped-def]
    """Replace each entry d of `direction` by p (1 - p) d / n.

    Parameters
    ----------
    probabilities : ndarray of float64 or float32, shape (n, 1)
    direction : ndarray of the same type and shape
        Margins of the direction; changed in place.
    """
    n = direction.shape[0]
    for i in range(n):
        p = probabilities[i, 0]
        direction[i, 0] = p * (1.0 - p) * direction[i, 0] / n

"""A client's share of a duality gap: sums over its examples at a point, for losses of linear predictions.

With scores m_i = x_i' W + b, losses f_i and slopes u_i = f_i'(m_i), any slopes u_i in the domain of the conjugates form
a dual point; its value is -mean f_i*(u_i) - psi*(-X'u), pooled over the clients by their weights. If psi does not act
on the intercept, psi* is infinite unless the slopes sum to 0, so they are corrected first (as the best intercept
would):

=========  ====================================  ====================================  =================================
link       slopes                                correction, from the means of all     conjugate
=========  ====================================  ====================================  =================================
identity   factor (m - y)                        minus ``centre``                      u y + u^2 / (2 factor)
logistic,  q - e_y, q the predicted chances      q <- (1 - mix) q + mix common         sum q log q of the moved q
softmax
=========  ====================================  ====================================  =================================

Rows with weights a_i of mean 1 have slopes a_i u_i and the conjugates a_i f_i*(u_i): all means are by the weights.

Of any other convex loss G (:class:`~flwr_fco.objectives.DualTerms`) the gradient u at w is a dual point with the
conjugate <u, w> - G(w), and 0 is one with the conjugate -inf G. The correction for a free intercept is a mixture with
further gradients, the :func:`references`: those at 0 with an intercept so large that they point to its other side.

The server's questions come in stages, because each stage needs the previous stage's totals over all clients: ``FACTS``,
``BALANCE``, ``SLOPES``, ``ENTROPY``. The server's part is in :mod:`flwr_fco.certificates`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from flwr_fco.core.layout import Layout, Vector
from flwr_fco.errors import ConfigurationError
from flwr_fco.messages.protocol import BALANCE, ENTROPY, FACTS, LINKS, SLOPES
from flwr_fco.objectives.base import DualTerms, LinearData, Objective, num_intercepts
from flwr_fco.objectives.linear import Linear

#: Numbers and vectors of a stage.
Terms = tuple[dict[str, float], dict[str, NDArray[np.float64]]]
#: Facts that a loss has of itself.
_OF_LOSS = ("link", "outputs", "intercept", "l2", "factor")
#: Intercepts that are tried until one is large enough.
_LENGTHS = 4.0 ** np.arange(25)


def duality_terms(objective: Objective, w: Vector, numbers: Mapping[str, float]) -> Terms:
    """Return the numbers and vectors of a stage.

    Parameters
    ----------
    w : ndarray of float64, shape (layout.size,)
        The point.
    numbers : mapping of str to float
        ``stage``, and the corrections: ``centre``; or ``mix`` and ``common-0``, ``common-1``, ... (-1: no client has
        this class); ``scaling``.

    Returns
    -------
    dict of str to float
        FACTS: ``loss``, ``link``, ``outputs``, ``intercept``, ``l2``, ``factor`` (of another convex loss a digest of
        its kind), ``slope`` (the mean slope). SLOPES: ``linear``, ``quadratic``: the mean conjugate at slopes scaled by
        a is a linear + a^2 quadratic (identity), at most a linear + (1 - a) quadratic (other convex losses).
        ENTROPY: ``entropy``, the mean conjugate at slopes scaled by ``scaling``.
    dict of str to ndarray
        BALANCE: ``predicted``, ``present`` of shape (classes,): mean probabilities and shares of the labels; of another
        convex loss ``references``, see there. SLOPES: ``gradient`` of shape (layout.size,): X'u / n, with the mean of
        the slopes as the intercept's entry.

    Raises
    ------
    ConfigurationError
        If the stage is unknown, or is not FACTS and the loss has none of these links.

    Examples
    --------
    >>> from flwr_fco.objectives import LeastSquares
    >>> objective = LeastSquares(np.array([[1.0], [3.0]]), np.array([1.0, 2.0]), scale=0.5)
    >>> duality_terms(objective, np.zeros(2), {"stage": SLOPES})[1]["gradient"]
    array([-3.5, -1.5])
    """
    data, stage = objective.duality(), int(numbers["stage"])
    if stage == FACTS:
        return _facts(objective, data, w), {}
    if isinstance(data, DualTerms) and stage in (BALANCE, SLOPES):
        return _of_convex(data, objective, w) if stage == SLOPES else ({}, {"references": references(objective)})
    if not isinstance(data, LinearData) or stage not in (BALANCE, SLOPES, ENTROPY):
        raise ConfigurationError(f"{type(objective).__name__} has no duality gap to take part in (stage {stage})")
    if data.link == "identity":
        return _of_scalars(data, objective, w, numbers.get("centre", 0.0))
    q, truth = _chances(data, objective, w)
    if "common-0" in numbers:
        common = np.array([numbers[f"common-{i}"] for i in range(truth.shape[1])])
        if (common < 0.0).any():
            # A class that does not occur has probability 0 in every dual feasible point.
            q[:, common < 0.0] = 0.0
            q /= q.sum(axis=1, keepdims=True)
        mix = numbers["mix"]
        if mix > 0.0:
            q = (1.0 - mix) * q + mix * np.maximum(common, 0.0)
    if stage == BALANCE:
        return {}, {"predicted": _mean(data, q), "present": _mean(data, truth)}
    if stage == ENTROPY:
        q = truth + numbers["scaling"] * (q - truth)
        # Rounding may leave negative values.
        np.maximum(q, 0.0, out=q)
        from scipy.special import xlogy

        return {"entropy": float(_mean(data, xlogy(q, q).sum(axis=1)))}, {}
    slopes = q - truth
    # With two classes one column is enough: the other is its negative.
    return _sums(data, objective, slopes[:, 1] if data.link == "logistic" else slopes, 0.0, 0.0)


def references(objective: Objective) -> NDArray[np.float64]:
    """Return gradients of a convex loss at 0 with large intercepts of either sign, or of each of several in turn.

    Some mixture of them with any other gradient is 0 in the intercepts, unless the loss has no minimum in these.

    Returns
    -------
    ndarray of float64, shape (k, layout.size + 1)
        The gradients, each with its conjugate value; 2 for one intercept, k for k of them. 0 if the objective is no
        other convex loss or has no intercept.

    Examples
    --------
    >>> from flwr_fco.objectives import Logistic
    >>> objective = Logistic(np.ones((2, 1)), np.array([0, 1]), offset=np.zeros(2))
    >>> references(objective)[:, 1].round(1)
    array([ 0.2, -0.2])
    """
    size, count = objective.layout.size, num_intercepts(objective.layout)
    rows = np.zeros((num_references(objective.layout), size + 1))
    if not isinstance(objective.duality(), DualTerms):
        return rows
    # One intercept is to be too large, then too small; of several one is to be too large, and the others too small.
    wanted = np.array([[1.0], [-1.0]]) if count == 1 else 2.0 * np.eye(count) - 1.0
    for row, sides in zip(rows, wanted, strict=True):
        point = np.zeros(size)
        for length in _LENGTHS:
            point[size - count :] = length * (sides if count == 1 else sides > 0.0)
            value, gradient = objective.value_and_gradient(point)
            if not (np.isfinite(value) and np.isfinite(gradient).all()):
                break
            row[:] = np.append(gradient, gradient @ point - value)
            if (row[size - count : size] * sides >= 0.0).all():
                break
    return rows


def num_references(layout: Layout) -> int:
    """Return the number of :func:`references` that intercepts need."""
    count = num_intercepts(layout)
    return max(2, count) if count else 0


def _of_convex(terms: DualTerms, objective: Objective, w: Vector) -> Terms:
    value, gradient = objective.value_and_gradient(w)
    count = w.size - num_intercepts(objective.layout)
    ridge = terms.l2 * w[:count]
    conjugate = float(gradient @ w) - value - 0.5 * float(ridge @ w[:count])
    gradient = gradient.copy()
    gradient[:count] -= ridge
    return {"linear": conjugate, "quadratic": -terms.least}, {"gradient": gradient}


def _mean(data: LinearData, each: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean of rows by their weights."""
    return np.asarray(each.mean(axis=0) if data.weights is None else data.weights @ each / len(each))


def _facts(objective: Objective, data: LinearData | DualTerms | None, w: Vector) -> dict[str, float]:
    facts = dict.fromkeys((*_OF_LOSS, "slope"), 0.0)
    facts["loss"] = float(objective.value(w))
    if isinstance(data, DualTerms):
        count = num_intercepts(objective.layout)
        digest = 1 + int.from_bytes(hashlib.sha256(data.kind.encode()).digest()[:6], "big")
        known: tuple[float, ...] = LINKS.index(data.link), max(1, count), count > 0, data.l2, digest
        facts.update(zip(_OF_LOSS, map(float, known), strict=True))
    elif data is not None:
        known = LINKS.index(data.link), data.num_outputs, data.intercept, data.l2, data.factor
        facts.update(zip(_OF_LOSS, map(float, known), strict=True))
        if data.link == "identity":
            facts["slope"] = float(data.factor * _mean(data, _scores(objective, w) - data.targets))
    return facts


def _of_scalars(data: LinearData, objective: Objective, w: Vector, centre: float) -> Terms:
    scores = _scores(objective, w)
    slopes = data.factor * (scores - data.targets) - centre
    own = slopes if data.weights is None else data.weights * slopes
    linear, quadratic = own @ data.targets, own @ slopes / (2.0 * data.factor)
    return _sums(data, objective, slopes, float(linear) / slopes.size, float(quadratic) / slopes.size)


def _sums(
    data: LinearData, objective: Objective, slopes: NDArray[np.float64], linear: float, quadratic: float
) -> Terms:
    gradient = np.zeros(objective.layout.size)
    if data.weights is not None:
        slopes = (slopes.T * data.weights).T
    assert isinstance(objective, Linear)
    objective._add_product(objective.features, slopes / slopes.shape[0], gradient)
    return {"linear": linear, "quadratic": quadratic}, {"gradient": gradient}


def _scores(objective: Objective, w: Vector) -> NDArray[np.float64]:
    """Return the predictions without offsets."""
    assert isinstance(objective, Linear)
    return objective._predicted(w)


def _chances(data: LinearData, objective: Objective, w: Vector) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the predicted class probabilities and the one-hot labels, shape (n, classes)."""
    from scipy.special import expit, softmax

    scores = _scores(objective, w)
    if data.link == "logistic":
        q = np.column_stack([expit(-scores), expit(scores)])
        return q, np.column_stack([data.targets < 0.0, data.targets > 0.0]).astype(np.float64)
    return np.asarray(softmax(scores, axis=1)), np.eye(data.num_outputs)[data.targets]

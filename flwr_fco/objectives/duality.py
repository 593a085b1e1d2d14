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
hinge      -s a, a = 1 below the margin, else 0  none: it has no intercept             -a
=========  ====================================  ====================================  =================================

The server's questions come in stages, because each stage needs the previous stage's totals over all clients: ``FACTS``,
``BALANCE``, ``SLOPES``, ``ENTROPY``. The server's part is in :mod:`flwr_fco.certificates`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from flwr_fco.core.layout import Vector
from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives.base import Objective
from flwr_fco.objectives.design import LinearData
from flwr_fco.objectives.hinge import Hinge
from flwr_fco.wire.questions import BALANCE, ENTROPY, FACTS, LINKS, SLOPES


def duality_terms(
    objective: Objective, w: Vector, numbers: Mapping[str, float]
) -> tuple[dict[str, float], dict[str, NDArray[np.float64]]]:
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
        FACTS: ``loss``, ``link``, ``outputs``, ``intercept``, ``l2``, ``factor``, ``slope`` (the mean slope). SLOPES:
        ``linear``, ``quadratic``: the mean conjugate at slopes scaled by a is a linear + a^2 quadratic (identity,
        hinge). ENTROPY: ``entropy``, the mean conjugate at slopes scaled by ``scaling``.
    dict of str to ndarray
        BALANCE: ``predicted``, ``present`` of shape (classes,): mean probabilities and shares of the labels. SLOPES:
        ``gradient`` of shape (layout.size,): X'u / n, with the mean of the slopes as the intercept's entry.

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
    data, stage = _data_of(objective), int(numbers["stage"])
    if stage == FACTS:
        return _facts(objective, data, w), {}
    if data is None or stage not in (BALANCE, SLOPES, ENTROPY):
        raise ConfigurationError(f"{type(objective).__name__} has no duality gap to take part in (stage {stage})")
    if data.link in ("identity", "hinge"):
        return _of_scalars(data, objective, w, numbers.get("centre", 0.0))
    q, truth = _chances(data, w)
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
        return {}, {"predicted": q.mean(axis=0), "present": truth.mean(axis=0)}
    if stage == ENTROPY:
        q = truth + numbers["scaling"] * (q - truth)
        # Rounding may leave negative values.
        np.maximum(q, 0.0, out=q)
        from scipy.special import xlogy

        return {"entropy": float(xlogy(q, q).sum(axis=1).mean())}, {}
    slopes = q - truth
    # With two classes one column is enough: the other is its negative.
    return _sums(data, objective, slopes[:, 1] if data.link == "logistic" else slopes, 0.0, 0.0)


def _data_of(objective: Objective) -> LinearData | None:
    if type(objective) is Hinge:
        return LinearData(objective.design, "hinge", objective.signs, False, objective.l2)
    return objective.linear_data()


def _facts(objective: Objective, data: LinearData | None, w: Vector) -> dict[str, float]:
    facts = dict.fromkeys(("link", "outputs", "intercept", "l2", "factor", "slope"), 0.0)
    facts["loss"] = float(objective.value(w))
    if data is not None:
        facts["link"], facts["outputs"] = float(LINKS.index(data.link)), float(data.num_outputs)
        facts["intercept"], facts["l2"], facts["factor"] = float(data.intercept), data.l2, data.factor
        if data.link == "identity":
            facts["slope"] = float(data.factor * (data.design.predict(w) - data.targets).mean())
    return facts


def _of_scalars(
    data: LinearData, objective: Objective, w: Vector, centre: float
) -> tuple[dict[str, float], dict[str, NDArray[np.float64]]]:
    scores = data.design.predict(w)
    if data.link == "hinge":
        active = (data.targets * scores < 1.0).astype(np.float64)
        return _sums(data, objective, -data.targets * active, -float(active.mean()), 0.0)
    slopes = data.factor * (scores - data.targets) - centre
    linear, quadratic = slopes @ data.targets, slopes @ slopes / (2.0 * data.factor)
    return _sums(data, objective, slopes, float(linear) / slopes.size, float(quadratic) / slopes.size)


def _sums(
    data: LinearData, objective: Objective, slopes: NDArray[np.float64], linear: float, quadratic: float
) -> tuple[dict[str, float], dict[str, NDArray[np.float64]]]:
    gradient = np.zeros(objective.layout.size)
    data.design.add_rows(slopes / slopes.shape[0], gradient)
    return {"linear": linear, "quadratic": quadratic}, {"gradient": gradient}


def _chances(data: LinearData, w: Vector) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the predicted class probabilities and the one-hot labels, shape (n, classes)."""
    from scipy.special import expit, softmax

    scores = data.design.predict(w, num_outputs=data.num_outputs)
    if data.link == "logistic":
        q = np.column_stack([expit(-scores), expit(scores)])
        return q, np.column_stack([data.targets < 0.0, data.targets > 0.0]).astype(np.float64)
    return np.asarray(softmax(scores, axis=1)), np.eye(data.num_outputs)[data.targets]

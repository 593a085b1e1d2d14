"""What a site answers for a table of intervals: pure functions of its loss, registered by the question's name."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, xlogy

from flwr_fco.algorithms.newton.method import unpacked
from flwr_fco.client_apps.answers import answers_to
from flwr_fco.core.layout import Vector
from flwr_fco.errors import ConfigurationError
from flwr_fco.messages.protocol import Answer, Question
from flwr_fco.objectives import CoxRegression, LeastSquares, Linear, Logistic, Objective, Poisson, SiteIntercept
from flwr_fco.objectives.survival import time_trend
from flwr_fco.tables.estimates import Sums, minimum, of_likelihood, of_squares

#: Rows of squares, and events of other losses, that a site needs for each of its columns.
_ROWS = 10
_EVENTS = 5
#: Clusters of a site below which its own errors would be too small.
_CLUSTERS = 40


@answers_to("derivatives", hessians=2)
def derivatives(question: Question, objective: Objective) -> Answer:
    """Return loss, gradient and Hessian (a packed triangle) at ``primal``, on all of its coordinates.

    With an intercept of the site's own, the loss is at the best one for its rows, and an intercept in ``primal`` moves
    nothing. With ``clustered``, also the sum over the clusters of the outer products of their gradients, over the rows,
    and their number: by default each row is a cluster.
    """
    w = question.vectors["primal"]
    numbers = question.numbers
    used: Any = _with_own_intercept(objective, numbers) if numbers["own"] else objective
    size = w.size
    reported = {"loss": 0.0}
    vectors = dict[str, Any]()
    gradient = np.zeros(size)
    block = np.zeros((size, size))
    meat = np.zeros((size, size))
    if used is not None:
        count = used.layout.size
        reported["loss"], gradient[:count] = used.value_and_gradient(w[:count])
        block[np.triu_indices(count)] = used.hessian_block(w[:count], np.arange(count))
    if numbers["clustered"]:
        reported["clusters"] = 0.0
        if used is not None:
            sums = _summed(used.row_gradients(w[:count]), objective.clusters)
            meat[:count, :count] = sums.T @ sums / used.num_examples
            reported["clusters"] = float(len(sums))
        vectors["meat"] = meat[np.triu_indices(size)]
    return Answer(reported, {"gradient": gradient, "block": block[np.triu_indices(size)], **vectors})


def _with_own_intercept(objective: Any, numbers: Any) -> Any:
    """Return the loss at the site's best intercept; of few rows of classes with the common one, or None."""
    if isinstance(objective, SiteIntercept) or not getattr(objective, "intercept", False):
        return objective
    if isinstance(objective, Logistic) and objective.num_examples < numbers["least"]:
        return objective if numbers["pooled"] else None
    with warnings.catch_warnings():
        # Who asks knows which sites have few rows.
        warnings.simplefilter("ignore", UserWarning)
        return SiteIntercept(objective)


def _summed(rows: NDArray[np.float64], clusters: NDArray[np.int64] | None) -> NDArray[np.float64]:
    """Return the sums of rows with the same cluster; the rows themselves without clusters."""
    if clusters is None:
        return rows
    _, codes = np.unique(clusters, return_inverse=True)
    sums = np.zeros((codes.max() + 1, rows.shape[1]))
    np.add.at(sums, codes, rows)
    return sums


# --- a site's own estimates -------------------------------------------------------------------------------------------


@answers_to("estimates", hessians=1)
def estimates(question: Question, objective: Objective) -> Answer:
    """Return the site's own estimates and their errors, with ``reported`` 1; zeros, with 0, if it has none.

    ``events`` and ``others`` are the rows of both classes (:func:`flwr_fco.tables.answers.events_of`). Of counts
    ``mean`` is their mean, and ``saturated`` that of their log likelihoods by a parameter each, of which the loss is
    what is missing; else 0. The point is not used.
    """
    events, others = events_of(objective)
    found = own_estimates(objective)
    zeros = np.zeros(objective.layout.size)
    estimate, error, degrees = (zeros, zeros, zeros) if found is None else found
    mean, saturated = _counted(objective)
    numbers = {"reported": float(found is not None), "events": float(events), "others": float(others)}
    vectors = {"estimate": estimate, "error": error, "degrees": degrees}
    return Answer({**numbers, "mean": mean, "saturated": saturated}, vectors)


def _counted(objective: Any) -> tuple[float, float]:
    """Return the means of counts and of their log likelihoods at themselves; 0 of other losses."""
    if not isinstance(getattr(objective, "with_intercept", objective), Poisson):
        return 0.0, 0.0
    y = objective.targets
    weights = objective.weights if objective.weights.size else None
    each = xlogy(y, y) - y - gammaln(y + 1.0)
    return float(np.average(y, weights=weights)), float(np.average(each, weights=weights))


def own_estimates(objective: Objective) -> tuple[Vector, Vector, Vector] | None:
    """Return a site's unpenalised minimiser, its standard errors, and their degrees of freedom, of its rows alone.

    Errors of clusters vary as a chi-squared with so many degrees of freedom as there would be equal clusters:
    (sum v)^2 / sum v^2, with v each cluster's part of the variance. Of the others they are taken as known, and 0.

    Parameters
    ----------
    objective : Objective
        The loss on the site's rows.

    Returns
    -------
    tuple of ndarray of float64, shape (d,) each, or None
        None with fewer than 10 rows a coefficient (of losses other than squares, 5 events, or rows without one), if
        columns are linearly dependent, or if classes can be separated without error.
    """
    columns = int(np.prod(objective.layout["coefficients"].shape))
    enough = min(events_of(objective)) >= columns * (_ROWS if _is_squares(objective) else _EVENTS)
    return _minimum(objective) if enough else None


def events_of(objective: Objective) -> tuple[int, int]:
    """Return the rows of both classes; of a loss without classes its `num_events`, for squares its rows, and its rows.

    With an intercept of its own, the rows of a site of one class say nothing, and do not count.

    Parameters
    ----------
    objective : Objective
        The loss. Deaths are events: a loss of times says how many in an attribute ``num_events``.
    """
    rows = objective.num_examples
    labels = getattr(objective, "labels", None)
    if _is_squares(objective):
        return rows, rows
    if labels is None or hasattr(objective, "num_events"):
        return int(getattr(objective, "num_events", 0)), rows
    idle = isinstance(objective, SiteIntercept) and objective.adds_nothing
    ones = int(np.count_nonzero(np.asarray(labels) == 1))
    return (0, 0) if idle else (ones, rows - ones)


def _is_squares(objective: Objective) -> bool:
    return isinstance(objective.with_intercept if isinstance(objective, SiteIntercept) else objective, LeastSquares)


def _minimum(objective: Objective) -> tuple[Vector, Vector, Vector] | None:
    """Return the unpenalised minimiser, its errors and their degrees; None if rounding or the data have none."""
    squares = _is_squares(objective)
    size = objective.layout.size
    intercepts = float(isinstance(objective, SiteIntercept) and not objective.adds_nothing)

    def derivatives(w: Vector) -> Sums:
        value, gradient = objective.value_and_gradient(w)
        hessian = unpacked(objective.hessian_block(w, np.arange(size)))
        return Sums(w, gradient, hessian, value, objective.num_examples, intercepts=intercepts)

    if (ended := minimum(derivatives, np.zeros(size), squares=squares)) is None:
        return None
    (sums, inverse, _), freedom, names = ended, np.zeros(size), [""] * size
    if isinstance(objective, Linear) and (objective.clusters is not None or objective.weighs_rows):
        each = _summed(objective.row_gradients(sums.point), objective.clusters)
        if len(each) < _CLUSTERS:
            return None
        sums = sums._replace(meat=each.T @ each, clusters=float(len(each)))
        parts = np.square(each @ inverse)
        freedom = parts.sum(axis=0) ** 2 / np.maximum((parts**2).sum(axis=0), np.finfo(np.float64).tiny)
    try:
        of_times = isinstance(objective, CoxRegression)
        found = of_squares(sums, names) if squares else of_likelihood(sums, names, of_times=of_times)
    except ConfigurationError:
        # Such as an exact fit.
        return None
    return (found.estimate, found.error, freedom) if found.error.all() else None


@answers_to("trend")
def trend(question: Question, objective: Objective) -> Answer:
    """Return the trend of a Cox model's residuals over time (:func:`flwr_fco.objectives.survival.time_trend`)."""
    if not isinstance(objective, CoxRegression):
        raise ConfigurationError(f"{type(objective).__name__} has no times; a trend is of CoxRegression")
    found, squares = time_trend(objective, question.vectors["primal"])
    return Answer({"squares": squares, "events": float(objective.num_events)}, {"trend": found})

"""What a site answers to the questions of a table: pure functions of its loss, registered by the question's name."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fco.client_apps.answers import answers_to
from flwr_fco.messages.protocol import Answer, Question
from flwr_fco.objectives import Logistic, Objective, SiteIntercept

#: The question about loss, gradient and Hessian, and the names of its numbers: whether sites have intercepts of their
#: own; below how many rows classes have none; whether those sites share one; whether gradients are summed by cluster.
DERIVATIVES = "derivatives"
OWN, LEAST, POOLED, CLUSTERED = "own", "least", "pooled", "clustered"


@answers_to(DERIVATIVES, hessians=2)
def derivatives(question: Question, objective: Objective) -> Answer:
    """Return loss, gradient and Hessian (a packed triangle) at ``primal``, on all of its coordinates.

    With an intercept of the site's own, the loss is at the best one for its rows, and an intercept in ``primal`` moves
    nothing. With ``clustered``, also the sum over the clusters of the outer products of their gradients, over the rows,
    and their number: by default each row is a cluster.
    """
    w, numbers = question.vectors["primal"], question.numbers
    used: Any = _with_own_intercept(objective, numbers) if numbers[OWN] else objective
    size, told, vectors = w.size, {"loss": 0.0}, dict[str, Any]()
    gradient, block, meat = np.zeros(size), np.zeros((size, size)), np.zeros((size, size))
    if used is not None:
        count = used.layout.size
        told["loss"], gradient[:count] = used.value_and_gradient(w[:count])
        block[np.triu_indices(count)] = used.hessian_block(w[:count], np.arange(count))
    if numbers[CLUSTERED]:
        told["clusters"] = 0.0
        if used is not None:
            sums = _summed(used.row_gradients(w[:count]), objective.clusters)
            meat[:count, :count], told["clusters"] = sums.T @ sums / used.num_examples, float(len(sums))
        vectors["meat"] = meat[np.triu_indices(size)]
    return Answer(told, {"gradient": gradient, "block": block[np.triu_indices(size)], **vectors})


def _with_own_intercept(objective: Any, numbers: Any) -> Any:
    """Return the loss at the site's best intercept; of few rows of classes with the common one, or None."""
    if isinstance(objective, SiteIntercept) or not getattr(objective, "intercept", False):
        return objective
    if isinstance(objective, Logistic) and objective.num_examples < numbers[LEAST]:
        return objective if numbers[POOLED] else None
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

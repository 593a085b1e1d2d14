"""How a client deals its rows into folds, and what losses on left-out folds say of a path's strengths."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flwr_fco.algorithms.contract.disclosure import Disclosure
from flwr_fco.core.layout import Vector
from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives.base import Objective

Matrix = NDArray[np.float64]


def folds_of(objective: Objective, folds: int, seed: int) -> list[NDArray[np.int64]]:
    """Return the rows of each fold of a client; of labels each has the same shares, up to a row."""
    if not folds:
        return []
    rows = objective.num_examples
    if objective.folds is not None:
        given = np.asarray(objective.folds)
        if given.shape != (rows,) or not np.isin(given, range(folds)).all():
            raise ConfigurationError(
                f"the folds of a loss of {rows} examples have shape {given.shape}, or one is not below {folds}; "
                "expected the number of a fold, from 0, of each example"
            )
        return [np.flatnonzero(given == fold) for fold in range(folds)]
    rng, labels = np.random.default_rng((seed, rows)), getattr(objective, "labels", None)
    order = rng.permutation(rows)
    if labels is not None:
        order = order[np.argsort(np.asarray(labels)[order], kind="stable")]
    # Of few rows not always the same folds are empty.
    turn = (np.arange(rows) + rng.integers(folds)) % folds
    return [np.sort(order[turn == fold]) for fold in range(folds)]


def check_what_leaves(limits: Disclosure, objective: Objective, folds: Sequence[NDArray[np.int64]]) -> None:
    """Refuse a path that a client's owner does not allow of each fold.

    Sums over all rows less those without a fold are those of the fold; the rows without it hold other folds.

    Parameters
    ----------
    limits : Disclosure
        What the owner allows.
    objective : Objective
        The loss on the client's rows.
    folds : sequence of ndarray of int64
        The rows of each fold.

    Raises
    ------
    ConfigurationError
        If there are sums that are about too few rows.
    """
    if not limits.limits_rows:
        return
    for fold, rows in enumerate(folds, start=1):
        if rows.size:
            limits.check(objective.subset(rows)[0], f"sums over fold {fold}")


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
    return best if rule == "best" else int(np.argmax(held_out - held_out[best] <= difference_error))

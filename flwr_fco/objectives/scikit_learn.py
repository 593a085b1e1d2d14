"""Strengths on scikit-learn's scale: ``alpha`` of its linear models, ``C`` of its logistic regression.

scikit-learn's objectives differ from this package's by a factor, so the same solution has a different strength there:

======================================  =================================  ============================
ours                                    scikit-learn's                     the same solution
======================================  =================================  ============================
scale mean (r_i^2) + strength psi0(w)   1/2 mean (r_i^2) + alpha psi0(w)   alpha = strength / (2 scale)
mean loss_i + strength psi0(w)          C sum loss_i + psi0(w)             C = 1 / (n strength)
======================================  =================================  ============================

where psi0 is the l1 norm or the elastic net's mixture, and means are over all n examples of all clients.
"""

from __future__ import annotations

from flwr_fco.core.validation import AT_LEAST_ONE, NON_NEGATIVE, POSITIVE, checked
from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives.base import Objective
from flwr_fco.objectives.linear import LeastSquares, Logistic, MultinomialLogistic


def sklearn_strength(strength: float, objective: Objective, num_examples: int | None = None) -> float:
    """Return scikit-learn's ``alpha`` (least squares) or ``C`` (logistic regression) for a strength in this package.

    Parameters
    ----------
    strength : float
        Strength of ``L1``, ``ElasticNet`` or ``L2Squared``; > 0 for a ``C``.
    objective : LeastSquares, TraceRegression, Logistic or MultinomialLogistic
        Any client's objective.
    num_examples : int, optional
        Number of examples of all clients; the objective's own by default. ``alpha`` does not depend on it.

    Raises
    ------
    ConfigurationError
        For another objective, or a strength without a counterpart.

    Examples
    --------
    >>> import numpy as np
    >>> sklearn_strength(0.1, LeastSquares(np.eye(2), np.ones(2)))
    0.05
    >>> sklearn_strength(0.1, Logistic(np.eye(2), np.ones(2)), num_examples=50)
    0.2
    """
    if isinstance(objective, LeastSquares):
        return float(checked("strength", strength, float, NON_NEGATIVE) / (2.0 * objective.scale))
    return 1.0 / (_count(objective, num_examples) * float(checked("strength", strength, float, POSITIVE)))


def strength_of_sklearn(value: float, objective: Objective, num_examples: int | None = None) -> float:
    """Return this package's strength for scikit-learn's ``alpha`` (least squares) or ``C`` (logistic regression).

    Parameters
    ----------
    value : float
        ``alpha`` >= 0, or ``C`` > 0.
    objective : LeastSquares, TraceRegression, Logistic or MultinomialLogistic
        Any client's objective.
    num_examples : int, optional
        Number of examples of all clients; the objective's own by default. ``alpha`` does not depend on it.

    Raises
    ------
    ConfigurationError
        For another objective, or a value out of range.

    Examples
    --------
    >>> import numpy as np
    >>> strength_of_sklearn(0.05, LeastSquares(np.eye(2), np.ones(2)))
    0.1
    """
    if isinstance(objective, LeastSquares):
        return float(2.0 * objective.scale * checked("alpha", value, float, NON_NEGATIVE))
    return 1.0 / (_count(objective, num_examples) * float(checked("C", value, float, POSITIVE)))


def _count(objective: Objective, num_examples: int | None) -> int:
    if not isinstance(objective, Logistic | MultinomialLogistic):
        prefix = f"{type(objective).__name__} has no counterpart in scikit-learn that is known here"
        raise ConfigurationError(f"{prefix}; expected LeastSquares, TraceRegression, Logistic or MultinomialLogistic")
    count = objective.num_examples if num_examples is None else num_examples
    return int(checked("num_examples", count, int, AT_LEAST_ONE))

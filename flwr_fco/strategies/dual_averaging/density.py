"""A density instead of a strength: the weight of psi that gives the model of a dual the density of its round."""

from __future__ import annotations

import numpy as np

from flwr_fco.core.layout import Vector
from flwr_fco.errors import ConfigurationError
from flwr_fco.server.algorithm import Problem


def density_now(problem: Problem, density: float, density_rounds: int | None) -> float:
    """Return the density that the model is to have after the round under way.

    Slowly at first: a threshold that is ahead of the gradients sets a network's weights to 0 before it has learnt
    anything, and it never starts.

    Parameters
    ----------
    problem : Problem
    density : float
        The share of entries that are not 0 in the end.
    density_rounds : int or None
        In how many rounds it is reached; None: in half of the rounds of the run.

    Raises
    ------
    ConfigurationError
        If it is not known how many rounds the run has.
    """
    if density_rounds is None and problem.num_rounds is None:
        raise ConfigurationError(
            "density=... without `start`: nobody says how many rounds there are; give density_rounds=..."
        )
    rounds = density_rounds or max(1, (problem.num_rounds or 0) // 2)
    way = min(1.0, max(problem.round, 1) / rounds)
    return float(density ** (way * way))


def elapsed_for_density(problem: Problem, dual: Vector, density: float) -> float:
    """Return the smallest elapsed time at which the model of a dual has at most this density.

    Entry i leaves when elapsed * threshold_i reaches |dual_i|, so it is an order statistic of their ratios.

    Parameters
    ----------
    problem : Problem
        With an l1 norm.
    dual : ndarray of float64, shape (d,)
    density : float
        Share of the entries that psi acts on.
    """
    terms = problem.psi.separable_terms(dual.shape)
    assert terms is not None  # it is an l1 norm
    threshold = np.broadcast_to(terms.threshold, dual.shape)
    acted_on = problem.layout.regularized_mask()
    leave = threshold > 0.0
    stay = int(np.count_nonzero(dual[acted_on & ~leave]))
    ratios = np.abs(dual[leave]) / threshold[leave]
    first_to_leave = ratios.size - 1 - max(0, round(density * int(acted_on.sum())) - stay)
    if first_to_leave < 0:
        return 0.0
    # A little more, so that rounding does not leave an entry that should be 0.
    return float(np.partition(ratios, first_to_leave)[first_to_leave]) * (1.0 + 1e-15)

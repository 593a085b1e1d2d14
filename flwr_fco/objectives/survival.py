"""What a client's own survival times say of a Cox model: its order, its baseline, its trend over time."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flwr_fco.core.layout import Vector
from flwr_fco.kernels import risk_sets
from flwr_fco.objectives.cox import CoxRegression


def concordance(objective: CoxRegression, w: Vector) -> tuple[float, float]:
    """Return how many pairs of rows the model orders as their events are, and how many can be compared.

    A pair can be compared if one has an event while the other of the same stratum is at risk, without an event at the
    same time. It is ordered if the first one has the higher score; equal scores count a half. The ratio is Harrell's
    concordance. Weights of rows do not count.

    Parameters
    ----------
    objective : CoxRegression
        The client's times.
    w : ndarray of float64, shape (d,)
        The coefficients.

    References
    ----------
    Harrell, Califf, Pryor, Lee, Rosati: Evaluating the yield of medical tests (JAMA 1982).

    Examples
    --------
    >>> objective = CoxRegression(np.array([[2.0], [1.0], [3.0]]), [1.0, 2.0, 3.0], [1, 1, 0])
    >>> concordance(objective, np.ones(1))
    (1.0, 3.0)
    """
    ranks = np.unique(objective.margins(w), return_inverse=True)[1].astype(np.int64)
    counts = np.zeros((objective.num_events, 3), dtype=np.int64)
    kernel: Any = risk_sets.ordered_pairs
    kernel(ranks, objective._order, objective._spans, objective._dead, objective._sizes, counts)
    less, equal, total = counts.sum(axis=0).tolist()
    return less + 0.5 * equal, float(total)


class Baseline(NamedTuple):
    """The cumulative baseline hazard of each stratum of a client, of a row whose features are 0.

    Parameters
    ----------
    strata : ndarray of int64, shape (G,)
        Stratum of each time with an event.
    times, hazards : ndarray of float64, shape (G,)
        The times, ascending within a stratum, and the cumulative hazard from then on.
    ends : ndarray of float64, shape (number of strata,)
        When the last row of each stratum ends: nothing is known after it.
    """

    strata: NDArray[np.int64]
    times: Vector
    hazards: Vector
    ends: Vector

    def at(self, stratum: int, times: ArrayLike) -> Vector:
        """Return the cumulative hazards of a stratum at some times; NaN after its end.

        Parameters
        ----------
        stratum : int
            Number of the stratum, from 0.
        times : array-like, shape (T,)
            The times.
        """
        asked, own = np.asarray(times, dtype=np.float64), self.strata == stratum
        steps = np.append(0.0, self.hazards[own])
        found = steps[np.searchsorted(self.times[own], asked, side="right")]
        return np.where(asked <= self.ends[stratum], found, np.nan)


def baseline(objective: CoxRegression, w: Vector) -> Baseline:
    """Return Breslow's baseline: at each time the weight of the events, over that of all at risk times their hazards.

    Parameters
    ----------
    objective : CoxRegression
        The client's times.
    w : ndarray of float64, shape (d,)
        The coefficients.

    References
    ----------
    Breslow: Discussion of Cox's regression models and life-tables (J. R. Stat. Soc. B 1972).

    Examples
    --------
    >>> found = baseline(CoxRegression(np.zeros((3, 1)), [1.0, 2.0, 3.0], [1, 1, 0]), np.zeros(1))
    >>> found.at(0, [0.5, 1.0, 2.5, 4.0]).round(3).tolist()
    [0.0, 0.333, 0.833, nan]
    """
    scores, groups = objective.margins(w), objective._at.size
    sums, tops = np.empty((groups, 1)), np.empty(groups)
    kernel: Any = risk_sets.risk_sums
    kernel(scores, objective._raw, np.empty((scores.size, 0)), *objective._sets, sums, tops)
    heads = np.bincount(objective._set, objective._raw[objective._dead], groups)
    rises = heads / sums[:, 0] * np.exp(-tops)
    where = objective._strata[objective._dead[np.cumsum(objective._sizes) - objective._sizes]]
    ends = np.full(objective._strata.max() + 1, -np.inf)
    np.maximum.at(ends, objective._strata, objective.times)
    # Risk sets are from the last time to the first.
    order = np.lexsort((objective._at, where))
    hazards = rises[order]
    for stratum in np.unique(where):
        own = where[order] == stratum
        hazards[own] = np.cumsum(hazards[own])
    return Baseline(where[order], objective._at[order], hazards, ends)


def expected_events(objective: CoxRegression, w: Vector) -> Vector:
    """Return the events that a model expects of each row under observation, with the client's own baseline, shape (n,).

    Their sum is the number of events in each stratum.

    Parameters
    ----------
    objective : CoxRegression
        The client's times.
    w : ndarray of float64, shape (d,)
        The coefficients.

    Examples
    --------
    >>> objective = CoxRegression(np.array([[0.0], [1.0], [2.0]]), [1.0, 2.0, 3.0], [1, 1, 0])
    >>> expected_events(objective, np.ones(1)).sum().round(9)
    np.float64(2.0)
    """
    found, hazards = baseline(objective, w), np.empty(objective.num_examples)
    for stratum in range(found.ends.size):
        own = objective._strata == stratum
        hazards[own] = found.at(stratum, objective.times[own]) - found.at(stratum, objective.entry[own])
    return np.asarray(hazards * np.exp(objective.margins(w)))


def time_trend(objective: CoxRegression, w: Vector) -> tuple[Vector, float]:
    """Return the trend of the Schoenfeld residuals over time, and the sum of squares of the times.

    sum_i g_i (x_i - mean of those at risk at t_i) over the events, with g_i their ranks over their number, less the
    mean; and sum_i g_i^2. Where hazards are proportional, the trend is 0 in the mean.

    Parameters
    ----------
    objective : CoxRegression
        The client's times.
    w : ndarray of float64, shape (d,)
        The coefficients.

    Returns
    -------
    ndarray of float64, shape (d,)
    float

    References
    ----------
    Schoenfeld: Partial residuals for the proportional hazards regression model (Biometrika 1982).

    Examples
    --------
    >>> objective = CoxRegression(np.array([[0.0], [0.0], [1.0], [1.0]]), [1.0, 2.0, 3.0, 4.0], [1, 1, 1, 0])
    >>> trend, squares = time_trend(objective, np.zeros(1))
    >>> trend.round(6), round(squares, 6)
    (array([0.166667]), 0.222222)
    """
    dead, nothing = objective._dead, np.zeros(objective.layout.size)
    if not dead.size:
        return nothing, 0.0
    times, ranks = np.unique(objective.times[dead], return_inverse=True)
    ends = np.cumsum(np.bincount(ranks, minlength=times.size)).astype(np.float64)
    middle = 0.5 * (ends + np.append(0.0, ends[:-1]))
    g = middle[ranks] / dead.size
    g -= g.mean()
    columns: Any = objective.design.matrix
    values = np.array(columns.toarray() if hasattr(columns, "toarray") else columns, dtype=np.float64)
    # A mean at risk has less rounding of centred values.
    values -= values.mean(axis=0)
    found = objective._evaluated(objective.margins(w), objective._shares, values)
    apart = values[dead] - found.sums[:, 1:] / found.sums[:, :1]
    return np.asarray(g @ apart), float(g @ g)

"""Cox regression stratified by client, and what its fit says: concordance, baseline hazard, trends."""

from __future__ import annotations

import copy
from operator import attrgetter
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flwr_fco.core.layout import Vector
from flwr_fco.core.validation import checked
from flwr_fco.errors import ConfigurationError
from flwr_fco.kernels import risk_sets
from flwr_fco.objectives import design
from flwr_fco.objectives.linear import Linear
from flwr_fco.objectives.links import Coupled, Scores, Targets, examples_of

#: Share of a sum of squares below which a difference of two of them is rounding.
_ROUNDING = 1e-9
#: Distance of times, relative to their mean from the first, that is rounding.
_SAME = 1.5e-8


class _Sums(NamedTuple):
    """The sums of each event's risk set, relative to exp(top): of the weights, and of values by them, at some scores.

    Of tied events a part is gone. `own` is each event's own weight in its risk set, and `mean` that of its loss.
    """

    scores: Scores
    sums: NDArray[np.float64]
    tops: Vector
    own: Vector
    mean: Vector


class _Rows(NamedTuple):
    """What there is of each row, arrays of shape (n,)."""

    times: Vector
    events: NDArray[Any]
    entry: Vector
    strata: NDArray[np.int64]
    weights: Vector


class PartialLikelihood(Coupled):
    """The negative log partial likelihood of the events, of the scores of all rows.

    Parameters
    ----------
    of_row : tuple of ndarray
        Times, events, entries, strata and weights of the rows.
    ties : {"efron", "breslow"}
        What is done with events at the same time.

    Attributes
    ----------
    dead : ndarray of int64, shape (E,)
        Rows with an event, by risk set.
    set : ndarray of int64, shape (E,)
        The risk set of each, one for each time and stratum with an event.
    at, strata : ndarray of float64 and of int64, shape (G,)
        When the event of each risk set is, and in which stratum.
    """

    targets = "times"

    def __init__(self, of_row: _Rows, ties: str) -> None:
        self.of_row = of_row
        self.ties = ties
        self.raw = of_row.weights
        times, events, entry, strata, weights = of_row
        #: The weights, of mean 1, which the model weighs each row's formula by; and those in a batch.
        self.weights = self.shares = weights * (times.size / weights.sum())
        # Whole numbers in the order of the strata, in which the last moment is the first.
        ranks = np.unique([times, entry], return_inverse=True)[1].reshape(2, -1)
        keys = strata * (2 * times.size) - ranks
        self.order = np.argsort(keys, axis=1, kind="stable")
        out, into = self.order
        self.dead = dead = out[events[out] == 1]
        #: Number of events of each risk set, and the part of each event that is gone.
        found = np.unique(keys[0, dead], return_index=True, return_inverse=True, return_counts=True)
        moments, starts, self.set, self.sizes = found
        before = np.arange(dead.size) - starts[self.set]
        self.gone = before / self.sizes[self.set] if ties == "efron" else np.zeros(dead.size)
        self.at = times[dead[starts]]
        self.strata = strata[dead[starts]]
        first = np.searchsorted(strata[out], self.strata)
        ends = np.searchsorted(keys[0, out], moments, side="right")
        stops = np.searchsorted(keys[1, into], moments, side="right")
        # A risk set goes on where the one before it in its stratum ended.
        opens = np.diff(self.strata, prepend=-1) != 0
        begins, lates = (np.where(opens, first, np.roll(each, 1)) for each in (ends, stops))
        self.spans = np.column_stack([first, begins, ends, lates, stops])

    def of_rows(self, rows: NDArray[np.int64]) -> PartialLikelihood:
        return PartialLikelihood(_Rows._make(each[rows] for each in self.of_row), self.ties)

    def sample(self, counts: Vector) -> PartialLikelihood:
        other = copy.copy(self)
        other.shares = self.shares * counts
        return other

    @property
    def least(self) -> float:  # type: ignore[override]
        """A number that no mean loss is below."""
        # Each event's own weight is in its risk set; of tied ones equal scores are the least, by Jensen's inequality.
        shares = self.shares[self.dead] / len(self.shares)
        total, heads = (np.bincount(self.set, own, self.at.size) for own in (shares, self.raw[self.dead]))
        return float(total @ np.log(heads) + np.log1p(-self.gone) @ (total / self.sizes)[self.set])

    def evaluated(self, scores: Scores, values: NDArray[np.float64] | None = None) -> _Sums:
        """Return the sums over the risk sets with the scores of all rows."""
        values = np.empty((scores.size, 0)) if values is None else values
        dead, place = self.dead, self.set
        sums = np.empty((self.at.size, 1 + values.shape[1]))
        tops = np.empty(self.at.size)
        risk_sets.risk_sums(scores, self.raw, values, self.order, self.spans, self.of_row.entry, self.at, sums, tops)
        own = self.raw[dead] * np.exp(scores[dead] - tops[place])
        tied = np.zeros_like(sums)
        np.add.at(tied, place, own[:, None] * np.column_stack([np.ones(dead.size), values[dead]]))
        mean = np.bincount(place, self.shares[dead], tops.size) / self.sizes
        return _Sums(scores, sums[place] - self.gone[:, None] * tied[place], tops, own, mean[place])

    def spread(self, found: _Sums, each: Vector | float = 1.0) -> Vector:
        """Return the derivative by each score of sum_i each_i mean_i log (sum of risk set i).

        Tied events count in part.
        """
        terms = found.mean / found.sums[:, 0] * each
        shares, gone = (np.bincount(self.set, own, self.at.size) for own in (terms, self.gone * terms))
        out = np.empty(found.scores.size)
        risk_sets.spread(found.scores, shares, found.tops, self.order, self.spans, self.of_row.entry, self.at, out)
        out *= self.raw
        out[self.dead] -= found.own * gone[self.set]
        return out

    def value(self, s: Scores, y: Targets) -> Vector:
        found, each = self.evaluated(s), np.zeros_like(s)
        logarithms = np.log(found.sums[:, 0]) + found.tops[self.set]
        each[self.dead] = found.mean * logarithms - self.shares[self.dead] * s[self.dead]
        return np.asarray(each / self.weights)

    def slope(self, s: Scores, y: Targets) -> Scores:
        slopes = self.spread(self.evaluated(s))
        slopes[self.dead] -= self.shares[self.dead]
        return np.asarray(slopes / self.weights)

    def curvature(self, s: Scores, y: Targets, change: Scores) -> Scores:
        found = self.evaluated(s, change[:, None])
        moved = self.spread(found, found.sums[:, 1] / found.sums[:, 0])
        return np.asarray((self.spread(found) * change - moved) / self.weights)


class CoxRegression(Linear):
    """Cox regression: the negative log partial likelihood of the events, over the rows, plus l2/2 ||w||^2.

    F(w) = 1/n sum_i [ log sum_{j at risk at t_i} exp(eta_j) - eta_i ] + l2/2 ||w||^2 over the rows i with an event,
    with eta_i = <x_i, w> + o_i. At risk at t_i are the rows of the same stratum with entry_j < t_i <= t_j. Each client
    is a stratum of its own, with its own baseline hazard, so that the clients' sums are the stratified partial
    likelihood of the pooled data. There is no intercept, which would be part of the baseline.

    Parameters
    ----------
    features : array-like or sparse matrix, shape (n, d)
        float32 and float64 are used as they are; sums are in float64.
    times : array-like, shape (n,)
        When a row's observation ends, >= 0.
    events : array-like, shape (n,)
        1 for an event at that time, 0 for a censored row. A client without an event adds nothing.
    ties : {"efron", "breslow"}, default "efron"
        What is done with events at the same time. "breslow": all are at risk for each. "efron": the l-th of d counts
        l/d of each of them as gone, as in R and lifelines. All clients need the same.
    entry : array-like, shape (n,), optional
        When a row comes under observation, before its time: left truncation. By default before all times.
    strata : array-like, shape (n,), optional
        Strata within the client, by any labels; one by default.
    l2 : float, default 0.0
        Strength of a ridge term.
    sample_weight : array-like, shape (n,), optional
        Weight v_i > 0 of each row: F = 1/sum v sum_i v_i [ log sum_j v_j exp(eta_j) - eta_i ], and tied events of
        "efron" have their mean weight, as in R. A client counts by its rows; see :class:`~flwr_fco.objectives.Linear`.
    offset : array-like, shape (n,), optional
        The o_i; 0 by default.

    Attributes
    ----------
    layout : Layout
        ``coefficients`` of shape (d,).

    Raises
    ------
    ConfigurationError
        If shapes do not match, there is no example, a number is not finite, a time is negative, an event is neither 0
        nor 1, an entry is not before its time, or `l2` or a weight is out of range.

    Notes
    -----
    Rows are sorted once; then a value, a gradient or a product with the Hessian costs O(n) besides the products with
    the features. A batch's gradient is that of its rows' events with all who are at risk, so that batches are unbiased,
    but cost as much as all rows: take full batches. :meth:`subset`, by which a cross-validation makes its folds, leaves
    out the other rows from the risk sets too.

    References
    ----------
    Cox: Regression models and life-tables (J. R. Stat. Soc. B 1972). Efron: The efficiency of Cox's likelihood function
    for censored data (J. Am. Stat. Assoc. 1977).

    Examples
    --------
    >>> objective = CoxRegression(np.array([[0.0], [1.0], [0.0]]), [3.0, 1.0, 2.0], [1, 1, 0])
    >>> round(objective.value(np.zeros(1)), 6), objective.gradient(np.zeros(1)).round(6)
    (0.366204, array([-0.222222]))
    """

    link: PartialLikelihood

    def __init__(
        self,
        features: Any,
        times: ArrayLike,
        events: ArrayLike,
        *,
        ties: Literal["efron", "breslow"] = "efron",
        entry: ArrayLike | None = None,
        strata: ArrayLike | None = None,
        l2: float = 0.0,
        sample_weight: ArrayLike | None = None,
        offset: ArrayLike | None = None,
    ) -> None:
        n = (*np.shape(features), 0)[0]
        self.ties = checked("ties", ties, Literal["efron", "breslow"])
        when = design.as_numbers("times", times, (n,), 0.0)
        self.labels = design.with_rows("events", events, (n,))
        if not np.isin(self.labels, (0, 1)).all():
            prefix = f"events hold {examples_of(self.labels)}"
            raise ConfigurationError(f"{prefix}; expected 1 for an event and 0 for a censored row")
        begins = np.full(n, -np.inf) if entry is None else design.as_numbers("entry", entry, (n,))
        # Equal up to rounding is tied: 0.1 + 0.2 and 0.3, as with R's timefix.
        moments = np.unique([when, begins])
        same = _SAME * float((when - when.min(initial=np.inf)).sum()) / max(n, 1)
        cuts = moments[~(np.diff(moments, prepend=np.nan) <= same)]
        when, begins = (cuts[np.searchsorted(cuts, own, "right") - 1] for own in (when, begins))
        if (late := np.flatnonzero(begins >= when)).size:
            raise ConfigurationError(f"entry[{late[0]}] is not before times[{late[0]}]; leave out rows never at risk")
        codes = np.zeros(n, dtype=np.int64) if strata is None else as_strata(strata, n)[1]
        # The likelihood is not changed by a common factor of the weights, but its value is.
        link = PartialLikelihood(_Rows(when, self.labels, begins, codes, design.as_weights(sample_weight, n)), ties)
        super().__init__(link, features, when, intercept=False, l2=l2, sample_weight=sample_weight, offset=offset)

    times = property(attrgetter("targets"), doc="When each row's observation ends, shape (num_examples,).")
    num_events = property(attrgetter("link.dead.size"), doc="Number of rows with an event.")

    def unweighted(self) -> Self:
        link = PartialLikelihood(self.link.of_row._replace(weights=np.ones(self.num_examples)), self.ties)
        return super().unweighted()._with(link=link)

    def at_risk(self, w: Vector, columns: Any = slice(None)) -> tuple[NDArray[np.float64], _Sums, NDArray[np.float64]]:
        """Return columns less their means, their sums over the events' risk sets, and their means there."""
        # A mean at risk, and a covariance, have less rounding of centred values.
        values = design.dense(self.features[:, columns]).astype(np.float64)
        values = np.ascontiguousarray(values - values.mean(axis=0))
        found = self.link.evaluated(self.scores(w), values)
        return values, found, found.sums[:, 1:] / found.sums[:, :1]

    def _hessian(self, w: Vector, indices: NDArray[np.int64]) -> NDArray[np.float64]:
        values, found, means = self.at_risk(w, indices)
        means = means * np.sqrt(found.mean)[:, None]
        squares = (values.T * self.link.spread(found)) @ values
        block = (squares - means.T @ means) / self.num_examples
        # Of a column that hardly varies in the risk sets rounding is left, which is no covariance.
        own = np.where(np.diag(block) * self.num_examples > _ROUNDING * np.diag(squares), np.diag(block), 0.0)
        most = np.sqrt(np.outer(own, own))
        return np.asarray(np.clip(block, -most, most) + self.l2 * np.eye(own.size))

    def row_gradients(self, w: Vector) -> NDArray[np.float64]:
        """Return the score residuals of the rows, with the sign of the loss.

        References
        ----------
        Lin, Wei: The robust inference for the Cox proportional hazards model (J. Am. Stat. Assoc. 1989).
        """
        link = self.link
        values, found, means = self.at_risk(w)
        residuals = values * link.spread(found)[:, None] - np.transpose([link.spread(found, own) for own in means.T])
        # Each of tied events has the mean of those that are at risk for any of them.
        tied = np.array([np.bincount(link.set, own, link.at.size) for own in means.T]) / link.sizes
        residuals[link.dead] -= link.shares[link.dead, None] * (values[link.dead] - tied.T[link.set])
        return np.asarray(residuals)

    def lipschitz(self, norm: str = "l2") -> float:
        """Return a Lipschitz constant of the gradient; see :meth:`Objective.lipschitz`.

        The Hessian is a mean of covariances of rows that are at risk together: in the l2 norm at most the largest
        squared distance of a row from the mean row, in the l1 norm a fourth of the largest squared range of a feature,
        times the weight of the events.
        """
        weight = float(self.link.shares[self.link.dead].sum()) / self.num_examples
        if checked("norm", norm, Literal["l2", "l1"]) == "l1":
            ranges = design.dense(self.features.max(axis=0) - self.features.min(axis=0))
            return 0.25 * weight * float(np.square(ranges.astype(np.float64)).max()) + self.l2
        centre = np.asarray(self.features.mean(axis=0, dtype=np.float64)).reshape(-1)
        return weight * float(design.square_lengths(self.features, centre).max()) + self.l2

    def batch_lipschitz(self, batch_size: int | None, norm: str = "l2") -> float:
        """Raise a :class:`ConfigurationError`: rates from :meth:`lipschitz` would be hundreds of times too small.

        That bound holds where nearly all hazard is that of two rows far apart. ``client_lr="auto"`` measures the
        curvature at the start instead.
        """
        self._does_not_know("a useful constant of its batches", "give the rates by hand, or client_lr='auto'")

    def largest_square(self) -> float:
        """Raise a :class:`ConfigurationError`, for no useful number is known."""
        self._does_not_know("a useful bound of its second derivatives", "take another certificate")


def as_strata(strata: ArrayLike, num_examples: int) -> tuple[list[Any], NDArray[np.int64]]:
    """Return the sorted labels of strata, and which of them each row has."""
    # As they are: NumPy makes a text of NaN among texts.
    given = design.with_rows("strata", np.asarray(strata, dtype=object), (num_examples,)).tolist()
    # Numbers beside texts have no order.
    labels = sorted(dict.fromkeys(given), key=lambda label: (isinstance(label, str), label))
    codes = {label: code for code, label in enumerate(labels)}
    return labels, np.array([codes[label] for label in given])


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
    link = objective.link
    ranks = np.unique(objective.scores(w), return_inverse=True)[1]
    # Those of a stratum are below those of the strata before it.
    ranks = np.unique(ranks - link.of_row.strata * ranks.size, return_inverse=True)[1]
    ordered = risk_sets.concordant(1 + ranks, link.dead, link.sizes, link.order, link.spans)
    # Of events at the same time none is before the other; each two of them have counted one, and each itself a half.
    at_risk = link.spans[:, 2] - link.spans[:, 4]
    return float(ordered - 0.5 * link.sizes @ link.sizes), float(link.sizes @ (at_risk - link.sizes))


def baseline(objective: CoxRegression, w: Vector, times: ArrayLike) -> NDArray[np.float64]:
    """Return the cumulative baseline hazard of each stratum at some times: of a row whose features are 0.

    It rises at each event by the weight of the events there, over that of all at risk times their hazards. It is
    Breslow's, or with Efron's ties Efron's, of whose tied events a part is gone for each.

    Parameters
    ----------
    objective : CoxRegression
        The client's times.
    w : ndarray of float64, shape (d,)
        The coefficients.
    times : array-like, shape (T,)
        The times.

    Returns
    -------
    ndarray of float64, shape (number of strata, T)
        NaN after the last row of a stratum ends.

    References
    ----------
    Breslow: Discussion of Cox's regression models and life-tables (J. R. Stat. Soc. B 1972).

    Examples
    --------
    >>> objective = CoxRegression(np.zeros((3, 1)), [1.0, 2.0, 3.0], [1, 1, 0])
    >>> baseline(objective, np.zeros(1), [0.5, 1.0, 2.5, 4.0]).round(3).tolist()
    [[0.0, 0.333, 0.833, nan]]
    """
    link = objective.link
    found = link.evaluated(objective.scores(w))
    heads = np.bincount(link.set, link.raw[link.dead], link.at.size) / link.sizes
    each = heads[link.set] / found.sums[:, 0]
    rises = np.bincount(link.set, each, link.at.size) * np.exp(-found.tops)
    asked, strata = np.asarray(times, dtype=np.float64), link.of_row.strata
    hazards = np.full((strata.max() + 1, asked.size), np.nan)
    for stratum, own in enumerate(hazards):
        # The last time of a stratum is the first.
        on = np.flatnonzero(link.strata == stratum)[::-1]
        known = asked <= objective.times[strata == stratum].max(initial=-np.inf)
        own[known] = np.append(0.0, np.cumsum(rises[on]))[np.searchsorted(link.at[on], asked[known], side="right")]
    return hazards


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
    return objective.link.spread(objective.link.evaluated(objective.scores(w)))


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
    from scipy.stats import rankdata

    dead = objective.link.dead
    # The mean of the ranks' shares, tied ones too, is a half.
    g = (rankdata(objective.times[dead]) - 0.5) / dead.size - 0.5
    values, _, means = objective.at_risk(w)
    return np.asarray(g @ (values[dead] - means)), float(g @ g)

"""Cox regression stratified by client, and what its fit says: concordance, baseline hazard, trends."""

from __future__ import annotations

import copy
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flwr_fco.core.layout import Vector
from flwr_fco.core.validation import checked
from flwr_fco.errors import ConfigurationError
from flwr_fco.kernels import risk_sets
from flwr_fco.objectives._linear import LinearModel, as_labels, as_strata, as_targets, examples_of
from flwr_fco.objectives.base import Batch, DualTerms, Objective
from flwr_fco.objectives.design import Design, Scores, dense


class _RiskSets(NamedTuple):
    """The sums of each event's risk set, relative to exp(top): of the weights, and of values by them.

    Of tied events a part is gone. `own` is each event's own weight in its risk set, and `mean` that of its loss.
    """

    sums: NDArray[np.float64]
    tops: Vector
    own: Vector
    mean: Vector


class CoxRegression(LinearModel):
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
        "efron" have their mean weight, as in R. A client counts by its rows; see :class:`LeastSquares`.
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

    _compiled = False
    _separable = False
    dual_terms = Objective.dual_terms
    _by_row = ("_targets", "labels", "entry", "_strata", "_raw", "_offset")

    def __init__(
        self,
        features: ArrayLike,
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
        checked("ties", ties, Literal["efron", "breslow"])
        design = Design.of(features)
        self._set_data(design, design.shape[1:], intercept=False, l2=l2)
        n, self.ties = self.num_examples, ties
        self._targets = as_targets("times", times, n)
        self.labels = as_labels("events", events, n)
        codes = np.unique(self.labels)
        if not np.isin(codes, (0, 1)).all():
            raise ConfigurationError(
                f"events hold {examples_of(codes)}; expected 1 for an event and 0 for a censored row"
            )
        if (self.times < 0.0).any():
            row = int(np.argmin(self.times))
            raise ConfigurationError(f"times[{row}] is {self.times[row]:g}; expected numbers >= 0")
        self.entry = np.full(n, -np.inf) if entry is None else as_targets("entry", entry, n)
        late = np.flatnonzero(self.entry >= self.times)
        if late.size:
            row = int(late[0])
            raise ConfigurationError(
                f"entry[{row}] is not before times[{row}], so the row is never under observation; leave such rows out"
            )
        self._strata = np.zeros(n, dtype=np.int64) if strata is None else as_strata(strata, n)[1]
        self._set_rows(sample_weight, offset)
        # The likelihood is not changed by a common factor of the weights, but its value is.
        self._raw = np.ones(n) if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
        self._weights = None
        self._sort()

    @property
    def weighs_rows(self) -> bool:
        return bool(np.ptp(self._raw) > 0.0)

    def unweighted(self) -> Self:
        other = copy.copy(self)
        other._raw = np.ones(self.num_examples)
        other._sort()
        return other

    def _sort(self) -> None:
        """Find the risk sets: one for each time and stratum with an event; and the rows' shares of the weights."""
        self._shares = self._raw / self._raw.sum()
        times, entry, strata = self.times, self.entry, self._strata
        out, into = np.lexsort((-times, strata)), np.lexsort((-entry, strata))
        self._order = np.array([out, into])
        dead = out[self.labels[out] == 1]
        new = np.ones(dead.size, dtype=np.bool_)
        new[1:] = (np.diff(times[dead]) != 0.0) | (np.diff(strata[dead]) != 0)
        # The risk set of each event, and their number in it.
        self._dead, self._set = dead, np.cumsum(new) - 1
        starts = np.flatnonzero(new)
        self._sizes = np.diff(np.append(starts, dead.size))
        ranks = np.arange(dead.size) - starts[self._set]
        self._gone = ranks / self._sizes[self._set] if self.ties == "efron" else np.zeros(dead.size)
        self._at, where = times[dead[starts]], strata[dead[starts]]
        first, ends, stops = (np.zeros(starts.size, dtype=np.int64) for _ in range(3))
        numbers = np.arange(strata.max() + 2)
        of_rows, of_sets = np.searchsorted(strata[out], numbers), np.searchsorted(where, numbers)
        for stratum in numbers[:-1]:
            rows = slice(of_rows[stratum], of_rows[stratum + 1])
            own = slice(of_sets[stratum], of_sets[stratum + 1])
            first[own] = rows.start
            ends[own] = rows.start + np.searchsorted(-times[out[rows]], -self._at[own], side="right")
            stops[own] = rows.start + np.searchsorted(-entry[into[rows]], -self._at[own], side="right")
        begins, lates = (np.where(first == np.roll(first, 1), np.roll(own, 1), first) for own in (ends, stops))
        if first.size:
            begins[0] = lates[0] = first[0]
        self._spans = np.column_stack([first, begins, ends, lates, stops])

    @property
    def _sets(self) -> tuple[Any, ...]:
        """The risk sets' arguments of the kernels."""
        return self._order, self._spans, self.entry, self._at

    def subset(self, rows: NDArray[np.int64]) -> tuple[Self, float]:
        other, _ = super().subset(rows)
        other._sort()
        return other, float(self._shares[rows].sum())

    @property
    def least(self) -> float:  # type: ignore[override]
        """A number that no value without the l2 term is below."""
        # Each event's own weight is in its risk set; of tied ones equal scores are the least, by Jensen's inequality.
        weights, groups = self._shares[self._dead], self._at.size
        total, heads = (np.bincount(self._set, own[self._dead], groups) for own in (self._shares, self._raw))
        left = np.log1p(-self._gone) @ (total / self._sizes)[self._set] if weights.size else 0.0
        return float(total @ np.log(heads) + left)

    def duality(self) -> DualTerms:
        return DualTerms(f"Cox {self.ties}", self.least, self.l2, "cox")

    @property
    def num_events(self) -> int:
        """Number of rows with an event."""
        return int(self._dead.size)

    @property
    def times(self) -> Vector:
        """When each row's observation ends, shape (num_examples,)."""
        return self._targets

    def margins(self, w: Vector) -> Vector:
        """Return the log hazard ratios eta_i of the client's rows, shape (num_examples,)."""
        return self._scores(w)

    def _sums(self, scores: Scores, values: NDArray[np.float64]) -> tuple[NDArray[np.float64], Vector]:
        """Return the sums over the risk sets, and their scales."""
        sums, tops = np.empty((self._at.size, 1 + values.shape[1])), np.empty(self._at.size)
        kernel: Any = risk_sets.risk_sums
        kernel(scores, self._raw, values, *self._sets, sums, tops)
        return sums, tops

    def _evaluated(self, scores: Scores, shares: Vector, values: NDArray[np.float64]) -> _RiskSets:
        """Return the sums over the risk sets with the scores of all rows, for events with these weights."""
        sums, tops = self._sums(scores, values)
        dead, place = self._dead, self._set
        own = self._raw[dead] * np.exp(scores[dead] - tops[place])
        tied = np.zeros_like(sums)
        np.add.at(tied, place, own[:, None] * np.column_stack([np.ones(dead.size), values[dead]]))
        mean = np.bincount(place, shares[dead], tops.size) / self._sizes
        return _RiskSets(sums[place] - self._gone[:, None] * tied[place], tops, own, mean[place])

    def _spread(self, scores: Scores, found: _RiskSets, terms: Vector) -> Vector:
        """Return the derivative by each score of sum_i terms_i log (sum of risk set i), with terms over the sums given.

        Tied events count in part.
        """
        groups, out = self._at.size, np.empty(scores.size)
        kernel: Any = risk_sets.spread
        kernel(scores, np.bincount(self._set, terms, groups), found.tops, *self._sets, out)
        out *= self._raw
        gone = np.bincount(self._set, self._gone * terms, groups)
        out[self._dead] -= found.own * gone[self._set]
        return out

    def _slopes_of(self, scores: Scores, shares: Vector) -> tuple[float, Vector]:
        """Return the loss of events with these weights, and its derivatives by the scores of all rows."""
        found = self._evaluated(scores, shares, np.empty((scores.size, 0)))
        dead, sums = self._dead, found.sums[:, 0]
        loss = found.mean @ (np.log(sums) + found.tops[self._set]) - shares[dead] @ scores[dead]
        slopes = self._spread(scores, found, found.mean / sums)
        slopes[dead] -= shares[dead]
        return float(loss), slopes

    def _mean_loss(self, scores: Scores) -> float:
        return self._slopes_of(scores, self._shares)[0]

    def _slopes(self, scores: Scores, targets: NDArray[Any], weight: float) -> float:
        loss, scores[:] = self._slopes_of(scores, self._shares)
        return loss * self.num_examples

    def _bend(self, scores: Scores, targets: NDArray[Any], change: Scores, weight: float) -> Scores:
        found = self._evaluated(scores, self._shares, change[:, None])
        terms = found.mean / found.sums[:, 0]
        moved = self._spread(scores, found, terms * found.sums[:, 1] / found.sums[:, 0])
        return self._spread(scores, found, terms) * change - moved

    def _of_batch(self, w: Vector, batch: Batch) -> tuple[float, Vector]:
        shares = self._shares
        if batch is not None:
            shares = np.bincount(batch, minlength=self.num_examples) * shares * (self.num_examples / batch.size)
        return self._slopes_of(self._scores(w), shares)

    def _accumulate(self, w: Vector, batch: Batch, scale: float, out: Vector) -> None:
        slopes = self._of_batch(w, batch)[1]
        out += scale * self.l2 * w
        self.design.add_rows(scale * slopes, out)

    def value_and_gradient(self, w: Vector, batch: Batch = None, out: Vector | None = None) -> tuple[float, Vector]:
        """Return the mean over a batch of events and its gradient, both with the l2 term."""
        out, (loss, slopes) = self._zeros(out), self._of_batch(w, batch)
        self.design.add_rows(slopes, out)
        out += self.l2 * w
        return loss + self._l2_value(w), out

    def hessian_product(self, w: Vector, v: Vector) -> Vector:
        """Return the Hessian over all examples at `w` times `v`, in one pass over the rows."""
        product = self.l2 * v
        self.design.add_rows(self._bend(self._scores(w), self.times, self.design.predict(v), 1.0), product)
        return product

    def hessian_block(self, w: Vector, indices: NDArray[np.int64]) -> Vector:
        """Return the Hessian at `w` on some coordinates, a sum of covariances in risk sets, as a packed triangle."""
        values = dense(self.design.matrix[:, indices]).astype(np.float64)
        # A covariance is that of centred values, with less to cancel.
        values = values - values.mean(axis=0)
        scores = self._scores(w)
        found = self._evaluated(scores, self._shares, np.ascontiguousarray(values))
        means = found.sums[:, 1:] / found.sums[:, :1] * np.sqrt(found.mean)[:, None]
        rows = self._spread(scores, found, found.mean / found.sums[:, 0])
        block = (values.T * rows) @ values - means.T @ means
        # Of a column that hardly varies in a risk set rounding is left, which is no covariance.
        own = np.maximum(np.diag(block), 0.0)
        most = np.sqrt(np.outer(own, own))
        block = np.clip(block, -most, most) + self.l2 * np.eye(own.size)
        return np.asarray(block[np.triu_indices(indices.size)])

    def lipschitz(self, norm: str = "l2") -> float:
        """Return a Lipschitz constant of the gradient; see :meth:`Objective.lipschitz`.

        The Hessian is a mean of covariances of rows that are at risk together: in the l2 norm at most the largest
        squared distance of a row from the mean row, in the l1 norm a fourth of the largest squared range of a feature,
        times the weight of the events.
        """
        weight = float(self._shares[self._dead].sum())
        if norm == "l1":
            matrix: Any = self.design.matrix
            ranges = dense(matrix.max(axis=0) - matrix.min(axis=0))
            return 0.25 * weight * float(ranges.astype(np.float64).max()) ** 2 + self.l2
        if norm != "l2":
            raise ConfigurationError(f"norm={norm!r}; expected 'l2' or 'l1'")
        centre = self._column_means()
        apart = self.design.row_squares() - 2.0 * self.design.predict(centre) + float(centre @ centre)
        # The distance of a single row from itself is 0 up to rounding, of either sign.
        return weight * max(0.0, float(apart.max())) + self.l2

    def batch_lipschitz(self, batch_size: int | None, norm: str = "l2") -> float:
        """Raise a :class:`ConfigurationError`: rates from :meth:`lipschitz` would be hundreds of times too small.

        That bound holds where nearly all hazard is that of two rows far apart. ``client_lr="auto"`` measures the
        curvature at the start instead.
        """
        self._does_not_know("a useful constant of its batches", "give the rates by hand, or client_lr='auto'")


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
    sums, tops = objective._sums(objective.margins(w), np.empty((objective.num_examples, 0)))
    heads = np.bincount(objective._set, objective._raw[objective._dead], tops.size)
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
    values = dense(objective.design.matrix).astype(np.float64)
    # A mean at risk has less rounding of centred values.
    values -= values.mean(axis=0)
    found = objective._evaluated(objective.margins(w), objective._shares, values)
    apart = values[dead] - found.sums[:, 1:] / found.sums[:, :1]
    return np.asarray(g @ apart), float(g @ g)

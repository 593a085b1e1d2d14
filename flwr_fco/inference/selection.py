"""Stability selection: how often a lasso on half of the rows selects each column, and how many of them are chance.

Every site deals its rows into two halves, several times. On each half of all sites together a path of lassos is
followed until it has the first q columns. A column is selected if it is among these in a share tau of the B pairs of
halves. Of the p columns, those that one half selects with a chance below q / p are selected in the mean at most

    q^2 / ((2 tau - 1) p)      times: Meinshausen and Buehlmann's bound, as Shah and Samworth prove it for any procedure
    C(tau, B) q^2 / p          if the distribution of a frequency has one peak: Shah and Samworth's

References: Meinshausen, Buehlmann: Stability selection (J. R. Stat. Soc. B 2010). Shah, Samworth: Variable selection
with error control: another look at stability selection (J. R. Stat. Soc. B 2013), theorems 1 and 2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flwr_fco.algorithms.contract.choices import Strengths
from flwr_fco.algorithms.newton.path import NewtonHalves, models_of_halves
from flwr_fco.core.validation import POSITIVE, Choice
from flwr_fco.errors import ConfigurationError
from flwr_fco.inference.estimates import Vector
from flwr_fco.strategies import FedNewton, run_of

#: Strengths of the path that finds where to look, and of those at which halves are fitted.
_PATH, _LOOKED_AT = Strengths(num=40), 12
_SHARE = {"range": (lambda share: 0.5 < share <= 1.0, "a number above 0.5, and at most 1")}


@dataclass(frozen=True)
class Selection(Choice):
    """Which columns a stability selection selects.

    Parameters
    ----------
    false_selections : float, default 1.0
        Bound on the mean number of columns that are selected by chance. How many columns a half may have, q, follows:
        more of them find more columns, and need a larger bound or threshold.
    threshold : float, default 0.75
        Share of the halves that select a column which is selected.
    pairs : int, default 50
        How often the rows are dealt into two halves.

    Raises
    ------
    ConfigurationError
        If a value is out of range.

    References
    ----------
    Shah, Samworth: Variable selection with error control: another look at stability selection (J. R. Stat. Soc. B
    2013).

    Examples
    --------
    >>> Selection(false_selections=1.0).columns_of_a_half(200), Selection().bounds(10, 200)
    (10, (1.0, 0.5102040816326531))
    """

    false_selections: float = field(default=1.0, metadata=POSITIVE)
    threshold: float = field(default=0.75, metadata=_SHARE)
    pairs: int = field(default=50, metadata={"range": (lambda pairs: 10 <= pairs <= 500, "10 to 500 pairs")})

    def columns_of_a_half(self, count: int) -> int:
        """Return q, the largest number of columns of a half that keeps the bound.

        Parameters
        ----------
        count : int
            Number of columns that may be selected, p.

        Raises
        ------
        ConfigurationError
            If even one is too many.
        """
        found = math.floor(math.sqrt(self.false_selections * (2.0 * self.threshold - 1.0) * count) * (1.0 + 1e-12))
        if found < 1:
            what = f"{self!r} of {count} columns: a half may not have one column"
            raise ConfigurationError(f"{what}; allow more false selections, such as {self.bounds(1, count)[0]:.3g}")
        return min(found, count)

    def bounds(self, most: int, count: int) -> tuple[float, float]:
        """Return Meinshausen and Buehlmann's bound on the mean number of false selections, and Shah and Samworth's.

        Parameters
        ----------
        most : int
            Columns of a half, q.
        count : int
            Columns that may be selected, p.
        """
        tau, extra, share = self.threshold, 0.5 / self.pairs, most / count
        first = most * share / (2.0 * tau - 1.0)
        # Theorem 2 holds for shares and thresholds that are not too close to each other.
        low = min(0.5 + share**2, 0.5 + extra + 0.75 * share**2)
        if share > 3.0**-0.5 or tau <= low:
            return first, first
        factor = 0.5 / (2.0 * tau - 1.0 - extra) if tau <= 0.75 else 4.0 * (1.0 - tau + extra) / (1.0 + 2.0 * extra)
        return first, min(first, factor * most * share)


@dataclass(repr=False, eq=False, kw_only=True)
class StabilitySelection(FedNewton, algorithm=NewtonHalves):
    """A path of strengths on halves of the rows."""


class Selected(NamedTuple):
    """What a stability selection has found.

    Parameters
    ----------
    frequencies : ndarray of float64, shape (p,)
        Share of the halves that select each column; 1 of a column without a penalty.
    selected : ndarray of bool, shape (p,)
        The columns with frequencies of at least the threshold, those without a penalty aside.
    rounds : int
        Rounds that it has taken.
    lines : list of (str, str)
        Lines of a summary.
    """

    frequencies: Vector
    selected: NDArray[np.bool_]
    rounds: int
    lines: list[tuple[str, str]]


@dataclass(frozen=True)
class Halves:
    """The runs of a stability selection; ``start`` takes the arguments of a strategy's ``start``.

    Parameters
    ----------
    strategy : FedNewton
        The strategy of the fit, with an l1 penalty of strength 1, and the tolerance at which a problem is solved.
    asked : Selection
        What is asked for.
    penalised : ndarray of bool, shape (p,)
        Which columns have a penalty.
    outputs : int, default 1
        Coefficients of each column.
    """

    strategy: FedNewton
    asked: Selection
    penalised: NDArray[np.bool_]
    outputs: int = 1

    def start(self, grid: Any, initial_arrays: Any, num_rounds: int, timeout: float = 3600, **options: Any) -> Selected:
        """Return which columns are selected."""
        own = {name: getattr(self.strategy, name) for name in self.strategy.__dataclass_fields__}
        count, halves = int(self.penalised.sum()), 2 * self.asked.pairs
        if not count:
            raise ConfigurationError("selection without a penalty: every penalty_factor is 0, so no column is selected")
        most = self.asked.columns_of_a_half(count)

        def counted(strategy: Any) -> tuple[Any, int]:
            result = strategy.start(grid, initial_arrays, num_rounds, timeout, **options)
            if not run_of(strategy).finished():
                what = f"the stability selection has not ended after {num_rounds} rounds"
                raise ConfigurationError(f"{what}; raise max_rounds or scale the features")
            return strategy.state, len(result.train_metrics_clientapp)

        first, rounds = counted(replace(self.strategy, strengths=_PATH))
        # From all rows: halves have as many columns at a larger strength, for their noise is larger.
        at = _looked_at(first.strengths, self._columns(first.points[1:]).sum(axis=1), most)
        state, more = counted(StabilitySelection(**own | {"strengths": Strengths(values=at, folds=halves)}))
        found = _first(self._columns(models_of_halves(state)), most)
        frequencies = np.where(self.penalised, found.mean(axis=0), 1.0)
        selected = self.penalised & (frequencies >= self.asked.threshold)
        first_bound, second = self.asked.bounds(most, count)
        title = f"{selected.sum()} of {count} columns, in {self.asked.threshold:.0%} of {halves} halves at least"
        chance = f"at most {first_bound:.3g} in the mean (Meinshausen-Buehlmann), {second:.3g} (Shah-Samworth)"
        lines = [("Selected", f"{title}; a half has its first {most}"), ("Selected by chance", chance)]
        return Selected(frequencies, selected, rounds + more, lines)

    def _columns(self, points: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return which penalised columns models have, shape (..., p), of any class."""
        p = self.penalised.size
        own = points[..., : p * self.outputs].reshape(*points.shape[:-1], p, self.outputs)
        return np.asarray((own != 0.0).any(axis=-1) & self.penalised)


def _looked_at(strengths: Vector, counts: Sequence[int], most: int) -> list[float]:
    """Return the strengths at which halves are fitted: from the first column of all rows to more than `most`."""
    enough = np.flatnonzero(np.asarray(counts) > most)
    last = int(enough[0]) if enough.size else len(strengths) - 1
    return [float(own) for own in np.geomspace(2.0 * strengths[0], strengths[last], _LOOKED_AT)]


def _first(columns: NDArray[np.bool_], most: int) -> NDArray[np.bool_]:
    """Return the columns of each half, shape (halves, p), at the last strength up to which it has no more than `most`.

    Examples
    --------
    >>> path = np.array([[[0, 0, 0], [0, 1, 0], [1, 1, 0], [1, 1, 1]]], dtype=np.bool_)
    >>> _first(path, 2).tolist(), _first(path[:, 1:], 0).tolist()
    ([[True, True, False]], [[False, False, False]])
    """
    good = np.logical_and.accumulate(columns.sum(axis=-1) <= most, axis=1)
    place = good.sum(axis=1) - 1
    found = columns[np.arange(len(columns)), np.maximum(place, 0)]
    return np.asarray(found & (place >= 0)[:, None])

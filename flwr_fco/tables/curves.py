"""Survival curves and the log-rank test of several sites, from sums over their rows between times that are asked for.

With d_k events up to time t_k and after t_{k-1}, and n_k rows at risk, in all sites together:

    survival up to t_k      prod_{i <= k} (1 - d_i / n_i), its variance times its square sum_i d_i / (n_i (n_i - d_i))
    n_k                     rows under observation after t_{k-1}; half of one that is censored before t_k, and of one
                            that enters after t_{k-1} and has no event up to t_k

That is the product-limit estimate where the times asked for are all times that there are, and else the life table's.
The log-rank test is within sites, and is the same whatever times are asked for: each site sends three numbers.

References: Kaplan, Meier: Nonparametric estimation from incomplete observations (J. Am. Stat. Assoc. 1958). Greenwood:
The natural duration of cancer (1926). Mantel: Evaluation of survival data and two new rank order statistics arising in
its consideration (Cancer Chemother. Rep. 1966).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from flwr_fco.certificates import Request
from flwr_fco.client_apps.answers import answers_to
from flwr_fco.core.layout import Vector
from flwr_fco.errors import ConfigurationError, ProtocolError, PublicError
from flwr_fco.messages.protocol import Answer, Question
from flwr_fco.objectives import CoxRegression, Objective
from flwr_fco.objectives.design import dense
from flwr_fco.strategies.questions import ask
from flwr_fco.strategies.run import Run
from flwr_fco.tables.reports import Reported, aligned_columns
from flwr_fco.tables.sites import reasons_of

#: The kind of question, and its number that says which column has the groups; without it there is one.
CURVES = "curves"
BY = "by"
#: How the numbers begin that are times.
_TIME = "edge-"


class Curves(Reported):
    """Survival of several sites: a text, which printing and a notebook show, and its numbers.

    Attributes
    ----------
    rows : list of dict
        For each group and time: ``group``, ``time``, ``at risk``, ``events`` since the time before, ``survival``,
        ``standard error``, and limits ``lower`` and ``upper``, of 95 % by the logarithm.
    statistic, p : float
        Of the log-rank test that both groups have the same hazard within each site, chi-squared with 1 degree of
        freedom; NaN of one group.
    """

    statistic: float
    p: float


# --- at a site --------------------------------------------------------------------------------------------------------


def _asked(question: Question, objective: Any) -> tuple[Vector, NDArray[np.int64]]:
    """Return the times asked for, and the group of each row."""
    if not isinstance(objective, CoxRegression):
        raise ConfigurationError(f"the server asks for survival curves of {type(objective).__name__}, without times")
    numbers = question.numbers
    times = np.sort([value for name, value in numbers.items() if name.startswith(_TIME)])
    if BY not in numbers:
        return times, np.zeros(objective.num_examples, dtype=np.int64)
    column = dense(objective.features[:, [int(numbers[BY])]])[:, 0]
    if not np.isin(column, (0.0, 1.0)).all():
        raise PublicError("survival by a column that has other entries than 0 and 1 at this site")
    return times, column.astype(np.int64)


def division_of_curves(question: Question, objective: Objective) -> tuple[bytes, Iterable[NDArray[np.int64]]]:
    """Return how the rows are divided by group and by time, and the rows of each part."""
    times, group = _asked(question, objective)
    place = np.searchsorted(times, objective.times) * 2 + group  # type: ignore[attr-defined]
    return repr(sorted(question.numbers.items())).encode(), [np.flatnonzero(place == own) for own in np.unique(place)]


@answers_to(CURVES, division=division_of_curves)
def curves(question: Question, objective: Any) -> Answer:
    """Return rows at risk and events of each group between the times; and the log-rank test's sums of the second."""
    times, group = _asked(question, objective)
    ends = objective.times
    dead = objective.labels == 1
    entry = objective.link.of_row.entry
    risk, events = np.zeros((2, times.size)), np.zeros((2, times.size))
    for k, (begin, end) in enumerate(zip([-1.0, *times[:-1]], times, strict=True)):
        # Who enters at 0 is there from the beginning.
        half = 0.5 * ((ends < end) & ~dead) + 0.5 * ((entry > max(begin, 0.0)) & ~(dead & (ends <= end)))
        risk[:, k] = np.bincount(group, ((ends > begin) & (entry < end)) * (1.0 - half), 2)
        events[:, k] = np.bincount(group, dead & (ends > begin) & (ends <= end), 2)
    expected = variance = 0.0
    for code in np.unique(strata := objective.link.of_row.strata):
        own = strata == code
        second = (strata == code) & (group == 1)
        at, count = np.unique(ends[own & dead], return_counts=True)
        n, n2 = (
            np.searchsorted(np.sort(entry[rows]), at) - np.searchsorted(np.sort(ends[rows]), at)
            for rows in (own, second)
        )
        expected += (count * n2 / n).sum()
        variance += (count * n2 / n * (1.0 - n2 / n) * (n - count) / np.maximum(n - 1, 1)).sum()
    sums = {"risk": risk.ravel(), "events": events.ravel(), "test": np.array([group @ dead, expected, variance])}
    return Answer({"reported": 1.0}, sums)


# --- of all sites -----------------------------------------------------------------------------------------------------


def _check(answer: Answer) -> None:
    risk, events = answer.vectors["risk"], answer.vectors["events"]
    if not ((events >= 0.0) & (events <= risk) & (risk <= answer.examples)).all():
        raise ProtocolError("it says more events than rows at risk, or more of these than it has rows")


def curves_of(run: Run, times: Sequence[float], by: str | None, column: int) -> Curves:
    """Ask all sites of a run about their survival, and return the curves of all rows.

    Parameters
    ----------
    run : Run
        A run of the sites.
    times : sequence of float
        Up to when survival is asked for.
    by : str, optional
        The column of the groups.
    column : int
        Its place.
    """
    try:
        ends = np.unique(np.asarray(times, dtype=np.float64))
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"times={times!r:.200}; expected numbers >= 0") from error
    if not ends.size or not (np.isfinite(ends) & (ends >= 0.0)).all():
        raise ConfigurationError(f"times={times!r:.200}; expected numbers >= 0")
    numbers = {f"{_TIME}{k}": float(end) for k, end in enumerate(ends)} | ({} if by is None else {BY: float(column)})
    shapes = dict.fromkeys(("risk", "events"), (2 * ends.size,)) | {"test": (3,)}
    answers = ask(run, Request(CURVES, numbers, ("reported",), shapes, (), _check), np.zeros(run.problem.layout.size))
    why = [f"partition {own.partition} keeps sums of so few rows" for own in answers if not own.numbers["reported"]]
    if why := [*why, *reasons_of(run)]:
        advice = "Ask for fewer times, at which the sites have as many rows as their owners' limits ask for"
        raise ConfigurationError(f"the sites' survival is not known: {'; '.join(why)}. {advice}")
    risk, events = (np.sum([own.vectors[name].reshape(2, -1) for own in answers], 0) for name in ("risk", "events"))
    rows = list[dict[str, Any]]()
    for group in range(1 if by is None else 2):
        n, d = risk[group], events[group]
        # Where nobody is at risk nobody is lost: after the last row survival stays, as in R's survfit.
        hazard = np.divide(d, n, out=np.zeros_like(n), where=n > 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            survival = np.cumprod(1.0 - hazard)
            relative = np.sqrt(np.cumsum(hazard / np.where(n > 0.0, n - d, 1.0)))
            ends_of = survival * np.exp(stats.norm.isf(0.025) * np.array([[-1.0], [1.0]]) * relative)
            spread = survival * relative
        columns = {"time": ends, "at risk": n, "events": d, "survival": survival, "standard error": spread}
        columns |= {"lower": ends_of[0], "upper": np.minimum(ends_of[1], 1.0)}
        name = {} if by is None else {"group": f"{by}={group}"}
        rows += [name | dict(zip(columns, own, strict=True)) for own in np.column_stack([*columns.values()]).tolist()]
    observed, expected, variance = np.sum([own.vectors["test"] for own in answers], axis=0).tolist()
    statistic = (observed - expected) ** 2 / variance if by is not None and variance > 0.0 else np.nan
    p = float(stats.chi2.sf(statistic, 1))
    title = f"Survival of {sum(own.examples for own in answers):.0f} rows of {len(answers)} sites"
    lines = []
    if by is not None:
        about = f"{observed:.0f} events of {by}=1, {expected:.4g} expected"
        text = f"chi-squared(1) = {statistic:.5g}, p = {p:.3g}; {about}"
        lines = [("Log-rank test within sites", text)]
    return Curves.of(title, lines, aligned_columns(rows, 4), rows=rows, statistic=statistic, p=p)

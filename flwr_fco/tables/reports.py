"""What a fitted estimator says: its summary, tests of its coefficients, how good it is, and survival curves.

How good: order, calibration, Brier's score, bins.

The scores s_i of a model are its log odds, or log hazard ratios; a site is a stratum.

    concordance        pairs within sites that are in the order of their events, over all pairs that can be compared:
                       of classes the area under the ROC curve within sites
    calibration        the model a + b s_i of the same kind that fits the rows best: b = 1 and a = 0 where it is exact
    bins               expected and observed events between quantiles of a normal distribution of the scores

References: Harrell, Califf, Pryor, Lee, Rosati: Evaluating the yield of medical tests (JAMA 1982). Cox: Two further
applications of a model for binary regression (Biometrika 1958). Brier: Verification of forecasts expressed in terms of
probability (Mon. Weather Rev. 1950). van Houwelingen: Validation, calibration, revision and combination of prognostic
survival models (Stat. Med. 2000).

Survival curves and the log-rank test: with d_k events up to time t_k and after t_{k-1}, and n_k rows at risk, in all
sites together,

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

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from numbers import Real
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import expit
from sklearn.utils.validation import check_is_fitted

from flwr_fco.algorithms.newton.model import inverse as inverse_of
from flwr_fco.certificates import Request, check_semidefinite
from flwr_fco.client_apps.client import answers_to
from flwr_fco.core.layout import Vector
from flwr_fco.core.validation import plain, printable
from flwr_fco.errors import ConfigurationError, ProtocolError, PublicError, SeparableError
from flwr_fco.messages.protocol import Answer, Question
from flwr_fco.objectives import CoxRegression, Logistic, Objective
from flwr_fco.objectives.design import dense
from flwr_fco.objectives.survival import PartialLikelihood, concordance, expected_events
from flwr_fco.results import frame_of
from flwr_fco.strategies import questions
from flwr_fco.strategies.run import Run
from flwr_fco.tables.intervals import CLASSES, COMPARED, COUNTS, ESTIMATED, SQUARES, Sums, Table, minimum
from flwr_fco.tables.sites import asked_of, called, ready, reasons_of

#: Columns in the text of a table, and sites that are columns of it, at most.
SHOWN, SHOWN_SITES = 40, 8
#: Bins, and how many of them are merged where a site keeps smaller ones back.
_BINS, _MERGED = 8, (1, 2, 4)
#: Rounding error of a sum of shares.
_ROUNDING = 1e-9
#: How the numbers of a question begin that are edges of bins, or times; and the number that says which column has the
#: groups of survival curves, without which there is one.
_EDGE = "edge-"
_BY = "by"
#: The numbers of a calibration.
_CALIBRATED = ("slope", "intercept")
_WANTED = ("mean", "square", "brier", "ordered", "compared", "events")


def aligned_columns(rows: list[dict[str, Any]], digits: int = 3) -> list[str]:
    r"""Return a table's lines, the header first; missing cells are empty. Names of sites' columns are shown as text.

    Examples
    --------
    >>> print(*aligned_columns([{"": "age", "mean": 61.2345, "rows": 1234.5, "p": 2.8479e-11}]), sep="\n")
             mean  rows         p
        age  61.2  1234  2.85e-11
    """
    if not rows:
        return []
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [["", *map(printable, names[1:])], *([_cell(row.get(name, ""), digits) for name in names] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(names))]
    aligned = ([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])] for line in cells)
    return ["    " + "  ".join(line).rstrip() for line in aligned]


def _cell(value: Any, digits: int) -> str:
    if not isinstance(value, float):
        return printable(str(value))
    # 1234 and not 1.23e+03.
    text = f"{value:.0f}" if 10.0**digits <= abs(value) < 1e7 else f"{value:.{digits}g}"
    return "-" if math.isnan(value) else text


def rows_of(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a table's rows, of its columns.

    Examples
    --------
    >>> rows_of({"time": np.array([1.0, 2.0]), "group": ["a", "b"]})
    [{'time': 1.0, 'group': 'a'}, {'time': 2.0, 'group': 'b'}]
    """
    return [dict(zip(columns, own, strict=True)) for own in zip(*map(plain, columns.values()), strict=True)]


def class_names(classes: NDArray[Any]) -> tuple[str, ...]:
    """Return classes as texts, of which 0 and '0' differ, and 0 and 0.0 do not."""
    return tuple(f"{label:.17g}" if isinstance(label, Real) else repr(label) for label in classes.tolist())


class Reported(str):
    """A text, which printing and a notebook show, and the rows of a table."""

    rows: list[dict[str, Any]]

    @classmethod
    def of(cls, title: str, about: Iterable[tuple[str, str]], tables: Sequence[str], **attributes: Any) -> Self:
        """Return a text of a title, what is said below it, and the lines of tables; with attributes."""
        made = cls("\n".join([title, *(f"├── {name}: {text}" for name, text in about), *tables]))
        vars(made).update(attributes)
        return made

    def table(self) -> Any:
        """Return the rows as a pandas ``DataFrame`` (``pip install pandas``)."""
        return frame_of(self.rows)

    __repr__ = str.__str__


class Summary(Reported):
    """What a fitted estimator says of its fit: a text, which printing and a notebook show, and a table.

    Attributes
    ----------
    rows : list of dict
        Each feature's name and coefficients, in the order of the columns.

    Examples
    --------
    >>> from flwr_fco.tables import FederatedLasso
    >>> model = FederatedLasso(0.1).fit([np.eye(2), np.eye(2)], [np.array([3.0, 0.0]), np.array([3.0, 0.0])])
    >>> [row["feature"] for row in model.summary().rows]
    ['x0', 'x1']
    """


def _with_intervals(table: Table, rows: list[dict[str, Any]]) -> list[str]:
    """Add what is known of the asked columns to their rows, and return it as lines of text."""
    own, sites = table.rows, table.sites
    for j, row in enumerate(rows):
        row |= own.get(j, dict.fromkeys(next(iter(own.values())), math.nan))
    shown = list(own) if len(own) <= SHOWN else sorted(own, key=lambda j: own[j]["p"])[:SHOWN]
    lines = [f"├── {title}: {about}" for title, about in table.lines]
    # A single site agrees with itself.
    beside = [COMPARED, *[sites] * (0 < len(sites) <= SHOWN_SITES)] * (table.rows_of[1] > 1)
    for names in (ESTIMATED, *beside):
        cells = [{"feature": rows[j]["feature"]} | {k: own[j][k] for k in names if k in own[j]} for j in shown]
        lines += aligned_columns(cells)
    lines += aligned_columns([{"intercept": "", **row} for row in table.intercepts[:SHOWN]])
    lines += [f"    of the smallest p, and {len(own) - len(shown)} more columns: .table()"] * (len(own) > len(shown))
    return lines


class Tested(Reported):
    """A test: a text, which printing and a notebook show, and its numbers.

    Attributes
    ----------
    rows : list of dict
        Of linear combinations: ``contrast``, ``estimate``, ``standard error``, ``lower``, ``upper`` and ``p`` of each,
        at the level of the table. Of two models: the ``columns`` and the ``log likelihood`` of each.
    statistic, p : float
        F where residuals have degrees of freedom, and else chi-squared; and p, that all combinations are 0, or that
        the columns of the larger model that the other one lacks have coefficients of 0.
    degrees : tuple of float
        Degrees of freedom: how many are tested, and those of the residuals.

    Examples
    --------
    >>> from flwr_fco.tables import FederatedLasso
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> model = FederatedLasso(0.1).fit(X, X[:, 0] + np.sin(9.0 * X[:, 1]), intervals=True)
    >>> model.contrast([{"x0": 1.0}, {"x1": 1.0}]).degrees
    (2, 57.0)
    """

    statistic: float
    degrees: tuple[float, float]
    p: float


def _tested(title: str, rows: list[dict[str, Any]], statistic: float, of: int, left: float, digits: int = 3) -> Tested:
    """Return a test of so many degrees of freedom: F where the residuals have some, and else chi-squared."""
    many = math.isinf(left)
    p = float(stats.chi2.sf(statistic, of) if many else stats.f.sf(statistic, of, left))
    kind = f"chi-squared({of})" if many else f"F({of}, {left:g})"
    text = f"{title}: {kind} = {statistic:.5g}, p = {p:.3g}"
    return Tested.of(text, (), aligned_columns(rows, digits), rows=rows, statistic=statistic, degrees=(of, left), p=p)


def _table_of(model: Any) -> Table:
    check_is_fitted(model)
    table: Table | None = model._table
    if table is None:
        raise ConfigurationError("the model has no table of estimates; give intervals=True to its fit")
    return table


def _written(combination: Mapping[str, float]) -> str:
    """Return a combination in words, such as ``age - 2 sex``."""
    signed = [("-" if factor < 0 else "+", abs(float(factor)), name) for name, factor in combination.items()]
    text = " ".join(f"{sign} {'' if size == 1 else f'{size:g} '}{name}" for sign, size, name in signed)
    return text.removeprefix("+ ") if text.startswith("+") else f"-{text[2:]}"


def _numbered(edges: Vector) -> dict[str, float]:
    """Return edges as the numbers of a question."""
    return {f"{_EDGE}{k}": float(edge) for k, edge in enumerate(edges)}


def _edges_of(numbers: Mapping[str, float]) -> Vector:
    """Return the edges in a question's numbers, ascending."""
    return np.sort([value for name, value in numbers.items() if name.startswith(_EDGE)])


# --- at a site: how good a model is -----------------------------------------------------------------------------------


@answers_to("quality", of=CoxRegression | Logistic)
def quality(question: Question, objective: Objective) -> Answer:
    """Return pairs in the order of the events, the events, mean and mean square of the scores, and Brier's score."""
    ready(question, objective)
    own = judged(objective)
    w = question.vectors["primal"]
    scores = own.scores(w)
    numbers = {"mean": float(scores.mean()), "square": float(scores @ scores / scores.size), "brier": 0.0}
    ones = own.labels == 1
    events = int(ones.sum())
    if isinstance(own, CoxRegression):
        ordered, compared = concordance(own, w)
    else:
        # Mann and Whitney's U.
        ordered = float(stats.rankdata(scores)[ones].sum()) - 0.5 * events * (events + 1)
        compared = float(events) * (ones.size - events)
        numbers["brier"] = float(np.square(expit(scores) - ones).mean())
    return Answer(numbers | {"ordered": ordered, "compared": compared, "events": float(events)})


@answers_to("calibration", of=CoxRegression | Logistic)
def calibration(question: Question, objective: Objective) -> Answer:
    """Return the loss of ``slope`` times the scores plus ``intercept``, and its derivatives by these two numbers."""
    own = judged(objective)
    w = question.vectors["primal"]
    along = np.array([w, *np.eye(1, w.size, w.size - 1)] if own.intercept else [w])
    point = np.array([question.numbers[name] for name in _CALIBRATED[: len(along)]]) @ along
    value, gradient = own.value_and_gradient(point)
    curved = np.array([own.hessian_product(point, direction) for direction in along])
    return Answer({"loss": float(value)}, {"gradient": along @ gradient, "hessian": (along @ curved.T).ravel()})


def bins_of(question: Question, objective: Objective) -> tuple[Any, NDArray[np.int64], int]:
    """Return the loss that judges, each row's bin, and how many there are, with neighbours merged as is asked."""
    own = judged(objective)
    edges = _edges_of(question.numbers)
    merged = int(question.numbers["merged"])
    if merged < 1 or merged & (merged - 1):
        # Differences of bins that are not nested are smaller than any of them.
        raise ConfigurationError(f"the server asks to merge {merged} neighbouring bins; expected 1, 2, 4, 8, ...")
    return own, np.searchsorted(edges, own.scores(question.vectors["primal"])) // merged, len(edges) // merged + 1


def judged(objective: Any) -> Any:
    """Return the loss that says how good a model is, without weights."""
    # A centre that a fit has left is not the model's; by centres, the rows would be divided into other bins.
    objective.shift(np.zeros(objective.features.shape[1]))
    # Weights are the fit's: probabilities are judged by what happened.
    return objective.unweighted()


def division_of_bins(question: Question, objective: Objective) -> tuple[bytes, Iterable[NDArray[np.int64]]]:
    """Return the edges of the bins at a point, of which merged neighbours are no others, and the rows of each bin."""
    _, place, count = bins_of(question, objective)
    parts = (np.flatnonzero(place == number) for number in range(count))
    return _edges_of(question.numbers).tobytes() + question.vectors["primal"].tobytes(), parts


@answers_to("bins", division=division_of_bins, of=CoxRegression | Logistic)
def bins(question: Question, objective: Objective) -> Answer:
    """Return rows, expected and observed events between the edges of the scores, as shares of the rows."""
    own, place, count = bins_of(question, objective)
    w = question.vectors["primal"]
    expected = expected_events(own, w) if isinstance(own, CoxRegression) else expit(own.scores(w))
    each = {"rows": np.ones(place.size), "expected": expected, "observed": (own.labels == 1).astype(np.float64)}
    return Answer({"reported": 1.0}, {name: np.bincount(place, own, count) / place.size for name, own in each.items()})


# --- how good it is at all sites --------------------------------------------------------------------------------------


class Quality(Reported):
    """How good a model is on some rows: a text, which printing and a notebook show, and its numbers.

    Attributes
    ----------
    overall : dict of str to float
        Of all rows: ``concordance``, of the ``pairs`` within sites; ``slope`` of the calibration and ``slope error``;
        of classes ``intercept``, ``intercept error`` and ``Brier``. NaN where the rows do not determine it.
    rows : list of dict
        Of each site: ``site``, ``rows``, ``events``, ``concordance``, and of classes ``Brier``.
    bins : list of dict
        Of each bin of scores, from the lowest: the score ``up to`` which it goes, ``rows``, ``expected`` and
        ``observed`` events. Empty if a site keeps them back.

    Examples
    --------
    >>> from flwr_fco.tables import FederatedLogisticRegression
    >>> X, y = [np.array([[0.0], [1.0], [2.0]])] * 2, [np.array([0, 1, 1]), np.array([0, 0, 1])]
    >>> quality = FederatedLogisticRegression().fit(X, y).quality(X, y)
    >>> [row["events"] for row in quality.rows], quality.overall["concordance"]
    ([2, 1], 1.0)
    """

    overall: dict[str, float]
    bins: list[dict[str, float]]


def quality_of(run: Run, model: Any, sites: Sequence[Any]) -> Quality:
    """Ask all sites about a model, with their names by partition, if they have any."""
    point = np.ravel(np.append(model.coef_, model.intercept_) if model.fit_intercept else model.coef_)

    def ask(question: str, numbers: dict[str, float], shapes: Any, *wanted: str) -> list[Answer]:
        """Return the answers of sites that have said how good the model is, on as many rows."""
        return questions.ask(run, Request(question, numbers, wanted, shapes, check=check), point)

    def check(answer: Answer) -> None:
        first = nodes.get(answer.node_id)
        if first is None or first.examples != answer.examples:
            raise ProtocolError("it has not said how good the model is, on as many rows")
        _check_bins(answer) if "rows" in answer.vectors else _check_calibration(answer, first.numbers)

    answers = questions.ask(run, Request("quality", {"codebook": model._digest}, _WANTED, check=_check), point)
    left_out = reasons_of(run, sites)
    if not answers:
        raise ConfigurationError(f"no site says how good the model is: {'; '.join(left_out)}")
    nodes = {answer.node_id: answer for answer in answers}

    def derivatives(at: Vector) -> Sums:
        shapes = {"gradient": (at.size,), "hessian": (at.size**2,)}
        kept = ask("calibration", dict(zip(_CALIBRATED, at.tolist(), strict=False)), shapes, "loss")
        if len(kept) < len(nodes):
            prefix = f"{len(kept)} of {len(nodes)} sites say how the model is calibrated"
            raise ConfigurationError(f"{prefix}; ask again. The others: {'; '.join(reasons_of(run, sites))}")
        gradient, hessian = (np.average([a.vectors[n] for a in kept], 0, [a.examples for a in kept]) for n in shapes)
        return Sums(at, gradient, hessian.reshape(at.size, at.size), _mean(kept, "loss"), rows)

    rows = sum(answer.examples for answer in answers)
    overall = _overall(model, answers) | {"pairs": sum(answer.numbers["compared"] for answer in answers)}
    overall |= _calibrated(derivatives, "intercept" in run.problem.layout.shapes)
    bins = list[dict[str, float]]()
    mean, square = (_mean(answers, name) for name in ("mean", "square"))
    deviation = math.sqrt(max(square - mean**2, 0.0))
    edges = mean + deviation * stats.norm.ppf(np.arange(1, _BINS) / _BINS)
    # Of scores that are all the same there is one bin, which says no more than all rows.
    for merged in _MERGED if deviation > 0.0 else ():
        shapes = dict.fromkeys(("rows", "expected", "observed"), (_BINS // merged,))
        reported = ask("bins", {**_numbered(edges), "merged": float(merged)}, shapes, "reported")
        if len(reported) == len(nodes) and all(answer.numbers["reported"] for answer in reported):
            sums = np.sum([[own.examples * own.vectors[name] for name in shapes] for own in reported], axis=0)
            ends = [*edges[merged - 1 :: merged].tolist(), math.inf]
            bins = rows_of({"up to": ends, **dict(zip(shapes, sums, strict=True))})
            break
    of_sites = list[dict[str, Any]]()
    for own in answers:
        about = {"site": called(own.partition, sites), "rows": int(own.examples), "events": int(own.numbers["events"])}
        of_sites.append(about | _overall(model, [own]))
    many = f"{len(answers)} site{'s' * (len(answers) > 1)}"
    lines = [("Data", f"{rows:.0f} rows, {sum(own['events'] for own in of_sites)} events, of {many}")]
    withheld = "withheld by a site: of so few rows, or others than before in this run; or it has not answered"
    lines += [*_lines(overall), *[("Bins", withheld)] * (deviation > 0.0 and not bins)]
    lines += [("Left out", text) for text in left_out]
    lines += [("Weights", "none: every row counts once, unlike in the fit")] * model._weighted
    lines += [("Clusters", "none: errors are those of independent rows")] * (model.cluster is not None)
    text = [*aligned_columns(of_sites), *aligned_columns([{"bin": "scores", **own} for own in bins])]
    return Quality.of(f"Quality of {type(model).__name__}", lines, text, overall=overall, rows=of_sites, bins=bins)


def _overall(model: Any, answers: Sequence[Answer]) -> dict[str, float]:
    ordered, pairs = (sum(answer.numbers[name] for answer in answers) for name in ("ordered", "compared"))
    found = {"concordance": ordered / pairs if pairs else math.nan}
    return found | ({"Brier": _mean(answers, "brier")} if model._kind is CLASSES else {})


def _lines(overall: dict[str, float]) -> list[tuple[str, str]]:
    """Return what is known of all rows in words."""
    order = f"{overall['concordance']:.4g}, of {overall['pairs']:.0f} pairs within sites (0.5: no better than chance)"
    text = f"slope {overall['slope']:.4g} +- {overall['slope error']:.3g} (1 where the model is exact)"
    if "intercept" in overall:
        text += f", intercept {overall['intercept']:.4g} +- {overall['intercept error']:.3g} (0)"
    if math.isnan(overall["slope"]):
        text = "the rows determine no slope: scores or outcomes are all the same, in order without error, or sums lie"
    brier = f"{overall.get('Brier', 0.0):.4g} (0.25: every chance is a half)"
    return [("Concordance", order), ("Calibration", text), *[("Brier's score", brier)] * ("Brier" in overall)]


def _mean(answers: Sequence[Answer], name: str) -> float:
    """Return the mean of a number over the rows."""
    return sum(own.examples * own.numbers[name] for own in answers) / sum(own.examples for own in answers)


def _check(answer: Answer) -> None:
    """Refuse numbers that no rows have."""
    reported, n = answer.numbers, answer.examples
    if not 0.0 <= reported["ordered"] <= reported["compared"] <= 0.5 * n * (n - 1.0):
        raise ProtocolError(f"{reported['ordered']:g} of {reported['compared']:g} pairs are in order, of {n:.0f} rows")
    if not 0.0 <= reported["events"] <= n:
        raise ProtocolError(f"{reported['events']:g} events of {n:.0f} rows")
    brier, mean, square = (reported[name] for name in ("brier", "mean", "square"))
    if not (0.0 <= brier <= 1.0 and square >= (1.0 - 1e-9) * mean * mean):
        raise ProtocolError(f"Brier's score is {brier:g}, the scores' mean square {square:g}")


def _check_calibration(answer: Answer, said: Mapping[str, float]) -> None:
    """Refuse derivatives that scores of this mean square, and so many events, do not have."""
    hessian = answer.vectors["hessian"].reshape(2 * answer.vectors["gradient"].shape)
    check_semidefinite(hessian)
    # Of classes squares are below the mean square; in a risk set they are at most half of the sum of all.
    most = math.sqrt(2.0 * max(said["events"], 1.0)) * np.sqrt([said["square"], 1.0])[: len(hessian)]
    if (np.maximum(np.sqrt(np.diag(hessian)), np.abs(answer.vectors["gradient"])) > most).any():
        raise ProtocolError("its calibration has derivatives that its scores and events do not have")


def _check_bins(answer: Answer) -> None:
    """Refuse shares that are none of the rows'."""
    rows, expected, observed = (answer.vectors[name] for name in ("rows", "expected", "observed"))
    parts = (np.minimum(expected, observed) >= -_ROUNDING) & (observed <= rows + _ROUNDING)
    if answer.numbers["reported"] and not (abs(rows.sum() - 1.0) <= _ROUNDING and parts.all()):
        raise ProtocolError(f"its bins hold {rows.sum():g} times its rows, or more events than rows, or less than 0")


def _calibrated(derivatives: Any, intercept: bool) -> dict[str, float]:
    """Return slope and intercept with their standard errors, by Newton's method; NaN if they are not determined."""
    names = _CALIBRATED[: 1 + intercept]
    both = [*names, *(f"{name} error" for name in names)]
    numbers = np.full(len(both), np.nan)
    with suppress(SeparableError):
        if found := minimum(derivatives, np.array([1.0, 0.0])[: len(names)]):
            sums, covariance, step = found
            numbers = np.append(sums.point - step, np.sqrt(np.diag(covariance) / sums.rows))
    return dict(zip(both, numbers.tolist(), strict=True))


# --- at a site: survival curves ---------------------------------------------------------------------------------------


def _asked(question: Question, objective: Any) -> tuple[Vector, NDArray[np.int64]]:
    """Return the times asked for, and the group of each row."""
    ready(question, objective)
    numbers = question.numbers
    times = _edges_of(numbers)
    if _BY not in numbers:
        return times, np.zeros(objective.num_examples, dtype=np.int64)
    if numbers[_BY] not in range(columns := objective.features.shape[1]):
        raise ConfigurationError(f"the server asks for survival by column {numbers[_BY]:g} of {columns}, from 0")
    column = dense(objective.features[:, [int(numbers[_BY])]])[:, 0]
    if not np.isin(column, (0.0, 1.0)).all():
        raise PublicError("survival by a column that has other entries than 0 and 1 at this site")
    return times, column.astype(np.int64)


def division_of_curves(question: Question, objective: Any) -> tuple[bytes, Iterable[NDArray[np.int64]]]:
    """Return how the rows are divided by group and by time, and the rows of each part: of those that end or enter."""
    times, group = _asked(question, objective)
    # Who enters at a time is not at risk before it.
    ends, enters = np.searchsorted(times, objective.times), np.searchsorted(times, objective.link.of_row.entry, "right")
    numbers = [ends * 2 + group, enters * 2 + group]
    parts = [np.flatnonzero(each == part) for each in numbers for part in np.unique(each)]
    return repr(sorted(question.numbers.items())).encode(), parts


@answers_to("curves", division=division_of_curves, of=CoxRegression)
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
    link = PartialLikelihood(objective.link.of_row._replace(weights=np.ones(group.size)), "breslow")
    # At scores of 0 the sums of a risk set are its rows, and those of the second group.
    n, n2 = link.evaluated(np.zeros(group.size), group[:, None].astype(np.float64)).sums.T
    variances = n2 / n * (1.0 - n2 / n) * (n - link.sizes[link.set]) / np.maximum(n - 1.0, 1.0)
    test = np.array([group @ dead, (n2 / n).sum(), variances.sum()])
    return Answer({"reported": 1.0}, {"risk": risk.ravel(), "events": events.ravel(), "test": test})


# --- survival of all sites --------------------------------------------------------------------------------------------


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


def _check_curves(answer: Answer) -> None:
    risk, events, test = (answer.vectors[name] for name in ("risk", "events", "test"))
    if min(own.min() for own in (events, risk - events, answer.examples - risk, test, answer.examples - test)) < 0.0:
        raise ProtocolError("it says more events than rows at risk, or more of these, or in its test, than it has rows")


def curves_of(run: Run, sites: Sequence[Any], model: Any, ends: Vector, by: str | None) -> Curves:
    """Ask all sites of a run about their survival, and return the curves of all rows.

    Parameters
    ----------
    run : Run
        A run of the sites.
    sites : sequence
        Their names by partition, if they have any.
    model : estimator
        Whose columns they have.
    ends : ndarray
        Up to when survival is asked for, rising.
    by : str, optional
        The column of the groups.
    """
    names = list(model._names(model.n_features_in_))
    if by is not None and by not in names:
        raise ConfigurationError(f"by={by!r} is no feature; expected one of {', '.join(map(str, names[:10]))}")
    numbers = _numbered(ends) | {"codebook": model._digest} | ({} if by is None else {_BY: float(names.index(by))})
    shapes = dict.fromkeys(("risk", "events"), (2 * ends.size,)) | {"test": (3,)}
    request = Request("curves", numbers, ("reported",), shapes, check=_check_curves)
    answers = questions.ask(run, request, np.zeros(run.problem.layout.size))
    why = [f"{called(own.partition, sites)} keeps its sums" for own in answers if not own.numbers["reported"]]
    if why := [*why, *reasons_of(run, sites)]:
        advice = "Ask for times between which sites have as many rows as owners allow, and no others in the same run"
        raise ConfigurationError(f"the sites' survival is not known: {'; '.join(why)}. {advice}")
    used = slice(0, 1 if by is None else 2)
    n, d = (np.sum([own.vectors[name].reshape(2, -1)[used] for own in answers], 0) for name in ("risk", "events"))
    # Where nobody is at risk nobody is lost: after the last row survival stays, as in R's survfit.
    hazard = np.divide(d, n, out=np.zeros_like(n), where=n > 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        # Of a group without rows nothing is known.
        survival = np.where(n.any(axis=1, keepdims=True), np.cumprod(1.0 - hazard, axis=1), np.nan)
        relative = np.sqrt(np.cumsum(hazard / np.where(n > 0.0, n - d, 1.0), axis=1))
        half, spread = np.exp(stats.norm.isf(0.025) * relative), survival * relative
        limits = {"lower": survival / half, "upper": np.minimum(survival * half, 1.0)}
    found = {"time": np.tile(ends, (len(n), 1)), "at risk": n, "events": d, "survival": survival}
    columns: dict[str, Any] = {} if by is None else {"group": np.repeat([f"{by}=0", f"{by}=1"], ends.size)}
    columns |= {name: own.ravel() for name, own in (found | {"standard error": spread} | limits).items()}
    rows = rows_of(columns)
    observed, expected, variance = np.sum([own.vectors["test"] for own in answers], axis=0).tolist()
    statistic = (observed - expected) ** 2 / variance if by is not None and variance > 0.0 else np.nan
    p = float(stats.chi2.sf(statistic, 1))
    many = f"{len(answers)} site{'s' * (len(answers) > 1)}"
    title = f"Survival of {sum(own.examples for own in answers):.0f} rows of {many}"
    text = f"chi-squared(1) = {statistic:.5g}, p = {p:.3g}; {observed:.0f} events of {by}=1, {expected:.4g} expected"
    lines = [("Log-rank test within sites", text)] * (by is not None)
    return Curves.of(title, lines, aligned_columns(rows, 4), rows=rows, statistic=statistic, p=p)


# --- what estimators say of themselves -------------------------------------------------------------------------------


class Reports:
    """What a fitted estimator says: the methods of all of them."""

    def summary(self: Any) -> Summary:
        """Return a text about the fit: strength, sites, rounds, duality gap, and the coefficients that are not 0.

        Returns
        -------
        Summary
            The text, with the largest coefficients first, 40 at most; its ``table()`` has every feature.

        Raises
        ------
        sklearn.exceptions.NotFittedError
            Before `fit`.
        """
        check_is_fitted(self)
        # A column for each class; of squares, and of two classes, a single one.
        w = np.atleast_2d(self.coef_).T
        labels = ["coefficient"] if w.shape[1] == 1 else [str(label) for label in self.classes_]
        more = {"penalty_factor": self._factors, "deviation": self._scales}
        columns = {"feature": [*map(str, self._names(len(w)))]} | dict(zip(labels, w.T, strict=True))
        rows = rows_of(columns | {name: own for name, own in more.items() if own is not None})
        size = np.abs(w).max(axis=1)
        count = int(np.count_nonzero(size))
        shown = [rows[j] for j in np.argsort(-size, kind="stable")[: min(count, SHOWN)]]
        if self._common_intercept:
            intercepts = np.atleast_1d(self.intercept_).tolist()
            shown.insert(0, {"feature": "(intercept)"} | dict(zip(labels, intercepts, strict=True)))
        lines = [*self._lines]
        if self._kind is CLASSES and len(self.classes_) == 2:
            # The rows of each class are not known where each site has an intercept of its own.
            weighted = " by weight" * self._weighted
            counts = [f" ({count:g}{weighted})" for count in getattr(self, "class_count_", ())] or [""] * 2
            other, one = (repr(label) + own for label, own in zip(self.classes_.tolist(), counts, strict=True))
            lines.insert(2, ("Odds", f"of {one} against {other}"))
        lines += [("Coefficients", f"{count} of {len(w)} are not 0" + ", the largest first" * (count > 1))]
        text = aligned_columns(shown)
        text += [f"    and {count - SHOWN} more; all features: .table()"] * (count > SHOWN)
        text += [] if self._table is None else _with_intervals(self._table, rows)
        if self._on_trust:
            text.append("Columns were matched by position: that they are the same at all sites is taken on trust.")
        return Summary.of(type(self).__name__, lines, text, rows=rows)

    def quality(self: Any, X: Any, y: Any = None, groups: Any = None) -> Quality:
        """Return how good the fitted model is on the rows of several sites, which send sums of them.

        Of two classes and of survival times. Give rows that the model has not been fitted to: on those of the fit it
        looks better than it is. Or ``fit(..., without=site)`` to the others, and judge that model there.

        Every row counts once, whatever weights of rows the fit had, so that predictions are judged by how often events
        happen. A model of balanced classes promises as many events as others, and the calibration's intercept says by
        how much that is off.

        Parameters
        ----------
        X : array-like or sparse matrix, shape (n, d), a list or dict of them, or a Flower Grid
            Each site's rows, as for :meth:`fit`.
        y : array-like, or a list or dict of them
            The classes, or the times and events, as for :meth:`fit`; none with a grid.
        groups : array-like, shape (n,), optional
            The site of each row of one `X`.

        Returns
        -------
        Quality
            A text, with its numbers as attributes.

        Raises
        ------
        ConfigurationError
            Of squares, of more than two classes, or of intercepts that stay at the sites.
        sklearn.exceptions.NotFittedError
            Before `fit`.
        """
        check_is_fitted(self)
        if self._kind in (SQUARES, COUNTS) or len(getattr(self, "classes_", "01")) > 2:
            raise ConfigurationError("quality is of two classes and of survival times; else ask `score`, at each site")
        if self.site_intercepts == "local":
            prefix = "quality of site_intercepts='local': each intercept has stayed there; ask `score` at each site"
            raise ConfigurationError(f"{prefix}, after model.intercept_ = model.intercept_for(X, y)")
        with asked_of(self, X, y, groups) as (run, sites):
            return quality_of(run, self, sites)

    def contrast(self: Any, combinations: Any) -> Tested:
        """Return Wald's test that linear combinations of coefficients are 0, and their estimates and intervals.

        Of the table's estimates, with their covariance `covariance_`; of several combinations, that all are 0.

        Parameters
        ----------
        combinations : mapping of str to float, or sequence of them
            For each feature in a combination its factor, such as ``{"age": 1.0, "sex": -1.0}``, the difference.

        Returns
        -------
        Tested
            A text, with its numbers as attributes.

        Raises
        ------
        ConfigurationError
            Without a table (``fit(..., intervals=True)``), or if a name is no feature.
        sklearn.exceptions.NotFittedError
            Before `fit`.

        Examples
        --------
        >>> from flwr_fco.tables import FederatedLasso
        >>> X = np.random.default_rng(0).normal(size=(60, 2))
        >>> model = FederatedLasso(0.1).fit(X, X[:, 0] + np.sin(9.0 * X[:, 1]), intervals=True)
        >>> model.contrast({"x0": 1.0, "x1": -1.0}).rows[0]["contrast"]
        'x0 - x1'
        """
        found = _table_of(self).found
        given = [combinations] if isinstance(combinations, Mapping) else combinations
        names = [str(name) for name in self._names(len(found.estimate))]
        many = isinstance(given, Sequence) and given and all(isinstance(own, Mapping) and own for own in given)
        pairs = [pair for own in given for pair in own.items()] if many else []
        wrong = [own for own, by in pairs if own not in names or not (issubclass(type(by), Real) and abs(by) <= 1e308)]
        if wrong or not pairs:
            prefix = f"contrast({combinations!r:.200}) has {wrong[:5] or 'no features'}; expected factors by names"
            raise ConfigurationError(f"{prefix} of features, or a list of them, of {names[:5]}")
        matrix = np.array([[float(own.get(name, 0.0)) for name in names] for own in given])
        values = matrix @ found.estimate
        spread = matrix @ found.covariance @ matrix.T
        inverse = inverse_of(spread)
        if inverse is None:
            raise ConfigurationError("the combinations are linearly dependent, or there are more of them than clusters")
        columns = found.inferred(values, np.sqrt(np.diag(spread)), self._intervals.level)
        rows = rows_of({"contrast": [*map(_written, given)]} | columns)
        statistic = float(values @ inverse @ values) / (1.0 if math.isinf(found.degrees) else len(given))
        return _tested("Wald's test that all are 0", rows, statistic, len(given), found.degrees)

    def compare(self: Any, other: Any) -> Tested:
        """Return the likelihood-ratio test of two models of the same rows, where one has some of the other's columns.

        Both are fitted with ``intervals=True``, and what is compared are their unpenalised fits. Of squares it is the F
        test.

        Parameters
        ----------
        other : estimator
            The other model.

        Returns
        -------
        Tested
            A text, with its numbers as attributes.

        Raises
        ------
        ConfigurationError
            If a model has no likelihood: without a table, with weights or clusters, or with fewer than two rows for
            each column; or if the rows or the columns do not fit together.
        sklearn.exceptions.NotFittedError
            Before `fit`.
        """
        if not hasattr(type(other), "_kind"):
            raise ConfigurationError(f"compare({other!r:.200}); expected an estimator of flwr_fco.tables")
        pair = sorted((self, other), key=lambda own: -len(_table_of(own).found.estimate))
        large, small = (own._table.found for own in pair)
        slopes = [dict(zip(map(str, m._names(m.n_features_in_)), m._slopes.T, strict=False)) for m in pair]
        names = [own.keys() for own in slopes]
        if not names[1] < names[0]:
            prefix = "expected a model with some of the other's columns and no others; these have"
            own, others = sorted(names[0] - names[1])[:5], sorted(names[1] - names[0])[:5]
            raise ConfigurationError(f"{prefix} {own} and {others} of their own")
        # Of the same rows and outcome the derivatives by a column at 0 are the same.
        values = np.array([[own[name] for name in names[1]] for own in slopes])
        apart = not np.allclose(values[0], values[1], rtol=1e-9, atol=1e-9 * float(abs(values).max()))
        if len({(own._kind, own._table.rows_of, own.fit_intercept) for own in pair}) > 1 or apart:
            of = "of the same rows, sites, outcome, intercepts and columns' units"
            raise ConfigurationError(f"expected two models {of}")
        likelihoods = [large.log_likelihood, small.log_likelihood]
        if np.isnan(likelihoods).any() or any(own._table.clustered for own in pair):
            prefix = "a model has no likelihood: its rows have weights or clusters, or are fewer than two for each"
            raise ConfigurationError(f"{prefix} column. Test the columns with contrast([...]) of the larger model")
        count = len(names[0]) - len(names[1])
        rows = rows_of({"model": ["larger", "smaller"], "columns": [*map(len, names)], "log likelihood": likelihoods})
        if self._kind is SQUARES:
            ratio = (small.noise * small.degrees - large.noise * large.degrees) / count / large.noise
            return _tested("Ratio of mean squares", rows, ratio, count, large.degrees, 6)
        return _tested("Likelihood ratio", rows, 2.0 * (likelihoods[0] - likelihoods[1]), count, math.inf, 6)

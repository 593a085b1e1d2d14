"""A Table 1 of all sites before a fit: what each site says of its rows, under its owner's limits, and what is wrong.

A number is wrong that cannot be, or that is far from the other sites': units, codings, files sent twice. A site's
number is compared with the mean of the others' in units of their spread. As a few sites say little of that, it is taken
together with a usual one, which counts as much as twenty more sites (Smyth's moderated t). With all numbers of all
sites counted, honest sites give a warning in at most one of twenty federations, and an error in one of ten thousand, if
they differ by no more than the usual spreads.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import expit

from flwr_fco.certificates import Request
from flwr_fco.client_apps import Disclosure
from flwr_fco.client_apps.client import answers_to
from flwr_fco.core.layout import Vector
from flwr_fco.core.schema import is_missing, names_of
from flwr_fco.core.validation import printable
from flwr_fco.errors import ConfigurationError, FlwrFcoError, ProtocolError
from flwr_fco.messages.protocol import Answer, Node, Question
from flwr_fco.objectives import CoxRegression
from flwr_fco.objectives.design import dense, moments
from flwr_fco.strategies.questions import ask, prepared
from flwr_fco.tables import reading
from flwr_fco.tables.intervals import CLASSES, TIMES
from flwr_fco.tables.reports import SHOWN, SHOWN_SITES, Reported, aligned_columns, class_names
from flwr_fco.tables.sites import ROWS, TURN, asking, ready, same_rows

#: Chance of a warning, and of an error, in a federation of honest sites.
WARNS, REFUSES = 0.05, 1e-4
#: Usual standard deviations between honest sites: of means, in deviations of rows; of log odds; of logarithms of the
#: distances of quartiles, and of mean times; and of correlations with the outcome, of one column and along a direction.
#: Each has an equal part of the probability.
USUAL = {"mean": 0.3, "odds": 0.8, "spread": 0.4, "time": 0.5, "outcome": 0.1, "direction": 0.1}
#: As many sites as the usual spread counts.
_PRIOR = 20.0
#: Part of a site's rows that repeat others, beyond what is expected; and repeated rows that may be where none are seen.
_REPEATED, _FEW = 0.25, 3.0
#: What a site says of each column.
SAID = ("present", "mean", "deviation", "q25", "median", "q75", "wild")
#: What stands for a number that a site withholds: none of a table, of which no mean would be finite.
WITHHELD = float(np.finfo(np.float64).min)
#: Columns above which their correlations are not looked at.
_MOST_COLUMNS = 300
#: A number is wild if it is so many times farther from the median than the next one, and than the quartiles are apart.
_WILD, _FAR = 15.0, 10.0
_QUARTILES = (0.25, 0.5, 0.75)
#: Sums of rounding errors of single precision, relative to them.
_ROUNDED = 1.001
#: How many times the rows of a quartile's mean a column needs: of fewer, differences of sums are single rows.
_APART = 4
#: As many counts as follow from rows, mean, deviation and three quartiles.
_FEW_NUMBERS = 6
#: How many times its square those of all numbers must be, so that a deviation does not say the largest one to a tenth.
_DOMINANT = 1.2


class TableColumn(NamedTuple):
    """A column of the sites' tables: its name, the names of its levels, its unit, and whether it is the time of events.

    Examples
    --------
    >>> TableColumn("stage", ("I", "II"))
    TableColumn(name='stage', levels=('I', 'II'), unit='', is_time=False)
    """

    name: str
    levels: tuple[str, ...] = ()
    unit: str = ""
    is_time: bool = False


def columns_of(model: Any, names: Sequence[str]) -> list[TableColumn]:
    """Return the columns of all sites' tables: the codebook's, or the model's, and the outcome's."""
    book, outcome = ({}, {}) if model.codebook is None else (model.codebook.columns, model.codebook.outcome)
    own = [TableColumn(name, tuple(map(str, of.levels)), of.unit) for name, of in book.items()]
    own = own or [TableColumn(name) for name in names]
    named = [TableColumn(key, (), of.unit) for key, of in outcome.items() if key not in ("entry", "strata", "exposure")]
    if model._kind is TIMES:
        events = [each.name for each in named if outcome[each.name].levels] or ["event"]
        time = next((each for each in named if each.name != events[0]), TableColumn("time"))
        return [*own, time._replace(is_time=True), TableColumn(events[0], ("0", "1"))]
    target = next(iter(named), TableColumn("y"))
    return [*own, target._replace(levels=class_names(model.classes_) if model._kind is CLASSES else ())]


# --- at a site --------------------------------------------------------------------------------------------------------


@answers_to("description")
def description(question: Question, objective: Any) -> Answer:
    """Return what a site says of its rows, which no question changes.

    A count of rows leaves if it is 0, or no fewer than the owner's `min_rows` and `min_class_rows`; of events and
    classes, which the loss has been checked for, than `min_events` or `min_class_rows`, if there is one. Fewer repeated
    rows are none. Quartiles are means of `min_rows` rows, of four times as many at least. Where few rows lack an entry,
    or lack it elsewhere, or two, they are in no sum, as they are in none of a fit. Where few rows have one of few
    numbers, as outcomes are, the column has no other sums, and where few have one of them and an outcome no
    correlation; where one is far beyond all others there is no mean.
    """
    if not hasattr(objective, "table"):
        raise ConfigurationError("the server asks for a Table 1; this site's app is not one of model.client_app(load)")
    ready(question, objective)
    limits: Disclosure = objective.disclosure
    # The table's columns, those of the outcome last; and of a codebook the entries of its own, in all rows.
    columns, entries = objective.table
    rows = dense(objective.features)
    ends = [objective.times, objective.labels == 1] if isinstance(objective, CoxRegression) else [_targets(objective)]
    count = len(columns) - len(ends)
    most = max(limits.min_rows or 1, limits.min_class_rows or 1)
    inner, size = list(rows.T), len(rows)
    if entries is not None:
        lacks = np.isnan([*entries.values()])
        kept = np.ones(lacks.shape[1], dtype=bool)
        # Who lack one entry are those who lack any less those who lack others, and who lack two both less those.
        parts = np.vstack([lacks, lacks.sum(axis=0) > 1])
        while few := [part for part in parts if 0 < part[kept].sum() < most]:
            kept &= ~np.any(few, axis=0)
        lacking = kept & lacks.any(axis=0)
        size += int(lacking.sum())
        inner = [_without_few(entries[own.name], kept, lacking, most) for own in columns[:count]]
    of_outcome = limits.min_events or limits.min_class_rows or most
    least = [most] * count + [of_outcome if own.levels else most for own in columns[count:]]
    each = [_column(*own) for own in zip(columns, [*inner, *ends], least, strict=True)]
    # Without levels there are counts all the same.
    said, counts = (np.concatenate(own) for own in zip(([], [0.0]), *each, strict=True))
    few = [most > 1 and (_outweighed(own) or any(_is_rare(own + 1j * y, most) for y in (0, *ends))) for own in rows.T]
    outcome, widest = _correlations(objective, rows * np.logical_not(few) if any(few) else rows)
    if most > 1:
        # By all of its digits a correlation is a count; that of few rows of one kind and outcome is so by two of them.
        outcome, widest = np.trunc(100.0 * outcome) / 100.0, float(math.ceil(widest))
        outcome *= not any(_is_rare(own, few) or _outweighed(own) for own, few in zip(ends, least[count:], strict=True))
    numbers = {"rows": float(size), "widest": widest, "repeated": repeated(np.column_stack([rows, *ends]), most)}
    return Answer(numbers, {"said": said, "counts": counts, "outcome": outcome})


def _targets(loss: Any) -> Vector:
    """Return the places of the classes, or the numbers."""
    return np.asarray(loss.labels if hasattr(loss, "labels") else loss.targets, dtype=np.float64)


def withheld(counts: NDArray[Any], least: int) -> NDArray[np.bool_]:
    """Return which counts of a known sum are withheld: those of few rows, and the smallest others that hide these.

    The sum of what is withheld follows from the rest: it must not be a few rows, nor a row for each of its parts.

    Examples
    --------
    >>> withheld(np.array([40, 3, 12, 0]), 5).tolist(), withheld(np.array([200, 150, 1, 1]), 5).tolist()
    ([False, True, True, False], [False, True, True, True])
    """
    few = (counts > 0) & (counts < least)
    for other in np.argsort(counts, kind="stable"):
        if counts[other] and few.any() and counts[few].sum() < max(least, few.sum() + 1):
            few[other] = True
    return np.asarray(few)


def _is_rare(values: NDArray[Any], least: int) -> bool:
    """Whether few rows have one of few numbers: of these, mean, deviation and quartiles are counts."""
    counts = np.unique(values, return_counts=True)[1]
    # Of those that hardly repeat nobody knows which they are.
    return counts.size <= min(_FEW_NUMBERS, (values.size + 1) // 2) and bool(withheld(counts, least).any())


def _outweighed(values: Vector) -> bool:
    """Whether one number outweighs all others in sums, which then say it."""
    squares = np.square(values - np.median(values))
    return bool(_DOMINANT * squares.max() > squares.sum())


def repeated(rows: NDArray[Any], least: int) -> float:
    """Return the share of rows that repeat others; 0 where they are few.

    Examples
    --------
    >>> [repeated(np.array([[1.0], [2.0], [1.0], [3.0]]), least) for least in (1, 2)]
    [0.25, 0.0]
    """
    count = len(rows) - len({row.tobytes() for row in rows})
    return count / len(rows) if count >= least else 0.0


def _without_few(values: Vector, kept: NDArray[np.bool_], lacking: NDArray[np.bool_], least: int) -> Vector:
    """Return a column in the rows that are kept, but in few that lack others; with inf if it lacks left-out ones.

    Examples
    --------
    >>> lacking = np.array([True, False, True])
    >>> [_without_few(np.array([1.0, 2.0, np.nan]), lacking | True, lacking, least).tolist() for least in (1, 2)]
    [[1.0, 2.0, nan], [2.0, nan]]
    """
    gone = np.isnan(values)
    few = lacking & ~gone
    kept = kept & ~few if few.sum() < least else kept
    return np.append(values[kept], [np.inf] * int(gone.any() and not gone[kept].any()))


def _column(column: TableColumn, values: Vector, least: int) -> tuple[Vector, Vector]:
    """Return `SAID` of a column, and the counts of its levels."""
    known = np.sort(values[np.isfinite(values)].astype(np.float64))
    parts = np.bincount(known.astype(np.int64), minlength=len(column.levels)) if column.levels else known.size
    counts = np.append(parts, np.isnan(values).sum())
    hidden = withheld(counts, least)
    said = np.full(len(SAID), WITHHELD)
    # An infinite one stands for few that it lacks, which are in no count.
    said[0] = WITHHELD if hidden[-1] or np.isinf(values).any() else known.size
    if column.levels:
        return said, np.where(hidden, WITHHELD, counts)[:-1].astype(np.float64)
    if known.size >= max(1, least) and not _is_rare(known, least):
        at = np.clip([round(q * (known.size - 1) - (least - 1) / 2) for q in _QUARTILES], 0, known.size - least)
        quartiles = [float(known[begin : begin + least].mean()) for begin in at]
        low, middle, high = np.quantile(known, _QUARTILES) if least == 1 else quartiles
        second, first = np.append(0.0, np.sort(np.abs(known - middle)))[-2:]
        wild = float(high > low and first > max(_WILD * second, _FAR * (high - low)))
        if least > 1 and known.size < _APART * least:
            low = middle = high = wild = WITHHELD
        deviation = float(known.std(ddof=1)) if known[0] < known[-1] else 0.0
        said[1:] = [known.mean(), deviation, low, middle, high, wild]
        if least > 1 and wild > 0.0:
            said[1:3] = WITHHELD
    return said, np.zeros(0)


def _correlations(loss: Any, rows: NDArray[Any]) -> tuple[Vector, float]:
    """Return correlations with what the outcome's mean leaves, and the largest eigenvalue of those of the columns."""
    n, d = rows.shape
    rest = _targets(loss)
    if isinstance(loss, CoxRegression):
        rest = -loss.unweighted().link.slope(np.zeros(n), loss.targets)
    means, variances, _ = moments(rows, np.full(n, 1.0 / n))
    scaled = (rows - means) / np.sqrt(np.where(variances > 0.0, variances, 1.0))
    found = scaled.T @ (rest - rest.mean()) / (n * (float(rest.std()) or 1.0))
    return found, float(np.linalg.eigvalsh(scaled.T @ scaled / n)[-1]) if d <= _MOST_COLUMNS else float(d)


# --- of all sites -----------------------------------------------------------------------------------------------------


class Description(Reported):
    """A Table 1 by site: a text, which printing and a notebook show, its numbers, and what seems wrong.

    Attributes
    ----------
    rows : list of dict
        For each site and column, and each level of a column: ``site``, ``column``, ``level``, ``rows``, ``missing``,
        ``count`` of a level, ``mean``, ``deviation``, ``q25``, ``median``, ``q75``. NaN where a site withholds it.
    findings : list of Finding
        What cannot be, or is far from the other sites, the worst first.
    """

    findings: list[Finding]


def describe(model: Any, X: Any, y: Any, groups: Any, features: Any, *, stop: bool) -> Description:
    """Return the Table 1 of the sites of a model, which takes their classes: :meth:`Federated.describe`."""
    if reading.is_grid(X):
        with TURN:
            columns, names, answers, found = _over_a_grid(model, X, features)
    else:
        sites = reading.clients_of(X, y, None, groups)
        if sites[0].site is None:
            raise ConfigurationError("one X needs groups=, the site of each row; or give a dict of the sites' tables")
        columns, names, answers, found = _here(model, sites)
    text, rows = list[str](), list[dict[str, Any]]()
    if answers:
        cells = Cells(columns, names, answers)
        found += findings(cells)
        text, rows = _text(cells), _rows(cells)
    reported = Description("\n".join([*text, *(f"├── {own}" for own in found)]))
    vars(reported).update(rows=rows, findings=found)
    refused = "; ".join(f"{own}" for own in found if own.refused)
    if refused and stop:
        advice = "Mend them at the sites; describe(..., stop=False) returns the table all the same"
        raise ConfigurationError(f"the sites' tables do not fit together: {refused}. {advice}")
    if found:
        warnings.warn(f"before a fit, look at {'; '.join(map(str, found))}", UserWarning, stacklevel=3)
    return reported


def _over_a_grid(model: Any, grid: Any, features: Any) -> Any:
    """Ask the sites of a grid."""
    # A deviation of zeros and ones is a count.
    tables = model._columns_over(grid, features, describes=True)
    names = [*model._names(model.n_features_in_)]
    columns = columns_of(model, names)
    run = prepared(asking(model.num_clients, tables), grid, model._start(), model._timeout)
    levels = sum(len(own.levels) for own in columns)
    shapes = {"said": (len(SAID) * len(columns),), "counts": (1 + levels,), "outcome": (len(names),)}
    request = Request("description", {"codebook": model._digest}, ("rows", "repeated", "widest"), shapes, check=_check)
    answered = ask(run, request, np.zeros(run.problem.layout.size))
    # As the table of a fit calls them.
    called = dict[Any, str](enumerate(getattr(model.codebook, "sites", ())))
    answers = {called.get(own.partition, f"site {own.partition}"): own for own in answered}
    left_out = sorted((Node(row.node_id, row.partition_id).site, row.reason) for row in run.left_out)
    return columns, names, answers, [Finding(called.get(site, f"site {site}"), "", why, True) for site, why in left_out]


def _check(answer: Answer) -> None:
    """Refuse numbers that no rows have, which would make honest sites look odd."""
    said, counts, outcome = (answer.vectors[name] for name in ("said", "counts", "outcome"))
    present, deviations = said.reshape(-1, len(SAID))[:, [0, 2]].T
    rows, numbers = answer.numbers["rows"], [*present, *counts]
    possible = all(own == WITHHELD or own >= 0.0 for own in (*numbers, *deviations)) and max(numbers) <= rows
    repeats, widest = answer.numbers["repeated"], answer.numbers["widest"]
    # No vector of correlations is longer than the root of the largest eigenvalue of the columns' own.
    possible = possible and 0.0 <= repeats <= 1.0 and outcome @ outcome <= _ROUNDED * widest <= 2.0 + outcome.size
    if not possible:
        raise ProtocolError("its Table 1 has counts, deviations or correlations that no rows have")


def _here(model: Any, sites: Sequence[reading.Client]) -> Any:
    """Describe sites whose rows are in this process."""
    if model._kind is CLASSES:
        held = [label for own in sites for label in np.ravel(own.y).tolist() if not is_missing(label)]
        # A site that has numbers where the first one has texts is named below.
        labels = [label for label in held if isinstance(label, str) == isinstance(held[0], str)]
        model.classes_ = np.unique(labels) if labels else model.classes_
    columns = (names_of(getattr(sites[0].features, "columns", None)) or ()) if model.codebook is None else ()
    # The column of clusters is no feature.
    order = [name for name in columns if name != model.cluster] or None
    answers, found, names = dict[str, Answer](), list[Finding](), list[str]()
    for own in sites:
        # As the table of a fit calls it.
        called = own.site if isinstance(own.site, str) else own.name
        data = own.features if own.y is None else (own.features, own.y)
        try:
            objective = model._objective_of(data, order, whose=own.name)
            said = description(Question("description", objective.layout, {}, {"codebook": model._digest}), objective)
            each = list(objective.feature_names or [f"x{j}" for j in range(objective.features.shape[1])])
            if len(names or each) != len(each):
                raise ConfigurationError(f"has {len(each)} columns, and the first site {len(names)}; expected as many")
            answers[called], names = said._replace(examples=float(objective.num_examples)), each
        except (FlwrFcoError, ValueError) as error:
            found.append(Finding(called, "", f"{error}".removeprefix(f"{own.name} "), True))
    return columns_of(model, names), names, answers, found


def _rows(cells: Cells) -> list[dict[str, Any]]:
    """Return a row for each site and column, or level of a column."""
    rows = list[dict[str, Any]]()
    for m, c in np.ndindex(cells.rows.shape):
        own = [(level, cells.counts[m, j]) for j, (place, level) in enumerate(cells.levels) if place == c]
        names = {"site": cells.sites[m], "column": cells.names[c]}
        about = {"rows": cells.rows[m, c], "missing": cells.missing[m, c]}
        about |= dict(zip(SAID[1:-1], cells.said[m, c, 1:-1].tolist(), strict=True))
        rows += [{**names, "level": level, "count": count, **about} for level, count in own or [("", math.nan)]]
    return rows


def _text(cells: Cells) -> list[str]:
    """Return the lines of the table, a column for each site and one for all."""
    lines = [{"": "rows", **_line(cells, cells.rows[:, :1], "{:.0f}")}]
    for c, own in enumerate(cells.columns[:SHOWN]):
        present, mean, deviation = cells.present[:, c], cells.mean[:, c], cells.deviation[:, c]
        title = printable(own.name) + f" ({printable(own.unit)})" * bool(own.unit)
        for j, level in ((j, level) for j, (place, level) in enumerate(cells.levels) if place == c):
            counts = np.append(cells.counts[:, j], cells.counts[:, j].sum())
            shares = counts / np.append(present, present.sum())
            line = _line(cells, np.column_stack([counts, shares]), "{:.0f} ({:.0%})")
            lines.append({"": f"{title}={printable(level)}", **line})
        if not own.levels:
            whole = float(present @ mean / present.sum())
            squares = float((present - 1.0) @ deviation**2 + present @ (mean - whole) ** 2)
            spread = math.sqrt(squares / max(1.0, present.sum() - 1.0))
            each = np.column_stack([np.append(mean, whole), np.append(deviation, spread)])
            lines.append({"": title, **_line(cells, each, "{:.4g} ({:.3g})")})
            lines.append({"": "  quartiles", **_line(cells, cells.quartiles[:, c], "{:.3g}, {:.3g}, {:.3g}")})
        if not (cells.missing[:, c] == 0.0).all():
            lines.append({"": "  missing", **_line(cells, cells.missing[:, c : c + 1], "{:.0f}")})
    if len(cells.sites) > SHOWN_SITES:
        # A line for each site, and what belongs to another line is in the table alone.
        own_lines = [line for line in lines if not line[""].startswith(" ")]
        lines = [{"": site} | {line[""]: line[site] for line in own_lines} for site in [*cells.sites, "all"]]
    more = [f"    and {len(cells.columns) - SHOWN} more columns: .table()"] * (len(cells.columns) > SHOWN)
    return ["Table 1: mean (standard deviation), or rows (share); - is withheld", *aligned_columns(lines), *more]


def _line(cells: Cells, values: NDArray[Any], form: str) -> dict[str, str]:
    """Return each site's numbers as a text, and those of all sites, if they are a count or given."""
    if values.shape == (len(cells.sites), 1):
        values = np.vstack([values, values.sum()])
    texts = [form.format(*own) if np.isfinite(own).all() else "-" for own in values]
    return dict(zip([*cells.sites, "all"], texts, strict=False))


# --- what is wrong ----------------------------------------------------------------------------------------------------


class Finding(NamedTuple):
    """What is wrong at a site, or seems to be.

    Parameters
    ----------
    site : str
        Its name.
    column : str
        Which column; empty for the whole table.
    prefix : str
        In words.
    refused : bool
        Whether a fit would be wrong without a doubt.

    Examples
    --------
    >>> print(Finding("Oslo", "age", "is constant", True))
    Oslo: age is constant
    """

    site: str
    column: str
    prefix: str
    refused: bool

    def __str__(self) -> str:
        return f"{self.site}: {f'{printable(self.column)} '.lstrip()}{self.prefix}"


class Cells:
    """The numbers of a Table 1, of M sites, C columns of their tables, L levels of these, d columns of the model.

    Parameters
    ----------
    columns : sequence of TableColumn
        The tables' columns.
    features : sequence of str
        The names of the model's columns.
    answers : mapping of str to Answer
        What each site says of its rows, by its name.

    Attributes
    ----------
    rows : ndarray, shape (M, C)
        The rows that a column is about.
    said : ndarray, shape (M, C, 7)
        `SAID` of each column; NaN where a site withholds it.
    counts : ndarray, shape (M, L)
        The rows of each level.
    outcome : ndarray, shape (M, d)
        Correlations of the model's columns with what the outcome's mean leaves.
    widest, repeated : ndarray, shape (M,)
        The largest eigenvalue of the correlations of the model's columns, and the part of rows that are there before.
    shares : ndarray, shape (M, C)
        The shares of 1 in columns of 0 and 1, of 2 in those of 1 and 2, and so on; NaN in all others.
    binary : ndarray of bool, shape (C,)
        Which columns are two neighbouring whole numbers at all sites.
    """

    def __init__(self, columns: Sequence[TableColumn], features: Sequence[str], answers: Mapping[str, Answer]) -> None:
        self.sites = list(answers)
        self.features = features
        self.columns = columns
        self.names = [own.name for own in columns]
        self.levels = [(place, level) for place, own in enumerate(columns) for level in own.levels]
        self.times = np.array([own.is_time for own in columns])
        each = [*answers.values()]
        names = ("rows", "widest", "repeated")
        rows, self.widest, self.repeated = np.array([[own.numbers[name] for name in names] for own in each]).T
        names = ("said", "counts", "outcome")
        said, counts, self.outcome = (np.array([own.vectors[name] for own in each]) for name in names)
        # The outcome is that of the rows that lack nothing.
        outcomes = 2 if self.times.any() else 1
        self.rows = np.column_stack([rows] * (len(columns) - outcomes) + [[own.examples for own in each]] * outcomes)
        self.said = np.where(said == WITHHELD, np.nan, said).reshape(len(each), len(columns), len(SAID))
        self.counts = np.where(counts == WITHHELD, np.nan, counts)[:, 1:]
        known, self.mean, self.deviation, *_ = np.moveaxis(self.said, -1, 0)
        self.quartiles = self.said[..., 3:6]
        self.missing = self.rows - known
        #: All rows where a site withholds how many have an entry.
        self.present = np.where(np.isnan(known), self.rows, known)
        variance = np.square(self.deviation) * (1.0 - 1.0 / np.maximum(self.present, 1.0))
        share = self.mean - np.where(np.fmax.reduce(self.deviation) > 0.0, np.floor(np.fmin.reduce(self.mean)), 0.0)
        two = np.isclose(variance, share * (1.0 - share), rtol=1e-9, atol=1e-12) | np.isnan(share)
        self.shares = np.where(two.all(axis=0), share, np.nan)
        self.binary = np.isfinite(self.shares).any(axis=0)


def findings(cells: Cells) -> list[Finding]:
    """Return what cannot be, and what is far from the other sites, the worst first."""
    sums = np.hstack([cells.rows, cells.mean, cells.deviation, cells.counts, cells.outcome])
    odd = (np.where(cells.binary, 0.0, cells.deviation) > 0.0).any(axis=1)
    found = [Finding(cells.sites[m], "", text, True) for m, text in same_rows(cells.sites, [*sums], odd)]
    found += _by_themselves(cells)
    if len(cells.sites) > 1:
        with np.errstate(all="ignore"):
            found += _far_numbers(cells) + _far_outcomes(cells)
    return sorted(found, key=lambda own: not own.refused)


# --- what a site's numbers say by themselves --------------------------------------------------------------------------


def _by_themselves(cells: Cells) -> list[Finding]:
    """Find constant columns, single wild numbers, and repeated rows."""
    found = []
    constant = (cells.deviation == 0.0) & (cells.present >= ROWS) & ~cells.binary
    # A column of which most rows have one value, such as a count of rare events, can be constant at an honest site.
    varies = cells.quartiles[..., 2] > cells.quartiles[..., 0]
    rows = cells.rows[:, 0]
    for m, site in enumerate(cells.sites):
        others = np.arange(len(cells.sites)) != m
        for c in np.flatnonzero(constant[m]):
            prefix = f"is {cells.mean[m, c]:.6g} in all rows"
            if (cells.deviation[others, c] > 0.0).any():
                prefix += ", and varies at other sites: it was not measured, or filled in"
            found.append(Finding(site, cells.names[c], prefix, 2 * varies[others, c].sum() > others.sum()))
        prefix = "has a single number far beyond all others: look at it, and give the codebook a range"
        found += [Finding(site, cells.names[c], prefix, False) for c in np.flatnonzero(cells.said[m, :, -1] > 0.0)]
        # Of a table of few values two rows are the same by chance: how often, the pairs of rows at other sites say.
        pairs = max(1.0, float((0.5 * rows * (rows - 1.0))[others].sum()))
        probability = (_FEW + float((cells.repeated * rows)[others].sum())) / pairs
        usual = max(0.5 * probability * (rows[m] - 1.0), cells.repeated[others].max(initial=0.0))
        if cells.repeated[m] > _REPEATED + usual:
            prefix = f"has {cells.repeated[m]:.0%} of its rows twice, unlike other sites: were they written twice?"
            found.append(Finding(site, "", prefix, False))
    return found


# --- what is far from the other sites ---------------------------------------------------------------------------------


def probabilities(values: NDArray[Any], errors: NDArray[Any], usual: float) -> NDArray[np.float64]:
    """Return how likely honest sites are to have a number so far from the others', times the numbers compared.

    Parameters
    ----------
    values, errors : ndarray, shape (M, J)
        A number of each site, NaN for those without it, and its standard error.
    usual : float
        Usual standard deviation between sites.

    References
    ----------
    Smyth: Linear models and empirical Bayes methods (Stat. Appl. Genet. Mol. Biol. 2004), the moderated t.
    """
    found = []
    known = np.isfinite(values) & np.isfinite(errors)
    squares = np.where(known, errors, 0.0) ** 2
    for m, own in enumerate(known):
        rest = np.delete(known, m, axis=0)
        count = rest.sum(axis=0)
        square, mean = (np.delete(each, m, axis=0).sum(axis=0, where=rest) / count for each in (squares, values))
        apart = np.sum((np.delete(values, m, axis=0) - mean) ** 2, axis=0, where=rest)
        spread = (_PRIOR * (usual**2 + square) + apart) / (_PRIOR + count - 1.0)
        t = (values[m] - mean) / np.sqrt(spread + np.maximum(0.0, squares[m] - square) + spread / count)
        each = known.sum() * len(USUAL) * 2.0 * stats.t.sf(abs(t), _PRIOR + count - 1.0)
        found.append(np.where(own & (count > 0), each, 1.0))
    return np.array(found)


def _far_numbers(cells: Cells) -> list[Finding]:
    """Compare means, distances of quartiles, mean times, odds, and how each column goes with the outcome."""
    number, root, names = ~cells.binary & ~cells.times, np.sqrt(cells.present), cells.names
    deviation = np.where(cells.deviation > 0.0, cells.deviation, np.nan)
    usual = np.nanmedian(np.where(np.isfinite(deviation).any(axis=0), deviation, 1.0), axis=0)
    # A deviation is that of the largest numbers where a column is skewed.
    apart = cells.quartiles[..., 2] - cells.quartiles[..., 0]
    means, spreads = (np.where(number, own, np.nan) for own in (cells.mean / usual, np.log(apart)))
    times = np.where(cells.times, np.log(cells.mean), np.nan)
    # One that a site withholds, or of a constant, is 0.
    known, error = np.where(cells.outcome == 0.0, np.nan, cells.outcome), np.sqrt(1.0 / cells.rows[:, -1:])
    mean, spread = (f"has {kind} of {{}}: check its unit and coding" for kind in ("a mean", "an interquartile range"))
    reverse = "has a correlation with the outcome of {}: is it coded in reverse, or made of the outcome?"
    compared: tuple[tuple[Any, ...], ...] = (
        ("mean", names, means, deviation / usual / root, cells.mean, mean, ".3g"),
        ("spread", names, spreads, 2.0 / root, apart, spread, ".3g"),
        ("time", names, times, deviation / cells.mean / root, cells.mean, mean, ".3g"),
        ("odds", *_odds(cells), "has a share of {}: check its coding", ".0%"),
        ("outcome", cells.features, known, error, cells.outcome, reverse, ".2f"),
    )
    found = dict[tuple[int, int, str], Finding]()
    for kind, columns, values, errors, shown, prefix, form in compared:
        probability = probabilities(values, errors, USUAL[kind])
        for m, j in zip(*np.nonzero(probability < WARNS), strict=True):
            others = np.delete(shown[:, j], m)
            ranged = f"{shown[m, j]:{form}}, at other sites {np.nanmin(others):{form}} to {np.nanmax(others):{form}}"
            own = Finding(cells.sites[m], columns[j], prefix.format(ranged), bool(probability[m, j] < REFUSES))
            # The first of what is wrong with a column's numbers.
            found.setdefault((m, j, form), own)
    return [*found.values()]


def _odds(cells: Cells) -> tuple[list[str], NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return names, log odds, errors and shares of each level, of two the second, and of neighbouring whole numbers."""
    binary = np.flatnonzero(cells.binary)
    of = [column for column, _ in cells.levels]
    kept = [j for j, column in enumerate(of) if of.count(column) > 2 or of[:j].count(column)]
    counts = np.hstack([cells.counts[:, kept], (cells.shares * cells.present)[:, binary]])
    totals = cells.present[:, [*(of[j] for j in kept), *binary]]
    names = [f"{cells.names[of[j]]}={cells.levels[j][1]}" for j in kept] + [cells.names[c] for c in binary]
    odds = np.log((counts + 0.5) / (totals - counts + 0.5))
    # The error is that at the others' odds, as those of a count of 0 are not known.
    known = np.isfinite(odds)
    rest = (np.nansum(odds, axis=0) - np.where(known, odds, 0.0)) / np.maximum(known.sum(axis=0) - known, 1)
    return names, odds, 1.0 / np.sqrt((totals + 1.0) * expit(rest) * expit(-rest)), counts / totals


def _far_outcomes(cells: Cells) -> list[Finding]:
    """Compare how all columns together go with the outcome, along the direction of the other sites."""
    values, errors, usual = cells.outcome, np.sqrt(1.0 / cells.rows[:, -1]), USUAL["direction"]
    others = ~np.eye(len(values), dtype=bool)
    mean = np.array([values[own].mean(axis=0) for own in others])
    size = np.sqrt((mean * mean).sum(axis=1))
    noise = (usual**2 + np.array([errors[own].max() for own in others]) ** 2) / (len(values) - 1)
    # The length of a mean is too large by that of its noise.
    expected = (size**2 - values.shape[1] * noise) / size
    along = (values * mean).sum(axis=1) / size
    # Correlated columns have errors in common, along a direction up to so many times those of one column.
    t = (along - expected) / np.sqrt(cells.widest.max() * (usual**2 + errors**2 + noise))
    probability = stats.t.cdf(t, _PRIOR) * len(values) * len(USUAL)
    found = []
    for m in np.flatnonzero((expected > 0.0) & values.any(axis=1) & (probability < WARNS)):
        prefix = f"correlates with the outcome unlike other sites ({along[m]:.2f} along them, not {expected[m]:.2f})"
        advice = "is the outcome coded in reverse, or does it belong to other rows?"
        found.append(Finding(cells.sites[m], "", f"{prefix}: {advice}", bool(probability[m] < REFUSES)))
    return found

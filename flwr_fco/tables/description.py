"""A Table 1 of all sites before a fit: what each site says of its rows, under its owner's limits, and what is wrong."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flwr_fco.certificates import Request
from flwr_fco.client_apps import Disclosure
from flwr_fco.client_apps.client import answers_to
from flwr_fco.core.layout import Vector
from flwr_fco.core.schema import is_missing
from flwr_fco.core.validation import printable
from flwr_fco.errors import ConfigurationError, FlwrFcoError, ProtocolError
from flwr_fco.messages.protocol import Answer, Node, Question
from flwr_fco.objectives import CoxRegression
from flwr_fco.objectives.design import dense, moments
from flwr_fco.strategies.questions import ask, prepared
from flwr_fco.tables import reading
from flwr_fco.tables.checks import SAID, WITHHELD, Cells, Finding, TableColumn, findings
from flwr_fco.tables.intervals import CLASSES, TIMES
from flwr_fco.tables.reports import Reported, aligned_columns, class_names
from flwr_fco.tables.sites import TURN, asking, check_codebook

#: Columns above which their correlations are not looked at; in the text of a table; and sites that are its columns.
_MOST_COLUMNS = 300
_SHOWN = 40
_SHOWN_SITES = 8
#: A number is wild if it is so many times farther from the median than the next one, and than the quartiles are apart.
_WILD = 15.0
_FAR = 10.0
_QUARTILES = (0.25, 0.5, 0.75)
#: Sums of rounding errors of single precision, relative to them.
_ROUNDED = 1.001
#: How many times the rows of a quartile's mean a column needs: of fewer, differences of sums are single rows.
_APART = 4
#: As many counts as follow from rows, mean, deviation and three quartiles.
_FEW_NUMBERS = 6
#: How many times its square those of all numbers must be, so that a deviation does not say the largest one to a tenth.
_DOMINANT = 1.2


class Facts(NamedTuple):
    """What a site keeps of its table besides the model's columns, and what of it may leave.

    Parameters
    ----------
    columns : sequence of TableColumn
        The table's columns, those of the outcome last.
    values : mapping of str to ndarray, or None
        The entries of those of a codebook, in all rows; None if the table has the model's columns.
    disclosure : Disclosure
        The owner's limits.
    """

    columns: Sequence[TableColumn]
    values: Mapping[str, Vector] | None
    disclosure: Disclosure


def columns_of(model: Any, names: Sequence[str]) -> list[TableColumn]:
    """Return the columns of all sites' tables: the codebook's, or the model's, and the outcome's."""
    book = model.codebook
    outcome = [] if book is None else [*book.outcome.items()]
    own = [TableColumn(name) for name in names]
    if book is not None:
        own = [TableColumn(name, tuple(map(str, of.levels)), of.unit) for name, of in book.columns.items()]
    named = [TableColumn(name, (), of.unit) for name, of in outcome if name not in ("entry", "strata", "exposure")]
    if model._kind is TIMES:
        events = [each.name for each in named if book.outcome[each.name].levels] or ["event"]
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
    facts: Facts | None = getattr(objective, "facts", None)
    if facts is None:
        raise ConfigurationError("the server asks for a Table 1; this site's app is not one of model.client_app(load)")
    check_codebook(question, objective)
    limits = facts.disclosure
    # Not about the centre of a fit that has not ended.
    objective.shift(np.zeros(objective.features.shape[1]))
    rows = dense(objective.features)
    ends = [objective.times, objective.labels == 1] if isinstance(objective, CoxRegression) else [_targets(objective)]
    count = len(facts.columns) - len(ends)
    most = max(limits.min_rows or 1, limits.min_class_rows or 1)
    inner, size = list(rows.T), len(rows)
    if facts.values is not None:
        lacks = np.isnan([*facts.values.values()])
        kept = np.ones(lacks.shape[1], dtype=bool)
        # Who lack one entry are those who lack any less those who lack others, and who lack two both less those.
        parts = np.vstack([lacks, lacks.sum(axis=0) > 1])
        while few := [part for part in parts if 0 < part[kept].sum() < most]:
            kept &= ~np.any(few, axis=0)
        lacking = kept & lacks.any(axis=0)
        size += int(lacking.sum())
        inner = [_without_few(facts.values[own.name], kept, lacking, most) for own in facts.columns[:count]]
    of_outcome = limits.min_events or limits.min_class_rows or most
    least = [most] * count + [of_outcome if own.levels else most for own in facts.columns[count:]]
    each = [_column(*own) for own in zip(facts.columns, [*inner, *ends], least, strict=True)]
    said = np.concatenate([own for own, _ in each])
    counts = np.concatenate([np.zeros(1), *(own for _, own in each)])
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


def describe(
    model: Any, X: Any, y: Any, groups: Any, features: Any, classes: Any, stop: bool, timeout: float
) -> Description:
    """Return the Table 1 of the sites of a model: :meth:`Federated.describe`."""
    model = copy.copy(model)
    model._check_settings()
    model._timeout = timeout
    model.classes_ = model._all_classes(classes)
    if reading.is_grid(X):
        with TURN:
            columns, names, answers, found = _over_a_grid(model, X, features, timeout)
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


def _over_a_grid(model: Any, grid: Any, features: Any, timeout: float) -> Any:
    """Ask the sites of a grid."""
    # A deviation of zeros and ones is a count.
    tables = model._columns_over(grid, features, describes=True)
    names = [*model._names(model.n_features_in_)]
    columns = columns_of(model, names)
    run = prepared(asking(model.num_clients, tables), grid, model._start(), timeout)
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
    columns = reading.columns_in(sites[0].features) if model.codebook is None else []
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
    rows = []
    for m, site in enumerate(cells.sites):
        for c, column in enumerate(cells.names):
            own = [(level, cells.counts[m, j]) for j, (place, level) in enumerate(cells.levels) if place == c]
            about = {"rows": cells.rows[m, c], "missing": cells.missing[m, c]}
            about |= dict(zip(SAID[1:-1], cells.said[m, c, 1:-1].tolist(), strict=True))
            for level, count in own or [("", math.nan)]:
                rows.append({"site": site, "column": column, "level": level, "count": count, **about})
    return rows


def _text(cells: Cells) -> list[str]:
    """Return the lines of the table, a column for each site and one for all."""
    lines = [{"": "rows", **_line(cells, cells.rows[:, :1], "{:.0f}")}]
    for c, own in enumerate(cells.columns[:_SHOWN]):
        present, mean, deviation = cells.present[:, c], cells.mean[:, c], cells.deviation[:, c]
        for j, level in ((j, level) for j, (place, level) in enumerate(cells.levels) if place == c):
            counts = np.append(cells.counts[:, j], cells.counts[:, j].sum())
            shares = counts / np.append(present, present.sum())
            line = _line(cells, np.column_stack([counts, shares]), "{:.0f} ({:.0%})")
            lines.append({"": f"{own.title}={printable(level)}", **line})
        if not own.levels:
            whole = float(present @ mean / present.sum())
            squares = float((present - 1.0) @ deviation**2 + present @ (mean - whole) ** 2)
            spread = math.sqrt(squares / max(1.0, present.sum() - 1.0))
            each = np.column_stack([np.append(mean, whole), np.append(deviation, spread)])
            lines.append({"": own.title, **_line(cells, each, "{:.4g} ({:.3g})")})
            lines.append({"": "  quartiles", **_line(cells, cells.quartiles[:, c], "{:.3g}, {:.3g}, {:.3g}")})
        if not (cells.missing[:, c] == 0.0).all():
            lines.append({"": "  missing", **_line(cells, cells.missing[:, c : c + 1], "{:.0f}")})
    if len(cells.sites) > _SHOWN_SITES:
        # A line for each site, and what belongs to another line is in the table alone.
        own_lines = [line for line in lines if not line[""].startswith(" ")]
        lines = [{"": site} | {line[""]: line[site] for line in own_lines} for site in [*cells.sites, "all"]]
    more = [f"    and {len(cells.columns) - _SHOWN} more columns: .table()"] * (len(cells.columns) > _SHOWN)
    return ["Table 1: mean (standard deviation), or rows (share); - is withheld", *aligned_columns(lines), *more]


def _line(cells: Cells, values: NDArray[Any], form: str) -> dict[str, str]:
    """Return each site's numbers as a text, and those of all sites, if they are a count or given."""
    if values.shape == (len(cells.sites), 1):
        values = np.vstack([values, values.sum()])
    texts = [form.format(*own) if np.isfinite(own).all() else "-" for own in values]
    return dict(zip([*cells.sites, "all"], texts, strict=False))

"""What a fitted estimator says of itself: its summary, tests of its coefficients, and the texts of both."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from sklearn.utils.validation import check_is_fitted

from flwr_fco.algorithms.newton.model import inverse as inverse_of
from flwr_fco.core.validation import printable
from flwr_fco.errors import ConfigurationError
from flwr_fco.results import frame_of
from flwr_fco.tables.intervals import CLASSES, COMPARED, ESTIMATED, SQUARES, Table


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
    if isinstance(value, float) and math.isnan(value):
        return "-"
    if not isinstance(value, float):
        return printable(str(value))
    # 1234 and not 1.23e+03.
    return f"{value:.0f}" if 10.0**digits <= abs(value) < 1e7 else f"{value:.{digits}g}"


def class_names(classes: NDArray[Any]) -> tuple[str, ...]:
    """Return classes as texts, of which 0 and '0' differ, and 0 and 0.0 do not."""
    return tuple(f"{label:.17g}" if isinstance(label, Real) else repr(label) for label in classes.tolist())


#: Coefficients in the text of a summary, and sites with their own estimates, at most.
_SHOWN = 40
_SHOWN_SITES = 8


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


def summary_of(model: Any) -> Summary:
    """Return the summary of a fitted estimator."""
    check_is_fitted(model)
    # A column for each class; of squares, and of two classes, a single one.
    w = np.atleast_2d(model.coef_).T
    names = model._names(len(w))
    labels = ["coefficient"] if w.shape[1] == 1 else [str(label) for label in model.classes_]
    columns: dict[str, Any] = dict(zip(labels, w.T.tolist(), strict=True))
    more = {"penalty_factor": model._factors, "deviation": model._scales}
    columns |= {name: own.tolist() for name, own in more.items() if own is not None}
    rows = [{"feature": str(name)} | {key: columns[key][j] for key in columns} for j, name in enumerate(names)]
    size = np.abs(w).max(axis=1)
    count = int(np.count_nonzero(size))
    shown = [rows[j] for j in np.argsort(-size, kind="stable")[: min(count, _SHOWN)]]
    if model._common_intercept:
        intercepts = np.atleast_1d(model.intercept_).tolist()
        shown.insert(0, {"feature": "(intercept)"} | dict(zip(labels, intercepts, strict=True)))
    lines = [*model._lines]
    if model._kind is CLASSES and len(model.classes_) == 2:
        # The rows of each class are not known where each site has an intercept of its own.
        weighted = " by weight" * model._weighted
        counts = [f" ({count:g}{weighted})" for count in getattr(model, "class_count_", ())] or [""] * 2
        other, one = (repr(label) + own for label, own in zip(model.classes_.tolist(), counts, strict=True))
        lines.insert(2, ("Odds", f"of {one} against {other}"))
    lines += [("Coefficients", f"{count} of {len(w)} are not 0" + ", the largest first" * (count > 1))]
    text = aligned_columns(shown)
    text += [f"    and {count - _SHOWN} more; all features: .table()"] * (count > _SHOWN)
    text += _with_intervals(model._table, rows)
    if model._on_trust:
        text.append("Columns were matched by position: that they are the same at all sites is taken on trust.")
    return Summary.of(type(model).__name__, lines, text, rows=rows)


def _with_intervals(table: Table | None, rows: list[dict[str, Any]]) -> list[str]:
    """Add what is known of the asked columns to their rows, and return it as lines of text."""
    if table is None:
        return []
    own, sites = table.rows, table.sites
    for j, row in enumerate(rows):
        row |= own.get(j, dict.fromkeys(next(iter(own.values())), math.nan))
    shown = list(own) if len(own) <= _SHOWN else sorted(own, key=lambda j: own[j]["p"])[:_SHOWN]
    lines = [f"├── {title}: {about}" for title, about in table.lines]
    # A single site agrees with itself.
    beside = (COMPARED, sites if len(sites) <= _SHOWN_SITES else ()) if table.rows_of[1] > 1 else ()
    for names in (ESTIMATED, *beside):
        if names:
            cells = [{"feature": rows[j]["feature"]} | {k: own[j][k] for k in names if k in own[j]} for j in shown]
            lines += aligned_columns(cells)
    lines += aligned_columns([{"intercept": "", **row} for row in table.intercepts[:_SHOWN]])
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


def contrasted(model: Any, combinations: Any) -> Tested:
    """Return Wald's test of linear combinations of a fitted estimator's coefficients."""
    found = _table_of(model).found
    given = [combinations] if isinstance(combinations, Mapping) else combinations
    names = [str(name) for name in model._names(len(found.estimate))]
    many = isinstance(given, Sequence) and given and all(isinstance(own, Mapping) and own for own in given)
    unknown = [name for own in given for name in own if name not in names] if many else []
    factors = [each for own in given for each in own.values()] if many else []
    if not many or unknown or not all(isinstance(each, Real) and math.isfinite(each) for each in factors):
        prefix = f"contrast({combinations!r:.200})"
        prefix += f" has {unknown[:5] or 'no features'}" * bool(unknown or not many)
        raise ConfigurationError(f"{prefix}; expected factors by names of features, or a list of them, of {names[:5]}")
    matrix = np.array([[float(own.get(name, 0.0)) for name in names] for own in given])
    values = matrix @ found.estimate
    spread = matrix @ found.covariance @ matrix.T
    inverse = inverse_of(spread)
    if inverse is None:
        raise ConfigurationError("the combinations are linearly dependent, or there are more of them than clusters")
    columns = found.inferred(values, np.sqrt(np.diag(spread)), model._intervals.level)
    rows = [
        {"contrast": _written(combination), **{name: float(own[row]) for name, own in columns.items()}}
        for row, combination in enumerate(given)
    ]
    statistic = float(values @ inverse @ values) / (1.0 if math.isinf(found.degrees) else len(given))
    return _tested("Wald's test that all are 0", rows, statistic, len(given), found.degrees)


def _written(combination: Mapping[str, float]) -> str:
    """Return a combination in words, such as ``age - 2 sex``."""
    signed = [("-" if factor < 0 else "+", abs(factor), name) for name, factor in combination.items()]
    text = " ".join(f"{sign} {'' if size == 1 else f'{size:g} '}{name}" for sign, size, name in signed)
    return text.removeprefix("+ ") if text.startswith("+") else f"-{text[2:]}"


def compared(model: Any, other: Any) -> Tested:
    """Return the likelihood-ratio test of two fitted estimators, of which one has some of the other's columns."""
    if not hasattr(type(other), "_kind"):
        raise ConfigurationError(f"compare({other!r:.200}); expected an estimator of flwr_fco.tables")
    tables = [_table_of(model), _table_of(other)]
    slopes = [dict(zip(map(str, m._names(m.n_features_in_)), m._slopes.T, strict=False)) for m in (model, other)]
    names = [set(own) for own in slopes]
    if len(names[0]) < len(names[1]):
        tables, names = tables[::-1], names[::-1]
    if not names[1] < names[0]:
        raise ConfigurationError(
            "expected a model with some of the other's columns and no others; these have "
            f"{sorted(names[0] - names[1])[:5]} and {sorted(names[1] - names[0])[:5]} of their own"
        )
    large, small = tables
    same = large.rows_of == small.rows_of
    # Of the same rows and outcome the derivatives by a column at 0 are the same.
    values = np.array([[own[name] for name in names[1]] for own in slopes])
    apart = not np.allclose(values[0], values[1], rtol=1e-9, atol=1e-9 * float(abs(values).max()))
    if model._kind is not other._kind or not same or apart or model.fit_intercept != other.fit_intercept:
        raise ConfigurationError("expected two models of the same rows, sites, outcome, intercepts and columns' units")
    if math.isnan(large.found.log_likelihood + small.found.log_likelihood) or large.clustered or small.clustered:
        prefix = "a model has no likelihood: its rows have weights or clusters, or are fewer than two for each column"
        raise ConfigurationError(f"{prefix}. Test the columns with contrast([...]) of the larger model")
    count = len(names[0]) - len(names[1])
    rows = [
        {"model": kind, "columns": len(own), "log likelihood": table.found.log_likelihood}
        for kind, own, table in zip(("larger", "smaller"), names, tables, strict=True)
    ]
    if model._kind is SQUARES:
        squares = [found.noise * found.degrees for found in (large.found, small.found)]
        ratio = (squares[1] - squares[0]) / count / large.found.noise
        return _tested("Ratio of mean squares", rows, ratio, count, large.found.degrees, 6)
    statistic = 2.0 * (large.found.log_likelihood - small.found.log_likelihood)
    return _tested("Likelihood ratio", rows, statistic, count, math.inf, 6)

"""What a fitted estimator says of itself: its summary, its quality at the sites, and the texts of both."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from flwr_fco.client_apps import client_app as make_app
from flwr_fco.core.logs import printable
from flwr_fco.core.schema import names_of
from flwr_fco.messages.protocol import Described
from flwr_fco.objectives.base import Objective
from flwr_fco.results import frame_of
from flwr_fco.simulation import simulate
from flwr_fco.strategies import FedNewton
from flwr_fco.strategies.nodes import Tables
from flwr_fco.tables.intervals import COMPARED, ESTIMATED, Questions, Table
from flwr_fco.tables.quality import Found, judged
from flwr_fco.tables.reading import is_grid


def aligned_columns(rows: list[dict[str, Any]]) -> list[str]:
    """Return a table's lines, the header first; missing cells are empty. Names of sites' columns are shown as text."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [["", *map(printable, names[1:])], *([_cell(row.get(name, "")) for name in names] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(names))]
    aligned = ([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])] for line in cells)
    return ["    " + "  ".join(line).rstrip() for line in aligned]


def _cell(value: Any) -> str:
    if isinstance(value, float) and math.isnan(value):
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else printable(str(value))


def class_names(classes: NDArray[Any]) -> tuple[str, ...]:
    """Return classes as texts, of which 0 and '0' differ, and 0 and 0.0 do not."""
    return tuple(repr(label) if isinstance(label, str) else f"{label:.17g}" for label in classes.tolist())


#: Options of a strategy that is used, or of which only questions are, at however many sites.
FEW: dict[str, Any] = {"min_train_nodes": 1, "fraction_evaluate": 0.0}
#: Coefficients in the text of a summary, and sites with their own estimates, at most.
_SHOWN, _SHOWN_SITES = 40, 8


class _Told(str):
    """A text, which printing and a notebook show, and the rows of a table."""

    rows: list[dict[str, Any]]

    def table(self) -> Any:
        """Return the rows as a pandas ``DataFrame`` (``pip install pandas``)."""
        return frame_of(self.rows)

    __repr__ = str.__str__


class Summary(_Told):
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
    if model._factors is not None:
        columns["penalty_factor"] = model._factors.tolist()
    if model._scales is not None:
        columns["deviation"] = model._scales.tolist()
    rows = [{"feature": str(name)} | {key: columns[key][j] for key in columns} for j, name in enumerate(names)]
    size = np.abs(w).max(axis=1)
    count = int(np.count_nonzero(size))
    order = np.argsort(-size, kind="stable")[: min(count, _SHOWN)]
    shown = [rows[j] for j in order]
    if model._common_intercept:
        intercepts = np.atleast_1d(model.intercept_).tolist()
        shown.insert(0, {"feature": "(intercept)"} | dict(zip(labels, intercepts, strict=True)))
    lines = [*model._lines, ("Coefficients", f"{count} of {len(w)} are not 0" + ", the largest first" * (count > 1))]
    text = [type(model).__name__, *(f"├── {title}: {about}" for title, about in lines), *aligned_columns(shown)]
    if count > _SHOWN:
        text.append(f"    and {count - _SHOWN} more; all features: .table()")
    text += _with_intervals(model._table, rows)
    if model._on_trust:
        text.append("Columns were matched by position: that they are the same at all sites is taken on trust.")
    summary = Summary("\n".join(text))
    summary.rows = rows
    return summary


def _with_intervals(table: Table | None, rows: list[dict[str, Any]]) -> list[str]:
    """Add what is known of the asked columns to their rows, and return it as lines of text."""
    if table is None:
        return []
    own, sites = table.rows, table.sites
    nothing = dict.fromkeys(next(iter(own.values())), math.nan)
    for j, row in enumerate(rows):
        row |= own.get(j, nothing)
    shown = list(own) if len(own) <= _SHOWN else sorted(own, key=lambda j: own[j]["p"])[:_SHOWN]
    lines = [f"├── {title}: {about}" for title, about in table.lines]
    for names in (ESTIMATED, COMPARED if sites else (), sites if len(sites) <= _SHOWN_SITES else ()):
        if names:
            cells = [{"feature": rows[j]["feature"]} | {k: own[j][k] for k in names if k in own[j]} for j in shown]
            lines += aligned_columns(cells)
    if len(own) > len(shown):
        lines.append(f"    of the smallest p, and {len(own) - len(shown)} more columns: .table()")
    return lines


class Quality(_Told):
    """How good a model is on some rows: a text, which printing and a notebook show, and its numbers.

    Attributes
    ----------
    overall : dict of str to float
        Of all rows: ``concordance``, of the ``pairs`` within sites; ``slope`` of the calibration and ``slope error``;
        of classes ``intercept``, ``intercept error`` and ``Brier``. NaN where the rows do not tell it.
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


def quality_of(model: Any, X: Any, y: Any, groups: Any) -> Quality:
    """Return how good a fitted estimator is on the rows of several sites."""
    found: Found = _judged(model, X, y, groups)
    lines = found.lines
    if model._weighted:
        lines.append(("Weights", "none: every row counts once, unlike in the fit"))
    text = [f"Quality of {type(model).__name__}", *(f"├── {title}: {about}" for title, about in lines)]
    text += aligned_columns(found.sites)
    if found.bins:
        text += aligned_columns([{"bin": "scores", **own} for own in found.bins])
    quality = Quality("\n".join(text))
    quality.overall, quality.rows, quality.bins = found.overall, found.sites, found.bins
    return quality


def _judged(model: Any, X: Any, y: Any, groups: Any) -> Any:
    """Ask the sites about a model."""
    point = np.ravel(np.append(model.coef_, model.intercept_) if model.fit_intercept else model.coef_)
    start, own = model._start(model.n_features_in_, 1), FedNewton(min_available_nodes=1, **FEW)
    if is_grid(X):
        own.min_available_nodes = model.num_clients
        names = names_of(getattr(model, "feature_names_in_", None))
        own.tables = Tables(Described(names, model._names_of_classes()))
        return Questions(own, partial(judged, kind=model._kind, point=point)).start(X, start, 1)
    # The rows are here, and are compared as those of a fit; a copy, because a fitted model is not changed.
    own.tables = Tables(settled=True)
    other, extra = copy.copy(model), (model.classes_,) if hasattr(model, "classes_") else ()
    parts = other._parts(X, y, None, groups, reset=False)
    objectives = [model._objective(*pair, *extra) for pair in zip(parts.features, parts.y, strict=True)]
    asked = Questions(own, partial(judged, kind=model._kind, point=point, sites=other._sites))
    return simulated(objectives, asked, start, 1)


def simulated(objectives: Sequence[Objective], runs: Any, start: Any, num_rounds: int) -> Any:
    """Run a strategy, or what starts like one, in this process, with a node for each objective."""
    app = make_app(lambda context: objectives[int(context.node_config["partition-id"])])
    options: dict[str, Any] = {"initial_arrays": start, "progress": False, "on_interrupt": "raise"}
    return simulate(runs, app, num_nodes=len(objectives), num_rounds=num_rounds, **options)

"""What a fitted estimator says of itself: its summary, its quality at the sites, and the texts of both."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted, column_or_1d

from flwr_fco.client_apps import client_app as make_app
from flwr_fco.core.logs import printable
from flwr_fco.core.schema import names_of
from flwr_fco.errors import ConfigurationError
from flwr_fco.inference.federated import COMPARED, ESTIMATED, SQUARES, Kind, Table
from flwr_fco.inference.forest import forest
from flwr_fco.inference.quality import Found, Judged, about_pairs
from flwr_fco.objectives.base import Objective
from flwr_fco.results import frame_of
from flwr_fco.simulation import simulate
from flwr_fco.sklearn.reading import are_parts, is_grid
from flwr_fco.sklearn.solving import FEW
from flwr_fco.strategies import FedNewton


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


def class_names(
    classes: NDArray[Any], weights: NDArray[np.float64] | Literal["balanced"] | None = None
) -> tuple[str, ...]:
    """Return classes as texts, of which 0 and '0' differ, and 0 and 0.0 do not; with their weights."""
    names = [repr(label) if isinstance(label, str) else f"{label:.17g}" for label in classes.tolist()]
    if weights is None or isinstance(weights, str):
        return tuple(name if weights is None else f"{name} {weights}" for name in names)
    return tuple(f"{name} of weight {factor:.6g}" for name, factor in zip(names, weights, strict=True))


#: Coefficients in the text of a summary, and sites with their own estimates, at most.
_SHOWN, _SHOWN_SITES = 40, 8


class Summary(str):
    """What a fitted estimator says of its fit: a text, which printing and a notebook show, and a table.

    Attributes
    ----------
    rows : list of dict
        Each feature's name and coefficients, in the order of the columns.

    Examples
    --------
    >>> from flwr_fco.sklearn import FederatedLasso
    >>> model = FederatedLasso(0.1).fit([np.eye(2), np.eye(2)], [np.array([3.0, 0.0]), np.array([3.0, 0.0])])
    >>> [row["feature"] for row in model.summary().rows]
    ['x0', 'x1']
    """

    rows: list[dict[str, Any]]
    _sites: tuple[str, ...] = ()
    _level: float | None = None

    def table(self) -> Any:
        """Return all features as a pandas ``DataFrame`` (``pip install pandas``)."""
        return frame_of(self.rows)

    def plot(self, file: str | os.PathLike[str]) -> None:
        """Draw a forest plot: intervals of all sites together, of each site, and between sites (Hartung and Knapp).

        The axis is that of the estimates, of odds or hazard ratios if there are any: features in very different units
        do not go together on it, so choose units, or ``Intervals(columns=...)``.

        Parameters
        ----------
        file : path-like
            PNG, SVG or PDF.

        Raises
        ------
        ConfigurationError
            If the fit was without intervals, or matplotlib is not installed.
        """
        if self._level is None:
            raise ConfigurationError("this fit has no intervals to draw; expected one with fit(..., intervals=True)")
        forest(self.rows, self._sites, self._level).savefig(file, dpi=200, bbox_inches="tight")

    __repr__ = str.__str__


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
    if model._selected is not None:
        columns["selection frequency"] = model._selected.frequencies.tolist()
        columns["selected"] = [int(own) for own in model._selected.selected]
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
    if model._table is not None and model._intervals is not None:
        summary._sites, summary._level = model._table.sites, model._intervals.level
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


class Quality(str):
    """How good a model is on some rows: a text, which printing and a notebook show, and its numbers.

    Attributes
    ----------
    overall : dict of str to float
        Of all rows: ``concordance``, of the ``pairs`` within sites; ``slope`` of the calibration and ``slope error``;
        of classes ``intercept``, ``intercept error`` and ``Brier``. NaN where the rows do not tell it. Where each site
        was left out, there is no common slope.
    rows : list of dict
        Of each site: ``site``, ``rows``, ``events``, ``concordance``, of classes ``Brier``, and where each site was
        left out the calibration there.
    bins : list of dict
        Of each bin of scores, from the lowest: the score ``up to`` which it goes, ``rows``, ``expected`` and
        ``observed`` events. Empty if a site keeps them back.

    Examples
    --------
    >>> from flwr_fco.sklearn import FederatedLogisticRegression
    >>> X, y = [np.array([[0.0], [1.0], [2.0]])] * 2, [np.array([0, 1, 1]), np.array([0, 0, 1])]
    >>> quality = FederatedLogisticRegression().fit(X, y).quality(X, y)
    >>> [row["events"] for row in quality.rows], quality.overall["concordance"]
    ([2, 1], 1.0)
    """

    overall: dict[str, float]
    rows: list[dict[str, Any]]
    bins: list[dict[str, float]]

    def table(self) -> Any:
        """Return what is known of each site as a pandas ``DataFrame`` (``pip install pandas``)."""
        return frame_of(self.rows)

    __repr__ = str.__str__


class Judges:
    """An estimator whose fitted models the sites can judge."""

    _kind: Kind
    site_intercepts: Any
    #: Whether rows of the fit had weights, of whatever kind; and weights of their own.
    _weighted = False
    _row_weights = False
    #: How `y` is checked besides.
    _of_y: Mapping[str, Any] = MappingProxyType({})

    def quality(self, X: Any, y: Any = None, groups: Any = None, *, leave_one_out: bool = False) -> Quality:
        """Return how good the fitted model is on the rows of several sites, which send sums of them.

        Of two classes and of survival times. Give rows that the model has not been fitted to: on those of the fit it
        looks better than it is. Or leave each site out of a fit, and judge that model there.

        Every row counts once, whatever weights of rows or classes the fit had, so that chances are judged by how often
        events happen. A model of ``class_weight="balanced"`` promises as many events as others, and the calibration's
        intercept says by how much that is off.

        Parameters
        ----------
        X : array-like or sparse matrix, shape (n, d), a list of them, or a Flower Grid
            Each site's rows, as for :meth:`fit`.
        y : array-like, or a list of them
            The classes, or the times and events, as for :meth:`fit`; none with a grid.
        groups : array-like, shape (n,), optional
            The site of each row of one `X`.
        leave_one_out : bool, default False
            Whether each site is judged by a model of the same parameters that is fitted without it: as many fits as
            there are sites, over the same rows. Not after a fit with `sample_weight`, which these fits would lack.

        Returns
        -------
        Quality
            A text, with its numbers as attributes.

        Raises
        ------
        ConfigurationError
            Of squares, of more than two classes, of intercepts that stay at the sites, or if a site is left out and
            there is no other one, or the fit had a `sample_weight`.
        sklearn.exceptions.NotFittedError
            Before `fit`.
        """
        check_is_fitted(self)
        if self._kind is SQUARES or len(getattr(self, "classes_", "01")) > 2:
            what = "quality is of two classes and of survival times"
            raise ConfigurationError(f"{what}; of other models ask `score`, at each site")
        if self.site_intercepts is not None:
            raise ConfigurationError(
                f"quality with site_intercepts={self.site_intercepts!r}: each site's intercept has stayed there; ask "
                "`score` at each site, after model.intercept_ = model.intercept_for(X, y)"
            )
        if leave_one_out and self._row_weights:
            what = "leave_one_out after a fit with sample_weight, which the fits without a site would lack"
            raise ConfigurationError(f"{what}. Fit without it, or give copies as rows")
        found = _left_out(self, X, y, groups) if leave_one_out else _judged(self, X, y, groups)
        lines = [("Each site", "judged by a fit without it")] * leave_one_out + found.lines
        if self._weighted:
            lines.append(("Weights", "none: every row counts once, unlike in the fit"))
        text = [f"Quality of {type(self).__name__}", *(f"├── {title}: {about}" for title, about in lines)]
        text += aligned_columns(found.sites)
        if found.bins:
            text += aligned_columns([{"bin": "scores", **own} for own in found.bins])
        quality = Quality("\n".join(text))
        quality.overall, quality.rows, quality.bins = found.overall, found.sites, found.bins
        return quality

    def _told(self, X: Any, y: Any) -> Any:
        """Return the targets in the form in which they are checked."""
        return y


def _judged(model: Any, X: Any, y: Any, groups: Any, *, bins: bool = True) -> Found:
    """Ask the sites about a model."""
    point = np.ravel(np.append(model.coef_, model.intercept_) if model.fit_intercept else model.coef_)
    start, own = model._start(model.n_features_in_, 1), FedNewton(min_available_nodes=1, **FEW)
    if is_grid(X):
        own.min_available_nodes = model.num_clients
        names = names_of(getattr(model, "feature_names_in_", None)), model._names_of_classes()
        return Judged(own, model._kind, point, names, bins=bins).start(X, start, 1)
    # A copy, because a fitted model is not changed.
    other, extra = copy.copy(model), (model.classes_,) if hasattr(model, "classes_") else ()
    parts = other._parts(X, y, None, groups, reset=False)
    objectives = [model._objective(*pair, *extra) for pair in zip(parts.features, parts.y, strict=True)]
    found: Found = simulated(objectives, Judged(own, model._kind, point, sites=other._sites, bins=bins), start, 1)
    return found


def simulated(objectives: Sequence[Objective], runs: Any, start: Any, num_rounds: int) -> Any:
    """Run a strategy, or what starts like one, in this process, with a node for each objective."""
    app = make_app(lambda context: objectives[int(context.node_config["partition-id"])])
    options: dict[str, Any] = {"initial_arrays": start, "progress": False, "on_interrupt": "raise"}
    return simulate(runs, app, num_nodes=len(objectives), num_rounds=num_rounds, **options)


class _Some:
    """Some of the nodes of a grid."""

    def __init__(self, grid: Any, nodes: Sequence[int]) -> None:
        self._grid, self._nodes = grid, list(nodes)

    def get_node_ids(self) -> list[int]:
        return self._nodes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)


def _left_out(model: Any, X: Any, y: Any, groups: Any) -> Found:
    """Ask each site about a model that is fitted to the others."""
    sites: list[dict[str, Any]] = []
    lines: list[tuple[str, str]] = []
    splits = _splits(model, X, y, groups)
    if len(splits) < 2:
        raise ConfigurationError("leave_one_out with one site: without it there is nothing to fit to")
    for name, others, judge in splits:
        try:
            fitted = clone(model).set_params(num_clients=len(splits) - 1).fit(**others).set_params(num_clients=1)
            own = _judged(fitted, *judge, None, bins=False)
        except ConfigurationError as error:
            raise ConfigurationError(f"with {name or 'one site'} left out: {error}") from error
        row = own.sites[0] | ({"site": name} if name else {})
        sites.append(row | {key: value for key, value in own.overall.items() if key not in row})
        lines += [line for line in own.lines if line[0] == "Left out"]
    pairs, rows = ([row[name] for row in sites] for name in ("pairs", "rows"))
    ordered = [row["concordance"] * row.pop("pairs") for row in sites]
    overall = {"concordance": np.nansum(ordered) / sum(pairs) if any(pairs) else math.nan, "pairs": sum(pairs)}
    if "Brier" in sites[0]:
        overall["Brier"] = float(np.average([row["Brier"] for row in sites], weights=rows))
    count, events = sum(rows), sum(row["events"] for row in sites)
    first = [("Data", f"{count} rows, {events} events, of {len(sites)} sites"), ("Concordance", about_pairs(overall))]
    return Found(overall, sites, [], [*first, *lines])


def _splits(model: Any, X: Any, y: Any, groups: Any) -> list[tuple[str, dict[str, Any], tuple[Any, Any]]]:
    """Return for each site its name, the arguments of a fit to the others, and those that judge it there."""
    if is_grid(X):
        nodes = sorted(X.get_node_ids())
        more: dict[str, Any] = {"features": list(getattr(model, "feature_names_in_", ())) or model.n_features_in_}
        if hasattr(model, "classes_"):
            more["classes"] = model.classes_
        without = {node: _Some(X, [other for other in nodes if other != node]) for node in nodes}
        return [("", {"X": others, **more}, (_Some(X, [node]), None)) for node, others in without.items()]
    # A fit and a question see their part only.
    model = copy.copy(model)
    model._parts(X, y, None, groups, reset=False)
    if are_parts(X):
        each = range(len(X))
        kept = [{"X": [X[i] for i in each if i != m], "y": [y[i] for i in each if i != m]} for m in each]
        return [(f"site {m}", kept[m], ([X[m]], [y[m]])) for m in each]
    if groups is None:
        raise ConfigurationError("leave_one_out of one X needs the site of each row: groups=[...]")
    splits, owner = [], column_or_1d(groups)
    for name in model._sites:
        away, here = np.flatnonzero(owner != name), np.flatnonzero(owner == name)
        others = {"X": _rows(X, away), "y": _rows(y, away), "groups": owner[away]}
        splits.append((f"site {name}", others, ([_rows(X, here)], [_rows(y, here)])))
    return splits


def _rows(table: Any, rows: Any) -> Any:
    if hasattr(table, "iloc"):
        return table.iloc[rows]
    return table[rows] if hasattr(table, "shape") else np.asarray(table)[rows]

"""What a fitted estimator says of its fit."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from flwr_fco.errors import ConfigurationError
from flwr_fco.inference.federated import COMPARED, ESTIMATED, Table
from flwr_fco.inference.forest import forest
from flwr_fco.results import columns_of
from flwr_fco.sklearn.texts import aligned_columns

#: Coefficients in the text of a summary, and sites with their own estimates, at most.
_SHOWN, _SHOWN_SITES = 40, 8


class Summary(str):
    """What a fitted estimator says of its fit: a text, which printing and a notebook show, and a table.

    Attributes
    ----------
    rows : list of dict
        Each feature's name and coefficients, in the order of the columns.
    """

    rows: list[dict[str, Any]]
    _sites: tuple[str, ...] = ()
    _level: float | None = None

    def table(self) -> Any:
        """Return all features as a pandas ``DataFrame`` (without pandas, a dict of lists)."""
        return columns_of(self.rows)

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
        forest(self.rows, self._sites, self._level).savefig(file, dpi=150, bbox_inches="tight")

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

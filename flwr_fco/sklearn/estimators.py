"""The estimators of squares and classes, and what all estimators have in common."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    check_array,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from flwr_fco.client_apps import Disclosure
from flwr_fco.client_apps import client_app as make_app
from flwr_fco.core.layout import Vector
from flwr_fco.core.schema import (
    DEVIATIONS,
    MEANS,
    MOMENTS,
    VARIANCES,
    Names,
    differing_units,
    digests_of,
    names_of,
)
from flwr_fco.core.validation import checked
from flwr_fco.errors import ConfigurationError
from flwr_fco.inference import Intervals
from flwr_fco.inference.federated import (
    CLASSES,
    COMPARED,
    ESTIMATED,
    SQUARES,
    TIMES,
    Exchanges,
    OwnEstimates,
    Table,
    check_events,
)
from flwr_fco.inference.federated import table as table_of
from flwr_fco.inference.forest import forest
from flwr_fco.inference.proportional import Trends
from flwr_fco.inference.selection import Halves, Selected, Selection
from flwr_fco.objectives import LeastSquares, Logistic, MultinomialLogistic, Objective, SiteIntercept
from flwr_fco.objectives.class_weights import class_counts, weights_of_classes
from flwr_fco.objectives.design import Design, is_sparse, refuse_text
from flwr_fco.objectives.site_intercept import check_site_rows
from flwr_fco.regularizers import L1, ElasticNet, L2Squared, Regularizer, Zero
from flwr_fco.regularizers.base import with_strength
from flwr_fco.results import columns_of
from flwr_fco.simulation import simulate
from flwr_fco.simulation.strength_path import StrengthPath
from flwr_fco.sklearn.quality import Judges
from flwr_fco.sklearn.texts import aligned_columns, class_names
from flwr_fco.strategies import FedNewton, Strengths, proved_zero, run_of

__all__ = [
    "FederatedElasticNet",
    "FederatedLasso",
    "FederatedLogisticRegression",
    "Intervals",
    "Summary",
    "to_estimator",
]

#: Relative duality gap above which a fit is not solved, even if no step lowers the objective by more than rounding.
_SOLVED = 1e-9
#: Ratio of the loss with an intercept alone to that at 0, at which it is rounding.
_CONSTANT = 1e-13
#: Relative residual of the unpenalised fit of a table of intervals.
_UNPENALISED = 1e-14
#: That of the models of a cross-validation, and of those of a stability selection.
_ON_A_PATH, _ON_HALVES = 1e-10, 1e-8
#: Without an l1 term all coefficients are non-zero: above so many no block of the Hessian is asked for.
_LARGEST_BLOCK = 2048
#: Ratio of a deviation to that at most sites above which there is a warning.
_UNITS = 5.0
#: Coefficients in the text of a summary, and sites with their own estimates, at most.
_SHOWN, _SHOWN_SITES = 40, 8


def to_estimator(result: Any, objective: Objective, *, classes: ArrayLike | None = None) -> Any:
    """Convert a run's result into a fitted scikit-learn estimator, which can predict, score and be saved with joblib.

    Parameters
    ----------
    result : flwr.serverapp.strategy.Result
        Its ``arrays`` hold ``coefficients`` and, if the objective has one, ``intercept``.
    objective : LeastSquares, Logistic or MultinomialLogistic
        One client's objective; it determines how the arrays are interpreted.
    classes : array-like, optional
        Class names for the labels 0, 1, ... (or -1, +1), in this order; by default the labels. Required if all of the
        client's labels are 1, because the other label is then unknown.

    Returns
    -------
    sklearn.linear_model.LinearRegression or LogisticRegression
        The fitted estimator. Calling its ``fit`` retrains it with scikit-learn, without the run's regularizer.

    Raises
    ------
    ConfigurationError
        If `result` has no arrays, the objective is not one of these three, or the arrays or number of classes differ.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> from flwr.app import Array
    >>> objective = LeastSquares(np.eye(2), np.ones(2))
    >>> arrays = {"coefficients": Array(np.array([2.0, 0.0])), "intercept": Array(np.array([1.0]))}
    >>> to_estimator(SimpleNamespace(arrays=arrays), objective).predict([[3.0, 5.0]])
    array([7.])
    """
    if not hasattr(result, "arrays"):
        raise ConfigurationError(
            f"result is a {type(result).__name__}; expected what `start` or `simulate` returned, with `arrays`"
        )
    if not isinstance(objective, LeastSquares | Logistic | MultinomialLogistic):
        raise ConfigurationError(
            f"{type(objective).__name__} has no estimator; LeastSquares, Logistic and MultinomialLogistic have one"
        )
    arrays = {name: np.asarray(array.numpy(), dtype=np.float64) for name, array in result.arrays.items()}
    expected = dict(objective.layout.shapes)
    shapes = {name: array.shape for name, array in arrays.items()}
    if shapes != expected:
        raise ConfigurationError(
            f"the result's arrays are {shapes}, the objective's {expected}: they are of different runs"
        )
    coefficients = arrays["coefficients"]
    intercept = arrays.get("intercept", np.zeros(coefficients.shape[1:] or 1))
    if isinstance(objective, LeastSquares):
        if classes is not None:
            raise ConfigurationError("classes is given, but least squares have none; leave it out")
        regression = LinearRegression(fit_intercept="intercept" in arrays)
        regression.coef_, regression.intercept_ = coefficients, float(intercept[0])
        regression.n_features_in_ = coefficients.shape[0]
        return regression
    if isinstance(objective, Logistic):
        if classes is None and np.isin(objective.labels, 1).all():
            raise ConfigurationError(
                "all labels of this objective are 1, which are 0 and 1 or -1 and +1 on other clients; say which they "
                "are: classes=[0, 1] or classes=[-1, 1]"
            )
        labels = np.array([0, 1]) if np.isin(objective.labels, (0, 1)).all() else np.array([-1, 1])
    else:
        labels = np.arange(objective.num_classes)
    names = labels if classes is None else np.asarray(classes)
    if names.shape != labels.shape:
        raise ConfigurationError(f"classes={names.tolist()}; expected {labels.size} of them, for {labels.tolist()}")
    if isinstance(objective, MultinomialLogistic) and names.size == 2:
        # scikit-learn stores two classes as one row and applies the logistic function to its score.
        coefficients, intercept = coefficients[:, 1] - coefficients[:, 0], intercept[1:] - intercept[:1]
    classifier = LogisticRegression(fit_intercept="intercept" in arrays)
    classifier.coef_ = np.atleast_2d(coefficients.T)
    classifier.intercept_, classifier.classes_ = intercept, names
    classifier.n_features_in_, classifier.n_iter_ = coefficients.shape[0], np.zeros(1, dtype=np.int32)
    return classifier


class _Parts(NamedTuple):
    """Each client's features, targets and weights of rows, whether these were given, rows of one X, and its name."""

    features: list[Any]
    y: list[NDArray[Any]]
    weights: list[Vector]
    weighted: bool
    rows: list[NDArray[np.int64]] | None
    sites: list[str]

    @property
    def rows_of_clients(self) -> tuple[list[Any], list[NDArray[Any]], list[Any]]:
        """The arguments of each client's loss, whose weights are None if none were given."""
        return self.features, self.y, list(self.weights) if self.weighted else [None] * len(self.y)


def _aligned(X: Any, y: Any, sample_weight: Any) -> list[Any]:
    """Return the clients' features, with columns in the first frame's order; nothing is pooled.

    Raises
    ------
    ConfigurationError
        If the parts do not fit together.
    """
    beside = {"y": y} if sample_weight is None else {"y": y, "sample_weight": sample_weight}
    for name, parts in beside.items():
        if not isinstance(parts, list | tuple) or len(parts) != len(X):
            raise ConfigurationError(
                f"X has {len(X)} parts, {name} is {type(parts).__name__} of {0 if parts is None else len(parts)}; "
                "expected a list of as many parts"
            )
    aligned: list[Any] = list(X)
    first = _columns(X[0])
    for number, features in enumerate(X):
        width, expected, names = np.shape(features)[-1], np.shape(X[0])[-1], _columns(features)
        if width != expected:
            raise ConfigurationError(
                f"part {number} has {width} columns in X and part 0 has {expected}; expected the same features of "
                "every client"
            )
        numbered = [list(getattr(part, "columns", [])) for part in (X[0], features)]
        if not names and not first and all(numbered) and numbered[0] != numbered[1]:
            raise ConfigurationError(
                f"part {number} and part 0 have other columns, and their names are no texts, by which they could be "
                "ordered; expected the same columns in the same order"
            )
        if names != first:
            if sorted(names) != sorted(first) or len(set(names)) < len(names):
                raise ConfigurationError(
                    f"part {number} has the columns {names or 'of an array'}, part 0 has {first or 'those of an array'}"
                    "; expected the same names, in any order"
                )
            aligned[number] = features[first]
        for name, parts in beside.items():
            if features.shape[0] != len(parts[number]):
                raise ConfigurationError(
                    f"part {number} has {features.shape[0]} rows in X and {len(parts[number])} in {name}; expected as "
                    "many"
                )
        if not features.shape[0]:
            raise ConfigurationError(f"part {number} has no rows; leave it out")
        if isinstance(np.asarray(y[number]).flat[0], str) != isinstance(np.asarray(y[0]).flat[0], str):
            raise ConfigurationError(
                f"part {number} has other labels than part 0: texts and numbers; expected one kind"
            )
    return aligned


def _columns(features: Any) -> list[str]:
    """Return the names of a frame's columns; an empty list for an array or if a name is not a string."""
    names = list(getattr(features, "columns", []))
    return names if all(isinstance(name, str) for name in names) else []


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


# Dataclasses, because scikit-learn takes an estimator's parameters from the signature of its constructor: each is
# declared once, and an estimator adds its own.
@dataclass(repr=False, eq=False)
class _Federated(Judges, BaseEstimator):  # type: ignore[misc]
    """Base class of the estimators: the split into clients and the run; the subclasses document the fields."""

    fit_intercept: bool = field(default=True, kw_only=True)
    num_clients: int = field(default=4, kw_only=True)
    max_rounds: int = field(default=5000, kw_only=True)
    tol: float = field(default=1e-14, kw_only=True)
    cv: int | Strengths | Sequence[Any] | None = field(default=None, kw_only=True)
    penalty_factor: Any = field(default=None, kw_only=True)
    standardize: bool = field(default=False, kw_only=True)
    site_intercepts: Literal["local"] | None = field(default=None, kw_only=True)
    # What is fitted, for a table of intervals.
    _kind = SQUARES

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def summary(self) -> Summary:
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
        names = self._names(len(w))
        labels = ["coefficient"] if w.shape[1] == 1 else [str(label) for label in self.classes_]
        columns: dict[str, Any] = dict(zip(labels, w.T.tolist(), strict=True))
        if self._factors is not None:
            columns["penalty_factor"] = self._factors.tolist()
        if self._scales is not None:
            columns["deviation"] = self._scales.tolist()
        if self._selected is not None:
            columns["selection frequency"] = self._selected.frequencies.tolist()
            columns["selected"] = [int(own) for own in self._selected.selected]
        rows = [{"feature": str(name)} | {key: columns[key][j] for key in columns} for j, name in enumerate(names)]
        size = np.abs(w).max(axis=1)
        count = int(np.count_nonzero(size))
        order = np.argsort(-size, kind="stable")[: min(count, _SHOWN)]
        shown = [rows[j] for j in order]
        if self._common_intercept:
            intercepts = np.atleast_1d(self.intercept_).tolist()
            shown.insert(0, {"feature": "(intercept)"} | dict(zip(labels, intercepts, strict=True)))
        lines = [*self._lines, ("Coefficients", f"{count} of {len(w)} are not 0" + ", the largest first" * (count > 1))]
        text = [type(self).__name__, *(f"├── {title}: {about}" for title, about in lines), *aligned_columns(shown)]
        if count > _SHOWN:
            text.append(f"    and {count - _SHOWN} more; all features: .table()")
        text += self._with_intervals(rows)
        if self._on_trust:
            text.append("Columns were matched by position: that they are the same at all sites is taken on trust.")
        summary = Summary("\n".join(text))
        summary.rows = rows
        if self._table is not None and self._intervals is not None:
            summary._sites, summary._level = self._table.sites, self._intervals.level
        return summary

    def _names(self, d: int) -> Sequence[str]:
        return getattr(self, "feature_names_in_", [f"x{j}" for j in range(d)])

    def _with_intervals(self, rows: list[dict[str, Any]]) -> list[str]:
        """Add what is known of the asked columns to their rows, and return it as lines of text."""
        if self._table is None:
            return []
        own, sites = self._table.rows, self._table.sites
        nothing = dict.fromkeys(next(iter(own.values())), math.nan)
        for j, row in enumerate(rows):
            row |= own.get(j, nothing)
        shown = list(own) if len(own) <= _SHOWN else sorted(own, key=lambda j: own[j]["p"])[:_SHOWN]
        lines = [f"├── {title}: {about}" for title, about in self._table.lines]
        for names in (ESTIMATED, COMPARED if sites else (), sites if len(sites) <= _SHOWN_SITES else ()):
            if names:
                cells = [{"feature": rows[j]["feature"]} | {k: own[j][k] for k in names if k in own[j]} for j in shown]
                lines += aligned_columns(cells)
        if len(own) > len(shown):
            lines.append(f"    of the smallest p, and {len(own) - len(shown)} more columns: .table()")
        return lines

    def _ask(self, intervals: Any, sample_weight: Any, selection: Any) -> None:
        """Store which intervals, and which selection, are asked for, before a fit."""
        chosen = checked("selection", selection, bool | Selection)
        self._selected: Selected | None = None
        self._selection = (Selection() if chosen else None) if isinstance(chosen, bool) else chosen
        asked = checked("intervals", intervals, bool | Intervals)
        self._table: Table | None = None
        self._intervals = (Intervals() if asked else None) if isinstance(asked, bool) else asked
        if self._intervals is not None and self.site_intercepts is not None:
            raise ConfigurationError(
                f"intervals with site_intercepts={self.site_intercepts!r}: the tables are of models with a common "
                "intercept; leave one of them out"
            )
        given = "sample_weight" if sample_weight is not None else "class_weight"
        if self._intervals is not None and (sample_weight is not None or getattr(self, given, None) is not None):
            raise ConfigurationError(
                f"intervals with {given}: rows that count twice as copies have other standard errors than rows "
                "that weigh twice; give copies as rows, or fit without intervals"
            )

    def _check_settings(self) -> None:
        # scikit-learn's estimators check in `fit`, and leave their parameters as they were given.
        for name, kind in (("num_clients", int), ("max_rounds", int), ("tol", float), ("standardize", bool)):
            checked(name, getattr(self, name), kind)
        if self.num_clients < 1 or self.max_rounds < 1 or not self.tol > 0.0:
            raise ConfigurationError(
                f"num_clients={self.num_clients!r}, max_rounds={self.max_rounds!r}, tol={self.tol!r}; expected whole "
                "numbers >= 1 and a number > 0"
            )
        if self.site_intercepts not in (None, "local") or (self.site_intercepts and not self.fit_intercept):
            raise ConfigurationError(
                f"site_intercepts={self.site_intercepts!r}, fit_intercept={self.fit_intercept!r}; expected None for a "
                "common intercept, or 'local' with fit_intercept=True for one of each site"
            )
        if self._path is not None and self._path.folds is None:
            raise ConfigurationError(f"cv={self.cv!r} has no folds; give Strengths(folds=5)")

    @property
    def _common_intercept(self) -> bool:
        """Whether the model has an intercept that all clients share."""
        return self.fit_intercept and self.site_intercepts is None

    def _sited(self, objective: LeastSquares | Logistic) -> Objective:
        """Return a client's objective, with an intercept of its own if that is asked for."""
        if self.site_intercepts is None:
            return objective
        with warnings.catch_warnings():
            # Who knows all sites names those with few rows.
            warnings.simplefilter("ignore", UserWarning)
            return SiteIntercept(objective)

    def intercept_for(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Return the intercept that a site's own rows have at the fitted coefficients: for ``site_intercepts="local"``.

        At a site, ``model.intercept_ = model.intercept_for(X, y)`` makes a model that predicts there.

        Parameters
        ----------
        X : array-like or sparse matrix, shape (n, d)
            The site's rows.
        y : array-like, shape (n,)
            Its targets.
        sample_weight : array-like, shape (n,), optional
            Weight of each row.

        Raises
        ------
        sklearn.exceptions.NotFittedError
            Before `fit`.
        ConfigurationError
            Without ``site_intercepts="local"``, or if the rows are of one class.
        """
        check_is_fitted(self)
        if self.site_intercepts is None:
            raise ConfigurationError(f"the model has a common intercept, intercept_={self.intercept_}")
        X = validate_data(self, X, reset=False, dtype=np.float64, accept_sparse="csr")
        classes = (self.classes_,) if isinstance(self, ClassifierMixin) else ()
        weights, y = self._site_weights(column_or_1d(y), *classes), column_or_1d(y)
        if sample_weight is not None:
            weights = _row_weights(sample_weight, X) * (1.0 if weights is None else weights)
        found = self._objective(X, y, *classes, weights).own_intercept(np.ravel(self.coef_))
        if not math.isfinite(found):
            raise ConfigurationError("all rows are of one class, and their best intercept is infinite")
        return found if not classes else np.array([found])

    @property
    def _path(self) -> Strengths | None:
        """The path of the cross-validation, if there is one."""
        if isinstance(self.cv, list | tuple):
            return Strengths(folds=len(self.cv))
        cv = checked("cv", self.cv, int | Strengths | None)
        return Strengths(folds=cv) if isinstance(cv, int) else cv

    def _features(self, X: ArrayLike) -> Any:
        check_is_fitted(self)
        if np.isnan(self.intercept_).any():
            raise ConfigurationError(
                "each site has an intercept of its own, which has stayed there, so the model predicts at a site only: "
                "model.intercept_ = model.intercept_for(X, y) of the site's rows. Up to a site's intercept, "
                "X @ model.coef_.T are the scores"
            )
        return validate_data(self, X, reset=False, dtype=np.float64, accept_sparse="csr")

    def _parts(self, X: Any, y: Any, sample_weight: Any, groups: Any, *, reset: bool = True, **checks: Any) -> _Parts:
        """Return each client's data; without `reset` they have the columns of the fit."""
        self._check_settings()
        checks |= {"dtype": np.float64, "accept_sparse": "csr"}
        rows: list[NDArray[np.int64]] | None = None
        sites: Any = ()
        self._sites: list[Any] = []
        if isinstance(X, list | tuple) and X and np.ndim(X[0]) == 2:
            if groups is not None:
                raise ConfigurationError(
                    "groups is for one X, y; here X is a list, whose parts are the clients already"
                )
            for own in X:
                refuse_text(own, "X")
            parts = _aligned(X, y, sample_weight)
            self._on_trust = len(parts) > 1 and not _columns(parts[0])
            pairs = [
                validate_data(self, own, labels, reset=reset and m == 0, **checks)
                for m, (own, labels) in enumerate(zip(parts, y, strict=True))
            ]
            sites = [f"part {m}" for m in range(len(parts))]
            given = [None] * len(pairs) if sample_weight is None else sample_weight
            clients = [(own, labels, weights) for (own, labels), weights in zip(pairs, given, strict=True)]
        else:
            refuse_text(X, "X")
            X, y = validate_data(self, X, y, reset=reset, **checks)
            self._on_trust = False
            owner = np.arange(X.shape[0]) % min(self.num_clients, X.shape[0])
            if groups is not None:
                check_consistent_length(X, groups)
                sites, owner = _owners(groups)
                self._sites = sites.tolist()
            if sample_weight is not None:
                sample_weight = _row_weights(sample_weight, X)
            rows = [np.flatnonzero(owner == m) for m in np.unique(owner)]
            clients = [(X[own], y[own], None if sample_weight is None else sample_weight[own]) for own in rows]
        # Rows that are dealt from one X have its units and its coding.
        if len(sites) > 1:
            if isinstance(self, ClassifierMixin):
                _refuse_two_codings({f"{site}": own[1] for site, own in zip(sites, clients, strict=True)})
            told = {f"{site}": Design.of(own[0]).deviations() for site, own in zip(sites, clients, strict=True)}
            _warn_of_units(told, self._names(clients[0][0].shape[1]))
        weighted = [(own, labels, _row_weights(weights, own)) for own, labels, weights in clients]
        if any((weights < 0.0).any() for _, _, weights in weighted) or not any(w.any() for _, _, w in weighted):
            raise ConfigurationError("sample_weight is negative somewhere or zero everywhere; expected weights > 0")
        kept = [(own[w > 0.0], labels[w > 0.0], w[w > 0.0]) for own, labels, w in weighted if w.any()]
        features, targets, weights = (list(column) for column in zip(*kept, strict=True))
        if rows is not None:
            rows = [own[w > 0.0] for own, (_, _, w) in zip(rows, weighted, strict=True) if w.any()]
        names = [f"{site}" for site in sites] if len(sites) else [f"part {m}" for m in range(len(clients))]
        names = [name for name, (_, _, w) in zip(names, weighted, strict=True) if w.any()]
        self._check_sites({name: len(own) for name, own in zip(names, targets, strict=True)})
        return _Parts(features, targets, weights, sample_weight is not None, rows, names)

    def _run(self, objectives: Sequence[Objective], split: _Parts, outputs: int, penalty: Any) -> tuple[Vector, Vector]:
        """Train in this process; return coefficients of shape (d, outputs) and intercepts of shape (outputs,)."""
        self._questions = 1
        d, masses = split.features[0].shape[1], [float(weights.sum()) for weights in split.weights]
        self._factors = _factors(self.penalty_factor, getattr(self, "feature_names_in_", ()), d)
        if not isinstance(self.cv, int | Strengths | None):
            fold = _fold_of_rows(self.cv, split.rows)
            for objective, rows in zip(objectives, split.rows or [], strict=True):
                objective.folds = fold[rows]
        start, total = self._start(d, outputs), math.fsum(masses)
        w = np.zeros(objectives[0].layout.size)
        told = [(mass / total, f.value(w), f.gradient(w)) for f, mass in zip(objectives, masses, strict=True)]
        self._name_idle(split.sites, told)
        weighting = dict(enumerate(masses)) if split.weighted else "examples"
        self._scales = None
        if self.standardize:
            parts = zip(told, objectives, strict=True)
            self._scales = _scales([(weight, *f.moments()) for (weight, *_), f in parts])  # type: ignore[attr-defined]
        psi = penalty(total, *(_broadcast(own, outputs) for own in (self._factors, self._scales)))
        strategy = self._strategy(psi, told, outputs, weighting=weighting, min_available_nodes=1)

        def run(runs: Any, begin: Any, num_rounds: int) -> Any:
            return simulate(
                runs,
                make_app(lambda context: objectives[int(context.node_config["partition-id"])]),
                num_nodes=len(objectives),
                num_rounds=num_rounds,
                initial_arrays=begin,
                progress=False,
                on_interrupt="raise",
            )

        count = sum(objective.num_examples for objective in objectives)
        data = f"{count} rows{', weighted' * split.weighted}, of {len(objectives)} sites"
        return self._solved(strategy, run, start, outputs, total, data)

    def _run_over(self, grid: Any, features: Any, outputs: int, penalty: Any) -> tuple[Vector, Vector]:
        """Train where the data are; return coefficients of shape (d, outputs) and intercepts of shape (outputs,)."""
        self._check_settings()
        self._questions = 1
        if features is None:
            features = self._names_at(grid)
        names = [] if isinstance(features, Real) else list(features)
        whole = isinstance(features, Integral) and not isinstance(features, bool)
        d = int(features) if whole else len(names)
        if d < 1:
            raise ConfigurationError(
                f"features={features!r}; expected the names of the sites' columns in their order, how many there are, "
                "or None, which asks the sites"
            )
        self._factors, self._sites = _factors(self.penalty_factor, names, d), []
        start = ArrayRecord({name: Array(array) for name, array in self._start(d, outputs).items()})
        # Of this strategy only the question is needed, about the loss at 0 and the sites' columns.
        asking = run_of(FedNewton(min_train_nodes=1, min_available_nodes=self.num_clients, fraction_evaluate=0.0))
        asking.prepare(start)
        size = asking.plan.layout.size
        asking.mail.schemas.own = (names_of(names), self._names_of_classes())
        shapes = {"gradient": (size,), DEVIATIONS: (d,)}
        numbers = {DEVIATIONS: 1.0}
        if self.standardize:
            numbers, shapes = {**numbers, MOMENTS: 1.0}, {**shapes, MEANS: (d,), VARIANCES: (d,)}
        question = asking.inquiry.question("gradient", np.zeros(size), numbers)
        answers = asking.inquiry.ask(grid, question, wanted=("loss",), shapes=shapes)
        if len(answers) < self.num_clients:
            # Below an error's own line there is where it was raised.
            why = [(row.partition_id, row.reason.partition("\n")[0]) for row in asking.left_out]
            raise ConfigurationError(
                f"{len(answers)} of num_clients={self.num_clients} sites have answered; the reasons of the others: "
                f"{'; '.join(f'partition {partition}: {reason}' for partition, reason in why)}"
            )
        more: dict[str, Any] = {}
        total = math.fsum(answer.examples for answer in answers)
        if (masses := self._masses(answers, outputs)) is not None:
            total = math.fsum(masses)
            pairs = list(zip(answers, masses, strict=True))
            answers = [answer._replace(weight=mass / total) for answer, mass in pairs]
            more["weighting"] = {answer.partition: mass for answer, mass in pairs}
        told = [(answer.weight, answer.numbers["loss"], answer.vectors["gradient"]) for answer in answers]
        self._scales = self._scales_of(answers, names or range(d)) if self.standardize else None
        psi = penalty(total, *(_broadcast(own, outputs) for own in (self._factors, self._scales)))
        strategy = self._strategy(psi, told, outputs, min_available_nodes=self.num_clients, **more)
        self.n_features_in_ = d
        if names:
            self.feature_names_in_ = np.array(names, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        self._on_trust = any(digests_of(answer.schema)[0] == 0 for answer in answers)
        sites = [f"partition {answer.partition}" for answer in answers]
        self._check_sites({site: int(answer.examples) for site, answer in zip(sites, answers, strict=True)})
        self._name_idle(sites, told)
        deviations = {site: answer.vectors[DEVIATIONS] for site, answer in zip(sites, answers, strict=True)}
        _warn_of_units(deviations, self._names(d))
        rows = math.fsum(answer.examples for answer in answers)
        data = f"{rows:.0f} rows{', weighted' * bool(more)}, of {len(answers)} sites"
        return self._solved(strategy, lambda runs, *begin: runs.start(grid, *begin), start, outputs, total, data)

    def _check_sites(self, rows: dict[str, int]) -> None:
        """Refuse sites with too few rows for an intercept of their own."""
        if self.site_intercepts is not None and isinstance(self, ClassifierMixin):
            check_site_rows(rows)

    def _name_idle(self, sites: Sequence[str], told: Sequence[tuple[float, float, Vector]]) -> None:
        """Warn of sites that add nothing: at their own intercepts one class is fitted whatever the coefficients are."""
        idle = [site for site, (_, loss, slopes) in zip(sites, told, strict=True) if not (loss or slopes.any())]
        if self.site_intercepts is not None and isinstance(self, ClassifierMixin) and idle:
            warnings.warn(
                f"{', '.join(idle)}: all rows of one class, which tell nothing beside an intercept of the site's own",
                UserWarning,
                stacklevel=4,
            )

    @staticmethod
    def _scales_of(answers: Sequence[Any], names: Sequence[Any]) -> Vector:
        """Return the features' deviations over all sites, from what these say of theirs."""
        for answer in answers:
            if (answer.vectors[VARIANCES] < 0.0).any():
                raise ConfigurationError(
                    f"partition {answer.partition} says a variance of {answer.vectors[VARIANCES].min():.3g}; "
                    "expected none below 0"
                )
        moments = [(a.weight, a.vectors[MEANS], a.vectors[VARIANCES]) for a in answers]
        scales = _scales(moments)
        _check_scales(scales, moments, [f"partition {a.partition}" for a in answers], names)
        return scales

    def _names_at(self, grid: Any) -> Names:
        """Ask the sites for the names of their columns, in one more message to each; return those of most sites."""
        mail = run_of(FedNewton(min_train_nodes=1, min_available_nodes=self.num_clients, fraction_evaluate=0.0)).mail
        names = mail.schemas.usual_columns(grid, mail.nodes.sample(grid, 0, 0, 1.0, 1, self.num_clients))
        if names is None:
            raise ConfigurationError(
                "no site names its columns, as arrays do not: say how many there are, features=30, or their names"
            )
        self._questions = 2
        return names

    def _app(self, load: Any, order: Sequence[str] | None, disclosure: Disclosure | None, *classes: Any) -> Any:
        def objective_of(context: Any) -> Objective:
            X, y, names = _read(load(context), order)
            targets = self._targets(y)
            objective: Objective = self._objective(X, targets, *classes, self._site_weights(targets, *classes))
            objective.feature_names = names
            return objective

        return make_app(objective_of, disclosure=disclosure)

    @staticmethod
    def _targets(y: Any) -> NDArray[Any]:
        """Return a site's targets as an array."""
        return np.asarray(y)

    def _names_of_classes(self) -> Names:
        """Return the classes as texts, by which sites are compared; None without classes."""
        return None

    def _site_weights(self, y: NDArray[Any], *classes: Any) -> Vector | None:
        """Return the weights of a site's rows by their classes, if classes have weights."""
        return None

    def _masses(self, answers: Sequence[Any], outputs: int) -> list[float] | None:
        """Return the sum of each site's weights of rows, from its first answer; None if all are 1."""
        return None

    def _start(self, d: int, outputs: int) -> dict[str, NDArray[np.float64]]:
        start = {"coefficients": np.zeros((d, outputs) if outputs > 1 else (d,))}
        return start | {"intercept": np.zeros(outputs)} if self._common_intercept else start

    def _strategy(self, psi: Regularizer, told: list[tuple[float, float, Vector]], outputs: int, **more: Any) -> Any:
        """Return the strategy; `told` is each client's weight, and its loss and gradient at 0."""
        dense_solution = isinstance(psi, L2Squared | Zero) and told[0][2].size > _LARGEST_BLOCK
        if dense_solution and self._path is not None:
            raise ConfigurationError(
                f"cv={self.cv!r} of a ridge with {told[0][2].size} coefficients, which are all non-zero: above "
                f"{_LARGEST_BLOCK} no Hessian block is asked for, and a cross-validation needs blocks; give l1_ratio > "
                "0, or leave cv out"
            )
        null = at_zero = math.fsum(weight * loss for weight, loss, _ in told)
        if self._common_intercept and isinstance(self, RegressorMixin):
            # With the best intercept the loss is less by half of its slope's square.
            null -= 0.5 * math.fsum(weight * float(gradient[-1]) for weight, _, gradient in told) ** 2
            if null <= _CONSTANT * at_zero:
                # Targets that are all the same: what is left of them is rounding.
                null = at_zero
        return FedNewton(
            regularizer=psi,
            hessian="none" if dense_solution else "block",
            tolerance=max(self.tol * null, np.finfo(np.float64).tiny),
            fraction_evaluate=0.0,
            min_train_nodes=1,
            **more,
        )

    def _halves(self, asked: Selection, strategy: FedNewton, outputs: int) -> Halves:
        """Return the runs of a stability selection with the estimator's penalty, whatever its strength."""
        l1, d = float(getattr(self, "l1_ratio", 1.0)), self.n_features_in_
        if l1 == 0.0:
            raise ConfigurationError("selection with l1_ratio=0.0: a ridge selects nothing; give l1_ratio=1.0")
        psi = _penalty(l1, 1.0 - l1, *(_broadcast(own, outputs) for own in (self._factors, self._scales)))
        penalised = np.ones(d, dtype=np.bool_) if self._factors is None else self._factors != 0.0
        tolerance = strategy.tolerance * max(1.0, _ON_HALVES / self.tol)
        own = replace(strategy, regularizer=psi, tolerance=tolerance, hessian="block")
        return Halves(own, asked, penalised, outputs)

    def _solved(
        self, strategy: FedNewton, run: Any, start: Any, outputs: int, examples: float, data: str
    ) -> tuple[NDArray[np.float64], Vector]:
        """Return the coefficients and intercepts of a run, at the strength of the cross-validation if there is one."""
        rounds, path, tolerance = max(1, self.max_rounds - 1), self._path, strategy.tolerance
        self.n_iter_ = self._questions
        names = self._names(self.n_features_in_)
        if self._intervals is not None:
            # Before the fit: what cannot be is refused at once.
            self._intervals.places(names)
            told = run(OwnEstimates(strategy), start, 1)
            check_events(told, names, self._kind)
            self.n_iter_ += 1
        if self._selection is not None:
            self._selected = run(self._halves(self._selection, strategy, outputs), start, rounds)
            self.n_iter_ += self._selected.rounds
        for name in ("path_", "strength_"):
            # Of an earlier fit.
            self.__dict__.pop(name, None)
        if path is not None:
            # What is no argument of StrengthPath, such as the size of a message, is the user's too.
            strategy.strengths, strategy.tolerance = path, tolerance * max(1.0, _ON_A_PATH / self.tol)
            values = path.values
            if values is None and isinstance(strategy.regularizer, L2Squared):
                # No strength makes a ridge 0: C from 1e-3 to 1e3 in scikit-learn's scale, ten of them as there.
                num = path.num if isinstance(self.cv, Strengths) else 10
                values = (np.geomspace(1e3, 1e-3, num) / examples).tolist()
            runs = StrengthPath(strategy, path.num, path.ratio, values, cv=path.folds)
            self.path_ = run(runs, start, rounds)
            chosen = self.path_.best if path.rule == "best" else self.path_.one_standard_error
            self.n_iter_ += len(chosen.result.train_metrics_clientapp)
            self.strength_, start = chosen.strength, chosen.result.arrays
            strategy.strengths, strategy.tolerance = None, tolerance
            strategy.regularizer = with_strength(strategy.regularizer, chosen.strength)
        result = run(strategy, start, rounds)
        metrics = result.train_metrics_clientapp
        last = metrics[max(metrics)]
        self.n_iter_ += len(metrics)
        self.duality_gap_ = float(last.get("duality-gap", math.nan))
        # The tolerance is `tol` times the loss with an intercept alone.
        unbounded = self.duality_gap_ > tolerance * max(1.0, _SOLVED / self.tol)
        unsolved = unbounded or not run_of(strategy).finished()
        if unsolved:
            warnings.warn(
                f"not solved to tol={self.tol} after {self.n_iter_} rounds; raise max_rounds or scale the features",
                ConvergenceWarning,
                stacklevel=4,
            )
        if self._intervals is not None:
            own = tolerance * min(1.0, _UNPENALISED / self.tol)
            sums, asked = run(Exchanges(strategy, self._kind, own), result.arrays, rounds)
            trend = None
            if self._kind is TIMES:
                trend = run(Trends(strategy, sums), start, 1)
                self.n_iter_ += 1
            self._table = table_of(self._intervals, names, told, sums, self._kind, self._sites, trend)
            self.n_iter_ += asked
        first = "C" if isinstance(self, ClassifierMixin) else "alpha"
        strength = getattr(strategy.regularizer, "strength", 0.0)
        value = strength if first == "alpha" else 1.0 / (strength * examples) if strength > 0.0 else math.inf
        chosen_by = "" if path is None else f", of {len(self.path_.points)} by {path.folds}-fold cross-validation"
        residual = (
            f"{last.get('residual', math.nan):.3g}, the length of a proximal gradient step; there is no duality gap"
        )
        gap = ("Duality gap", f"{self.duality_gap_:.3g}, of an objective of {last.get('objective', math.nan):.6g}")
        self._lines = [
            ("Strength", f"{strength:.6g} ({first}={value:.6g}, l1_ratio={self.l1_ratio:g}){chosen_by}"),
            ("Data", data),
            ("Rounds", f"{self.n_iter_}" + f", not solved to tol={self.tol:g}" * unsolved),
            ("Residual", residual) if math.isnan(self.duality_gap_) else gap,
        ]
        if self.site_intercepts:
            self._lines.append(("Intercepts", "each site's own, which have stayed there"))
        self._lines += self._selected.lines if self._selected is not None else []
        proved = proved_zero(strategy)["coefficients"].reshape(-1, outputs)
        self.proved_zero_ = proved[:, 0] if first == "alpha" else np.ascontiguousarray(proved.T)
        if proved.any():
            count = np.count_nonzero(proved.all(axis=1))
            self._lines.append(("Proved zero", f"{count} features, which no optimum of the pooled problem has"))
        coefficients = result.arrays["coefficients"].numpy().reshape(-1, outputs)
        if self._common_intercept:
            return coefficients, result.arrays["intercept"].numpy()
        return coefficients, np.full(outputs, math.nan if self.site_intercepts else 0.0)


def _is_grid(X: Any) -> bool:
    return hasattr(X, "send_and_receive")


def _read(data: Any, order: Sequence[str] | None) -> tuple[Any, Any, Names]:
    """Return a site's features, of an array or of a frame, the targets as they are, and the names of the columns.

    A frame's columns are those of `order`, if it is given.
    """
    features, targets = data
    names = names_of(getattr(features, "columns", None))
    if order is not None and names is not None:
        lacks = [name for name in order if name not in names]
        if lacks:
            raise ConfigurationError(
                f"this site's rows lack the columns {lacks[:5]} of features=; give them, or leave them out everywhere"
            )
        features, names = features[list(order)], tuple(order)
    elif order is not None and np.shape(features)[-1] != len(order):
        raise ConfigurationError(
            f"this site's rows have {np.shape(features)[-1]} columns without names, and features= has {len(order)}"
        )
    refuse_text(features, "X")
    return features if is_sparse(features) else np.asarray(features, dtype=np.float64), targets, names


def _refuse_two_codings(labels: Mapping[str, NDArray[Any]]) -> None:
    """Refuse clients of which some code two classes as 0 and 1, and others as -1 and 1.

    Raises
    ------
    ConfigurationError
        If there would be a third class that no client has beside the other two.
    """
    held = {site: set(own.tolist()) for site, own in labels.items()}
    if set[Any]().union(*held.values()) == {-1, 0, 1} and not any({-1, 0} <= own for own in held.values()):
        first, second = (next(site for site, own in held.items() if label in own) for label in (0, -1))
        raise ConfigurationError(
            f"{first} has labels 0, {second} has labels -1, and none has both: these are two codings of two classes. "
            "Code them in the same way at every client; three classes need names, such as 'low'"
        )


def _warn_of_units(deviations: Mapping[str, Vector], names: Sequence[str]) -> None:
    """Warn of columns that seem to have other units at some sites."""
    text = differing_units(deviations, names)
    if text:
        warnings.warn(text, UserWarning, stacklevel=4)


def _owners(groups: Any) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the clients that `groups` names, and which of them has each row."""
    given = column_or_1d(groups)
    missing = [row for row, name in enumerate(given.tolist()) if _is_missing(name)]
    if missing:
        raise ConfigurationError(
            f"groups[{missing[0]}] is missing (NaN or None), as {len(missing)} of {len(given)} entries are; expected "
            "the client of each row: leave such rows out, or give them a group"
        )
    names, owner = np.unique(given, return_inverse=True)
    return names, owner


def _is_missing(entry: Any) -> bool:
    try:
        return entry is None or bool(entry != entry)
    except TypeError:
        # pandas' NA compares as NA, which is neither true nor false.
        return True


def _fold_of_rows(splits: Any, rows: list[NDArray[np.int64]] | None) -> NDArray[np.int64]:
    """Return the fold of each row of one X, of scikit-learn's pairs of training and test rows."""
    if rows is None:
        raise ConfigurationError(
            "cv is a list of splits, whose numbers are rows of one X; with clients' parts, or over a grid, give a "
            "number of folds"
        )
    tests = [np.asarray(test, dtype=np.int64) for _, test in splits]
    tested = np.concatenate(tests)
    fold = np.full(1 + max(int(own.max()) for own in (*rows, tested)), -1, dtype=np.int64)
    for number, test in enumerate(tests):
        fold[test] = number
    if np.unique(tested).size != tested.size or (fold[np.concatenate(rows)] < 0).any():
        raise ConfigurationError(
            "cv is a list of splits whose test rows overlap or leave rows out; expected a partition"
        )
    return fold


def _row_weights(weights: Any, features: Any) -> Vector:
    """Return the weights of rows; 1 by default."""
    if weights is None:
        return np.ones(features.shape[0])
    checked = column_or_1d(check_array(weights, ensure_2d=False, dtype=np.float64, input_name="sample_weight"))
    check_consistent_length(features, checked)
    return np.asarray(checked)


def _penalty(l1: float, l2: float, weights: Vector | None, scales: Vector | None) -> Regularizer:
    """Return sum_j weights_j (l1 |u_j| + l2/2 u_j^2) of u = scales * w."""
    if weights is not None and not weights.any():
        return Zero()
    if l1 > 0.0 and l2 > 0.0:
        return ElasticNet(l1 + l2, l1 / (l1 + l2), weights, scales)
    if scales is not None:
        weights = (1.0 if weights is None else weights) * (scales if l1 > 0.0 else scales**2)
    return L1(l1, weights) if l1 > 0.0 else L2Squared(l2, weights) if l2 > 0.0 else Zero()


def _factors(given: Any, names: Any, d: int) -> Vector | None:
    """Return each feature's factor of the penalty, shape (d,), of a mapping of names or of an array.

    Raises
    ------
    ConfigurationError
        If a name is unknown, or the factors are not d finite numbers >= 0.
    """
    if given is None:
        return None
    # A Series goes by its index, whose order may be another one than the features'.
    given = given.to_dict() if hasattr(given, "to_dict") else given
    if isinstance(given, Mapping):
        if not len(names):
            raise ConfigurationError(
                f"penalty_factor={given!r} names features, but those of X have no names; give a data frame, "
                f"features=[...] with a grid, or an array of {d} factors"
            )
        unknown = [name for name in given if name not in set(names)]
        if unknown:
            raise ConfigurationError(
                f"penalty_factor names {unknown[:5]}, which X does not have; its features are {', '.join(names[:10])}"
                f"{', ...' if d > 10 else ''}"
            )
        given = [given.get(name, 1.0) for name in names]
    factors = np.asarray(given)
    if factors.shape != (d,) or factors.dtype.kind not in "fiu":
        raise ConfigurationError(
            f"penalty_factor has shape {factors.shape} and dtype {factors.dtype}; expected a number for each of the "
            f"{d} features, or a mapping of names to numbers"
        )
    wrong = np.flatnonzero(~(np.isfinite(factors) & (factors >= 0.0)))
    if wrong.size:
        where = names[wrong[0]] if len(names) else wrong[0]
        raise ConfigurationError(
            f"penalty_factor={factors[wrong[0]]:g} of feature {where}; expected finite numbers >= 0, where 0 leaves a "
            "feature without a penalty"
        )
    return factors.astype(np.float64)


def _scales(moments: Sequence[tuple[float, Vector, Vector]]) -> Vector:
    """Return the standard deviations of the features of all clients, from weights, means and variances of each.

    Of a feature that is constant up to rounding it is 1, as in scikit-learn's ``StandardScaler``.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        mean = np.sum([weight * means for weight, means, _ in moments], axis=0)
        variance = np.sum([weight * (own + np.square(means - mean)) for weight, means, own in moments], axis=0)
        deviations = np.sqrt(variance)
    # A mean or a variance that overflows leaves no deviation, which is not one of 1.
    constant = deviations <= 10.0 * np.finfo(np.float64).eps * np.abs(mean)
    return np.asarray(np.where(constant & np.isfinite(deviations), 1.0, deviations))


def _check_scales(
    scales: Vector, moments: Sequence[tuple[float, Vector, Vector]], sites: Sequence[str], names: Sequence[Any]
) -> None:
    """Warn of features whose standard deviation is far above that at most sites, which a single site can make it.

    Raises
    ------
    ConfigurationError
        If it is infinite.
    """
    own = np.sqrt([variances for _, _, variances in moments])
    usual = np.sort(own, axis=0)[(len(own) - 1) // 2]
    means = np.abs([each for _, each, _ in moments])
    for j in np.flatnonzero(~(scales <= _UNITS * usual) & ((usual > 0.0) | ~np.isfinite(scales)))[:5]:
        m = int(np.argmax(np.maximum(own[:, j], means[:, j])))
        text = (
            f"the standard deviation of {names[j]} over all sites is {scales[j]:.3g}, at most of them up to "
            f"{usual[j]:.3g}: {sites[m]} says a mean of {moments[m][1][j]:.3g} and a deviation of {own[m, j]:.3g}. "
            "Its penalty is that of such a feature; check the unit at this site"
        )
        if not np.isfinite(scales[j]):
            raise ConfigurationError(text)
        warnings.warn(text, UserWarning, stacklevel=4)


def _broadcast(each: Vector | None, outputs: int) -> Vector | None:
    """Return a number of each feature as it broadcasts to the coefficients, where it holds for all classes."""
    return each if each is None or outputs == 1 else each[:, None]


@dataclass(repr=False, eq=False)
class FederatedElasticNet(RegressorMixin, _Federated):  # type: ignore[misc]
    """Elastic net over several clients: scikit-learn's ``ElasticNet`` without pooling the rows.

    Parameters
    ----------
    alpha : float, default 1.0
        Strength, >= 0.
    l1_ratio : float, default 0.5
        Between 0 (ridge) and 1 (lasso).
    fit_intercept : bool, default True
        Whether to fit an intercept, which is never regularized.
    num_clients : int, default 4
        Number of clients that `fit(X, y)` splits the rows among; fewer if there are fewer rows.
    max_rounds : int, default 5000
        The fit ends with a warning after this many rounds; about a dozen are enough.
    tol : float, default 1e-14
        The fit ends at a duality gap of this fraction of the loss with an intercept alone, or where rounding allows no
        smaller one.
    penalty_factor : mapping of str to float, or array-like, shape (d,), optional
        Factor >= 0 of a feature's penalty, l1 and l2 part alike, by name (all others have 1) or one for each: a feature
        of factor 0 is not penalised, as a confounder must not be. As in glmnet's `penalty.factor`, but not rescaled to
        sum to d. Names need a data frame, or `features` with a grid.
    standardize : bool, default False
        Penalise the coefficients of features that are divided by their standard deviations over the rows of all
        clients, as glmnet does and a ``StandardScaler`` before scikit-learn's estimator; `coef_` is that of the
        features as they are. Each client sends means and variances of its columns; no data are changed.
    site_intercepts : {"local"}, optional
        ``"local"``: each client has an intercept of its own instead of a common one, as dummy variables of the clients
        would give, and does not send it (:class:`flwr_fco.objectives.SiteIntercept`). `intercept_` is then NaN, and
        :meth:`intercept_for` returns that of a client's rows, at the client, with which the model predicts there.
    cv : int, Strengths or list of splits, optional
        Choose the strength by a cross-validation: a number of folds, into which each client deals its own rows; a
        ``flwr_fco.strategies.Strengths`` that says which strengths, folds and rule; or, of one X, pairs of training and
        test rows that part it; `alpha` is then ignored. All strengths and folds are solved in the same messages.

    Attributes
    ----------
    coef_ : ndarray, shape (d,)
        Coefficients.
    intercept_ : float
        Intercept; 0 without one, NaN where each client has its own.
    n_iter_ : int
        Number of rounds: messages to each client, the one before round 1 included.
    duality_gap_ : float
        Bound on how far the objective is above the optimum, from the clients' sums; NaN without a penalty.
    proved_zero_ : ndarray of bool, shape of `coef_`
        Which coefficients are zero in every optimum of the pooled problem, as far as the duality gap proves it
        (:func:`flwr_fco.strategies.proved_zero`).
    path_ : PathResult
        With `cv`, the models and losses of all strengths; :func:`flwr_fco.simulation.plot_path` draws them.
    strength_ : float
        With `cv`, the chosen strength of the mean loss: scikit-learn's alpha.

    Examples
    --------
    >>> X, y = np.array([[1.0, 0.0], [0.0, 1.0], [2.0, 1.0], [3.0, 5.0]]), np.array([1.0, 0.0, 2.0, 3.0])
    >>> model = FederatedElasticNet(alpha=0.1, l1_ratio=1.0).fit([X[:2], X[2:]], [y[:2], y[2:]])
    >>> model.coef_.shape, model.predict(X).shape
    ((2,), (4,))
    """

    alpha: float = 1.0
    l1_ratio: float = field(default=0.5, kw_only=True)

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        groups: Any = None,
        *,
        features: Any = None,
        intervals: bool | Intervals = False,
        selection: bool | Selection = False,
    ) -> Self:
        """Fit the model to the clients' rows, here or where they are.

        Parameters
        ----------
        X : array-like or sparse matrix, shape (n, d), a list of them, or a Flower Grid
            The rows, which are dealt to `num_clients` clients in turn; or each client's own rows; or the grid of a
            ServerApp, whose `num_clients` sites run :meth:`client_app`.
        y : array-like, shape (n,), or a list of them
            The targets; none with a grid.
        sample_weight : array-like, shape (n,), or a list of them, optional
            Weight of each row; a row of weight 2 counts as two copies of it.
        groups : array-like, shape (n,), optional
            Client of each row, instead of `num_clients` parts: rows with the same entry belong to one client.
        features : int or sequence of str, optional
            With a grid, how many columns the sites have, or their names; by default the sites, whose data are frames
            then, are asked for them in one more message.
        intervals : bool or Intervals, default False
            Whether :meth:`summary` has estimates without shrinkage, intervals, tests, and whether the sites agree; they
            take one more round, and a question before the fit (docs/inference.md).
        selection : bool or Selection, default False
            Whether :meth:`summary` says how often each feature is selected on half of the rows, and how many of the
            selected ones are chance at most; in some tens of rounds before the fit.
        """
        self._ask(intervals, sample_weight, selection)
        checked("alpha", self.alpha, float)
        checked("l1_ratio", self.l1_ratio, float)
        if not (np.isfinite(self.alpha) and self.alpha >= 0.0 and 0.0 <= self.l1_ratio <= 1.0):
            raise ConfigurationError(
                f"alpha={self.alpha!r}, l1_ratio={self.l1_ratio!r}; expected a finite number >= 0 and a number from 0 "
                "to 1"
            )

        def penalty(total: float, weights: Vector | None, scales: Vector | None) -> Regularizer:
            alpha = self.alpha if self._path is None else 1.0
            return _penalty(alpha * self.l1_ratio, alpha * (1.0 - self.l1_ratio), weights, scales)

        if _is_grid(X):
            coefficients, intercept = self._run_over(X, features, 1, penalty)
        else:
            parts = self._parts(X, y, sample_weight, groups, y_numeric=True)
            objectives = [self._objective(*own) for own in zip(*parts.rows_of_clients, strict=True)]
            coefficients, intercept = self._run(objectives, parts, 1, penalty)
        self.coef_, self.intercept_ = coefficients[:, 0], float(intercept[0])
        return self

    def client_app(
        self, load: Any, *, features: Sequence[str] | None = None, disclosure: Disclosure | None = None
    ) -> Any:
        """Return the ClientApp of a site, for :meth:`fit` over a grid.

        Parameters
        ----------
        load : callable
            ``(context) -> (X, y)``: the site's rows and targets, as arrays, a sparse matrix or a frame, with the same
            columns at every site: in the same order, or `features` gives it.
        features : sequence of str, optional
            The order of the columns, of which a frame may have more, in another order; as for :meth:`fit`.
        disclosure : Disclosure, optional
            What may leave the site, as its owner says; by default no limit is set.
        """
        return self._app(load, features, disclosure)

    def _objective(self, X: Any, y: NDArray[Any], weights: Vector | None = None) -> Objective:
        targets = y.astype(np.float64)
        return self._sited(LeastSquares(X, targets, scale=0.5, intercept=self.fit_intercept, sample_weight=weights))

    def predict(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the predictions, shape (n,), for dense or sparse features of shape (n, d)."""
        return np.asarray(self._features(X) @ self.coef_ + self.intercept_)


@dataclass(repr=False, eq=False)
class FederatedLasso(FederatedElasticNet):
    """Lasso over several clients: scikit-learn's ``Lasso`` without pooling the rows.

    Parameters
    ----------
    alpha : float, default 1.0
        Strength, >= 0.
    fit_intercept : bool, default True
        Whether to fit an intercept, which is never regularized.
    num_clients : int, default 4
        Number of clients that `fit(X, y)` splits the rows among; fewer if there are fewer rows.
    max_rounds : int, default 5000
        The fit ends with a warning after this many rounds; about a dozen are enough.
    tol : float, default 1e-14
        The fit ends at a duality gap of this fraction of the loss with an intercept alone, or where rounding allows no
        smaller one.
    penalty_factor : mapping of str to float, or array-like, shape (d,), optional
        Factor >= 0 of a feature's penalty, l1 and l2 part alike, by name (all others have 1) or one for each: a feature
        of factor 0 is not penalised, as a confounder must not be. As in glmnet's `penalty.factor`, but not rescaled to
        sum to d. Names need a data frame, or `features` with a grid.
    standardize : bool, default False
        Penalise the coefficients of features that are divided by their standard deviations over the rows of all
        clients, as glmnet does and a ``StandardScaler`` before scikit-learn's estimator; `coef_` is that of the
        features as they are. Each client sends means and variances of its columns; no data are changed.
    site_intercepts : {"local"}, optional
        ``"local"``: each client has an intercept of its own instead of a common one, as dummy variables of the clients
        would give, and does not send it (:class:`flwr_fco.objectives.SiteIntercept`). `intercept_` is then NaN, and
        :meth:`intercept_for` returns that of a client's rows, at the client, with which the model predicts there.
    cv : int, Strengths or list of splits, optional
        Choose the strength by a cross-validation: a number of folds, into which each client deals its own rows; a
        ``flwr_fco.strategies.Strengths`` that says which strengths, folds and rule; or, of one X, pairs of training and
        test rows that part it; `alpha` is then ignored. All strengths and folds are solved in the same messages.

    Attributes
    ----------
    coef_ : ndarray, shape (d,)
        Coefficients.
    intercept_ : float
        Intercept; 0 without one, NaN where each client has its own.
    n_iter_ : int
        Number of rounds: messages to each client, the one before round 1 included.
    duality_gap_ : float
        Bound on how far the objective is above the optimum, from the clients' sums; NaN without a penalty.
    proved_zero_ : ndarray of bool, shape of `coef_`
        Which coefficients are zero in every optimum of the pooled problem, as far as the duality gap proves it
        (:func:`flwr_fco.strategies.proved_zero`).
    path_ : PathResult
        With `cv`, the models and losses of all strengths; :func:`flwr_fco.simulation.plot_path` draws them.
    strength_ : float
        With `cv`, the chosen strength of the mean loss: scikit-learn's alpha.

    Examples
    --------
    >>> X = np.array([[1.0], [2.0], [3.0], [4.0]])
    >>> FederatedLasso(alpha=0.25, num_clients=2).fit(X, X[:, 0]).coef_.round(6)
    array([0.8])
    """

    # A class attribute, not a parameter.
    l1_ratio: float = field(default=1.0, init=False)


@dataclass(repr=False, eq=False)
class FederatedLogisticRegression(ClassifierMixin, _Federated):  # type: ignore[misc]
    """Logistic regression over several clients: scikit-learn's ``LogisticRegression`` without pooling the rows.

    With more than two classes it is multinomial. A client need not have all classes.

    Parameters
    ----------
    C : float, default 1.0
        Inverse of the strength, as in scikit-learn: the loss is a sum over all rows.
    l1_ratio : float, default 0.0
        Between 0 (ridge) and 1 (lasso). The default is scikit-learn's: a ridge, which sets no coefficient to 0.
    fit_intercept : bool, default True
        Whether to fit an intercept, which is never regularized.
    num_clients : int, default 4
        Number of clients that `fit(X, y)` splits the rows among; fewer if there are fewer rows.
    max_rounds : int, default 5000
        The fit ends with a warning after this many rounds; about a dozen are enough.
    tol : float, default 1e-14
        The fit ends at a duality gap of this fraction of the loss with an intercept alone, or where rounding allows no
        smaller one.
    penalty_factor : mapping of str to float, or array-like, shape (d,), optional
        Factor >= 0 of a feature's penalty, l1 and l2 part alike, by name (all others have 1) or one for each: a feature
        of factor 0 is not penalised, as a confounder must not be. As in glmnet's `penalty.factor`, but not rescaled to
        sum to d. Names need a data frame, or `features` with a grid.
    standardize : bool, default False
        Penalise the coefficients of features that are divided by their standard deviations over the rows of all
        clients, as glmnet does and a ``StandardScaler`` before scikit-learn's estimator; `coef_` is that of the
        features as they are. Each client sends means and variances of its columns; no data are changed.
    site_intercepts : {"local"}, optional
        ``"local"``: each client has an intercept of its own instead of a common one, as dummy variables of the clients
        would give, and does not send it (:class:`flwr_fco.objectives.SiteIntercept`). `intercept_` is then NaN, and
        :meth:`intercept_for` returns that of a client's rows, at the client, with which the model predicts there. For
        two classes; clients with fewer than 10 rows are refused, and there is a warning below 25.
    class_weight : dict or "balanced", optional
        A factor > 0 of the weight of each class's rows, 1 if it is not named; ``"balanced"``: the rows of all clients
        over those of the class and the number of classes, as in scikit-learn. With a grid give a dict, the same at
        every site: an error about ``"balanced"`` has it, from what the sites' first answers say of their classes.
    cv : int, Strengths or list of splits, optional
        Choose the strength by a cross-validation: a number of folds, into which each client deals its own rows; a
        ``flwr_fco.strategies.Strengths`` that says which strengths, folds and rule; or, of one X, pairs of training and
        test rows that part it; `C` is then ignored. All strengths and folds are solved in the same messages.

    Attributes
    ----------
    classes_ : ndarray, shape (k,)
        The classes, sorted.
    coef_ : ndarray, shape (k, d), or (1, d) for two classes
        Coefficients.
    intercept_ : ndarray, shape (k,), or (1,) for two classes
        Intercept; 0 without one, NaN where each client has its own.
    n_iter_ : int
        Number of rounds: messages to each client, the one before round 1 included.
    duality_gap_ : float
        Bound on how far the objective is above the optimum, from the clients' sums; NaN without a penalty.
    proved_zero_ : ndarray of bool, shape of `coef_`
        Which coefficients are zero in every optimum of the pooled problem, as far as the duality gap proves it
        (:func:`flwr_fco.strategies.proved_zero`).
    path_ : PathResult
        With `cv`, the models and losses of all strengths; :func:`flwr_fco.simulation.plot_path` draws them.
    strength_ : float
        With `cv`, the chosen strength of the mean loss: 1 / (n C).

    Examples
    --------
    >>> X, y = np.array([[-1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [2.0, 1.0]]), np.array(["no", "no", "yes", "yes"])
    >>> model = FederatedLogisticRegression(C=2.0, l1_ratio=1.0).fit([X[:2], X[2:]], [y[:2], y[2:]])
    >>> model.predict([[-3.0, 0.0], [3.0, 0.0]]).tolist(), int(np.count_nonzero(model.coef_))
    (['no', 'yes'], 1)
    """

    C: float = 1.0
    l1_ratio: float = field(default=0.0, kw_only=True)
    class_weight: Any = field(default=None, kw_only=True)
    _kind = CLASSES

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        groups: Any = None,
        *,
        features: Any = None,
        classes: Any = (0, 1),
        intervals: bool | Intervals = False,
        selection: bool | Selection = False,
    ) -> Self:
        """Fit the model to the clients' rows, here or where they are.

        Parameters
        ----------
        X : array-like or sparse matrix, shape (n, d), a list of them, or a Flower Grid
            The rows, dealt to `num_clients` clients in turn; or each client's own; or the grid of a ServerApp, whose
            `num_clients` sites run :meth:`client_app`.
        y : array-like, shape (n,), or a list of them
            The classes; none with a grid.
        sample_weight : array-like, shape (n,), or a list of them, optional
            Weight of each row; a row of weight 2 counts as two copies of it.
        groups : array-like, shape (n,), optional
            Client of each row, instead of `num_clients` parts: rows with the same entry belong to one client.
        features : int or sequence of str, optional
            With a grid, how many columns the sites have, or their names; by default the sites, whose data are frames
            then, are asked for them in one more message.
        classes : array-like, default (0, 1)
            With a grid, as for :meth:`client_app`.
        intervals : bool or Intervals, default False
            Of two classes, whether :meth:`summary` has estimates without shrinkage, intervals, tests, odds ratios, and
            whether the sites agree; they take some more rounds, and a question before the fit (docs/inference.md).
        selection : bool or Selection, default False
            Whether :meth:`summary` says how often each feature is selected on half of the rows, and how many of the
            selected ones are chance at most; in some tens of rounds before the fit.
        """
        self._ask(intervals, sample_weight, selection)
        checked("C", self.C, float)
        checked("l1_ratio", self.l1_ratio, float)
        if not (np.isfinite(self.C) and self.C > 0.0 and 0.0 <= self.l1_ratio <= 1.0):
            raise ConfigurationError(
                f"C={self.C!r}, l1_ratio={self.l1_ratio!r}; expected a finite number > 0 and a number from 0 to 1"
            )

        def penalty(total: float, weights: Vector | None, scales: Vector | None) -> Regularizer:
            strength = 1.0 / (self.C * total) if self._path is None else 1.0
            return _penalty(strength * self.l1_ratio, strength * (1.0 - self.l1_ratio), weights, scales)

        parts = None
        if not _is_grid(X):
            parts = self._parts(X, y, sample_weight, groups)
            for own in parts.y:
                check_classification_targets(own)
            classes = np.concatenate(parts.y)
        self.classes_ = np.unique(classes)
        self._class_weights = weights_of_classes(self.class_weight, self.classes_)
        if self.classes_.size < 2:
            raise ConfigurationError(
                f"y holds 1 class, {self.classes_.tolist()}; a classifier needs examples of two classes at least"
            )
        outputs = self.classes_.size if self.classes_.size > 2 else 1
        if outputs > 1 and self._intervals is not None:
            raise ConfigurationError(f"intervals of {outputs} classes; there are some of two classes only")
        if outputs > 1 and self.site_intercepts is not None:
            raise ConfigurationError(
                f"site_intercepts={self.site_intercepts!r} of {outputs} classes; sites have their own of two only"
            )
        if parts is None:
            coefficients, intercept = self._run_over(X, features, outputs, penalty)
        else:
            parts = self._with_class_weights(parts)
            clients = zip(*parts.rows_of_clients, strict=True)
            objectives = [self._objective(own, labels, self.classes_, weights) for own, labels, weights in clients]
            coefficients, intercept = self._run(objectives, parts, outputs, penalty)
        # With a column for each class, what is not penalised is unique only up to a common constant.
        if outputs > 1 and self._factors is not None:
            free = self._factors == 0.0
            coefficients[free] -= coefficients[free].mean(axis=1, keepdims=True)
        self.coef_ = np.ascontiguousarray(coefficients.T)
        self.intercept_ = intercept - intercept.mean() if outputs > 1 else intercept
        return self

    def client_app(
        self,
        load: Any,
        classes: ArrayLike = (0, 1),
        *,
        features: Sequence[str] | None = None,
        disclosure: Disclosure | None = None,
    ) -> Any:
        """Return the ClientApp of a site, for :meth:`fit` over a grid.

        Parameters
        ----------
        load : callable
            ``(context) -> (X, y)``: the site's rows and labels, as arrays, a sparse matrix or a frame, with the same
            columns at every site: in the same order, or `features` gives it.
        classes : array-like, default (0, 1)
            All classes of the federation, the same at every site, which need not have all of them.
        features : sequence of str, optional
            The order of the columns, of which a frame may have more, in another order; as for :meth:`fit`.
        disclosure : Disclosure, optional
            What may leave the site, as its owner says; by default no limit is set.
        """
        known = np.unique(np.asarray(classes))
        self._class_weights = weights_of_classes(self.class_weight, known)
        return self._app(load, features, disclosure, known)

    def _with_class_weights(self, parts: _Parts) -> _Parts:
        """Return the parts with the weights of their rows' classes."""
        if self.class_weight is None:
            return parts
        pairs = list(zip(parts.y, parts.weights, strict=True))
        counts = [[float(weights[y == label].sum()) for label in self.classes_] for y, weights in pairs]
        self._class_weights = weights_of_classes(self.class_weight, self.classes_, np.sum(counts, axis=0))
        own = [weights * self._weights_of(y, self.classes_) for y, weights in pairs]
        return parts._replace(weights=own, weighted=True)

    def _names_of_classes(self) -> Names:
        return class_names(self.classes_, self._class_weights)

    def _site_weights(self, y: NDArray[Any], *classes: Any) -> Vector | None:
        return None if self._class_weights is None else self._weights_of(y, *classes)

    def _weights_of(self, y: NDArray[Any], classes: NDArray[Any]) -> Vector:
        """Return the weight of each row's class."""
        assert self._class_weights is not None
        return np.asarray(self._class_weights[np.minimum(np.searchsorted(classes, y), classes.size - 1)])

    def _masses(self, answers: Sequence[Any], outputs: int) -> list[float] | None:
        if self.class_weight is None:
            return None
        if not self._common_intercept:
            raise ConfigurationError(
                f"class_weight={self.class_weight!r} over a grid: the sites say by a common intercept how many rows of "
                "a class they have, and this model has none; leave it out"
            )
        slopes = [answer.vectors["gradient"][-outputs:] for answer in answers]
        counts = [
            class_counts(own, round(answer.examples), self._class_weights)
            for own, answer in zip(slopes, answers, strict=True)
        ]
        if self._class_weights is None:
            total, known = np.sum(counts, axis=0), self.classes_.tolist()
            found: Any = weights_of_classes("balanced", self.classes_, total)
            weights = dict(zip(known, found.tolist(), strict=True))
            raise ConfigurationError(
                "class_weight='balanced' over a grid: sites weigh their rows before anybody knows all of them. They "
                f"have {', '.join(f'{count:.0f}' for count in total)} rows of the classes {known}: give "
                f"class_weight={weights} here and to the sites' model"
            )
        return [float(own @ self._class_weights) for own in counts]

    def _objective(self, X: Any, y: NDArray[Any], classes: NDArray[Any], weights: Vector | None = None) -> Objective:
        if not np.isin(y, classes).all():
            # Not the labels themselves, which are the site's data: the error goes to the server.
            raise ConfigurationError(f"a label is none of classes={classes.tolist()}; give all classes at every site")
        codes = np.searchsorted(classes, y)
        made: Objective
        if classes.size == 2:
            made = self._sited(Logistic(X, codes, intercept=self.fit_intercept, sample_weight=weights))
        else:
            made = MultinomialLogistic(
                X, codes, num_classes=classes.size, intercept=self.fit_intercept, sample_weight=weights
            )
        made.class_names = class_names(classes, self._class_weights)
        return made

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the scores: the log odds of the second of two classes, or one column for each class."""
        scores = self._features(X) @ self.coef_.T + self.intercept_
        return np.asarray(scores[:, 0] if self.classes_.size == 2 else scores)

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the probabilities of the classes, shape (n, k), for dense or sparse features of shape (n, d)."""
        scores = self.decision_function(X)
        if scores.ndim == 1:
            scores = np.column_stack([np.zeros_like(scores), scores])
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(scores / scores.sum(axis=1, keepdims=True))

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the most likely class of each row."""
        scores = self.decision_function(X)
        best = (scores > 0.0).astype(np.intp) if scores.ndim == 1 else scores.argmax(axis=1)
        return np.asarray(self.classes_[best])

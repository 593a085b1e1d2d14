"""What all estimators have in common: a fit, its questions to the sites, and its summary."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, Literal, Self

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted, validate_data

from flwr_fco.client_apps import Disclosure
from flwr_fco.client_apps import client_app as make_app
from flwr_fco.core.computing import quiet
from flwr_fco.core.layout import Vector
from flwr_fco.core.schema import Names, Scales, difference, is_missing, listed, names_of
from flwr_fco.core.validation import AT_LEAST_ONE, FRACTION, POSITIVE, check_fields, checked
from flwr_fco.errors import ConfigurationError, PublicError, SeparableError
from flwr_fco.messages.protocol import Described
from flwr_fco.objectives.design import as_rows, refuse_text, scales_of
from flwr_fco.objectives.site_intercept import check_site_rows, unwarned
from flwr_fco.regularizers import ElasticNet, Regularizer, Zero
from flwr_fco.regularizers.base import with_strength
from flwr_fco.simulation import InProcessGrid
from flwr_fco.simulation.fit_path import StrengthPath
from flwr_fco.simulation.simulate import progress_bar
from flwr_fco.strategies import Everyone, FedNewton, Strengths, proved_zero, run_of
from flwr_fco.strategies.nodes import ASKING, Nodes, Tables
from flwr_fco.strategies.questions import bounded_largest
from flwr_fco.tables import description, reading
from flwr_fco.tables.codebook import Codebook
from flwr_fco.tables.intervals import CLASSES, COUNTS, KINDS, SQUARES, TIMES, Inference, Intervals, Table, first_of
from flwr_fco.tables.reports import Reports, class_names
from flwr_fco.tables.sites import TIMEOUT, Sites, called, check_count, connected

#: Relative duality gap above which a fit is not solved, even if no step lowers the objective by more than rounding.
_SOLVED = 1e-9
#: Ratio of the loss with an intercept alone to that at 0, at which it is rounding.
_CONSTANT = 1e-13
#: Relative duality gap of the models of a cross-validation.
_ON_A_PATH = 1e-10
#: Without an l1 term all coefficients are non-zero: above so many no block of the Hessian is asked for.
_LARGEST_BLOCK = 2048


# Dataclasses, because scikit-learn takes an estimator's parameters from the signature of its constructor: each is
# declared once, and an estimator adds its own.
@dataclass(repr=False, eq=False)
class Federated(Reports, BaseEstimator):  # type: ignore[misc]
    """Base class of the estimators: the split into clients and the run; the subclasses document the fields."""

    l1_ratio: float = field(default=0.0, kw_only=True, metadata=FRACTION)
    fit_intercept: bool = field(default=True, kw_only=True)
    num_clients: int = field(default=4, kw_only=True, metadata=AT_LEAST_ONE)
    max_rounds: int = field(default=5000, kw_only=True, metadata=AT_LEAST_ONE)
    tol: float = field(default=1e-14, kw_only=True, metadata={"range": (lambda tol: tol > 0.0, "a number > 0")})
    cv: int | Strengths | Sequence[Any] | None = field(default=None, kw_only=True)
    penalty_factor: Any = field(default=None, kw_only=True)
    standardize: bool = field(default=False, kw_only=True)
    site_intercepts: Literal["local", "common"] | None = field(default=None, kw_only=True)
    cluster: str | None = field(default=None, kw_only=True)
    codebook: Codebook | None = field(default=None, kw_only=True)
    #: What is fitted.
    _kind = SQUARES
    #: Whether rows of the fit had weights.
    _weighted = False

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "coef_")

    def describe(
        self,
        X: Any,
        y: Any = None,
        groups: Any = None,
        *,
        features: Any = None,
        classes: Any = (0, 1),
        stop: bool = True,
        timeout: float = TIMEOUT,
    ) -> description.Description:
        """Return a Table 1 of the sites before a fit, and what in it cannot be or is far from the other sites.

        A site sends rows, missing entries, means, deviations, quartiles and level counts of its columns, as far as its
        owner's `Disclosure` allows: no count below `min_rows` or `min_class_rows`, nor one that could be subtracted
        from others; quartiles are means of so many rows, and there is no mean of a column with one number far beyond
        all others.

        Parameters
        ----------
        X : array-like or data frame, shape (n, d), a list or dict of them, or a Flower Grid
            Each site's rows, as for :meth:`fit`.
        y : array-like, or a list or dict of them
            The targets; none with a grid, or where the codebook has an outcome.
        groups : array-like, shape (n,), optional
            The site of each row of one `X`.
        features : int or sequence of str, optional
            With a grid, as for :meth:`fit`.
        classes : array-like, default (0, 1)
            With a grid and without a codebook, all classes of a classifier.
        stop : bool, default True
            Whether it is an error if the fit would be wrong; otherwise a finding.
        timeout : float, default 600.0
            Seconds to wait for the sites.

        Raises
        ------
        ConfigurationError
            If a site's table does not fit the codebook, two sites have the same rows, a column is constant at one site
            only, or a number is so far from the others' as it would be in one of 10,000 honest federations.

        Warns
        -----
        UserWarning
            Of what would be so in one of twenty (:mod:`flwr_fco.tables.description` says what honest is).
        """
        model = copy.copy(self)
        model._check_settings()
        model._timeout = timeout
        model.classes_ = model._all_classes(classes)
        return description.describe(model, X, y, groups, features, stop=stop)

    def _names(self, d: int) -> Sequence[str]:
        return getattr(self, "feature_names_in_", [f"x{j}" for j in range(d)])

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        groups: Any = None,
        *,
        features: Any = None,
        classes: Any = (0, 1),
        without: Any = None,
        intervals: bool | Intervals = False,
        timeout: float = TIMEOUT,
    ) -> Self:
        """Fit the model to the clients' rows, here or where they are.

        Parameters
        ----------
        X : array-like or sparse matrix, shape (n, d), a list or dict of them, or a Flower Grid
            The rows, which are dealt to `num_clients` clients in turn, those of a `cluster` to one, but for a Cox model
            and with `intervals`, where they are one client's; or each client's own rows, in a dict by its name; or the
            grid of a ServerApp, whose `num_clients` sites run :meth:`client_app`. With a codebook a table is a frame as
            it comes, and is read by it.
        y : array-like, shape (n,), or a list or dict of them
            The targets, or the classes; none with a grid, or where the codebook has an outcome.
            :class:`FederatedCoxRegression` says how times and events are given.
        sample_weight : array-like, shape (n,), or a list or dict of them, optional
            Weight of each row; a row of weight 2 counts as two copies of it, except among Efron's ties. With a grid the
            sites' ``load`` returns them. Errors of a table are robust then.
        groups : array-like, shape (n,), optional
            Client of each row, instead of `num_clients` parts: rows with the same entry belong to one client.
        features : int or sequence of str, optional
            With a grid, how many columns the sites have, or their names; by default the codebook's, and without one the
            sites, whose data are frames then, are asked for them in one more message.
        classes : array-like, default (0, 1)
            With a grid, those of a classifier, as for :meth:`client_app`; by default those of the codebook.
        without : str or int, optional
            The site that the fit leaves out: an entry of `groups`, a name of the dict, a place in the list, or with a
            grid a partition id, or a name of the codebook.
        intervals : bool or Intervals, default False
            Whether :meth:`summary` has estimates without shrinkage, intervals, tests, and whether the sites agree, for
            all but three and more classes; they take one more round, of other models than those of squares some, and a
            question before the fit (docs/how-to/inference.md).
        timeout : float, default 600
            With a grid, seconds to wait for a site. One that has been waited for in vain twice is only asked; a fit
            that a site does not take part in to its end is an error that names the site and the reason.
        """
        self._check_settings()
        chosen = checked("intervals", intervals, bool | Intervals)
        # Half of an earlier fit, beside the columns and classes of one that an error ends, would be a third model.
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)
        self._table: Table | None = None
        self.without_ = without
        self._timeout = checked("timeout", timeout, float, POSITIVE)
        self._intervals: Intervals | None = (Intervals() if chosen else None) if isinstance(chosen, bool) else chosen
        clients = [] if reading.is_grid(X) else self._clients(X, y, sample_weight, groups, without)
        self._set_classes(clients, self._all_classes(classes))
        with connected(X, self._objectives(clients)) as grid, ExitStack() as stack:
            if isinstance(grid, InProcessGrid):
                # The log of a ServerApp shows its rounds; here somebody waits for the model.
                stack.enter_context(quiet())
                stack.enter_context(progress_bar(grid, None))
            self._take(*self._solved(self._sites_of(grid, clients, features)))
        return self

    def _take(self, coefficients: NDArray[np.float64], intercepts: Vector) -> None:
        """Keep coefficients of shape (d, outputs) and intercepts of shape (outputs,) as those of the model."""
        self.coef_ = coefficients[:, 0]
        if self._kind is not TIMES:
            self.intercept_: Any = float(intercepts[0])

    def client_app(
        self, load: Any, classes: ArrayLike = (0, 1), *, features: Any = None, disclosure: Disclosure | None = None
    ) -> Any:
        """Return the ClientApp of a site, for :meth:`fit` over a grid.

        Parameters
        ----------
        load : callable
            ``(context) -> (X, y)`` or ``(X, y, sample_weight)``: the site's rows and targets, as arrays, a sparse
            matrix or a frame, with the same columns at every site: in the same order, or `features` gives it. With a
            codebook it is the site's table as it comes, alone if the outcome is in it.
        classes : array-like, default (0, 1)
            All classes of a classifier's federation, the same at every site, which need not have all of them.
        features : int or sequence of str, optional
            The order of the columns, of which a frame may have more, in another order; as for :meth:`fit`.
        disclosure : Disclosure, optional
            What may leave the site, as its owner says; by default no limit is set.
        """
        own: Any = copy.copy(self)
        own.classes_ = self._all_classes(classes)
        order = None if features is None or isinstance(features, Integral) else [*map(str, features)]
        return make_app(lambda context: own._objective_of(load(context), order, disclosure), disclosure=disclosure)

    def _set_classes(self, clients: Sequence[reading.Client], classes: Any) -> None:
        """Take the classes of a classifier, which are those of the clients here, or else the given ones."""

    def _all_classes(self, given: Any) -> NDArray[Any]:
        """Return the classes of a classifier where they are not those of rows: the codebook's, or the given ones."""
        if not isinstance(given, tuple) or given != (0, 1):
            raise ConfigurationError(f"classes={given!r} of a model without classes; leave them out")
        return np.zeros(0)

    @property
    def _outputs(self) -> int:
        """How many scores a row has."""
        count = len(getattr(self, "classes_", ()))
        return count if count > 2 else 1

    def _check_settings(self) -> None:
        # scikit-learn's estimators check in `fit`, and leave their parameters as they were given.
        check_fields(copy.copy(self))
        if self._path is not None and self._path.folds is None:
            raise ConfigurationError(f"cv={self.cv!r} has no folds; give Strengths(folds=5)")

    @property
    def _common_intercept(self) -> bool:
        """Whether the model has an intercept that all clients share."""
        return self.fit_intercept and self.site_intercepts != "local"

    def _loss_of(self, own: reading.Client) -> Any:
        """Return the loss of a client's rows, with an intercept of its own if that is asked for."""
        loss: Any = self._objective(own.features, own.y, own.weights)
        # Of three classes the fit is refused, and a Table 1 is not.
        loss = unwarned(loss) if self.site_intercepts == "local" and self._outputs == 1 else loss
        loss.clusters = own.clusters
        loss.digest = self._digest
        return loss

    def intercept_for(self, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
        """Return the intercept that a site's own rows have at the fitted coefficients: for ``site_intercepts="local"``.

        At a site, ``model.intercept_ = model.intercept_for(X, y)`` makes a model that predicts there.

        Parameters
        ----------
        X : array-like or sparse matrix, shape (n, d)
            The site's rows; with a codebook its table as it comes.
        y : array-like, shape (n,)
            Its targets; none where the codebook has an outcome.
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
        if self.site_intercepts != "local":
            raise ConfigurationError("the model has a common intercept, or none; expected site_intercepts='local'")
        given = reading.Client("X", None, X, y, sample_weight)
        own = self._read(reading.opened(given, self.codebook, self.cluster, needed=False), reset=False)
        found = self._loss_of(own.at(own.weights != 0.0)).own_intercept(np.ravel(self.coef_))
        if not math.isfinite(found):
            raise ConfigurationError("all rows are of one class, and their best intercept is infinite")
        return np.array([found]) if self._kind is CLASSES else found

    @property
    def _path(self) -> Strengths | None:
        """The path of the cross-validation, if there is one."""
        given = self.cv
        cv = len(given) if isinstance(given, list | tuple) else checked("cv", given, int | Strengths | None)
        return Strengths(folds=cv) if isinstance(cv, int) else cv

    def _refuse_columns(self, X: Any, whose: str) -> None:
        """Refuse columns of texts or dates, and those that are named by numbers in another order than in the fit."""
        refuse_text(X, whose)
        names, known = names_of(getattr(X, "columns", None)), self._columns
        if names and known and names != known and sorted(names) == sorted(known) and not reading.columns_in(X):
            raise ConfigurationError(difference(whose, names, "the fit", known, classes=False))

    def _features(self, X: ArrayLike) -> Any:
        check_is_fitted(self)
        if reading.clients_of(X, None, None)[0].site is not None:
            raise ConfigurationError(f"X is a {type(X).__name__} of tables; expected one; `quality` takes several")
        if np.isnan(getattr(self, "intercept_", 0.0)).any():
            prefix = "each site has an intercept of its own, which has stayed there, so predictions are a site's own"
            advice = "model.intercept_ = model.intercept_for(X, y) of the site's rows"
            raise ConfigurationError(f"{prefix}: {advice}. Up to the intercept, X @ model.coef_.T are the scores")
        # A codebook takes its own columns, among which that of the clusters may be.
        X = reading.taken(X, self.cluster, needed=False)[0] if self.codebook is None else self.codebook.read(X)
        self._refuse_columns(X, "X")
        try:
            return validate_data(self, X, reset=False, dtype=np.float64, accept_sparse="csr")
        except ValueError as error:
            missing = reading.missing_in(X, (), counted=True)
            raise (ConfigurationError(missing) if missing else error) from None

    def predict(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the predictions, shape (n,), for dense or sparse features of shape (n, d).

        Of survival times they are risk scores: logarithms of hazard ratios to a row of zeros.
        """
        return np.asarray(self._features(X) @ self.coef_.T + getattr(self, "intercept_", 0.0))

    # --- the sites of a fit, here and over a grid -------------------------------------------------------------------

    def _clients(
        self, X: Any, y: Any, sample_weight: Any, groups: Any, without: Any = None, *, reset: bool = True
    ) -> list[reading.Client]:
        """Return the clients' rows, read and checked; without `reset` they have the columns of the fit."""
        given = reading.clients_of(X, y, sample_weight, groups)
        apart = given[0].site is not None
        given = reading.aligned([reading.opened(own, self.codebook, self.cluster, needed=reset) for own in given])
        self._on_trust = len(given) > 1 and groups is None and not reading.columns_in(given[0].features)
        # A Cox model, a table and quality are by client, and parts that are dealt are none.
        one = not reset or self._kind is TIMES or self._intervals is not None
        self._dealt = not (apart or one)
        clients = [self._read(own, reset=reset and not m) for m, own in enumerate(given)]
        if not apart:
            clients = reading.dealt(clients[0], 1 if one else self.num_clients)
        # Rows that are dealt from one X have its units and its coding.
        elif len(clients) > 1:
            if self._kind is CLASSES:
                reading.refuse_two_codings({own.name: own.y for own in clients})
            scales = Scales(d := clients[0].features.shape[1])
            for own in clients:
                scales.add(own.name, *scales_of(as_rows(own.features)))
            if text := scales.differing(self._names(d)):
                warnings.warn(text, UserWarning, stacklevel=3)
        left_out = None if without is None else reading.place_of(without, [own.site for own in clients])
        if not all((own.weights >= 0.0).all() for own in clients) or not any(own.weights.any() for own in clients):
            raise ConfigurationError("sample_weight is negative somewhere or zero everywhere; expected weights > 0")
        kept = [own.at(own.weights > 0.0) for m, own in enumerate(clients) if own.weights.any() and m != left_out]
        self._check_sites({own.name: len(own.y) for own in kept})
        return kept

    def _read(self, own: reading.Client, *, reset: bool) -> reading.Client:
        """Return a client's rows as numbers, as scikit-learn checks them."""
        named = own.site is not None
        if reset:
            # Those too that are no texts, which scikit-learn does not keep.
            self._columns: Names = names_of(getattr(own.features, "columns", None))
        self._refuse_columns(own.features, f"{own.name}: X" if named else "X")
        checks = {"y_numeric": self._kind is SQUARES, "multi_output": self._kind in (COUNTS, TIMES), "reset": reset}
        try:
            given = own.features, self._targets(own.y)
            X, y = validate_data(self, *given, dtype=np.float64, accept_sparse="csr", **checks)
            if y.dtype.kind in "OmM" and any(map(is_missing, y.tolist())):
                raise ValueError("y has labels that are missing")
            return own._replace(features=X, y=reading.of_one_kind(y, "y"), weights=reading.row_weights(own.weights, X))
        except (TypeError, ValueError) as error:
            missing = reading.missing_in(own.features, own.y, counted=True)
            if not (named or missing):
                raise
            text = f"{error}".rstrip(".")
            if not isinstance(error, ConfigurationError):
                text += "; expected a table with a row or more and the columns of the first one, and an entry "
                text += "for each row in y, and in sample_weight if it is given"
            raise ConfigurationError(f"{own.name}: " * named + (missing or text)) from error

    def _objectives(self, clients: Sequence[reading.Client]) -> list[Any]:
        """Return each client's loss."""
        objectives = list[Any]()
        for own in clients:
            try:
                objectives.append(self._loss_of(own))
            except ConfigurationError as error:
                error.args = (f"{own.name}: {error}",)
                raise
        if isinstance(self.cv, list | tuple):
            fold = reading.fold_of_rows(self.cv, [own.rows for own in clients])
            for objective, own in zip(objectives, clients, strict=True):
                objective.folds = fold[own.rows]
        return objectives

    def _sites_of(self, grid: Any, clients: Sequence[reading.Client], features: Any) -> Sites:
        """Return the sites of a fit, and what they say first; those of a grid say before what their tables are."""
        self._sites = [own.site for own in clients] or list(getattr(self.codebook, "sites", ()))
        # Of rows that are here the columns have been compared.
        tables = Tables(settled=True) if clients else self._columns_over(grid, features)
        factors = self.penalty_factor if self.codebook is None else self.codebook.by_feature(self.penalty_factor)
        self._factors = reading.factors_of(factors, getattr(self, "feature_names_in_", ()), self.n_features_in_)
        sites = Sites(self, grid, tables, len(clients))
        if not clients:
            self._on_trust, self._dealt = not tables.all_named, False
            self._check_sites({site: int(own.examples) for site, own in zip(sites.names, sites.answers, strict=True)})
            if self.standardize:
                sites.check_scales(self._names(self.n_features_in_))
        return sites

    @property
    def _digest(self) -> float:
        """The number by which the sites compare their kind of model and their codebook with the server's."""
        kind = KINDS.index(self._kind) + (getattr(self, "ties", "") == "breslow")
        return kind / 8.0 + (0.0 if self.codebook is None else self.codebook.digest)

    @property
    def _own_levels(self) -> bool:
        """Whether each client has a level of its own, which takes up what is constant there."""
        return self._kind is TIMES or self.site_intercepts == "local"

    def _check_sites(self, rows: dict[str, int]) -> None:
        """Refuse sites with too few rows for an intercept of their own."""
        if self.site_intercepts == "local" and self._kind is CLASSES:
            check_site_rows(rows)

    def _columns_over(self, grid: Any, features: Any, *, describes: bool = False) -> Tables:
        """Learn the columns of a grid's sites, and return what they say of them; for a Table 1 only names.

        Which tables do not fit a codebook is in the Table 1, so these are not asked for it.
        """
        book = self.codebook
        features = book.features if book is not None and (describes or features is None) else features
        names = [] if features is None or isinstance(features, Real) else list(features)
        d = int(features) if isinstance(features, Integral) and features is not True else len(names)
        if features is not None and (d < 1 or len({*names}) < len(names)):
            raise ConfigurationError(f"features={features!r}; expected different names, how many there are, or None")
        tables = Tables(Described(names_of(names), self._names_of_classes()), settled=describes and book is not None)
        if book is None or not describes:
            nodes = Nodes(0, Everyone().node_timeout, asks=True).sample(grid, 0, ASKING, 1.0, 1, self.num_clients)
            failed = tables.ask(grid, nodes, self._timeout, scales=not describes)
            sites = [at if at.partition_id is None else called(at.site, book.sites if book else ()) for at in failed]
            why = [f"{site}: {text}" for site, text in zip(sites, failed.values(), strict=True)]
            check_count(len(nodes) - len(failed), self.num_clients, why)
            if features is None and tables.columns is None:
                raise ConfigurationError("no site names its columns, as arrays do not: give names, or features=30")
            names = list(tables.columns or ()) if features is None else names
            tables.own = tables.own._replace(columns=names_of(names))
            tables.compare()
        self.n_features_in_ = d or len(names)
        self._columns = names_of(names)
        # Those of an earlier fit are others.
        self.__dict__.pop("feature_names_in_", None)
        if names:
            self.feature_names_in_ = np.array(names, dtype=object)
        return tables

    def _objective_of(self, data: Any, order: Any, limits: Disclosure | None = None, whose: str = "this site") -> Any:
        """Return a site's loss, of what its `load` returns, and with it what a Table 1 says."""
        own, names = reading.read_site(data, order, self.codebook, self.cluster, whose)
        try:
            y = np.asarray(self._targets(own.y))
            objective = self._loss_of(own._replace(y=y[:, 0] if y.shape[1:] == (1,) else y))
        except (TypeError, ValueError) as error:
            if text := reading.missing_in(own.features, own.y, names):
                raise PublicError(text) from error
            raise
        objective.feature_names = names
        columns = description.columns_of(self, names or [f"x{j}" for j in range(own.features.shape[1])])
        objective.table, objective.disclosure = (columns, own.values), limits or Disclosure()
        return objective

    def _targets(self, y: Any) -> Any:
        """Return a site's targets in the form in which they are checked."""
        return y

    def _names_of_classes(self) -> Names:
        """Return the classes as texts, by which sites are compared; None without classes."""
        return class_names(self.classes_) if self._kind is CLASSES else None

    # --- the runs before, of and after a fit ------------------------------------------------------------------------

    def _start(self) -> ArrayRecord:
        shape = (self.n_features_in_, self._outputs)[: 1 + (self._outputs > 1)]
        start = ArrayRecord({"coefficients": Array(np.zeros(shape))})
        if self._common_intercept:
            start["intercept"] = Array(np.zeros(self._outputs))
        return start

    def _strategy(self, psi: Regularizer, sites: Sites) -> FedNewton:
        """Return the strategy."""
        dense_solution = (isinstance(psi, Zero) or not self.l1_ratio) and sites.size > _LARGEST_BLOCK
        if dense_solution and self._path is not None:
            prefix = f"cv={self.cv!r} of a ridge with {sites.size} coefficients, none 0: above {_LARGEST_BLOCK} no"
            raise ConfigurationError(f"{prefix} Hessian block is asked for; give l1_ratio > 0, or leave cv out")
        null = at_zero = sites.at_zero
        if self._common_intercept and self._kind is SQUARES:
            # With the best intercept the loss is less by half of its slope's square.
            null -= 0.5 * float(np.square(sites.slopes[-1]))
        elif self._common_intercept and self._kind is COUNTS:
            # From 0, exposures of millions look like rates that fall without end.
            level, null = sites.at_mean()
            sites.start["intercept"] = Array(np.array([level]))
        # A tolerance from a loss that one site makes up would end the fit at 0.
        most, _ = bounded_largest([own.numbers["loss"] for own in sites.answers], [own.weight for own in sites.answers])
        # Of targets that are all the same, or far from 0, what is left of them is rounding.
        null = max(min(null, most), _CONSTANT * min(at_zero, most))
        tolerance = max(self.tol * null, np.finfo(np.float64).tiny)
        return sites.strategy(tolerance=tolerance, regularizer=psi, hessian="none" if dense_solution else "block")

    def _solved(self, sites: Sites) -> tuple[NDArray[np.float64], Vector]:
        """Return the coefficients and intercepts of a run, of columns that are centred where they are far from 0."""
        self._scales = sites.scales if self.standardize else None
        if self.site_intercepts == "local" and self._kind is CLASSES:
            # At its own intercept one class is fitted whatever the coefficients are.
            pairs = zip(sites.names, sites.answers, strict=True)
            if idle := [site for site, own in pairs if not (own.numbers["loss"] or own.vectors["gradient"].any())]:
                prefix = f"{first_of(idle)}: all rows of one class, which say nothing beside an intercept of their own"
                warnings.warn(prefix, UserWarning, stacklevel=3)
        centre = np.append(sites.origin, sites.level if self._common_intercept and self._kind is SQUARES else 0.0)
        with ExitStack() as stack:
            if centre.any():
                sites.centre(centre)
                stack.callback(sites.centre, np.zeros_like(centre))
            arrays = self._solved_there(sites)
        self.n_iter_ = sites.rounds
        points = self.path_.points if self._path is not None else ()
        for own in (arrays, *(point.result.arrays for point in points)):
            sites.settle(own, centre)
        coefficients = arrays["coefficients"].numpy().reshape(-1, self._outputs)
        nothing = Array(np.full(self._outputs, math.nan if self.site_intercepts == "local" else 0.0))
        return coefficients.copy(), arrays.get("intercept", nothing).numpy()

    def _solved_there(self, sites: Sites) -> ArrayRecord:
        """Return the model of a run, at the strength of the cross-validation if there is one."""
        self._total = sites.total
        outputs = self._outputs
        names = self._names(self.n_features_in_)
        # That of the mean loss.
        strength = 1.0 / (self.C * sites.total) if self._kind is CLASSES else float(self.alpha)
        strength = strength if self._path is None else 1.0
        # Factors and scales hold for all classes.
        each = (own if own is None or outputs == 1 else own[:, None] for own in (self._factors, self._scales))
        acts = strength > 0.0 and (self._factors is None or self._factors.any())
        psi: Regularizer = ElasticNet(strength, self.l1_ratio, *each) if acts else Zero()
        if self._path is not None and not acts:
            raise ConfigurationError("penalty_factor is 0 for all, so that cv has nothing to choose: leave one out")
        strategy = self._strategy(psi, sites)
        if not acts and self.n_features_in_ + self._common_intercept > sites.rows:
            text = f"{self.n_features_in_} columns, {sites.rows:.0f} rows and no penalty: many models fit the"
            warnings.warn(f"{text} rows as well, and this is one; give a penalty, or fewer columns", stacklevel=4)
        # By the squares it is seen whether another fit has the same rows at the same sites.
        squares = np.sum([np.square(own.weight * own.vectors["gradient"]) for own in sites.answers], axis=0)
        self._slopes = np.array([sites.slopes, squares])
        self._weighted = sites.weighted
        rounds = max(1, self.max_rounds - 1)
        inference = None if self._intervals is None else Inference(self, sites)
        try:
            start = sites.start if self._path is None else self._choose(self._path, strategy, sites, rounds)
            result = strategy.start(sites.grid, start, rounds, sites.timeout)
            metrics = result.train_metrics_clientapp
            last: Any = metrics[max(metrics)]
            sites.rounds += len(metrics)
            self.duality_gap_ = float(last.get("duality-gap", math.nan))
            # The tolerance is `tol` times the loss with an intercept alone.
            largest = strategy.tolerance * max(1.0, _SOLVED / self.tol)
            if unsolved := self.duality_gap_ > largest or not run_of(strategy).finished():
                prefix = f"not solved to tol={self.tol} after {sites.rounds} rounds"
                prefix += "; raise max_rounds or scale the features"
                ended = ". No step lowers the objective further: of a penalty that is next to none the duality gap, "
                ended += f"{self.duality_gap_:.3g}, is a loose bound, and a fit without a penalty has no need of one"
                warnings.warn(prefix + ended * bool(run_of(strategy).finished()), ConvergenceWarning, stacklevel=4)
            if inference is not None:
                begin = np.concatenate([array.numpy().ravel() for array in result.arrays.values()])
                self._table = inference.table(begin)
                self.covariance_ = self._table.found.covariance
                self.log_likelihood_ = self._table.found.log_likelihood
        except SeparableError as error:
            every = [*names, "the intercept"]
            columns = listed(list(dict.fromkeys(every[place // outputs] for place in error.indices)))
            # Of a cross-validation perhaps without a fold only.
            fold, _, _ = f"{error}".partition("the outcome")
            prefix = f"{fold}the outcome is separable by {columns}: which rows have an event follows from these alone"
            advice = "Look for a column that says the outcome and for levels without events; leave them out"
            prefix += f", so that their coefficients have no finite best value. {advice}"
            raise ConfigurationError(f"{prefix}, or penalise them and ask for no intervals") from error
        self._describe(strategy, last, sites, unsolved)
        penalised = getattr(strategy.regularizer, "strength", 0.0) * (1.0 if self._factors is None else self._factors)
        units = getattr(run_of(strategy).state, "units", np.zeros(0))[: sites.idle.size * outputs].reshape(-1, outputs)
        where = "at each site" if self._own_levels else "at all sites together"
        beside = ", or is the same in all rows at risk at each event" * (self._kind is TIMES)
        constant = f"constant {where}, so nothing is known of its coefficient, which is set to 0"
        follows = f"follows from other columns{beside}, so many models fit as well: leave it out"
        for free, why in ((sites.idle, constant), (units.any() & ~units.any(axis=1) & ~sites.idle, follows)):
            if (free := np.flatnonzero(free & (penalised == 0.0))).size:
                warnings.warn(f"{first_of([names[j] for j in free.tolist()])}: {why}", stacklevel=4)
        return result.arrays

    def _choose(self, path: Strengths, strategy: FedNewton, sites: Sites, rounds: int) -> Any:
        """Give the strategy the strength that a cross-validation chooses; return the model there."""
        values = path.values
        if values is None and not self.l1_ratio:
            # No strength makes a ridge 0: C from 1e-3, to 1e3, in scikit-learn's scale, ten of them as there; by
            # weights, as a weight of 2 is a row twice.
            num = path.num if isinstance(self.cv, Strengths) else 10
            values = (np.geomspace(1e3, 1e3 * (path.ratio or 1e-6), num) / sites.total).tolist()
        # What is no argument of StrengthPath, such as the size of a message, is the user's too.
        tolerance = strategy.tolerance * max(1.0, _ON_A_PATH / self.tol)
        tried = sites.strategy(tolerance=tolerance, regularizer=strategy.regularizer, strengths=path)
        runs = StrengthPath(tried, path.num, path.ratio, values, cv=path.folds)
        self.path_ = runs.start(sites.grid, sites.start, rounds, sites.timeout)
        chosen = self.path_.best if path.rule == "best" else self.path_.one_standard_error
        sites.rounds += len(chosen.result.train_metrics_clientapp)
        self.strength_ = chosen.strength
        strategy.regularizer = with_strength(strategy.regularizer, chosen.strength)
        return chosen.result.arrays

    def _describe(self, strategy: FedNewton, last: Any, sites: Sites, unsolved: bool) -> None:
        """Store what is proved, and the lines of a summary."""
        path = self._path
        many = len(sites.answers)
        without = "" if self.without_ is None else f", without site {self.without_}"
        where = "dealt in turn to" if self._dealt and many > 1 else "of"
        data = f"{sites.rows:.0f} rows{', weighted' * self._weighted}, {where} {many} site{'s' * (many > 1)}{without}"
        strength = getattr(strategy.regularizer, "strength", 0.0)
        of_all = strength * sites.total
        first, value = ("C", 1.0 / of_all if of_all else math.inf) if self._kind is CLASSES else ("alpha", strength)
        chosen_by = "" if path is None else f", of {len(self.path_.points)} by {path.folds}-fold cross-validation"
        end = ("Duality gap", f"{self.duality_gap_:.3g}, of an objective of {last.get('objective', math.nan):.6g}")
        if math.isnan(self.duality_gap_):
            text = "the length of a proximal gradient step; there is no duality gap"
            end = ("Residual", f"{last.get('residual', math.nan):.3g}, {text}")
        if path is not None and self.strength_ == self.path_.points[-1].strength:
            option = "ratio" if path.values is None else "values"
            chosen_by += f"; it is the smallest one, so that a smaller one may be better: Strengths({option}=...)"
        elif path is not None and self.strength_ == self.path_.points[0].strength and self.path_.points[0].nonzero:
            chosen_by += "; it is the largest one, so that a larger one may be better: Strengths(values=...)"
        text = f"{strength:.6g} ({first}={value:.6g}, l1_ratio={self.l1_ratio:g}){chosen_by}"
        rounds = f"{sites.rounds}" + f", not solved to tol={self.tol:g}" * unsolved
        self._lines = [("Strength", text), ("Data", data), ("Rounds", rounds), end]
        self._lines += [("Intercepts", "each site's own, which have stayed there")] * (self.site_intercepts == "local")
        proved = proved_zero(strategy)["coefficients"].reshape(-1, self._outputs)
        self.proved_zero_ = np.ascontiguousarray(proved.T) if self._kind is CLASSES else proved[:, 0]
        text = f"{np.count_nonzero(proved.all(axis=1))} features, which no optimum of the pooled problem has"
        self._lines += [("Proved zero", text)] * bool(proved.any())

"""The estimators: elastic net, lasso, Poisson, logistic and Cox regression of all sites; a run as an estimator."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import d2_tweedie_score
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from flwr_fco.core.layout import Vector
from flwr_fco.core.schema import real, undated
from flwr_fco.core.validation import FRACTION, NON_NEGATIVE, of_type, refusing
from flwr_fco.errors import ConfigurationError, PublicError, in_words
from flwr_fco.models import Model, arrays_of
from flwr_fco.objectives import CoxRegression, LeastSquares, Logistic, MultinomialLogistic, Objective, Poisson
from flwr_fco.objectives.design import refuse_text
from flwr_fco.objectives.linear import TraceRegression
from flwr_fco.objectives.survival import as_strata, baseline, concordance
from flwr_fco.tables.base import Federated
from flwr_fco.tables.intervals import CLASSES, COUNTS, TIMES
from flwr_fco.tables.reading import Client, as_table, of_one_kind
from flwr_fco.tables.reports import Curves, class_names, curves_of
from flwr_fco.tables.sites import asked_of

__all__ = ["FederatedCoxRegression", "FederatedElasticNet", "FederatedLasso", "FederatedLogisticRegression"]
__all__ += ["FederatedPoissonRegression", "to_estimator"]


@refusing
@dataclass(repr=False, eq=False)
class FederatedElasticNet(RegressorMixin, Federated):  # type: ignore[misc]
    """Elastic net over several clients: `sklearn.linear_model.ElasticNet` without pooling the rows.

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
        Factor >= 0 of a feature's penalty, l1 and l2 part alike, by name or pattern such as ``"pc*"`` (all others have
        1) or one for each: a feature of factor 0 is not penalised, as a confounder must not be. As in glmnet's
        `penalty.factor`, but not rescaled to sum to d. Names need a data frame, or `features` with a grid.
    standardize : bool, default False
        Penalise the coefficients of features that are divided by their standard deviations over the rows of all
        clients, as glmnet does and a ``StandardScaler`` before scikit-learn's estimator; `coef_` is that of the
        features as they are. Each client sends means and variances of its columns; no data are changed.
    site_intercepts : {"local", "common"}, optional
        Whose intercepts. By default the model has a common one, and the table of ``fit(..., intervals=True)`` one of
        each client, as dummy variables of the clients would give, because coefficients are biased where clients' levels
        differ; none of them is sent (:class:`flwr_fco.objectives.SiteIntercept`). ``"common"``: the table has a common
        one too, and says by how much clients differ. ``"local"``: the model has one of each client too. `intercept_` is
        then NaN, and :meth:`intercept_for` returns that of a client's rows, at the client, with which the model
        predicts there.
    cluster : str, optional
        What the table's standard errors are clustered by: ``"site"``, or a column of the clients' frames, such as the
        patient of each row, which is no feature then. Without it rows with weights are their own clusters.
    codebook : Codebook, optional
        What the columns of all sites' tables are: the rows are then frames as they come, and are read by it.
    cv : int, Strengths or list of splits, optional
        Choose the strength by a cross-validation: a number of folds, into which each client deals its own rows, those
        of a `cluster` into one; a ``flwr_fco.strategies.Strengths`` that says which strengths, folds and rule; or, of
        one X, pairs of training and test rows that part it; `alpha` is then ignored. All strengths and folds are solved
        in the same messages.

    Attributes
    ----------
    coef_ : ndarray, shape (d,)
        Coefficients.
    intercept_ : float
        Intercept; 0 without one, NaN where each client has its own.
    n_iter_ : int
        Number of rounds: messages to each client, but for the first, which asks what its table is.
    duality_gap_ : float
        Bound on how far the objective is above the optimum, from the clients' sums; NaN without a penalty, or with a
        factor of 0.
    proved_zero_ : ndarray of bool, shape of `coef_`
        Which coefficients are zero in every optimum of the pooled problem, as far as the duality gap proves it
        (:func:`flwr_fco.strategies.proved_zero`).
    path_ : PathResult
        With `cv`, the models and losses of all strengths.
    strength_ : float
        With `cv`, the chosen strength of the mean loss: scikit-learn's alpha.
    covariance_ : ndarray, shape (d, d)
        With `intervals`, the covariance of the table's estimates.
    log_likelihood_ : float
        With `intervals`, that of the unpenalised fit; NaN of squares with weights, or with fewer than two rows for each
        column.

    Examples
    --------
    >>> X, y = np.array([[1.0, 0.0], [0.0, 1.0], [2.0, 1.0], [3.0, 5.0]]), np.array([1.0, 0.0, 2.0, 3.0])
    >>> model = FederatedElasticNet(alpha=0.1, l1_ratio=1.0).fit([X[:2], X[2:]], [y[:2], y[2:]])
    >>> model.coef_.shape, model.predict(X).shape
    ((2,), (4,))
    """

    alpha: float = field(default=1.0, metadata=NON_NEGATIVE)
    l1_ratio: float = field(default=0.5, kw_only=True, metadata=FRACTION)

    def _targets(self, y: Any) -> Any:
        """Return a site's targets, if they are no texts, whose error would show one, and no dates."""
        refuse_text(np.asarray(y), "y")
        if any(isinstance(own, str) for own in np.asarray(y).ravel().tolist()):
            raise PublicError("y holds texts; expected numbers, or for classes FederatedLogisticRegression")
        return y

    def _objective(self, X: Any, y: NDArray[Any], weights: Vector | None = None) -> Objective:
        return LeastSquares(X, real(y), scale=0.5, intercept=self.fit_intercept, sample_weight=weights)


@refusing
@dataclass(repr=False, eq=False)
class FederatedLasso(FederatedElasticNet):
    """Lasso over several clients: `sklearn.linear_model.Lasso` without pooling the rows.

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
        Factor >= 0 of a feature's penalty, l1 and l2 part alike, by name or pattern such as ``"pc*"`` (all others have
        1) or one for each: a feature of factor 0 is not penalised, as a confounder must not be. As in glmnet's
        `penalty.factor`, but not rescaled to sum to d. Names need a data frame, or `features` with a grid.
    standardize : bool, default False
        Penalise the coefficients of features that are divided by their standard deviations over the rows of all
        clients, as glmnet does and a ``StandardScaler`` before scikit-learn's estimator; `coef_` is that of the
        features as they are. Each client sends means and variances of its columns; no data are changed.
    site_intercepts : {"local", "common"}, optional
        Whose intercepts. By default the model has a common one, and the table of ``fit(..., intervals=True)`` one of
        each client, as dummy variables of the clients would give, because coefficients are biased where clients' levels
        differ; none of them is sent (:class:`flwr_fco.objectives.SiteIntercept`). ``"common"``: the table has a common
        one too, and says by how much clients differ. ``"local"``: the model has one of each client too. `intercept_` is
        then NaN, and :meth:`intercept_for` returns that of a client's rows, at the client, with which the model
        predicts there.
    cluster : str, optional
        What the table's standard errors are clustered by: ``"site"``, or a column of the clients' frames, such as the
        patient of each row, which is no feature then. Without it rows with weights are their own clusters.
    codebook : Codebook, optional
        What the columns of all sites' tables are: the rows are then frames as they come, and are read by it.
    cv : int, Strengths or list of splits, optional
        Choose the strength by a cross-validation: a number of folds, into which each client deals its own rows, those
        of a `cluster` into one; a ``flwr_fco.strategies.Strengths`` that says which strengths, folds and rule; or, of
        one X, pairs of training and test rows that part it; `alpha` is then ignored. All strengths and folds are solved
        in the same messages.

    Attributes
    ----------
    coef_ : ndarray, shape (d,)
        Coefficients.
    intercept_ : float
        Intercept; 0 without one, NaN where each client has its own.
    n_iter_ : int
        Number of rounds: messages to each client, but for the first, which asks what its table is.
    duality_gap_ : float
        Bound on how far the objective is above the optimum, from the clients' sums; NaN without a penalty, or with a
        factor of 0.
    proved_zero_ : ndarray of bool, shape of `coef_`
        Which coefficients are zero in every optimum of the pooled problem, as far as the duality gap proves it
        (:func:`flwr_fco.strategies.proved_zero`).
    path_ : PathResult
        With `cv`, the models and losses of all strengths.
    strength_ : float
        With `cv`, the chosen strength of the mean loss: scikit-learn's alpha.
    covariance_ : ndarray, shape (d, d)
        With `intervals`, the covariance of the table's estimates.
    log_likelihood_ : float
        With `intervals`, that of the unpenalised fit; NaN of squares with weights, or with fewer than two rows for each
        column.

    Examples
    --------
    >>> X = np.array([[1.0], [2.0], [3.0], [4.0]])
    >>> FederatedLasso(alpha=0.25, num_clients=2).fit(X, X[:, 0]).coef_.round(6)
    array([0.8])
    """

    # A class attribute, not a parameter.
    l1_ratio: float = field(default=1.0, init=False)


@refusing
@dataclass(repr=False, eq=False)
class FederatedPoissonRegression(RegressorMixin, Federated):  # type: ignore[misc]
    """Poisson regression over several clients: `sklearn.linear_model.PoissonRegressor` without pooling the rows.

    `y` are counts; or counts and exposures, such as person-years, in two columns, or in a structured array, a frame or
    a codebook's outcome whose second field is ``"exposure"``. The model is of the counts for each unit of exposure.

    Where counts vary more than a Poisson distribution does, the table's errors are too small, but for clustered ones: a
    column with another entry in each row, ``cluster="row"``, makes them robust.

    Parameters
    ----------
    alpha : float, default 1.0
        Strength, >= 0.
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
        Factor >= 0 of a feature's penalty, l1 and l2 part alike, by name or pattern such as ``"pc*"`` (all others have
        1) or one for each: a feature of factor 0 is not penalised, as a confounder must not be. As in glmnet's
        `penalty.factor`, but not rescaled to sum to d. Names need a data frame, or `features` with a grid.
    standardize : bool, default False
        Penalise the coefficients of features that are divided by their standard deviations over the rows of all
        clients, as glmnet does and a ``StandardScaler`` before scikit-learn's estimator; `coef_` is that of the
        features as they are. Each client sends means and variances of its columns; no data are changed.
    site_intercepts : {"local", "common"}, optional
        Whose intercepts. By default the model has a common one, and the table of ``fit(..., intervals=True)`` one of
        each client, as dummy variables of the clients would give, because coefficients are biased where clients' levels
        differ; none of them is sent (:class:`flwr_fco.objectives.SiteIntercept`). ``"common"``: the table has a common
        one too, and says by how much clients differ. ``"local"``: the model has one of each client too. `intercept_` is
        then NaN, and :meth:`intercept_for` returns that of a client's rows, at the client, with which the model
        predicts there.
    cluster : str, optional
        What the table's standard errors are clustered by: ``"site"``, or a column of the clients' frames, such as the
        patient of each row, which is no feature then. Without it rows with weights are their own clusters.
    codebook : Codebook, optional
        What the columns of all sites' tables are: the rows are then frames as they come, and are read by it.
    cv : int, Strengths or list of splits, optional
        Choose the strength by a cross-validation: a number of folds, into which each client deals its own rows, those
        of a `cluster` into one; a ``flwr_fco.strategies.Strengths`` that says which strengths, folds and rule; or, of
        one X, pairs of training and test rows that part it; `alpha` is then ignored. All strengths and folds are solved
        in the same messages.

    Attributes
    ----------
    coef_ : ndarray, shape (d,)
        Coefficients: logarithms of rate ratios.
    intercept_ : float
        Intercept; 0 without one, NaN where each client has its own.
    n_iter_ : int
        Number of rounds: messages to each client, but for the first, which asks what its table is.
    duality_gap_ : float
        Bound on how far the objective is above the optimum, from the clients' sums; NaN without a penalty, or with a
        factor of 0.
    proved_zero_ : ndarray of bool, shape (d,)
        Which coefficients are zero in every optimum of the pooled problem, as far as the duality gap proves it
        (:func:`flwr_fco.strategies.proved_zero`).
    path_ : PathResult
        With `cv`, the models and losses of all strengths.
    strength_ : float
        With `cv`, the chosen strength of the mean loss: scikit-learn's alpha.
    covariance_ : ndarray, shape (d, d)
        With `intervals`, the covariance of the table's estimates.
    log_likelihood_ : float
        With `intervals`, that of the unpenalised fit.

    Examples
    --------
    >>> X, deaths, years = np.array([[0.0], [0.0], [1.0], [1.0]]), np.array([2, 4, 5, 13]), np.array([10.0, 20, 10, 20])
    >>> model = FederatedPoissonRegression(0.0, num_clients=2).fit(X, np.column_stack([deaths, years]))
    >>> np.exp(model.coef_).round(6).tolist(), model.predict([[0.0], [1.0]]).round(6).tolist()
    ([3.0], [0.2, 0.6])
    """

    alpha: float = field(default=1.0, metadata=NON_NEGATIVE)
    _kind = COUNTS

    def _targets(self, y: Any) -> NDArray[np.float64]:
        """Return counts and exposures, shape (n, 2)."""
        given, more, found = _fields_of(y, _EXPOSURE)
        try:
            made = np.column_stack([_numbers(own) for own in (*given, *more.values())])
        except (TypeError, ValueError) as error:
            raise PublicError(f"y has {found}; expected numbers: counts, or counts and exposures") from error
        made = np.column_stack([made, np.ones(len(made))]) if made.shape[1] == 1 else made
        # Of two fields with other names the first may be the exposure, or the second its logarithm.
        if made.shape[1] != 2 or (len(given) > 1 and found.startswith("the fields")):
            raise PublicError(f"y has {found}; expected counts, or counts and exposures > 0: in a frame, 'exposure'")
        if (made[:, 1] <= 0.0).any():
            # A row's own number, which is not for a server where rows are limited.
            raise ConfigurationError(f"y has an exposure of {made[:, 1].min():g}; expected numbers > 0, such as years")
        return made

    def _objective(self, X: Any, y: NDArray[Any], weights: Vector | None = None) -> Objective:
        counts, offset = y[:, 0], np.log(y[:, 1])
        return Poisson(X, counts, offset=offset, intercept=self.fit_intercept, sample_weight=weights)

    def predict(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the expected counts for a unit of exposure, shape (n,)."""
        return np.asarray(np.exp(super().predict(X)))

    def score(self, X: ArrayLike, y: Any, sample_weight: ArrayLike | None = None) -> float:
        """Return the part of the deviance that the model explains: D^2, as scikit-learn's ``PoissonRegressor``.

        Parameters
        ----------
        X : array-like, shape (n, d)
            The features.
        y : array-like
            Counts, and perhaps exposures, as for :meth:`fit`.
        sample_weight : array-like, shape (n,), optional
            Weight of each row.
        """
        counts, exposure = self._targets(y).T
        weights = exposure if sample_weight is None else exposure * np.asarray(sample_weight)
        return float(d2_tweedie_score(counts / exposure, self.predict(X), sample_weight=weights, power=1))


@refusing
@dataclass(repr=False, eq=False)
class FederatedLogisticRegression(ClassifierMixin, Federated):  # type: ignore[misc]
    """Logistic regression over several clients: `sklearn.linear_model.LogisticRegression` without pooling the rows.

    With more than two classes it is multinomial. A client need not have all classes.

    Parameters
    ----------
    C : float, default 1.0
        Inverse of the strength, as in scikit-learn: the loss is a sum over all rows; ``math.inf`` for no penalty.
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
        Factor >= 0 of a feature's penalty, l1 and l2 part alike, by name or pattern such as ``"pc*"`` (all others have
        1) or one for each: a feature of factor 0 is not penalised, as a confounder must not be. As in glmnet's
        `penalty.factor`, but not rescaled to sum to d. Names need a data frame, or `features` with a grid.
    standardize : bool, default False
        Penalise the coefficients of features that are divided by their standard deviations over the rows of all
        clients, as glmnet does and a ``StandardScaler`` before scikit-learn's estimator; `coef_` is that of the
        features as they are. Each client sends means and variances of its columns; no data are changed.
    site_intercepts : {"local", "common"}, optional
        Whose intercepts. By default the model has a common one, and the table of ``fit(..., intervals=True)`` one of
        each client, as dummy variables of the clients would give, because coefficients are biased where clients' levels
        differ; none of them is sent (:class:`flwr_fco.objectives.SiteIntercept`). ``"common"``: the table has a common
        one too, and says by how much clients differ. ``"local"``: the model has one of each client too. `intercept_` is
        then NaN, and :meth:`intercept_for` returns that of a client's rows, at the client, with which the model
        predicts there.
        For two classes; with "local" clients of fewer than 10 rows are refused, and there is a warning below 25. In a
        table they share an intercept.
    cluster : str, optional
        What the table's standard errors are clustered by: ``"site"``, or a column of the clients' frames, such as the
        patient of each row, which is no feature then. Without it rows with weights are their own clusters.
    codebook : Codebook, optional
        What the columns of all sites' tables are: the rows are then frames as they come, and are read by it.
    cv : int, Strengths or list of splits, optional
        Choose the strength by a cross-validation: a number of folds, into which each client deals its own rows, those
        of a `cluster` into one; a ``flwr_fco.strategies.Strengths`` that says which strengths, folds and rule; or, of
        one X, pairs of training and test rows that part it; `C` is then ignored. All strengths and folds are solved in
        the same messages.

    Attributes
    ----------
    classes_ : ndarray, shape (k,)
        The classes, sorted.
    class_count_ : ndarray, shape (k,)
        The rows of each class at all clients, each as often as it weighs; with a grid from the first answers, if the
        model has a common intercept. Of these a user makes weights that balance the classes.
    coef_ : ndarray, shape (k, d), or (1, d) for two classes
        Coefficients.
    intercept_ : ndarray, shape (k,), or (1,) for two classes
        Intercept; 0 without one, NaN where each client has its own.
    n_iter_ : int
        Number of rounds: messages to each client, but for the first, which asks what its table is.
    duality_gap_ : float
        Bound on how far the objective is above the optimum, from the clients' sums; NaN without a penalty, or with a
        factor of 0.
    proved_zero_ : ndarray of bool, shape of `coef_`
        Which coefficients are zero in every optimum of the pooled problem, as far as the duality gap proves it
        (:func:`flwr_fco.strategies.proved_zero`).
    path_ : PathResult
        With `cv`, the models and losses of all strengths.
    strength_ : float
        With `cv`, the chosen strength of the mean loss: 1 / (n C).
    covariance_ : ndarray, shape (d, d)
        With `intervals`, the covariance of the table's estimates.
    log_likelihood_ : float
        With `intervals`, that of the unpenalised fit; NaN of squares with weights, or with fewer than two rows for each
        column.

    Examples
    --------
    >>> X, y = np.array([[-1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [2.0, 1.0]]), np.array(["no", "no", "yes", "yes"])
    >>> model = FederatedLogisticRegression(C=2.0, l1_ratio=1.0).fit([X[:2], X[2:]], [y[:2], y[2:]])
    >>> model.predict([[-3.0, 0.0], [3.0, 0.0]]).tolist(), int(np.count_nonzero(model.coef_))
    (['no', 'yes'], 1)
    """

    C: float = field(default=1.0, metadata={"range": (lambda C: C > 0.0, "a number > 0, or inf for no penalty")})
    _kind = CLASSES

    def _take(self, coefficients: NDArray[np.float64], intercepts: Vector) -> None:
        outputs = self._outputs
        if self._common_intercept:
            # At 0 all probabilities are 1/k, and derivatives by the intercepts are these less the classes' shares.
            slopes = self._slopes[0, -outputs:] * (1.0 if outputs > 1 else np.array([-1.0, 1.0]))
            self.class_count_ = np.round(self._total * (1.0 / slopes.size - slopes), 9)
        # With a column for each class, what is not penalised is unique only up to a common constant. Of an even number
        # of them a sum of absolute values is the same at all constants between the middle two: their middle is taken.
        free = np.full(len(coefficients), self._path is None and math.isinf(self.C))
        free |= self._factors == 0.0 if self._factors is not None else False
        if outputs > 1:
            coefficients[free] -= coefficients[free].mean(axis=1, keepdims=True)
        if outputs % 2 == 0 and self.l1_ratio == 1.0:
            coefficients[~free] -= np.median(coefficients[~free], axis=1, keepdims=True)
        self.coef_ = np.ascontiguousarray(coefficients.T)
        self.intercept_ = intercepts - intercepts.mean() if outputs > 1 else intercepts

    def _set_classes(self, clients: Sequence[Client], classes: Any) -> None:
        if clients:
            for own in clients:
                check_classification_targets(own.y)
            classes = np.concatenate([own.y for own in clients])
        self.classes_ = np.unique(classes)
        if self.classes_.size < 2:
            raise ConfigurationError(f"y holds 1 class, {self.classes_.tolist()}; a classifier needs two at least")
        shown = [own.shown for own in getattr(self.codebook, "outcome", {}).values() if len(own.levels) == 2]
        if shown and shown[0] == self.classes_.tolist()[:1]:
            text = "the odds are of {1!r} against {0!r}, as classes are sorted, and {1!r} is the codebook's reference"
            advice = "If they are meant, give it reference={0!r}; if not, levels that sort otherwise, such as 0 and 1"
            warnings.warn(f"{text}. {advice}".format(*self.classes_.tolist()), UserWarning, stacklevel=3)
        if (outputs := self._outputs) > 1 and self._intervals is not None:
            raise ConfigurationError(f"intervals of {outputs} classes; only models of two classes have them")
        if outputs > 1 and self.site_intercepts == "local":
            raise ConfigurationError(f"site_intercepts='local' of {outputs} classes; expected two classes, or 'common'")

    def _all_classes(self, given: Any) -> NDArray[Any]:
        levels = [own.levels for own in getattr(self.codebook, "outcome", {}).values()]
        return np.unique(np.asarray(levels[0] if levels and levels[0] else given))

    def _objective(self, X: Any, y: NDArray[Any], weights: Vector | None = None) -> Objective:
        classes = self.classes_
        if y.dtype.names or not np.isin(y, classes).all():
            # Not the labels themselves, which are the site's data: the error goes to the server.
            prefix = f"a label is none of classes={classes.tolist()}; give all labels of the federation"
            raise PublicError(f"{prefix} as classes=[...] to client_app, at every site, and to fit")
        options: dict[str, Any] = {"intercept": self.fit_intercept, "sample_weight": weights}
        options |= {} if classes.size == 2 else {"num_classes": classes.size}
        made = (Logistic if classes.size == 2 else MultinomialLogistic)(X, np.searchsorted(classes, y), **options)
        made.class_names = class_names(classes)
        return made

    def _scores(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return a column of scores for each class; that of the first of two is 0."""
        scores = super().predict(X)
        return np.pad(scores, [(0, 0), (1, 0)]) if scores.shape[1] == 1 else scores

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the scores: the log odds of the second of two classes, or one column for each class."""
        scores = self._scores(X)
        return np.asarray(scores[:, 1] if self.classes_.size == 2 else scores)

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the probabilities of the classes, shape (n, k), for dense or sparse features of shape (n, d)."""
        return np.asarray(softmax(self._scores(X), axis=1))

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the most likely class of each row."""
        best = self._scores(X).argmax(axis=1)
        return np.asarray(self.classes_[best])


#: The fields of targets that are no time and no event.
_ENTRY, _STRATA, _EXPOSURE = "entry", "strata", "exposure"
_EXPECTED = "expected two columns, the time and 1 for an event or 0 for a censored row; or a structured array or a"
_EXPECTED += " frame with a time, a boolean event, and where there are any 'entry' and 'strata'"


@refusing
@dataclass(repr=False, eq=False)
class FederatedCoxRegression(Federated):
    """Cox regression over several clients, each a stratum with its own baseline hazard, without pooling the rows.

    -1/n log partial likelihood + alpha (l1_ratio ||w||_1 + (1 - l1_ratio)/2 ||w||^2), over the n rows of all clients:
    ``alpha`` is that of scikit-survival's ``CoxnetSurvivalAnalysis``, and 0 is the usual Cox regression.

    The `y` of :meth:`fit` has two columns: the times, and 1 for an event or 0 for a censored row, in this order. Or it
    is scikit-survival's structured array of a boolean event and a time. A structured array or a frame may have the
    fields ``"entry"``, the time from which on a row is under observation, and ``"strata"``, strata within the clients.
    Spans and dates are taken in days.

    Parameters
    ----------
    alpha : float, default 0.0
        Strength, >= 0.
    l1_ratio : float, default 1.0
        Between 0 (ridge) and 1 (lasso).
    ties : {"efron", "breslow"}, default "efron"
        What is done with events at the same time (:class:`flwr_fco.objectives.CoxRegression`).
    num_clients : int, default 4
        Number of sites that a fit over a grid needs. Each is a stratum; the rows of ``fit(X, y)`` are one.
    max_rounds : int, default 5000
        The fit ends with a warning after this many rounds; about a dozen are enough.
    tol : float, default 1e-14
        The fit ends at a duality gap of this fraction of the loss at 0, or where rounding allows no smaller one.
        Without a penalty, or with a factor of 0, there is no gap: it ends at a proximal gradient step that short.
    penalty_factor : mapping of str to float, or array-like, shape (d,), optional
        Factor >= 0 of a feature's penalty, as in :class:`FederatedElasticNet`.
    standardize : bool, default False
        Penalise the coefficients of features that are divided by their standard deviations over the rows of all
        clients; `coef_` is that of the features as they are.
    codebook : Codebook, optional
        What the columns of all sites' tables are: the rows are then frames as they come, and are read by it.
    cv : int, Strengths or list of splits, optional
        Choose the strength by a cross-validation, as in :class:`FederatedElasticNet`, by the partial likelihood of the
        left-out rows alone; `alpha` is then ignored.
    cluster : str, optional
        What the table's standard errors are clustered by, as in :class:`FederatedElasticNet`.

    Attributes
    ----------
    coef_ : ndarray, shape (d,)
        Coefficients: logarithms of hazard ratios.
    n_iter_ : int
        Number of rounds: messages to each client, but for the first, which asks what its table is.
    duality_gap_ : float
        Bound on how far the objective is above the optimum, from the clients' sums; NaN without a penalty, or with a
        factor of 0.
    proved_zero_ : ndarray of bool, shape (d,)
        Which coefficients are zero in every optimum of the problem, as far as the duality gap proves it.
    path_ : PathResult
        With `cv`, the models and losses of all strengths.
    strength_ : float
        With `cv`, the chosen `alpha`.
    covariance_ : ndarray, shape (d, d)
        With `intervals`, the covariance of the table's estimates.
    log_likelihood_ : float
        With `intervals`, that of the unpenalised fit; NaN of squares with weights, or with fewer than two rows for each
        column.

    Examples
    --------
    >>> X, times = np.array([[0.0], [1.0], [1.0], [0.0]]), np.array([[3.0, 1], [2.0, 1], [1.0, 1], [1.5, 1]])
    >>> model = FederatedCoxRegression().fit(X, times)
    >>> model.coef_.round(6), model.predict([[2.0]]).round(6)
    (array([0.940614]), array([1.881227]))
    """

    # A class attribute, not a parameter: an intercept would be part of the baseline.
    fit_intercept: bool = field(default=False, init=False)
    # Each site is a stratum, whose baseline takes the place of an intercept.
    site_intercepts: None = field(default=None, init=False)
    alpha: float = field(default=0.0, metadata=NON_NEGATIVE)
    l1_ratio: float = field(default=1.0, kw_only=True, metadata=FRACTION)
    ties: Literal["efron", "breslow"] = field(default="efron", kw_only=True)
    _kind = TIMES

    def predict_survival_function(
        self, X: ArrayLike, times: ArrayLike, own: tuple[Any, ...], *, strata: ArrayLike | None = None
    ) -> NDArray[np.float64]:
        """Return the probabilities that rows of a site have no event up to some times, with the site's own baseline.

        Call it at the site: the baseline is Breslow's or Efron's, as `ties`, of the site's rows; nothing is sent.

        Parameters
        ----------
        X : array-like, shape (n, d)
            The rows to predict.
        times : array-like, shape (T,)
            The times, in the unit of the site's.
        own : tuple of array-like
            The site's rows, their times and events, and of a weighted fit their weights, as for :meth:`fit`: the
            baseline is made of them.
        strata : array-like, shape (n,), optional
            The stratum of each row of `X`; needed if the site has several.

        Returns
        -------
        ndarray of float64, shape (n, T)
            The probabilities; NaN after the last time that the site, or the row's stratum, was under observation.

        Raises
        ------
        ConfigurationError
            If the site has no event, or a stratum is not one of the site's.

        References
        ----------
        Breslow: Discussion of Cox's regression models and life-tables (J. R. Stat. Soc. B 1972).

        Examples
        --------
        >>> X, y = np.array([[0.0], [1.0], [1.0], [0.0]]), np.array([[3.0, 1], [2.0, 1], [1.0, 1], [1.5, 0]])
        >>> model = FederatedCoxRegression(0.1).fit(X, y)
        >>> model.predict_survival_function([[0.0], [1.0]], [1.0, 2.5, 4.0], (X, y)).round(3)
        array([[0.905, 0.741,   nan],
               [0.67 , 0.301,   nan]])
        """
        if not (isinstance(own, tuple | list) and (2 + self._weighted) <= len(own) <= 3):
            raise ConfigurationError(f"own is {of_type(own)}; expected (X, y), if weighted (X, y, sample_weight)")
        rows = self._features(own[0])
        objective = self._objective(rows, self._targets(own[1]), *own[2:])
        # Hazards relative to a row of zeros may be no numbers.
        centre = rows.mean(axis=0) if isinstance(rows, np.ndarray) else np.zeros(self.n_features_in_)
        objective.shift(centre)
        scores = self.predict(X) - centre @ self.coef_
        if not objective.num_events:
            raise ConfigurationError("own=(X, y) has no event, so there is no baseline; give a site's rows with events")
        held = _fields_of(own[1], _STRATA)[1].get(_STRATA, np.zeros(1, dtype=np.int64))
        known = as_strata(held, len(held))[0]
        given = np.broadcast_to(known, (scores.size,)) if strata is None and len(known) == 1 else strata
        labels = [] if given is None else np.asarray(given, dtype=object).tolist()
        if len(labels) != scores.size or any(label not in known for label in labels):
            prefix = f"strata={strata!r}; expected for each of the {scores.size} rows of X one of the site's"
            raise ConfigurationError(f"{prefix}, which are {known[:10]}")
        hazards = baseline(objective, self.coef_, _asked(times))[[known.index(label) for label in labels]]
        return np.asarray(np.exp(-hazards * np.exp(scores)[:, None]))

    def score(self, X: ArrayLike, y: Any) -> float:
        """Return Harrell's concordance of the risk scores with the times of one site, or of the strata in `y`.

        Parameters
        ----------
        X : array-like, shape (n, d)
            The features.
        y : array-like, shape (n, 2), structured array or frame
            The times and events, as for :meth:`fit`.
        """
        ordered, compared = concordance(self._objective(self._features(X), self._targets(y)), self.coef_)
        return ordered / compared if compared else math.nan

    def curves(self, X: Any, y: Any = None, groups: Any = None, *, times: ArrayLike, by: str | None = None) -> Curves:
        """Return survival at some times, of the rows of several sites or of two groups of them, and the log-rank test.

        A site sends how many rows are at risk and have events between the times, for each group, and refuses if its
        owner's `Disclosure` allows no sums of so few rows (:mod:`flwr_fco.tables.reports` says what the estimates are).
        The model's coefficients have no part in it.

        Parameters
        ----------
        X : array-like or data frame, shape (n, d), a list or dict of them, or a Flower Grid
            Each site's rows, as for :meth:`fit`.
        y : array-like, or a list or dict of them, optional
            The times and events; none with a grid, or where the codebook has an outcome.
        groups : array-like, shape (n,), optional
            The site of each row of one `X`.
        times : sequence of float
            Up to when survival is asked for.
        by : str, optional
            A feature of entries 0 and 1, which are two groups.

        Returns
        -------
        Curves
            A text, with its numbers as attributes.

        Raises
        ------
        ConfigurationError
            If a site does not answer, or `by` is no feature.
        sklearn.exceptions.NotFittedError
            Before `fit`.
        """
        check_is_fitted(self)
        with asked_of(self, X, y, groups) as (run, sites):
            return curves_of(run, sites, self, np.unique(_asked(times)), by)

    def _targets(self, y: Any) -> NDArray[np.float64]:
        """Return times, events, entries and strata, shape (n, 4): an entry of -1 is before all times."""
        pair, more, found = _fields_of(y, _ENTRY, _STRATA)
        if len(pair) != 2:
            raise ConfigurationError(f"y has {found}; {_EXPECTED}")
        if pair[0].dtype == np.bool_ and pair[1].dtype != np.bool_:
            pair.reverse()
        if any(own.dtype.kind in "mM" and np.isnat(own).any() for own in (*pair, *more.values())):
            # As a number NaT is before all times.
            raise ConfigurationError("y has a date or a span that is missing (NaT); leave such rows out")
        if any(dated := [own.dtype.kind == "M" for own in (pair[0], more.get(_ENTRY, pair[1]))]):
            if not all(dated):
                raise ConfigurationError("y has dates, and no 'entry' or time of dates; expected days since each start")
            pair[0], more[_ENTRY] = (own - np.datetime64(0, "us") for own in (pair[0], more[_ENTRY]))
        try:
            times, events = map(_numbers, pair)
            entry = _numbers(more[_ENTRY]) if _ENTRY in more else np.full(len(times), -1.0)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"y has times, events or entries that are no numbers; {_EXPECTED}") from error
        strata = of_one_kind(more.get(_STRATA, np.zeros(len(times), dtype=np.int64)), "strata", alike=True)
        return np.column_stack([times, events, entry, as_strata(strata, len(times))[1]])

    def _objective(self, X: Any, y: NDArray[np.float64], weights: Vector | None = None) -> CoxRegression:
        times, events, entry, strata = y.T
        return CoxRegression(X, times, events, ties=self.ties, entry=entry, strata=strata, sample_weight=weights)


def _numbers(given: Any) -> Vector:
    """Return numbers as they are, and spans in days, as others give days as numbers; of dates there are none."""
    own = undated(given)
    return np.asarray(own / np.timedelta64(1, "D") if own.dtype.kind in "mM" else real(own))


def _asked(times: Any) -> Vector:
    with in_words(f"times={times!r:.200}; expected numbers >= 0", ConfigurationError):
        own = np.ravel(_numbers(times))
        if not own.size or not (np.isfinite(own) & (own >= 0.0)).all():
            raise ValueError("there are none, or others")
        return own


def _fields_of(y: Any, *named: str) -> tuple[list[NDArray[Any]], dict[str, NDArray[Any]], str]:
    """Return the fields of targets in their order, those that are known by name apart, and what was given."""
    array = y if hasattr(y, "columns") else np.asarray(as_table(y, "y"))
    names = list(y.columns if hasattr(y, "columns") else array.dtype.names or ())
    if not names:
        columns = list(np.atleast_2d(array.T)) if array.ndim else []
        return columns, {}, f"{len(columns)} columns without names"
    fields = {name: undated(y[name]) for name in names}
    more = {name: fields.pop(name) for name in named if name in fields}
    return list(fields.values()), more, f"the fields {names}"


def to_estimator(result: Model, objective: Objective, *, classes: ArrayLike | None = None) -> Any:
    """Convert a model into a fitted scikit-learn estimator, which can predict, score and be saved with joblib.

    Parameters
    ----------
    result : Result, ArrayRecord or mapping of str to array
        The model: ``coefficients`` and, if the objective has one, ``intercept``.
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
        If the objective is not one of these three, or the arrays or the number of classes differ.

    Examples
    --------
    >>> model = {"coefficients": [2.0, 0.0], "intercept": [1.0]}
    >>> to_estimator(model, LeastSquares(np.eye(2), np.ones(2))).predict([[3.0, 5.0]])
    array([7.])
    """
    kinds = LeastSquares | Logistic | MultinomialLogistic
    if not isinstance(objective, kinds) or isinstance(objective, TraceRegression):
        raise ConfigurationError(f"{type(objective).__name__} has no estimator; expected squares or a logistic loss")
    arrays = {name: np.asarray(array, dtype=np.float64) for name, array in arrays_of(result).items()}
    if (shapes := {name: array.shape for name, array in arrays.items()}) != (expected := dict(objective.layout.shapes)):
        raise ConfigurationError(f"the arrays are {shapes}, the objective's {expected}: they are of different runs")
    # Rows of images are flattened, in the estimator too.
    coefficients = arrays["coefficients"].reshape(objective.features.shape[1], -1)
    intercept = arrays.get("intercept", np.zeros(coefficients.shape[1]))
    if isinstance(objective, LeastSquares):
        model = LinearRegression(fit_intercept="intercept" in arrays)
        model.coef_, model.intercept_ = coefficients[:, 0], float(intercept[0])
    else:
        model = LogisticRegression(fit_intercept="intercept" in arrays)
        model.classes_ = _classes_of(objective, classes)
        if coefficients.shape[1] == 2:
            # scikit-learn stores two classes as one row and applies the logistic function to its score.
            coefficients, intercept = np.diff(coefficients), np.diff(intercept)
        model.coef_, model.intercept_, model.n_iter_ = coefficients.T, intercept, np.zeros(1, dtype=np.int32)
    model.n_features_in_ = len(coefficients)
    # pandas' own numbers of columns are no names there.
    if not all(map(str.isdecimal, names := objective.feature_names or ())):
        model.feature_names_in_ = np.array(names, dtype=object)
    return model


def _classes_of(objective: Any, classes: ArrayLike | None) -> NDArray[Any]:
    """Return the names of an objective's classes, by default their labels."""
    if isinstance(objective, MultinomialLogistic):
        labels = np.arange(objective.num_classes)
    elif classes is None and np.isin(objective.labels, 1).all():
        prefix = "all labels of this objective are 1, which are 0 and 1 or -1 and +1 on other clients"
        raise ConfigurationError(f"{prefix}; say which they are: classes=[0, 1] or classes=[-1, 1]")
    else:
        labels = np.array([0, 1]) if np.isin(objective.labels, (0, 1)).all() else np.array([-1, 1])
    names = labels if classes is None else np.asarray(classes)
    if names.shape != labels.shape:
        raise ConfigurationError(f"classes={names.tolist()}; expected {labels.size} of them, for {labels.tolist()}")
    return names

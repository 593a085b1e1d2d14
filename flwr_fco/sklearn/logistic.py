"""The estimator of classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets

from flwr_fco.client_apps import Disclosure
from flwr_fco.client_apps.balance import balance_in, with_balance
from flwr_fco.core.layout import Vector
from flwr_fco.core.schema import Names
from flwr_fco.errors import ConfigurationError
from flwr_fco.inference import Intervals
from flwr_fco.inference.federated import CLASSES
from flwr_fco.inference.selection import Selection
from flwr_fco.objectives import Logistic, MultinomialLogistic, Objective
from flwr_fco.objectives.class_weights import class_counts, weights_of_classes
from flwr_fco.sklearn.base import Federated
from flwr_fco.sklearn.reading import Parts, is_grid
from flwr_fco.sklearn.texts import class_names


@dataclass(repr=False, eq=False)
class FederatedLogisticRegression(ClassifierMixin, Federated):  # type: ignore[misc]
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
        two classes; clients with fewer than 10 rows are refused, and there is a warning below 25. For an intercept of
        each stratum within the clients name site and stratum together in `groups` of `fit` in one process, and in a
        site's own app give ``SiteIntercept(objective, strata=labels)``.
    class_weight : dict or "balanced", optional
        A factor > 0 of the weight of each class's rows, 1 if it is not named; ``"balanced"``: the rows of all clients
        over those of the class and the number of classes, as in scikit-learn. With a grid give the same at every site;
        for ``"balanced"`` the sites' first answers say how many rows of a class they have, and every site then learns
        the weights, in one more message.
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
    _kind, _first = CLASSES, "C"

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
            whether the sites agree; they take some more rounds, and a question before the fit
            (docs/how-to/inference.md).
        selection : bool or Selection, default False
            Whether :meth:`summary` says how often each feature is selected on half of the rows, and how many of the
            selected ones are chance at most; in some tens of rounds before the fit.
        """
        self._ask(intervals, sample_weight, selection)
        parts = None
        if not is_grid(X):
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
            coefficients, intercept = self._run_over(X, features, outputs)
        else:
            parts = self._with_class_weights(parts)
            clients = zip(*parts.rows_of_clients, strict=True)
            objectives = [self._objective(own, labels, self.classes_, weights) for own, labels, weights in clients]
            coefficients, intercept = self._run(objectives, parts, outputs)
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

    def _strength(self, total: float) -> float:
        return float(1.0 / (self.C * total))

    def _with_class_weights(self, parts: Parts) -> Parts:
        """Return the parts with the weights of their rows' classes."""
        if self.class_weight is None:
            return parts
        pairs = list(zip(parts.y, parts.weights, strict=True))
        counts = [[float(weights[y == label].sum()) for label in self.classes_] for y, weights in pairs]
        self._class_weights = weights_of_classes(self.class_weight, self.classes_, np.sum(counts, axis=0))
        assert self._class_weights is not None
        own = [weights * _weights_of(self._class_weights, y, self.classes_) for y, weights in pairs]
        return parts._replace(weights=own, weighted=True)

    def _names_of_classes(self) -> Names:
        return class_names(self.classes_, self._class_weights)

    @property
    def _balanced(self) -> bool:
        return isinstance(self.class_weight, str)

    @property
    def _mods(self) -> list[Any]:
        return [with_balance] if self._balanced else []

    def _site_weights(self, y: NDArray[Any], *classes: Any, context: Any = None) -> Vector | None:
        told = balance_in(context, classes[0].size) if context is not None and self._balanced else self._class_weights
        return None if told is None else _weights_of(told, y, *classes)

    def _counts(self, answers: Sequence[Any], outputs: int, weights: Vector | None) -> list[Vector]:
        """Return each site's rows of each class, which have these weights."""
        if not self._common_intercept:
            raise ConfigurationError(
                f"class_weight={self.class_weight!r} over a grid: the sites say by a common intercept how many rows of "
                "a class they have, and this model has none; leave it out"
            )
        slopes = [answer.vectors["gradient"][-outputs:] for answer in answers]
        pairs = zip(slopes, answers, strict=True)
        return [class_counts(own, round(answer.examples), weights) for own, answer in pairs]

    def _balance(self, answers: Sequence[Any], outputs: int) -> Vector | None:
        if not self._balanced:
            return None
        counts = self._counts(answers, outputs, None)
        return weights_of_classes(self.class_weight, self.classes_, np.sum(counts, axis=0))

    def _masses(self, answers: Sequence[Any], outputs: int, balance: Vector | None) -> list[float] | None:
        weights = self._class_weights if balance is None else balance
        if weights is None:
            return None
        return [float(own @ weights) for own in self._counts(answers, outputs, weights)]

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


def _weights_of(weights: Vector, y: NDArray[Any], classes: NDArray[Any]) -> Vector:
    """Return the weight of each row's class."""
    return np.asarray(weights[np.minimum(np.searchsorted(classes, y), classes.size - 1)])

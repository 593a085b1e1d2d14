"""The estimators of squares."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin

from flwr_fco.core.layout import Vector
from flwr_fco.objectives import LeastSquares, Objective
from flwr_fco.sklearn.base import Federated


@dataclass(repr=False, eq=False)
class FederatedElasticNet(RegressorMixin, Federated):  # type: ignore[misc]
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
    _of_y = MappingProxyType({"y_numeric": True})

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

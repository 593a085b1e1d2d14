"""scikit-learn estimators: a run's result as a fitted estimator, and federated estimators that train in one process.

``FederatedLasso(alpha=0.1).fit([X_1, X_2], [y_1, y_2])`` trains with two clients, each with its own rows, through
:func:`flwr_fco.simulation.simulate`; ``fit(X, y)`` splits the rows, so these estimators work wherever scikit-learn's do
(pipelines, grid searches), and ``fit(X, y, groups=client_of_each_row)`` assigns each row to a client. They pass
scikit-learn's ``check_estimator``. Data frame columns are aligned by name across clients, in the first client's order,
which ``predict`` expects. The objective functions are scikit-learn's, and so are the solutions::

    FederatedLasso,
    FederatedElasticNet           1/(2n) ||y - Xw - b||^2 + alpha (l1_ratio ||w||_1 + (1 - l1_ratio)/2 ||w||^2)
    FederatedLogisticRegression   1/n sum_i loss_i + 1/(C n) (l1_ratio ||w||_1 + (1 - l1_ratio)/2 ||w||^2)

The clients take one full gradient step per round (:class:`flwr_fco.strategies.FedDualAvg`), which is exact however the
data are distributed. Before round 1 they also send the server the means and second moments of their features, which are
used to centre the data and set step sizes. The certificate that ends the fit is computed on the pooled data: this is an
experiment in one process, not a deployment.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, softmax
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

from flwr_fco.client_apps import client_app
from flwr_fco.core.layout import Vector
from flwr_fco.core.validation import checked
from flwr_fco.errors import ConfigurationError
from flwr_fco.mirror_maps import DiagonalMetric
from flwr_fco.objectives import LeastSquares, Logistic, MultinomialLogistic, Objective
from flwr_fco.objectives.base import Batch
from flwr_fco.objectives.design import is_sparse, stacked
from flwr_fco.regularizers import L1, Regularizer, Zero
from flwr_fco.simulation import simulate
from flwr_fco.strategies import FedDualAvg, Steps, run_of

__all__ = ["FederatedElasticNet", "FederatedLasso", "FederatedLogisticRegression", "to_estimator"]

#: Sparse features with at most this many entries are converted to dense ones, which can be centred and so take fewer
#: rounds.
_SMALL = 2**22
#: Rounds between two evaluations of the certificate.
_EVERY = 20


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
    """Each client's features, the pooled targets and weights, and each client's rows in them."""

    features: list[NDArray[np.float64]]
    y: NDArray[Any]
    weights: Vector
    rows: list[NDArray[np.intp]]
    weighted: bool


def _joined(X: Any, y: Any, sample_weight: Any) -> tuple[Any, Any, Any, NDArray[np.intp], NDArray[Any] | None]:
    """Return the clients' rows as one array, with columns in the first frame's order, and the client of each row."""
    beside = {"y": y} if sample_weight is None else {"y": y, "sample_weight": sample_weight}
    for name, parts in beside.items():
        if not isinstance(parts, list | tuple) or len(parts) != len(X):
            raise ConfigurationError(
                f"X has {len(X)} parts, {name} is {type(parts).__name__} of {0 if parts is None else len(parts)}; "
                "expected a list of as many parts"
            )
    X, first = list(X), _columns(X[0])
    for number, features in enumerate(X):
        width, expected, names = np.shape(features)[-1], np.shape(X[0])[-1], _columns(features)
        if width != expected:
            raise ConfigurationError(
                f"part {number} has {width} columns in X and part 0 has {expected}; expected the same features of "
                "every client"
            )
        if names != first:
            if sorted(names) != sorted(first) or len(set(names)) < len(names):
                raise ConfigurationError(
                    f"part {number} has the columns {names or 'of an array'}, part 0 has {first or 'those of an array'}"
                    "; expected the same names, in any order"
                )
            X[number] = features[first]
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
    owner = np.repeat(np.arange(len(X)), [part.shape[0] for part in X])
    X = stacked([part if is_sparse(part) else np.asarray(part) for part in X])
    y, sample_weight = (
        None if parts is None else np.concatenate([np.asarray(part) for part in parts]) for parts in (y, sample_weight)
    )
    return X, y, sample_weight, owner, np.array(first, dtype=object) if first else None


def _columns(features: Any) -> list[str]:
    """Return the names of a frame's columns; an empty list for an array or if a name is not a string."""
    names = list(getattr(features, "columns", []))
    return names if all(isinstance(name, str) for name in names) else []


class _Weighted(Objective):
    """sum_i v_i loss_i / sum_i v_i + l2/2 ||W||^2: a linear model with example weights, on full batches."""

    def __init__(self, plain: Logistic | MultinomialLogistic | LeastSquares, weights: Vector) -> None:
        self.layout, self.num_examples, self._plain = plain.layout, plain.num_examples, plain
        self._shares = weights / weights.sum()

    def value(self, w: Vector) -> float:
        self._plain._does_not_know("its value", "ask for its gradient")

    def gradient(self, w: Vector, batch: Batch = None, out: Vector | None = None) -> Vector:
        data = self._plain.linear_data()
        assert data is not None
        matrix = w[: data.design.shape[1] * data.num_outputs].reshape(-1, data.num_outputs)
        scores = data.design.matrix @ matrix
        if data.intercept:
            scores += w[matrix.size :]
        if data.link == "identity":
            slopes = data.factor * (scores - data.targets[:, None])
        elif data.link == "logistic":
            slopes = -data.targets[:, None] * expit(-data.targets[:, None] * scores)
        else:
            slopes = softmax(scores, axis=1)
            slopes[np.arange(len(slopes)), data.targets] -= 1.0
        slopes *= self._shares[:, None]
        gradient = data.design.matrix.T @ slopes + data.l2 * matrix
        parts = [gradient.reshape(-1), slopes.sum(axis=0)] if data.intercept else [gradient.reshape(-1)]
        return np.concatenate(parts, out=out)


def _curvature(parts: list[Any], row_weights: list[Vector], factor: float, l2: float) -> tuple[Vector, float]:
    """Return the diagonal D of factor A' diag(weights) A + l2 I, A all rows, and its largest ratio to D."""
    d = parts[0].shape[1]
    second = sum(
        (part.T @ (weights[:, None] * part) for weights, part in zip(row_weights, parts, strict=True)),
        np.zeros((d, d)),
    )
    hessian = factor * second + l2 * np.eye(d)
    metric = np.diag(hessian).copy()
    metric[metric <= 0.0] = 1.0
    return metric, float(np.linalg.eigvalsh(hessian / np.sqrt(np.outer(metric, metric)))[-1]) if d else 1.0


def _sparse_curvature(rows: Any, weights: Vector, l2: float, intercept: bool) -> tuple[Vector, float]:
    """Return the diagonal D of A' diag(weights) A + l2 I, A the rows and a column of ones, and its largest ratio to D.

    Sparse rows are not centred, because centring would make them dense.
    """
    from scipy.sparse.linalg import LinearOperator, eigsh

    d = rows.shape[1]
    metric = np.asarray(rows.multiply(rows).T @ weights) + l2
    metric[metric <= 0.0] = 1.0
    scales = 1.0 / np.sqrt(np.append(metric, weights.sum()) if intercept else metric)

    def multiply(vector: Vector) -> Vector:
        scaled = scales * vector.reshape(-1)
        change = weights * (rows @ scaled[:d] + (scaled[d] if intercept else 0.0))
        product = rows.T @ change + l2 * scaled[:d]
        return np.asarray(scales * (np.append(product, change.sum()) if intercept else product))

    if scales.size == 1:
        return metric, float(multiply(np.ones(1))[0])
    operator = LinearOperator((scales.size, scales.size), matvec=multiply, dtype=np.float64)
    start = np.random.default_rng(0).normal(size=scales.size)
    largest = eigsh(operator, k=1, which="LA", v0=start, tol=1e-6, return_eigenvectors=False)
    # Lanczos approaches the eigenvalue from below.
    return metric, float(largest[0]) * (1.0 + 1e-6)


# Dataclasses, because scikit-learn takes an estimator's parameters from the signature of its constructor: each is
# declared once, and an estimator adds its own.
@dataclass(repr=False, eq=False)
class _Federated(BaseEstimator):  # type: ignore[misc]
    """Base class of the estimators: the split into clients and the run; the subclasses document the fields."""

    fit_intercept: bool = field(default=True, kw_only=True)
    num_clients: int = field(default=4, kw_only=True)
    max_rounds: int = field(default=5000, kw_only=True)
    tol: float = field(default=1e-9, kw_only=True)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _check_settings(self) -> None:
        # scikit-learn's estimators check in `fit`, and leave their parameters as they were given.
        for name, kind in (("num_clients", int), ("max_rounds", int), ("tol", float)):
            checked(name, getattr(self, name), kind)
        if self.num_clients < 1 or self.max_rounds < 1 or not self.tol > 0.0:
            raise ConfigurationError(
                f"num_clients={self.num_clients!r}, max_rounds={self.max_rounds!r}, tol={self.tol!r}; expected whole "
                "numbers >= 1 and a number > 0"
            )

    def _features(self, X: ArrayLike) -> Any:
        check_is_fitted(self)
        return validate_data(self, X, reset=False, dtype=np.float64, accept_sparse="csr")

    def _parts(self, X: Any, y: Any, sample_weight: Any, groups: Any, **checks: Any) -> _Parts:
        """Return each client's data."""
        self._check_settings()
        names = None
        if isinstance(X, list | tuple) and X and np.ndim(X[0]) == 2:
            if groups is not None:
                raise ConfigurationError(
                    "groups is for one X, y; here X is a list, whose parts are the clients already"
                )
            X, y, sample_weight, groups, names = _joined(X, y, sample_weight)
        X, y = validate_data(self, X, y, dtype=np.float64, accept_sparse="csr", **checks)
        if names is not None:
            self.feature_names_in_ = names
        if groups is None:
            owner = np.arange(X.shape[0]) % min(self.num_clients, X.shape[0])
        else:
            check_consistent_length(X, groups)
            _, owner = np.unique(column_or_1d(groups), return_inverse=True)
        weights = np.ones(X.shape[0])
        if sample_weight is not None:
            checked = check_array(sample_weight, ensure_2d=False, dtype=np.float64, input_name="sample_weight")
            weights = column_or_1d(checked)
            check_consistent_length(X, weights)
            counts = weights > 0.0
            if weights.min() < 0.0 or not counts.any():
                raise ConfigurationError("sample_weight is negative somewhere or zero everywhere; expected weights > 0")
            X, y, weights, owner = X[counts], y[counts], weights[counts], owner[counts]
        rows = [np.flatnonzero(owner == m) for m in np.unique(owner)]
        if is_sparse(X) and math.prod(X.shape) <= _SMALL:
            X = X.toarray()
        parts = [X[part] if is_sparse(X) else np.ascontiguousarray(X[part]) for part in rows]
        return _Parts(parts, y, weights, rows, sample_weight is not None)

    def _run(
        self, make: Any, split: _Parts, outputs: int, curvature: float, l1: float, l2: float
    ) -> tuple[Vector, Vector]:
        """Train; return coefficients of shape (d, outputs) and intercepts of shape (outputs,).

        `make` builds a client's objective from its rows and its features; `curvature` is the largest second
        derivative of the loss with respect to a prediction.
        """
        parts, d = split.features, split.features[0].shape[1]
        row_weights = [split.weights[rows] for rows in split.rows]
        masses = [float(weights.sum()) for weights in row_weights]
        total = math.fsum(masses)
        # The clients send these before round 1: sums of features and of their products.
        centre = np.zeros(d)
        if any(is_sparse(part) for part in parts):
            metric, largest = _sparse_curvature(
                stacked(parts), np.concatenate(row_weights) * (curvature / total), l2, self.fit_intercept
            )
        else:
            centre = sum((weights @ part for weights, part in zip(row_weights, parts, strict=True)), centre) / total
            if self.fit_intercept:
                parts = [part - centre for part in parts]
            metric, largest = _curvature(parts, row_weights, curvature / total, l2)
        rate = 1.0 / max(float(largest), 1.0)
        weights = [np.repeat(metric, outputs)] + ([np.full(outputs, curvature)] if self.fit_intercept else [])
        objectives = [make(split.rows[m], part) for m, part in enumerate(parts)]
        if split.weighted:
            objectives = [_Weighted(*pair) for pair in zip(objectives, row_weights, strict=True)]
        shape = (d, outputs) if outputs > 1 else (d,)
        start = {"coefficients": np.zeros(shape)}
        if self.fit_intercept:
            start["intercept"] = np.zeros(outputs)
        regularizer: Regularizer = L1(l1) if l1 > 0.0 else Zero()
        strategy = FedDualAvg(
            regularizer=regularizer,
            mirror_map=DiagonalMetric(np.concatenate(weights)),
            client_lr=rate,
            work=Steps(1, batch_size=None),
            fraction_evaluate=0.0,
            min_train_nodes=1,
            min_available_nodes=1,
            weighting=dict(enumerate(masses)) if split.weighted else "examples",
        )
        run, shares = run_of(strategy), [mass / total for mass in masses]
        rounds, first = 0, 0.0

        def gradient_at(w: Vector) -> Vector:
            return sum(
                (s * objective.gradient(w) for s, objective in zip(shares, objectives, strict=True)), np.zeros_like(w)
            )

        def is_solved(number: int, arrays: Any, metrics: Any) -> bool:
            nonlocal rounds, first
            rounds = number
            if number % _EVERY and number != self.max_rounds:
                return False
            problem = run.problem
            h, psi, w = problem.h, problem.psi, run.algorithm.retrieve(problem, run.state)
            # If the solution is 0, the size of a step at 0 is the reference.
            first = first or h.value(h.conjugate_gradient(rate * gradient_at(np.zeros_like(w))))
            moved = h.retrieve(h.gradient(w) - rate * gradient_at(w), rate, psi) - w
            return bool(h.value(moved) <= self.tol**2 * max(h.value(w), first))

        result = simulate(
            strategy,
            client_app(lambda context: objectives[int(context.node_config["partition-id"])]),
            num_nodes=len(parts),
            num_rounds=self.max_rounds,
            initial_arrays=start,
            progress=False,
            on_interrupt="raise",
            callbacks=[is_solved],
        )
        self.n_iter_ = rounds
        if rounds == self.max_rounds and not is_solved(rounds, None, None):
            warnings.warn(
                f"not solved to tol={self.tol} after {rounds} rounds; raise max_rounds or scale the features",
                ConvergenceWarning,
                stacklevel=3,
            )
        coefficients = result.arrays["coefficients"].numpy().reshape(d, outputs)
        intercept = result.arrays["intercept"].numpy() if self.fit_intercept else np.zeros(outputs)
        return coefficients, intercept - centre @ coefficients if self.fit_intercept else intercept


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
        The fit ends with a warning after this many rounds.
    tol : float, default 1e-9
        The fit ends when a proximal gradient step on the pooled data changes the coefficients by less than this
        fraction.

    Attributes
    ----------
    coef_ : ndarray, shape (d,)
        Coefficients.
    intercept_ : float
        Intercept; 0 without one.
    n_iter_ : int
        Number of rounds.

    Examples
    --------
    >>> X, y = np.array([[1.0, 0.0], [0.0, 1.0], [2.0, 1.0], [3.0, 5.0]]), np.array([1.0, 0.0, 2.0, 3.0])
    >>> model = FederatedElasticNet(alpha=0.1, l1_ratio=1.0).fit([X[:2], X[2:]], [y[:2], y[2:]])
    >>> model.coef_.shape, model.predict(X).shape
    ((2,), (4,))
    """

    alpha: float = 1.0
    l1_ratio: float = field(default=0.5, kw_only=True)

    def fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> Self:
        """Fit the model to the clients' rows.

        Parameters
        ----------
        X : array-like or sparse matrix, shape (n, d), or a list of them
            The rows, which are dealt to `num_clients` clients in turn; or each client's own rows.
        y : array-like, shape (n,), or a list of them
            The targets.
        sample_weight : array-like, shape (n,), or a list of them, optional
            Weight of each row; a row of weight 2 counts as two copies of it.
        groups : array-like, shape (n,), optional
            Client of each row, instead of `num_clients` parts: rows with the same entry belong to one client.
        """
        checked("alpha", self.alpha, float)
        checked("l1_ratio", self.l1_ratio, float)
        if not (np.isfinite(self.alpha) and self.alpha >= 0.0 and 0.0 <= self.l1_ratio <= 1.0):
            raise ConfigurationError(
                f"alpha={self.alpha!r}, l1_ratio={self.l1_ratio!r}; expected a finite number >= 0 and a number from 0 "
                "to 1"
            )
        parts = self._parts(X, y, sample_weight, groups, y_numeric=True)
        y = parts.y.astype(np.float64)
        # Targets far from 0 would cost accuracy in the first rounds of the intercept.
        level = np.average(y, weights=parts.weights) if self.fit_intercept else 0.0
        l2 = self.alpha * (1.0 - self.l1_ratio)

        def make(rows: NDArray[np.intp], features: NDArray[np.float64]) -> Objective:
            targets = y[rows] - level
            return LeastSquares(features, targets, scale=0.5, l2=l2, intercept=self.fit_intercept)

        coefficients, intercept = self._run(make, parts, 1, 1.0, self.alpha * self.l1_ratio, l2)
        self.coef_, self.intercept_ = coefficients[:, 0], float(intercept[0] + level)
        return self

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
        The fit ends with a warning after this many rounds.
    tol : float, default 1e-9
        The fit ends when a proximal gradient step on the pooled data changes the coefficients by less than this
        fraction.

    Attributes
    ----------
    coef_ : ndarray, shape (d,)
        Coefficients.
    intercept_ : float
        Intercept; 0 without one.
    n_iter_ : int
        Number of rounds.

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
        Between 0 (ridge) and 1 (lasso).
    fit_intercept : bool, default True
        Whether to fit an intercept, which is never regularized.
    num_clients : int, default 4
        Number of clients that `fit(X, y)` splits the rows among; fewer if there are fewer rows.
    max_rounds : int, default 5000
        The fit ends with a warning after this many rounds.
    tol : float, default 1e-9
        The fit ends when a proximal gradient step on the pooled data changes the coefficients by less than this
        fraction.

    Attributes
    ----------
    classes_ : ndarray, shape (k,)
        The classes, sorted.
    coef_ : ndarray, shape (k, d), or (1, d) for two classes
        Coefficients.
    intercept_ : ndarray, shape (k,), or (1,) for two classes
        Intercept; 0 without one.
    n_iter_ : int
        Number of rounds.

    Examples
    --------
    >>> X, y = np.array([[-1.0], [0.0], [1.0], [2.0]]), np.array(["no", "no", "yes", "yes"])
    >>> FederatedLogisticRegression(num_clients=2).fit(X, y).predict([[-3.0], [3.0]]).tolist()
    ['no', 'yes']
    """

    C: float = 1.0
    l1_ratio: float = field(default=0.0, kw_only=True)

    def fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> Self:
        """Fit the model to the clients' rows.

        Parameters
        ----------
        X : array-like or sparse matrix, shape (n, d), or a list of them
            The rows, which are dealt to `num_clients` clients in turn; or each client's own rows.
        y : array-like, shape (n,), or a list of them
            The classes.
        sample_weight : array-like, shape (n,), or a list of them, optional
            Weight of each row; a row of weight 2 counts as two copies of it.
        groups : array-like, shape (n,), optional
            Client of each row, instead of `num_clients` parts: rows with the same entry belong to one client.
        """
        checked("C", self.C, float)
        checked("l1_ratio", self.l1_ratio, float)
        if not (np.isfinite(self.C) and self.C > 0.0 and 0.0 <= self.l1_ratio <= 1.0):
            raise ConfigurationError(
                f"C={self.C!r}, l1_ratio={self.l1_ratio!r}; expected a finite number > 0 and a number from 0 to 1"
            )
        parts = self._parts(X, y, sample_weight, groups)
        check_classification_targets(parts.y)
        self.classes_, labels = np.unique(parts.y, return_inverse=True)
        count = self.classes_.size
        if count < 2:
            raise ConfigurationError(
                f"y holds 1 class, {self.classes_.tolist()}; a classifier needs examples of two classes at least"
            )
        strength = 1.0 / (self.C * parts.weights.sum())
        l2 = strength * (1.0 - self.l1_ratio)

        def make(rows: NDArray[np.intp], features: NDArray[np.float64]) -> Objective:
            classes = labels[rows]
            if count == 2:
                return Logistic(features, classes, l2=l2, intercept=self.fit_intercept)
            return MultinomialLogistic(features, classes, num_classes=count, l2=l2, intercept=self.fit_intercept)

        outputs, curvature = (1, 0.25) if count == 2 else (count, 0.5)
        coefficients, intercept = self._run(make, parts, outputs, curvature, strength * self.l1_ratio, l2)
        # With a column for each class, the intercepts are unique only up to a common constant.
        self.coef_ = np.ascontiguousarray(coefficients.T)
        self.intercept_ = intercept - intercept.mean() if count > 2 else intercept
        return self

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

"""A run's result as a fitted estimator of scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.linear_model import LinearRegression, LogisticRegression

from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives import LeastSquares, Logistic, MultinomialLogistic, Objective


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
        what = f"result is a {type(result).__name__}"
        raise ConfigurationError(f"{what}; expected what `start` or `simulate` returned, with `arrays`")
    if not isinstance(objective, LeastSquares | Logistic | MultinomialLogistic):
        what = f"{type(objective).__name__} has no estimator"
        raise ConfigurationError(f"{what}; LeastSquares, Logistic and MultinomialLogistic have one")
    arrays = {name: np.asarray(array.numpy(), dtype=np.float64) for name, array in result.arrays.items()}
    expected = dict(objective.layout.shapes)
    shapes = {name: array.shape for name, array in arrays.items()}
    if shapes != expected:
        what = f"the result's arrays are {shapes}, the objective's {expected}"
        raise ConfigurationError(f"{what}: they are of different runs")
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
            what = "all labels of this objective are 1, which are 0 and 1 or -1 and +1 on other clients"
            raise ConfigurationError(f"{what}; say which they are: classes=[0, 1] or classes=[-1, 1]")
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

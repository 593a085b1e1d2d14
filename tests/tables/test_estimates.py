"""Estimates and standard errors: textbook formulas on the pooled rows, and what a lasso must satisfy."""

import numpy as np
import pytest

from flwr_fco.errors import ConfigurationError
from flwr_fco.tables.estimates import Sums, of_likelihood, of_squares


def rows_of(n=60, p=4, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, p)) * 10.0 ** rng.integers(-2, 3, p) + 3.0
    return X, X @ rng.normal(size=p) + rng.normal(size=n) + 2.0


def sums_of(X, y, w=None, intercept=True):
    """Half the mean of squares at a point."""
    A = np.c_[X, np.ones(len(y))] if intercept else X
    w = np.zeros(A.shape[1]) if w is None else w
    left = A @ w - y
    return Sums(w, A.T @ left / len(y), A.T @ A / len(y), 0.5 * float(left @ left) / len(y), float(len(y)))


@pytest.mark.parametrize(("intercepts", "how"), [(6.0, "least squares"), (7.0, "de-biased lasso")])
def test_intercepts_that_stay_at_clients_are_parameters(intercepts, how):
    """Two rows for each parameter, wherever it is: of 20 rows and 4 columns, 6 intercepts."""
    X, y = rows_of(20)
    assert of_squares(sums_of(X, y, intercept=False)._replace(intercepts=intercepts), list("abcd")).how.startswith(how)


def test_more_columns_than_rows_whatever_their_units_and_location():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 150))
    y = X[:, 0] - X[:, 1] + rng.normal(size=100)
    names = [f"x{j}" for j in range(150)]
    found = of_squares(sums_of(X, y), names)
    assert np.abs(found.estimate[:2] - [1.0, -1.0]).max() < 4 * found.error[:2].max()
    assert 0.7 / 10 < np.median(found.error) < 2.0 / 10
    units = 10.0 ** rng.integers(-3, 4, 150)
    moved = of_squares(sums_of(X * units + 5.0 * units, 2.0 * y + 7.0, rng.normal(size=151) / np.r_[units, 1.0]), names)
    np.testing.assert_allclose(moved.estimate * units, 2.0 * found.estimate, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(moved.error * units, 2.0 * found.error, rtol=1e-3)


def logistic(X, y, w):
    A = np.c_[X, np.ones(len(y))]
    probability = 1 / (1 + np.exp(-A @ w))
    hessian = (A.T * (probability * (1 - probability))) @ A / len(y)
    return Sums(
        w,
        A.T @ (probability - y) / len(y),
        hessian,
        float(-np.log(np.where(y, probability, 1 - probability)).mean()),
        len(y),
    )


def test_a_point_that_is_no_minimum_is_refused_and_one_next_to_it_is_not():
    X = np.random.default_rng(0).normal(size=(300, 2))
    y = np.random.default_rng(1).random(300) < 1 / (1 + np.exp(-X[:, 0]))
    w = np.zeros(3)
    with pytest.raises(ConfigurationError, match=r"has not ended: its last step is of \S+ standard errors"):
        of_likelihood(logistic(X, y, w), ["a", "b"])
    for _ in range(20):
        here = logistic(X, y, w)
        w = w - np.linalg.solve(here.hessian, here.gradient)
    found = of_likelihood(logistic(X, y, w), ["a", "b"])
    near = of_likelihood(logistic(X, y, w + 1e-6), ["a", "b"])
    np.testing.assert_allclose(near.estimate, found.estimate, atol=1e-10)
    np.testing.assert_allclose(found.error, np.sqrt(np.diag(np.linalg.inv(here.hessian * 300)))[:2], rtol=1e-8)


def few_rows():
    rng = np.random.default_rng(39)
    X = rng.normal(size=(6, 8))
    return X, X @ rng.normal(size=8) + 0.01 * rng.normal(size=6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda X, y: (np.c_[X, X[:, 0] + 2.0 * X[:, 1]], y), "linearly dependent.*: a, b, e"),
        (lambda X, y: (np.c_[X, np.full(60, 3.0)], y), "linearly dependent on other columns, or constant: e"),
        (lambda X, y: (np.c_[X, np.zeros(60)], y), "is 0 at all sites.*: e"),
        (lambda X, y: (X, X @ np.ones(4) + 1.0), "without noise there are no standard errors"),
        (lambda X, y: (X, np.full(60, 2.0)), "or constant: without noise"),
        (lambda X, y: few_rows(), "of 6 rows 1 are left for the noise"),
    ],
)
def test_what_has_no_standard_errors(change, message):
    X, y = change(np.random.default_rng(0).normal(size=(60, 4)), rows_of()[1])
    with pytest.raises(ConfigurationError, match=message):
        of_squares(sums_of(X, y), list("abcdefgh")[: X.shape[1]])

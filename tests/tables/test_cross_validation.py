"""Paths and cross-validations of the estimators: which strengths, which folds, what is chosen, and what it takes."""

import pickle

import numpy as np
import pytest
from federations import fit_over_a_grid
from numpy.testing import assert_allclose, assert_array_equal
from refusals import refused
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import Lasso, lasso_path
from sklearn.model_selection import GroupKFold, KFold

from flwr_fco.strategies import Strengths
from flwr_fco.tables import FederatedElasticNet, FederatedLasso, FederatedLogisticRegression

RNG = np.random.default_rng(0)
X = RNG.normal(size=(80, 6)) * np.array([1.0, 1.0, 10.0, 0.1, 1.0, 1.0]) + 5.0
Y = X @ np.array([1.0, -2.0, 0.3, 0.0, 0.0, 0.0]) + RNG.normal(size=80)


def losses_of(path):
    return [point.held_out for point in path.points]


@pytest.mark.parametrize(
    ("model", "kind", "columns"),
    [
        (FederatedLasso(cv=4), "regression", 6),
        (FederatedElasticNet(l1_ratio=0.7, cv=Strengths(8, folds=3)), "regression", 6),
        (FederatedLogisticRegression(l1_ratio=1.0, cv=Strengths(8, folds=4)), "two", 6),
        (FederatedLogisticRegression(l1_ratio=1.0, cv=Strengths(8, folds=3, rule="one-standard-error")), "three", 6),
        # A null model without an intercept has no Hessian to ask for.
        (FederatedLasso(fit_intercept=False, cv=Strengths(6, folds=3)), "regression", 140),
        (FederatedLogisticRegression(l1_ratio=1.0, fit_intercept=False, cv=Strengths(6, folds=3)), "two", 140),
    ],
)
def test_a_cross_validation_fits_at_the_strength_that_it_chooses(model, kind, columns):
    """The fit is that of a model of this strength, and in scikit-learn's scale."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, columns))
    scores = X[:, :3] @ np.array([2.0, -1.0, 0.5]) + rng.normal(size=120)
    y = {"regression": scores, "two": scores > 0.0, "three": np.digitize(scores, [-1.0, 1.0])}[kind]
    parts = [X[:50], X[50:90], X[90:]], [y[:50], y[50:90], y[90:]]
    model = clone(model).fit(*parts)
    path = model.path_
    chosen = path.best if getattr(model.cv, "rule", "best") == "best" else path.one_standard_error
    assert model.strength_ == chosen.strength
    assert model.duality_gap_ <= 1e-9
    assert min(losses_of(path)) < losses_of(path)[0]
    strength = {"alpha": model.strength_} if kind == "regression" else {"C": 1.0 / (120 * model.strength_)}
    found = model.coef_
    again = model.set_params(cv=None, **strength).fit(*parts)
    assert_allclose(found, again.coef_, atol=1e-6)
    assert not hasattr(again, "path_")
    assert not hasattr(again, "strength_")


def test_a_cross_validation_over_a_grid_and_with_weights():
    parts, targets = [X[:20], X[20:]], [Y[:20], Y[20:]]
    model = FederatedLasso(num_clients=2, cv=Strengths(8, folds=3))
    here = clone(model).fit(parts, targets)
    there, _ = fit_over_a_grid(clone(model), list(zip(parts, targets, strict=True)), features=6)
    assert_array_equal(there.coef_, here.coef_)
    assert (there.strength_, there.n_iter_) == (here.strength_, here.n_iter_)
    # Folds are dealt by the rows' numbers, with weights too.
    weighted = clone(model).fit(parts, targets, sample_weight=[np.ones(20), np.ones(60)])
    assert_allclose(weighted.strength_, here.strength_, rtol=1e-9)
    assert_array_equal(pickle.loads(pickle.dumps(there)).predict(X), here.predict(X))


def test_a_row_of_weight_2_is_two_rows_of_a_cross_validation():
    weights = 1 + np.arange(len(X)) % 3
    site = np.arange(len(X)) % 2
    splits = list(KFold(4).split(X))
    twice = np.repeat(np.arange(len(X)), weights)
    repeated = [[np.flatnonzero(np.isin(twice, side)) for side in split] for split in splits]
    one = FederatedLasso(cv=splits).fit(X, Y, sample_weight=weights, groups=site).path_
    other = FederatedLasso(cv=repeated).fit(X[twice], Y[twice], groups=site[twice]).path_
    assert_allclose([at[3:5] for at in one.points], [at[3:5] for at in other.points], rtol=1e-5)


def test_a_message_of_a_cross_validation_is_as_small_as_the_user_says():
    whole, small = (FederatedLasso(cv=Strengths(12, folds=3, max_bytes=size)).fit(X, Y).path_ for size in (2**25, 1))
    rounds = [len(path.points[0].result.train_metrics_clientapp) for path in (whole, small)]
    assert rounds[1] > 2 * rounds[0]
    assert_allclose(losses_of(whole), losses_of(small), rtol=1e-6)
    message = r"takes about \S+ MB of each client, above total_bytes=1000;"
    refused(message, FederatedLasso(cv=Strengths(folds=4, total_bytes=1000)).fit, X, Y)


def test_a_ridge_takes_strengths_of_scikit_learns_scale():
    X, y = load_breast_cancer(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    path = FederatedLogisticRegression(cv=Strengths(9, folds=3)).fit(X, y).path_
    assert_allclose([point.strength for point in path.points], np.logspace(3, -3, 9) / 569)
    model = FederatedLogisticRegression(cv=Strengths(values=[0.1, 0.01], folds=3)).fit(X, y)
    assert model.strength_ in (0.1, 0.01)
    X = np.random.default_rng(0).normal(size=(20, 2050))
    message = r"a ridge with 2051 coefficients.*above 2048 no .*l1_ratio > 0"
    refused(message, FederatedLogisticRegression(cv=3).fit, X, X[:, 0] > 0.0)


def test_folds_of_ones_own_are_those_of_the_rows():
    """Rows of one patient stay in one fold: the losses are those of scikit-learn's on the same splits."""
    splits = list(GroupKFold(4).split(X, Y, np.arange(len(X)) // 3))
    for point in FederatedLasso(num_clients=3, cv=splits).fit(X, Y).path_.points[::10]:
        lasso = Lasso(point.strength, tol=1e-12)
        errors = [lasso.fit(X[train], Y[train]).predict(X[test]) - Y[test] for train, test in splits]
        assert point.held_out == pytest.approx(0.5 * np.square(np.concatenate(errors)).mean(), rel=1e-4)
    refused("numbers are rows of one X", FederatedLasso(cv=splits).fit, [X[:20], X[20:]], [Y[:20], Y[20:]])
    refused("expected a partition", FederatedLasso(cv=splits[:2]).fit, X, Y)


def test_wide_squares_are_scikit_learns_and_send_little():
    """Far less than a triangle of each problem in each round."""
    rng = np.random.default_rng(0)
    sites = [rng.normal(0.2 * m, 1.0, (n, 200)) for m, n in enumerate((20, 31, 12))]
    targets = [own[:, :8] @ rng.choice([-1.0, 1.0], 8) + rng.normal(size=len(own)) for own in sites]
    points = FederatedLasso(cv=Strengths(10, folds=4)).fit(sites, targets).path_.points
    x, y = np.vstack(sites), np.concatenate(targets)
    strengths = [point.strength for point in points]
    expected = lasso_path(x - x.mean(axis=0), y - y.mean(), alphas=strengths, tol=1e-14, max_iter=100_000)[1]
    found = np.transpose([point.result.arrays["coefficients"].numpy() for point in points])
    assert_allclose(found, expected, atol=2e-5)
    assert ((np.abs(found) > 1e-4) == (np.abs(expected) > 1e-4)).all()
    history = points[0].result.train_metrics_clientapp
    triangles = len(history) * 5 * 4 * 60**2
    assert sum(each["bytes-up"] for each in history.values()) / 3 < triangles


@pytest.mark.parametrize(("features", "ratio"), [(4, 1e-4), (90, 1e-2)])
def test_the_smallest_strength_is_glmnets_and_a_short_path_says_so(features, ratio):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, features))
    y = X[:, 0] + 0.1 * rng.normal(size=60)
    points = FederatedLasso(cv=3).fit(X, y).path_.points
    assert points[-1].strength == pytest.approx(ratio * points[0].strength)
    short = FederatedLasso(cv=Strengths(3, 0.9, folds=3)).fit(X, y)
    assert "it is the smallest one, so that a smaller one may be better" in str(short.summary())

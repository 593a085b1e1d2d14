"""Paths of the estimators: models of wide data, where a path ends, what it takes, and what has no end."""

import numpy as np
import pandas as pd
import pytest
from problems import app_of
from sklearn.linear_model import LogisticRegression, lasso_path

from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives import LeastSquares
from flwr_fco.regularizers import L1
from flwr_fco.simulation import fit_path
from flwr_fco.strategies import FedNewton, Strengths, run_of
from flwr_fco.tables import FederatedLasso, FederatedLogisticRegression


def wide(sizes=(20, 31, 12), features=200, seed=0):
    rng = np.random.default_rng(seed)
    truth = np.zeros(features)
    truth[:8] = rng.choice([-1.0, 1.0], 8)
    own = [rng.normal(0.2 * m, 1.0, (n, features)) for m, n in enumerate(sizes)]
    return [LeastSquares(x, x @ truth + rng.normal(size=len(x)), scale=0.5) for x in own]


def test_wide_squares_are_scikit_learns_at_each_fold_and_send_little():
    """Four folds are parted by hand; what is sent is far less than a triangle of each problem in each round."""
    objectives = wide()
    folds = 4
    for objective in objectives:
        objective.folds = np.arange(objective.num_examples) % folds
    strategy = FedNewton(regularizer=L1(1.0), tolerance=1e-13, fraction_evaluate=0.0)
    start = {name: np.zeros(shape) for name, shape in objectives[0].layout.shapes.items()}
    given = {"num_nodes": 3, "num_rounds": 400, "initial_arrays": start, "progress": False}
    path = fit_path(strategy, app_of(objectives), num_strengths=10, cv=folds, **given)
    state = run_of(strategy).state
    strengths = np.array([own.strength for own in path.points])
    assert strengths[-1] == pytest.approx(0.01 * strengths[0])
    for fold in range(folds + 1):
        rows = [np.flatnonzero(own.folds != fold - 1) for own in objectives]
        x = np.concatenate([own.features[kept] for own, kept in zip(objectives, rows, strict=True)])
        y = np.concatenate([own.targets[kept] for own, kept in zip(objectives, rows, strict=True)])
        x = x - x.mean(axis=0)
        y = y - y.mean()
        expected = lasso_path(x, y, alphas=strengths, tol=1e-14, max_iter=100_000)[1]
        found = state.points[folds + 1 + fold :: folds + 1, :-1].T
        np.testing.assert_allclose(found, expected, atol=2e-5)
        assert ((np.abs(found) > 1e-4) == (np.abs(expected) > 1e-4)).all()
    history = path.points[0].result.train_metrics_clientapp
    triangles = len(history) * (folds + 1) * 4 * 60**2
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


def test_a_path_that_takes_more_than_is_allowed_is_refused_with_its_size():
    X = np.random.default_rng(0).normal(size=(40, 30))
    with pytest.raises(ConfigurationError, match=r"takes about \S+ MB of each client, above total_bytes=1000;"):
        FederatedLasso(cv=Strengths(folds=4, total_bytes=1000)).fit(X, X[:, 0] + 0.1 * X[:, 1])


def test_without_a_penalty_the_fit_is_scikit_learns():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3))
    y = X[:, 0] + rng.normal(size=200) > 0.0
    ours = FederatedLogisticRegression(C=np.inf).fit(X, y)
    theirs = LogisticRegression(C=np.inf, tol=1e-12, max_iter=10_000).fit(X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-6)
    with pytest.raises(ConfigurationError, match=r"C=-1.*a number > 0, or inf"):
        FederatedLogisticRegression(C=-1.0).fit(X, y)


@pytest.mark.parametrize("unit", [1.0, 0.01, 1000.0])
@pytest.mark.parametrize("whole", [True, False])
def test_the_columns_that_tell_the_outcome_are_named(unit, whole):
    """A column that is the outcome, or one that no row without an event has."""
    rng = np.random.default_rng(1)
    X = pd.DataFrame(rng.normal(size=(200, 3)), columns=["age", "sex", "bmi"])
    y = X["age"] + rng.normal(size=200) > 0.0
    X["dead"] = unit * (y & (whole | (rng.random(200) < 0.3))).astype(float)
    with pytest.raises(ConfigurationError, match=r"the outcome is separable by 'dead':"):
        FederatedLogisticRegression(C=np.inf).fit(X, y)

"""Columns that say nothing, and columns far from 0."""

import warnings

import numpy as np
import pandas as pd
import pytest
from federations import fit_over_a_grid, grid_of
from scipy import sparse
from sklearn.base import clone
from sklearn.linear_model import Lasso, LogisticRegression

from flwr_fco.core.logs import quiet
from flwr_fco.errors import ConfigurationError
from flwr_fco.tables import FederatedCoxRegression, FederatedLasso, FederatedLogisticRegression, Intervals

RNG = np.random.default_rng(3)
X = RNG.normal(size=(120, 3))
SCORES = X @ [1.0, 0.0, -2.0] + 0.5 * RNG.normal(size=120)
SITES = np.arange(120) % 3
TIMES = np.c_[RNG.exponential(np.exp(-SCORES)), RNG.random(120) < 0.7]


def parts(rows):
    return [rows[m == SITES] for m in range(3)]


@pytest.mark.parametrize("offset", [1e5, 1e8])
@pytest.mark.parametrize("standardize", [False, True])
def test_columns_far_from_0_have_the_digits_of_scikit_learn(offset, standardize):
    """Also over a grid, whose sites centre their columns, and end to do so."""
    moved = X + np.array([offset, 0.0, -offset])
    scales = X.std(axis=0) if standardize else 1.0
    theirs = Lasso(0.1, tol=1e-13).fit(X / scales, SCORES).coef_ / scales
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = FederatedLasso(0.1, standardize=standardize).fit(parts(moved), parts(SCORES))
        sites = list(zip(parts(moved), parts(SCORES), strict=True))
        model.num_clients = 3
        there, grid = fit_over_a_grid(clone(model), sites, features=3)
    np.testing.assert_allclose(model.coef_, theirs, atol=1e-16 * offset + 1e-11)
    np.testing.assert_array_equal(there.coef_, model.coef_)
    np.testing.assert_allclose(
        model.predict(moved), FederatedLasso(0.1, standardize=standardize).fit(X, SCORES).predict(X), atol=1e-6
    )
    with grid.identity(), quiet(50):
        again = clone(model).fit(grid, features=3)
    np.testing.assert_array_equal(again.coef_, model.coef_)


def test_times_classes_own_intercepts_and_paths_are_centred_too():
    moved = X + np.array([1e7, 0.0, 1e6])
    y = (SCORES > 0.0).astype(int)
    for model, targets in (
        (FederatedCoxRegression(), TIMES),
        (FederatedLogisticRegression(0.5, l1_ratio=1.0), y),
        (FederatedLogisticRegression(0.5, l1_ratio=1.0, site_intercepts="local"), y),
        (FederatedLasso(cv=3), SCORES),
    ):
        far, near = (model.__class__(**model.get_params()).fit(parts(own), parts(targets)) for own in (moved, X))
        np.testing.assert_allclose(far.coef_, near.coef_, atol=1e-7)
        if hasattr(near, "path_"):
            for one, other in zip(far.path_.points, near.path_.points, strict=True):
                arrays = one.result.arrays
                scores = moved @ arrays["coefficients"].numpy() + arrays["intercept"].numpy()
                arrays = other.result.arrays
                np.testing.assert_allclose(
                    scores, X @ arrays["coefficients"].numpy() + arrays["intercept"].numpy(), atol=1e-5
                )
    far, near = (
        FederatedLogisticRegression().fit(parts(own), parts(y)).quality(parts(own), parts(y)) for own in (moved, X)
    )
    assert far.overall["Brier"] == pytest.approx(near.overall["Brier"], abs=1e-7)


def test_sparse_columns_keep_their_zeros():
    """Also where one is constant, or far from 0: predictions are those of dense ones."""
    rows = np.c_[X * (X > 0.0), np.full(120, 1e4), 1e4 + X[:, 0]]
    model = FederatedLasso(0.1).fit(parts(sparse.csr_array(rows)), parts(SCORES))
    dense = FederatedLasso(0.1).fit(parts(rows), parts(SCORES))
    np.testing.assert_allclose(model.predict(rows), dense.predict(rows), atol=1e-4)


def test_a_fit_that_fails_leaves_no_centre_behind():
    moved = X + np.array([1e7, 0.0, 0.0])
    model = FederatedLasso(0.1, num_clients=3)
    with grid_of(model, list(zip(parts(moved), parts(SCORES), strict=True))) as grid:
        with pytest.raises(ConfigurationError, match="no features"):
            model.fit(grid, features=3, intervals=Intervals(columns=["x9"]))
        model.fit(grid, features=3)
    np.testing.assert_allclose(model.coef_, Lasso(0.1, tol=1e-13).fit(X, SCORES).coef_, atol=1e-8)


@pytest.mark.parametrize("value", [0.0, 1.0, 1e3, 1e6])
def test_a_constant_column_gets_0_and_is_named(value):
    wide = np.c_[X, np.full(120, value)]
    y = (SCORES > 0.0).astype(int)
    for model, targets in (
        (FederatedCoxRegression(), TIMES),
        (FederatedLasso(0.0), SCORES),
        (FederatedLogisticRegression(1.0, penalty_factor=[1, 1, 1, 0]), y),
    ):
        with pytest.warns(UserWarning, match=r"x3: constant at .*nothing is known of it, and 0 is said"):
            model.fit(parts(wide), parts(targets))
        plain = model.__class__(**{**model.get_params(), "penalty_factor": None}).fit(parts(X), parts(targets))
        np.testing.assert_allclose(np.ravel(model.coef_), [*np.ravel(plain.coef_), 0.0], atol=1e-6)
        np.testing.assert_allclose(model.predict(wide), plain.predict(X), atol=1e-6)
        with pytest.raises(ConfigurationError, match="no intervals: x3: constant at"):
            model.fit(parts(wide), parts(targets), intervals=True)
    with warnings.catch_warnings():
        # A penalised column is 0 anyway.
        warnings.simplefilter("error")
        assert FederatedLasso(0.1).fit(parts(wide), parts(SCORES)).coef_[3] == 0.0


@pytest.mark.parametrize("value", [1.0, 1e3])
@pytest.mark.parametrize("noise", [0.0, 1e-5])
def test_without_an_intercept_a_constant_column_is_one(value, noise):
    """Nothing else takes up what they add."""
    wide = np.c_[X, value * (1.0 + noise * SCORES)]
    y = SCORES + 5.0
    ours = FederatedLasso(1e-3, fit_intercept=False).fit(parts(wide), parts(y))
    theirs = Lasso(1e-3, fit_intercept=False, tol=1e-14, max_iter=10**6).fit(wide, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-9)
    assert abs(ours.coef_[3] * value) > 4.0
    labels = (y > 4.0).astype(int)
    ours = FederatedLogisticRegression(1e-2, fit_intercept=False).fit(parts(wide), parts(labels))
    theirs = LogisticRegression(C=1e-2, fit_intercept=False, tol=1e-10, solver="newton-cg").fit(wide, labels)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-6)
    table = FederatedLasso(0.0, fit_intercept=False).fit(parts(wide), parts(y), intervals=True).summary().rows
    np.testing.assert_allclose([row["estimate"] for row in table], np.linalg.lstsq(wide, y)[0], rtol=1e-6)


def test_a_column_of_the_sites_or_of_strata_tells_nothing_within_them():
    pandas = pytest.importorskip("pandas")
    strata = (np.arange(120) % 2).astype(float)
    y = pandas.DataFrame(TIMES, columns=["time", "event"]).assign(strata=strata)
    for column, targets in ((SITES, TIMES), (SITES + 10.0 * strata, y)):
        with pytest.warns(UserWarning, match="x3: constant at each site"):
            model = FederatedCoxRegression().fit(parts(np.c_[X, column]), parts(targets))
        assert model.coef_[3] == 0.0
        np.testing.assert_allclose(
            model.coef_[:3], FederatedCoxRegression().fit(parts(X), parts(targets)).coef_, atol=1e-7
        )


def test_a_lasso_of_an_even_number_of_classes_is_unique():
    """Constants between the middle two coefficients cost nothing; the one in their middle is taken."""
    y = np.digitize(SCORES, [-2.0, 0.0, 2.0])
    model = FederatedLogisticRegression(0.3, l1_ratio=1.0).fit(parts(X), parts(y))
    ordered = np.sort(model.coef_, axis=0)
    np.testing.assert_allclose(ordered[1] + ordered[2], 0.0, atol=1e-12)
    other = FederatedLogisticRegression(0.3, l1_ratio=1.0, num_clients=1, max_rounds=4000).fit(X[::-1], y[::-1])
    np.testing.assert_allclose(other.coef_, model.coef_, atol=1e-6)
    theirs = LogisticRegression(C=0.3, l1_ratio=1.0, solver="saga", tol=1e-10, max_iter=100_000).fit(X, y)
    middle = np.sort(theirs.coef_, axis=0)[1:3].mean(axis=0)
    np.testing.assert_allclose(theirs.coef_ - middle, model.coef_, atol=1e-4)


@pytest.mark.parametrize("name", ["dose", "y"])
@pytest.mark.parametrize("over", [True, False])
def test_a_number_whose_square_is_none_is_refused_by_its_column(over, name):
    tables = [pd.DataFrame(np.random.default_rng(m).normal(size=(40, 2)), columns=["age", "dose"]) for m in range(3)]
    targets = [own["age"].to_numpy().copy() for own in tables]
    if name == "y":
        targets[1][3] = -1e300
    else:
        tables[1].loc[3, name] = -1e300
    model = FederatedLasso(0.1, num_clients=3)
    refused = pytest.raises(ConfigurationError, match=rf"(part|partition) 1: .*'{name}' has a number above 1e\+150")
    with grid_of(model, list(zip(tables, targets, strict=True))) as grid, refused:
        model.fit(*((grid,) if over else (tables, targets)))

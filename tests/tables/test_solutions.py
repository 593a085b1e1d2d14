"""The estimators' solutions: scikit-learn's, CVXPY's and the textbook's, whatever columns, weights and sites are."""

import warnings

import cvxpy as cp
import numpy as np
import pandas as pd
import pytest
from federations import altering, counting, fit_over_a_grid, grid_of
from numpy.testing import assert_allclose, assert_array_equal
from problems import foreign, refused, rows
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import ElasticNet, Lasso, LogisticRegression
from sklearn.preprocessing import StandardScaler

from flwr_fco.core.logs import quiet
from flwr_fco.simulation import InProcessGrid
from flwr_fco.tables import FederatedCoxRegression, FederatedElasticNet, FederatedLasso, FederatedLogisticRegression

EXACT = {"tol": 1e-14, "max_iter": 10**6}
FACTORS = np.array([0.0, 1.0, 0.0, 3.0, 0.2, 1.0])
RNG = np.random.default_rng(3)
X = RNG.normal(size=(120, 3))
SCORES = X @ [1.0, 0.0, -2.0] + 0.5 * RNG.normal(size=120)
LABELS = (SCORES > 0.0).astype(int)
SITES = np.arange(120) % 3
TIMES = np.c_[RNG.exponential(np.exp(-SCORES)), RNG.random(120) < 0.7]


def parts(rows):
    return [rows[m == SITES] for m in range(3)]


def unequal_sites(sizes=(40, 33, 60), classes=False):
    """Sites that differ in location, and in what their rows have without a feature."""
    features, targets = [], []
    for m, n in enumerate(sizes):
        rng = np.random.default_rng(m)
        own = rng.normal(size=(n, 5)) + m
        scores = own @ [1.0, -1.0, 0.5, 0.0, 0.0] - 4.0 * m + rng.normal(size=n)
        features.append(own)
        targets.append(np.array(["no", "yes"])[(scores > np.median(scores) + 0.3) * 1] if classes else scores)
    return features, targets


def regression_data():
    """Features of different sizes, far from 0."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 6)) * np.array([1.0, 1.0, 10.0, 0.1, 1.0, 1.0]) + 5.0
    return X, X @ np.array([1.0, -2.0, 0.3, 0.0, 0.0, 0.0]) + rng.normal(size=80)


def weighted_and_scaled(X, weighted, standardize):
    """Return weights of rows or none, the rows as scikit-learn's scaler has them, and their scales."""
    weights = np.arange(len(X)) % 4 * 0.7 if weighted else None
    scales = StandardScaler().fit(X, sample_weight=weights).scale_ if standardize else np.ones(X.shape[1])
    return weights, X / scales, scales


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning", "ignore:With alpha=0")
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("fit_intercept", "standardize"), [(True, False), (False, False), (True, True)])
@pytest.mark.parametrize("l1_ratio", [1.0, 0.4, 0.0])
def test_regression_is_scikit_learns(l1_ratio, fit_intercept, standardize, weighted):
    X, y = regression_data()
    weights, Z, scales = weighted_and_scaled(X, weighted, standardize)
    options = {"l1_ratio": l1_ratio, "fit_intercept": fit_intercept}
    ours = FederatedElasticNet(0.1, **options, standardize=standardize, num_clients=3).fit(X, y, weights)
    theirs = ElasticNet(0.1, **options, **EXACT).fit(Z, y, weights)
    assert_allclose(ours.coef_ * scales, theirs.coef_, rtol=0, atol=1e-6)
    assert_array_equal(ours.coef_ == 0, theirs.coef_ == 0)
    assert ours.intercept_ == pytest.approx(theirs.intercept_, abs=1e-5)
    assert ours.score(X, y, weights) == pytest.approx(theirs.score(Z, y, weights), abs=1e-6)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("l1_ratio", "standardize"), [(0.0, False), (0.0, True), (0.4, True), (1.0, True)])
@pytest.mark.parametrize("classes", [2, 3])
def test_classification_is_scikit_learns(classes, l1_ratio, standardize, weighted):
    X, y = (own[50 * (classes == 2) :] for own in load_iris(return_X_y=True))
    y = np.array(["setosa", "versicolor", "virginica"])[y]
    weights, Z, scales = weighted_and_scaled(X, weighted, standardize)
    ours = FederatedLogisticRegression(0.2, l1_ratio=l1_ratio, standardize=standardize, num_clients=2)
    ours.fit(X, y, weights)
    Z = Z - np.average(Z, axis=0, weights=weights)
    options = {"solver": "saga", "tol": 1e-12, "max_iter": 10**6} if l1_ratio else {"solver": "newton-cg", "tol": 1e-10}
    theirs = LogisticRegression(C=0.2, l1_ratio=l1_ratio, **options).fit(Z, y, weights)
    assert ours.classes_.tolist() == theirs.classes_.tolist()
    assert_allclose(ours.coef_ * scales, theirs.coef_, rtol=0, atol=2e-5)
    assert_allclose(ours.predict_proba(X), theirs.predict_proba(Z), rtol=0, atol=2e-5)
    assert_array_equal(ours.predict(X), theirs.predict(Z))


@pytest.mark.parametrize("outputs", [1, 2, 3], ids=["squares", "two classes", "three classes"])
@pytest.mark.parametrize("l1_ratio", [1.0, 0.4, 0.0])
def test_a_factor_multiplies_the_penalty_of_its_feature(outputs, l1_ratio):
    """Optimality: the loss's slope balances the penalty's, and is 0 where there is none; whatever the units are."""
    Z, y = regression_data()
    X = (Z - Z.mean(axis=0)) / Z.std(axis=0)
    strength = 0.05
    options = {"l1_ratio": l1_ratio, "penalty_factor": FACTORS}
    if outputs == 1:
        model = FederatedElasticNet(strength, **options).fit(X, y)
        units = Z.std(axis=0) * [1.0, 1e4, 1e-3, 30.0, 0.2, 7.0]
        scaled = FederatedElasticNet(strength, **options, standardize=True).fit((X + 50.0) * units, y)
        assert_allclose(scaled.coef_ * units, model.coef_, atol=1e-7)
        slopes = X.T @ (model.predict(X) - y)[:, None] / 80
    else:
        y = np.digitize(y, np.quantile(y, [[0.5], [0.3, 0.6]][outputs - 2]) + 0.5)
        y[::9] = (y[::9] + 1) % outputs  # not separable
        model = FederatedLogisticRegression(1 / (80 * strength), **options).fit(X, y)
        slopes = X.T @ (model.predict_proba(X) - np.eye(outputs)[y]) / 80
        slopes = slopes[:, 1:] if outputs == 2 else slopes
    w = np.atleast_2d(model.coef_).T
    pulls = slopes + strength * (1.0 - l1_ratio) * FACTORS[:, None] * w
    thresholds = np.broadcast_to(strength * l1_ratio * FACTORS[:, None], w.shape)
    assert_allclose(pulls[w != 0], -(thresholds * np.sign(w))[w != 0], atol=1e-7)
    assert (np.abs(pulls) <= thresholds + 1e-7).all()
    assert (w[FACTORS == 0.0] != 0.0).all()
    assert l1_ratio < 1.0 or (w == 0.0).any()
    if outputs == 3:
        assert_allclose(w[FACTORS == 0.0].sum(axis=1), 0.0, atol=1e-12)


@pytest.mark.parametrize("factors", [[0, 1, 1, 1, 1, 1], np.zeros(6)])
def test_without_a_penalty_on_a_feature_no_gap_is_known_or_zero_proved(factors):
    X, y = regression_data()
    model = FederatedLasso(0.2, penalty_factor=factors).fit(X, y)
    assert np.isnan(model.duality_gap_)
    assert "the length of a proximal gradient step; there is no" in model.summary()
    assert not model.proved_zero_.any()
    if not np.any(factors):
        expected = np.linalg.lstsq(np.column_stack([X, np.ones(80)]), y)[0]
        assert_allclose([*model.coef_, model.intercept_], expected, atol=1e-8)


def test_sparse_features_give_the_fit_of_dense_ones():
    X = rows(80, 12)
    y = np.random.default_rng(5).standard_normal(80)
    weights = 1.0 + np.arange(80) % 4
    scaled = FederatedLasso(0.005, standardize=True)
    for make, target in ((FederatedLasso(0.005), y), (scaled, y), (FederatedLogisticRegression(C=2.0), y > 0)):
        dense = clone(make).fit(X.toarray(), target, weights)
        halves = [[X[:30], X[30:].toarray()], *([own[:30], own[30:]] for own in (target, weights))]
        for given in ((X, target, weights), (sparse.csc_matrix(X), target, weights), halves):
            found = make.fit(*given)
            assert_allclose(found.coef_, dense.coef_, atol=1e-6)
            assert_allclose(found.intercept_, dense.intercept_, atol=1e-6)
        assert_allclose(found.predict(X), found.predict(X.toarray()), rtol=1e-12)


@pytest.mark.parametrize("classes", [2, 3])
def test_weights_that_balance_classes_over_sites_are_scikit_learns(classes):
    """With the counts of all sites that a first fit says; sites give the weights of their rows themselves."""
    rng = np.random.default_rng(0)
    parts = [rng.normal(0.3 * m, 1.0, size=(40 + 15 * m, 4)) for m in range(3)]
    scores = [own[:, 0] - own[:, 1] + rng.normal(size=len(own)) for own in parts]
    labels = [np.digitize(own, [0.9, 2.2][: classes - 1]) for own in scores]
    model = FederatedLogisticRegression(0.7, num_clients=3)
    options = {"classes": range(classes)}

    def over_a_grid(*columns):
        return fit_over_a_grid(clone(model), list(zip(*columns, strict=True)), features=4, app=options, **options)[0]

    for first in (clone(model).fit(parts, labels), over_a_grid(parts, labels)):
        assert_array_equal(first.class_count_, np.bincount(np.concatenate(labels)))
    factors = first.class_count_.sum() / (classes * first.class_count_)
    weights = [factors[own] for own in labels]
    theirs = LogisticRegression(C=0.7, class_weight="balanced", tol=1e-10, max_iter=10**4)
    theirs.fit(np.vstack(parts), np.concatenate(labels))
    for ours in (clone(model).fit(parts, labels, weights), over_a_grid(parts, labels, weights)):
        assert_allclose(ours.coef_, theirs.coef_, atol=1e-6)
        assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-6)
        assert "165 rows, weighted, of 3 sites" in ours.summary()
    weights[1] = weights[1] * 30.0
    message = r"partition 1 says that its rows weigh .*at most 10 times as much"
    refused(message, over_a_grid, parts, labels, weights)


# --- no penalty, or none with one minimum -----------------------------------------------------------------------------


def test_without_a_penalty_the_fit_is_scikit_learns():
    ours = FederatedLogisticRegression(C=np.inf).fit(X, SCORES + np.cos(9.0 * SCORES) > 0.0)
    theirs = LogisticRegression(C=np.inf, tol=1e-12, max_iter=10_000).fit(X, SCORES + np.cos(9.0 * SCORES) > 0.0)
    assert_allclose(ours.coef_, theirs.coef_, atol=1e-6)
    refused(r"C=-1.*a number > 0, or inf", FederatedLogisticRegression(C=-1.0).fit, X, LABELS)


@pytest.mark.parametrize("unit", [1.0, 0.01, 1000.0])
@pytest.mark.parametrize("whole", [True, False])
def test_the_columns_that_tell_the_outcome_are_named(unit, whole):
    """A column that is the outcome, or one that no row without an event has."""
    rng = np.random.default_rng(1)
    table = pd.DataFrame(rng.normal(size=(200, 3)), columns=["age", "sex", "bmi"])
    y = table["age"] + rng.normal(size=200) > 0.0
    table["dead"] = unit * (y & (whole | (rng.random(200) < 0.3))).astype(float)
    refused(r"the outcome is separable by 'dead':", FederatedLogisticRegression(C=np.inf).fit, table, y)


def test_a_lasso_of_an_even_number_of_classes_is_unique():
    """Constants between the middle two coefficients cost nothing; the one in their middle is taken."""
    y = np.digitize(SCORES, [-2.0, 0.0, 2.0])
    model = FederatedLogisticRegression(0.3, l1_ratio=1.0).fit(parts(X), parts(y))
    ordered = np.sort(model.coef_, axis=0)
    assert_allclose(ordered[1] + ordered[2], 0.0, atol=1e-12)
    other = FederatedLogisticRegression(0.3, l1_ratio=1.0, num_clients=1, max_rounds=4000).fit(X[::-1], y[::-1])
    assert_allclose(other.coef_, model.coef_, atol=1e-6)
    theirs = LogisticRegression(C=0.3, l1_ratio=1.0, solver="saga", tol=1e-10, max_iter=100_000).fit(X, y)
    middle = np.sort(theirs.coef_, axis=0)[1:3].mean(axis=0)
    assert_allclose(theirs.coef_ - middle, model.coef_, atol=1e-4)


# --- an intercept of each site ----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("l1_ratio", [1.0, 0.5, 0.0])
def test_squares_are_those_of_rows_about_their_sites_means(l1_ratio):
    features, targets = unequal_sites()
    model = FederatedElasticNet(0.1, l1_ratio=l1_ratio, site_intercepts="local").fit(features, targets)
    X, y = (np.concatenate([own - own.mean(axis=0) for own in both]) for both in (features, targets))
    theirs = ElasticNet(0.1, l1_ratio=l1_ratio, fit_intercept=False, **EXACT).fit(X, y)
    assert_allclose(model.coef_, theirs.coef_, atol=1e-8)
    assert model.duality_gap_ < 1e-10
    for own, y in zip(features, targets, strict=True):
        assert model.intercept_for(own, y) == pytest.approx((y - own @ model.coef_).mean(), abs=1e-12)


@pytest.mark.parametrize("penalised", [True, False])
@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
def test_classes_are_those_of_dummies(penalised):
    features, targets = unequal_sites(classes=True)
    factors = None if penalised else [0, 1, 1, 1, 1]
    model = FederatedLogisticRegression(0.3, l1_ratio=1.0, penalty_factor=factors, site_intercepts="local")
    model.fit(features, targets)
    w, b = cp.Variable(5), cp.Variable(3)
    loss = 0.0
    for m, (own, names) in enumerate(zip(features, targets, strict=True)):
        scores = own @ w + b[m]
        loss += cp.sum(cp.logistic(scores) - cp.multiply(names == "yes", scores))
    problem = cp.Problem(cp.Minimize(0.3 * loss + cp.norm1(w if penalised else w[1:])))
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
    assert_allclose(model.coef_[0], w.value, atol=1e-5)
    assert (model.duality_gap_ < 1e-10) == penalised
    found = [model.intercept_for(own, names) for own, names in zip(features, targets, strict=True)]
    assert_allclose(found, b.value[:, None], atol=1e-4)


CLASSES = {"classes": ["no", "yes"]}
LOCAL = FederatedLogisticRegression(0.3, l1_ratio=1.0, num_clients=3, site_intercepts="local")


def test_a_site_predicts_with_its_own_intercept_and_nobody_without():
    features, targets = unequal_sites(classes=True)
    first = features[0], targets[0]
    model = clone(LOCAL).set_params(C=1.0)
    refused("not fitted", model.intercept_for, *first, kind=NotFittedError)
    model.fit(features, targets)
    assert np.isnan(model.intercept_).all()
    for ask in (model.predict, model.predict_proba, model.decision_function):
        refused(r"has stayed there.*model\.intercept_for", ask, features[0])
    refused(r"intercept has stayed there; ask `score` at each site", model.quality, features, targets)
    assert "Intercepts: each site's own" in model.summary()
    assert "(intercept)" not in model.summary()
    model.intercept_ = model.intercept_for(features[2], targets[2])
    assert model.score(features[2], targets[2]) > 0.7
    probabilities = model.predict_proba(features[2])[:, 1]
    assert probabilities.mean() == pytest.approx((targets[2] == "yes").mean(), abs=1e-12)
    refused("all rows are of one class", model.intercept_for, *(own[targets[0] == "no"] for own in first))
    refused("sample_weight", model.intercept_for, *first, np.where(np.arange(40) == 3, -1.0, 1.0))
    common = FederatedLasso().fit(X, SCORES)
    refused("the model has a common intercept", common.intercept_for, X, SCORES)


def test_over_a_grid_no_message_holds_an_intercept():
    features, targets = unequal_sites(classes=True)
    sites = list(zip(features, targets, strict=True))
    here = clone(LOCAL).fit(features, targets)
    said = []
    given = {"features": 5, "app": CLASSES, **CLASSES}
    there, _ = fit_over_a_grid(clone(LOCAL), sites, grid=counting([], said), **given)
    assert_array_equal(there.coef_, here.coef_)
    own = [float(here.intercept_for(*site)[0]) for site in sites]
    assert said
    assert min(abs(number - b) for number in said for b in own) > 1e-9
    nameless, _ = fit_over_a_grid(clone(LOCAL), sites, grid=foreign, **given)
    assert_allclose(nameless.coef_, here.coef_, rtol=1e-9)


def test_sites_with_few_rows_are_named_and_those_with_fewer_refused():
    model = FederatedLogisticRegression(site_intercepts="local")
    with pytest.warns(UserWarning, match=r"few rows .*: part 1 has fewer than 25, and logistic .* 17 %"):
        model.fit(*unequal_sites((40, 24), True))
    message = r"too few rows .*: part 1, part 2 has fewer than 10\. Leave"
    refused(message, model.fit, *unequal_sites((40, 9, 5), True))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FederatedLasso(0.1, site_intercepts="local").fit(*unequal_sites((40, 9, 5)))
        model.fit(*unequal_sites((40, 30), True))


def test_who_adds_nothing_is_named_to_who_fits_and_of_many_sites_five():
    """Names are users' texts, and may hold what a terminal obeys."""
    sizes = 40, *[12] * 7
    features, targets = unequal_sites(sizes, classes=True)
    sites = np.repeat([f"\x1b{m}" for m in range(8)], sizes)
    y = np.concatenate([targets[0], *(np.full(12, "no") for _ in range(7))])
    model = FederatedLogisticRegression(site_intercepts="local")
    message = r"^\\x1b1, \\x1b2, \\x1b3, \\x1b4, \\x1b5 and 2 more: all rows of one class, which say nothing"
    with pytest.warns(UserWarning, match=message):
        model.fit(np.vstack(features), y, groups=sites)
    alone = clone(model).fit(features[:1], targets[:1])
    assert_allclose(model.coef_, alone.coef_, atol=1e-7)


# --- columns far from 0, and columns that say nothing -----------------------------------------------------------------


@pytest.mark.parametrize("offset", [1e5, 1e8])
@pytest.mark.parametrize("standardize", [False, True])
def test_columns_far_from_0_have_the_digits_of_scikit_learn(offset, standardize):
    """Also over a grid, whose sites centre their columns, and end to do so."""
    moved = X + np.array([offset, 0.0, -offset])
    scales = X.std(axis=0) if standardize else 1.0
    theirs = Lasso(0.1, tol=1e-13).fit(X / scales, SCORES).coef_ / scales
    plain = FederatedLasso(0.1, standardize=standardize, num_clients=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = clone(plain).fit(parts(moved), parts(SCORES))
        there, grid = fit_over_a_grid(clone(plain), list(zip(parts(moved), parts(SCORES), strict=True)), features=3)
    assert_allclose(model.coef_, theirs, atol=1e-16 * offset + 1e-11)
    assert_array_equal(there.coef_, model.coef_)
    assert_allclose(model.predict(moved), plain.fit(X, SCORES).predict(X), atol=1e-6)
    with grid.identity(), quiet(50):
        again = clone(plain).fit(grid, features=3)
    assert_array_equal(again.coef_, model.coef_)


def test_times_classes_own_intercepts_and_paths_are_centred_too():
    moved = X + np.array([1e7, 0.0, 1e6])
    for model, targets in (
        (FederatedCoxRegression(), TIMES),
        (FederatedLogisticRegression(0.5, l1_ratio=1.0), LABELS),
        (FederatedLogisticRegression(0.5, l1_ratio=1.0, site_intercepts="local"), LABELS),
        (FederatedLasso(cv=3), SCORES),
    ):
        far, near = (clone(model).fit(parts(own), parts(targets)) for own in (moved, X))
        assert_allclose(far.coef_, near.coef_, atol=1e-7)
        for one, other in zip(*(getattr(own, "path_.points", ()) for own in (far, near)), strict=True):
            (w, b), (v, c) = ([array.numpy() for array in at.result.arrays.values()] for at in (one, other))
            assert_allclose(moved @ w + b, X @ v + c, atol=1e-5)
    model = FederatedLogisticRegression()
    far, near = (model.fit(parts(own), parts(LABELS)).quality(parts(own), parts(LABELS)) for own in (moved, X))
    assert far.overall["Brier"] == pytest.approx(near.overall["Brier"], abs=1e-7)


@pytest.mark.parametrize("value", [0.0, 1.0, 1e3, 1e6])
def test_a_constant_column_gets_0_and_is_named(value):
    wide = np.c_[X, np.full(120, value)]
    for model, targets in (
        (FederatedCoxRegression(), TIMES),
        (FederatedLasso(0.0), SCORES),
        (FederatedLogisticRegression(1.0, penalty_factor=[1, 1, 1, 0]), LABELS),
    ):
        with pytest.warns(UserWarning, match=r"x3: constant at .*nothing is known of it, and 0 is said"):
            model.fit(parts(wide), parts(targets))
        plain = clone(model).set_params(penalty_factor=None).fit(parts(X), parts(targets))
        assert_allclose(np.ravel(model.coef_), [*np.ravel(plain.coef_), 0.0], atol=1e-6)
        assert_allclose(model.predict(wide), plain.predict(X), atol=1e-6)
        refused("no intervals: x3: constant at", model.fit, parts(wide), parts(targets), intervals=True)
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
    assert_allclose(ours.coef_, Lasso(1e-3, fit_intercept=False, **EXACT).fit(wide, y).coef_, atol=1e-9)
    assert abs(ours.coef_[3] * value) > 4.0
    ours = FederatedLogisticRegression(1e-2, fit_intercept=False).fit(parts(wide), parts(y > 4.0))
    theirs = LogisticRegression(C=1e-2, fit_intercept=False, tol=1e-10, solver="newton-cg").fit(wide, y > 4.0)
    assert_allclose(ours.coef_, theirs.coef_, atol=1e-6)
    table = FederatedLasso(0.0, fit_intercept=False).fit(parts(wide), parts(y), intervals=True).summary().rows
    assert_allclose([row["estimate"] for row in table], np.linalg.lstsq(wide, y)[0], rtol=1e-6)


def test_a_column_of_the_sites_or_of_strata_tells_nothing_within_them():
    strata = (np.arange(120) % 2).astype(float)
    y = pd.DataFrame(TIMES, columns=["time", "event"]).assign(strata=strata)
    for column, targets in ((SITES, TIMES), (SITES + 10.0 * strata, y)):
        with pytest.warns(UserWarning, match="x3: constant at each site"):
            model = FederatedCoxRegression().fit(parts(np.c_[X, column]), parts(targets))
        plain = FederatedCoxRegression().fit(parts(X), parts(targets))
        assert model.coef_[3] == 0.0
        assert_allclose(model.coef_[:3], plain.coef_, atol=1e-7)


@pytest.mark.parametrize("name", ["dose", "y"])
@pytest.mark.parametrize("over", [True, False])
def test_a_number_whose_square_is_none_is_refused_by_its_column(over, name):
    tables = [pd.DataFrame(own[:, :2], columns=["age", "dose"]) for own in parts(X)]
    targets = parts(SCORES)
    (targets[1] if name == "y" else tables[1].loc)[3 if name == "y" else (3, name)] = -1e300
    model = FederatedLasso(0.1, num_clients=3)
    with grid_of(model, list(zip(tables, targets, strict=True))) as grid:
        message = rf"(part|partition) 1: .*'{name}' has a number above 1e\+150"
        refused(message, model.fit, *((grid,) if over else (tables, targets)))


# --- standardize ------------------------------------------------------------------------------------------------------


def with_an_answer(name="means", change=None):
    """Fit where the first site changes a vector of its first answer."""
    grid = altering(0, name, lambda vectors, numbers: vectors.update({name: change(vectors[name])}))
    sites = list(zip(*unequal_sites(), strict=True))
    model = FederatedLasso(0.1, standardize=True, num_clients=3)
    return fit_over_a_grid(model, sites, features=5, grid=InProcessGrid if change is None else grid)


@pytest.mark.parametrize("name", ["means", "variances"])
def test_a_site_that_makes_a_deviation_up_is_named(name):
    """It would take all features out of the model, and no other number would show it."""
    with pytest.warns(UserWarning, match=r"deviation of 0 over all sites is .*: partition 0 says .* check the unit"):
        with_an_answer(name, lambda own: (own + 1.0) * 1e6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with_an_answer()
        message = r"is (inf|nan), .*: partition 0 says a mean of 1e\+300"
        refused(message, with_an_answer, "means", lambda own: np.full_like(own, 1e300))
    refused(r"partition 0 says a variance of -", with_an_answer, "variances", lambda own: own - 1e9)

"""Columns that tell nothing, and columns far from 0."""

import warnings

import numpy as np
import pytest
from scipy import sparse
from sklearn.linear_model import Lasso, LogisticRegression

from flwr_fco.core.logs import quiet
from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives import CoxRegression
from flwr_fco.objectives.survival import baseline, expected_events
from flwr_fco.simulation import InProcessGrid
from flwr_fco.tables import FederatedCoxRegression, FederatedLasso, FederatedLogisticRegression, Intervals

RNG = np.random.default_rng(3)
X = RNG.normal(size=(120, 3))
SCORES = X @ [1.0, 0.0, -2.0] + 0.5 * RNG.normal(size=120)
SITES = np.arange(120) % 3
TIMES = np.c_[RNG.exponential(np.exp(-SCORES)), RNG.random(120) < 0.7]


def parts(rows):
    return [rows[m == SITES] for m in range(3)]


def over(model, features, targets, **options):
    app = model.client_app(lambda c: [own[c.node_config["partition-id"]] for own in (parts(features), parts(targets))])
    grid = InProcessGrid(app, 3)
    model.num_clients = 3
    with grid.identity(), quiet(50):
        return model.fit(grid, features=features.shape[1], **options), grid


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
        there, grid = over(FederatedLasso(0.1, standardize=standardize), moved, SCORES)
    np.testing.assert_allclose(model.coef_, theirs, atol=1e-16 * offset + 1e-11)
    np.testing.assert_array_equal(there.coef_, model.coef_)
    np.testing.assert_allclose(
        model.predict(moved), FederatedLasso(0.1, standardize=standardize).fit(X, SCORES).predict(X), atol=1e-6
    )
    with grid.identity(), quiet(50):
        again = FederatedLasso(0.1, standardize=standardize, num_clients=3).fit(grid, features=3)
    np.testing.assert_array_equal(again.coef_, model.coef_)


def test_times_classes_own_intercepts_and_paths_are_centred_too():
    moved, y = X + np.array([1e7, 0.0, 1e6]), (SCORES > 0.0).astype(int)
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
                reported = one.result.arrays
                scores = moved @ reported["coefficients"].numpy() + reported["intercept"].numpy()
                reported = other.result.arrays
                np.testing.assert_allclose(
                    scores, X @ reported["coefficients"].numpy() + reported["intercept"].numpy(), atol=1e-5
                )
    far, near = (
        FederatedLogisticRegression().fit(parts(own), parts(y)).quality(parts(own), parts(y)) for own in (moved, X)
    )
    assert far.overall["Brier"] == pytest.approx(near.overall["Brier"], abs=1e-7)


def test_survival_does_not_depend_on_where_columns_are():
    reported = []
    for offset in (0.0, 1e7):
        moved = X + np.array([offset, 0.0, 0.0])
        model = FederatedCoxRegression().fit(parts(moved), parts(TIMES))
        own = parts(moved)[0], parts(TIMES)[0]
        reported.append(model.predict_survival_function(own[0][:5], [0.01, 0.1], own))
    assert (reported[0] < 1.0).any()
    np.testing.assert_allclose(reported[0], reported[1], atol=1e-6)


def test_sparse_columns_keep_their_zeros():
    """Also where one is constant, or far from 0: predictions are those of dense ones."""
    rows = np.c_[X * (X > 0.0), np.full(120, 1e4), 1e4 + X[:, 0]]
    model = FederatedLasso(0.1).fit(parts(sparse.csr_array(rows)), parts(SCORES))
    dense = FederatedLasso(0.1).fit(parts(rows), parts(SCORES))
    np.testing.assert_allclose(model.predict(rows), dense.predict(rows), atol=1e-4)


def test_a_fit_that_fails_leaves_no_centre_behind():
    moved = X + np.array([1e7, 0.0, 0.0])
    model = FederatedLasso(0.1, num_clients=3)
    app = model.client_app(lambda c: [own[c.node_config["partition-id"]] for own in (parts(moved), parts(SCORES))])
    grid = InProcessGrid(app, 3)
    with grid.identity(), quiet(50):
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
def test_without_an_intercept_a_constant_column_is_one_and_columns_far_from_0_stay_there(value, noise):
    """Nothing else takes up what they add."""
    wide, y = np.c_[X, value * (1.0 + noise * SCORES)], SCORES + 5.0
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


def test_without_an_intercept_a_column_of_zeros_tells_nothing():
    with pytest.warns(UserWarning, match="x3: constant at all sites together, so that nothing is known of it"):
        model = FederatedLasso(0.0, fit_intercept=False).fit(parts(np.c_[X, np.zeros(120)]), parts(SCORES))
    np.testing.assert_allclose(model.coef_, [*np.linalg.lstsq(X, SCORES)[0], 0.0], atol=1e-9)


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


def test_efrons_baseline_counts_tied_events_as_gone_in_part():
    times, events = np.array([1.0, 2.0, 2.0, 2.0, 3.0]), np.array([1, 1, 1, 0, 1])
    features, w = np.arange(5.0)[:, None] / 5.0, np.array([0.7])
    hazards = np.exp(features[:, 0] * 0.7)
    tied = hazards[1:3].sum()
    for ties, second in (
        ("breslow", 2 / hazards[1:].sum()),
        ("efron", 1 / hazards[1:].sum() + 1 / (hazards[1:].sum() - tied / 2)),
    ):
        objective = CoxRegression(features, times, events, ties=ties)
        rises = [1 / hazards.sum(), second, 1 / hazards[4]]
        np.testing.assert_allclose(baseline(objective, w).at(0, [1.0, 2.0, 3.0]), np.cumsum(rises), rtol=1e-12)
        assert expected_events(objective, w).sum() == pytest.approx(4.0)


def test_a_missing_date_is_refused():
    pandas = pytest.importorskip("pandas")
    days = pandas.to_timedelta(np.r_[np.arange(1.0, 120.0), np.nan], unit="D")
    y = pandas.DataFrame({"time": days, "event": TIMES[:, 1] == 1})
    with pytest.raises(ConfigurationError, match=r"missing \(NaT\)"):
        FederatedCoxRegression().fit(X, y)
    y = pandas.DataFrame({"time": np.full(120, 9.0), "event": TIMES[:, 1] == 1, "entry": days - pandas.Timedelta("1D")})
    with pytest.raises(ConfigurationError, match=r"missing \(NaT\)"):
        FederatedCoxRegression().fit(X, y)


def test_a_label_that_is_missing_is_no_other_kind_of_label():
    y = np.array(["no", "yes"], dtype=object)[(SCORES > 0.0).astype(int)]
    other = y.copy()
    other[[4, 9]] = None
    with pytest.raises(ConfigurationError, match=r"south: entries are missing \(NaN\): y in 2 of 120 rows"):
        FederatedLogisticRegression().fit({"north": X, "south": X}, {"north": y, "south": other})

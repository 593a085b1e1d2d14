"""Counts of several sites: their fits are scikit-learn's, and exposures are the second field of their targets."""

import numpy as np
import pandas as pd
import pytest
from federations import altering, fit_over_a_grid, grid_of
from scipy import stats
from sklearn.linear_model import PoissonRegressor

from flwr_fco.errors import ConfigurationError
from flwr_fco.tables import Codebook, Column, FederatedPoissonRegression

RNG = np.random.default_rng(0)
X = pd.DataFrame(RNG.normal(size=(300, 3)), columns=["age", "dose", "noise"])
YEARS = RNG.uniform(0.5, 3.0, 300)
COUNTS = RNG.poisson(YEARS * np.exp(0.5 * X["age"] - 0.3 * X["dose"] - 0.5))
SITES = np.arange(300) % 3
BOTH = np.column_stack([COUNTS, YEARS])


@pytest.mark.parametrize("l1_ratio", [0.0, 1.0])
def test_a_fit_is_that_of_rates_weighted_by_their_exposures(l1_ratio):
    model = FederatedPoissonRegression(0.1, l1_ratio=l1_ratio).fit(X, BOTH, groups=SITES)
    rates = {"sample_weight": YEARS}
    if l1_ratio == 0.0:
        theirs = PoissonRegressor(alpha=0.1 / YEARS.mean(), tol=1e-12, max_iter=1000).fit(X, COUNTS / YEARS, **rates)
        np.testing.assert_allclose(model.coef_, theirs.coef_, atol=1e-7)
        np.testing.assert_allclose(model.predict(X), theirs.predict(X), rtol=1e-6)
        assert model.score(X, BOTH) == pytest.approx(theirs.score(X, COUNTS / YEARS, **rates), rel=1e-6)
    else:
        assert model.coef_[2] == 0.0
    assert 0.0 <= model.duality_gap_ < 1e-8


def test_targets_are_given_as_they_are_at_hand():
    frame = pd.DataFrame({"visits": COUNTS, "exposure": YEARS})
    fits = [FederatedPoissonRegression(0.1).fit(X, y, groups=SITES).coef_ for y in (BOTH, frame, frame.iloc[:, ::-1])]
    np.testing.assert_array_equal(fits[1], fits[0])
    np.testing.assert_array_equal(fits[2], fits[0])
    plain = FederatedPoissonRegression(0.1).fit(X, COUNTS, groups=SITES)
    theirs = PoissonRegressor(alpha=0.1, tol=1e-12, max_iter=1000).fit(X, COUNTS)
    np.testing.assert_allclose(plain.coef_, theirs.coef_, atol=1e-7)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.column_stack([COUNTS, YEARS, YEARS]), "expected counts, or counts and exposures > 0"),
        (np.column_stack([COUNTS, 0.0 * YEARS]), "y has an exposure of 0; expected numbers > 0"),
        (0 * COUNTS, "all counts are 0"),
        (pd.DataFrame({"visits": COUNTS, "exposure": YEARS, "entry": YEARS}), r"y has the fields .*'entry'"),
        (-BOTH[:, 0] - 1.0, "expected numbers >= 0"),
        (np.array(["a"] * 300), "expected numbers: counts"),
    ],
)
def test_what_is_no_count_is_refused(y, message):
    with pytest.raises(ConfigurationError, match=message):
        FederatedPoissonRegression().fit(X, y)


def test_a_table_by_a_codebook_over_a_grid_is_that_of_the_rows_here():
    book = Codebook(
        {name: Column(center=0.1) for name in X}, {"visits": Column(type="integer"), "exposure": Column(unit="years")}
    )
    whole = X.assign(visits=COUNTS, exposure=YEARS)
    tables = [whole[m::3] for m in range(3)]
    here = FederatedPoissonRegression(0.0, codebook=book).fit(tables, intervals=True)
    there = FederatedPoissonRegression(0.0, codebook=book, num_clients=3)
    with grid_of(there, tables) as grid:
        assert [row["column"] for row in there.describe(grid).rows[:4]] == [*X, "visits"]
        there.fit(grid, intervals=True)
    np.testing.assert_allclose(there.covariance_, here.covariance_, rtol=1e-9)
    row = there.summary().rows[0]
    assert row["rate ratio lower"] < np.exp(0.5) < row["rate ratio upper"]
    with pytest.raises(ConfigurationError, match="quality is of two classes and of survival times"):
        here.quality(tables)


def test_sites_without_an_event_add_nothing_beside_their_own_intercepts():
    counts = np.where(SITES == 2, 0, COUNTS)
    model = FederatedPoissonRegression(0.0).fit(X, counts, groups=SITES, intervals=True)
    fewer = FederatedPoissonRegression(0.0).fit(
        X[SITES < 2], COUNTS[SITES < 2], groups=SITES[SITES < 2], intervals=True
    )
    np.testing.assert_allclose(
        [row["estimate"] for row in model.summary().rows], [row["estimate"] for row in fewer.summary().rows], rtol=1e-8
    )
    assert "site 2: add nothing" in f"{model.summary()}"


def test_a_count_that_is_none_is_named_with_its_site():
    counts = np.where(np.arange(300) == 4, -1, COUNTS)
    with pytest.raises(ConfigurationError, match=r"1: counts\[1\] is -1; expected numbers >= 0"):
        FederatedPoissonRegression().fit(X, counts, groups=SITES)


def test_the_log_likelihood_is_that_of_the_counts():
    model = FederatedPoissonRegression(0.0, site_intercepts="common").fit(X, BOTH, groups=SITES, intervals=True)
    rates = YEARS * FederatedPoissonRegression(0.0, tol=1e-16).fit(X, BOTH, groups=SITES).predict(X)
    assert model.log_likelihood_ == pytest.approx(stats.poisson(rates).logpmf(COUNTS).sum(), rel=1e-9)


@pytest.mark.parametrize("intercepts", [None, "common"])
def test_a_sites_loss_and_rows_bound_second_derivatives_of_counts(intercepts):
    """A wild honest column goes, and what a site makes up is named with its column."""
    wild = X.assign(dose=np.where(np.arange(300) == 3, 1e3, X["dose"]))
    model = FederatedPoissonRegression(0.0, num_clients=3, site_intercepts=intercepts)
    sites = [(wild[m::3], COUNTS[m::3]) for m in range(3)]
    scaled = altering(1, "block", lambda vectors, numbers: vectors["block"].__imul__(1e3))
    with pytest.raises(ConfigurationError, match="site 1 says a second derivative of age"):
        fit_over_a_grid(model, sites, grid=scaled, intervals=True)
    assert np.isfinite(fit_over_a_grid(model, sites, intervals=True)[0].log_likelihood_)


def test_a_site_that_is_silent_about_itself_leaves_no_likelihood():
    sites = [(X[m::3].assign(noise=X["noise"][m::3] * (m > 0)), COUNTS[m::3]) for m in range(3)]
    silent = altering(0, "saturated", lambda vectors, numbers: vectors["estimate"].fill(np.nan))
    model, _ = fit_over_a_grid(FederatedPoissonRegression(0.0, num_clients=3), sites, grid=silent, intervals=True)
    assert np.isfinite(np.diag(model.covariance_)).all()
    assert np.isnan(model.log_likelihood_)


@pytest.mark.parametrize("lie", [{"saturated": 1e6}, {"saturated": -1e300}, {"mean": -1.0}])
def test_a_log_likelihood_that_no_counts_have_is_left_out(lie):
    sites = [(X[m::3], BOTH[m::3]) for m in range(3)]
    grid = altering(2, "saturated", lambda vectors, numbers: numbers.update(lie))
    model, _ = fit_over_a_grid(FederatedPoissonRegression(0.0, num_clients=3), sites, grid=grid, intervals=True)
    assert np.isnan(model.log_likelihood_)
    assert "its mean count is" in model.summary()

"""Counts of several sites: their fits are scikit-learn's, and exposures are the second field of their targets."""

import numpy as np
import pandas as pd
import pytest
from federations import altering, fit_over_a_grid
from numpy.testing import assert_allclose, assert_array_equal
from problems import refused
from scipy import stats
from sklearn.linear_model import PoissonRegressor

from flwr_fco.tables import FederatedPoissonRegression

RNG = np.random.default_rng(0)
X = pd.DataFrame(RNG.normal(size=(300, 3)), columns=["age", "dose", "noise"])
YEARS = RNG.uniform(0.5, 3.0, 300)
COUNTS = RNG.poisson(YEARS * np.exp(0.5 * X["age"] - 0.3 * X["dose"] - 0.5))
SITES = np.arange(300) % 3
BOTH = np.column_stack([COUNTS, YEARS])
FRAME = pd.DataFrame({"visits": COUNTS, "exposure": YEARS})


def fitted(alpha, y, **options):
    return FederatedPoissonRegression(alpha, **options).fit(X, y, groups=SITES, intervals=alpha == 0.0)


def over_a_grid(y, *, grid=None, features=X, **options):
    """Fit with intervals, where a site's answers are altered or not."""
    sites = [(features[m::3], y[m::3]) for m in range(3)]
    model = FederatedPoissonRegression(0.0, num_clients=3, **options)
    return fit_over_a_grid(model, sites, intervals=True, **({} if grid is None else {"grid": grid}))[0]


def test_a_fit_is_that_of_rates_weighted_by_their_exposures():
    model = fitted(0.1, BOTH, l1_ratio=0.0)
    rates = {"sample_weight": YEARS}
    theirs = PoissonRegressor(alpha=0.1 / YEARS.mean(), tol=1e-12, max_iter=1000).fit(X, COUNTS / YEARS, **rates)
    assert_allclose(model.coef_, theirs.coef_, atol=1e-7)
    assert_allclose(model.predict(X), theirs.predict(X), rtol=1e-6)
    assert model.score(X, BOTH) == pytest.approx(theirs.score(X, COUNTS / YEARS, **rates), rel=1e-6)
    sparse = fitted(0.1, BOTH, l1_ratio=1.0)
    assert sparse.coef_[2] == 0.0
    assert 0.0 <= max(model.duality_gap_, sparse.duality_gap_) < 1e-8
    # Targets are given as they are at hand.
    for y in (FRAME, FRAME.iloc[:, ::-1]):
        assert_array_equal(fitted(0.1, y, l1_ratio=0.0).coef_, model.coef_)
    theirs = PoissonRegressor(alpha=0.1, tol=1e-12, max_iter=1000).fit(X, COUNTS)
    assert_allclose(fitted(0.1, COUNTS).coef_, theirs.coef_, atol=1e-7)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.column_stack([COUNTS, YEARS, YEARS]), "expected counts, or counts and exposures > 0"),
        (np.column_stack([COUNTS, 0.0 * YEARS]), "y has an exposure of 0; expected numbers > 0"),
        (0 * COUNTS, "all counts are 0"),
        (FRAME.assign(entry=YEARS), r"y has the fields .*'entry'"),
        (np.where(np.arange(300) == 4, -1, COUNTS), r"1: counts\[1\] is -1; expected numbers >= 0"),
        (np.array(["a"] * 300), "expected numbers: counts"),
    ],
)
def test_what_is_no_count_is_refused(y, message):
    refused(message, fitted, 1.0, y)


def test_sites_without_an_event_add_nothing_beside_their_own_intercepts():
    model = fitted(0.0, np.where(SITES == 2, 0, COUNTS))
    rows = SITES < 2
    fewer = FederatedPoissonRegression(0.0).fit(X[rows], COUNTS[rows], groups=SITES[rows], intervals=True)
    assert_allclose(*([row["estimate"] for row in own.summary().rows] for own in (model, fewer)), rtol=1e-8)
    assert "site 2: add nothing" in model.summary()


def test_the_log_likelihood_is_that_of_the_counts():
    model = fitted(0.0, BOTH, site_intercepts="common", tol=1e-16)
    assert model.log_likelihood_ == pytest.approx(
        stats.poisson(YEARS * model.predict(X)).logpmf(COUNTS).sum(), rel=1e-9
    )


@pytest.mark.parametrize("intercepts", [None, "common"])
def test_a_sites_loss_and_rows_bound_second_derivatives_of_counts(intercepts):
    """A wild honest column goes, and what a site makes up is named with its column."""
    given = {"features": X.assign(dose=np.where(np.arange(300) == 3, 1e3, X["dose"])), "site_intercepts": intercepts}
    scaled = altering(1, "block", lambda vectors, numbers: vectors["block"].__imul__(1e3))
    refused("site 1 says a second derivative of age", over_a_grid, COUNTS, grid=scaled, **given)
    assert np.isfinite(over_a_grid(COUNTS, **given).log_likelihood_)


def test_a_site_that_is_silent_about_itself_leaves_no_likelihood():
    silent = altering(0, "saturated", lambda vectors, numbers: vectors["estimate"].fill(np.nan))
    model = over_a_grid(COUNTS, grid=silent, features=X.assign(noise=X["noise"] * (SITES > 0)))
    assert np.isfinite(np.diag(model.covariance_)).all()
    assert np.isnan(model.log_likelihood_)


@pytest.mark.parametrize("lie", [{"saturated": 1e6}, {"saturated": -1e300}, {"mean": -1.0}])
def test_a_log_likelihood_that_no_counts_have_is_left_out(lie):
    model = over_a_grid(BOTH, grid=altering(2, "saturated", lambda vectors, numbers: numbers.update(lie)))
    assert np.isnan(model.log_likelihood_)
    assert "its mean count is" in model.summary()

"""An intercept of each site: the best one for the coefficients, whatever the scores, and in no message."""

import numpy as np
import pytest
from newton import point, solved

from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives import LeastSquares, Logistic, MultinomialLogistic, Poisson, SiteIntercept
from flwr_fco.regularizers import L1

P = 6
SIZES = (40, 33, 60)
KINDS = ["squares", "logistic", "poisson"]


def _of(kind, X, y, **options):
    if kind == "squares":
        return LeastSquares(X, y, scale=0.5, **options)
    return (Logistic if kind == "logistic" else Poisson)(X, y, **options)


def _rows(kind, seed=0):
    """Sites whose levels differ by much, with a column that is constant at the first."""
    found = []
    for m, n in enumerate(SIZES):
        rng = np.random.default_rng((seed, m))
        X = rng.normal(size=(n, P)) + 2.0 * m
        X[:, 5] = 7.0 if m == 0 else X[:, 5]
        scores = X @ np.r_[1.0, -0.5, 0.3, 0.0, 0.0, 0.2] - 3.0 * m + rng.normal(size=n)
        y = {"squares": scores, "logistic": (scores > 0.0) * 1.0, "poisson": rng.poisson(np.exp(0.5 * scores)) * 1.0}
        found.append((X, y[kind]))
    return found


def _sites(kind, **options):
    return [SiteIntercept(_of(kind, X, y, **options)) for X, y in _rows(kind)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_is_the_least_over_the_intercept_whatever_the_scores(kind):
    """Also where predictions are far from the targets, with weights and offsets."""
    rng = np.random.default_rng(5)
    X, y = _rows(kind)[0]
    own = {"sample_weight": rng.uniform(0.1, 5.0, len(y)), "offset": rng.normal(size=len(y))}
    inner = _of(kind, X, y, **own)
    site = SiteIntercept(_of(kind, X, y, **own))
    for size in (0.0, 1.0, 30.0) + (300.0,) * (kind == "logistic"):
        w = size * rng.normal(size=P)
        b = site.own_intercept(w)
        whole = np.append(w, b)
        slope = inner.gradient(whole)
        assert abs(slope[-1]) <= 1e-13 * (1.0 + size * (1.0 + np.abs(y).max()))
        assert site.value(w) == pytest.approx(inner.value(whole), rel=1e-13)
        np.testing.assert_allclose(site.gradient(w), slope[:-1], rtol=1e-12, atol=1e-13 * (1.0 + np.abs(slope).max()))
        assert all(site.value(w) <= inner.value(np.append(w, b + move)) for move in (-0.1, 0.1))


def test_rows_that_tell_nothing_beside_their_own_intercept():
    X, _ = _rows("logistic")[0]
    w = np.arange(P) * 1.0
    for site in (SiteIntercept(Logistic(X, np.ones(len(X)), l2=0.5)), SiteIntercept(Poisson(X, 0.0 * X[:, 0], l2=0.5))):
        assert site.adds_nothing
        assert np.isinf(site.own_intercept(w))
        assert site.value(w) == 0.25 * float(w @ w) == site.metrics(w)["loss"]
        np.testing.assert_array_equal(site.gradient(w), 0.5 * w)
        np.testing.assert_array_equal(site.hessian_product(w, w), 0.5 * w)
        np.testing.assert_array_equal(site.hessian_block(w, np.array([0, 3])), [0.5, 0.0, 0.5])
    plain = _sites("logistic")
    more = [*plain, SiteIntercept(Logistic(X, np.zeros(len(X))))]
    one, other = (point(solved(each, L1(s), tolerance=1e-12)[0], plain[0]) for each, s in ((plain, 0.02), (more, 0.02)))
    # The mean is over more rows, of which these have no loss: a strength for as many more.
    scaled = point(solved(plain, L1(0.02 * (sum(SIZES) + len(X)) / sum(SIZES)), tolerance=1e-12)[0], plain[0])
    assert np.abs(one - other).max() > 1e-4
    np.testing.assert_allclose(other, scaled, atol=1e-8)


def test_folds_have_intercepts_of_their_own():
    X, y = _rows("logistic")[0]
    w = np.full(P, 0.3)
    weights = np.where(np.arange(len(y)) < 20, 3.0, 1.0)
    for rows, share in (({}, 0.25), ({"sample_weight": weights}, 0.375)):
        part, found = SiteIntercept(Logistic(X, y, **rows)).subset(np.arange(10))
        assert part.value(w) == pytest.approx(SiteIntercept(Logistic(X[:10], y[:10])).value(w), rel=1e-14)
        assert found == share


def test_what_is_refused():
    X, y = _rows("logistic")[0]
    with pytest.raises(ConfigurationError, match="this site has fewer than 10"):
        SiteIntercept(Logistic(X[:9], y[:9]))
    with pytest.warns(UserWarning, match="this site has fewer than 25, and logistic coefficients are biased"):
        SiteIntercept(Logistic(X[:24], y[:24]))
    SiteIntercept(LeastSquares(X[:2], y[:2]))
    for objective in (MultinomialLogistic(X, y.astype(int), num_classes=3), SiteIntercept(LeastSquares(X, y))):
        with pytest.raises(ConfigurationError, match="has no intercept of each site; a linear loss with one output"):
            SiteIntercept(objective)
    with pytest.raises(ConfigurationError, match="intercept=False"):
        SiteIntercept(Logistic(X, y, intercept=False))

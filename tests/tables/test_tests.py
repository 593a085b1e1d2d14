"""Tests of a fitted table: covariance, likelihood, contrasts, comparisons, and whether sites differ."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from federations import by_hand, federation, model_of
from numpy.testing import assert_allclose
from problems import refused
from scipy import stats
from sklearn.linear_model import Lasso

from flwr_fco.objectives import CoxRegression
from flwr_fco.tables.estimates import between

BOTH = pytest.mark.parametrize("kind", ["lasso", "logistic"])


def fitted(kind, parts, targets, **options):
    return model_of(kind).set_params(**options).fit(parts, targets, intervals=True)


def with_dummies(parts, targets, *, own=True, slopes=None):
    """Pooled rows beside dummies of the sites, and beside a column for each site but the first: its slopes of one."""
    site = np.repeat(np.arange(len(parts)), [len(y) for y in targets])
    dummies = np.eye(len(parts))[site] if own else np.ones((site.size, 1))
    X = np.c_[np.vstack(parts), dummies]
    return X if slopes is None else np.c_[X, X[:, [slopes]] * np.eye(len(parts))[site][:, 1:]]


def textbook(kind, X, targets):
    """Return the estimates of pooled rows, and what follows from them."""
    y = np.concatenate(targets)
    w, error = by_hand(kind, X, y)
    squares = kind == "lasso"
    mean = X @ w if squares else 1 / (1 + np.exp(-X @ w))
    found = SimpleNamespace(w=w, error=error, y=y, mean=mean, left=len(y) - X.shape[1], squares=np.sum((y - mean) ** 2))
    found.curvatures = np.ones(len(y)) if squares else mean * (1 - mean)
    found.noise = found.squares / found.left if squares else 1.0
    found.covariance = np.linalg.inv((X.T * found.curvatures) @ X) * found.noise
    found.likelihood = -0.5 * len(y) * (np.log(2 * np.pi * found.squares / len(y)) + 1)
    if not squares:
        found.likelihood = np.log(np.where(y == 1, mean, 1 - mean)).sum()
    return found


@BOTH
@pytest.mark.parametrize("own", [True, False])
def test_raos_test_is_the_score_test_of_a_slope_of_each_site(kind, own):
    """By the textbook: the score at the estimates without these slopes, by the information with them."""
    parts, targets = federation(kind, rows=90)
    parts[1][:, 2] = 0.0
    model = fitted(kind, parts, targets, site_intercepts=None if own else "common")
    X = with_dummies(parts, targets, own=own)
    book = textbook(kind, X, targets)
    for j, row in enumerate(model.summary().rows):
        A = with_dummies(parts, targets, own=own, slopes=j)
        A = A[:, A.any(axis=0)]
        slopes = A.T @ (book.y - book.mean)
        degrees = A.shape[1] - np.count_nonzero(X.any(axis=0))
        statistic = slopes @ np.linalg.solve((A.T * book.curvatures) @ A, slopes) / book.noise
        assert row["Rao"] == pytest.approx(statistic, rel=1e-6)
        assert row["degrees of Rao"] == degrees == (2 if j == 2 else 3)
        assert row["p of Rao"] == pytest.approx(stats.chi2.sf(statistic, degrees), rel=1e-5)


def test_a_common_intercept_comes_with_observed_and_expected_events():
    parts, targets = federation("logistic", rows=200, seed=1)
    targets[2] = np.where(np.random.default_rng(0).random(len(targets[2])) < 0.3, 0.0, targets[2])
    model = fitted("logistic", parts, targets, site_intercepts="common")
    means = textbook("logistic", with_dummies(parts, targets, own=False), targets).mean
    probability = np.split(means, np.cumsum([len(own) for own in targets])[:-1])
    for row, own, expected in zip(model._table.intercepts, targets, probability, strict=True):
        assert row["observed"] == own.sum()
        assert row["expected"] == pytest.approx(expected.sum(), rel=1e-6)
        assert f"{row['ratio']:.3g}" in model.summary()
    assert "one of all sites; p = " in model.summary()


def test_small_sites_share_an_intercept_and_are_named():
    parts, targets = federation("logistic", rows=80)
    small = [np.random.default_rng(m).normal(size=(7, 3)) for m in range(3)]
    classes = [np.r_[np.ones(2 + m), np.zeros(5 - m)] for m in range(3)]
    model = fitted("logistic", [*parts, *small], [*targets, *classes])
    assert "3 sites: site 4, site 5, site 6: share one, of too few rows for their own" in model.summary()
    together = [*targets, np.concatenate(classes)]
    book = textbook("logistic", with_dummies([*parts, np.vstack(small)], together), together)
    for name, expected in (("estimate", book.w), ("standard error", book.error)):
        assert_allclose([row[name] for row in model.summary().rows], expected[:3], rtol=1e-6)
    # Of one class they would have no intercept together.
    model = fitted("logistic", [*parts, *small], [*targets, *(np.ones(7) for _ in small)])
    assert "3 sites: site 4, site 5, site 6: add nothing" in model.summary()
    assert_allclose(model.covariance_, fitted("logistic", parts, targets).covariance_, rtol=1e-6)


@BOTH
def test_contrasts_and_comparisons_are_the_textbooks(kind):
    parts, targets = federation(kind, rows=90)
    frames = [pd.DataFrame(X, columns=["x0", "x1", "x2"]) for X in parts]
    model = fitted(kind, frames, targets)
    X = with_dummies(parts, targets)
    book, fewer = textbook(kind, X, targets), textbook(kind, X[:, [1, 3, 4, 5, 6]], targets)
    w, covariance = book.w[:3], book.covariance[:3, :3]
    assert_allclose(model.covariance_, covariance, rtol=1e-6)
    assert model.log_likelihood_ == pytest.approx(book.likelihood, rel=1e-9)
    found = model.contrast({"x0": 1.0, "x2": -2.0})
    factors = np.array([1.0, 0.0, -2.0])
    (row,), error = found.rows, np.sqrt(factors @ covariance @ factors)
    assert (row["contrast"], found.degrees[0]) == ("x0 - 2 x2", 1)
    assert_allclose([row["estimate"], row["standard error"]], [factors @ w, error], rtol=1e-6)
    t = stats.t(book.left if kind == "lasso" else np.inf)
    assert_allclose([row["p"], found.p], [2 * t.sf(abs(factors @ w) / error)] * 2, rtol=1e-5)
    both = model.contrast([{"x0": 1.0}, {"x2": 1.0}])
    smaller = fitted(kind, [own[["x1"]] for own in frames], targets)
    ratio = smaller.compare(model)
    assert ratio.p == model.compare(smaller).p
    if kind == "lasso":
        # Of squares Wald's test is the F test.
        f = (fewer.squares - book.squares) / 2 / book.noise
        assert ratio.statistic == pytest.approx(f, rel=1e-6)
        assert both.statistic == pytest.approx(f, rel=1e-6)
        assert ratio.p == pytest.approx(stats.f.sf(f, 2, book.left), rel=1e-5)
    else:
        statistic = 2 * (book.likelihood - fewer.likelihood)
        assert ratio.statistic == pytest.approx(statistic, rel=1e-6)
        assert ratio.p == pytest.approx(stats.chi2.sf(statistic, 2), rel=1e-5)
        assert both.statistic == pytest.approx(w[::2] @ np.linalg.solve(covariance[::2, ::2], w[::2]))


def test_what_cannot_be_tested_is_refused_in_words():
    parts, targets = federation("lasso")
    model, smaller = (fitted("lasso", [X[:, :k] for X in parts], targets) for k in (3, 2))
    table = model_of("lasso").fit(parts, targets)
    refused("no table of estimates; give intervals=True", table.contrast, {"x0": 1})
    factors = r"contrast\(.*expected factors by names of features, or a list"
    for wrong, message in (
        ({"age": 1}, r"has \['age'\]"),
        ({}, "has no features"),
        ([{"x0": 1}, {"x0": 2}], "linearly"),
        *((nothing, factors) for nothing in ([], "x0", None, {"x0": "1"})),
    ):
        refused(message, model.contrast, wrong)
    refused(r"compare\(.*expected an estimator of flwr_fco.tables", model.compare, Lasso())
    refused("one has some of the other's columns", model.compare, model)
    for options, factor in (({"site_intercepts": "common"}, 1.0), ({}, 2.0)):
        other = fitted("lasso", [X[:, :2] for X in parts], [factor * y for y in targets], **options)
        refused("of the same rows, sites, outcome", model.compare, other)
    assert model.compare(smaller).p > 0.0


@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_score_residuals_are_the_derivatives_by_weights_of_the_score(ties):
    """Of untied times: the infinitesimal jackknife; of all: their mean is the gradient."""
    rng = np.random.default_rng(0)
    X, w = rng.normal(size=(60, 3)), rng.normal(size=3)
    events, weights = rng.random(60) < 0.7, rng.uniform(0.5, 3.0, 60)
    untied = rng.exponential(size=60)

    def cox(weights, times=untied):
        return CoxRegression(X, times, events, ties=ties, sample_weight=weights)

    tied = cox(weights, rng.integers(1, 15, 60))
    assert_allclose(tied.row_gradients(w).mean(axis=0), tied.gradient(w), atol=1e-14)
    rows = cox(weights).row_gradients(w) * weights.mean()
    for i in range(0, 60, 7):
        step = 1e-6 * np.eye(60)[i]
        up, down = (own.sum() * cox(own).gradient(w) for own in (weights + step, weights - step))
        assert_allclose(rows[i], (up - down) / 2e-6 * weights[i], atol=1e-6)


def of_patients(parts):
    """Return tables of which every three rows in order are one patient's."""
    patients = [np.arange(len(X)) // 3 for X in parts]
    return [
        pd.DataFrame(X, columns=["age", "dose"]).assign(patient=own) for X, own in zip(parts, patients, strict=True)
    ]


def test_raos_test_with_clusters_is_that_of_the_clusters_scores():
    rng = np.random.default_rng(5)
    parts = [rng.normal(size=(90, 2)) for _ in range(3)]
    targets = [X[:, 0] + np.repeat(rng.normal(size=30), 3) + rng.normal(size=90) for X in parts]
    model = fitted("lasso", of_patients(parts), targets, cluster="patient", site_intercepts="common")
    rows = np.c_[np.concatenate(parts), np.ones(270)]
    y = np.concatenate(targets)
    site = np.repeat(np.arange(3), 90)
    scores = rows * (y - rows @ np.linalg.lstsq(rows, y, rcond=None)[0])[:, None]
    own = scores.reshape(90, 3, -1).sum(axis=1)
    curved = np.array([rows[site == m].T @ rows[site == m] for m in range(3)])
    for j, row in enumerate(model.summary().rows):
        moved = np.linalg.solve(curved.sum(axis=0), own.T).T @ curved[:, j].T
        each = own[:, [j]] * (np.arange(3) == np.arange(90)[:, None] // 30) - moved
        sums = each.sum(axis=0)
        statistic = sums @ np.linalg.pinv(each.T @ each, rcond=1e-9) @ sums
        assert row["Rao"] == pytest.approx(statistic, rel=1e-6)


# --- meta-analysis ----------------------------------------------------------------------------------------------------

#: Thirteen trials of a vaccine against tuberculosis (Colditz and others, JAMA 1994): cases and others, treated and not.
TRIALS = """
4 119 11 128, 6 300 29 274, 3 228 11 209, 62 13536 248 12619, 33 5036 47 5761, 180 1361 372 1079, 8 2537 10 619,
505 87886 499 87892, 29 7470 45 7232, 17 1699 65 1600, 186 50448 141 27197, 5 2493 3 2338, 27 16886 29 17825
"""
A, B, C, D = np.array([trial.split() for trial in TRIALS.split(",")], dtype=float).T
RATIO = np.log(A / (A + B)) - np.log(C / (C + D))
ERROR = np.sqrt(1 / A - 1 / (A + B) + 1 / C - 1 / (C + D))
# Hartung and Knapp's formula, by hand, with the published variance between trials.
WEIGHTS = 1 / (ERROR**2 + 0.3088)
SPREAD = WEIGHTS @ (RATIO - WEIGHTS @ RATIO / WEIGHTS.sum()) ** 2
#: What metafor documents (Viechtbauer 2010), how exactly, and the name in statsmodels.
PUBLISHED = {
    "Q": (152.233, 1e-3, "q"),
    "I2": (0.9212, 5e-5, "i2"),
    "fixed": (-0.4303, 5e-5, "mean_effect_fe"),
    "fixed error": (0.0405, 5e-5, "sd_eff_w_fe"),
    "DerSimonian-Laird": (-0.7141, 5e-5, "mean_effect_re"),
    "DerSimonian-Laird error": (0.1787, 5e-5, "sd_eff_w_re"),
    "Hartung-Knapp error": ((SPREAD / 12 / WEIGHTS.sum()) ** 0.5, 2e-5, "sd_eff_w_re_hksj"),
}


def test_the_numbers_of_a_published_meta_analysis():
    found = between(RATIO[:, None], ERROR[:, None])
    for name, (value, near, _) in PUBLISHED.items():
        assert found[name][0] == pytest.approx(value, abs=near), name
    assert found["p of Q"][0] == pytest.approx(stats.chi2.sf(152.233, 12), rel=1e-3)


def test_errors_that_vary_have_welchs_test():
    rng = np.random.default_rng(1)
    groups = [rng.normal(scale=1.0 + m, size=5 + 2 * m) for m in range(5)]
    summaries = (np.array([[of(own)] for own in groups]) for of in (np.mean, stats.sem, lambda own: len(own) - 1.0))
    theirs = stats.f_oneway(*groups, equal_var=False)
    assert between(*summaries)["p of Q"][0] == pytest.approx(theirs.pvalue, rel=1e-9)


def test_means_are_those_of_statsmodels():
    meta = pytest.importorskip("statsmodels.stats.meta_analysis", reason="pip install '.[oracles]'")
    found = between(RATIO[:, None], ERROR[:, None])
    theirs = meta.combine_effects(RATIO, ERROR**2, method_re="dl")
    for name, (_, _, theirs_name) in PUBLISHED.items():
        assert found[name][0] == pytest.approx(getattr(theirs, theirs_name), rel=1e-10), name

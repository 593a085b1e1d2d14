"""Tests of a fitted table: covariance, likelihood, contrasts, comparisons, and whether sites differ."""

import numpy as np
import pytest
from federations import by_hand, federation, model_of
from scipy import stats
from sklearn.linear_model import Lasso

from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives import CoxRegression
from flwr_fco.tables import FederatedCoxRegression, FederatedLasso, Intervals


def rows_with_dummies(parts, targets, *, own=True, slopes=None):
    """Pooled rows beside dummies of the sites, and beside a column for each site but the first: its slopes of one."""
    site = np.repeat(np.arange(len(parts)), [len(y) for y in targets])
    dummies = np.eye(len(parts))[site] if own else np.ones((site.size, 1))
    X = np.c_[np.vstack(parts), dummies]
    y = np.concatenate(targets)
    return (X, y) if slopes is None else (np.c_[X, X[:, [slopes]] * np.eye(len(parts))[site][:, 1:]], y)


@pytest.mark.parametrize("kind", ["lasso", "logistic"])
@pytest.mark.parametrize("own", [True, False])
def test_raos_test_is_the_score_test_of_a_slope_of_each_site(kind, own):
    """By the textbook: the score at the estimates without these slopes, by the information with them."""
    parts, targets = federation(kind, rows=90)
    parts[1][:, 2] = 0.0
    model = model_of(kind).set_params(site_intercepts=None if own else "common").fit(parts, targets, intervals=True)
    X, y = rows_with_dummies(parts, targets, own=own)
    w, _ = by_hand(kind, X, y)
    for j, row in enumerate(model.summary().rows):
        A, _ = rows_with_dummies(parts, targets, own=own, slopes=j)
        A = A[:, [*range(X.shape[1]), *(k for k in range(X.shape[1], A.shape[1]) if A[:, k].any())]]
        score = X @ w if kind == "lasso" else 1 / (1 + np.exp(-X @ w))
        curvatures = np.full(len(y), 1.0) if kind == "lasso" else score * (1 - score)
        noise = np.sum((y - score) ** 2) / (len(y) - X.shape[1]) if kind == "lasso" else 1.0
        slopes = A.T @ (y - score)
        statistic = slopes @ np.linalg.solve((A.T * curvatures) @ A, slopes) / noise
        assert row["Rao"] == pytest.approx(statistic, rel=1e-6)
        assert row["degrees of Rao"] == A.shape[1] - X.shape[1] == (2 if j == 2 else 3)
        assert row["p of Rao"] == pytest.approx(stats.chi2.sf(statistic, A.shape[1] - X.shape[1]), rel=1e-5)


def test_a_common_intercept_comes_with_observed_and_expected_events():
    parts, targets = federation("logistic", rows=200, seed=1)
    targets[2] = np.where(np.random.default_rng(0).random(len(targets[2])) < 0.3, 0.0, targets[2])
    model = model_of("logistic").set_params(site_intercepts="common").fit(parts, targets, intervals=True)
    X, y = rows_with_dummies(parts, targets, own=False)
    w, _ = by_hand("logistic", X, y)
    probability = np.split(1 / (1 + np.exp(-X @ w)), np.cumsum([len(own) for own in targets])[:-1])
    for row, own, expected in zip(model._table.intercepts, targets, probability, strict=True):
        assert row["observed"] == own.sum()
        assert row["expected"] == pytest.approx(expected.sum(), rel=1e-6)
        assert f"{row['ratio']:.3g}" in model.summary()
    assert "one of all sites; p = " in model.summary()


def test_small_sites_share_an_intercept_and_are_named():
    parts, targets = federation("logistic", rows=80)
    small = [np.random.default_rng(m).normal(size=(7, 3)) for m in range(3)]
    classes = [np.r_[np.ones(2 + m), np.zeros(5 - m)] for m in range(3)]
    model = model_of("logistic").fit([*parts, *small], [*targets, *classes], intervals=True)
    assert "3 sites: site 4, site 5, site 6: share one, of too few rows for their own" in model.summary()
    X, y = rows_with_dummies([*parts, np.vstack(small)], [*targets, np.concatenate(classes)])
    estimate, error = by_hand("logistic", X, y)
    np.testing.assert_allclose([row["estimate"] for row in model.summary().rows], estimate[:3], rtol=1e-6)
    np.testing.assert_allclose([row["standard error"] for row in model.summary().rows], error[:3], rtol=1e-6)
    # Of one class they would have no intercept together.
    model = model_of("logistic").fit([*parts, *small], [*targets, *(np.ones(7) for _ in small)], intervals=True)
    assert "3 sites: site 4, site 5, site 6: add nothing" in model.summary()
    alone = model_of("logistic").fit(parts, targets, intervals=True)
    np.testing.assert_allclose(model.covariance_, alone.covariance_, rtol=1e-6)


@pytest.mark.parametrize("kind", ["lasso", "logistic"])
def test_contrasts_and_comparisons_are_the_textbooks(kind):
    parts, targets = federation(kind, rows=90)
    model = model_of(kind).fit(parts, targets, intervals=True)
    X, y = rows_with_dummies(parts, targets)
    w, _ = by_hand(kind, X, y)
    score = X @ w if kind == "lasso" else 1 / (1 + np.exp(-X @ w))
    curvatures = np.full(len(y), 1.0) if kind == "lasso" else score * (1 - score)
    squares = np.sum((y - score) ** 2)
    left = len(y) - X.shape[1]
    covariance = np.linalg.inv((X.T * curvatures) @ X)[:3, :3] * (squares / left if kind == "lasso" else 1.0)
    np.testing.assert_allclose(model.covariance_, covariance, rtol=1e-6)
    likelihood = -0.5 * len(y) * (np.log(2 * np.pi * squares / len(y)) + 1)
    if kind == "logistic":
        likelihood = np.log(np.where(y == 1, score, 1 - score)).sum()
    assert model.log_likelihood_ == pytest.approx(likelihood, rel=1e-9)
    found = model.contrast({"x0": 1.0, "x2": -2.0})
    factors = np.array([1.0, 0.0, -2.0])
    (row,), error = found.rows, np.sqrt(factors @ covariance @ factors)
    assert (row["contrast"], found.degrees[0]) == ("x0 - 2 x2", 1)
    np.testing.assert_allclose([row["estimate"], row["standard error"]], [factors @ w[:3], error], rtol=1e-6)
    t = stats.t(left if kind == "lasso" else np.inf)
    np.testing.assert_allclose([row["p"], found.p], [2 * t.sf(abs(factors @ w[:3]) / error)] * 2, rtol=1e-5)
    both = model.contrast([{"x0": 1.0}, {"x2": 1.0}])
    smaller = model_of(kind).fit([_named(X[:, [1]], ["x1"]) for X in parts], targets, intervals=True)
    larger = model_of(kind).fit([_named(X, ["x0", "x1", "x2"]) for X in parts], targets, intervals=True)
    ratio = smaller.compare(larger)
    assert ratio.p == larger.compare(smaller).p
    beside = X[:, [1, 3, 4, 5, 6]]
    before, _ = by_hand(kind, beside, y)
    if kind == "lasso":
        # Of squares Wald's test is the F test.
        f = (np.sum((y - beside @ before) ** 2) - squares) / 2 / (squares / left)
        assert ratio.statistic == pytest.approx(f, rel=1e-6)
        assert both.statistic == pytest.approx(f, rel=1e-6)
        assert ratio.p == pytest.approx(stats.f.sf(f, 2, left), rel=1e-5)
    else:
        probability = 1 / (1 + np.exp(-beside @ before))
        statistic = 2 * (likelihood - np.log(np.where(y == 1, probability, 1 - probability)).sum())
        assert ratio.statistic == pytest.approx(statistic, rel=1e-6)
        assert ratio.p == pytest.approx(stats.chi2.sf(statistic, 2), rel=1e-5)
        assert both.statistic == pytest.approx(
            w[[0, 2]] @ np.linalg.solve(covariance[np.ix_([0, 2], [0, 2])], w[[0, 2]])
        )


def _named(X, names):
    return pytest.importorskip("pandas").DataFrame(X, columns=names)


def test_what_cannot_be_tested_is_refused_in_words():
    parts, targets = federation("lasso")
    model, smaller = (FederatedLasso(0.1).fit([X[:, :k] for X in parts], targets, intervals=True) for k in (3, 2))
    with pytest.raises(ConfigurationError, match="no table of estimates; give intervals=True"):
        FederatedLasso(0.1).fit(parts, targets).contrast({"x0": 1})
    for wrong, message in (
        ({"age": 1}, r"has \['age'\]"),
        ({}, "has no features"),
        ([{"x0": 1}, {"x0": 2}], "linearly"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            model.contrast(wrong)
    for nothing in ([], "x0", None, {"x0": "1"}):
        with pytest.raises(ConfigurationError, match=r"contrast\(.*expected factors by names of features, or a list"):
            model.contrast(nothing)
    with pytest.raises(ConfigurationError, match=r"compare\(.*expected an estimator of flwr_fco.tables"):
        model.compare(Lasso())
    with pytest.raises(ConfigurationError, match="one has some of the other's columns"):
        model.compare(model)
    for options, factor in (({"site_intercepts": "common"}, 1.0), ({}, 2.0)):
        other = FederatedLasso(0.1, **options)
        other.fit([X[:, :2] for X in parts], [factor * y for y in targets], intervals=True)
        with pytest.raises(ConfigurationError, match="of the same rows, sites, outcome"):
            model.compare(other)
    assert model.compare(smaller).p > 0.0


def test_a_column_in_other_units_at_one_site_is_named_and_can_be_let_pass():
    parts, targets = federation("logistic", rows=90)
    parts[3][:, 1] *= 1e3
    free = Intervals(largest=np.inf)
    assert "estimate" in model_of("logistic").fit(parts, targets, intervals=free).summary().rows[0]
    with pytest.raises(ConfigurationError, match=r"second derivative of x1 is .* at site 3, .*Intervals\(largest"):
        model_of("logistic").fit(parts, targets, intervals=True)


@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_score_residuals_are_the_derivatives_by_weights_of_the_score(ties):
    """Of untied times: the infinitesimal jackknife; of all: their mean is the gradient."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    w = rng.normal(size=3)
    events = rng.random(60) < 0.7
    weights = rng.uniform(0.5, 3.0, 60)
    tied = CoxRegression(X, rng.integers(1, 15, 60), events, ties=ties, sample_weight=weights)
    np.testing.assert_allclose(tied.row_gradients(w).mean(axis=0), tied.gradient(w), atol=1e-14)
    times = rng.exponential(size=60)

    def score(weights):
        objective = CoxRegression(X, times, events, ties=ties, sample_weight=weights)
        return weights.sum() * objective.gradient(w)

    rows = CoxRegression(X, times, events, ties=ties, sample_weight=weights).row_gradients(w) * weights.mean()
    for i in range(0, 60, 7):
        step = 1e-6 * np.eye(60)[i]
        moved = (score(weights + step) - score(weights - step)) / 2e-6 * weights[i]
        np.testing.assert_allclose(rows[i], moved, atol=1e-6)


def test_hazard_ratios_have_clustered_errors_too():
    rng = np.random.default_rng(0)
    parts = [np.repeat(rng.normal(size=(40, 2)), 3, axis=0) for _ in range(3)]
    targets = [
        np.c_[rng.exponential(np.exp(-X[:, 0] - np.repeat(rng.normal(size=40), 3))), np.ones(120)] for X in parts
    ]
    frames = [_named(np.c_[X, np.repeat(np.arange(40), 3)], ["age", "dose", "patient"]) for X in parts]
    plain = FederatedCoxRegression().fit(parts, targets, intervals=True)
    clustered = FederatedCoxRegression(cluster="patient").fit(frames, targets, intervals=True)
    assert "clustered by 120 patient" in clustered.summary()
    np.testing.assert_allclose(clustered.coef_, plain.coef_, rtol=1e-9)
    ratio = np.sqrt(np.diag(clustered.covariance_) / np.diag(plain.covariance_))
    assert ratio[0] > 1.1
    row = clustered.summary().rows[0]
    assert 0.0 < row["p of Rao"] < 1.0
    # Sites' own robust errors vary, so that the chi-squared distribution would reject too often.
    assert row["p of Q"] > stats.chi2.sf(row["Q"], 2)


def test_sites_as_clusters_have_raos_test_of_their_rows():
    parts, targets = federation("lasso", rows=90)
    for weights in (None, [np.linspace(0.5, 2.0, len(y)) for y in targets]):
        rows = [
            FederatedLasso(0.1, cluster=cluster).fit(parts, targets, weights, intervals=True).summary().rows
            for cluster in (None, "site")
        ]
        for by_row, by_site in zip(*rows, strict=True):
            assert by_site["standard error"] != by_row["standard error"]
            assert [by_site[name] for name in ("Rao", "p of Rao")] == pytest.approx(
                [by_row[name] for name in ("Rao", "p of Rao")]
            )


def test_raos_test_with_clusters_is_that_of_the_clusters_scores():
    rng = np.random.default_rng(5)
    parts = [rng.normal(size=(90, 2)) for _ in range(3)]
    targets = [X[:, 0] + np.repeat(rng.normal(size=30), 3) + rng.normal(size=90) for X in parts]
    frames = [_named(np.c_[X, np.repeat(np.arange(30), 3)], ["age", "dose", "patient"]) for X in parts]
    model = FederatedLasso(0.1, cluster="patient", site_intercepts="common").fit(frames, targets, intervals=True)
    rows = np.c_[np.concatenate(parts), np.ones(270)]
    y = np.concatenate(targets)
    site = np.repeat(np.arange(3), 90)
    scores = rows * (y - rows @ np.linalg.lstsq(rows, y, rcond=None)[0])[:, None]
    curved = np.array([rows[site == m].T @ rows[site == m] for m in range(3)])
    for j, row in enumerate(model.summary().rows):
        each = []
        for cluster in range(90):
            own = scores[3 * cluster : 3 * cluster + 3].sum(axis=0)
            moved = curved[:, j] @ np.linalg.solve(curved.sum(axis=0), own)
            each.append(own[j] * (np.arange(3) == cluster // 30) - moved)
        sums = np.sum(each, axis=0)
        statistic = sums @ np.linalg.pinv(np.transpose(each) @ each, rcond=1e-9) @ sums
        assert row["Rao"] == pytest.approx(statistic, rel=1e-6)

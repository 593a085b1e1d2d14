"""A table of intervals of a federation and its tests: what is in it, what leaves a site, what one site can do to it."""

import json
import re
import runpy
from collections import Counter
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from federations import altering, by_hand, counting, federation, fit_over_a_grid, model_of, pooled
from numpy.testing import assert_allclose, assert_array_equal
from problems import nightly, refused
from scipy import stats
from sklearn.linear_model import Lasso

from flwr_fco.client_apps import Disclosure
from flwr_fco.messages.records import TABLE
from flwr_fco.objectives import CoxRegression, LeastSquares
from flwr_fco.tables import Intervals
from flwr_fco.tables.intervals import Sums, between, estimated

NAMES = ["age", "dose", "sex"]
BOTH = pytest.mark.parametrize("kind", ["lasso", "logistic"])


def over(kind, *given, model=None, **options):
    """Fit with intervals over a grid."""
    sites = list(zip(*given, strict=True))
    model = model or model_of(kind, len(sites))
    return fit_over_a_grid(model, sites, **{"features": NAMES, "intervals": True, **options})[0]


def here(kind, parts, targets, *given, intervals=True, **changes):
    """Fit with intervals, a model with other parameters."""
    return model_of(kind, len(parts)).set_params(**changes).fit(parts, targets, *given, intervals=intervals)


def rows_of(model):
    return model.summary().rows


def column(model, *names):
    found = [[row[name] for row in rows_of(model)] for name in names]
    return found if len(names) > 1 else found[0]


def errors(model):
    return np.sqrt(np.diag(model.covariance_))


# --- what the numbers are -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "own", "small"),
    [("lasso", True, (3, 1)), ("lasso", False, ()), ("logistic", True, ()), ("logistic", False, ())],
)
def test_estimates_are_those_of_the_pooled_rows_and_of_each_sites(kind, own, small):
    """By default with dummies of the sites, which the model does not have, whether they have many rows or one."""
    parts, targets = federation(kind)
    rng = np.random.default_rng(0)
    parts += [rng.normal(size=(rows, 3)) for rows in small]
    targets += [5.0 + rng.normal(size=rows) for rows in small]
    model = here(kind, parts, targets, site_intercepts=None if own else "common")
    w, error = pooled(kind, parts, targets, own=own)
    degrees = sum(map(len, parts)) - 3 - (len(parts) if own else 1) if kind == "lasso" else np.inf
    half = stats.t.isf(0.025, degrees) * error
    p = 2 * stats.t.sf(abs(w / error), degrees)
    found = column(model, "estimate", "standard error", "lower", "upper", "p")
    assert_allclose(found, [w, error, w - half, w + half, p], rtol=1e-6)
    assert_allclose(column(model, "q"), stats.false_discovery_control(p))
    for row, estimate in zip(rows_of(model), w, strict=True):
        assert row.get("odds ratio") == (pytest.approx(np.exp(estimate), rel=1e-6) if kind == "logistic" else None)
    for m in range(4):
        alone = by_hand(kind, np.c_[parts[m], np.ones(len(parts[m]))], targets[m])
        assert_allclose(column(model, f"site {m}", f"site {m} error"), [each[:3] for each in alone], rtol=1e-5)
    assert ("of 4 of 6 sites; none of site 4, site 5: fewer than 10 rows a column" in model.summary()) == bool(small)
    # The model's own coefficients are what they were.
    plain = here(kind, parts, targets, intervals=False)
    assert_array_equal(model.coef_, plain.coef_)
    assert_array_equal(model.predict(parts[0]), plain.predict(parts[0]))


@BOTH
@pytest.mark.parametrize(("first", "others"), [(2.0, 1.0), (2.0, 2.0), (1.0, 1.0)])
def test_rows_with_weights_have_robust_errors(kind, first, others):
    """Other errors would be those of copies of rows."""
    parts, targets = federation(kind, sites=3)
    weights = [np.full(len(y), others) for y in targets]
    weights[1][:9] = first
    weighted = first + others > 2.0
    expected = pooled(kind, parts, targets, weights=np.concatenate(weights) if weighted else None)
    there = over(kind, parts, targets, weights)
    assert_allclose(column(there, "estimate", "standard error"), expected, rtol=1e-6)
    assert ("rows, which have weights" in there.summary()) == weighted
    # Only their ratios matter, though squares of these overflow, or are 0.
    unit = (1e300 if kind == "lasso" else 1e-300) if weighted else 1.0
    assert_allclose(errors(here(kind, parts, targets, [unit * own for own in weights])), expected[1], rtol=1e-6)
    for factor, message in [(-1.0, "not positive semi"), (500.0, "those of one site")] * weighted:
        grid = altering(0, "meat", lambda own, _, factor=factor: own["meat"].__imul__(factor))
        refused(message, over, kind, parts, targets, weights, grid=grid)


@BOTH
def test_clusters_are_sites_or_what_a_column_says(kind):
    # Of those of classes, the last has one.
    parts, targets = (own[1::4] for own in federation(kind, sites=25, rows=30))
    model = here(kind, parts, targets, cluster="site")
    assert_allclose(errors(model), pooled(kind, parts, targets, clusters="site")[1], rtol=1e-6)
    # Also those of one class, as in R's vcovCL.
    assert "clustered by 6 sites" in model.summary()
    units = ([unit * (1.0 + np.arange(len(y)) % 2) for y in targets] for unit in (1.0, 1e-6))
    assert_allclose(*(column(here(kind, parts, targets, own, cluster="site"), "fixed") for own in units), rtol=1e-6)
    estimate, error, upper = np.array(column(model, "estimate", "standard error", "upper"))
    assert_allclose(upper, estimate + stats.t.isf(0.025, 5) * error)
    frames = [pd.DataFrame(X, columns=NAMES).assign(patient=np.arange(len(X)) // 3) for X in parts]
    patients = np.concatenate([frame["patient"] + 1000 * m for m, frame in enumerate(frames)])
    model = here(kind, frames, targets, cluster="patient")
    assert_allclose(errors(model), pooled(kind, parts, targets, clusters=patients)[1], rtol=1e-6)
    assert (*model.feature_names_in_, model.predict(frames[0]).shape) == (*NAMES, (len(parts[0]),))
    there = over(kind, frames, targets, model=model_of(kind, 6).set_params(cluster="patient"), features=None)
    assert column(there, "standard error") == column(model, "standard error")
    refused("cluster='patient' is no column", here, kind, parts, targets, cluster="patient")
    refused("of which there is one", here, kind, *federation(kind, sites=1), cluster="site")
    alone = [np.c_[X[:, :2], X[:, 2] * (m == 4)] for m, X in enumerate(parts)]
    refused("a column varies in one cluster only: x2", here, kind, alone, targets, cluster="site")
    alone = here(kind, *federation(kind, sites=1), site_intercepts="common").summary()
    assert ("nan" in alone, " of 1 site\n" in alone) == (False, True)


@pytest.mark.parametrize("sites", [3, *nightly(4, 9)])
def test_hartung_knapps_interval_is_never_shorter_than_the_models(sites):
    """Also where the sites happen to agree."""
    wider = 0
    for seed in range(8):
        parts, targets = federation("lasso", sites, seed=seed)
        for row in rows_of(here("lasso", parts, targets, intervals=Intervals(level=0.8))):
            own, model = (row[f"{kind}upper"] - row[f"{kind}lower"] for kind in ("Hartung-Knapp ", ""))
            assert own >= model * (1 - 1e-12)
            wider += own > 1.001 * model
    assert wider > 4


@BOTH
def test_bits_are_the_same_in_one_table_and_over_a_grid(kind):
    parts, targets = federation(kind)
    model = here(kind, parts, targets)
    owner = np.repeat(["d", "c", "b", "a"], [len(X) for X in parts])
    back = np.vstack(parts[::-1]), np.concatenate(targets[::-1])
    grouped = model_of(kind).fit(*back, groups=owner[::-1], intervals=True)
    asked = []
    there = over(kind, parts, targets, grid=counting(asked))
    assert there.n_iter_ == model.n_iter_ == max(Counter(n for n, message in asked if message != TABLE).values())
    plain = over(kind, parts, targets, intervals=False)
    assert "estimate" not in rows_of(plain)[0]
    assert plain.n_iter_ < there.n_iter_
    assert [row | {"feature": ""} for row in rows_of(model)] == [row | {"feature": ""} for row in rows_of(there)]
    # Groups are sorted: the sites are the same ones in another order, under their names.
    assert column(model, "site 0") == column(grouped, "site d")
    assert column(model, "estimate") == pytest.approx(column(grouped, "estimate"), rel=1e-9)
    # A fit forgets the table of the fit before.
    assert "Hartung-Knapp" in model.summary()
    assert "Hartung-Knapp" not in model.fit(parts, targets).summary()
    assert not hasattr(model, "covariance_")


def test_rates_are_over_the_columns_asked_for_estimates_of_the_whole_model():
    parts, targets = federation("lasso")
    whole = rows_of(here("lasso", parts, targets))
    model = here("lasso", parts, targets, intervals=Intervals(columns=[2, 0]))
    some = rows_of(model)
    assert np.isnan(some[1]["estimate"])
    assert "q over 2 columns" in model.summary()
    assert [some[j]["estimate"] for j in (0, 2)] == [whole[j]["estimate"] for j in (0, 2)]
    assert_allclose([some[j]["q"] for j in (0, 2)], stats.false_discovery_control([whole[j]["p"] for j in (0, 2)]))


# --- what a site says of itself -------------------------------------------------------------------------------------


@BOTH
def test_a_small_site_says_nothing_and_the_table_has_no_q(kind):
    parts, targets = federation(kind)
    if kind == "logistic":
        # 14 of the rarer class, and 3 columns.
        targets[1] = np.r_[np.ones(14), np.zeros(len(targets[1]) - 14)]
    else:
        parts[1], targets[1] = parts[1][:30], targets[1][:30]
        assert rows_of(here(kind, parts, targets))[0]["sites"] == 4
        parts[1], targets[1] = parts[1][:29], targets[1][:29]
    model = here(kind, parts, targets)
    row = rows_of(model)[0]
    assert np.isnan([row["Q"], row["I2"]]).all()
    assert (row["sites"], "site 1" in row) == (3, False)
    assert not np.isnan(row["Hartung-Knapp lower"])
    assert re.search(r"of 3 of 4 sites; none of site 1: fewer than .* a column", model.summary())
    assert re.search(r"^    x0 .* - ", model.summary(), flags=re.MULTILINE)
    two = here(kind, parts[2:], targets[2:])
    assert "no Hartung-Knapp interval with fewer than three sites" in two.summary()
    assert np.isnan(rows_of(two)[0]["Hartung-Knapp lower"])
    assert not np.isnan(rows_of(two)[0]["Q"])


def test_rows_of_a_site_of_one_class_are_no_events_beside_its_intercept():
    """They are in a model with a common intercept."""
    parts, targets = federation("logistic", sites=4, rows=90)
    targets[0][:], targets[1][:] = 1.0, 0.0
    for y in targets[2:]:
        y[:] = np.arange(y.size) % 5 == 0
        y[60:] = 0.0
    message = r"intervals of 3 columns and 2 intercepts from 24 events .* 5 a column"
    with pytest.warns(UserWarning, match="site 0, site 1: all rows of one class"):
        refused(message, here, "logistic", parts, targets, site_intercepts="local")
    refused(message, here, "logistic", parts, targets)
    here("logistic", parts, targets, site_intercepts="common")


# --- one site lies --------------------------------------------------------------------------------------------------


LIES = {
    "an error of 0": lambda vectors, numbers: vectors["error"].fill(0.0),
    "a negative error": lambda vectors, numbers: np.negative(vectors["error"], out=vectors["error"]),
    "one small error": lambda vectors, numbers: vectors["error"].__setitem__(1, 1e-6),
    "NaN": lambda vectors, numbers: vectors["estimate"].fill(np.nan),
    "an error of 1e300": lambda vectors, numbers: vectors["error"].fill(1e300),
    "an estimate of 1e5": lambda vectors, numbers: vectors["estimate"].fill(1e5),
}


@BOTH
def test_a_lie_about_ones_own_estimates_is_left_out_by_name(kind):
    parts, targets = federation(kind)
    honest = column(here(kind, parts, targets), "estimate", "standard error")
    for name, lie in LIES.items():
        model = over(kind, parts, targets, grid=altering(2, "reported", lie))
        assert re.search(r"of 3 of 4 sites; .*(site|partition) 2", model.summary()), name
        assert "site 2" not in rows_of(model)[0]
        assert np.isnan(column(model, "Q")).all()
        assert column(model, "estimate", "standard error") == honest, name
        assert np.isfinite(column(model, "fixed", "DerSimonian-Laird", "Hartung-Knapp lower")).all()


MADE_UP = [
    ("lasso", "block", lambda own: own.__imul__(10.0), "second derivative of age of .*; with its loss, rows, mean"),
    ("logistic", "block", lambda own: own.__imul__(10.0), "a second derivative of age of .*; with its loss, rows"),
    ("logistic", "block", lambda own: own.__imul__(1e300), "site 2 says a second deri|no convex loss|overflow"),
    ("lasso", "block", lambda own: np.put(own, [1, 2, 5], -0.6 * (own[[0, 0, 4]] * own[[4, 7, 7]]) ** 0.5), "semi"),
    ("lasso", "gradient", lambda own: own.__setitem__(2, 1e6), r"site 2 says a slope of sex of 1e\+06; with its"),
    ("logistic", "gradient", lambda own: own.__setitem__(2, 1.0), "site 2 says a slope of sex of 1; with its loss"),
]


@pytest.mark.parametrize(("kind", "name", "lie", "message"), MADE_UP)
def test_what_one_site_makes_up_is_refused_by_its_name(kind, name, lie, message):
    grid = altering(2, "block", lambda vectors, numbers: lie(vectors[name]))
    refused(message, over, kind, *federation(kind), grid=grid)


@pytest.mark.parametrize(("own", "count"), [("common", 1), (None, 4)])
def test_a_site_has_one_intercept_whatever_it_says(own, count):
    grid = altering(2, "reported", lambda vectors, numbers: numbers.update(intercepts=1e6))
    model = over("lasso", *federation("lasso"), model=model_of("lasso").set_params(site_intercepts=own), grid=grid)
    assert f"{300 - 3 - count} degrees of freedom" in model.summary()


def test_a_site_that_invents_events_has_no_more_of_them_than_rows():
    parts, targets = federation("logistic", rows=10)
    targets = [np.r_[np.ones(1), np.zeros(len(own) - 1)] for own in targets]
    grid = altering(2, "reported", lambda vectors, numbers: numbers.update(events=1e6))
    refused(r"from 33 events", over, "logistic", parts, targets, grid=grid)


# --- what is refused ------------------------------------------------------------------------------------------------

PARTS, TARGETS = federation("lasso")
LASSO = "lasso", PARTS, TARGETS
FEW = federation("logistic", rows=1)
CLASSES = federation("logistic")[1]
TELLING = [np.c_[X, y] for X, y in zip(PARTS, CLASSES, strict=True)]
REFUSED = {
    r"intervals of 3 columns and 3 intercepts from \d+ events .* at least 5 a column": ("logistic", *FEW, True),
    "model of 2001 columns; at most 2000": ("lasso", [np.ones((2, 2001))] * 2, [np.arange(2.0)] * 2, True),
    "intervals of 3 classes": ("logistic", PARTS, [np.arange(len(own)) % 3 for own in TARGETS], True),
    r"has \['weight'\], .* no features; they are x0, x1, x2$": (*LASSO, Intervals(columns=["weight", "x0"])),
    "intervals='yes'": (*LASSO, "yes"),
    r"^the outcome is separable by .*'x3': .* and ask for no intervals$": ("logistic", TELLING, CLASSES, True),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_has_no_intervals_is_refused_in_words(message):
    *given, intervals = REFUSED[message]
    refused(message, here, *given, intervals=intervals)


def test_an_option_out_of_range_is_refused():
    for name, value in (("level", 1.0), ("level", 0.3), ("columns", []), ("columns", [1, 1])):
        refused(f"Intervals.{name}=", Intervals, **{name: value})


@pytest.mark.parametrize("kind", ["logistic", "cox"])
def test_events_of_sites_that_do_not_answer_are_not_few_but_unknown(kind):
    parts, targets = federation(kind, rows=90)
    message, owner = r"numbers of events are not known: .*max_numbers=25", Disclosure(max_numbers=25)
    assert "too far from 0" not in refused(message, over, kind, parts, targets, disclosure=owner)


# --- sums of rows -----------------------------------------------------------------------------------------------------


def sums_at(objective, w=None):
    """Return the sums that all sites say of a point."""
    w = np.zeros(objective.layout.size) if w is None else w
    hessian = np.array([objective.hessian_product(w, row) for row in np.eye(w.size)])
    return Sums(w, objective.gradient(w), hessian, objective.value(w), float(objective.num_examples))


def of_rows(X, y, w=None):
    return estimated(sums_at(LeastSquares(X, y, scale=0.5), w), [f"x{j}" for j in range(X.shape[1])], squares=True)


def test_more_columns_than_rows_whatever_their_units_and_location():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 150))
    y = X[:, 0] - X[:, 1] + rng.normal(size=100)
    found = of_rows(X, y)
    assert np.abs(found.estimate[:2] - [1.0, -1.0]).max() < 4 * found.error[:2].max()
    assert 0.7 / 10 < np.median(found.error) < 2.0 / 10
    units = 10.0 ** rng.integers(-3, 4, 150)
    moved = of_rows(X * units + 5.0 * units, 2.0 * y + 7.0, rng.normal(size=151) / np.r_[units, 1.0])
    assert_allclose(moved.estimate * units, 2.0 * found.estimate, rtol=1e-3, atol=1e-4)
    assert_allclose(moved.error * units, 2.0 * found.error, rtol=1e-3)


def test_what_has_no_standard_errors():
    rng = np.random.default_rng(39)
    few = rng.normal(size=(6, 8))
    noisy = few @ rng.normal(size=8) + 0.01 * rng.normal(size=6)
    X, y = rng.normal(size=(60, 4)), rng.normal(size=60)
    for features, targets, message in (
        (np.c_[X, X[:, 0] + 2.0 * X[:, 1]], y, "linearly dependent.*: x0, x1, x4"),
        (np.c_[X, np.full(60, 3.0)], y, "linearly dependent on other columns, or constant: x4"),
        (np.c_[X, np.zeros(60)], y, "is 0 at all sites.*: x4"),
        (X, X @ np.ones(4) + 1.0, "without noise there are no standard errors"),
        (X, np.full(60, 2.0), "or constant: without noise"),
        (few, noisy, "of 6 rows 1 are left for the noise"),
    ):
        refused(message, of_rows, features, targets)


# --- tests of a fitted table ------------------------------------------------------------------------------------------


def with_dummies(parts, targets, *, own=True, slopes=None):
    """Pooled rows beside dummies of the sites, and beside a column for each site but the first: its slopes of one."""
    site = np.repeat(np.arange(len(parts)), [len(y) for y in targets])
    X = np.c_[np.vstack(parts), np.eye(len(parts))[site] if own else np.ones((site.size, 1))]
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
    model = here(kind, [X + 7.0 for X in parts], targets, site_intercepts=None if own else "common")
    # Beside a common intercept lines meet at the columns' means.
    parts = parts if own else [X - np.vstack(parts).mean(axis=0) for X in parts]
    X = with_dummies(parts, targets, own=own)
    book = textbook(kind, X, targets)
    for j, row in enumerate(rows_of(model)):
        A = with_dummies(parts, targets, own=own, slopes=j)
        A = A[:, A.any(axis=0)]
        slopes = A.T @ (book.y - book.mean)
        degrees = A.shape[1] - np.count_nonzero(X.any(axis=0))
        statistic = slopes @ np.linalg.solve((A.T * book.curvatures) @ A, slopes) / book.noise
        assert_allclose([row["Rao"], row["p of Rao"]], [statistic, stats.chi2.sf(statistic, degrees)], rtol=1e-6)
        assert row["degrees of Rao"] == degrees == (2 if j == 2 and own else 3)


@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_a_common_intercept_comes_with_observed_and_expected_events(weight):
    parts, targets = federation("logistic", rows=200, seed=1)
    targets[2] = np.where(np.random.default_rng(0).random(len(targets[2])) < 0.3, 0.0, targets[2])
    model = here("logistic", parts, targets, [np.full(len(own), weight) for own in targets], site_intercepts="common")
    means = textbook("logistic", with_dummies(parts, targets, own=False), targets).mean
    probability = np.split(means, np.cumsum([len(own) for own in targets])[:-1])
    for row, own, expected in zip(model._table.intercepts, targets, probability, strict=True):
        assert row["observed"] == weight * own.sum()
        assert f"{own.sum():.0f} of {own.size} rows at {row['site']}" in model.summary()
        assert row["expected"] == pytest.approx(weight * expected.sum(), rel=1e-6)
        assert f"{row['ratio']:.3g}" in model.summary()
    assert re.search(f"Odds: of 1.0 .{weight * sum(map(sum, targets)):g}( by weight)?. against 0.0", model.summary())
    assert "one of all sites; p = " in model.summary()


def test_small_sites_share_an_intercept_and_are_named():
    parts, targets = federation("logistic", rows=80)
    small = [np.random.default_rng(m).normal(size=(7, 3)) for m in range(3)]
    classes = [np.r_[np.ones(2 + m), np.zeros(5 - m)] for m in range(3)]
    model = here("logistic", [*parts, *small], [*targets, *classes])
    assert "share an intercept: site 4, site 5, site 6: too few rows for their own" in model.summary()
    together = [*targets, np.concatenate(classes)]
    book = textbook("logistic", with_dummies([*parts, np.vstack(small)], together), together)
    assert_allclose(column(model, "estimate", "standard error"), [book.w[:3], book.error[:3]], rtol=1e-6)
    # Pairs leave half of their rows for three columns.
    pairs, values = ([own[i : i + 2] for own in each for i in range(0, 40, 2)] for each in federation("lasso"))
    book = textbook("lasso", with_dummies(pairs, values), values)
    assert_allclose(column(here("lasso", pairs, values), "estimate"), book.w[:3], rtol=1e-6)
    # Of one class they would have no intercept together.
    model = here("logistic", [*parts, *small], [*targets, *(np.ones(7) for _ in small)])
    assert "add nothing: site 4, site 5, site 6: one class only" in model.summary()
    assert_allclose(model.covariance_, here("logistic", parts, targets).covariance_, rtol=1e-6)


@BOTH
def test_contrasts_and_comparisons_are_the_textbooks(kind):
    parts, targets = federation(kind, rows=90)
    frames = [pd.DataFrame(X, columns=["x0", "x1", "x2"]) for X in parts]
    model = here(kind, frames, targets)
    X = with_dummies(parts, targets)
    book, fewer = textbook(kind, X, targets), textbook(kind, X[:, [1, 3, 4, 5, 6]], targets)
    w, covariance = book.w[:3], book.covariance[:3, :3]
    assert_allclose(model.covariance_, covariance, rtol=1e-6)
    assert model.log_likelihood_ == pytest.approx(book.likelihood, rel=1e-9)
    found = model.contrast({"x0": np.float64(1.0), "x2": Fraction(-2)})
    factors = np.array([1.0, 0.0, -2.0])
    (row,), error = found.rows, np.sqrt(factors @ covariance @ factors)
    assert (row["contrast"], found.degrees[0]) == ("x0 - 2 x2", 1)
    assert_allclose([row["estimate"], row["standard error"]], [factors @ w, error], rtol=1e-6)
    t = stats.t(book.left if kind == "lasso" else np.inf)
    assert_allclose([row["p"], found.p], [2 * t.sf(abs(factors @ w) / error)] * 2, rtol=1e-5)
    ratio = (smaller := here(kind, [own[["x1"]] for own in frames], targets)).compare(model)
    assert ratio.p == model.compare(smaller).p
    wald = w[::2] @ np.linalg.solve(covariance[::2, ::2], w[::2])
    statistic, law = 2 * (book.likelihood - fewer.likelihood), stats.chi2(2)
    if kind == "lasso":
        # Wald's test is the F test.
        statistic, law, wald = (fewer.squares - book.squares) / 2 / book.noise, stats.f(2, book.left), wald / 2
    assert_allclose([ratio.statistic, ratio.p], [statistic, law.sf(statistic)], rtol=1e-6)
    assert model.contrast([{"x0": 1.0}, {"x2": 1.0}]).statistic == pytest.approx(wald)


def test_what_cannot_be_tested_is_refused_in_words():
    parts, targets = federation("lasso")
    model, smaller = (here("lasso", [X[:, :k] for X in parts], targets) for k in (3, 2))
    refused("no table of estimates; give intervals=True", model_of("lasso").fit(parts, targets).contrast, {"x0": 1})
    factors = r"contrast\(.*expected factors by names of features, or a list"
    for wrong, message in (
        ({"age": 1}, r"has \['age'\]"),
        ({}, "has no features"),
        ([{"x0": 1}, {"x0": 2}], "linearly"),
        *((nothing, factors) for nothing in ([], "x0", None, {"x0": "1"}, {"x0": np.nan}, {"x0": 10**400})),
    ):
        refused(message, model.contrast, wrong)
    refused(r"compare\(.*expected an estimator of flwr_fco.tables", model.compare, Lasso())
    refused("expected a model with some of the other's columns", model.compare, model)
    for options, factor in (({"site_intercepts": "common"}, 1.0), ({}, 2.0)):
        other = here("lasso", [X[:, :2] for X in parts], [factor * y for y in targets], **options)
        refused("of the same rows, sites, outcome", model.compare, other)
    assert model.compare(smaller).p > 0.0
    # As many rows at each site, but others.
    mixed = [[own[1][:60], np.concatenate([own[0], own[1][60:]]), *own[2:]] for own in (parts, targets)]
    refused("of the same rows, sites, outcome", here("lasso", *mixed).compare, smaller)
    # Of classes the loss at 0 does not depend on the outcome.
    model, other = (here("logistic", [X[:, : 2 + m] for X in parts], [y > m for y in targets]) for m in (0, 1))
    refused("of the same rows, sites, outcome", model.compare, other)


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
    for i, step in enumerate(1e-6 * np.eye(60)):
        up, down = (own.sum() * cox(own).gradient(w) for own in (weights + step, weights - step))
        assert_allclose(rows[i], (up - down) / 2e-6 * weights[i], atol=1e-6)


def test_raos_test_with_clusters_is_that_of_the_clusters_scores():
    """Every three rows in order are one patient's."""
    rng = np.random.default_rng(5)
    parts = [rng.normal(size=(90, 2)) for _ in range(3)]
    targets = [X[:, 0] + np.repeat(rng.normal(size=30), 3) + rng.normal(size=90) for X in parts]
    frames = [pd.DataFrame(X, columns=NAMES[:2]).assign(patient=np.arange(90) // 3) for X in parts]
    model = here("lasso", frames, targets, cluster="patient", site_intercepts="common")
    rows = np.c_[np.concatenate(parts) - np.mean(parts, axis=(0, 1)), np.ones(270)]
    y, site = np.concatenate(targets), np.repeat(np.arange(3), 90)
    assert "none of site 0, site 1, site 2: fewer than 10 rows a column or 40 clusters," in model.summary()
    scores = rows * (y - rows @ np.linalg.lstsq(rows, y, rcond=None)[0])[:, None]
    own = scores.reshape(90, 3, -1).sum(axis=1)
    curved = np.array([rows[site == m].T @ rows[site == m] for m in range(3)])
    for j, row in enumerate(rows_of(model)):
        moved = np.linalg.solve(curved.sum(axis=0), own.T).T @ curved[:, j].T
        each = own[:, [j]] * (np.arange(3) == np.arange(90)[:, None] // 30) - moved
        sums = each.sum(axis=0)
        assert row["Rao"] == pytest.approx(sums @ np.linalg.pinv(each.T @ each, rcond=1e-9) @ sums, rel=1e-6)
    # Of one X the rows of a patient are dealt to one site.
    assert "dealt in turn to 30 sites" in model.set_params(num_clients=40).fit(frames[0], y[:90]).summary()


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


FOUND = between(RATIO[:, None], ERROR[:, None])


def test_the_numbers_of_a_published_meta_analysis():
    for name, (value, near, _) in PUBLISHED.items():
        assert FOUND[name][0] == pytest.approx(value, abs=near), name
    assert FOUND["p of Q"][0] == pytest.approx(stats.chi2.sf(152.233, 12), rel=1e-3)


def test_errors_that_vary_have_welchs_test():
    groups = [np.random.default_rng(m).normal(scale=1.0 + m, size=5 + 2 * m) for m in range(5)]
    summaries = (np.array([[of(own)] for own in groups]) for of in (np.mean, stats.sem, lambda own: len(own) - 1.0))
    assert_allclose(between(*summaries)["p of Q"], stats.f_oneway(*groups, equal_var=False).pvalue, rtol=1e-9)


def test_means_are_those_of_statsmodels():
    meta = pytest.importorskip("statsmodels.stats.meta_analysis", reason="pip install '.[oracles]'")
    theirs = meta.combine_effects(RATIO, ERROR**2, method_re="dl")
    for name, (_, _, theirs_name) in PUBLISHED.items():
        assert FOUND[name][0] == pytest.approx(getattr(theirs, theirs_name), rel=1e-10), name


# --- how often they cover ---------------------------------------------------------------------------------------------

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def coverage():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        return SimpleNamespace(**runpy.run_path(str(BENCHMARKS / "intervals.py")))


def test_every_setting_has_stored_shares_within_its_bars(coverage):
    stored = json.loads(coverage.STORED.read_text(encoding="utf-8"))
    assert list(stored) == list(coverage.SETTINGS)
    for name, (_, bars) in coverage.SETTINGS.items():
        for share, (low, high) in bars.items():
            assert low <= stored[name][share][0] <= high, (name, share)
        if bars is coverage.RARE:
            assert stored[name]["federations"] == 1000
    # What the default is there for.
    common = stored["rare, baselines differ, site_intercepts='common'"]
    assert common["not 0"][0] < 0.8
    assert common["type I"][0] > 0.2


@pytest.mark.parametrize("baselines", ["differ", *nightly("same", "linked")])
def test_rare_outcomes_in_unequal_sites_are_covered(coverage, baselines):
    """Of 40 federations with 8 coefficients each, within four standard errors."""
    count = 40 if baselines != "differ" else 6
    found = [coverage.rare(baselines, None, np.random.default_rng((99, i))) for i in range(count)]
    for share in ("not 0", "0"):
        assert np.mean([own[share] for own in found]) > 0.95 - 4.0 * (0.95 * 0.05 / (4 * count)) ** 0.5

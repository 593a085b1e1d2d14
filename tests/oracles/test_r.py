"""Studies of several sites have the numbers of R: glm, lm, coxph, vcovCL, metafor's rma, and cv.glmnet at fixed folds.

`r.json` is what ``studies.R`` wrote of the data of ``studies.py``, which are in lifelines, scikit-survival, statsmodels
and scikit-learn: ``pip install '.[oracles]'``.
"""

import json
import warnings
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from flwr_fco import tables

for package in ("pandas", "lifelines", "sksurv", "statsmodels"):
    pytest.importorskip(package, reason="pip install '.[oracles]'")

from . import studies  # noqa: E402

R = json.loads(Path(__file__).with_name("r.json").read_text(encoding="utf-8"))
SPECIAL = ("site", "y", "time", "event", "exposure", "fold")
MODELS = {
    "classes": lambda **options: tables.FederatedLogisticRegression(np.inf, **options),
    "squares": lambda **options: tables.FederatedLasso(0.0, **options),
    "counts": lambda **options: tables.FederatedPoissonRegression(0.0, **options),
    "times": lambda **options: tables.FederatedCoxRegression(**options),
}
KNOWN = [tuple(name.split("-")) for name in R]
STUDIES = [(kind, name) for kind, name in KNOWN if kind in MODELS]
frames = cache(studies.studies)


def fitted(kind, name, *, without=0, **options):
    """Fit a study by site with its table; without so many of the first columns."""
    rows = frames(kind)[name]
    columns = [column for column in rows if column not in SPECIAL][without:]
    outcome = {"times": ["time", "event"], "counts": ["y", "exposure"]}.get(kind, "y")
    model = MODELS[kind](**options)
    with warnings.catch_warnings():
        # Few events a column.
        warnings.simplefilter("ignore", UserWarning)
        return model.fit(rows[columns], rows[outcome], groups=rows["site"], intervals=True)


def column(model, name):
    return np.array([row[name] for row in model.summary().rows])


def close(ours, theirs, scale=1.0):
    np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-8 * np.max(np.abs(scale)))


def test_there_are_thirteen_studies_and_two_paths():
    assert len(STUDIES) >= 13
    assert sum(kind == "path" for kind, _ in KNOWN) == 2


@pytest.mark.parametrize(("kind", "name"), STUDIES)
def test_estimates_errors_and_likelihood_are_those_of_r(kind, name):
    model = fitted(kind, name)
    r = R[f"{kind}-{name}"]
    errors = np.sqrt(np.diag(r["covariance"]))
    close(column(model, "estimate"), r["estimate"], errors)
    close(model.covariance_ / np.outer(errors, errors), r["covariance"] / np.outer(errors, errors), 1.0)
    close(model.log_likelihood_, r["likelihood"])
    if kind == "times":
        close(column(fitted(kind, name, ties="breslow"), "estimate"), r["breslow"], errors)


@pytest.mark.parametrize(("kind", "name"), [own for own in STUDIES if own[0] != "times"])
def test_two_models_are_compared_as_by_anova(kind, name):
    found = fitted(kind, name).compare(fitted(kind, name, without=1))
    assert found.statistic == pytest.approx(R[f"{kind}-{name}"]["statistic"], rel=1e-7, abs=1e-8)


@pytest.mark.parametrize(("kind", "name"), STUDIES)
def test_errors_clustered_by_site_are_those_of_vcov_cl(kind, name):
    """Of survival times, whose baselines are by site, those of coxph with cluster()."""
    options = {} if kind == "times" else {"site_intercepts": "common"}
    r = R[f"{kind}-{name}"]
    model = fitted(kind, name, cluster="site", **options)
    errors = np.sqrt(np.diag(r["clustered"]))
    if kind != "times":
        close(column(model, "estimate"), r["common"], errors)
    close(model.covariance_ / np.outer(errors, errors), r["clustered"] / np.outer(errors, errors), 1.0)


@pytest.mark.parametrize(("kind", "name"), [own for own in STUDIES if R["-".join(own)]["meta"]])
def test_the_meta_analysis_is_that_of_metafor(kind, name):
    model = fitted(kind, name)
    assert len(model._table.sites) >= 3
    for row, r in zip(model.summary().rows, R[f"{kind}-{name}"]["meta"], strict=True):
        names = ["fixed", "DerSimonian-Laird"] + ["Q", "p of Q", "I2"] * (not np.isnan(row["Q"]))
        for each in names:
            assert row[each] == pytest.approx(r[each], rel=1e-8, abs=1e-9), each
        assert row["DerSimonian-Laird error"] == pytest.approx(r["error"], rel=1e-8)


@pytest.mark.parametrize("name", [name for kind, name in KNOWN if kind == "path"])
def test_a_path_at_fixed_folds_is_that_of_cv_glmnet(name):
    rows = frames("path")[name]
    r = R[f"path-{name}"]
    X = rows.drop(columns=["y", "site", "fold"])
    fold = rows["fold"].to_numpy()
    splits = [(np.flatnonzero(fold != number), np.flatnonzero(fold == number)) for number in range(10)]
    model = tables.FederatedLasso(cv=splits)
    if name == "tumours":
        model = tables.FederatedLogisticRegression(l1_ratio=1.0, cv=splits)
    model.fit(X, rows["y"], groups=rows["site"])
    close([point.strength for point in model.path_.points], r["strengths"])
    close([point.held_out for point in model.path_.points], r["losses"])
    close(model.strength_, r["chosen"])
    coefficients = np.ravel(model.coef_)
    close(coefficients, r["coefficients"], coefficients)
    np.testing.assert_array_equal(coefficients == 0.0, np.array(r["coefficients"]) == 0.0)


@pytest.mark.parametrize("name", [name for kind, name in KNOWN if kind == "times"])
def test_survival_and_the_log_rank_test_are_those_of_survfit_and_survdiff(name):
    """At all times that there are; the test within sites at any."""
    rows = frames("times")[name]
    r = R[f"times-{name}"]
    X = rows.drop(columns=["site", "time", "event"])
    first = X.columns[0]
    X[first] = (X[first] > X[first].median()).astype(float)
    model = tables.FederatedCoxRegression(1.0).fit(X, rows[["time", "event"]], groups=rows["site"])
    found = model.curves(X, rows[["time", "event"]], rows["site"], times=np.unique(rows["time"]))
    at = np.searchsorted(np.unique(rows["time"]), r["at"])
    close([found.rows[k]["survival"] for k in at], r["survival"])
    close([found.rows[k]["standard error"] for k in at], r["error"])
    compared = model.curves(X, rows[["time", "event"]], rows["site"], times=r["at"], by=first)
    close(compared.statistic, r["stratified"])


def test_errors_of_clusters_and_weights_of_times_are_those_of_lifelines():
    """Of times without ties, about which lifelines' residuals do not know."""
    lifelines = pytest.importorskip("lifelines")
    rows = pytest.importorskip("lifelines.datasets").load_rossi()
    rows["week"] = rows["week"] + np.linspace(0.0, 0.5, len(rows))
    names = [name for name in rows if name not in ("week", "arrest")]
    weights = np.random.default_rng(0).uniform(0.5, 2.0, len(rows))
    y = rows[["week", "arrest"]].astype(float)
    rows["pair"] = np.arange(len(rows)) // 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options = {"duration_col": "week", "event_col": "arrest", "fit_options": {"precision": 1e-13}}
        by_pair = lifelines.CoxPHFitter().fit(rows, cluster_col="pair", **options)
        weighted = rows.drop(columns="pair").assign(weight=weights)
        by_row = lifelines.CoxPHFitter().fit(weighted, weights_col="weight", robust=True, **options)
    model = tables.FederatedCoxRegression(num_clients=1, cluster="pair").fit(rows[[*names, "pair"]], y, intervals=True)
    np.testing.assert_allclose(np.sqrt(np.diag(model.covariance_)), by_pair.standard_errors_, rtol=1e-7)
    model = tables.FederatedCoxRegression(num_clients=1).fit(rows[names], y, weights, intervals=True)
    np.testing.assert_allclose(column(model, "estimate"), by_row.params_, rtol=1e-7)
    np.testing.assert_allclose(np.sqrt(np.diag(model.covariance_)), by_row.standard_errors_, rtol=1e-6)

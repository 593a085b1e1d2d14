"""Real studies of several sites, whose tables are those of R, statsmodels and lifelines on the pooled rows.

The data are in statsmodels, lifelines and scikit-learn: ``pip install '.[oracles]'``.
"""

import warnings

import numpy as np
import pytest
from scipy import stats
from sklearn.datasets import load_diabetes

from flwr_fco.errors import ConfigurationError
from flwr_fco.tables import FederatedCoxRegression, FederatedLasso, FederatedLogisticRegression

REASON = "pip install '.[oracles]'"
pandas = pytest.importorskip("pandas", reason=REASON)


@pytest.fixture(scope="module")
def statsmodels():
    return pytest.importorskip("statsmodels.api", reason=REASON)


@pytest.fixture(scope="module")
def lifelines():
    return pytest.importorskip("lifelines", reason=REASON)


def split(frame, site, outcome):
    """Return each site's features and outcome, by its name."""
    columns = [name for name in frame if name not in (site, *np.atleast_1d(outcome))]
    parts = {name: frame[frame[site] == name] for name in sorted(frame[site].unique())}
    return {name: own[columns] for name, own in parts.items()}, {name: own[outcome] for name, own in parts.items()}


def column(model, name):
    return np.array([row[name] for row in model.summary().rows])


# --- classes --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def affairs(statsmodels):
    """6,366 women of Fair's survey of 1974, by occupation as if these were sites."""
    rows = statsmodels.datasets.fair.load_pandas().data
    columns = ["rate_marriage", "age", "yrs_married", "religious"]
    return rows[[*columns, "occupation"]].assign(affair=(rows["affairs"] > 0).astype(int)), columns


def with_dummies(rows, columns):
    return np.column_stack([rows[columns], pandas.get_dummies(rows["occupation"], dtype=float)])


def test_classes_have_the_table_of_a_fit_with_dummies(statsmodels, affairs):
    rows, columns = affairs
    model = FederatedLogisticRegression(0.01, l1_ratio=1.0).fit(*split(rows, "occupation", "affair"), intervals=True)
    A = with_dummies(rows, columns)
    theirs = statsmodels.GLM(rows["affair"], A, family=statsmodels.families.Binomial()).fit(tol=1e-14, maxiter=100)
    np.testing.assert_allclose(column(model, "estimate"), theirs.params[:4], rtol=1e-8)
    np.testing.assert_allclose(column(model, "standard error"), theirs.bse[:4], rtol=1e-8)
    np.testing.assert_allclose(model.covariance_, theirs.cov_params().to_numpy()[:4, :4], rtol=1e-7, atol=1e-12)
    assert model.log_likelihood_ == pytest.approx(theirs.llf, rel=1e-10)
    wald = theirs.t_test(np.eye(10)[0] - 2.0 * np.eye(10)[3])
    (row,) = model.contrast({"rate_marriage": 1.0, "religious": -2.0}).rows
    np.testing.assert_allclose([row["estimate"], row["standard error"]], [wald.effect[0], wald.sd[0, 0]], rtol=1e-8)
    for j, row in enumerate(model.summary().rows):
        slopes = A[:, [j]] * A[:, 5:]
        found = theirs.score_test(exog_extra=slopes)
        assert row["Rao"] == pytest.approx(float(np.squeeze(found.statistic)), rel=1e-6)
        assert row["p of Rao"] == pytest.approx(float(np.squeeze(found.pvalue)), rel=1e-5)
    fewer = split(rows.drop(columns=["age", "religious"]), "occupation", "affair")
    smaller = FederatedLogisticRegression(0.01, l1_ratio=1.0).fit(*fewer, intervals=True)
    before = statsmodels.GLM(rows["affair"], A[:, [0, 2, *range(4, 10)]], family=statsmodels.families.Binomial()).fit(
        tol=1e-14
    )
    assert model.compare(smaller).statistic == pytest.approx(2.0 * (theirs.llf - before.llf), rel=1e-8)


def test_classes_have_clustered_errors_and_a_common_intercept_its_own(statsmodels, affairs):
    """statsmodels' factor (n - 1) / (n - k) is not in R's vcovCL of a glm."""
    rows, columns = affairs
    model = FederatedLogisticRegression(cluster="site", site_intercepts="common")
    model.fit(*split(rows, "occupation", "affair"), intervals=True)
    A = np.column_stack([rows[columns], np.ones(len(rows))])
    groups = {"groups": rows["occupation"], "use_correction": True}
    theirs = statsmodels.GLM(rows["affair"], A, family=statsmodels.families.Binomial())
    theirs = theirs.fit(tol=1e-14, cov_type="cluster", cov_kwds=groups)
    factor = np.sqrt((len(rows) - 1) / (len(rows) - A.shape[1]))
    np.testing.assert_allclose(np.sqrt(np.diag(model.covariance_)) * factor, theirs.bse[:4], rtol=1e-7)
    np.testing.assert_allclose(
        column(model, "p"), 2 * stats.t.sf(abs(column(model, "estimate")) / np.sqrt(np.diag(model.covariance_)), 5)
    )


def test_the_meta_analysis_is_statsmodels_where_sites_differ(statsmodels, affairs):
    """Where they agree, statsmodels goes on with a variance between them below 0, and metafor with 0 as here."""
    from statsmodels.stats.meta_analysis import combine_effects

    rows, spread = affairs[0], 0
    # The first occupation has 41 women, and no estimates of its own.
    parts = split(rows[rows["occupation"] > 1], "occupation", "affair")
    model = FederatedLogisticRegression().fit(*parts, intervals=True)
    sites = model._table.sites
    for row in model.summary().rows:
        own = np.array([row[site] for site in sites]), np.array([row[f"{site} error"] for site in sites])
        theirs = combine_effects(own[0], own[1] ** 2, method_re="dl")
        assert row["Q"] == pytest.approx(theirs.q, rel=1e-9)
        assert row["I2"] == pytest.approx(max(0.0, theirs.i2), rel=1e-9)
        assert row["fixed"] == pytest.approx(theirs.mean_effect_fe, rel=1e-9)
        if theirs.tau2 <= 0.0:
            assert row["DerSimonian-Laird"] == pytest.approx(row["fixed"], rel=1e-12)
            continue
        spread += 1
        assert row["DerSimonian-Laird"] == pytest.approx(theirs.mean_effect_re, rel=1e-9)
        assert row["DerSimonian-Laird error"] == pytest.approx(theirs.sd_eff_w_re, rel=1e-9)
        wide = stats.t.isf(0.025, len(sites) - 1) * theirs.sd_eff_w_re_hksj
        half = 0.5 * (row["Hartung-Knapp upper"] - row["Hartung-Knapp lower"])
        assert half == pytest.approx(max(wide, 0.5 * (row["upper"] - row["lower"])), rel=1e-9)
    assert 0 < spread < len(model.coef_[0])


def test_few_events_a_column_are_refused(statsmodels):
    """Spector and Mazzeo's 32 students, 11 of whom improved."""
    rows = statsmodels.datasets.spector.load_pandas().data
    with pytest.raises(
        ConfigurationError, match=r"intervals of 3 columns and 1 intercepts from 11 events .* at least 5 a column"
    ):
        FederatedLogisticRegression().fit([rows[["GPA", "TUCE", "PSI"]]], [rows["GRADE"].astype(int)], intervals=True)


# --- squares --------------------------------------------------------------------------------------------------------


def test_squares_have_statsmodels_table_by_site_cluster_and_weight(statsmodels):
    """Grunfeld's 11 firms over 20 years."""
    rows = statsmodels.datasets.grunfeld.load_pandas().data
    parts = split(rows[["value", "capital", "firm", "invest"]], "firm", "invest")
    dummies = np.column_stack([rows[["value", "capital"]], pandas.get_dummies(rows["firm"], dtype=float)])
    common = np.column_stack([rows[["value", "capital"]], np.ones(len(rows))])
    for options, A, fit in (
        ({}, dummies, {}),
        ({"site_intercepts": "common"}, common, {}),
        (
            {"cluster": "site", "site_intercepts": "common"},
            common,
            {"cov_type": "cluster", "cov_kwds": {"groups": rows["firm"]}},
        ),
    ):
        model = FederatedLasso(10.0, **options).fit(*parts, intervals=True)
        theirs = statsmodels.OLS(rows["invest"], A).fit(**fit)
        np.testing.assert_allclose(column(model, "estimate"), theirs.params[:2], rtol=1e-8)
        np.testing.assert_allclose(np.sqrt(np.diag(model.covariance_)), theirs.bse[:2], rtol=1e-8)
        assert model.log_likelihood_ == pytest.approx(theirs.llf, rel=1e-10)
    weights = 1.0 + (rows["year"] - 1935) / 10
    model = FederatedLasso(10.0, site_intercepts="common")
    model.fit(*parts, {firm: weights[rows["firm"] == firm] for firm in parts[0]}, intervals=True)
    theirs = statsmodels.WLS(rows["invest"], common, weights=weights).fit(cov_type="HC1")
    np.testing.assert_allclose(column(model, "estimate"), theirs.params[:2], rtol=1e-8)
    np.testing.assert_allclose(np.sqrt(np.diag(model.covariance_)), theirs.bse[:2], rtol=1e-8)


def test_the_f_test_of_two_models_is_statsmodels(statsmodels):
    X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
    site = np.digitize(X["age"], [40, 50, 60])
    larger, smaller = (
        FederatedLasso(1.0).fit(X[columns], y, groups=site, intervals=True)
        for columns in (list(X), ["sex", "bmi", "bp", "s5"])
    )
    dummies = pandas.get_dummies(site, dtype=float).to_numpy()
    fits = [
        statsmodels.OLS(y.to_numpy(), np.column_stack([X[own], dummies])).fit()
        for own in (list(X), ["sex", "bmi", "bp", "s5"])
    ]
    f, p, count = fits[0].compare_f_test(fits[1])
    found = larger.compare(smaller)
    assert found.degrees == (count, fits[0].df_resid)
    np.testing.assert_allclose([found.statistic, found.p], [f, p], rtol=1e-7)


# --- survival times -------------------------------------------------------------------------------------------------

#: summary(coxph(Surv(time, status) ~ age + sex + ph.ecog, lung)) and of recidivism, by R's survival: coefficients and
#: standard errors. The second ones are in Fox's appendix on Cox regression.
OF_R = {
    "lung": {"age": (0.011067, 0.009267), "sex": (-0.552612, 0.167739), "ph.ecog": (0.463728, 0.113577)},
    "rossi": {
        "fin": (-0.37942, 0.19138),
        "age": (-0.05744, 0.02200),
        "race": (0.31390, 0.30799),
        "wexp": (-0.14980, 0.21222),
        "mar": (-0.43370, 0.38187),
        "paro": (-0.08487, 0.19576),
        "prio": (0.09150, 0.02865),
    },
}


@pytest.mark.parametrize("study", OF_R)
def test_hazard_ratios_are_those_of_r(lifelines, study):
    rows = getattr(lifelines.datasets, f"load_{study}")()
    names, times = list(OF_R[study]), {"lung": ["time", "status"], "rossi": ["week", "arrest"]}[study]
    rows = rows[[*names, *times]].dropna()
    model = FederatedCoxRegression(num_clients=1).fit(rows[names], rows[times].astype(float), intervals=True)
    digits = 5e-7 if study == "lung" else 5e-6
    for name, estimate, error in zip(names, column(model, "estimate"), column(model, "standard error"), strict=True):
        np.testing.assert_allclose([estimate, error], OF_R[study][name], rtol=0, atol=1.01 * digits)


def test_hazard_ratios_by_institution_are_those_of_lifelines_with_strata(lifelines):
    rows = lifelines.datasets.load_lung()[["inst", "time", "status", "age", "sex", "ph.ecog"]].dropna()
    rows = rows[rows.groupby("inst")["time"].transform("size") >= 5]
    model = FederatedCoxRegression().fit(*split(rows, "inst", ["time", "status"]), intervals=True)
    theirs = lifelines.CoxPHFitter().fit(rows, "time", "status", strata=["inst"], fit_options={"precision": 1e-13})
    np.testing.assert_allclose(column(model, "estimate"), theirs.params_, rtol=1e-7)
    np.testing.assert_allclose(column(model, "standard error"), theirs.standard_errors_, rtol=1e-7)
    assert model.log_likelihood_ == pytest.approx(theirs.log_likelihood_, rel=1e-9)


def test_errors_of_clusters_and_weights_are_those_of_lifelines(lifelines):
    """Of times without ties, about which lifelines' residuals do not know."""
    rows = lifelines.datasets.load_rossi()
    rows["week"] = rows["week"] + np.linspace(0.0, 0.5, len(rows))
    names, weights = list(OF_R["rossi"]), np.random.default_rng(0).uniform(0.5, 2.0, len(rows))
    rows["pair"] = np.arange(len(rows)) // 3
    y = rows[["week", "arrest"]].astype(float)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options = {"duration_col": "week", "event_col": "arrest", "fit_options": {"precision": 1e-13}}
        by_pair = lifelines.CoxPHFitter().fit(rows, cluster_col="pair", **options)
        by_row = lifelines.CoxPHFitter().fit(
            rows.drop(columns="pair").assign(weight=weights), weights_col="weight", robust=True, **options
        )
    model = FederatedCoxRegression(num_clients=1, cluster="pair").fit(rows[[*names, "pair"]], y, intervals=True)
    np.testing.assert_allclose(np.sqrt(np.diag(model.covariance_)), by_pair.standard_errors_, rtol=1e-7)
    model = FederatedCoxRegression(num_clients=1).fit(rows[names], y, weights, intervals=True)
    np.testing.assert_allclose(column(model, "estimate"), by_row.params_, rtol=1e-7)
    np.testing.assert_allclose(np.sqrt(np.diag(model.covariance_)), by_row.standard_errors_, rtol=1e-6)

"""A table of intervals of a federation: what it is made of, what leaves a site, and what one site can do to it."""

import re
from collections import Counter

import numpy as np
import pytest
from federations import altering, by_hand, counting, federation, fit_over_a_grid, model_of, pooled
from representatives import nightly
from scipy import stats
from sklearn.base import clone

from flwr_fco.client_apps import Disclosure, client_app
from flwr_fco.core.logs import quiet
from flwr_fco.errors import ConfigurationError
from flwr_fco.messages.records import TABLE
from flwr_fco.objectives import LeastSquares, Logistic
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import Strengths
from flwr_fco.tables import FederatedLasso, FederatedLogisticRegression, Intervals
from flwr_fco.tables.answers import own_estimates

NAMES = ["age", "dose", "sex"]


def over(model, parts, targets, **options):
    """Fit with intervals over a grid."""
    sites = list(zip(parts, targets, strict=True))
    return fit_over_a_grid(model, sites, **{"features": NAMES, "intervals": True, **options})[0]


def rows_of(model):
    return model.summary().rows


def test_intercepts_of_the_sites_are_parameters_of_squares():
    """Of pooled rows and dummies, whether a site has many rows or one."""
    rng = np.random.default_rng(0)
    sizes = (60, 3, 1, 90, 45)
    parts = [rng.normal(size=(n, 4)) + 3.0 * m for m, n in enumerate(sizes)]
    targets = [X @ [1.0, -0.5, 0.0, 0.0] + 5.0 * m + rng.normal(size=len(X)) for m, X in enumerate(parts)]
    model = FederatedLasso(0.1, site_intercepts="local").fit(parts, targets, intervals=True)
    estimate, error = by_hand(
        "lasso", np.c_[np.vstack(parts), np.repeat(np.eye(5), sizes, axis=0)], np.concatenate(targets)
    )
    alone = by_hand("lasso", np.c_[parts[0], np.ones(60)], targets[0])
    for j, row in enumerate(rows_of(model)):
        half = stats.t.isf(0.025, 199 - 9) * error[j]
        found = [row[name] for name in ("estimate", "standard error", "upper", "site 0", "site 0 error")]
        expected = [estimate[j], error[j], estimate[j] + half, alone[0][j], alone[1][j]]
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert "of 3 of 5 sites; none of site 1, site 2: fewer than 10 rows a column" in model.summary()


def test_rows_of_a_site_of_one_class_are_no_events_beside_its_intercept():
    """They are in a model with a common intercept."""
    parts, targets = federation("logistic", sites=4, rows=90)
    targets[0][:], targets[1][:] = 1.0, 0.0
    for y in targets[2:]:
        y[:] = np.arange(y.size) % 5 == 0
        y[60:] = 0.0
    own = FederatedLogisticRegression(num_clients=4, site_intercepts="local")
    with (
        pytest.warns(UserWarning, match="part 0, part 1: all rows of one class"),
        pytest.raises(
            ConfigurationError, match=r"intervals of 3 columns and 2 intercepts from 24 events .* 5 a column"
        ),
    ):
        own.fit(parts, targets, intervals=True)
    with pytest.raises(ConfigurationError, match="intervals of 3 columns and 2 intercepts from 24 events"):
        model_of("logistic").fit(parts, targets, intervals=True)
    clone(model_of("logistic")).set_params(site_intercepts="common").fit(parts, targets, intervals=True)


@pytest.mark.parametrize("kind", ["lasso", "logistic"])
@pytest.mark.parametrize(("first", "others"), [(2.0, 1.0), (2.0, 2.0), (1.0, 1.0)])
def test_rows_with_weights_have_robust_errors_also_of_a_sites_own_app(kind, first, others):
    """Other errors would be those of copies of rows."""
    parts, targets = federation(kind, sites=3)
    made = LeastSquares if kind == "lasso" else Logistic
    weights = [np.full(len(y), others) for y in targets]
    weights[1][:9] = first

    def load(context):
        m = context.node_config["partition-id"]
        objective = made(parts[m], targets[m], sample_weight=weights[m], **({"scale": 0.5} if kind == "lasso" else {}))
        objective.feature_names = NAMES
        objective.class_names = None
        return objective

    grid = InProcessGrid(client_app(load), 3, raise_errors=False)
    model = model_of(kind, 3)
    with grid.identity(), quiet(50):
        model.fit(grid, features=NAMES, intervals=True)
    everything = np.concatenate(weights) if first + others > 2.0 else None
    estimate, error = pooled(kind, parts, targets, weights=everything)
    np.testing.assert_allclose([row["estimate"] for row in rows_of(model)], estimate, rtol=1e-6)
    np.testing.assert_allclose([row["standard error"] for row in rows_of(model)], error, rtol=1e-6)
    assert ("rows, which have weights" in model.summary()) == (everything is not None)
    if first + others > 2.0:
        here = model_of(kind, 3).fit(parts, targets, weights, intervals=True)
        np.testing.assert_allclose(np.sqrt(np.diag(here.covariance_)), error, rtol=1e-6)


# --- what the numbers are -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["lasso", "logistic"])
@pytest.mark.parametrize("own", [True, False])
def test_estimates_are_those_of_the_pooled_rows_and_of_each_sites(kind, own):
    """By default with dummies of the sites, which the model itself does not have."""
    parts, targets = federation(kind)
    model = model_of(kind).set_params(site_intercepts=None if own else "common").fit(parts, targets, intervals=True)
    w, error = pooled(kind, parts, targets, own=own)
    degrees = sum(map(len, parts)) - 3 - (4 if own else 1) if kind == "lasso" else np.inf
    for j, row in enumerate(rows_of(model)):
        half = stats.t.isf(0.025, degrees) * error[j]
        found = [row[name] for name in ("estimate", "standard error", "lower", "upper", "p")]
        p = 2 * stats.t.sf(abs(w[j] / error[j]), degrees)
        np.testing.assert_allclose(found, [w[j], error[j], w[j] - half, w[j] + half, p], rtol=1e-6)
        assert row.get("odds ratio") == (pytest.approx(np.exp(w[j]), rel=1e-6) if kind == "logistic" else None)
        for m, (X, y) in enumerate(zip(parts, targets, strict=True)):
            alone = by_hand(kind, np.c_[X, np.ones(len(y))], y)
            np.testing.assert_allclose(
                [row[f"site {m}"], row[f"site {m} error"]], [each[j] for each in alone], rtol=1e-5
            )
    q = stats.false_discovery_control([row["p"] for row in rows_of(model)])
    np.testing.assert_allclose([row["q"] for row in rows_of(model)], q)
    # The model's own coefficients are what they were.
    plain = model_of(kind).fit(parts, targets)
    assert np.array_equal(model.coef_, plain.coef_)
    assert np.array_equal(model.predict(parts[0]), plain.predict(parts[0]))


@pytest.mark.parametrize("kind", ["lasso", "logistic"])
def test_clusters_are_sites_or_what_a_column_says(kind):
    pandas = pytest.importorskip("pandas")
    parts, targets = federation(kind, sites=25, rows=20)
    model = model_of(kind).set_params(cluster="site").fit(parts, targets, intervals=True)
    np.testing.assert_allclose(
        np.sqrt(np.diag(model.covariance_)), pooled(kind, parts, targets, clusters="site")[1], rtol=1e-6
    )
    assert "clustered by 25 sites" in model.summary()
    row = rows_of(model)[0]
    half = stats.t.isf(0.025, 24) * row["standard error"]
    np.testing.assert_allclose([row["lower"], row["upper"]], [row["estimate"] - half, row["estimate"] + half])
    frames = [pandas.DataFrame(X, columns=NAMES).assign(patient=np.arange(len(X)) // 3) for X in parts]
    patients = np.concatenate([frame["patient"] + 1000 * m for m, frame in enumerate(frames)])
    model = model_of(kind).set_params(cluster="patient").fit(frames, targets, intervals=True)
    np.testing.assert_allclose(
        np.sqrt(np.diag(model.covariance_)), pooled(kind, parts, targets, clusters=patients)[1], rtol=1e-6
    )
    assert list(model.feature_names_in_) == NAMES
    assert model.predict(frames[0]).shape == (len(parts[0]),)
    there = over(model_of(kind, 25).set_params(cluster="patient"), frames, targets, features=None)
    assert rows_of(there)[0]["standard error"] == rows_of(model)[0]["standard error"]
    with pytest.raises(ConfigurationError, match="cluster='patient' is no column"):
        model_of(kind).set_params(cluster="patient").fit(parts, targets)


@pytest.mark.parametrize("sites", [3, *nightly(4, 9)])
def test_hartung_knapps_interval_is_never_shorter_than_the_models(sites):
    """Also where the sites happen to agree."""
    wider = 0
    for seed in range(20):
        parts, targets = federation("lasso", sites, seed=seed)
        for row in rows_of(FederatedLasso(0.1).fit(parts, targets, intervals=Intervals(level=0.8))):
            own, model = (row[f"{kind}upper"] - row[f"{kind}lower"] for kind in ("Hartung-Knapp ", ""))
            assert own >= model * (1 - 1e-12)
            wider += own > 1.001 * model
    assert wider > 10


@pytest.mark.parametrize("kind", ["lasso", "logistic"])
def test_bits_are_the_same_in_one_table_and_over_a_grid(kind):
    parts, targets = federation(kind)
    here = model_of(kind).fit(parts, targets, intervals=True)
    owner = np.repeat(["d", "c", "b", "a"], [len(X) for X in parts])
    grouped = model_of(kind).fit(
        np.vstack(parts[::-1]), np.concatenate(targets[::-1]), groups=owner[::-1], intervals=True
    )
    asked = []
    there = over(model_of(kind), parts, targets, grid=counting(asked))
    assert there.n_iter_ == here.n_iter_ == max(Counter(n for n, message in asked if message != TABLE).values())
    plain = over(model_of(kind), parts, targets, intervals=False)
    assert "estimate" not in rows_of(plain)[0]
    assert plain.n_iter_ < there.n_iter_
    for own, other in zip(rows_of(here), rows_of(there), strict=True):
        assert {**own, "feature": ""} == {**other, "feature": ""}
    # Groups are sorted: the sites are the same ones in another order, under their names.
    for own, other in zip(rows_of(here), rows_of(grouped), strict=True):
        assert own["site 0"] == other["site d"]
        assert own["estimate"] == pytest.approx(other["estimate"], rel=1e-9)
    # A fit forgets the table of the fit before.
    assert "Hartung-Knapp" in here.summary()
    assert "Hartung-Knapp" not in here.fit(parts, targets).summary()
    assert not hasattr(here, "covariance_")


def test_the_strength_of_the_model_does_not_matter_to_the_estimates():
    """Also not where a cross-validation has chosen it."""
    parts, targets = federation("logistic")
    tables = [
        rows_of(FederatedLogisticRegression(C, l1_ratio=1.0, cv=cv).fit(parts, targets, intervals=True))
        for C, cv in ((0.01, None), (10.0, None), (1.0, Strengths(4, folds=3)))
    ]
    for one, *others in zip(*tables, strict=True):
        for other in others:
            assert one["estimate"] == pytest.approx(other["estimate"], rel=1e-7)
            assert one["standard error"] == pytest.approx(other["standard error"], rel=1e-7)


def test_rates_are_over_the_columns_asked_for_estimates_of_the_whole_model():
    parts, targets = federation("lasso")
    whole = rows_of(model_of("lasso").fit(parts, targets, intervals=True))
    model = model_of("lasso").fit(parts, targets, intervals=Intervals(columns=[2, 0]))
    some = rows_of(model)
    assert np.isnan(some[1]["estimate"])
    assert "q over 2 columns" in model.summary()
    for j in (0, 2):
        assert some[j]["estimate"] == whole[j]["estimate"]
    np.testing.assert_allclose(
        [some[j]["q"] for j in (0, 2)], stats.false_discovery_control([whole[j]["p"] for j in (0, 2)])
    )


# --- what a site says of itself -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["lasso", "logistic"])
def test_a_small_site_says_nothing_and_the_table_has_no_q(kind):
    parts, targets = federation(kind)
    enough = 30
    if kind == "logistic":
        # 14 of the rarer class, and 3 columns.
        targets[1] = np.r_[np.ones(14), np.zeros(len(targets[1]) - 14)]
    else:
        parts[1], targets[1] = parts[1][: enough - 1], targets[1][: enough - 1]
    model = model_of(kind).fit(parts, targets, intervals=True)
    row = rows_of(model)[0]
    assert np.isnan(row["Q"])
    assert np.isnan(row["I2"])
    assert "site 1" not in row
    assert row["sites"] == 3
    assert not np.isnan(row["Hartung-Knapp lower"])
    assert re.search(r"of 3 of 4 sites; none of site 1: fewer than .* a column", model.summary())
    assert re.search(r"^    x0 .* - ", model.summary(), flags=re.MULTILINE)
    if kind == "lasso":
        parts, targets = federation(kind)
        parts[1], targets[1] = parts[1][:enough], targets[1][:enough]
        assert rows_of(model_of(kind).fit(parts, targets, intervals=True))[0]["sites"] == 4
    two = model_of(kind, 2).fit(parts[2:], targets[2:], intervals=True)
    assert "no Hartung-Knapp interval with fewer than three sites" in two.summary()
    assert np.isnan(rows_of(two)[0]["Hartung-Knapp lower"])
    assert not np.isnan(rows_of(two)[0]["Q"])


def test_what_a_site_estimates_of_itself():
    X = np.random.default_rng(0).normal(size=(60, 3))
    y = np.random.default_rng(1).normal(size=60)
    w, error = by_hand("lasso", np.c_[X, np.ones(60)], y)
    for scale in (0.5, 3.0):
        found = own_estimates(LeastSquares(X * 1e3, y * 1e6, scale=scale))
        np.testing.assert_allclose(found[0], w * [1e3, 1e3, 1e3, 1e6], rtol=1e-8)
        np.testing.assert_allclose(found[1], error * [1e3, 1e3, 1e3, 1e6], rtol=1e-8)
    assert own_estimates(LeastSquares(np.c_[X, X[:, 0]], y)) is None
    assert own_estimates(LeastSquares(np.c_[X, np.zeros(60)], y)) is None
    assert own_estimates(LeastSquares(X, X[:, 0])) is None
    assert own_estimates(Logistic(X, X[:, 0] > 0)) is None
    assert own_estimates(Logistic(X, np.ones(60, dtype=int))) is None


# --- what may leave -------------------------------------------------------------------------------------------------


# --- one site lies --------------------------------------------------------------------------------------------------


def lying(lie, about="reported"):
    """A grid whose third site lies: about its own estimates, or in an answer with another vector."""
    return altering(2, about, lie)


LIES = {
    "an error of 0": lambda vectors, numbers: vectors["error"].fill(0.0),
    "a negative error": lambda vectors, numbers: np.negative(vectors["error"], out=vectors["error"]),
    "one small error": lambda vectors, numbers: vectors["error"].__setitem__(1, 1e-6),
    "NaN": lambda vectors, numbers: vectors["estimate"].fill(np.nan),
    "an error of 1e300": lambda vectors, numbers: vectors["error"].fill(1e300),
    "an estimate of 1e5": lambda vectors, numbers: vectors["estimate"].fill(1e5),
}


@pytest.mark.parametrize("kind", ["lasso", "logistic"])
@pytest.mark.parametrize("name", LIES)
def test_a_lie_about_ones_own_estimates_is_left_out_by_name(kind, name):
    parts, targets = federation(kind)
    honest = model_of(kind).fit(parts, targets, intervals=True)
    model = over(model_of(kind), parts, targets, grid=lying(LIES[name]))
    assert re.search(r"of 3 of 4 sites; .*(site|partition) 2", model.summary())
    for row, before in zip(rows_of(model), rows_of(honest), strict=True):
        assert "site 2" not in row
        assert np.isnan(row["Q"])
        assert row["estimate"] == before["estimate"]
        assert row["standard error"] == before["standard error"]
        assert all(np.isfinite(row[name]) for name in ("fixed", "DerSimonian-Laird", "Hartung-Knapp lower"))


def test_a_possible_lie_stands_under_its_name_and_widens_the_intervals():
    parts, targets = federation("lasso")
    honest = over(model_of("lasso"), parts, targets)
    grid = lying(lambda vectors, numbers: vectors["estimate"].__iadd__(3.0))
    model = over(model_of("lasso"), parts, targets, grid=grid)
    row, before = rows_of(model)[0], rows_of(honest)[0]
    assert row["site 2"] == before["site 2"] + 3.0
    assert row["p of Q"] < 1e-6
    assert row["Hartung-Knapp lower"] < before["lower"]
    assert row["Hartung-Knapp upper"] > before["upper"]


@pytest.mark.parametrize("kind", ["lasso", "logistic"])
@pytest.mark.parametrize(
    ("factor", "message"),
    [
        (10.0, "site 2 says a second derivative of age of .*; with its loss, rows, mean and variance at most"),
        (1e300, "site 2 says a second derivative|no convex loss|overflow"),
    ],
)
def test_standard_errors_that_one_site_makes_up_are_refused_by_its_name(kind, factor, message):
    parts, targets = federation(kind)
    grid = lying(lambda vectors, numbers: vectors["block"].__imul__(factor), "block")
    with pytest.raises(ConfigurationError, match=message):
        over(model_of(kind), parts, targets, grid=grid)


def test_a_gradient_that_no_rows_have_is_refused():
    parts, targets = federation("lasso")
    grid = lying(lambda vectors, numbers: vectors["gradient"].__setitem__(2, 1e6), "block")
    with pytest.raises(ConfigurationError, match=r"site 2 says a slope of sex of 1e\+06; with its loss"):
        over(model_of("lasso"), parts, targets, grid=grid)


@pytest.mark.parametrize("lie", [LIES["NaN"], lambda vectors, numbers: numbers.update(intercepts=1e6)])
@pytest.mark.parametrize("common", [True, False])
def test_a_site_has_one_intercept_whatever_it_says(lie, common):
    """Its rows are in the sums of the table all the same."""
    parts, targets = federation("lasso")
    model = FederatedLasso(0.1, num_clients=4, site_intercepts="common" if common else None)
    over(model, parts, targets, grid=lying(lie))
    assert f"{300 - 3 - (1 if common else 4)} degrees of freedom" in model.summary()


def test_a_site_that_invents_events_has_no_more_of_them_than_rows():
    parts, targets = federation("logistic", rows=10)
    targets = [np.r_[np.ones(1), np.zeros(len(own) - 1)] for own in targets]
    grid = lying(lambda vectors, numbers: numbers.update(events=1e6))
    with pytest.raises(ConfigurationError, match=r"from 33 events"):
        over(model_of("logistic"), parts, targets, grid=grid)


# --- what is refused ------------------------------------------------------------------------------------------------


def refused_fits():
    parts, targets = federation("lasso")
    classes = federation("logistic", rows=1)
    logistic, lasso = model_of("logistic"), model_of("lasso")
    wide = [np.ones((2, 2001))] * 2
    three = [np.arange(len(own)) % 3 for own in targets]
    return {
        r"intervals of 3 columns and 3 intercepts from \d+ events .* at least 5 a column": (logistic, *classes, True),
        "model of 2001 columns; at most 2000": (lasso, wide, [np.arange(2.0)] * 2, True),
        "intervals of 3 classes": (logistic, parts, three, True),
        r"columns=\.\.\.\) has \['weight'\], which are no features; they are x0, x1, x2$": (
            *(lasso, parts, targets),
            Intervals(columns=["weight", "x0"]),
        ),
        "intervals='yes'": (lasso, parts, targets, "yes"),
    }


@pytest.mark.parametrize("message", refused_fits())
def test_what_has_no_intervals_is_refused_in_words(message):
    model, parts, targets, intervals = refused_fits()[message]
    with pytest.raises(ConfigurationError, match=message):
        model.fit(parts, targets, intervals=intervals)


@pytest.mark.parametrize("options", [{"level": 1.0}, {"level": 0.3}, {"columns": []}, {"columns": [1, 1]}])
def test_an_option_out_of_range_is_refused(options):
    with pytest.raises(ConfigurationError, match=f"Intervals.{next(iter(options))}="):
        Intervals(**options)


@pytest.mark.parametrize("kind", ["logistic", "cox"])
def test_events_of_sites_that_do_not_answer_are_not_few_but_unknown(kind):
    parts, targets = federation(kind, rows=90)
    with pytest.raises(ConfigurationError, match=r"numbers of events are not known: .*max_numbers=25") as error:
        over(model_of(kind), parts, targets, disclosure=Disclosure(max_numbers=25))
    assert "too far from 0" not in str(error.value)


def test_a_column_that_tells_the_classes_apart_is_refused():
    parts, targets = federation("logistic")
    parts = [np.c_[X, y] for X, y in zip(parts, targets, strict=True)]
    with pytest.raises(ConfigurationError, match=r"odds ratio of .*x3 grows without end: by these columns classes"):
        model_of("logistic").fit(parts, targets, intervals=True)

"""Survival times and counts: solutions, ways to give them, tables, curves; how good any model is at the sites."""

import re

import numpy as np
import pandas as pd
import pytest
from federations import altering, fit_over_a_grid, grid_of
from numpy.testing import assert_allclose, assert_array_equal
from problems import crossed, refused
from scipy import stats
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.linear_model import PoissonRegressor

from flwr_fco.algorithms.newton.model import unpacked
from flwr_fco.client_apps import Disclosure
from flwr_fco.client_apps.client import find_answer
from flwr_fco.errors import ClientError, ConfigurationError
from flwr_fco.messages.protocol import Question
from flwr_fco.objectives import CoxRegression
from flwr_fco.objectives.survival import baseline, concordance
from flwr_fco.regularizers import L1, ElasticNet, Zero
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import Strengths
from flwr_fco.tables import FederatedCoxRegression, FederatedLogisticRegression, FederatedPoissonRegression
from reproduction.pooled import centralized_solution

NAMES = ["age", "dose", "sex", "noise"]


def site(m, n=90):
    """A site with a baseline of its own, ties, late entries and strata."""
    rng = np.random.default_rng(m)
    X = rng.normal(0.3 * m, 1.0, size=(n, 4))
    ends = np.ceil(10 * (1 + m) * rng.exponential(1.0 / np.exp(X @ [0.8, -0.5, 0.3, 0.0]))) + 1.0
    stops = np.ceil(10 * (1 + m) * rng.exponential(2.0, n)) + 1.0
    times = np.minimum(ends, stops)
    y = pd.DataFrame({"time": times, "event": ends <= stops, "entry": np.maximum(times - rng.integers(1, 40, n), 0.0)})
    return pd.DataFrame(X, columns=NAMES), y.assign(strata=np.array(["a", "b"])[rng.integers(0, 2, n)])


X, TARGETS = ([own[i] for own in map(site, range(4))] for i in range(2))
TIMES = [y.drop(columns="strata") for y in TARGETS]
PLAIN = [y[["time", "event"]].to_numpy(float) for y in TARGETS]
ROWS = np.repeat(np.arange(4), 90)
CLASSES = [(y["time"] > 15).astype(int) for y in TIMES]
ALL = pd.concat(X)


def cox(m, *others, **options):
    """Return the loss of one site, or of some of which each is a stratum."""
    y = pd.concat([TIMES[own] for own in (m, *others)])
    strata = {"strata": np.repeat([m, *others], 90)} if others else {}
    features = pd.concat([X[own] for own in (m, *others)])
    return CoxRegression(features, y["time"], y["event"].astype(int), **{"entry": y["entry"], **strata, **options})


# --- solutions --------------------------------------------------------------------------------------------------------


PENALTIES = [(0.0, 1.0, Zero()), (0.03, 1.0, L1(0.03)), (0.1, 0.5, ElasticNet(0.1, 0.5))]


@pytest.mark.parametrize(("penalty", "ties"), crossed(PENALTIES, ["efron", "breslow"]))
def test_the_solution_is_that_of_pooled_rows_stratified_by_site(penalty, ties):
    """With strata within sites; and with weights, of which a row of weight 0 is none."""
    alpha, l1_ratio, psi = penalty
    model = FederatedCoxRegression(alpha, l1_ratio=l1_ratio, ties=ties)
    strata = [f"{m} {own}" for m, own in zip(ROWS, pd.concat(TARGETS)["strata"], strict=True)]
    best = centralized_solution([cox(0, 1, 2, 3, ties=ties, strata=strata)], psi, tol=1e-12)
    # Without a gap the fit ends by what a step promises: a gradient is small where units are.
    unit = 1.0 if alpha else 1e-8
    assert_allclose(unit * model.fit([unit * own for own in X], TARGETS).coef_, best, atol=1e-8)
    assert not hasattr(model, "intercept_")
    assert_allclose(model.predict(X[0]), X[0].to_numpy() @ model.coef_)
    refused("X is a list of tables; expected one", model.predict, X)
    if l1_ratio == 1.0:
        y, mass = np.vstack(PLAIN), np.arange(360) % 3.0
        kept = mass > 0.0
        options = {"ties": ties, "strata": ROWS[kept], "sample_weight": mass[kept]}
        best = centralized_solution([CoxRegression(ALL[kept], *y[kept].T[:2], **options)], psi, tol=1e-12)
        for unit in (1.0, 1e-3):
            assert_allclose(model.fit(X, PLAIN, np.split(unit * mass, 4)).coef_, best, atol=1e-8)
        scaled = clone(model).set_params(standardize=True).fit(X, PLAIN, np.split(mass, 4)).summary().table()
        assert_allclose(scaled["deviation"] ** 2, np.diag(np.cov(ALL.T, aweights=mass, ddof=0)))


def test_times_and_events_are_taken_in_the_ways_in_which_they_are_at_hand():
    model = FederatedCoxRegression(0.02)
    expected = model.fit(X, PLAIN).coef_.copy()
    structured = [np.array(list(zip(y["event"], y["time"], strict=True)), "?,f8") for y in TARGETS]
    for y in (structured, [y[["event", "time"]] for y in TARGETS], [own.tolist() for own in PLAIN]):
        assert_array_equal(model.fit(X, y).coef_, expected)
    assert_array_equal(model.fit(ALL, np.vstack(PLAIN), groups=ROWS).coef_, expected)
    # One table has one baseline.
    assert_array_equal(model.fit(ALL, np.vstack(PLAIN)).coef_, model.fit([ALL], [np.vstack(PLAIN)]).coef_)
    # Dates of two resolutions.
    both = {"time": "M8[s]", "entry": "M8[s]"}
    dated = [y.astype(dict.fromkeys(both, int)).astype(both).astype({"entry": "M8[ms]"}) for y in TIMES]
    assert_array_equal(model.fit(X, dated).coef_, model.fit(X, TIMES).coef_)
    assert_allclose(model.fit([csr_array(own) for own in X], PLAIN).coef_, expected, atol=1e-10)


def test_a_fit_over_a_grid_has_the_bits_of_a_fit_on_a_list():
    model = FederatedCoxRegression(0.02, cv=Strengths(num=3, folds=2), standardize=True, penalty_factor={"sex": 0})
    there, _ = fit_over_a_grid(clone(model), list(zip(X, TARGETS, strict=True)))
    here = model.fit(X, TARGETS)
    assert_array_equal([*there.coef_, there.strength_], [*here.coef_, here.strength_])
    assert there.coef_[2] != 0.0
    assert there.feature_names_in_.tolist() == NAMES


# --- a table ----------------------------------------------------------------------------------------------------------


def test_estimates_are_those_of_the_stratified_partial_likelihood():
    model = FederatedCoxRegression(0.1).fit(X, PLAIN, intervals=True)
    rows = model.summary().rows
    for objective, name in ((cox(0, 1, 2, 3, entry=None), "standard"), (cox(2, entry=None), "site 2")):
        best = centralized_solution([objective], Zero(), tol=1e-12)
        covariance = np.linalg.inv(objective.num_examples * unpacked(objective.hessian_block(best, np.arange(4))))
        assert_allclose([row[name if name == "site 2" else "estimate"] for row in rows], best, rtol=1e-5)
        assert_allclose([row[f"{name} error"] for row in rows], np.sqrt(np.diag(covariance)), rtol=1e-5)
    for row in rows:
        for name, of in (("", "estimate"), (" lower", "lower"), (" upper", "upper")):
            assert row[f"hazard ratio{name}"] == pytest.approx(np.exp(row[of]))
        assert "odds ratio" not in row
    assert "hazard ratio" in model.summary()


def test_events_are_counted_and_not_the_rarer_of_events_and_censored_rows():
    rng = np.random.default_rng(0)

    def with_events(*counts):
        rows = [rng.normal(size=(80, 2)) for _ in counts]
        y = [np.c_[rng.exponential(size=80), np.arange(80) < count] for count in counts]
        return FederatedCoxRegression().fit(rows, y, intervals=True).summary()

    assert "estimate" in with_events(75, 75).rows[0]
    with pytest.warns(UserWarning, match=r"intervals of 2 columns from 19 events: 9\.5 a column"):
        with_events(9, 10)
    refused(r"intervals of 2 columns from 9 events; expected at least 5 a col", with_events, 4, 5)
    summary = with_events(40, 10, 9, 0)
    assert summary.rows[0]["sites"] == 2
    assert "of 2 of 4 sites; none of site 2, site 3: fewer than 5 events a column" in summary


def test_the_test_of_proportional_hazards_is_that_of_lifelines():
    lifelines = pytest.importorskip("lifelines")
    frame = X[0].assign(time=TIMES[0]["time"] + 0.01 * np.random.default_rng(0).random(90), event=TIMES[0]["event"])
    fitter = lifelines.CoxPHFitter().fit(frame, "time", "event")
    other = lifelines.statistics.proportional_hazard_test(fitter, frame, "rank").summary["p"]
    model = FederatedCoxRegression().fit(X[0], frame[["time", "event"]], intervals=True)
    for row in model.summary().rows:
        assert row["p of trend"] == pytest.approx(other[row["feature"]], rel=1e-3)


def test_where_a_site_is_silent_proportional_hazards_are_not_tested():
    grid = altering(1, "squares", lambda vectors, numbers: numbers.update(squares=1e6))
    sites = list(zip(X, TIMES, strict=True))
    model, _ = fit_over_a_grid(FederatedCoxRegression(num_clients=4), sites, grid=grid, intervals=True)
    assert all(np.isnan(row["p of trend"]) for row in model.summary().rows)
    assert "Proportional hazards: not tested: a site has not answered" in model.summary()
    for name, factor, why in (("block", 20.0, "the information about .* site 1"), ("gradient", 1e6, "says a slope")):
        lying = altering(1, "block", lambda own, _, name=name, factor=factor: own[name].__imul__(factor))
        refused(why, fit_over_a_grid, FederatedCoxRegression(num_clients=4), sites, grid=lying, intervals=True)


# --- targets that are none --------------------------------------------------------------------------------------------

FIRST = TARGETS[0]
DATES = pd.DataFrame({"time": pd.Timestamp(2026, 1, 1) + pd.to_timedelta(1 + np.arange(90), "D"), "event": ROWS[:90]})
DATES["entry"] = pd.Timestamp(2026, 1, 1)


def test_targets_of_another_form_are_refused_in_words():
    for y, message in (
        (np.arange(90.0), r"y has 1 columns without names; expected two columns, the time and 1 for an event"),
        (FIRST.assign(more=1.0), r"y has the fields \['time', 'event', 'entry', 'strata', 'more'\]"),
        (FIRST[["time", "event"]].replace({"event": {True: "yes", False: "no"}}), "that are no numbers"),
        (PLAIN[0][:, ::-1], r"events hold .*; expected 1 for an event and 0 for a censored row"),
        (FIRST.assign(strata=[*[1, "1", "a"] * 30]), "strata holds texts and numbers"),
        (np.ma.array(FIRST.drop(columns="strata").to_records(False), mask=np.eye(90)[3]), "entries that are masked"),
        (FIRST.assign(strata=None), r"site 0: .* y\['strata'\] in 90 of 90 rows"),
        ([*PLAIN[0].tolist()[1:], [1.0]], "y has rows of unequal length"),
        (FIRST.assign(entry=FIRST["time"]), r"entry\[0\] is not before times\[0\]"),
        (PLAIN[0] * [1, 0], "no client has an event while somebody else of its stratum is at risk"),
        (DATES.drop(columns="entry"), "y has dates, and no 'entry'"),
        (DATES.assign(entry=0.0), "y has dates, and no 'entry'"),
        (DATES.assign(time=20000.0), "y has dates, and no 'entry' or time of dates"),
        # A date that is missing is not the earliest one.
        (DATES.assign(time=DATES["time"].mask(np.arange(90) < 5)), r"site 0: .*y\['time'\] in 5 of 90 rows"),
        (DATES.assign(entry=DATES["entry"].mask(np.arange(90) < 5)), r"site 0: .*y\['entry'\] in 5 of 90 rows"),
    ):
        refused(message, FederatedCoxRegression().fit, X[:1], [y])
    dated = DATES.assign(event=FIRST["event"].to_numpy())
    python = dated.assign(time=DATES["time"].dt.date, entry=DATES["entry"].dt.date)
    assert_array_equal(*(FederatedCoxRegression().fit(X[:1], [y]).coef_ for y in (dated, python)))
    for weights in (None, [np.arange(1.0, 91.0)]):
        alone = [FIRST.assign(strata=range(90))]
        refused("no client has an event while somebody else", FederatedCoxRegression().fit, X[:1], alone, weights)


# --- curves -----------------------------------------------------------------------------------------------------------

TABLES = [own.assign(sex=(own["sex"] > 0.0).astype(float)) for own in X]


def test_curves_over_a_grid_are_those_here_and_between_times_a_life_table():
    model, times = FederatedCoxRegression(0.1).fit(TABLES, TARGETS), [5.0, 20.0, 80.0]
    # Spans are days, as numbers beside them.
    first = TARGETS[0].assign(time=pd.to_timedelta(TARGETS[0]["time"], "D"))
    here = model.curves(TABLES, [first, *TARGETS[1:]], times=[pd.Timedelta(own, "D") for own in times], by="sex")
    with grid_of(model, list(zip(TABLES, TARGETS, strict=True))) as grid:
        there = model.curves(grid, times=times, by="sex")
    assert (f"{there}", there.rows) == (f"{here}", here.rows)
    y = pd.concat(TARGETS)[pd.concat(TABLES)["sex"].to_numpy() == 1.0]
    row = here.rows[4]
    assert (row["group"], row["events"]) == ("sex=1", (y["event"] & (y["time"] > 5.0) & (y["time"] <= 20.0)).sum())
    half = 0.5 * ((y["time"] < 20.0) & ~y["event"]) + 0.5 * ((y["entry"] > 5.0) & ~(y["event"] & (y["time"] <= 20.0)))
    assert row["at risk"] == ((y["time"] > 5.0) & (y["entry"] < 20.0)) @ (1.0 - half)
    assert row["survival"] == pytest.approx(here.rows[3]["survival"] * (1.0 - row["events"] / row["at risk"]))
    assert row["lower"] == pytest.approx(row["survival"] * np.exp(-1.959964 * row["standard error"] / row["survival"]))
    nobody = model.curves([own.assign(sex=0.0) for own in TABLES], TARGETS, times=times, by="sex").rows[4]
    assert np.isnan([nobody[name] for name in ("survival", "lower", "upper")]).all()


def test_curves_that_cannot_be_or_that_a_site_keeps_are_refused():
    model = FederatedCoxRegression(0.1).fit(TABLES, TARGETS)
    with grid_of(model, list(zip(TABLES, TARGETS, strict=True)), disclosure=Disclosure(min_rows=10)) as grid:
        why = "not known: site 0 keeps its sums.* no others in the same run"
        refused(why, model.curves, grid, times=range(100), by="sex")
        assert model.curves(grid, times=[1e9]).rows[0]["events"] == sum(y["event"].sum() for y in TARGETS)
        refused(why, model.curves, grid, times=[9.0])
    lying = altering(2, "test", lambda vectors, numbers: vectors["test"].__imul__(1e9))
    with grid_of(model, list(zip(TABLES, TARGETS, strict=True)), grid=lying) as grid:
        refused("site 2: it says .* in its test", model.curves, grid, times=[5.0], by="sex")
    # Up to 3, 22 rows have ended, and 13 enter then or later.
    _, parts = find_answer("curves").division(Question("curves", cox(0).layout, {}, {"edge-0": 3.0}), cox(0))
    assert min(part.size for part in parts) == 13
    for given, message in (
        ({"times": []}, r"times=\[\]; expected numbers"),
        ({"times": ["a", pd.NaT]}, r"times=\['a', NaT\]; expected numbers"),
        ({"times": [pd.Timestamp(2026, 1, 1)]}, r"times=\[Timestamp.*; expected numbers"),
        ({"times": [1.0], "by": "no"}, "by='no' is no feature; expected one of age"),
        ({"times": [1.0], "by": "age"}, "other entries than 0 and 1 at this site"),
    ):
        refused(message, model.curves, TABLES, TARGETS, kind=(ConfigurationError, ClientError), **given)


def test_survival_probabilities_are_those_of_the_sites_own_stratum():
    model, y = FederatedCoxRegression(ties="breslow"), [TIMES[0][["time", "event"]]]
    predict = model.fit(X[:1], y).predict_survival_function
    times, first = np.array([2.0, 5.0, 20.0]), (X[0], TIMES[0])
    assert_allclose(predict(X[2], 1e6, first), np.full((len(X[2]), 1), np.nan))
    both = pd.concat(X[:2]), pd.concat(TIMES[:2]).assign(strata=np.repeat(["old", "new"], 90))
    assert_allclose(predict(X[2], times, both, strata=["old"] * 90), predict(X[2], times, first), rtol=1e-12)
    # A weight of 2 is a row twice.
    own, copies = (*first, 1.0 + (np.arange(90) < 9)), [pd.concat([each, each[:9]]) for each in first]
    assert_allclose(predict(X[2], times, copies), predict(X[2], times, own), rtol=1e-12)
    for wrong in (None, ["older"] * 90, ["old"]):
        refused(r"strata=.* one of the site's, which are \['new', 'old'\]", predict, X[2], times, both, strata=wrong)
    for wrong, message in (((X[0], TIMES[0].assign(event=False)), "has no event"), (X[0], "own is a DataFrame")):
        refused(message, predict, X[2], times, wrong)
    weighted = clone(model).fit(X[:1], y, [own[2]])
    refused("own is a tuple; .*sample_weight", weighted.predict_survival_function, X[2], times, first)


@pytest.mark.parametrize(("ties", "first"), [("breslow", 2 / 4), ("efron", 1 / 4 + 1 / 3)])
def test_a_baseline_without_effects_divides_events_by_who_is_at_risk(ties, first):
    objective = CoxRegression(np.zeros((4, 1)), [1.0, 1.0, 2.0, 3.0], [1, 1, 0, 1], ties=ties)
    assert baseline(objective, np.zeros(1), [0, 1, 2.9, 3])[0] == pytest.approx([0.0, first, first, first + 1.0])


# --- quality ----------------------------------------------------------------------------------------------------------

KINDS = {
    "Cox": (FederatedCoxRegression(0.05, num_clients=4), TIMES),
    "logistic": (FederatedLogisticRegression(0.1, l1_ratio=1.0, num_clients=4), CLASSES),
}


@pytest.fixture(params=KINDS)
def fitted(request):
    model, y = KINDS[request.param]
    return clone(model).fit(X, y), y


def over(model, y, **options):
    """Judge a model over a grid."""
    with grid_of(model, list(zip(X, y, strict=True)), **options) as grid:
        return model.quality(grid)


def scores_of(model, y):
    return [model.predict(own) if y is TIMES else model.decision_function(own) for own in X]


def pairs_by_hand(scores, y):
    """Harrell's pairs, one by one."""
    ordered = compared = 0.0
    times, events, entry = (y[name].to_numpy() for name in ("time", "event", "entry"))
    for i in np.flatnonzero(events):
        later = (entry < times[i]) & ((times > times[i]) | ((times == times[i]) & ~events))
        compared += later.sum()
        ordered += (scores[i] > scores[later]).sum() + 0.5 * (scores[i] == scores[later]).sum()
    return ordered, compared


def test_pairs_are_those_counted_one_by_one_within_sites(fitted):
    """With ties of scores and of times, and late entries."""
    model, y = fitted
    quality = model.quality(X, y)
    counts = []
    for scores, own in zip(scores_of(model, y), y, strict=True):
        if y is TIMES:
            counts.append(pairs_by_hand(scores, own))
            rounded = CoxRegression(scores.round(0)[:, None], own["time"], own["event"].astype(int), entry=own["entry"])
            # Scores of 2 and more are infinite.
            assert concordance(rounded, np.full(1, 1.7e308)) == pairs_by_hand(1.7e308 * scores.round(0), own)
        else:
            test = stats.mannwhitneyu(scores[own == 1], scores[own == 0])
            counts.append((test.statistic, (own == 1).sum() * (own == 0).sum()))
    ordered, pairs = np.sum(counts, axis=0)
    assert quality.overall["pairs"] == pairs
    assert quality.overall["concordance"] == pytest.approx(ordered / pairs, rel=1e-12)
    for m, (row, own, (inside, among)) in enumerate(zip(quality.rows, y, counts, strict=True)):
        assert row["concordance"] == pytest.approx(inside / among, rel=1e-12)
        assert (row["site"], row["events"]) == (f"site {m}", (own["event"] if y is TIMES else own).sum())
    # Over a grid, and of one table.
    there = over(model, y)
    assert str(quality) == str(there) == str(model.quality(pd.concat(X), pd.concat(y), ROWS))
    assert there.table()["rows"].tolist() == [90] * 4


def test_the_calibration_and_bins_are_those_of_a_model_of_the_scores(fitted):
    """A fit on the score as the only column, with a stratum for each site; folds are of the fit's rows."""
    model, y = fitted
    quality = model.set_params(cluster="site", cv=[(range(9), range(9))]).quality(X, y)
    assert "Clusters: none: errors are those of independent rows\n" in quality
    scores, bins, overall = scores_of(model, y), quality.bins, quality.overall
    columns = [pd.DataFrame({"score": own}) for own in scores]
    inside = np.concatenate(scores) <= bins[0]["up to"]
    if y is TIMES:
        other = FederatedCoxRegression().fit(columns, y, intervals=True)
    else:
        other = FederatedLogisticRegression(1e10, site_intercepts="common").fit(columns, y, intervals=True)
        assert overall["intercept"] == pytest.approx(other.intercept_[0], abs=1e-6)
        probabilities, classes = 1 / (1 + np.exp(-np.concatenate(scores))), np.concatenate(y)
        assert overall["Brier"] == pytest.approx(np.square(probabilities - classes).mean(), rel=1e-12)
        assert bins[0]["expected"] == pytest.approx(probabilities[inside].sum())
        assert bins[0]["observed"] == pytest.approx(classes[inside].sum())
    (row,) = other.summary().rows
    assert overall["slope"] == pytest.approx(row["estimate"], abs=1e-6)
    assert overall["slope error"] == pytest.approx(row["standard error"], rel=1e-5)
    # A lasso's scores are too close together.
    assert overall["slope"] > 1.0
    events = sum(row["events"] for row in quality.rows)
    assert (len(bins), sum(own["rows"] for own in bins)) == (8, pytest.approx(360))
    assert sum(own["observed"] for own in bins) == pytest.approx(events)
    # Of a fitted intercept, or of a baseline at each site.
    assert sum(own["expected"] for own in bins) == pytest.approx(events, rel=1e-6)
    assert bins[0]["rows"] == pytest.approx(inside.sum())


def test_a_model_without_a_coefficient_has_no_slope_and_no_bins():
    quality = FederatedCoxRegression(100.0).fit(X, TIMES).quality(X, TIMES)
    assert np.isnan(quality.overall["slope"])
    assert quality.bins == []
    assert "the rows determine no slope" in quality


def test_each_site_is_judged_by_a_fit_without_it(fitted):
    """As named by a place of a list, a key of a dict, an entry of groups, and a partition of a grid."""
    model, y = fitted
    names = ["d", "c", "b", "a"]
    tables, targets = (dict(zip(names, own, strict=True)) for own in (X, y))
    alone = clone(model).fit([X[own] for own in (0, 1, 3)], [y[own] for own in (0, 1, 3)])
    judged = alone.quality(X[2], y[2])
    for label, other in (
        ("site 2", clone(model).fit(X, y, without=2)),
        ("site b", clone(model).fit(pd.concat(X), pd.concat(y), groups=np.repeat(names, 90), without="b")),
        ("site b", clone(model).fit(tables, targets, without="b")),
    ):
        assert_allclose(other.coef_, alone.coef_, atol=1e-12)
        assert re.search(rf"Data: 270 rows, of 3 sites, without {label}\n", other.summary())
    assert other.quality({"b": X[2]}, {"b": y[2]}).overall == judged.overall
    with grid_of(model, list(zip(X, y, strict=True))) as grid:
        there = clone(model).fit(grid, features=NAMES, without=2)
        assert_allclose(there.coef_, alone.coef_, atol=1e-9)
        assert there.quality(grid).rows[2]["concordance"] == judged.overall["concordance"]
    assert (there.without_, "without" in model.fit(X, y).summary()) == (2, False)
    for given, wrong, message in (
        ((X, y), 4, r"without=4 is none of the sites: 0, 1, 2, 3$"),
        ((tables, targets), "e", r"without='e' is none of the sites: 'd', 'c', 'b', 'a'$"),
        ((X[:1], y[:1]), 0, "without=0: there is no other site, so nothing is left to fit to"),
    ):
        refused(message, model.fit, *given, without=wrong)
    for names in ([], [None, "b"]):
        refused("X is a dict without sites", model.fit, *(dict(zip(names, own, strict=False)) for own in (X, y)))
    for wrong in (dict(zip("dcbe", y, strict=True)), dict(zip("dcb", y[:3], strict=True)), y):
        refused(r"X is a dict of the sites .*, and beside it is", model.fit, tables, wrong)


def test_bins_with_few_rows_are_merged_or_stay():
    model, y = clone(KINDS["logistic"][0]).fit(X, CLASSES), CLASSES
    for least, count in ((None, 8), (8, 4), (20, 2), (44, 0)):
        quality = over(model, y, disclosure=Disclosure(min_rows=least))
        assert len(quality.bins) == count, least
        assert ("withheld" in quality) == (count == 0)
        assert not count or sum(own["rows"] for own in quality.bins) == pytest.approx(360)
    refused("no site says how good the model is: .*min_rows=91", over, model, y, disclosure=Disclosure(min_rows=91))
    # Of another model in the same run differences of both could be single rows.
    with grid_of(model, list(zip(X, y, strict=True)), disclosure=Disclosure(min_rows=3)) as grid:
        first, again = model.quality(grid), model.quality(grid)
        model.coef_ = model.coef_ * 1.001
        other = model.quality(grid)
    assert str(first) == str(again)
    assert (len(first.bins) > len(other.bins) == 0, "others than before" in other) == (True, True)


def test_sums_over_strata_and_clusters_are_no_single_row():
    """Of one with a single row this would follow from variances within strata, means and variances."""
    own = cox(0, strata=np.arange(90) == 7)
    said = find_answer("first").answer(Question("first", own.layout, {"primal": np.zeros(4)}, {}), own).vectors
    assert_allclose(said["within"], said["variances"], rtol=1e-12)
    # Nor do the sum of two clusters' gradients and that of their squares.
    own.clusters, own.disclosure = own.link.of_row.strata, Disclosure(min_rows=20)
    asked = Question("derivatives", own.layout, {"primal": np.zeros(4)}, {"own": 0.0, "clustered": 1.0})
    refused("sums over two clusters; .* min_rows=20", find_answer("derivatives").answer, asked, own)


ASKED = [("bins", {"merged": merged, "edge-0": 0.0}, "to merge .* expected 1, 2, 4") for merged in (0.0, -1.0, 3.0)]
ASKED += [("curves", {"by": column}, "survival by column .* of 4, from 0") for column in (-1.0, 0.5, 4.0, 1e18)]


@pytest.mark.parametrize(("kind", "numbers", "said"), ASKED)
def test_bins_are_nested_however_they_are_merged_and_groups_are_a_columns(kind, numbers, said):
    question = Question(kind, cox(0).layout, {"primal": np.ones(4)}, numbers)
    refused(f"the server asks (for )?{said}", find_answer(kind).answer, question, cox(0))


def test_a_site_that_says_what_no_rows_can_say_is_left_out_by_name():
    model = clone(KINDS["Cox"][0]).fit(X, TIMES)
    honest = model.quality([*X[:2], X[3]], [*TIMES[:2], TIMES[3]])
    for lie, why in (
        ({"ordered": 1e9, "compared": 2e9}, "2e+09 pairs"),
        ({"ordered": -5.0}, "-5 of"),
        ({"compared": 0.0}, "of 0 pairs"),
        ({"events": 91.0}, "91 events of 90 rows"),
        ({"brier": 3.0}, "Brier's score is 3"),
        ({"square": -1.0}, "mean square -1"),
        ({"mean": 1e300}, "mean square"),
    ):
        quality = over(model, TIMES, grid=altering(2, "brier", lambda vectors, numbers, lie=lie: numbers.update(lie)))
        assert re.search(r"Left out: (site 2: .*)" + re.escape(why), quality)
        assert quality.overall["concordance"] == honest.overall["concordance"]
        assert quality.overall["slope"] == pytest.approx(honest.overall["slope"])
    for name, factor in (("rows", 2.0), ("observed", -1.0), ("hessian", -1.0), ("hessian", 1e6)):
        lying = altering(2, name, lambda own, _, name=name, factor=factor: own[name].__imul__(factor))
        if name == "hessian":
            refused("ask again. The others: site 2: its (Hessian|calib)", over, model, TIMES, grid=lying)
        else:
            assert over(model, TIMES, grid=lying).bins == []
    more = altering(2, "expected", lambda _, numbers: numbers.update({"num-examples": 10**6}))
    assert over(model, TIMES, grid=more).bins == []


# --- counts -----------------------------------------------------------------------------------------------------------

RNG = np.random.default_rng(0)
PEOPLE = pd.DataFrame(RNG.normal(size=(300, 3)), columns=["age", "dose", "noise"])
YEARS = RNG.uniform(0.5, 3.0, 300)
COUNTS = RNG.poisson(YEARS * np.exp(0.5 * PEOPLE["age"] - 0.3 * PEOPLE["dose"] - 0.5))
SITES = np.arange(300) % 3
BOTH = np.column_stack([COUNTS, YEARS])
FRAME = pd.DataFrame({"visits": COUNTS, "exposure": YEARS})


def counted(alpha, y, **options):
    return FederatedPoissonRegression(alpha, **options).fit(PEOPLE, y, groups=SITES, intervals=alpha == 0.0)


def over_a_grid(y, *, grid=InProcessGrid, features=PEOPLE, **options):
    """Fit with intervals, where a site's answers are altered or not."""
    sites = [(features[m::3], y[m::3]) for m in range(3)]
    model = FederatedPoissonRegression(0.0, num_clients=3, **options)
    return fit_over_a_grid(model, sites, intervals=True, grid=grid)[0]


def test_a_fit_is_that_of_rates_weighted_by_their_exposures():
    model = counted(0.1, BOTH, l1_ratio=0.0)
    rates = {"sample_weight": YEARS}
    theirs = PoissonRegressor(alpha=0.1 / YEARS.mean(), tol=1e-12, max_iter=1000).fit(PEOPLE, COUNTS / YEARS, **rates)
    assert_allclose(model.coef_, theirs.coef_, atol=1e-7)
    assert_allclose(model.predict(PEOPLE), theirs.predict(PEOPLE), rtol=1e-6)
    assert model.score(PEOPLE, BOTH) == pytest.approx(theirs.score(PEOPLE, COUNTS / YEARS, **rates), rel=1e-6)
    sparse = counted(0.1, BOTH, l1_ratio=1.0)
    assert sparse.coef_[2] == 0.0
    assert 0.0 <= max(model.duality_gap_, sparse.duality_gap_) < 1e-8
    assert_allclose(counted(0.0, BOTH * [1.0, 1e9]).coef_, counted(0.0, BOTH).coef_, rtol=1e-6)
    # Targets are given as they are at hand; spans are days.
    for y in (FRAME, FRAME.iloc[:, ::-1], FRAME.assign(exposure=pd.to_timedelta(YEARS, "D").astype(object))):
        assert_allclose(counted(0.1, y, l1_ratio=0.0).coef_, model.coef_, rtol=1e-9)
    theirs = PoissonRegressor(alpha=0.1, tol=1e-12, max_iter=1000).fit(PEOPLE, COUNTS)
    assert_allclose(counted(0.1, COUNTS).coef_, theirs.coef_, atol=1e-7)


def test_what_is_no_count_is_refused():
    for y, message in (
        (np.column_stack([COUNTS, YEARS, YEARS]), "expected counts, or counts and exposures > 0"),
        (np.column_stack([COUNTS, 0.0 * YEARS]), "y has an exposure of 0; expected numbers > 0"),
        (0 * COUNTS, "all counts are 0"),
        (FRAME.rename(columns={"exposure": "offset"}), r"y has the fields .*'offset'.*in a frame, 'exposure'"),
        (np.where(np.arange(300) == 4, -1, COUNTS), r"1: counts\[1\] is -1; expected numbers >= 0"),
        (np.array(["a"] * 300), "expected numbers: counts"),
        (FRAME.assign(exposure=pd.Timestamp(2026, 1, 1)), "expected numbers: counts"),
    ):
        refused(message, counted, 1.0, y)
    refused("^without fold 1 of 2: all counts are 0", counted, 1.0, np.eye(300)[0], cv=2)


def test_sites_without_an_event_add_nothing_beside_their_own_intercepts():
    model = counted(0.0, np.where(SITES == 2, 0, COUNTS))
    rows = SITES < 2
    fewer = FederatedPoissonRegression(0.0).fit(PEOPLE[rows], COUNTS[rows], groups=SITES[rows], intervals=True)
    assert_allclose(*([row["estimate"] for row in own.summary().rows] for own in (model, fewer)), rtol=1e-8)
    assert re.search("add nothing: site 2: one class(.|\n)*Rows with events: .* 100 rows at site 1\n", model.summary())


def test_the_log_likelihood_is_that_of_the_counts():
    model = counted(0.0, BOTH, site_intercepts="common", tol=1e-16)
    likelihood = stats.poisson(YEARS * model.predict(PEOPLE)).logpmf(COUNTS).sum()
    assert model.log_likelihood_ == pytest.approx(likelihood, rel=1e-9)


@pytest.mark.parametrize("intercepts", [None, "common"])
def test_a_sites_loss_and_rows_bound_second_derivatives_of_counts(intercepts):
    """A wild honest column goes, and what a site makes up is named with its column."""
    wild = PEOPLE.assign(dose=np.where(np.arange(300) == 3, 1e3, PEOPLE["dose"]))
    given = {"features": wild, "site_intercepts": intercepts}
    scaled = altering(1, "block", lambda vectors, numbers: vectors["block"].__imul__(1e3))
    refused("site 1 says a second derivative of age", over_a_grid, COUNTS, grid=scaled, **given)
    assert np.isfinite(over_a_grid(COUNTS, **given).log_likelihood_)


@pytest.mark.parametrize("lie", [{"saturated": 1e6}, {"saturated": -1e300}, {"mean": -1.0}, {}])
def test_a_log_likelihood_that_no_counts_have_or_nobody_says_is_none(lie):
    """The last site is silent about itself, and has nothing of a column."""
    told = altering(0, "saturated", lambda own, said: said.update(lie) if lie else own["estimate"].fill(np.nan))
    model = over_a_grid(BOTH, grid=told, features=PEOPLE.assign(noise=PEOPLE["noise"] * (SITES > 0)))
    assert np.isfinite(np.diag(model.covariance_)).all()
    assert np.isnan(model.log_likelihood_)
    assert not lie or "its mean count is" in model.summary()

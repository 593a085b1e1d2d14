"""How good a model is at the sites: order, calibration, bins, proportional hazards, and what leaves for them."""

import re

import numpy as np
import pandas as pd
import pytest
from federations import altering, fit_over_a_grid, grid_of
from scipy import stats
from sklearn.base import clone

from flwr_fco.client_apps import Disclosure
from flwr_fco.client_apps.answers import find_answer
from flwr_fco.errors import ConfigurationError
from flwr_fco.messages.protocol import Question
from flwr_fco.objectives import CoxRegression
from flwr_fco.objectives.survival import baseline, concordance, expected_events
from flwr_fco.tables import FederatedCoxRegression, FederatedLasso, FederatedLogisticRegression


def site(m, n=90):
    rng = np.random.default_rng(m)
    X = rng.normal(0.3 * m, 1.0, size=(n, 3))
    ends = np.ceil(10 * (1 + m) * rng.exponential(1.0 / np.exp(X @ [0.8, -0.5, 0.0]))) + 1.0
    stops = np.ceil(10 * (1 + m) * rng.exponential(2.0, n)) + 1.0
    times = np.minimum(ends, stops)
    y = pd.DataFrame({"time": times, "event": ends <= stops, "entry": np.maximum(times - rng.integers(1, 40, n), 0.0)})
    return pd.DataFrame(X, columns=["a", "b", "c"]), y


SITES = [site(m) for m in range(4)]
X, TIMES = ([own[i] for own in SITES] for i in range(2))
CLASSES = [(y["time"] > 15).astype(int) for y in TIMES]
KINDS = {
    "Cox": (FederatedCoxRegression(0.05), TIMES),
    "logistic": (FederatedLogisticRegression(0.1, l1_ratio=1.0), CLASSES),
}


@pytest.fixture(params=KINDS)
def fitted(request):
    model, y = KINDS[request.param]
    return model.fit(X, y), y


def sites_with(y):
    return list(zip(X, y, strict=True))


def over(model, y, **options):
    """Judge a model over a grid."""
    with grid_of(model, sites_with(y), **options) as grid:
        return model.quality(grid)


def objective_of(m, entry=True):
    own = {"entry": TIMES[m]["entry"]} if entry else {}
    return CoxRegression(X[m], TIMES[m]["time"], TIMES[m]["event"].astype(int), **own)


# --- order ----------------------------------------------------------------------------------------------------------


def pairs_by_hand(scores, y):
    """Harrell's pairs, one by one."""
    ordered = compared = 0.0
    times, events, entry = (y[name].to_numpy() for name in ("time", "event", "entry"))
    for i in np.flatnonzero(events):
        later = (entry < times[i]) & ((times > times[i]) | ((times == times[i]) & ~events))
        compared += later.sum()
        ordered += (scores[i] > scores[later]).sum() + 0.5 * (scores[i] == scores[later]).sum()
    return ordered, compared


@pytest.mark.parametrize("digits", [0, 8])
def test_pairs_are_those_counted_one_by_one(digits):
    """With ties of scores and of times, and late entries."""
    w = np.array([1.0, -0.5, 0.2])
    for m, (features, y) in enumerate(SITES):
        rounded = features.round(digits)
        own = CoxRegression(rounded, y["time"], y["event"].astype(int), entry=y["entry"])
        assert concordance(own, w) == pairs_by_hand(own.scores(w), y), m


def test_pairs_are_within_sites_and_strata(fitted):
    model, y = fitted
    quality = model.quality(X, y)
    if y is TIMES:
        counts = [pairs_by_hand(model.predict(own), times) for own, times in zip(X, y, strict=True)]
    else:
        scores = [model.decision_function(own) for own in X]
        tests = [stats.mannwhitneyu(s[c == 1], s[c == 0]) for s, c in zip(scores, y, strict=True)]
        counts = [(test.statistic, (c == 1).sum() * (c == 0).sum()) for test, c in zip(tests, y, strict=True)]
    ordered, pairs = np.sum(counts, axis=0)
    assert quality.overall["pairs"] == pairs
    assert quality.overall["concordance"] == pytest.approx(ordered / pairs, rel=1e-12)
    for row, (own, among) in zip(quality.rows, counts, strict=True):
        assert row["concordance"] == pytest.approx(own / among, rel=1e-12)
    assert [row["site"] for row in quality.rows] == ["site 0", "site 1", "site 2", "site 3"]
    events = [own["event"] if y is TIMES else own for own in y]
    assert [row["events"] for row in quality.rows] == [own.sum() for own in events]


# --- calibration ----------------------------------------------------------------------------------------------------


def test_the_calibration_is_the_model_of_the_scores(fitted):
    """A fit on the score as the only column, with a stratum for each site."""
    model, y = fitted
    overall = model.quality(X, y).overall
    if y is TIMES:
        scores = [pd.DataFrame({"score": model.predict(own)}) for own in X]
        other = FederatedCoxRegression().fit(scores, y, intervals=True)
    else:
        scores = [pd.DataFrame({"score": model.decision_function(own)}) for own in X]
        other = FederatedLogisticRegression(1e10, site_intercepts="common").fit(scores, y, intervals=True)
        assert overall["intercept"] == pytest.approx(other.intercept_[0], abs=1e-6)
        error = np.square(np.concatenate([model.predict_proba(own)[:, 1] for own in X]) - np.concatenate(y)).mean()
        assert overall["Brier"] == pytest.approx(error, rel=1e-12)
    (row,) = other.summary().rows
    assert overall["slope"] == pytest.approx(row["estimate"], abs=1e-6)
    assert overall["slope error"] == pytest.approx(row["standard error"], rel=1e-5)
    # A lasso's scores are too close together.
    assert overall["slope"] > 1.0


def test_events_are_expected_where_the_scores_are_and_add_up(fitted):
    model, y = fitted
    quality = model.quality(X, y)
    events, rows = (sum(row[name] for row in quality.rows) for name in ("events", "rows"))
    assert len(quality.bins) == 8
    assert sum(own["rows"] for own in quality.bins) == pytest.approx(rows)
    assert sum(own["observed"] for own in quality.bins) == pytest.approx(events)
    # Of a fitted intercept, or of a baseline at each site.
    assert sum(own["expected"] for own in quality.bins) == pytest.approx(events, rel=1e-6)
    scores = np.concatenate([model.predict(own) if y is TIMES else model.decision_function(own) for own in X])
    inside = scores <= quality.bins[0]["up to"]
    assert quality.bins[0]["rows"] == pytest.approx(inside.sum())
    if y is not TIMES:
        probabilities = np.concatenate([model.predict_proba(own)[:, 1] for own in X])
        assert quality.bins[0]["expected"] == pytest.approx(probabilities[inside].sum())
        assert quality.bins[0]["observed"] == pytest.approx(np.concatenate(y)[inside].sum())


def test_a_model_without_a_coefficient_has_no_slope_and_no_bins():
    quality = FederatedCoxRegression(100.0).fit(X, TIMES).quality(X, TIMES)
    assert np.isnan(quality.overall["slope"])
    assert quality.overall["concordance"] == 0.5
    assert quality.bins == []
    assert "the rows determine no slope" in quality


def test_the_same_over_a_grid_and_of_one_table(fitted):
    model, y = fitted
    listed = model.quality(X, y)
    there = over(model, y)
    grouped = model.quality(pd.concat(X), pd.concat(y), np.repeat(np.arange(4), 90))
    assert str(listed) == str(there) == str(grouped)
    assert there.table()["rows"].tolist() == [90] * 4


@pytest.mark.parametrize("grid", [True, False])
def test_weights_of_the_fit_change_no_number_and_are_said_to_be_left_out(grid):
    """Here, and over a grid."""
    weights = [np.where(own == 1, 2.0, 0.7) for own in CLASSES]
    model = FederatedLogisticRegression(num_clients=4).fit(X, CLASSES, weights)
    found = over(model, CLASSES) if grid else model.quality(X, CLASSES)
    scores = [own.to_numpy() @ model.coef_[0] + model.intercept_[0] for own in X]
    off = np.concatenate([1 / (1 + np.exp(-own)) for own in scores]) - np.concatenate(CLASSES)
    assert found.overall["Brier"] == pytest.approx(np.square(off).mean())
    table = np.concatenate(CLASSES).mean()
    assert sum(own["observed"] for own in found.bins) == pytest.approx(360 * table)
    assert "Weights: none: every row counts once, unlike in the fit" in found
    plain = FederatedLogisticRegression().fit(X, CLASSES)
    assert "Weights" not in plain.quality(X, CLASSES)


# --- without each site ----------------------------------------------------------------------------------------------


def test_each_site_is_judged_by_a_fit_without_it(fitted):
    """As named by a place of a list, a key of a dict, an entry of groups, and a partition of a grid."""
    model, y = fitted
    model.set_params(num_clients=4)
    names = ["d", "c", "b", "a"]
    tables, targets = dict(zip(names, X, strict=True)), dict(zip(names, y, strict=True))
    m = 2
    name = "b"
    alone = clone(model).fit([X[own] for own in (0, 1, 3)], [y[own] for own in (0, 1, 3)])
    found = {
        f"site {m}": clone(model).fit(X, y, without=m),
        f"site {name}": clone(model).fit(tables, targets, without=name),
        f"site {name} ": clone(model).fit(pd.concat(X), pd.concat(y), groups=np.repeat(names, 90), without=name),
    }
    for label, other in found.items():
        np.testing.assert_allclose(other.coef_, alone.coef_, atol=1e-12)
        assert re.search(rf"Data: 270 rows, of 3 sites, without {label.strip()}\n", other.summary())
    judged = alone.quality([X[m]], [y[m]])
    assert found[f"site {name}"].quality({name: tables[name]}, {name: targets[name]}).overall == judged.overall
    with grid_of(model, sites_with(y)) as grid:
        there = clone(model).fit(grid, features=["a", "b", "c"], without=m)
        np.testing.assert_allclose(there.coef_, alone.coef_, atol=1e-9)
        assert there.quality(grid).rows[m]["concordance"] == judged.overall["concordance"]
    assert there.without_ == m
    assert "without" not in model.fit(X, y).summary()


def test_survival_probabilities_are_those_of_the_sites_own_stratum():
    model = FederatedCoxRegression().fit(X[:1], [TIMES[0][["time", "event"]]])
    times = np.array([2.0, 5.0, 20.0])
    assert np.isnan(model.predict_survival_function(X[2], [1e6], (X[0], TIMES[0]))).all()
    both = pd.concat(X[:2]), pd.concat(TIMES[:2]).assign(strata=np.repeat(["old", "new"], 90))
    own = model.predict_survival_function(X[2], times, (X[0], TIMES[0]))
    strata = np.repeat("old", 90)
    np.testing.assert_allclose(model.predict_survival_function(X[2], times, both, strata=strata), own, rtol=1e-12)
    for wrong in (None, ["older"] * 90, ["old"]):
        with pytest.raises(ConfigurationError, match=r"strata=.* one of the site's, which are \['new', 'old'\]"):
            model.predict_survival_function(X[2], times, both, strata=wrong)
    with pytest.raises(ConfigurationError, match="has no event"):
        model.predict_survival_function(X[2], times, (X[0], TIMES[0].assign(event=False)))


def test_expected_events_add_up_in_each_stratum():
    """With late entries, ties and weights of none."""
    w = np.array([0.5, 0.5, -1.0])
    strata = np.arange(90) % 3
    own = CoxRegression(
        *(X[3], TIMES[3]["time"], TIMES[3]["event"].astype(int)), entry=TIMES[3]["entry"], strata=strata
    )
    events = expected_events(own, w)
    for stratum in range(3):
        assert events[strata == stratum].sum() == pytest.approx(TIMES[3]["event"][strata == stratum].sum())
    for ties, first in (("breslow", 2 / 4), ("efron", 1 / 4 + 1 / 3)):
        flat = baseline(CoxRegression(np.zeros((4, 1)), [1.0, 1.0, 2.0, 3.0], [1, 1, 0, 1], ties=ties), np.zeros(1))
        assert flat.at(0, [0.0, 1.0, 2.9, 3.0]) == pytest.approx([0.0, first, first, first + 1.0])


# --- proportional hazards -------------------------------------------------------------------------------------------


def test_the_test_of_proportional_hazards_is_that_of_lifelines():
    lifelines = pytest.importorskip("lifelines")
    rng = np.random.default_rng(0)
    times = TIMES[0]["time"] + 0.01 * rng.random(90)
    frame = X[0].assign(time=times, event=TIMES[0]["event"])
    fitter = lifelines.CoxPHFitter().fit(frame, "time", "event")
    other = lifelines.statistics.proportional_hazard_test(fitter, frame, "rank").summary["p"]
    model = FederatedCoxRegression().fit(X[:1], [frame[["time", "event"]]], intervals=True)
    for row in model.summary().rows:
        assert row["p of trend"] == pytest.approx(other[row["feature"]], rel=1e-3)


def test_a_ratio_that_changes_over_time_is_found_and_others_are_not():
    parts, y = [], []
    for m in range(4):
        rng = np.random.default_rng(m)
        features = rng.normal(size=(200, 2))
        # The first ratio is large at first, and then none.
        early = rng.exponential(1.0 / np.exp(2.0 * features[:, 0] + 0.5 * features[:, 1]))
        late = 0.3 + rng.exponential(1.0 / np.exp(0.5 * features[:, 1]))
        parts.append(features)
        y.append(np.c_[(1 + m) * np.where(early < 0.3, early, late), np.ones(200)])
    first, second = FederatedCoxRegression().fit(parts, y, intervals=True).summary().rows
    assert first["p of trend"] < 1e-6
    assert second["p of trend"] > 1e-3


# --- what leaves ----------------------------------------------------------------------------------------------------


def test_bins_with_few_rows_are_merged_or_stay():
    model, y = KINDS["logistic"]
    model.fit(X, y)
    for least, count in ((None, 8), (8, 4), (20, 2), (44, 0)):
        quality = over(model, y, disclosure=Disclosure(min_rows=least))
        assert len(quality.bins) == count, least
        assert ("withheld" in quality) == (count == 0)
        if count:
            assert sum(own["rows"] for own in quality.bins) == pytest.approx(360)


@pytest.mark.parametrize("merged", [0.0, -1.0, 3.0])
def test_bins_are_nested_however_they_are_merged(merged):
    question = Question("bins", objective_of(0).layout, {"primal": np.ones(3)}, {"merged": merged, "edge-0": 0.0})
    with pytest.raises(ConfigurationError, match=r"asks to merge .* expected 1, 2, 4"):
        find_answer("bins").answer(question, objective_of(0))


def test_bins_of_another_model_stay_in_the_same_run():
    """Differences of both could be single rows."""
    model, y = KINDS["logistic"]
    model.fit(X, y)
    with grid_of(model, sites_with(y), disclosure=Disclosure(min_rows=3)) as grid:
        first, again = model.quality(grid), model.quality(grid)
        model.coef_ = model.coef_ * 1.001
        other = model.quality(grid)
    assert str(first) == str(again)
    assert first.bins
    assert not other.bins


def test_limits_on_rows_hold_for_every_question(fitted):
    model, y = fitted
    with pytest.raises(ConfigurationError, match=r"no site says how good the model is: .*min_rows=91"):
        over(model, y, disclosure=Disclosure(min_rows=91))


# --- one site lies --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lie", "why"),
    [
        ({"ordered": 1e9, "compared": 2e9}, "2e+09 pairs"),
        ({"ordered": -5.0}, "-5 of"),
        ({"compared": 0.0}, "of 0 pairs"),
        ({"events": 91.0}, "91 events of 90 rows"),
        ({"brier": 3.0}, "Brier's score is 3"),
        ({"square": -1.0}, "mean square -1"),
        ({"mean": np.nan}, "mean"),
    ],
)
def test_a_site_that_says_what_no_rows_can_say_is_left_out_by_name(lie, why):
    model, y = KINDS["Cox"]
    model.fit(X, y)
    quality = over(model, y, grid=altering(2, "brier", lambda vectors, numbers: numbers.update(lie)))
    assert re.search(r"Left out: (site 2: .*|partition 2: .*)" + re.escape(why), quality)
    kept = [own for own in range(4) if own != 2]
    honest = model.quality([X[own] for own in kept], [y[own] for own in kept])
    assert quality.overall["concordance"] == honest.overall["concordance"]
    assert quality.overall["slope"] == pytest.approx(honest.overall["slope"])


def test_a_trend_that_no_ranks_have_leaves_the_test_out():
    grid = altering(1, "squares", lambda vectors, numbers: numbers.update(squares=1e6))
    sites = list(SITES)
    model, _ = fit_over_a_grid(FederatedCoxRegression(num_clients=4), sites, grid=grid, intervals=True)
    assert all(np.isnan(row["p of trend"]) for row in model.summary().rows)
    assert "Proportional hazards: not tested: a site has not answered" in model.summary()


# --- what is refused ------------------------------------------------------------------------------------------------


def test_squares_and_many_classes_have_another_quality():
    three = [np.arange(90) % 3 for _ in X]
    for model, y in ((FederatedLasso(0.1), CLASSES), (FederatedLogisticRegression(), three)):
        with pytest.raises(ConfigurationError, match="two classes and of survival times"):
            model.fit(X, y).quality(X, y)


def test_a_site_that_is_none_or_the_only_one_cannot_be_left_out():
    model, y = KINDS["Cox"]
    model.set_params(num_clients=4)
    for given, message in (
        ({"without": 4}, r"without=4 is none of the sites, which are 0, 1, 2, 3$"),
        ({"without": "part 1"}, "without='part 1' is none of the sites"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            model.fit(X, y, **given)
    with pytest.raises(ConfigurationError, match=r"without='e' is none of the sites, which are 'a', 'b', 'c', 'd'$"):
        model.fit(dict(zip("abcd", X, strict=True)), dict(zip("abcd", y, strict=True)), without="e")
    with pytest.raises(ConfigurationError, match="without=0: there is no other site, so nothing is left to fit to"):
        model.fit(X[:1], y[:1], without=0)
    with pytest.raises(ConfigurationError, match="without=9 is none"):
        fit_over_a_grid(model, sites_with(y), features=["a", "b", "c"], without=9)


def test_tables_and_targets_of_a_dict_have_the_same_names():
    model, y = KINDS["logistic"]
    tables = dict(zip("abcd", X, strict=True))
    for given in (dict(zip("abce", y, strict=True)), dict(zip("abc", y[:3], strict=True)), y):
        with pytest.raises(ConfigurationError, match=r"X is a dict of the sites .*, and beside it is"):
            model.fit(tables, given)

"""The estimator of survival times: solutions, ways to give times and events, and a table with hazard ratios."""

import numpy as np
import pandas as pd
import pytest
from federations import fit_over_a_grid, grid_of
from scipy.sparse import csr_array

from flwr_fco.client_apps import Disclosure
from flwr_fco.errors import ClientError, ConfigurationError
from flwr_fco.objectives import CoxRegression
from flwr_fco.regularizers import L1, ElasticNet, Zero
from flwr_fco.strategies import Strengths
from flwr_fco.tables import FederatedCoxRegression
from reproduction.pooled import centralized_solution

NAMES = ["age", "dose", "sex", "noise"]


def site(m, n=80, censored=1.0):
    """A site with a baseline of its own, ties, late entries and strata."""
    rng = np.random.default_rng(m)
    X = rng.normal(0.3 * m, 1.0, size=(n, 4))
    ends = np.ceil(10 * (1 + m) * rng.exponential(1.0 / np.exp(X @ [0.8, -0.5, 0.3, 0.0]))) + 1.0
    stops = np.ceil(10 * (1 + m) * rng.exponential(2.0 / censored, n)) + 1.0
    times = np.minimum(ends, stops)
    y = pd.DataFrame({"time": times, "event": ends <= stops})
    y["entry"], y["strata"] = times - rng.integers(1, 40, n), np.array(["a", "b"])[rng.integers(0, 2, n)]
    return pd.DataFrame(X, columns=NAMES), y


SITES = [site(m) for m in range(4)]
FEATURES, TARGETS = ([own[i] for own in SITES] for i in range(2))
PLAIN = [y[["time", "event"]].to_numpy(float) for y in TARGETS]
ROWS = np.repeat(np.arange(4), 80)


def pooled(**options):
    y = pd.concat(TARGETS)
    return CoxRegression(
        *(pd.concat(FEATURES), y["time"], y["event"].astype(int)),
        entry=y["entry"],
        strata=[f"{m} {own}" for m, own in zip(ROWS, y["strata"], strict=True)],
        **options,
    )


@pytest.mark.parametrize("ties", ["efron", "breslow"])
@pytest.mark.parametrize(
    ("alpha", "l1_ratio", "psi"), [(0.0, 1.0, Zero()), (0.03, 1.0, L1(0.03)), (0.1, 0.5, ElasticNet(0.1, 0.5))]
)
def test_the_solution_is_that_of_pooled_rows_stratified_by_site(ties, alpha, l1_ratio, psi):
    model = FederatedCoxRegression(alpha, l1_ratio=l1_ratio, ties=ties).fit(FEATURES, TARGETS)
    best = centralized_solution([pooled(ties=ties)], psi, tol=1e-12)
    np.testing.assert_allclose(model.coef_, best, atol=1e-8)
    assert not hasattr(model, "intercept_")
    np.testing.assert_allclose(model.predict(FEATURES[0]), FEATURES[0].to_numpy() @ model.coef_)


def test_times_and_events_are_taken_in_the_ways_in_which_they_are_at_hand():
    expected = FederatedCoxRegression(0.02).fit(FEATURES, PLAIN).coef_
    others = {
        "a structured array": [
            np.array(list(zip(y["event"], y["time"], strict=True)), [("cens", bool), ("days", float)]) for y in TARGETS
        ],
        "a frame": [y[["event", "time"]] for y in TARGETS],
        "a list": [own.tolist() for own in PLAIN],
    }
    for y in others.values():
        assert np.array_equal(FederatedCoxRegression(0.02).fit(FEATURES, y).coef_, expected)
    whole = FederatedCoxRegression(0.02).fit(pd.concat(FEATURES), np.vstack(PLAIN), groups=ROWS)
    assert np.array_equal(whole.coef_, expected)
    sparse = FederatedCoxRegression(0.02).fit([csr_array(X) for X in FEATURES], PLAIN)
    np.testing.assert_allclose(sparse.coef_, expected, atol=1e-10)


@pytest.mark.parametrize("y", [TARGETS, PLAIN])
def test_a_fit_over_a_grid_has_the_bits_of_a_fit_on_a_list(y):
    options = {"alpha": 0.02, "cv": Strengths(num=4, folds=3), "standardize": True, "penalty_factor": {"sex": 0}}
    there, here = (FederatedCoxRegression(**options) for _ in range(2))
    fit_over_a_grid(there, list(zip(FEATURES, y, strict=True)))
    here.fit(FEATURES, y)
    assert np.array_equal(there.coef_, here.coef_)
    assert there.coef_[2] != 0.0
    assert there.strength_ == here.strength_
    assert there.feature_names_in_.tolist() == NAMES


def test_weights_are_those_of_the_rows():
    """A row of weight 0 is none."""
    weights = [np.arange(80) % 3.0 for _ in range(4)]
    model = FederatedCoxRegression(0.02, ties="breslow").fit(FEATURES, PLAIN, weights)
    y, mass = np.vstack(PLAIN), np.concatenate(weights)
    kept = mass > 0.0
    whole = CoxRegression(
        *(pd.concat(FEATURES)[kept], y[kept, 0], y[kept, 1]),
        ties="breslow",
        strata=ROWS[kept],
        sample_weight=mass[kept],
    )
    np.testing.assert_allclose(model.coef_, centralized_solution([whole], L1(0.02), tol=1e-12), atol=1e-8)


# --- a table --------------------------------------------------------------------------------------------------------


def test_estimates_are_those_of_the_stratified_partial_likelihood():
    y = np.vstack(PLAIN)
    on = np.arange(4)
    model = FederatedCoxRegression(0.1).fit(FEATURES, PLAIN, intervals=True)
    rows = model.summary().rows
    whole = CoxRegression(pd.concat(FEATURES), y[:, 0], y[:, 1], strata=ROWS)
    alone = CoxRegression(FEATURES[2], PLAIN[2][:, 0], PLAIN[2][:, 1])
    for objective, estimate, error in ((whole, "estimate", "standard error"), (alone, "site 2", "site 2 error")):
        best = centralized_solution([objective], Zero(), tol=1e-12)
        information = np.zeros((4, 4))
        information[np.triu_indices(4)] = objective.num_examples * objective.hessian_block(best, on)
        covariance = np.linalg.inv(information + np.triu(information, 1).T)
        np.testing.assert_allclose([row[estimate] for row in rows], best, rtol=1e-5)
        np.testing.assert_allclose([row[error] for row in rows], np.sqrt(np.diag(covariance)), rtol=1e-5)
    for row in rows:
        for name, of in (("", "estimate"), (" lower", "lower"), (" upper", "upper")):
            assert row[f"hazard ratio{name}"] == pytest.approx(np.exp(row[of]))
        assert "odds ratio" not in row
    assert "hazard ratio" in model.summary()


def test_a_column_that_is_there_twice_is_named_before_trends_are_tested():
    X = [own.assign(again=own["dose"]) for own in FEATURES]
    with pytest.raises(ConfigurationError, match="linearly dependent on other columns, or constant: dose, again"):
        FederatedCoxRegression().fit(X, PLAIN, intervals=True)


def with_events(counts, n=80):
    """Rows of which so many have an event at each site."""
    rng = np.random.default_rng(0)
    X = [rng.normal(size=(n, 2)) for _ in counts]
    return X, [np.c_[rng.exponential(size=n), np.arange(n) < count] for count in counts]


def test_events_are_counted_and_not_the_rarer_of_events_and_censored_rows():
    X, y = with_events([75, 75])
    assert "estimate" in FederatedCoxRegression().fit(X, y, intervals=True).summary().rows[0]
    X, y = with_events([9, 10])
    with pytest.warns(UserWarning, match=r"intervals of 2 columns from 19 events: 9\.5 a column"):
        FederatedCoxRegression().fit(X, y, intervals=True)
    X, y = with_events([4, 5])
    with pytest.raises(ConfigurationError, match=r"intervals of 2 columns from 9 events; expected at least 5 a col"):
        FederatedCoxRegression().fit(X, y, intervals=True)
    X, y = with_events([40, 10, 9, 0])
    model = FederatedCoxRegression().fit(X, y, intervals=True)
    assert model.summary().rows[0]["sites"] == 2
    assert "of 2 of 4 sites; none of site 2, site 3: fewer than 5 events a column" in model.summary()


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.arange(80.0), r"y has an array of shape \(80,\); expected two columns, the time and 1 for an event"),
        (TARGETS[0].assign(more=1.0), r"y has the fields \['time', 'event', 'entry', 'strata', 'more'\]"),
        (TARGETS[0][["time", "event"]].replace({"event": {True: "yes", False: "no"}}), "that are no numbers"),
        (PLAIN[0][:, ::-1], r"events hold .*; expected 1 for an event and 0 for a censored row"),
        (TARGETS[0].assign(strata=None), r"part 0: .* y\['strata'\] in 80 of 80 rows"),
        (TARGETS[0].assign(strata=[{}] * 80), "strata hold what is no label: unhashable type: 'dict'"),
        ([*PLAIN[0].tolist()[1:], [1.0]], "y has rows of unequal length"),
        (TARGETS[0].assign(entry=TARGETS[0]["time"]), r"entry\[0\] is not before times\[0\]"),
        (PLAIN[0] * [1, 0], "no event at which anybody else of the same client and stratum is at risk"),
    ],
)
def test_targets_of_another_form_are_refused_in_words(y, message):
    with pytest.raises(ConfigurationError, match=message):
        FederatedCoxRegression().fit(FEATURES[:1], [y])


@pytest.mark.parametrize("field", ["time", "entry"])
def test_a_date_that_is_missing_is_refused_and_not_the_earliest_one(field):
    begin = pd.Timestamp(2026, 1, 1)
    rows = np.arange(80)
    y = pd.DataFrame({"time": begin + pd.to_timedelta(1 + rows, "D"), "event": rows % 2 == 0, "entry": begin})
    with pytest.raises(ConfigurationError, match=rf"part 0: .*y\['{field}'\] in 5 of 80 rows"):
        FederatedCoxRegression().fit([FEATURES[0]], [y.assign(**{field: y[field].mask(rows < 5)})])


# --- curves -----------------------------------------------------------------------------------------------------------


def in_two_groups():
    tables = [X.assign(sex=(X["sex"] > 0.0).astype(float)) for X in FEATURES]
    return tables, FederatedCoxRegression(0.1).fit(tables, TARGETS)


def test_curves_over_a_grid_are_those_here_and_between_times_a_life_table():
    tables, model = in_two_groups()
    times = [5.0, 20.0, 80.0]
    here = model.curves(tables, TARGETS, times=times, by="sex")
    with grid_of(model, list(zip(tables, TARGETS, strict=True))) as grid:
        there = model.curves(grid, times=times, by="sex")
    assert f"{there}" == f"{here}"
    assert there.rows == here.rows
    y = pd.concat(TARGETS)
    second = pd.concat(tables)["sex"].to_numpy() == 1.0
    y = y[second]
    over = y["entry"].clip(-1.0) < 20.0
    row = here.rows[4]
    assert row["group"] == "sex=1"
    assert row["events"] == (y["event"] & (y["time"] > 5.0) & (y["time"] <= 20.0)).sum()
    late = (y["entry"] > 5.0) & ~(y["event"] & (y["time"] <= 20.0))
    half = 0.5 * ((y["time"] < 20.0) & ~y["event"]) + 0.5 * late
    assert row["at risk"] == ((y["time"] > 5.0) & over) @ (1.0 - half)
    assert row["survival"] == pytest.approx(here.rows[3]["survival"] * (1.0 - row["events"] / row["at risk"]))


def test_a_time_before_anybody_is_at_risk_leaves_survival_at_1():
    X = FEATURES[0]
    y = TARGETS[0].assign(entry=0.0)
    model = FederatedCoxRegression(0.1).fit({"one": X}, {"one": y})
    first, second = model.curves({"one": X}, {"one": y}, times=[0.0, 20.0]).rows
    assert (first["at risk"], first["survival"], first["standard error"]) == (0.0, 1.0, 0.0)
    assert second["survival"] == 1.0 - second["events"] / second["at risk"]


def test_survival_stays_after_the_last_row():
    X, y = {"one": FEATURES[0]}, {"one": TARGETS[0]}
    end = TARGETS[0]["time"].max()
    last, after = FederatedCoxRegression(0.1).fit(X, y).curves(X, y, times=[end, end + 1.0]).rows
    assert (after["at risk"], after["survival"]) == (0.0, last["survival"])


def test_who_enters_at_0_is_at_risk_in_whole_at_the_first_time():
    X, y = FEATURES[0], TARGETS[0]
    y = y.assign(entry=np.where(np.arange(len(y)) % 3, 0.0, y["entry"].clip(0.0)))
    ends = np.unique(np.r_[y["time"], y.loc[y["entry"] > 0.0, "entry"]])
    found = FederatedCoxRegression(0.1).fit({"one": X}, {"one": y}).curves({"one": X}, {"one": y}, times=ends)
    risk = np.array([((y["entry"] < end) & (y["time"] >= end)).sum() for end in ends])
    events = np.array([(y["event"] & (y["time"] == end)).sum() for end in ends])
    np.testing.assert_array_equal([row["at risk"] for row in found.rows], risk)
    survival = np.cumprod(1.0 - events / risk)
    np.testing.assert_allclose([row["survival"] for row in found.rows], survival, rtol=1e-12)


def test_a_field_that_no_regression_knows_is_not_left_out():
    with pytest.raises(ConfigurationError, match=r"y has the fields .*'exposure'"):
        FederatedCoxRegression(0.1).fit(FEATURES[0], TARGETS[0].assign(exposure=1.0))


def test_a_site_refuses_curves_of_parts_smaller_than_its_owner_allows():
    tables, model = in_two_groups()
    with grid_of(model, list(zip(tables, TARGETS, strict=True)), disclosure=Disclosure(min_rows=10)) as grid:
        assert model.curves(grid, times=[1e9]).rows[0]["events"] == sum(y["event"].sum() for y in TARGETS)
        with pytest.raises(ConfigurationError, match=r"not known: partition 0 keeps sums of so few rows"):
            model.curves(grid, times=range(100), by="sex")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"times": []}, r"times=\[\]; expected numbers"),
        ({"times": ["a"]}, r"times=\['a'\]; expected numbers"),
        ({"times": [1.0], "by": "no"}, "by='no' is no feature; expected one of age"),
        ({"times": [1.0], "by": "age"}, "other entries than 0 and 1 at this site"),
    ],
)
def test_curves_that_cannot_be_are_refused(given, message):
    tables, model = in_two_groups()
    with pytest.raises((ConfigurationError, ClientError), match=message):
        model.curves(tables, TARGETS, **given)

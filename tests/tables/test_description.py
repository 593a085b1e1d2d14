"""A Table 1 of the sites: its numbers, what an owner's limits withhold, what it finds wrong, and what it does not."""

import math
import warnings

import numpy as np
import pytest
from federations import grid_of
from hypothesis import given
from hypothesis import strategies as st

from flwr_fco.client_apps import Disclosure
from flwr_fco.core.logs import quiet
from flwr_fco.errors import ConfigurationError
from flwr_fco.tables import Codebook, Column, FederatedCoxRegression, FederatedLasso, FederatedLogisticRegression
from flwr_fco.tables.checks import WARNS, probabilities
from flwr_fco.tables.description import withheld

pd = pytest.importorskip("pandas")
hospitals = pytest.importorskip("hospitals")

MODELS = {"classes": FederatedLogisticRegression, "times": FederatedCoxRegression, "numbers": FederatedLasso}
SITES = ["Oslo", "Bergen", "Tromso", "Molde"]


def described(model, sites, **options):
    """Return a Table 1, with the warnings as a text."""
    with warnings.catch_warnings(record=True) as caught, quiet(50):
        warnings.simplefilter("always")
        table = model.describe(sites, **options)
    return table, " | ".join(str(own.message) for own in caught)


def over_a_grid(model, sites, disclosure=None, **options):
    model.num_clients = len(sites)
    with grid_of(model, list(sites.values()), disclosure=disclosure) as grid:
        return described(model, grid, **options)


def study_model(kind="classes", **options):
    book = hospitals.codebook(kind, hospitals.STUDY, sites=SITES, **options)
    return MODELS[kind](codebook=book)


# --- its numbers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MODELS)
def test_its_numbers_are_those_of_the_tables_here_and_over_a_grid(kind):
    sites = {name: own.assign(score=own["age"] + own["bmi"]) for name, own in hospitals.study().items()}
    here, said = described(study_model(kind), sites)
    there, _ = over_a_grid(study_model(kind), sites)
    assert said == ""
    assert str(here) == str(there)
    assert here.findings == there.findings == []
    table = there.table().set_index(["site", "column"])
    for site, own in sites.items():
        for name in ("age", "creatinine", "stage"):
            row = table.loc[site, name]
            expected = own[name].describe()[["count", "mean", "std", "25%", "50%", "75%"]]
            found = row[["rows", "mean", "deviation", "q25", "median", "q75"]]
            np.testing.assert_allclose(found.to_numpy(float), expected.to_numpy(float), rtol=1e-12)
            assert row["missing"] == 0.0
        assert table.loc[(site, "smoker"), "count"].tolist() == own["smoker"].value_counts()[[0, 1]].tolist()
        if kind != "numbers":
            name = {"classes": "died", "times": "event"}[kind]
            assert table.loc[(site, name), "count"].tolist() == own[name].value_counts()[[0, 1]].tolist()
    assert "age (years)" in here
    assert "smoker=1" in here


def in_two(sites):
    """Return tables and targets by site."""
    tables = {name: own[hospitals.NAMES] for name, own in sites.items()}
    return tables, {name: own["died"] for name, own in sites.items()}


def test_without_a_codebook_it_is_about_the_models_columns():
    sites = hospitals.study()
    X, y = in_two(sites)
    table, said = described(FederatedLogisticRegression(), X, y=y)
    assert said == ""
    row = table.table().set_index(["site", "column"]).loc["Oslo", "bmi"]
    assert row["mean"] == pytest.approx(sites["Oslo"]["bmi"].mean(), rel=1e-12)
    whole = pd.concat(sites.values(), ignore_index=True)
    owners = np.repeat(list(sites), [len(own) for own in sites.values()])
    grouped, _ = described(FederatedLogisticRegression(), whole[hospitals.NAMES], y=whole["died"], groups=owners)
    means = [own.table().sort_values(["column", "level", "rows"])["mean"].to_numpy() for own in (table, grouped)]
    np.testing.assert_allclose(*means, rtol=1e-12)
    with pytest.raises(ConfigurationError, match="groups="):
        FederatedLogisticRegression().describe(whole[hospitals.NAMES], whole["died"])


def test_missing_entries_are_counted_in_all_rows_outcomes_in_complete_ones():
    sites = hospitals.study()
    sites["Oslo"].loc[:9, "bmi"] = np.nan
    table, _ = described(study_model(incomplete="leave out"), sites)
    rows = table.table().set_index(["site", "column"])
    assert rows.loc[("Oslo", "bmi"), ["rows", "missing"]].tolist() == [400.0, 10.0]
    assert rows.loc[("Oslo", "died"), "rows"].tolist() == [390.0, 390.0]
    assert rows.loc[("Oslo", "died"), "count"].sum() == 390.0
    assert "  missing" in table


def test_a_site_whose_rows_do_not_fit_is_named_beside_the_others_table():
    sites = hospitals.wrong("an age of 6200", "classes")
    table, said = over_a_grid(study_model(), sites, stop=False)
    assert [own.site for own in table.findings] == ["Bergen"]
    assert "age has rows that are outside 18 to 110 years" in said
    assert set(table.table()["site"]) == {"Oslo", "Tromso", "Molde"}
    with pytest.raises(ConfigurationError, match=r"Bergen: .*18 to 110.*stop=False"):
        over_a_grid(study_model(), sites)


def test_another_codebook_at_a_site_is_found():
    sites = hospitals.study()
    other = Codebook({**hospitals.STUDY, "age": Column(range=(0.0, 120.0))}, hospitals.OUTCOMES["classes"], sites=SITES)
    model = study_model()
    model.num_clients = 1
    with (
        grid_of(FederatedLogisticRegression(codebook=other), [sites["Oslo"]]) as grid,
        pytest.raises(ConfigurationError, match="Oslo: has another codebook"),
    ):
        model.describe(grid)


# --- what its owner withholds -----------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 30), min_size=2, max_size=5), st.integers(1, 10))
def test_no_count_below_the_limit_follows_from_the_others_and_their_sum(counts, least):
    hidden = withheld(np.array(counts), least)
    few = [0 < count < least for count in counts]
    assert not any(own and not kept for own, kept in zip(few, hidden, strict=True))
    # One alone is the sum less the others, unless the sum says it: there is nothing else.
    assert hidden.sum() != 1 or np.count_nonzero(counts) == 1


def test_what_is_about_few_rows_is_withheld():
    rng = np.random.default_rng(0)
    tables = {}
    for site in ("a", "b", "c"):
        group = np.repeat(["common", "other", "few"], [150, 46, 4])
        table = pd.DataFrame({"group": group, "age": rng.normal(60.0, 9.0, 200), "rare": [1] * 3 + [0] * 197})
        table["died"] = rng.integers(0, 2, 200)
        tables[site] = table
    tables["a"].loc[:1, "age"] = np.nan
    columns = {"group": Column(levels=["common", "other", "few"]), "age": Column(), "rare": Column()}
    model = FederatedLogisticRegression(
        codebook=Codebook(columns, hospitals.OUTCOMES["classes"], incomplete="leave out")
    )
    open_table, _ = over_a_grid(model, tables)
    table, _ = over_a_grid(model, tables, Disclosure(min_rows=5))
    for own, shown in zip(open_table.rows, table.rows, strict=True):
        hidden = own["level"] in ("other", "few")
        assert math.isnan(shown["count"]) == (hidden or own["level"] == "")
        if own["column"] == "rare":
            assert math.isnan(shown["mean"])
        if own["column"] == "age":
            assert shown["mean"] == own["mean"]
            assert math.isnan(shown["missing"]) == (own["site"] == "partition 0")
            values = np.sort(list(tables.values())[int(own["site"][-1])]["age"].dropna())
            middle = round(0.5 * (values.size - 1) - 2.0)
            assert shown["median"] == pytest.approx(values[middle : middle + 5].mean())
            assert shown["median"] not in values


# --- what is wrong ----------------------------------------------------------------------------------------------------

#: What passes in silence: no number of a Table 1 changes, or none so much as honest sites differ.
SILENT = {"sex reversed", "outcomes of other rows", "stage by the alphabet"}


@pytest.mark.parametrize("kind", ["classes", "times"])
def test_of_36_ways_to_be_wrong_at_most_4_pass_in_silence(kind):
    silent = set()
    for way in hospitals.WAYS:
        sites = hospitals.wrong(way, kind)
        table, said = described(study_model(kind), sites, stop=False)
        assert {own.site for own in table.findings} <= {hospitals.WRONG}, way
        silent |= set() if said else {way}
    allowed = SILENT | hospitals.FINE | (hospitals.ABOUT_TIMES if kind == "classes" else {"outcome reversed"})
    assert len(hospitals.WAYS) == 36
    assert silent <= allowed
    assert described(study_model(kind), hospitals.study())[1] == ""


def silent_in(kind, count):
    """Return how many honest federations have a warning, and how many an error."""
    model = MODELS[kind](codebook=hospitals.codebook(kind, hospitals.HONEST))
    tables = [described(model, hospitals.honest(seed, kind), stop=False)[0] for seed in range(count)]
    found = [table.findings for table in tables]
    return sum(map(bool, found)), sum(any(own.refused for own in each) for each in found)


@pytest.mark.parametrize("kind", MODELS)
def test_honest_federations_have_no_error_and_seldom_a_warning(kind):
    assert silent_in(kind, 20) <= (1, 0)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", MODELS)
def test_of_200_honest_federations_5_percent_have_a_warning_none_an_error(kind):
    warned, refused = silent_in(kind, 200)
    assert warned <= 10
    assert refused == 0


@pytest.mark.parametrize("sites", [2, 3, 10])
def test_its_probabilities_are_true_where_sites_differ_as_usual(sites):
    rng = np.random.default_rng(0)
    alarms = 0
    for _ in range(300):
        values = rng.normal(0.0, 0.3, (sites, 5)) + rng.normal(0.0, 0.2, (sites, 5))
        alarms += (probabilities(values, np.full((sites, 5), 0.2), 0.3) < WARNS).any()
    assert alarms <= 300 * WARNS
    assert probabilities(np.array([[0.0], [0.1], [9.0]]), np.full((3, 1), 0.1), 0.3)[2, 0] < 1e-6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"marker": 0.0}, "marker is 0 in all rows, and varies at other sites"),
        ({"age": [6200.0, *np.arange(299) % 50 + 40.0]}, "age has a single number far beyond all others"),
    ],
)
def test_it_finds_without_a_codebook(change, message):
    sites = hospitals.study()
    X, y = in_two(sites | {"Bergen": sites["Bergen"].assign(**change)})
    _, said = described(FederatedLogisticRegression(), X, y=y, stop=False)
    assert f"Bergen: {message}" in said

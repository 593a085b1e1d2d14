"""A Table 1 of the sites: its numbers, what an owner's limits withhold, what it finds wrong, and what it does not."""

import math
import warnings

import hospitals
import numpy as np
import pandas as pd
import pytest
from federations import grid_of
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from problems import refused

from flwr_fco.client_apps import Disclosure
from flwr_fco.core.logs import quiet
from flwr_fco.tables import Codebook, Column, FederatedCoxRegression, FederatedLasso, FederatedLogisticRegression
from flwr_fco.tables.description import withheld

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
    return MODELS[kind](codebook=hospitals.codebook(kind, hospitals.STUDY, sites=SITES, **options))


def rows_by_site(table):
    return table.table().set_index(["site", "column"])


# --- its numbers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MODELS)
def test_its_numbers_are_those_of_the_tables_here_and_over_a_grid(kind):
    sites = {name: own.assign(score=own["age"] + own["bmi"]) for name, own in hospitals.study().items()}
    here, said = described(study_model(kind), sites)
    there, _ = over_a_grid(study_model(kind), sites)
    assert said == ""
    assert str(here) == str(there)
    assert here.findings == there.findings == []
    table = rows_by_site(there)
    for site, own in sites.items():
        for name in ("age", "creatinine", "stage"):
            row = table.loc[site, name]
            expected = own[name].describe()[["count", "mean", "std", "25%", "50%", "75%"]]
            found = row[["rows", "mean", "deviation", "q25", "median", "q75"]]
            assert_allclose(found.to_numpy(float), expected.to_numpy(float), rtol=1e-12)
            assert row["missing"] == 0.0
        for name in ("smoker", *{"classes": ["died"], "times": ["event"], "numbers": []}[kind]):
            assert table.loc[(site, name), "count"].tolist() == own[name].value_counts()[[0, 1]].tolist()
    assert "age (years)" in here
    assert "smoker=1" in here


def in_two(sites):
    """Return tables and targets by site."""
    return [{name: own[columns] for name, own in sites.items()} for columns in (hospitals.NAMES, "died")]


def test_without_a_codebook_it_is_about_the_models_columns():
    sites = hospitals.study()
    X, y = in_two(sites)
    table, said = described(FederatedLogisticRegression(), X, y=y)
    assert said == ""
    assert rows_by_site(table).loc["Oslo", "bmi"]["mean"] == pytest.approx(sites["Oslo"]["bmi"].mean(), rel=1e-12)
    whole = pd.concat(sites.values(), ignore_index=True)
    owners = np.repeat(list(sites), [len(own) for own in sites.values()])
    grouped, _ = described(FederatedLogisticRegression(), whole[hospitals.NAMES], y=whole["died"], groups=owners)
    means = [own.table().sort_values(["column", "level", "rows"])["mean"].to_numpy() for own in (table, grouped)]
    assert_allclose(*means, rtol=1e-12)
    refused("groups=", FederatedLogisticRegression().describe, whole[hospitals.NAMES], whole["died"])
    for change, message in (
        ({"marker": 0.0}, "marker is 0 in all rows, and varies at other sites"),
        ({"age": [6200.0, *np.arange(299) % 50 + 40.0]}, "age has a single number far beyond all others"),
    ):
        X, y = in_two(sites | {"Bergen": sites["Bergen"].assign(**change)})
        assert f"Bergen: {message}" in described(FederatedLogisticRegression(), X, y=y, stop=False)[1]


def test_missing_entries_are_counted_in_all_rows_outcomes_in_complete_ones():
    sites = hospitals.study()
    sites["Oslo"].loc[:9, "bmi"] = np.nan
    table, _ = described(study_model(incomplete="leave out"), sites)
    rows = rows_by_site(table).loc["Oslo"]
    assert rows.loc["bmi", ["rows", "missing"]].tolist() == [400.0, 10.0]
    assert rows.loc["died", "rows"].tolist() == [390.0, 390.0]
    assert rows.loc["died", "count"].sum() == 390.0
    assert "  missing" in table


def test_a_site_with_other_rows_or_codebook_is_named_beside_the_table():
    sites = hospitals.wrong("an age of 6200", "classes")
    table, said = over_a_grid(study_model(), sites, stop=False)
    assert [own.site for own in table.findings] == ["Bergen"]
    assert "age has rows that are outside 18 to 110 years" in said
    assert set(table.table()["site"]) == {"Oslo", "Tromso", "Molde"}
    refused(r"Bergen: .*18 to 110.*stop=False", over_a_grid, study_model(), sites)
    columns = hospitals.STUDY | {"age": Column(range=(0.0, 120.0))}
    other = FederatedLogisticRegression(codebook=hospitals.codebook("classes", columns, sites=SITES))
    with grid_of(other, [sites["Oslo"]]) as grid:
        refused("Oslo: has another codebook", study_model().set_params(num_clients=1).describe, grid)


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
        tables[site] = table.assign(died=rng.integers(0, 2, 200))
    tables["a"].loc[:1, "age"] = np.nan
    columns = {"group": Column(levels=["common", "other", "few"]), "age": Column(), "rare": Column()}
    book = Codebook(columns, hospitals.OUTCOMES["classes"], incomplete="leave out")
    model = FederatedLogisticRegression(codebook=book)
    open_table, _ = over_a_grid(model, tables)
    table, _ = over_a_grid(model, tables, Disclosure(min_rows=5))
    for own, shown in zip(open_table.rows, table.rows, strict=True):
        hidden = own["level"] in ("other", "few")
        assert math.isnan(shown["count"]) == (hidden or own["level"] == "")
        assert own["column"] != "rare" or math.isnan(shown["mean"])
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
        table, said = described(study_model(kind), hospitals.wrong(way, kind), stop=False)
        assert {own.site for own in table.findings} <= {hospitals.WRONG}, way
        silent |= set() if said else {way}
    allowed = SILENT | hospitals.FINE | (hospitals.ABOUT_TIMES if kind == "classes" else {"outcome reversed"})
    assert len(hospitals.WAYS) == 36
    assert silent <= allowed
    assert described(study_model(kind), hospitals.study())[1] == ""


@pytest.mark.parametrize(("count", "most"), [(20, 1), pytest.param(200, 10, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("kind", MODELS)
def test_of_honest_federations_5_percent_have_a_warning_and_none_an_error(kind, count, most):
    model = MODELS[kind](codebook=hospitals.codebook(kind, hospitals.HONEST))
    tables = [described(model, hospitals.honest(seed, kind), stop=False)[0] for seed in range(count)]
    assert sum(bool(own.findings) for own in tables) <= most
    assert not any(own.refused for table in tables for own in table.findings)

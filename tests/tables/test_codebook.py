"""A codebook: what a site reads and refuses by it, its file, formulas, fits; and a Table 1 of the sites."""

import math
import warnings

import hospitals
import numpy as np
import pandas as pd
import pytest
from federations import fit_over_a_grid, grid_of
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from problems import refused
from scipy.interpolate import CubicSpline

from flwr_fco.client_apps import Disclosure
from flwr_fco.core.logs import quiet
from flwr_fco.errors import ConfigurationError, PublicError
from flwr_fco.tables import Codebook, Column, FederatedCoxRegression, FederatedLasso, FederatedLogisticRegression
from flwr_fco.tables.description import withheld

COLUMNS = {
    "age": Column(type="integer", unit="years", range=(18, 110), missing=[-9], center=60.0, spread=10.0),
    "sex": Column(levels=["f", "m"], missing=["?"]),
    "stage": Column(levels=[1, 2, 3], reference=2),
    "creatinine": Column(unit="mg/dl", range=(0.1, 20.0), transform="log"),
    "smoker": Column(levels=[0, 1]),
}
OUTCOME = {"death": Column(levels=[0, 1])}
BOOK = Codebook(COLUMNS, OUTCOME, sites=["Oslo", "Bergen", "Tromso"])


def hospital(seed: int, n: int = 120) -> pd.DataFrame:
    """Return a table with more columns than the codebook has, in another order, and not every level."""
    rng = np.random.default_rng(seed)
    table = {
        "id": np.arange(n),
        "stage": rng.integers(1, 3 + (seed > 0), n),
        "sex": rng.choice(["f", "m"], n),
        "age": rng.integers(30, 90, n),
        "smoker": rng.random(n) < 0.3,
        "creatinine": np.exp(rng.normal(0.0, 0.4, n)),
        "time": rng.exponential(2.0, n),
    }
    return pd.DataFrame(table | {"death": (rng.random(n) < 0.2 + 0.3 * (table["sex"] == "m")).astype(int)})


TABLES = [hospital(seed) for seed in range(3)]
DEATHS = [own["death"] for own in TABLES]


def by_hand(table):
    """Return the model's columns, as a site would make them without a codebook, in their order."""
    made = {
        "age": (table["age"] - 60.0) / 10.0,
        "sex=m": table["sex"] == "m",
        "stage=1": table["stage"] == 1,
        "stage=3": table["stage"] == 3,
        "creatinine": np.log(table["creatinine"]),
        "smoker": table["smoker"],
    }
    return pd.DataFrame(made).astype(float)


PARTS = [by_hand(own) for own in TABLES]


def logistic(book=None, **options):
    return FederatedLogisticRegression(codebook=book, num_clients=3, **options)


# --- what is read -----------------------------------------------------------------------------------------------------


def test_every_site_has_the_same_columns_whatever_its_rows_are():
    for table, made in zip(TABLES, PARTS, strict=True):
        read = BOOK.read(table)
        assert tuple(read.columns) == BOOK.features
        assert_array_equal(read.to_numpy(), made.to_numpy())
    # Codes for missing are no entries among texts too.
    read = Codebook({"age": Column(range=(18, 110), missing=[-9, "?"])}).read({"age": [60, -9, "?", None, pd.NA]})
    assert_array_equal(read["age"], [60.0, *[np.nan] * 4])


@pytest.mark.parametrize(
    ("column", "entry", "fault"),
    [
        ("age", 6200, "outside 18 to 110 years"),
        ("age", "62", "no number"),
        ("age", math.inf, "infinite"),
        ("age", 60.5, "no whole number"),
        ("sex", "female", "none of the levels 'f', 'm'"),
        ("stage", 0, "none of the levels '1', '2', '3'"),
    ],
)
def test_an_entry_that_does_not_fit_is_shown_to_its_site_only(column, entry, fault, caplog):
    table = TABLES[1].astype({column: object})
    table.loc[[7, 9], column] = [entry, entry]
    text = refused(f"{column} has rows that are {fault}", BOOK.read, table, kind=PublicError)
    assert "row 7" not in text
    assert repr(entry) not in text.replace(fault, "")
    assert f"{column}: 2 rows are {fault}: row 7 ({entry!r}), row 9 ({entry!r})" in caplog.text


@pytest.mark.parametrize(
    ("message", "book", "table"),
    [
        (r"lacks the columns .*'sex'.*Give them their names", BOOK, {"age": [60]}),
        (r"lacks .* 'age' of the .*: it has '\\ufeffAGE ' for", Codebook({"age": Column()}), {"\ufeffAGE ": [1.0]}),
        ("has several columns of the name 'age'", BOOK, pd.concat([TABLES[2], TABLES[2][["age"]]], axis=1)),
    ],
)
def test_a_column_that_is_not_there_or_twice_is_named(message, book, table):
    refused(message, book.read, table, kind=PublicError)


# --- fits -------------------------------------------------------------------------------------------------------------


def test_missing_entries_are_refused_or_left_out_with_their_rows(caplog):
    table = TABLES[2].astype({"age": float})
    table.loc[3, "age"], table.loc[5, "sex"], table.loc[8, "age"] = -9, "?", None
    sites = {"Oslo": TABLES[1], "Bergen": table}
    refused("Bergen has missing entries of 'age', 'sex'", logistic(BOOK).fit, sites, kind=PublicError)
    assert "age is missing in 2 rows: [3, 8]" in caplog.text
    loose, beside = (Codebook(COLUMNS, outcome, incomplete="leave out") for outcome in (OUTCOME, {}))
    weights = {site: np.arange(1.0, 121.0) for site in sites}
    kept = table.index.difference([3, 5, 8])
    labels, masses = [DEATHS[1], table["death"][kept]], [np.arange(1.0, 121.0), 1.0 + np.asarray(kept)]
    plain = logistic().fit([PARTS[1], by_hand(table.loc[kept])], labels, masses)
    assert_array_equal(logistic(loose).fit(sites, sample_weight=weights).coef_, plain.coef_)
    targets = {site: own["death"] for site, own in sites.items()}
    assert_array_equal(logistic(beside).fit(sites, targets, weights).coef_, plain.coef_)
    refused("in one row", loose.complete, loose.parsed(table.assign(age=-9)), kind=PublicError)


def test_a_fit_by_a_codebook_is_the_fit_of_its_columns_and_over_a_grid():
    """And takes tables as they come wherever it takes rows, at a new site too."""
    plain = logistic().fit(PARTS, DEATHS)
    model = logistic(BOOK).fit(dict(zip(BOOK.sites, TABLES, strict=True)))
    assert_array_equal(model.coef_, plain.coef_)
    assert tuple(model.feature_names_in_) == BOOK.features
    assert_array_equal(model.predict(hospital(7)), plain.predict(by_hand(hospital(7))))
    assert model.quality(TABLES).overall == plain.quality(PARTS, DEATHS).overall
    assert model.score(TABLES[0], DEATHS[0]) == plain.score(PARTS[0], DEATHS[0])
    whole = pd.concat(TABLES, ignore_index=True)
    again = logistic(BOOK).fit(whole, groups=np.repeat(BOOK.sites, 120))
    far, _ = fit_over_a_grid(logistic(BOOK), TABLES)
    for other in (again, far):
        assert_allclose(other.coef_, plain.coef_, rtol=0.0, atol=1e-11)
        assert tuple(other.feature_names_in_) == BOOK.features
    model = logistic(BOOK, site_intercepts="local").fit(TABLES)
    plain = logistic(site_intercepts="local").fit(PARTS, DEATHS)
    assert model.intercept_for(TABLES[1]) == plain.intercept_for(PARTS[1], DEATHS[1])


def test_outcomes_are_times_in_any_order_or_beside_the_table():
    book = Codebook(COLUMNS, {"death": Column(levels=["no", "yes"]), "time": Column(range=(0, 1e3))})
    coded = [own.assign(death=np.where(own["death"] == 1, "yes", "no")) for own in TABLES]
    plain = FederatedCoxRegression().fit(PARTS, [own[["time", "death"]] for own in TABLES])
    assert_array_equal(FederatedCoxRegression(codebook=book).fit(coded).coef_, plain.coef_)
    book = Codebook(COLUMNS)
    assert_array_equal(logistic(book).fit(TABLES, DEATHS).coef_, logistic().fit(PARTS, DEATHS).coef_)
    message = "part 0 gives no y, and the codebook has no outcome"
    refused(message, logistic(book).fit, TABLES, kind=PublicError)


# --- splines ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(-50, 50), min_size=3, max_size=7, unique=True).map(sorted), st.integers(0, 2**32 - 1))
def test_splines_are_the_natural_ones_with_the_codebooks_knots(knots, seed):
    column = Column(knots=[float(knot) for knot in knots])
    values = np.random.default_rng(seed).standard_normal(len(knots))
    x = np.linspace(knots[0], knots[-1], 50)
    at_knots, basis = (np.vstack([np.ones(own.size), column.spline(own)]).T for own in (np.array(knots, float), x))
    found = basis @ np.linalg.solve(at_knots, values)
    assert_allclose(found, CubicSpline(knots, values, bc_type="natural")(x), atol=1e-6)
    # A straight line beyond the ends.
    assert_allclose(np.diff(column.spline(knots[-1] + np.arange(3.0)), 2), 0.0, atol=1e-7)


# --- the file ---------------------------------------------------------------------------------------------------------

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
FINITE = st.floats(-1e6, 1e6)
ANY = st.one_of(
    st.builds(
        Column,
        unit=TEXTS,
        missing=st.lists(st.one_of(st.integers(), TEXTS), max_size=3),
        center=FINITE,
        spread=st.floats(1e-6, 1e6),
        knots=st.lists(FINITE, min_size=3, max_size=5, unique=True).map(sorted),
    ),
    st.builds(Column, levels=st.lists(TEXTS, min_size=2, max_size=4, unique=True)),
    st.just(Column(range=(0.0, math.inf), transform="sqrt")),
)


@given(st.dictionaries(TEXTS, ANY, min_size=1, max_size=4), st.lists(TEXTS, max_size=3))
def test_a_codebook_comes_back_from_its_file(tmp_path_factory, columns, sites):
    try:
        book = Codebook(columns, sites=sites)
    except ConfigurationError:
        # A level's column can have the name of another column.
        return
    path = tmp_path_factory.mktemp("codebook") / "codebook.toml"
    path.write_text(book.to_toml(), encoding="utf-8")
    again = Codebook.from_toml(path)
    found, expected = ((own.to_toml(), own.features, own.digest, list(own.sites)) for own in (again, book))
    assert found == expected
    assert list(again.sites) == sites


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[columns.age]\nrange = [110, 18]", r"\[columns.age\] .*range=\[110, 18\]"),
        ("[columns.age]\nrnage = [18, 110]", r"\[columns.age\] .*it has 'rnage'; expected of .*range, "),
        ("[columns.age]\nlevels = [1]", "two or more"),
        ("[columns.age]\ntype = 'levels'", "expected levels"),
        ("[columns.age]\nlevels = [1, 2]\nreference = 3", "expected one of levels"),
        ("[columns.age]\nknots = [1, 2]", "three or more"),
        ("[columns.age]\ntransform = 'log'\nrange = [0, 5]", "expected a range"),
        ("[columns.age]\nspread = 0", "spread=0"),
        ("[column.age]\n", "column"),
        ("columns = 3", "no codebook"),
        ("sites = ['Oslo']", r"toml is no codebook: columns=\[\], .*expected a column or more"),
        ("[columns.a]\n[outcome.a]", "each name once"),
        ("nothing", "no codebook"),
    ],
)
def test_a_file_that_is_no_codebook_is_an_error_that_names_file_and_column(tmp_path, text, message):
    path = tmp_path / "codebook.toml"
    path.write_text(text)
    said = refused(message, Codebook.from_toml, path)
    assert "codebook.toml" in said
    assert "__init__" not in said


# --- formulas ---------------------------------------------------------------------------------------------------------

LEARNT = ["center(age)", "bs(age, df=4)", "cr(age, df=3)", "age.mean()", "{age - age.mean()}", "scale(log(age))"]
LEARNT += ["C(age)", "hashed(stage, levels=2)", "lag(age)", "poly(age, max(age))", "age / max(age)", "scale(creatinin)"]
WITH_KNOTS = COLUMNS | {"age": Column(range=(18, 110), center=60.0, spread=10.0, knots=[45.0, 60.0, 75.0])}


@pytest.mark.parametrize("formula", [*LEARNT, "y ~ age", "age > 60"])
def test_a_formula_that_would_learn_from_a_sites_rows_is_refused(formula):
    pytest.importorskip("formulaic")
    refused(r"the formula has|expected a right side", Codebook, WITH_KNOTS, formula=formula)


def test_a_formula_of_all_sites_is_the_formula_of_all_rows():
    formulaic = pytest.importorskip("formulaic")
    book = Codebook(WITH_KNOTS, OUTCOME, formula="scale(age) + bs(age) + log(creatinine) * sex + C(stage)")
    made = pd.concat([book.read(own) for own in TABLES])
    assert tuple(made.columns) == book.features
    spline = "bs(age, knots=[45, 60, 75], lower_bound=18, upper_bound=110)"
    formula = f"{{(age-60)/10}} + {spline} + log(creatinine) * sex + C(stage, contr.treatment(2))"
    oracle = formulaic.model_matrix(formula, pd.concat(TABLES, ignore_index=True))
    order = [name for name in oracle.columns if name != "Intercept"]
    assert_allclose(made.to_numpy(float), oracle[order].to_numpy(float), atol=1e-12)


# --- a Table 1 of the sites -------------------------------------------------------------------------------------------

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

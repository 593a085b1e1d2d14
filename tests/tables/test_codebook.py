"""A codebook: what a site reads by it, what it refuses and logs, its file, formulas, and fits by it."""

import logging
import math

import numpy as np
import pytest
from federations import fit_over_a_grid
from hypothesis import given
from hypothesis import strategies as st
from scipy.interpolate import CubicSpline

from flwr_fco.errors import ConfigurationError, PublicError
from flwr_fco.tables import Codebook, Column, FederatedCoxRegression, FederatedLogisticRegression

pandas = pytest.importorskip("pandas")

AGE = Column(type="integer", unit="years", range=(18, 110), missing=[-9], center=60.0, spread=10.0)
BOOK = Codebook(
    {
        "age": AGE,
        "sex": Column(levels=["f", "m"], missing=["?"]),
        "stage": Column(levels=[1, 2, 3], reference=2),
        "creatinine": Column(unit="mg/dl", range=(0.1, 20.0), transform="log"),
        "smoker": Column(levels=[0, 1]),
    },
    {"death": Column(levels=[0, 1])},
    sites=["Oslo", "Bergen", "Tromso"],
)


def hospital(seed: int, n: int = 120) -> "pandas.DataFrame":
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
    return pandas.DataFrame(table | {"death": (rng.random(n) < 0.2 + 0.3 * (table["sex"] == "m")).astype(int)})


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
    return pandas.DataFrame(made).astype(float)


def log_of(caplog, action) -> tuple[str, str]:
    """Return the error of an action, and what is in the log."""
    logger = logging.getLogger("flwr")
    logger.addHandler(caplog.handler)
    try:
        with caplog.at_level(logging.INFO, logger="flwr"), pytest.raises(PublicError) as error:
            action()
    finally:
        logger.removeHandler(caplog.handler)
    return str(error.value), caplog.text


def test_every_site_has_the_same_columns_whatever_its_rows_are():
    for seed in range(3):
        table = hospital(seed)
        read = BOOK.read(table)
        assert tuple(read.columns) == BOOK.features
        np.testing.assert_array_equal(read.to_numpy(), by_hand(table).to_numpy())


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
    table = hospital(1).astype({column: object})
    table.loc[[7, 9], column] = [entry, entry]
    text, logged = log_of(caplog, lambda: BOOK.read(table))
    assert f"{column} has rows that are {fault}" in text
    assert "row 7" not in text
    assert repr(entry) not in text.replace(fault, "")
    assert f"{column}: 2 rows are {fault}: row 7 ({entry!r}), row 9 ({entry!r})" in logged


def test_codes_for_missing_are_no_entries_among_texts_too():
    read = Codebook({"age": Column(range=(18, 110), missing=[-9, "?"])}).read({"age": [60, -9, "?", None, pandas.NA]})
    np.testing.assert_array_equal(read["age"], [60.0, *[np.nan] * 4])


def test_a_name_that_differs_by_case_or_a_mark_is_said():
    with pytest.raises(PublicError, match=r"lacks the columns 'age' of the codebook: it has '\\ufeffAGE ' for 'age'"):
        Codebook({"age": Column()}).read({"\ufeffAGE ": [1.0]})


def test_a_column_that_is_not_there_or_twice_is_named():
    for table in (np.zeros((3, 2)), {"age": [60]}):
        with pytest.raises(PublicError, match=r"lacks the columns .*'sex'.*Give them their names"):
            BOOK.read(table)
    table = hospital(2)
    with pytest.raises(PublicError, match=r"has several columns of the name 'age'; expected one of each"):
        BOOK.read(pandas.concat([table, table[["age"]]], axis=1))


def test_missing_entries_are_refused_or_left_out_with_their_rows(caplog):
    table = hospital(2).astype({"age": float})
    table.loc[3, "age"], table.loc[5, "sex"], table.loc[8, "age"] = -9, "?", None
    sites = {"Oslo": hospital(1), "Bergen": table}
    text, logged = log_of(caplog, lambda: FederatedLogisticRegression(codebook=BOOK).fit(sites))
    assert "Bergen has missing entries of 'age', 'sex'" in text
    assert "age is missing in 2 rows: [3, 8]" in logged
    loose = Codebook(BOOK.columns, BOOK.outcome, incomplete="leave out")
    weights = {site: np.arange(1.0, 121.0) for site in sites}
    model = FederatedLogisticRegression(codebook=loose).fit(sites, sample_weight=weights)
    kept = table.index.difference([3, 5, 8])
    parts = [by_hand(hospital(1)), by_hand(table.loc[kept])]
    labels = [hospital(1)["death"], table["death"][kept]]
    plain = FederatedLogisticRegression().fit(parts, labels, [np.arange(1.0, 121.0), np.arange(1.0, 121.0)[kept]])
    np.testing.assert_array_equal(model.coef_, plain.coef_)
    beside = Codebook(BOOK.columns, incomplete="leave out")
    targets = {site: own["death"] for site, own in sites.items()}
    again = FederatedLogisticRegression(codebook=beside).fit(sites, targets, weights)
    np.testing.assert_array_equal(again.coef_, plain.coef_)
    with pytest.raises(PublicError, match="in one row"):
        loose.complete(loose.parsed(table.assign(age=-9)))


def test_a_fit_by_a_codebook_is_the_fit_of_its_columns_and_over_a_grid():
    sites = {name: hospital(seed) for seed, name in enumerate(BOOK.sites)}
    plain = FederatedLogisticRegression().fit(
        [by_hand(own) for own in sites.values()], [own["death"] for own in sites.values()]
    )
    model = FederatedLogisticRegression(codebook=BOOK, num_clients=3).fit(sites)
    np.testing.assert_array_equal(model.coef_, plain.coef_)
    assert tuple(model.feature_names_in_) == BOOK.features
    whole = pandas.concat(sites.values(), ignore_index=True)
    again = FederatedLogisticRegression(codebook=BOOK).fit(whole, groups=np.repeat(BOOK.sites, 120))
    np.testing.assert_allclose(again.coef_, plain.coef_, rtol=0.0, atol=1e-11)
    # At a new site, with the table as it comes.
    np.testing.assert_array_equal(model.predict(hospital(7)), plain.predict(by_hand(hospital(7))))
    far, _ = fit_over_a_grid(FederatedLogisticRegression(codebook=BOOK, num_clients=3), list(sites.values()))
    np.testing.assert_allclose(far.coef_, plain.coef_, rtol=0.0, atol=1e-11)
    assert tuple(far.feature_names_in_) == BOOK.features


def test_a_fitted_model_takes_tables_as_they_come_wherever_it_takes_rows():
    tables = [hospital(seed) for seed in range(2)]
    parts = [by_hand(own) for own in tables]
    labels = [own["death"] for own in tables]
    model = FederatedLogisticRegression(codebook=BOOK).fit(tables)
    plain = FederatedLogisticRegression().fit(parts, labels)
    assert model.quality(tables).overall == plain.quality(parts, labels).overall
    assert model.score(tables[0], labels[0]) == plain.score(parts[0], labels[0])
    model = FederatedLogisticRegression(codebook=BOOK, site_intercepts="local").fit(tables)
    plain = FederatedLogisticRegression(site_intercepts="local").fit(parts, labels)
    assert model.intercept_for(tables[1]) == plain.intercept_for(parts[1], labels[1])


def test_times_and_events_are_read_in_the_order_of_a_cox_model():
    book = Codebook(BOOK.columns, {"death": Column(levels=["no", "yes"]), "time": Column(range=(0, 1e3))})
    tables = [hospital(seed) for seed in range(3)]
    coded = [own.assign(death=np.where(own["death"] == 1, "yes", "no")) for own in tables]
    model = FederatedCoxRegression(codebook=book).fit(coded)
    plain = FederatedCoxRegression().fit([by_hand(own) for own in tables], [own[["time", "death"]] for own in tables])
    np.testing.assert_array_equal(model.coef_, plain.coef_)


def test_a_codebook_without_an_outcome_takes_y_from_beside_the_table():
    book = Codebook(BOOK.columns)
    tables = [hospital(seed) for seed in range(2)]
    model = FederatedLogisticRegression(codebook=book).fit(tables, [own["death"] for own in tables])
    assert model.coef_.shape == (1, 6)
    with pytest.raises(PublicError, match="part 0 gives no y, and the codebook has no outcome"):
        FederatedLogisticRegression(codebook=book).fit(tables)


# --- splines ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(-50, 50), min_size=3, max_size=7, unique=True).map(sorted), st.integers(0, 2**32 - 1))
def test_splines_are_the_natural_ones_with_the_codebooks_knots(knots, seed):
    column = Column(knots=[float(knot) for knot in knots])
    values = np.random.default_rng(seed).standard_normal(len(knots))
    x = np.linspace(knots[0], knots[-1], 50)
    at_knots, basis = (np.vstack([np.ones(own.size), column.spline(own)]).T for own in (np.array(knots, float), x))
    found = basis @ np.linalg.solve(at_knots, values)
    np.testing.assert_allclose(found, CubicSpline(knots, values, bc_type="natural")(x), atol=1e-6)
    # A straight line beyond the ends.
    beyond = column.spline(knots[-1] + np.arange(3.0))
    np.testing.assert_allclose(np.diff(beyond, 2), 0.0, atol=1e-7)


# --- the file ---------------------------------------------------------------------------------------------------------

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
FINITE = st.floats(-1e6, 1e6)
COLUMNS = st.one_of(
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


@given(st.dictionaries(TEXTS, COLUMNS, min_size=1, max_size=4), st.lists(TEXTS, max_size=3))
def test_a_codebook_comes_back_from_its_file(tmp_path_factory, columns, sites):
    try:
        book = Codebook(columns, sites=sites)
    except ConfigurationError:
        # A level's column can have the name of another column.
        return
    path = tmp_path_factory.mktemp("codebook") / "codebook.toml"
    path.write_text(book.to_toml(), encoding="utf-8")
    again = Codebook.from_toml(path)
    assert again.to_toml() == book.to_toml()
    assert again.features == book.features
    assert again.digest == book.digest
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
    with pytest.raises(ConfigurationError, match=message) as error:
        Codebook.from_toml(path)
    assert "codebook.toml" in str(error.value)
    assert "__init__" not in str(error.value)


# --- formulas ---------------------------------------------------------------------------------------------------------

LEARNT = ["center(age)", "bs(age, df=4)", "cr(age, df=3)", "age.mean()", "{age - age.mean()}", "scale(log(age))"]
LEARNT += ["C(age)", "hashed(stage, levels=2)", "lag(age)", "poly(age, max(age))", "age / max(age)", "scale(creatinin)"]
KNOTS = {"age": Column(range=(18, 110), center=60.0, spread=10.0, knots=[45.0, 60.0, 75.0])}


@pytest.mark.parametrize("formula", [*LEARNT, "y ~ age", "age > 60"])
def test_a_formula_that_would_learn_from_a_sites_rows_is_refused(formula):
    pytest.importorskip("formulaic")
    with pytest.raises(ConfigurationError, match=r"the formula has|expected a right side"):
        Codebook({**BOOK.columns, **KNOTS}, formula=formula)


def test_a_formula_of_all_sites_is_the_formula_of_all_rows():
    formulaic = pytest.importorskip("formulaic")
    tables = {site: hospital(seed) for seed, site in enumerate(BOOK.sites)}
    whole = pandas.concat(tables.values(), ignore_index=True)
    columns = {**BOOK.columns, **KNOTS}
    book = Codebook(columns, BOOK.outcome, formula="scale(age) + bs(age) + log(creatinine) * sex + C(stage)")
    made = pandas.concat([book.read(own) for own in tables.values()])
    assert tuple(made.columns) == book.features
    with_knots = "bs(age, knots=[45, 60, 75], lower_bound=18, upper_bound=110)"
    oracle = formulaic.model_matrix(
        f"{{(age-60)/10}} + {with_knots} + log(creatinine) * sex + C(stage, contr.treatment(2))", whole
    )
    order = [name for name in oracle.columns if name != "Intercept"]
    np.testing.assert_allclose(made.to_numpy(float), oracle[order].to_numpy(float), atol=1e-12)

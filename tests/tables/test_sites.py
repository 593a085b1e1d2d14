"""Tables of sites: whose rows, columns, units and names they have; their codebook, formulas, and a Table 1."""

import math
import re
import warnings
from datetime import date
from decimal import Decimal
from functools import partial
from itertools import product

import hospitals
import numpy as np
import pandas as pd
import pytest
from faults import FaultyGrid
from federations import altering, fit_over_a_grid, grid_of
from flwr.app import RecordDict
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from problems import Foreign, refused
from scipy.interpolate import CubicSpline
from scipy.sparse import csr_array
from sklearn.linear_model import Lasso
from sklearn.model_selection import LeaveOneGroupOut, cross_val_score

from flwr_fco.client_apps import Disclosure
from flwr_fco.core.computing import quiet
from flwr_fco.errors import ClientError, ConfigurationError, PublicError
from flwr_fco.messages.records import NAMES_ONLY, PARTITION, TABLE, addressed
from flwr_fco.tables import Codebook, Column, FederatedCoxRegression, FederatedLasso, FederatedLogisticRegression
from flwr_fco.tables.description import WITHHELD, withheld

NAMES = ["age", "bmi", "crp", "sex"]
BACK = NAMES[::-1]


def site(m, rows=40):
    """Return a table, and targets that follow from its columns by name."""
    rng = np.random.default_rng(m)
    table = pd.DataFrame(rng.standard_normal((rows, 4)), columns=NAMES)
    table["sex"] = rng.integers(0, 2, rows)
    return table, table["age"] - 2.0 * table["crp"] + 0.1 * rng.standard_normal(rows)


SITES = [site(m) for m in range(3)]
TABLES, TARGETS = ([own[place] for own in SITES] for place in range(2))
ROWS, Y = pd.concat(TABLES, ignore_index=True), np.concatenate(TARGETS)
OWNERS = np.repeat(["north", "south", "west"], 40)
WEIGHTS = np.random.default_rng(0).uniform(0.1, 3.0, 120) * (np.arange(120) % 7 > 0)


def with_site(m, table=None, targets=None):
    """Return the sites of which one has another table or other targets."""
    changed = TABLES[m] if table is None else table, TARGETS[m] if targets is None else targets
    return [*SITES[:m], changed, *SITES[m + 1 :]]


def lasso(**options):
    return FederatedLasso(0.1, num_clients=3, **options)


def fit_here(data, model=None, **options):
    return (model or lasso()).fit(*zip(*data, strict=True), **options)


def over_a_grid(data, model=None, **options):
    return fit_over_a_grid(model or lasso(), data, **{"features": NAMES, **options})[0]


def by_name(data):
    """Return the tables and targets of sites with names."""
    return [{f"site {m}": own[place] for m, own in enumerate(data)} for place in (0, 1)]


# --- columns ----------------------------------------------------------------------------------------------------------


def test_columns_are_taken_by_name_or_refused_of_a_grid_without_names():
    data = with_site(1, TABLES[1][BACK])
    here = fit_here(data)
    assert_allclose(here.coef_, Lasso(0.1, tol=1e-13).fit(ROWS, Y).coef_, rtol=0, atol=1e-7)
    assert here.feature_names_in_.tolist() == NAMES
    assert "trust" not in here.summary()
    assert list(here.summary().table().columns) == ["feature", "coefficient"]
    refused("same order", here.predict, data[1][0], kind=ValueError)
    assert list(data[1][0].columns) == BACK
    message = r"partition 1\) has its columns in another order than the ServerApp: .*'sex', there 'age'"
    refused(message, over_a_grid, data)
    refused(message.partition(":")[0], over_a_grid, data, features=None)
    with grid_of(lasso(), data) as grid:
        refused(message, lasso().describe, grid, features=NAMES)
    # More columns than the model has are left at the site.
    data[0] = TABLES[0].assign(id=range(40)), TARGETS[0]
    there = over_a_grid(data, app={"features": NAMES})
    assert_array_equal(there.coef_, here.coef_)
    assert "on trust" not in there.summary()
    refused(r"\) lacks 'alter' and has 'age', compared with the S", over_a_grid, SITES, features=["alter", *NAMES[1:]])


@pytest.mark.parametrize("raise_errors", [False, True])
def test_a_site_without_a_column_is_named(raise_errors):
    given = {"raise_errors": raise_errors}
    lacking = TABLES[2].drop(columns="crp")
    refused(r"partition 2\) lacks 'crp', compared with the ServerApp", over_a_grid, with_site(2, lacking), **given)
    given |= {"app": {"features": NAMES}, "kind": ClientError if raise_errors else ConfigurationError}
    refused(r"(partition|site) 2.*lack the columns \['crp'\] of features=", over_a_grid, with_site(2, lacking), **given)
    message = r"(partition|site) 2.*have 3 columns without names, and features= has 4"
    refused(message, over_a_grid, with_site(2, lacking.to_numpy()), **given)


@pytest.mark.parametrize(("named", "trust"), [([True] * 3, False), ([True, False, True], True)])
def test_the_order_of_arrays_is_taken_on_trust_and_the_summary_says_so(named, trust):
    data = [(table if own else table.to_numpy(), y) for own, (table, y) in zip(named, SITES, strict=True)]
    for features in (NAMES, 4, None):
        model = over_a_grid(data, features=features)
        assert ("taken on trust" in model.summary()) == trust
        assert_array_equal(model.coef_, fit_here(SITES).coef_)


SECOND = TABLES[1]
OTHER = [
    ("site 1 lacks 'bmi', compared with site 0; .* columns that they have in common", SECOND.drop(columns="bmi")),
    ("site 1 has 'z', compared with site 0", SECOND.assign(z=1.0)),
    (r"site 1: y has the labels of X's rows in another order", SECOND[::-1]),
    (r"site 1: entries are missing \(NaN\): X\['bmi'\] in 40 of 40 rows", SECOND.assign(bmi=np.nan)),
    ("'age', 'bmi' hold texts, .*; ex", SECOND.assign(age=date(2020, 1, 1), bmi=pd.Timestamp("2020-01-01"))),
    (r"0 has .*'crp'.*: site 1 lacks 'age' and has 'Age'.* expected", SECOND.rename(columns={"age": "Age"})),
    (r"site 1 has the columns .* site 0 has .* expected the same names", SECOND.to_numpy()),
    ("site 1 has several columns of the name 'bmi'; ex", SECOND.set_axis(["age", "bmi", "bmi", "sex"], axis=1)),
    ("site 1: X holds dates or times.*; expected numbers", SECOND.to_numpy().astype("m8[s]")),
    ("site 1 has entries that are masked", np.ma.masked_less(SECOND.to_numpy(), 0.0)),
    ("site 1 has rows of unequal length, .* in each$", [[1.0, 2.0, 3.0, 4.0], [1.0]]),
    (r"site 1: (.|\n)*array=\[\](.|\n)*; expected a table with a row", []),
    ("site 1 is a NoneType; give an array", None),
    ("site 1 is a dict; give an array", SECOND.to_dict("list")),
    ("site 1: .*got 1D array(.|\n)*; expected a table", SECOND.to_numpy()[0]),
]


@pytest.mark.parametrize(("message", "other"), OTHER)
def test_the_part_and_the_column_are_named(message, other):
    first = TABLES[0] if isinstance(other, pd.DataFrame) or "the columns" in message else TABLES[0].to_numpy()
    refused(message, lasso().fit, [first, other], TARGETS[:2])


def test_names_that_are_twice_or_no_texts():
    """As scikit-learn has it: a frame without names is an array, and a fit forgets the names of the one before."""
    twice = [TABLES[0].set_axis(list("abbd"), axis=1), TABLES[1].set_axis(list("babd"), axis=1)]
    for X, y in ((twice, TARGETS[:2]), (twice[0], TARGETS[0])):
        refused("(site 0|X) has several columns of the name", lasso().fit, X, y)
    model, arrays = fit_here(SITES), [own.to_numpy() for own in TABLES]
    # Numbers may be texts elsewhere.
    parts = pd.DataFrame(arrays[0], pd.array(range(40), "Int64")), pd.DataFrame(arrays[1], columns=list("0123"))
    model.fit([*parts, arrays[2]], list(map(pd.Series, TARGETS)))
    assert_array_equal(model.coef_, lasso().fit(arrays, TARGETS).coef_)
    assert not hasattr(model, "feature_names_in_")
    frames = [pd.DataFrame(arrays[0]), pd.DataFrame(arrays[1])[[1, 0, 2, 3]]]
    # Their order is not compared by scikit-learn.
    for fitted in (model, over_a_grid([*zip(map(pd.DataFrame, arrays), TARGETS, strict=True)], features=None)):
        refused("X has its columns in another order than the fit: .* '1', there '0'", fitted.predict, frames[1])
    refused("expected the same names, in any order if they are texts", model.fit, frames, TARGETS[:2])
    # By their names' texts they are found, where features= has them, and in a Table 1.
    named = {"features": list("0123"), "app": {"features": range(4)}}
    data = zip([*frames, arrays[2]], TARGETS, strict=True)
    assert_array_equal(over_a_grid([*data], **named).coef_, fit_here(SITES).coef_)
    assert model.describe(frames, TARGETS[:2]) == model.describe(list(map(pd.DataFrame, arrays[:2])), TARGETS[:2])
    # With coefficients of the fit before beside columns of this one it would predict wrongly.
    refused("not fitted", model.predict, ROWS, kind=ValueError)


def test_a_factor_finds_its_feature_by_name_or_pattern():
    """Whatever the order of the columns, and of the entries."""
    factors = np.array([0.5, 2.5, 1.0, 1.0])
    expected = Lasso(0.1, tol=1e-13).fit(ROWS / factors, Y).coef_ / factors
    data = with_site(0, TABLES[0][BACK])
    series = pd.Series({"bmi": 2.5, "crp": 1, "age": 0.5, "sex": 1})
    ones = {"age": 0.5, "bmi": 2.5}
    first = {"a*": 0.5, "?m*": 2.5, "*": 1.0, "?ge": 3.0}
    for by_feature in (ones, series, factors[::-1], first, {"*": 1.0, "[b]*": 3.0} | ones):
        assert_allclose(fit_here(data, lasso(penalty_factor=by_feature)).coef_, expected[::-1], atol=1e-7)
    there = over_a_grid(SITES, lasso(penalty_factor={"bmi": 2.5, "age": 0}))
    assert_array_equal(there.coef_, fit_here(SITES, lasso(penalty_factor=[0, 2.5, 1, 1])).coef_)
    brackets = ROWS.rename(columns={"crp": "x[0]"})
    literal, plain = lasso(penalty_factor={"x[0]": 2.0}), lasso(penalty_factor=[1, 1, 2, 1])
    assert_array_equal(literal.fit(brackets, Y).coef_, plain.fit(brackets, Y).coef_)
    for wrong, message in (
        ({"age": 0, "d": 0}, r"names \['d'\], which X does not have; its features are sex, crp, bmi, age$"),
        ({"A*": 0}, r"penalty_factor names \['A\*'\], which X does not have"),
        ({"a*": np.nan}, "penalty_factor=nan of feature age"),
    ):
        refused(message, fit_here, data, lasso(penalty_factor=wrong))


# --- classes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at_a_site", "classes"), [(["no", "yes"], [0, 1]), ([0, 1], ["0", "1"]), ([0, 1, 2], [0, 1, 3])]
)
def test_classes_that_a_site_and_the_server_name_differently_are_refused(at_a_site, classes):
    labels = np.array(at_a_site)[np.arange(40) % len(at_a_site)]
    fit = partial(over_a_grid, [(table, labels) for table in TABLES], FederatedLogisticRegression(num_clients=3))
    app = {"classes": at_a_site}
    refused(r"partition 0\) has the classes .*, the ServerApp ", fit, app=app, classes=classes)
    # 0.0 is 0, and the order in which they are given is none.
    fit(app=app, classes=np.array(at_a_site)[::-1])
    if at_a_site == [0, 1]:
        fit(app=app, classes=[0.0, 1.0])
    message = r"(classes=\[\.\.\.\] to client_app.* and to fit|client_app and fit the same classes=)"
    for own, raises in [] if at_a_site == [0, 1] else product((app, {}), (True, False)):
        refused(message, fit, app=own, raise_errors=raises, kind=(ConfigurationError, ClientError))


def two(coding, y):
    return np.array(coding)[(np.asarray(y) > 0.0).astype(int)]


def test_two_codings_of_two_classes_are_not_three_classes():
    model = FederatedLogisticRegression()
    labels = [two([0, 1], TARGETS[0]), two([-1, 1], TARGETS[1]), two([0, 1], TARGETS[2])]
    refused(r"site 0 has labels 0, site 1 has labels -1, and none has both", model.fit, TABLES, labels)
    refused("site north has labels 0, site south has labels -1", model.fit, ROWS, np.concatenate(labels), groups=OWNERS)
    # Where a site has both, there are three classes; and rows that are dealt from one table have one coding.
    labels[2] = np.arange(40) % 3 - 1
    assert model.fit(TABLES, labels).classes_.tolist() == [-1, 0, 1]
    assert model.fit(ROWS[:6], [-1, 0, 1, 1, 0, -1]).classes_.tolist() == [-1, 0, 1]
    assert FederatedLasso(0.1).fit(TABLES, labels).coef_.shape == (4,)
    for codes in ([False, True], [0.0, 1.0]):
        labels = [two([0, 1], TARGETS[0]), two(codes, TARGETS[1]), two([1, 1], TARGETS[2])]
        assert model.fit(TABLES, labels).classes_.tolist() == [0, 1]


def test_a_class_of_two_spellings_is_no_third_class():
    """Unless a client has both, as it has genotypes."""
    fit = FederatedLogisticRegression().fit
    first = two(["no", "yes"], TARGETS[0])
    for spelling in ("Yes", "yes ", "\uff59es"):
        other = two(["no", spelling], TARGETS[1])
        refused(f"site 0 has labels 'yes', site 1 has labels '{spelling}'", fit, TABLES[:2], [first, other])
    assert fit(TABLES[:2], [first, np.array(["AA", "Aa", "aa"])[np.arange(40) % 3]]).classes_.size == 5
    refused("site 1 has other labels than site 0", fit, TABLES[:2], [first, two([0, 1], TARGETS[1])])
    assert fit(TABLES[:2], [pd.Series(first, dtype=own) for own in ("string", "category")]).classes_.size == 2


# --- rows: whose, how many, of which weight ---------------------------------------------------------------------------


@pytest.mark.parametrize("nothing", [np.nan, None, pd.NA, pd.NaT], ids=str)
def test_rows_without_a_client_are_refused(nothing):
    groups = (pd.Series, pd.array)[nothing is pd.NA]([nothing, *[pd.Timestamp(0) if nothing is pd.NaT else 0.0] * 119])
    refused(r"groups\[0\] is missing .*as 1 of 120 entries are", lasso().fit, ROWS, Y, groups=groups)
    refused("clusters has entries that are mis", lasso(cluster="c").fit, ROWS.assign(c=["nan", nothing, *[0] * 118]), Y)


def test_groups_are_the_clients():
    grouped = lasso(site_intercepts="local").fit(ROWS, Y, groups=OWNERS)
    assert_array_equal(grouped.coef_, fit_here(SITES, lasso(site_intercepts="local")).coef_)
    refused("whose parts are the clients already", lasso().fit, TABLES, TARGETS, groups=OWNERS)
    refused("groups has entries that are masked", lasso().fit, ROWS, Y, groups=np.ma.array(OWNERS, mask=Y > 0.0))
    refused(r"such as X\['site'\]", lasso().fit, TABLES[0], TARGETS[0], groups="site")
    refused("0 sample", lasso().fit, ROWS[:0], Y[:0], groups=OWNERS[:0], kind=ValueError)
    own = partial(cross_val_score, X=ROWS.astype(pd.SparseDtype(float, 0)), y=Y, groups=OWNERS, cv=LeaveOneGroupOut())
    assert_allclose(own(lasso(), params={"groups": OWNERS}), own(Lasso(0.1, tol=1e-13)), rtol=0, atol=1e-6)


def test_weights_that_cannot_be():
    for weights, message in (
        (-WEIGHTS, "sample_weight is negative"),
        (0.0 * WEIGHTS, "zero everywhere"),
        (WEIGHTS[:3], "inconsistent"),
        (WEIGHTS * np.nan, "sample_weight contains NaN"),
        (pd.to_timedelta(WEIGHTS, unit="D"), "sample_weight holds dates or times"),
    ):
        refused(message, lasso().fit, ROWS, Y, sample_weight=weights, kind=ValueError)
    refused("_weight is an ndarray of 120; expected a list as long", fit_here, SITES, sample_weight=WEIGHTS)
    refused("_weight is a list of 2; expected a list as", fit_here, SITES, sample_weight=[WEIGHTS[:40], WEIGHTS[:3]])
    refused(r"site 1: .*\[40, 3\]; exp.* an entry", fit_here, SITES[:2], sample_weight=[WEIGHTS[:40], WEIGHTS[:3]])


@pytest.mark.parametrize(
    ("model", "y"),
    [(FederatedLasso(0.1), Y), (FederatedCoxRegression(), np.column_stack([np.abs(Y) + 0.1, Y > 0.0]))],
)
def test_parts_that_are_lists_of_rows_are_arrays(model, y):
    """All clients' or some, in a list or a tuple, with weights: as NumPy reads them."""
    arrays = [[own[:60], own[60:]] for own in (ROWS.to_numpy(), y, 1.0 + WEIGHTS)]
    X, *others = ([own.tolist() for own in each] for each in arrays)
    expected = model.fit(*arrays).coef_.copy()
    for features in (X, tuple(X), [X[0], arrays[0][1]]):
        assert_array_equal(model.fit(features, *others).coef_, expected)


def unnumbered(*given, **options):
    """Return SuperNodes that were started with the path of their data alone: nobody says which partition it has."""
    return Foreign(FaultyGrid(*given, {lambda delivery: []: 1.0}, message_types=(PARTITION,), **options))


def test_nodes_without_a_partition_id_are_as_many_sites():
    """What a site's rows weigh and may curve, and its column of a Table 1, is its own."""
    data = [(*own, np.linspace(1.0, 2.0 + m, 40)) for m, own in enumerate(SITES)]
    there, grid = fit_over_a_grid(lasso(), data, features=NAMES, grid=unnumbered, intervals=True)
    here = fit_here(data, intervals=True)
    assert_allclose([*there.coef_, there.intercept_], [*here.coef_, here.intercept_], rtol=1e-9)
    with grid.identity(), quiet(50):
        assert {row["site"] for row in there.describe(grid, features=NAMES).rows} == {"site 2", "site 3", "site 4"}


def test_two_sites_with_the_same_rows_are_named():
    with np.errstate(over="raise"), pytest.warns(UserWarning, match="site 2 has the same rows as site 0"):
        over_a_grid([SITES[0], (TABLES[1], TARGETS[1].astype("float32")), SITES[0]])
    X, y = ({site: own[m] for site, m in (("Oslo", 0), ("Bergen", 1), ("Bodo", 0))} for own in (TABLES, TARGETS))
    with pytest.warns(UserWarning, match="site Bodo has the same rows as site Oslo"):
        lasso().fit(X, y)
    # Small tables of two numbers are the same by chance, and a large one has rows that are there twice.
    rows = {"Oslo": np.arange(16), "Bergen": np.arange(16), "Bodo": np.arange(400)}
    few = {site: pd.DataFrame({"sex": 1.0 + own % 2, "ward": 1.0 + (own % 64 > 60)}) for site, own in rows.items()}
    died = {site: np.arange(len(own)) % 8 < 3 for site, own in few.items()}
    with warnings.catch_warnings(action="error"):
        FederatedLogisticRegression().fit(few, died).describe(few, died)


# --- units ------------------------------------------------------------------------------------------------------------


def in_other_units(factor=10.0):
    return with_site(1, TABLES[1].assign(crp=factor * TABLES[1]["crp"]))


WARNED = r"crp \(0\.\d+ at {0} \d, \d+\.\d+ at {0} 1\)\. If the units differ"


@pytest.mark.parametrize("form", [lambda table: table, lambda table: csr_array(table.to_numpy())], ids=["frame", "csr"])
def test_a_column_in_other_units_is_named_with_the_sites(form):
    tables, y = zip(*in_other_units(), strict=True)
    message = WARNED if form(tables[0]) is tables[0] else WARNED.replace("crp", "x2")
    with pytest.warns(UserWarning, match=message.replace("{0}", "site")) as caught:
        lasso().fit([form(table) for table in tables], y)
    assert [warning.filename for warning in caught] == [__file__]
    with pytest.warns(UserWarning, match=WARNED.replace("{0}", "partition")) as caught:
        over_a_grid([(form(table), own) for table, own in zip(tables, y, strict=True)])
    assert len(caught) == 1
    with pytest.warns(UserWarning, match=r"crp \(.* at site west, .* at site south\)"):
        lasso().fit(pd.concat(tables, ignore_index=True), Y, groups=OWNERS)


def test_what_is_not_a_matter_of_units_is_not_warned_of():
    rng = np.random.default_rng(0)
    data = [(table.copy(), y) for table, y in in_other_units(4.0)]
    for m, (table, _) in enumerate(data):
        table["sex"] = np.arange(40) <= [19, 0, 39][m]
    data[0][0]["bmi"] = 7.0
    # Fewer rows than twenty say more of the rows than of the unit.
    few = pd.DataFrame(100.0 * rng.standard_normal((19, 4)), columns=NAMES)
    data.append((few, few["age"]))
    with warnings.catch_warnings(action="error", category=UserWarning):
        fit_here(data)
        over_a_grid(data, lasso().set_params(num_clients=4))
        # Rows that are dealt from one table have one unit, whatever their order.
        rows = pd.concat([table for table, _ in in_other_units(100.0)])
        lasso().fit(rows.to_numpy()[np.argsort(np.arange(120) % 3)], Y)


# --- what cannot be read, and what is said of it ----------------------------------------------------------------------


def test_a_site_of_few_rows_says_nothing_of_its_columns():
    few = TABLES[1][BACK][:15], TARGETS[1][:15]
    disclosure = Disclosure(min_rows=20)
    refused(r"2 of num_clients=3 .*site 1: .*min_rows=20", over_a_grid, with_site(1, *few), disclosure=disclosure)
    asked = {NAMES_ONLY: "the names of its columns and classes", TABLE: "the names and scales of its col"}
    with grid_of(lasso(), [few], disclosure=disclosure) as grid:
        for kind, words in asked.items():
            (answer,) = grid.send_and_receive(addressed(grid, [(2, RecordDict())], kind, 0))
            assert re.search(f"{words}.*; .*min_rows=20", answer.error.reason)


@pytest.mark.parametrize("features", [None, 4, NAMES])
def test_a_fit_that_no_site_can_load_says_why(features):
    """Whoever is asked first, and not that arrays have no names; of a traceback the first line."""

    def load(m):
        raise FileNotFoundError(f"rows-{m}.csv\nis missing")

    whys = "; ".join(f"site {m}: error 2: FileNotFoundError: rows-{m}.csv" for m in range(3))
    text = refused("", over_a_grid, load, features=features)
    assert text == f"0 of num_clients=3 sites have answered; the reasons of the others: {whys}"
    arrays = TABLES[0].to_numpy(), TARGETS[0]
    refused(r"^2 of num_cl.*rows-1", over_a_grid, lambda m: load(m) if m == 1 else arrays, features=features)


@pytest.mark.parametrize("what", ["missing (NaN)", "infinite"])
@pytest.mark.parametrize(("lacks", "dtype"), [("crp", "float64"), ("crp", "Float64"), ("y", "float64")])
def test_missing_entries_are_named_with_site_column_and_rows(lacks, dtype, what):
    rows = np.isin(np.arange(40), [3, 7])
    gone = np.inf if what == "infinite" else np.nan
    table = TABLES[1] if lacks == "y" else TABLES[1].assign(crp=TABLES[1]["crp"].mask(rows, gone).astype(dtype))
    data = with_site(1, table, TARGETS[1].mask(rows, gone) if lacks == "y" else None)
    where = re.escape(f"entries are {what}: " + {"crp": "X['crp']"}.get(lacks, "y"))
    refused(rf"site 1: {where} in 2 of 40 rows\. Leave such rows out", lasso().fit, *by_name(data))
    for act in (fit_here(SITES).predict, lambda X: lasso().fit(X, TARGETS[1])):
        refused(r"^entries are missing .*: X\['crp'\] in 40 of", act, TABLES[1].assign(crp=np.nan))
    # The server does not learn in how many, nor does a limit of the site's owner hide the column.
    message = rf"site 1: error 2: PublicError: {where}\. Leave"
    for disclosure in (None, Disclosure(min_rows=5)):
        refused(message, over_a_grid, data, disclosure=disclosure)
    refused("several columns of the name '1'", over_a_grid, with_site(1, TABLES[1].set_axis([0, 1, 1, 2], axis=1)))


def test_texts_are_named_with_site_and_column_and_not_shown():
    data = with_site(1, TABLES[1].assign(sex=np.where(TABLES[1]["sex"] > 0, "secret", "f")))
    message = r"X: the columns 'sex' hold texts, categories, dates or times"
    refused(message, fit_here, data)
    refused(message, lasso().fit, *data[1])
    texts = [refused(f"2 of num_clients=3 sites have answered.*{message}", over_a_grid, data)]
    data = with_site(1, targets=pd.Series(["secret"] * 40))
    refused("site 1: y holds texts; expected numbers", lasso().fit, *by_name(data))
    texts.append(refused(r"site 1: .*y holds texts", over_a_grid, data))
    assert not any("secret" in text for text in texts)
    for changed in ((TABLES[1] + 1j,), (TABLES[1], TARGETS[1] + 1j)):
        refused("site 1: .*(no real numbers|Complex data not)", over_a_grid, with_site(1, *changed))


# --- a codebook -------------------------------------------------------------------------------------------------------

COLUMNS = {
    "age": Column(type="integer", unit="years", range=(18, 110), missing=[-9], center=60.0, spread=10.0),
    "sex": Column(levels=["f", "m"], missing=["?"]),
    "stage": Column(levels=[1, 2, 3], reference=np.int64(2)),
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


COHORTS = [hospital(seed) for seed in range(3)]
DEATHS = [own["death"] for own in COHORTS]


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


PARTS = [by_hand(own) for own in COHORTS]


def logistic(book=None, **options):
    return FederatedLogisticRegression(codebook=book, num_clients=3, **options)


# --- what is read -----------------------------------------------------------------------------------------------------


def test_every_site_has_the_same_columns_whatever_its_rows_are():
    for table, made in zip(COHORTS, PARTS, strict=True):
        # A row keeps its label, by which pandas joins it to others.
        pd.testing.assert_frame_equal(BOOK.read(table[::-1]), made[::-1])
    # A level's own factor goes before that of them all.
    for factors in ({"stage=1": 3.0, "stage": 2.0}, pd.Series({"stage": 2.0, "stage=1": 3.0})):
        assert BOOK.by_feature(factors) == {"stage=1": 3.0, "stage=3": 2.0}
    # Codes for missing are no entries among texts too.
    read = Codebook({"age": Column(missing=[-9.9, "?"])}).read({"age": [Decimal(6), Decimal("-9.9"), "?", None, pd.NA]})
    assert_array_equal(read["age"], [6.0, *[np.nan] * 4])
    # And numbers in single precision are those that are written.
    refused("is an Arrow; give", BOOK.read, type("Arrow", (list,), {"column_names": ["age"], "columns": [[6.0]]})())
    read = Codebook({"age": Column(range=(0.1, 9.0), missing=[-99.9])})
    assert_array_equal(read.read({"age": np.float32([0.1, -99.9])})["age"], [0.1, np.nan])
    # Nor is what is under a mask.
    assert_array_equal(read.read({"age": np.ma.masked_equal(np.float32([0.1, 5]), 5)})["age"], [0.1, np.nan])


NOT_IN_BOOK = [
    ("age", 6200, "outside 18 to 110 years"),
    ("age", "62", "no number"),
    ("age", math.inf, "infinite"),
    ("age", 60.5, "no whole number"),
    ("sex", "female", "none of the levels 'f', 'm'"),
    ("stage", 0, "none of the levels 1, 2, 3"),
]


@pytest.mark.parametrize(("column", "entry", "fault"), NOT_IN_BOOK)
def test_an_entry_that_does_not_fit_is_shown_to_its_site_only(column, entry, fault, caplog):
    table = COHORTS[1].astype({column: object})
    table.loc[[7, 9], column] = [entry, entry]
    text = refused(f"{column} has rows that are {fault}", BOOK.read, table, kind=PublicError)
    assert "row 7" not in text
    assert repr(entry) not in text.replace(fault, "")
    assert f"{column}: 2 rows are {fault}: row 7 ({entry!r}), row 9 ({entry!r})" in caplog.text


def test_a_column_that_is_not_there_or_twice_is_named():
    for message, book, table in (
        (r"lacks the columns .*'sex'.*Give them their names", BOOK, {"age": [60]}),
        (r"lacks the columns .*Read the file with sep=';'", BOOK, {"age;sex": ["60;1"]}),
        (r"lacks .* 'é' .*it has '\\ufeffE\\u0301\\xa0' for", Codebook({"é": Column()}), {"\ufeffE\u0301\xa0": [1.0]}),
        ("age has rows that are no number", Codebook({"age": Column()}), {"age": np.array(["2020"], "M8[ns]")}),
        ("has several columns of the name 'age'", BOOK, pd.concat([COHORTS[2], COHORTS[2][["age"]]], axis=1)),
    ):
        refused(message, book.read, table, kind=PublicError)


# --- fits -------------------------------------------------------------------------------------------------------------


def test_missing_entries_are_refused_or_left_out_with_their_rows(caplog):
    table = COHORTS[2].astype({"age": float})
    table.loc[3, "age"], table.loc[5, "sex"], table.loc[8, "age"] = -9, "?", None
    sites = {"Oslo": COHORTS[1], "Bergen": table}
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
    refused("more rows, or fewer, than y", logistic(beside).fit, sites, targets | {"Oslo": kept}, kind=PublicError)
    refused("in one row: .* empty", loose.complete, loose.parsed(table.assign(age=-9)), kind=PublicError)


def test_a_fit_by_a_codebook_is_the_fit_of_its_columns_and_over_a_grid():
    """And takes tables as they come wherever it takes rows, at a new site too."""
    plain = logistic().fit(PARTS, DEATHS)
    # A column of clusters may be a feature.
    model = logistic(BOOK, cluster="stage").fit(dict(zip(BOOK.sites, COHORTS, strict=True)))
    assert_array_equal(model.coef_, plain.coef_)
    assert tuple(model.feature_names_in_) == BOOK.features
    assert_array_equal(model.predict(hospital(7)), plain.predict(by_hand(hospital(7))))
    assert model.quality(COHORTS).overall == plain.quality(PARTS, DEATHS).overall
    assert model.score(COHORTS[0], DEATHS[0]) == plain.score(PARTS[0], DEATHS[0])
    again = logistic(BOOK).fit(pd.concat(COHORTS, ignore_index=True), groups=np.repeat(BOOK.sites, 120))
    far, _ = fit_over_a_grid(logistic(BOOK), COHORTS)
    with grid_of(far, COHORTS) as grid:
        here = [own["site"] for own in logistic(BOOK).fit(grid, without="Oslo").quality(grid).rows]
    assert here == [f"site {site}" for site in BOOK.sites]
    for other in (again, far):
        assert_allclose(other.coef_, plain.coef_, rtol=0.0, atol=1e-11)
        assert tuple(other.feature_names_in_) == BOOK.features
    model = logistic(BOOK, site_intercepts="local").fit(COHORTS)
    plain = logistic(site_intercepts="local").fit(PARTS, DEATHS)
    assert model.intercept_for(COHORTS[1]) == plain.intercept_for(PARTS[1], DEATHS[1])


def test_outcomes_are_times_in_any_order_or_beside_the_table():
    # A stratum is no event, and a row is a stratum's of the site.
    outcome = {"strata": Column(levels=[0, 1]), "death": Column(levels=["nein", "ja"]), "time": Column(range=(0, 1e3))}
    coded = [own.assign(death=np.where(own["death"] == 1, "ja", "nein"), strata=0) for own in COHORTS]
    plain = FederatedCoxRegression().fit(PARTS, [own[["time", "death"]] for own in COHORTS])
    model = FederatedCoxRegression(codebook=Codebook(COLUMNS, outcome))
    assert_array_equal(model.fit(coded).coef_, plain.coef_)
    assert [own["column"] for own in model.describe(coded).rows][-3:] == ["time", "death", "death"]
    # Of classes the odds are those of the last one.
    with pytest.warns(UserWarning, match="odds are of 'nein' against 'ja'.* give it reference='ja'"):
        logistic(Codebook(COLUMNS, {"death": outcome["death"]})).fit(coded)
    model = logistic(Codebook(COLUMNS))
    assert_array_equal(model.fit(COHORTS, DEATHS).coef_, logistic().fit(PARTS, DEATHS).coef_)
    refused("site 0 gives no y, and the codebook has no outcome", model.fit, COHORTS, kind=PublicError)


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
        missing=st.lists(st.one_of(st.integers(), st.integers(-9, 9).map(np.int64), TEXTS), max_size=3),
        center=FINITE,
        spread=st.floats(1e-6, 1e6),
        knots=st.lists(FINITE, min_size=3, max_size=5, unique=True).map(sorted),
    ),
    st.builds(Column, levels=st.lists(TEXTS, min_size=2, max_size=4, unique=True)),
    st.just(Column(range=(0.0, math.inf), transform="sqrt")),
)


@given(st.dictionaries(TEXTS, ANY, min_size=1, max_size=4), st.lists(TEXTS, max_size=3, unique=True))
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
    same = [Codebook({"a": Column(levels=[0, own], reference=own)}) for own in (2, 2.0, np.float64(2))]
    assert len({(own.features, own.digest) for own in same}) == 1


def test_a_file_that_is_no_codebook_is_an_error_that_names_file_and_column(tmp_path):
    path = tmp_path / "codebook.toml"
    for text, message in (
        ("[columns.age]\nrange = [110, 18]", r"\[columns.age\] .*range=\[110, 18\]"),
        ("[columns.age]\nrnage = [18, 110]", r"\[columns.age\] .*rnage=.*no such option; did you mean range"),
        ("[columns.age]\nlevels = [1]", "two or more"),
        ("[columns.age]\ntype = 'levels'", "expected levels"),
        ("[columns.age]\nlevels = [1, 2]\nreference = 3", "expected one of levels"),
        ("[columns.age]\nknots = [1, nan, 3]", "three or more"),
        ("[columns.age]\ncenter = nan", "a finite number"),
        ("[columns.age]\ntransform = 'log'\nrange = [0, 5]", "expected a range"),
        ("[columns.age]\nlevels = [1979-05-27, 1]", "expected texts and numbers"),
        ("x = " + "[" * 5000, "no codebook"),
        ("[column.age]\n", "column"),
        ("columns = 3", r"no codebook as to_toml\(\) writes one: "),
        ("sites = ['Oslo']", r"toml is no codebook as .*: columns=\[\], .*expected a column or more"),
        ("[columns.a]\n[outcome.a]", "each name once"),
        ("[columns.a]\n[outcome.b]\nspread = 2", "'b' has a transform, center, spread or knots; expected none"),
        ("sites = ['Oslo', 'Oslo']\n[columns.a]", r"sites=\['Oslo', 'Oslo'\]; .*each name once"),
        ("nothing", "no codebook"),
    ):
        path.write_text(text)
        said = refused(message, Codebook.from_toml, path)
        assert "codebook.toml" in said
        assert "__init__" not in said
    refused("no codebook as .*it is a folder, a device or a pipe", Codebook.from_toml, tmp_path)
    refused("'age' is {}; expected a text, and a Column", Codebook, {"age": {}})


# --- formulas ---------------------------------------------------------------------------------------------------------

LEARNT = ["center(age)", "bs(age, df=4)", "cr(age, df=3)", "age.mean()", "{age - age.mean()}", "scale(log(age))"]
LEARNT += ["C(age)", "hashed(stage, levels=2)", "lag(age)", "poly(age, max(age))", "age / max(age)", "scale(creatinin)"]
LEARNT += ["{age / (age @ age)}", "{age * 2**99**3}", "{age * 1j}"]
WITH_KNOTS = COLUMNS | {"age": Column(range=(18, 110), center=60.0, spread=10.0, knots=[45.0, 60.0, 75.0])}


@pytest.mark.parametrize("formula", [*LEARNT, "y ~ age", "age > 60", "1", "(age + creatinine + sex)**30"])
def test_a_formula_that_would_learn_from_a_sites_rows_is_refused(formula):
    pytest.importorskip("formulaic")
    # Also where a column has that name, as it is not looked up.
    refused("the formula has|right side|or more|4th power", Codebook, WITH_KNOTS | {formula: Column()}, formula=formula)


def test_a_formula_of_all_sites_is_the_formula_of_all_rows():
    formulaic = pytest.importorskip("formulaic")
    book = Codebook(WITH_KNOTS, OUTCOME, formula="scale(age) + bs(age) + log(creatinine) * sex + C(stage)")
    made = pd.concat([book.read(own) for own in COHORTS])
    assert tuple(made.columns) == book.features
    assert book.by_feature({"stage": 2.0}) == {"stage": 2.0}
    names = "a b", "Intercept"
    assert Codebook({n: Column() for n in names}, formula="`a b` * Intercept").features == (*names, "a b:Intercept")
    # A row without its stage has not that of the reference.
    assert book.read(COHORTS[0][:1].assign(stage=None)).isna().sum().sum() == len(COLUMNS["stage"].shown)
    spline = "bs(age, knots=[45, 60, 75], lower_bound=18, upper_bound=110)"
    formula = f"{{(age-60)/10}} + {spline} + log(creatinine) * sex + C(stage, contr.treatment(2))"
    oracle = formulaic.model_matrix(formula, pd.concat(COHORTS, ignore_index=True))
    order = [name for name in oracle.columns if name != "Intercept"]
    assert_allclose(made.to_numpy(float), oracle[order].to_numpy(float), atol=1e-12)


# --- a Table 1 of the sites -------------------------------------------------------------------------------------------

MODELS = {"classes": FederatedLogisticRegression, "times": FederatedCoxRegression, "numbers": FederatedLasso}
PLACES = ["Oslo", "Bergen", "Tromso", "Molde"]


def described(model, sites, **options):
    """Return a Table 1, with the warnings as a text."""
    with warnings.catch_warnings(record=True, action="always") as caught, quiet(50):
        table = model.describe(sites, **options)
    return table, " | ".join(str(own.message) for own in caught)


def described_over_a_grid(model, sites, disclosure=None, *, stop=True, **options):
    model.num_clients = len(sites)
    with grid_of(model, list(sites.values()), disclosure=disclosure, **options) as grid:
        return described(model, grid, stop=stop)


def study_model(kind="classes", **options):
    return MODELS[kind](codebook=hospitals.codebook(kind, hospitals.STUDY, sites=PLACES, **options))


def rows_by_site(table):
    return table.table().set_index(["site", "column"])


# --- its numbers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MODELS)
def test_its_numbers_are_those_of_the_tables_here_and_over_a_grid(kind):
    sites = {name: own.assign(score=own["age"] + own["bmi"]) for name, own in hospitals.study().items()}
    here, said = described(study_model(kind), sites)
    there, _ = described_over_a_grid(study_model(kind), sites)
    assert str(here) == str(there)
    assert (said, here.findings, there.findings) == ("", [], [])
    table = rows_by_site(there)
    for site, own in sites.items():
        for name in ("age", "creatinine", "stage"):
            row = table.loc[[(site, name)]].iloc[0]
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
    assert said == described(FederatedLogisticRegression(cluster="smoker"), X, y=y)[1] == ""
    assert_allclose(rows_by_site(table).loc[[("Oslo", "bmi")], "mean"], sites["Oslo"]["bmi"].mean(), rtol=1e-12)
    whole = pd.concat(sites.values(), ignore_index=True)
    owners = np.repeat(list(sites), [len(own) for own in sites.values()])
    grouped, _ = described(FederatedLogisticRegression(), whole[hospitals.NAMES], y=whole["died"], groups=owners)
    means = [own.table().sort_values(["column", "level", "rows"])["mean"].to_numpy() for own in (table, grouped)]
    assert_allclose(*means, rtol=1e-12)
    refused("groups=", FederatedLogisticRegression().describe, whole[hospitals.NAMES], whole["died"])
    refused("site 1: has 4 columns", FederatedLasso().describe, [np.eye(3), np.eye(4)], [np.ones(3), np.arange(4.0)])
    refused("no site names its columns", described_over_a_grid, FederatedLasso(), {"Oslo": (np.eye(3), np.arange(3.0))})
    for change, message in (
        ({"marker": 0.0}, "marker is 0 in all rows, and varies at other sites"),
        ({"age": [6200.0, *np.arange(299) % 50 + 40.0]}, "age has a single number far beyond all others"),
        ({"died": None}, "entries are missing (NaN): y"),
        ({"died": "yes"}, "a label is none of classes=[0, 1]"),
    ):
        X, y = in_two(sites | {"Bergen": sites["Bergen"].assign(**change)})
        assert f"Bergen: {message}" in described(FederatedLogisticRegression(), X, y=y, stop=False)[1]


@pytest.mark.parametrize(("limits", "both", "alone"), [(None, 1.0, 3.0), (Disclosure(min_rows=10), 0.0, math.nan)])
def test_missing_entries_are_counted_in_all_rows_outcomes_in_complete_ones(limits, both, alone):
    """But for few: those that lack two, or a column, are those that lack any less those that lack others."""
    sites = dict(hospitals.study())
    oslo = sites["Oslo"] = sites["Oslo"].assign(smoker=1.0 * (np.arange(400) < 9))
    oslo.loc[:20, "bmi"] = oslo.loc[20:41, "age"] = oslo.loc[50:52, ["creatinine", "smoker"]] = np.nan
    table, _ = described_over_a_grid(study_model(incomplete="leave out"), sites, limits)
    rows = rows_by_site(table).loc["Oslo"]
    assert_array_equal(rows.loc[["bmi", "age", "creatinine"], "missing"], [20.0 + both, 21.0 + both, alone])
    assert rows.loc["age", "rows"] == 396.0 + both + np.nan_to_num(alone)
    assert rows.loc["died", ["rows", "count"]].sum().tolist() == [2.0 * 355.0, 355.0]
    assert rows.loc["smoker", "count"].isna().tolist() == [limits is not None] * 2
    assert "  missing" in table


def test_a_site_with_other_rows_or_codebook_is_named_beside_the_table():
    sites = hospitals.wrong("an age of 6200", "classes")
    table, said = described_over_a_grid(study_model(), sites, stop=False)
    assert [own.site for own in table.findings] == ["Bergen"]
    assert "age has rows that are outside 18 to 110 years" in said
    assert set(table.table()["site"]) == {"Oslo", "Tromso", "Molde"}
    refused(r"Bergen: .*18 to 110.*stop=False", described_over_a_grid, study_model(), sites)
    columns = hospitals.STUDY | {"age": Column(range=(0.0, 120.0))}
    other = FederatedCoxRegression(codebook=hospitals.codebook("times", columns, sites=PLACES))
    server = study_model("times").fit(hospitals.study()).set_params(num_clients=1)
    with grid_of(other, [sites["Oslo"]]) as grid:
        for act in (partial(server.curves, times=[9.0]), server.quality, server.describe, server.fit):
            refused("(Oslo:|: this site) has another codebook or estimator than the server", act, grid)
    with grid_of(lasso(), SITES) as grid:
        refused("has another codebook or estimator", FederatedLogisticRegression(num_clients=3).fit, grid)
        refused("this site gives no clusters", lasso(cluster="sex").fit, grid)
    with grid_of(lasso(cluster="sex"), SITES) as grid:
        refused("this site gives clusters", lasso().fit, grid, features=NAMES[:3], intervals=True)


def test_a_site_that_says_what_no_rows_have_makes_no_other_one_look_odd():
    for name, factor in (("outcome", 1e6), ("said", -1.0), ("counts", 9.0), ("widest", 1e3)):
        lying = altering(1, name, lambda *said, a=name, by=factor: [o.update({a: o[a] * by}) for o in said if a in o])
        (finding,) = described_over_a_grid(study_model(), hospitals.study(), grid=lying, stop=False)[0].findings
        assert f"{finding}" == f"{PLACES[1]}: its Table 1 has counts, deviations or correlations that no rows have"
    nothing = altering(1, "counts", lambda own, _: [own[name].fill(WITHHELD) for name in ("said", "counts")])
    assert described_over_a_grid(study_model(), hospitals.study(), grid=nothing)[1] == ""


# --- what its owner withholds -----------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 30), min_size=2, max_size=5).map(np.array), st.integers(1, 10))
def test_no_count_below_the_limit_follows_from_the_others_and_their_sum(counts, least):
    hidden = withheld(counts, least)
    assert hidden[(counts > 0) & (counts < least)].all()
    # What is hidden is the sum less the others, unless the sum says it: there is nothing else.
    assert counts[hidden].sum() > max(least - 1, hidden.sum()) or hidden[counts > 0].all() or not hidden.any()


def test_what_is_about_few_rows_is_withheld():
    rng = np.random.default_rng(1)
    tables = {}
    for site in ("a", "b", "c"):
        group = np.repeat(["common", "other", "few"], [150, 46, 4])
        table = pd.DataFrame(
            {"group": group, "age": rng.normal(60.0, 9.0, 200), "rare": [2] * 3 + [1] * 60 + [0] * 137}
        )
        # Of two of the others.
        tables[site] = table.assign(died=np.where(group == "other", np.arange(200) < 152, rng.integers(0, 2, 200)))
    # Of two rows nothing is known, and the number of one would be the mean.
    tables["a"].loc[:1, "age"], tables["c"].loc[5, "age"] = np.nan, 1e4
    named = {"group": Column(levels=["common", "other", "few"]), "age": Column(), "rare": Column()}
    model = FederatedLogisticRegression(codebook=Codebook(named, hospitals.OUTCOMES["classes"], incomplete="leave out"))
    open_table, _ = described_over_a_grid(model, tables)
    spied = []
    spy = altering(0, "outcome", lambda vectors, _: spied.extend(vectors["outcome"]))
    table, _ = described_over_a_grid(model, tables, Disclosure(min_rows=5), grid=spy)
    # By all of their digits correlations would say how many rows are few, and their outcomes.
    assert [own == 0.0 for own in spied] == [True, True, False, True]
    assert_allclose(spied, np.round(spied, 2), atol=1e-12)
    for own, shown in zip(open_table.rows, table.rows, strict=True):
        assert math.isnan(shown["count"]) == (own["level"] in ("other", "few", ""))
        # Two rows are in no sum of the fit: differences would be theirs.
        dropped = 2.0 * (own["site"] == "site 0")
        assert own["level"] != "common" or shown["count"] == own["count"] - dropped
        assert shown["rows"] == own["rows"] - dropped * (own["column"] != "died")
        assert own["column"] != "rare" or math.isnan(shown["mean"])
        if own["column"] == "age":
            assert math.isnan(shown["missing"]) == (own["site"] == "site 0")
            values = np.sort(list(tables.values())[int(own["site"][-1])]["age"].dropna())
            assert shown["mean"] == own["mean"] or (values.max() == 1e4 and math.isnan(shown["mean"]))
            middle = round(0.5 * (values.size - 1) - 2.0)
            assert shown["median"] == pytest.approx(values[middle : middle + 5].mean())
    # Of fewer than four times as many rows, quartiles less each other, or the mean, may be single rows.
    few = described_over_a_grid(model, tables, Disclosure(min_rows=50))[0].table().set_index("column").loc["age"]
    assert few[["mean", "median"]].isna().to_numpy().tolist() == [[False, True], [False, False], [True, False]]


def test_where_outcomes_of_a_kind_are_few_nothing_says_which_rows_have_them(caplog):
    """And the site does not look odd because of it."""
    X, _ = in_two(hospitals.study())
    sites = {site: (own, np.arange(len(own)) < 3 if site == "Oslo" else own["age"] > 60.0) for site, own in X.items()}
    spied = []
    # Nor does the largest correlation of two columns say a cell of their table.
    spy = altering(0, "outcome", lambda said, numbers: spied.extend([*said["outcome"], numbers["widest"] % 1.0]))
    _, said = described_over_a_grid(FederatedLogisticRegression(), sites, Disclosure(min_rows=5), grid=spy)
    assert {*spied} == {0.0}
    assert "outcome" not in said
    # The deviation of a column of zeros and ones is a count.
    assert ("query.names" in caplog.text, "deviations" in caplog.text) == (True, False)


# --- what is wrong ----------------------------------------------------------------------------------------------------

#: What passes in silence: no number of a Table 1 changes, or none so much as honest sites differ.
SILENT = {"sex reversed", "outcomes of other rows", "stage by the alphabet"}


#: What is about outcomes, which times are, and about rows; columns are looked at as those beside classes are.
OF_TIMES = "outcome|time|event|row|file"


@pytest.mark.parametrize(
    ("kind", "about"), [("classes", ""), ("times", OF_TIMES), pytest.param("times", "", marks=pytest.mark.nightly)]
)
def test_of_36_ways_to_be_wrong_at_most_4_pass_in_silence(kind, about):
    silent = set()
    for way in filter(re.compile(about).search, hospitals.WAYS):
        table, said = described(study_model(kind), hospitals.wrong(way, kind), stop=False)
        assert {own.site for own in table.findings} <= {hospitals.WRONG}, way
        silent |= set() if said else {way}
    allowed = SILENT | hospitals.FINE | (hospitals.ABOUT_TIMES if kind == "classes" else {"outcome reversed"})
    assert len(hospitals.WAYS) == 36
    assert silent <= allowed
    assert described(study_model(kind), hospitals.study())[1] == ""


@pytest.mark.parametrize(("count", "most"), [(10, 0), pytest.param(200, 10, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("kind", MODELS)
def test_of_honest_federations_5_percent_have_a_warning_and_none_an_error(kind, count, most):
    model = MODELS[kind](codebook=hospitals.codebook(kind, hospitals.HONEST))
    tables = [described(model, hospitals.honest(seed, kind), stop=False)[0] for seed in range(count)]
    assert sum(bool(own.findings) for own in tables) <= most
    assert not any(own.refused for table in tables for own in table.findings)

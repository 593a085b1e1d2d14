"""Estimators over sites whose data do not fit together: columns, codings, units and groups."""

import re
import warnings
from functools import partial

import numpy as np
import pandas as pd
import pytest
from federations import fit_over_a_grid, grid_of
from flwr.app import RecordDict
from scipy.sparse import csr_array

from flwr_fco.client_apps import Disclosure
from flwr_fco.errors import ClientError, ConfigurationError
from flwr_fco.messages.records import NAMES_ONLY, TABLE, addressed
from flwr_fco.tables import FederatedLasso, FederatedLogisticRegression

NAMES = ["age", "bmi", "crp", "sex"]


def sites(number=3, rows=40):
    """Tables of some sites, and targets that follow from the columns by name."""
    found = []
    for m in range(number):
        rng = np.random.default_rng(m)
        table = pd.DataFrame(rng.standard_normal((rows, 4)), columns=NAMES)
        table["sex"] = rng.integers(0, 2, rows)
        found.append((table, table["age"] - 2.0 * table["crp"] + 0.1 * rng.standard_normal(rows)))
    return found


over_a_grid = partial(fit_over_a_grid, features=NAMES)


def lasso(**options):
    return FederatedLasso(0.1, num_clients=3, **options)


def test_columns_in_another_order_at_one_site_are_refused_or_taken_by_name():
    data = sites()
    data[1] = data[1][0][NAMES[::-1]], data[1][1]
    message = r"partition 1\) has its columns in another order than the ServerApp: .*'sex', there 'age'"
    with pytest.raises(ConfigurationError, match=message):
        over_a_grid(lasso(), data)
    # More columns than the model has are left at the site.
    data[0] = data[0][0].assign(id=range(40)), data[0][1]
    there, _ = over_a_grid(lasso(), data, app={"features": NAMES})
    here = lasso().fit(*zip(*sites(), strict=True))
    assert np.array_equal(there.coef_, here.coef_)
    assert "on trust" not in there.summary()


def test_all_sites_are_compared_with_the_names_of_the_server():
    with pytest.raises(ConfigurationError, match=r"partition 0\) lacks 'alter' and has 'age', compared with the S"):
        over_a_grid(lasso(), sites(), features=["alter", *NAMES[1:]])


@pytest.mark.parametrize("raise_errors", [False, True])
def test_a_site_without_a_column_is_named(raise_errors):
    data = sites()
    data[2] = data[2][0].drop(columns="crp"), data[2][1]
    with pytest.raises(ConfigurationError, match=r"partition 2\) lacks 'crp', compared with the ServerApp"):
        over_a_grid(lasso(), data, raise_errors=raise_errors)
    kind = ClientError if raise_errors else ConfigurationError
    with pytest.raises(kind, match=r"partition 2.*lack the columns \['crp'\] of features="):
        over_a_grid(lasso(), data, app={"features": NAMES}, raise_errors=raise_errors)
    data[2] = data[2][0].to_numpy(), data[2][1]
    with pytest.raises(kind, match=r"partition 2.*have 3 columns without names, and features= has 4"):
        over_a_grid(lasso(), data, app={"features": NAMES}, raise_errors=raise_errors)


@pytest.mark.parametrize(("named", "trust"), [([True] * 3, False), ([True, False, True], True)])
def test_the_order_of_arrays_is_taken_on_trust_and_the_summary_says_so(named, trust):
    data = [(table if own else table.to_numpy(), y) for own, (table, y) in zip(named, sites(), strict=True)]
    for features in (NAMES, 4):
        model, _ = over_a_grid(lasso(), data, features=features)
        assert ("taken on trust" in model.summary()) == trust
        assert np.array_equal(model.coef_, lasso().fit(*zip(*sites(), strict=True)).coef_)


@pytest.mark.parametrize(
    ("at_a_site", "classes"), [(["no", "yes"], [0, 1]), ([0, 1], ["0", "1"]), ([0, 1, 2], [0, 1, 3])]
)
def test_classes_that_a_site_and_the_server_name_differently_are_refused(at_a_site, classes):
    model = FederatedLogisticRegression(num_clients=3)
    data = [(table, np.array(at_a_site)[np.arange(40) % len(at_a_site)]) for table, _ in sites()]
    with pytest.raises(ConfigurationError, match=r"partition 0\) has the classes .*, the ServerApp "):
        over_a_grid(model, data, app={"classes": at_a_site}, classes=classes)
    # 0.0 is 0, and the order in which they are given is none.
    over_a_grid(model, data, app={"classes": at_a_site}, classes=np.array(at_a_site)[::-1])
    if at_a_site == [0, 1]:
        over_a_grid(model, data, app={"classes": at_a_site}, classes=[0.0, 1.0])


@pytest.mark.parametrize("labels", [["no", "yes"], [0, 1, 2]])
@pytest.mark.parametrize("app", [True, False])
@pytest.mark.parametrize("raises", [True, False])
def test_an_error_says_where_to_give_forgotten_classes(labels, app, raises):
    model = FederatedLogisticRegression(num_clients=3)
    data = [(table, np.array(labels)[np.arange(40) % len(labels)]) for table, _ in sites()]
    message = r"(classes=\[\.\.\.\] to client_app.* and to fit|client_app and fit the same classes=)"
    with pytest.raises((ConfigurationError, ClientError), match=message):
        over_a_grid(model, data, app={"classes": labels} if app else {}, raise_errors=raises)


def two(coding, y):
    return np.array(coding)[(np.asarray(y) > 0.0).astype(int)]


def test_two_codings_of_two_classes_are_not_three_classes():
    tables, y = zip(*sites(), strict=True)
    model = FederatedLogisticRegression()
    labels = [two([0, 1], y[0]), two([-1, 1], y[1]), two([0, 1], y[2])]
    with pytest.raises(ConfigurationError, match=r"part 0 has labels 0, part 1 has labels -1, and none has both"):
        model.fit(list(tables), labels)
    groups = np.repeat(["north", "south", "west"], 40)
    rows = pd.concat(tables, ignore_index=True)
    with pytest.raises(ConfigurationError, match=r"north has labels 0, south has labels -1"):
        model.fit(rows, np.concatenate(labels), groups=groups)
    # Where a site has both, there are three classes; and rows that are dealt from one table have one coding.
    labels[2] = np.arange(40) % 3 - 1
    assert model.fit(list(tables), labels).classes_.tolist() == [-1, 0, 1]
    assert model.fit(rows[:6], [-1, 0, 1, 1, 0, -1]).classes_.tolist() == [-1, 0, 1]
    assert FederatedLasso(0.1).fit(list(tables), labels).coef_.shape == (4,)
    for codes in ([False, True], [0.0, 1.0]):
        labels = [two([0, 1], y[0]), two(codes, y[1]), two([1, 1], y[2])]
        assert model.fit(list(tables), labels).classes_.tolist() == [0, 1]


@pytest.mark.parametrize(
    "groups",
    [
        [np.nan, *np.zeros(119)],
        [None, *["a"] * 119],
        pd.Series([pd.NA, *["a"] * 119], dtype="string"),
        pd.Series([pd.NaT, *[pd.Timestamp(2026, 1, 1)] * 119]),
        pd.Categorical([None, *["a"] * 119]),
    ],
    ids=["nan", "None", "string", "NaT", "category"],
)
def test_rows_without_a_client_are_refused(groups):
    tables, y = zip(*sites(), strict=True)
    rows = pd.concat(tables, ignore_index=True)
    targets = np.concatenate(y)
    with pytest.raises(ConfigurationError, match=r"groups\[0\] is missing .*as 1 of 120 entries are"):
        lasso().fit(rows, targets, groups=groups)


def in_other_units(data, site=1, column="crp", factor=10.0):
    changed = [(table.copy(), y) for table, y in data]
    changed[site][0][column] *= factor
    return changed


WARNED = r"crp \(0\.\d+ at {0} \d, \d+\.\d+ at {0} 1\)\. If the units differ"


@pytest.mark.parametrize("form", [lambda table: table, lambda table: csr_array(table.to_numpy())], ids=["frame", "csr"])
def test_a_column_in_other_units_is_named_with_the_sites(form):
    tables, y = zip(*in_other_units(sites()), strict=True)
    message = WARNED if form(tables[0]) is tables[0] else WARNED.replace("crp", "x2")
    with pytest.warns(UserWarning, match=message.replace("{0}", "part")) as caught:
        lasso().fit([form(table) for table in tables], y)
    assert [warning.filename for warning in caught] == [__file__]
    with pytest.warns(UserWarning, match=WARNED.replace("{0}", "partition")) as caught:
        over_a_grid(lasso(), [(form(table), own) for table, own in zip(tables, y, strict=True)])
    assert len(caught) == 1
    rows = pd.concat(tables, ignore_index=True)
    groups = np.repeat(["north", "south", "west"], 40)
    with pytest.warns(UserWarning, match=r"crp \(.* at west, .* at south\)"):
        lasso().fit(rows, np.concatenate(y), groups=groups)


def test_what_is_not_a_matter_of_units_is_not_warned_of():
    rng = np.random.default_rng(0)
    data = in_other_units(sites(), factor=4.0)
    for m, (table, _) in enumerate(data):
        table["sex"] = 0
        table.loc[: [19, 0, 39][m], "sex"] = 1
    data[0][0]["bmi"] = 7.0
    # Fewer rows than twenty say more of the rows than of the unit.
    few = pd.DataFrame(100.0 * rng.standard_normal((19, 4)), columns=NAMES)
    data.append((few, few["age"]))
    tables, y = zip(*data, strict=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        lasso().fit(list(tables), y)
        over_a_grid(lasso().set_params(num_clients=4), data)
        # Rows that are dealt from one table have one unit, whatever their order.
        rows = pd.concat([table for table, _ in in_other_units(sites(), factor=100.0)])
        lasso().fit(rows.to_numpy()[np.argsort(np.arange(120) % 3)], np.concatenate(y[:3]))


def test_a_site_of_few_rows_says_nothing_of_its_columns():
    data = sites()
    data[1] = data[1][0][NAMES[::-1]][:15], data[1][1][:15]
    with pytest.raises(ConfigurationError, match=r"2 of num_clients=3 .*partition 1: .*min_rows=20"):
        over_a_grid(lasso(), data, disclosure=Disclosure(min_rows=20))
    asked = {NAMES_ONLY: "the names of its columns and classes", TABLE: "the names and scales of its col"}
    with grid_of(lasso(), [data[1]], disclosure=Disclosure(min_rows=20)) as grid:
        for kind, words in asked.items():
            (answer,) = grid.send_and_receive(addressed(grid, [(2, RecordDict())], kind, 0))
            assert re.search(f"{words}.*; .*min_rows=20", answer.error.reason)


def test_sites_with_frames_say_the_names_themselves():
    data = sites()
    named, _ = over_a_grid(lasso(penalty_factor={"age": 0.5}), data)
    asked, _ = over_a_grid(lasso(penalty_factor={"age": 0.5}), data, features=None)
    assert np.array_equal(asked.coef_, named.coef_)
    assert asked.feature_names_in_.tolist() == NAMES
    assert asked.n_iter_ == named.n_iter_
    data[2] = data[2][0][NAMES[::-1]], data[2][1]
    with pytest.raises(ConfigurationError, match=r"partition 2\) has its columns in another order than the ServerApp"):
        over_a_grid(lasso(), data, features=None)
    arrays = [(table.to_numpy(), targets) for table, targets in sites()]
    with pytest.raises(ConfigurationError, match="no site names its columns"):
        over_a_grid(lasso(), arrays, features=None)
    mixed = [sites()[0], *arrays[1:]]
    found, _ = over_a_grid(lasso(), mixed, features=None)
    assert "on trust" in found.summary()


@pytest.mark.parametrize("features", [None, 4, NAMES])
def test_a_fit_that_no_site_can_load_says_why(features):
    """Whoever is asked first, and not that arrays have no names; of a traceback the first line."""
    table, y = sites()[0]

    def load(m):
        raise FileNotFoundError(f"rows-{m}.csv\nis missing")

    whys = "; ".join(f"partition {m}: error 2: FileNotFoundError: rows-{m}.csv" for m in range(3))
    with pytest.raises(ConfigurationError) as caught:
        fit_over_a_grid(lasso(), load, features=features)
    assert str(caught.value) == f"0 of num_clients=3 sites have answered; the reasons of the others: {whys}"
    with pytest.raises(ConfigurationError, match=r"^2 of num_cl.*rows-1"):
        fit_over_a_grid(lasso(), lambda m: load(m) if m == 1 else (table.to_numpy(), y), features=features)


def test_a_column_of_text_is_refused_by_name_here_and_at_a_site():
    data = sites()
    features, targets = data[1]
    data[1] = features.assign(sex=np.where(features["sex"] > 0, "secret", "f")), targets
    message = r"X: the columns \['sex'\] hold texts or categories"
    with pytest.raises(ConfigurationError, match=message):
        lasso().fit(*zip(*data, strict=True))
    with pytest.raises(ConfigurationError, match=message):
        lasso().fit(*data[1])
    with pytest.raises(ConfigurationError, match=f"2 of num_clients=3 sites have answered.*{message}") as error:
        over_a_grid(lasso(), data)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("lacks", ["crp", "y"])
def test_missing_entries_are_named_with_site_column_and_rows(lacks):
    data = sites()
    table, targets = data[1]
    rows = np.isin(np.arange(40), [3, 7])
    data[1] = (table, targets.mask(rows)) if lacks == "y" else (table.assign(crp=table["crp"].mask(rows)), targets)
    X, y = ({f"site {m}": own[place] for m, own in enumerate(data)} for place in (0, 1))
    where = "y" if lacks == "y" else "X['crp']"
    with pytest.raises(ConfigurationError) as error:
        lasso().fit(X, y)
    assert f"site 1: entries are missing (NaN): {where} in 2 of 40 rows. Leave such rows out" in str(error.value)
    # The server does not learn in how many, nor does a limit of the site's owner hide the column.
    for disclosure in (None, Disclosure(min_rows=5)):
        with pytest.raises(ConfigurationError) as error:
            over_a_grid(lasso(), data, disclosure=disclosure)
        assert f"partition 1: error 2: PublicError: entries are missing (NaN): {where}. Leave" in str(error.value)


def test_texts_in_y_are_named_with_their_site_and_not_shown():
    data = sites()
    data[1] = data[1][0], pd.Series(["secret"] * 40)
    X, y = ({f"site {m}": own[place] for m, own in enumerate(data)} for place in (0, 1))
    with pytest.raises(ConfigurationError, match="site 1: y holds texts; expected numbers"):
        lasso().fit(X, y)
    with pytest.raises(ConfigurationError, match=r"partition 1: .*y holds texts") as error:
        over_a_grid(lasso(), data)
    assert "secret" not in str(error.value)


def test_two_sites_with_the_same_rows_are_named():
    data = sites()
    with pytest.warns(UserWarning, match="partition 2 has the same rows as partition 0"):
        over_a_grid(lasso(), [*data[:2], data[0], *data[3:]])
    X, y = ({site: data[m][place] for site, m in (("Oslo", 0), ("Bergen", 1), ("Bodo", 0))} for place in (0, 1))
    with pytest.warns(UserWarning, match="Bodo has the same rows as Oslo"):
        lasso().fit(X, y)

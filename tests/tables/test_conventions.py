"""scikit-learn's conventions: names of columns, weights of rows, whose rows they are, labels that are texts."""

from datetime import date

import numpy as np
import pytest
from federations import fit_over_a_grid
from sklearn.linear_model import Lasso
from sklearn.model_selection import LeaveOneGroupOut, cross_val_score

from flwr_fco.errors import ConfigurationError
from flwr_fco.tables import FederatedCoxRegression, FederatedElasticNet, FederatedLasso, FederatedLogisticRegression

pd = pytest.importorskip("pandas")

_RNG = np.random.default_rng(0)
X = _RNG.normal(size=(60, 3))
Y = X @ [1.0, -2.0, 0.0] + 0.1 * _RNG.normal(size=60)
WEIGHTS = _RNG.uniform(0.1, 3.0, 60)
WEIGHTS[::7] = 0.0
FRAME = pd.DataFrame(X, columns=["a", "b", "c"])
CLIENTS = np.array(["north", "south", "west"])[_RNG.integers(0, 3, 60)]
HALVES = slice(None, 30), slice(30, None)
TARGETS = [Y[half] for half in HALVES]


def test_columns_of_the_clients_are_aligned_by_name():
    frames = [FRAME[:30], FRAME[30:][["c", "a", "b"]]]
    model = FederatedLasso(0.1).fit(frames, TARGETS)
    expected = Lasso(0.1, tol=1e-13).fit(X, Y)
    np.testing.assert_allclose(model.coef_, expected.coef_, rtol=0, atol=1e-7)
    assert model.feature_names_in_.tolist() == ["a", "b", "c"]
    assert "trust" not in model.summary()
    assert list(model.summary().table().columns) == ["feature", "coefficient"]
    with pytest.raises(ValueError, match="same order"):
        model.predict(frames[1])
    assert list(frames[1].columns) == ["c", "a", "b"]


def test_a_factor_finds_its_feature_by_name():
    """Whatever the order of the columns, and of the entries."""
    frames = [FRAME[:30][["c", "a", "b"]], FRAME[30:]]
    factors = np.array([0.5, 2.5, 1.0])
    expected = Lasso(0.1, tol=1e-13).fit(X / factors, Y).coef_ / factors
    for given in ({"b": 2.5, "a": 0.5}, pd.Series({"b": 2.5, "c": 1, "a": 0.5}), [1, 0.5, 2.5]):
        model = FederatedLasso(0.1, penalty_factor=given).fit(frames, TARGETS)
        np.testing.assert_allclose(model.coef_, expected[[2, 0, 1]], atol=1e-7)
    model = FederatedLasso(0.1, num_clients=1, penalty_factor={"b": 2.5, "a": 0})
    there, _ = fit_over_a_grid(model, [(frames[1], TARGETS[1])], features=list("abc"))
    here = FederatedLasso(0.1, penalty_factor=[0, 2.5, 1]).fit([frames[1]], [TARGETS[1]])
    np.testing.assert_array_equal(there.coef_, here.coef_)
    with pytest.raises(ConfigurationError, match=r"names \['d'\], which X does not have; its features are c, a, b$"):
        FederatedLasso(0.1, penalty_factor={"a": 0, "d": 0}).fit(frames, TARGETS)


@pytest.mark.parametrize(
    "other",
    [FRAME[30:].rename(columns={"a": "z"}), X[30:], FRAME[30:].set_axis(["a", "b", "b"], axis=1)],
    ids=["other names", "an array", "a name twice"],
)
def test_columns_with_other_names_or_one_name_twice_are_refused(other):
    with pytest.raises(ConfigurationError, match=r"part 1 has the columns .* part 0 has .* expected the same names"):
        FederatedLasso(0.1).fit([FRAME[:30], other], TARGETS)
    frames = [FRAME[:30].set_axis(["a", "b", "b"], axis=1), FRAME[30:].set_axis(["b", "a", "b"], axis=1)]
    with pytest.raises(ConfigurationError, match="part 0 has several of the name"):
        FederatedLasso(0.1).fit(frames, TARGETS)


def test_a_factor_finds_features_by_a_pattern():
    frame = FRAME.assign(**{"a2": X[:, 1] ** 2, "x[0]": X[:, 2] ** 2})
    ones = {"a": 0.5, "b": 1.0, "c": 1.0, "a2": 0.5, "x[0]": 2.0}
    expected = FederatedLasso(0.1, penalty_factor=ones).fit(frame, Y)
    for given in ({"a*": 0.5, "x[0]": 2.0}, {"?2": 0.5, "a": 0.5, "x*": 2}, {"*": 2.0, "[bc]": 3.0} | ones):
        np.testing.assert_array_equal(FederatedLasso(0.1, penalty_factor=given).fit(frame, Y).coef_, expected.coef_)
    with pytest.raises(ConfigurationError, match="penalty_factor=nan of feature a"):
        FederatedLasso(0.1, penalty_factor={"a*": np.nan}).fit(frame, Y)
    with pytest.raises(ConfigurationError, match="has patterns with two factors of feature a2; name it itself"):
        FederatedLasso(0.1, penalty_factor={"a*": 0, "?2": 1}).fit(frame, Y)
    with pytest.raises(ConfigurationError, match=r"penalty_factor names \['A\*'\], which X does not have"):
        FederatedLasso(0.1, penalty_factor={"A*": 0}).fit(frame, Y)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (FRAME[30:].drop(columns="b"), "part 1 lacks 'b', compared with part 0; .* columns that they have in common"),
        (FRAME[30:].assign(z=1.0), "part 1 has 'z', compared with part 0"),
        (FRAME[30:].rename(columns={"a": "A"}), "part 1 lacks 'a' and has 'A'"),
        (FRAME[30:].assign(b=np.nan), r"part 1: entries are missing \(NaN\): X\['b'\] in 30 of 30 rows"),
        (FRAME[30:].assign(b=pd.Timestamp("2020-01-01")), r"the columns \['b'\] hold dates or times; expected numbers"),
        (FRAME[30:].assign(b=pd.Timedelta(days=1)), "hold dates or times"),
        (FRAME[30:].assign(b=date(2020, 1, 1)), "hold dates or times"),
    ],
)
def test_the_part_and_the_column_are_named(other, message):
    with pytest.raises(ConfigurationError, match=message):
        FederatedLasso(0.1).fit([FRAME[:30], other], TARGETS)


def test_a_class_of_two_spellings_is_no_third_class():
    """Unless a client has both, as it has genotypes."""
    y = [np.where(own > 0.0, "yes", "no") for own in TARGETS]
    for spelling in ("Yes", "yes "):
        with pytest.raises(ConfigurationError, match=f"part 0 has labels 'yes', part 1 has labels '{spelling}'"):
            FederatedLogisticRegression().fit([X[:30], X[30:]], [y[0], np.where(y[1] == "yes", spelling, "no")])
    y[1] = np.array(["AA", "Aa", "aa"])[np.arange(len(y[1])) % 3]
    assert FederatedLogisticRegression().fit([X[:30], X[30:]], y).classes_.size == 5


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (-WEIGHTS, "sample_weight is negative"),
        (0.0 * WEIGHTS, "zero everywhere"),
        (WEIGHTS[:3], "inconsistent"),
        (WEIGHTS * np.nan, "sample_weight contains NaN"),
    ],
)
def test_weights_that_cannot_be(weights, message):
    with pytest.raises(ValueError, match=message):
        FederatedLasso().fit(X, Y, sample_weight=weights)
    with pytest.raises(ConfigurationError, match="sample_weight is ndarray of 60; expected a list of as many parts"):
        FederatedLasso().fit([X, X], [Y, Y], sample_weight=WEIGHTS)
    with pytest.raises(ConfigurationError, match=r"part 1: .* \[60, 3\]; expected .* an entry for each row"):
        FederatedLasso().fit([X, X], [Y, Y], sample_weight=[WEIGHTS, WEIGHTS[:3]])


def test_groups_are_the_clients():
    rows = [client == CLIENTS for client in np.unique(CLIENTS)]
    listed = FederatedLasso(0.1, site_intercepts="local").fit([X[own] for own in rows], [Y[own] for own in rows])
    grouped = FederatedLasso(0.1, site_intercepts="local").fit(X, Y, groups=CLIENTS)
    np.testing.assert_array_equal(grouped.coef_, listed.coef_)
    with pytest.raises(ConfigurationError, match="whose parts are the clients already"):
        FederatedLasso().fit([X, X], [Y, Y], groups=CLIENTS)


def test_validation_by_client():
    ours, theirs = (
        cross_val_score(model, X, Y, groups=CLIENTS, cv=LeaveOneGroupOut(), params=params)
        for model, params in ((FederatedLasso(0.1), {"groups": CLIENTS}), (Lasso(0.1, tol=1e-13), None))
    )
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)


def test_texts_and_numbers_are_no_labels_of_one_model():
    labels = [["no", "yes"] * 15, [0, 1] * 15]
    with pytest.raises(ConfigurationError, match="part 1 has other labels than part 0"):
        FederatedLogisticRegression().fit([X[h] for h in HALVES], labels)
    series = [pd.Series(labels[0], dtype="string"), pd.Series(labels[0], dtype="category")]
    model = FederatedLogisticRegression().fit([X[h] for h in HALVES], series)
    assert model.classes_.tolist() == ["no", "yes"]


def test_numbers_are_no_names_of_columns():
    """As scikit-learn has it: a frame without names is an array, and a fit forgets the names of the one before."""
    model = FederatedLasso(0.1).fit([FRAME[:30], FRAME[30:]], TARGETS)
    model.fit([pd.DataFrame(X[:30]), X[30:]], TARGETS)
    np.testing.assert_array_equal(model.coef_, FederatedLasso(0.1).fit([X[:30], X[30:]], TARGETS).coef_)
    assert not hasattr(model, "feature_names_in_")
    frames = [pd.DataFrame(X[:30]), pd.DataFrame(X[30:])[[1, 0, 2]]]
    with pytest.raises(ConfigurationError, match="other columns, and their names are no texts"):
        FederatedLasso(0.1).fit(frames, TARGETS)


def _listed(rows):
    return [rows[half].tolist() for half in HALVES]


@pytest.mark.filterwarnings("ignore:few rows for an intercept")
@pytest.mark.parametrize(
    ("model", "y"),
    [
        (FederatedElasticNet(0.1, cv=3), Y),
        (FederatedLogisticRegression(site_intercepts="local"), Y > 0.0),
        (FederatedCoxRegression(), np.column_stack([np.abs(Y) + 0.1, Y > 0.0])),
    ],
    ids=["squares", "classes", "times"],
)
def test_parts_that_are_lists_of_rows_are_arrays(model, y):
    """All clients' or some, in a list or a tuple, with weights: as NumPy reads them."""
    weights = 1.0 + WEIGHTS
    expected = model.fit(*([own[half] for half in HALVES] for own in (X, y, weights))).coef_.copy()
    for features in (_listed(X), tuple(_listed(X)), [X[:30].tolist(), X[30:]]):
        np.testing.assert_array_equal(model.fit(features, _listed(y), _listed(weights)).coef_, expected)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ([X[:2], [[1.0, 2.0, 3.0], [1.0]]], "part 1 has rows of unequal length"),
        ([[], X[30:]], r"part 0: (.|\n)*array=\[\](.|\n)*; expected a table with a row"),
        ([X[:2].tolist(), [["a", "b", "c"]] * 2], "part 1: could not convert string"),
        ([None, X[:2]], "part 0: .*got scalar array(.|\n)*; expected a table"),
        ([X[:2], X[0]], "part 1: .*got 1D array(.|\n)*; expected a table"),
    ],
)
def test_lists_that_are_no_tables_are_refused_by_their_part(features, message):
    with pytest.raises(ConfigurationError, match=message):
        FederatedLasso(0.1).fit(features, [[1.0, 2.0], [1.0, 2.0]])

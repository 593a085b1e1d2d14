"""The estimators: scikit-learn's own checks, solutions, summaries, runs that become one, grids, cross-validation."""

import re
import tracemalloc
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product

import cvxpy as cp
import joblib
import numpy as np
import pandas as pd
import pytest
from faults import FaultyGrid
from federations import altering, counting, fit_over_a_grid
from numpy.testing import assert_allclose, assert_array_equal
from problems import clients, crossed, foreign, nightly, refused, rows, run
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import ElasticNet, Lasso, LogisticRegression, lasso_path
from sklearn.metrics import log_loss
from sklearn.model_selection import GroupKFold, KFold
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from flwr_fco import tables
from flwr_fco.core.computing import quiet
from flwr_fco.messages.records import TABLE
from flwr_fco.models import load_npz, save_npz
from flwr_fco.objectives import LeastSquares, Logistic, MultinomialLogistic, TraceRegression
from flwr_fco.regularizers import L1
from flwr_fco.strategies import FedDualAvg, Strengths
from flwr_fco.tables import FederatedElasticNet, FederatedLasso, FederatedLogisticRegression, to_estimator
from flwr_fco.tables.sites import TURN

RNG = np.random.default_rng(0)
X = RNG.normal(size=(80, 6)) * np.array([1.0, 1.0, 10.0, 0.1, 1.0, 1.0]) + 5.0
Y = X @ np.array([1.0, -2.0, 0.3, 0.0, 0.0, 0.0]) + RNG.normal(size=80)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks([FederatedLasso(), FederatedElasticNet(0.1), FederatedLogisticRegression()])
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


def test_parameters_are_scikit_learns_and_only_the_strength_is_positional():
    own = "num_clients max_rounds tol fit_intercept penalty_factor standardize site_intercepts cluster cv codebook"
    for ours, theirs, strength in (
        (FederatedLasso, Lasso, "alpha"),
        (FederatedElasticNet, ElasticNet, "alpha"),
        (FederatedLogisticRegression, LogisticRegression, "C"),
    ):
        assert ours().get_params().keys() - {*own.split()} <= theirs().get_params().keys()
        assert ours(3.0).get_params()[strength] == 3.0
        refused("positional", ours, 1.0, 0.5, kind=TypeError)
    refused("FederatedLasso has no such option; it has alpha, fit_i", FederatedLasso, l1_ratio=0.5)


def test_a_fit_that_does_not_end_says_so():
    with pytest.warns(ConvergenceWarning, match="after 2 rounds; raise max_rounds"):
        model = FederatedLasso(0.1, max_rounds=2).fit(X, Y)
    assert f"Rounds: {model.n_iter_}, not solved to tol=1e-14" in model.summary()


def test_rounding_is_no_solution_where_the_gap_is_far_from_the_tolerance():
    """Sparse features of 1e8, which nobody centres: no step decreases the objective by more than its rounding error."""
    far = np.random.default_rng(0).normal(size=(60, 5)) + 1e8
    model = FederatedLogisticRegression(1.0, l1_ratio=1.0, max_rounds=20)
    with pytest.warns(ConvergenceWarning, match="raise max_rounds or scale the features"):
        model.fit(sparse.csr_array(far), far[:, 0] > far[:, 0].mean())
    assert model.duality_gap_ > 1e-9


def test_a_summary_says_what_was_found_and_of_what():
    model = FederatedElasticNet(0.2, l1_ratio=0.7)
    refused("not fitted", model.summary, kind=NotFittedError)
    model.fit([X[:50], X[50:]], [Y[:50], Y[50:]])
    summary = model.summary()
    w = model.coef_
    zeros = np.count_nonzero(w == 0.0)
    gap = rf"Duality gap: {model.duality_gap_:.3g}, of an objective of (\S+)$"
    assert 0 < zeros < 6
    for line in ("Data: 80 rows, of 2 sites$", f"Rounds: {model.n_iter_}$"):
        assert re.search(f"(?m){line}", summary), line
    value = ((model.predict(X) - Y) ** 2).mean() / 2 + 0.2 * (0.7 * np.abs(w).sum() + 0.15 * w @ w)
    assert float(re.search(gap, summary, re.M)[1]) == pytest.approx(value, rel=1e-5)
    largest = np.argsort(-np.abs(w))[: 6 - zeros]
    shown = dict(re.findall(r"^    (x\d|\(intercept\)) +(\S+)$", summary, re.M))
    assert list(shown) == ["(intercept)", *(f"x{j}" for j in largest)]
    # Three digits.
    assert_allclose([*map(float, shown.values())], [model.intercept_, *w[largest]], rtol=5e-3)
    assert list(summary.table()["coefficient"]) == w.tolist()
    assert_array_equal(model.proved_zero_, w == 0.0)
    # Later changes of the parameters are not those of the fit.
    assert "alpha=0.2" in model.set_params(alpha=3.0).summary()


def test_a_summary_of_classes_has_a_column_for_each():
    flowers, species = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])
    model = FederatedLogisticRegression(0.3, l1_ratio=1.0, penalty_factor=[0, 1, 1, 1]).fit(flowers, names[species])
    rows = model.summary().rows
    assert_array_equal([[row[name] for name in names] for row in rows], model.coef_.T)
    assert (model.proved_zero_.shape, [row["penalty_factor"] for row in rows]) == ((3, 4), [0, 1, 1, 1])
    assert "y=2" in FederatedLogisticRegression(site_intercepts="local").describe([flowers], [species])


TWICE = [X, X], [Y, Y]
REFUSED = {
    "X has 2 parts": (FederatedLasso(), [X, X], [Y]),
    r"site 1: .*\[3, 80\]; .* entry for each row": (FederatedLasso(), [X, X[:3]], [Y, Y]),
    r"site 1: .*0 sam.* a row or more": (FederatedLasso(), [X, X[:0]], [Y, Y[:0]]),
    "alpha=-1.0": (FederatedLasso(-1.0), X, Y),
    "l1_ratio=2.0": (FederatedElasticNet(l1_ratio=2.0), X, Y),
    "C=0.0.*a number > 0, or inf": (FederatedLogisticRegression(0.0), X, Y > 0),
    "codebook=.a.toml. is a str; expected a Codebook": (FederatedLogisticRegression(codebook="a.toml"), X, None),
    "1 class": (FederatedLogisticRegression(), X, np.ones(80, dtype=int)),
    "y holds dates or times": (FederatedLasso(), X, Y.astype("M8[s]")),
    "0: entries are missing .*: y in": (FederatedLogisticRegression(), [X], [np.full(80, "NaT", "M8[s]")]),
    "num_clients=0": (FederatedLasso(num_clients=0), X, Y),
    "alpha='0.1' is a str; expected a number": (FederatedLasso("0.1"), X, Y),
    "standardize='yes'": (FederatedLasso(standardize="yes"), X, Y),
    "those of X have no names": (FederatedLasso(penalty_factor={"age": 0}), X, Y),
    r"shape \(2,\).*each of the 6 features": (FederatedLasso(penalty_factor=[1.0, 0.0]), X, Y),
    "dtype <U3; expected a number": (FederatedLasso(penalty_factor="age"), X, Y),
    "factor=-2 of feature 2": (FederatedLasso(penalty_factor=[1, 1, -2, 1, 1, 1]), X, Y),
    "cv='5' is a str": (FederatedLasso(cv="5"), X, Y),
    r"give Strengths\(folds=5\)": (FederatedLasso(cv=Strengths(8)), X, Y),
    "so that cv has nothing": (FederatedLasso(cv=3, penalty_factor=np.zeros(6)), X, Y),
    "an intercept of each site needs": (FederatedLasso(site_intercepts="local", fit_intercept=False), *TWICE),
    "site_intercepts=True": (FederatedLasso(site_intercepts=True), *TWICE),
    "of 3 classes; expected two": (FederatedLogisticRegression(site_intercepts="local"), [X], [np.arange(80) % 3]),
    "0: y has 1 columns .*; expected numbers: counts": (tables.FederatedPoissonRegression(), [X], [np.ones(80) + 0j]),
    "X has the fields 'a', 'b'; expected columns": (FederatedLasso(), np.zeros(80, [("a", float), ("b", float)]), Y),
}


def test_what_cannot_be_fitted_is_refused_with_what_was_given():
    for message, (model, *given) in REFUSED.items():
        refused(message, model.fit, *given)
    refused("classes=.*without classes", FederatedLasso().client_app, None, [0, 1, 2])


def test_few_rounds_no_joint_array_and_no_square_of_the_features():
    """p = 3,000: a square of the features would take 72 MB, the rows of all clients 4 MB."""
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=(60, 3000)) for _ in range(3)]
    labels = [features[:, 0] - features[:, 1] + rng.normal(size=60) > 0.0 for features in parts]
    model = FederatedLogisticRegression(C=0.2, l1_ratio=1.0)
    model.fit([part[:, :9] for part in parts], labels)  # compiles
    tracemalloc.start()
    model.fit(parts, labels)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # A centred copy of each client's rows, and a few vectors and blocks of the working set.
    assert most < 4 * sum(part.nbytes for part in parts)
    assert model.n_iter_ <= 14
    assert model.duality_gap_ < 1e-12
    assert 0 < np.count_nonzero(model.coef_) < 100


# --- of a run ---------------------------------------------------------------------------------------------------------


def test_a_run_becomes_an_estimator(tmp_path):
    own, *_ = objectives = clients()
    result = run(FedDualAvg(regularizer=L1(0.3), client_lr=0.05), objectives, 20)
    save_npz(result, tmp_path / "model.npz")
    model, *same = (to_estimator(found, own) for found in (result, result.arrays, load_npz(tmp_path / "model.npz")))
    assert all((other.coef_ == model.coef_).all() for other in same)
    joblib.dump(model, tmp_path / "model")
    w = np.concatenate([model.coef_, [model.intercept_]])
    assert_allclose(joblib.load(tmp_path / "model").predict(own.features), own.predict(w), rtol=1e-12)
    assert model.score(own.features, own.targets) == pytest.approx(own.metrics(w)["r2"])


@pytest.mark.parametrize("num_classes", [2, 3, 5])
@pytest.mark.parametrize("intercept", [True, False])
def test_the_classifier_of_a_run_has_the_probabilities_of_its_loss(num_classes, intercept):
    """Two classes of a multinomial model too, of which scikit-learn keeps one row and not two."""
    rng = np.random.default_rng(num_classes)
    X = rng.normal(size=(40, 4))
    labels = np.arange(40) % num_classes
    losses = [MultinomialLogistic(X.reshape(40, 2, 2), labels, num_classes=num_classes, intercept=intercept)]
    losses += [Logistic(X, own, intercept=intercept) for own in (labels, 2 * labels - 1)] if num_classes == 2 else []
    names = np.array(list("abcde"))[:num_classes]
    for objective in losses:
        result = objective.layout.views(w := rng.normal(size=objective.layout.size))
        model = to_estimator(result, objective)
        assert log_loss(labels, model.predict_proba(X)) == pytest.approx(objective.value(w), rel=1e-12)
        assert_array_equal(model.predict(X), objective.predict(w))
        named = to_estimator(result, objective, classes=names)
        assert_array_equal(named.predict(X), names[np.maximum(objective.predict(w), 0)])


SQUARES = LeastSquares(pd.DataFrame(np.eye(2), columns=["b", "a"]), np.ones(2))
TWO = {"coefficients": np.ones(2), "intercept": [0.0]}


def test_what_is_no_estimator():
    for result, objective, options, message in (
        (TWO, Logistic(np.eye(2), [1, 1]), {}, "say which they are: classes="),
        ({}, TraceRegression(np.ones((3, 2, 2)), np.ones(3)), {}, "has no estimator"),
        ({"coefficients": np.ones(3)}, SQUARES, {}, "of different runs"),
        (TWO, Logistic(np.eye(2), [0, 1]), {"classes": ["a"]}, "expected 2 of them"),
    ):
        refused(message, to_estimator, result, objective, **options)
    refused("the same order", to_estimator(TWO, SQUARES).predict, pd.DataFrame({"a": [1], "b": [2]}), kind=ValueError)


# --- over a grid ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "form"), crossed(["lasso", "standardized", "two classes", "three classes"], [np.asarray, sparse.csr_array])
)
def test_over_a_grid_the_bits_are_those_of_a_fit_here(kind, form, caplog):
    """Every message to a site is counted but the first: the question before round 1, and rounds. No line is logged."""
    caplog.set_level("INFO", logger="flwr")
    rng = np.random.default_rng(0)
    parts = [rng.normal(0.2 * m, 1.0, size=(30 + m, 5)) for m in range(3)]
    targets = [features @ [1.0, -1.0, 0.5, 0.0, 0.0] + rng.normal(size=len(features)) for features in parts]
    options = {"num_clients": 3, "penalty_factor": [1, 2, 0, 1, 1]}
    model = FederatedLasso(0.1, standardize=kind == "standardized", **options)
    classes = {}
    if "classes" in kind:
        bins = {"two classes": [0.0], "three classes": [-1.0, 1.0]}[kind]
        targets = [np.array(["a", "b", "c"])[np.digitize(own, bins)] for own in targets]
        model = FederatedLogisticRegression(C=0.3, l1_ratio=1.0, **options)
        classes = {"classes": ["a", "b", "c"][: len(bins) + 1]}
    # Targets at a site may be a column, as of a frame.
    sites, asked = [(form(own), y[:, None]) for own, y in zip(parts, targets, strict=True)], []
    here = clone(model).fit([own for own, _ in sites], targets)
    there, _ = fit_over_a_grid(model, sites, features=list("vwxyz"), app=classes, grid=counting(asked), **classes)
    assert not [record for record in caplog.records if record.levelname == "INFO"]
    assert_array_equal(np.append(there.coef_, there.intercept_), np.append(here.coef_, here.intercept_))
    assert [node for node, message in asked if message == TABLE] == [2, 3, 4]
    assert there.n_iter_ == here.n_iter_ == max(Counter(n for n, message in asked if message != TABLE).values())
    assert there.feature_names_in_.tolist() == list("vwxyz")
    # The sites' columns have not been compared with these names.
    assert "taken on trust" in there.summary()
    np.testing.assert_equal(there.duality_gap_, here.duality_gap_)


def test_what_a_grid_needs_besides():
    classes = {"classes": ["x", "y"]}
    for changes, labels, options, message in (
        ({}, "xyx", {}, r"no site names its columns, as arrays do not: .* features=30"),
        ({}, "xyx", {"features": 5.0}, r"features=5.0; expected .*, how many there are, or None"),
        ({}, "xyx", {"features": ["a", "b", "a"]}, "'a'.; expected different names"),
        ({"penalty_factor": {"a": 0}}, "xyx", {"features": ["c"], **classes}, r"\['a'\], which X .* not have; .* c$"),
        ({}, "xyz", {"features": 3, **classes}, r"0 of num_clients=2 sites have answered.*a label is none of"),
    ):
        sites, model = [(np.eye(3), np.array(list(labels)))] * 2, FederatedLogisticRegression(num_clients=2, **changes)
        refused(message, fit_over_a_grid, model, sites, app=classes, **options)


@pytest.mark.parametrize("loaded", [(1, 2, 3, 4), None, {"X": 1, "y": 2}])
def test_what_a_site_loads_is_rows_targets_and_perhaps_weights(loaded):
    message = rf"load returns a {type(loaded).__name__}.*; expected a tuple \(X, y\) or \(X, y, sample_weight\)"
    refused(message, fit_over_a_grid, FederatedLasso(num_clients=1), [loaded], features=5)


# --- cross-validation -------------------------------------------------------------------------------------------------


CROSS_VALIDATED = [
    (FederatedElasticNet(l1_ratio=0.7, cv=Strengths(4, folds=3)), "regression", 6),
    (FederatedLogisticRegression(l1_ratio=1.0, cv=Strengths(3, folds=2)), "two", 6),
    (FederatedLogisticRegression(l1_ratio=1.0, cv=Strengths(3, folds=2, rule="one-standard-error")), "three", 6),
    # A null model without an intercept has no Hessian to ask for.
    (FederatedLasso(fit_intercept=False, cv=Strengths(3, folds=2)), "regression", 140),
    (FederatedLogisticRegression(l1_ratio=1.0, fit_intercept=False, cv=Strengths(2, folds=2)), "two", 140),
]


@pytest.mark.parametrize(("model", "kind", "columns"), CROSS_VALIDATED)
def test_a_cross_validation_fits_at_the_strength_that_it_chooses(model, kind, columns):
    """The fit is that of a model of this strength, and in scikit-learn's scale."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, columns))
    scores = X[:, :3] @ np.array([2.0, -1.0, 0.5]) + rng.normal(size=120)
    y = {"regression": scores, "two": scores > 0.0, "three": np.digitize(scores, [-1.0, 1.0])}[kind]
    parts = [X[:50], X[50:90], X[90:]], [y[:50], y[50:90], y[90:]]
    model = clone(model).fit(*parts)
    path = model.path_
    chosen = path.best if getattr(model.cv, "rule", "best") == "best" else path.one_standard_error
    assert model.strength_ == chosen.strength
    assert model.duality_gap_ <= 1e-9
    assert min(point.held_out for point in path.points) < path.points[0].held_out
    strength = {"alpha": model.strength_} if kind == "regression" else {"C": 1.0 / (120 * model.strength_)}
    found, again = model.coef_, model.set_params(cv=None, **strength).fit(*parts)
    assert_allclose(found, again.coef_, atol=1e-6)
    assert not {"path_", "strength_"} & set(vars(again))


def test_a_row_of_weight_2_is_two_rows_of_a_cross_validation():
    weights = 1 + np.arange(len(X)) % 3
    site = np.arange(len(X)) % 2
    splits = list(KFold(2).split(X))
    twice = np.repeat(np.arange(len(X)), weights)
    repeated = [[np.flatnonzero(np.isin(twice, side)) for side in split] for split in splits]
    one = FederatedLasso(cv=splits).fit(X, Y, sample_weight=weights, groups=site).path_
    other = FederatedLasso(cv=repeated).fit(X[twice], Y[twice], groups=site[twice]).path_
    assert_allclose([at[3:5] for at in one.points], [at[3:5] for at in other.points], rtol=1e-5)


def test_a_message_of_a_cross_validation_is_as_small_as_the_user_says():
    whole, small = (FederatedLasso(cv=Strengths(12, folds=2, max_bytes=size)).fit(X, Y).path_ for size in (2**25, 1))
    rounds = [len(path.points[0].result.train_metrics_clientapp) for path in (whole, small)]
    assert rounds[1] > 2 * rounds[0]
    assert_allclose(*([point.held_out for point in path.points] for path in (whole, small)), rtol=1e-6)
    message = r"takes about \S+ MB of each client, above total_bytes=1000;"
    refused(message, FederatedLasso(cv=Strengths(folds=4, total_bytes=1000)).fit, X, Y)


def test_a_ridge_takes_strengths_of_scikit_learns_scale():
    X, y = load_breast_cancer(return_X_y=True)
    X, y = ((X - X.mean(axis=0))[:, :5] / X.std(axis=0)[:5])[::4], y[::4]
    for ratio, smallest in ((None, -3), (1e-2, 1)):
        path = FederatedLogisticRegression(cv=Strengths(3, ratio, folds=2)).fit(X, y).path_
        assert_allclose([point.strength for point in path.points], np.logspace(3, smallest, 3) / len(y))
    for values, chosen, text in (([0.1, 0.01], 0.01, "smallest"), ([1e-5, 1e-6], 1e-5, "largest")):
        model = FederatedLogisticRegression(cv=Strengths(values=values, folds=2)).fit(X, y)
        assert re.search(rf"Strength: {chosen} .*; it is the {text} one, .*: Strengths\(values=", model.summary())
    X = np.random.default_rng(0).normal(size=(20, 2050))
    message = r"a ridge with 2051 coefficients.*above 2048 no .*l1_ratio > 0"
    refused(message, FederatedLogisticRegression(cv=3).fit, X, X[:, 0] > 0.0)


def test_folds_of_ones_own_are_those_of_the_rows():
    """Rows of one patient stay in one fold: the losses are those of scikit-learn's on the same splits."""
    splits = list(GroupKFold(2).split(X, Y, np.arange(len(X)) // 3))
    for point in FederatedLasso(num_clients=3, cv=splits).fit(X, Y).path_.points[::10]:
        errors = [Lasso(point.strength, tol=1e-12).fit(X[on], Y[on]).predict(X[off]) - Y[off] for on, off in splits]
        assert point.held_out == pytest.approx(0.5 * np.square(np.concatenate(errors)).mean(), rel=1e-4)
    refused("numbers are rows of one X", FederatedLasso(cv=splits).fit, [X[:20], X[20:]], [Y[:20], Y[20:]])
    refused("numbers are rows of one X", fit_over_a_grid, FederatedLasso(cv=splits), [(X, Y)], features=8)
    refused("expected a partition", FederatedLasso(cv=splits[:1] * 2).fit, X, Y)


def test_wide_squares_are_scikit_learns_and_send_little():
    """Far less than a triangle of each problem in each round."""
    rng = np.random.default_rng(0)
    sites = [rng.normal(0.2 * m, 1.0, (n, 200)) for m, n in enumerate((20, 31, 12))]
    targets = [own[:, :8] @ rng.choice([-1.0, 1.0], 8) + rng.normal(size=len(own)) for own in sites]
    points = FederatedLasso(cv=Strengths(8, folds=2)).fit(sites, targets).path_.points
    x, y = np.vstack(sites), np.concatenate(targets)
    strengths = [point.strength for point in points]
    expected = lasso_path(x - x.mean(axis=0), y - y.mean(), alphas=strengths, tol=1e-14, max_iter=100_000)[1]
    found = np.transpose([point.result.arrays["coefficients"].numpy() for point in points])
    assert_allclose(found, expected, atol=2e-5)
    assert ((np.abs(found) > 1e-4) == (np.abs(expected) > 1e-4)).all()
    history = points[0].result.train_metrics_clientapp
    assert sum(each["bytes-up"] for each in history.values()) / 3 < len(history) * 3 * 4 * 60**2


@pytest.mark.parametrize(("features", "ratio"), [(4, 1e-4), (90, 1e-2)])
def test_the_smallest_strength_is_glmnets_and_a_short_path_says_so(features, ratio):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, features))
    y = X[:, 0] + 0.1 * rng.normal(size=60)
    for cv, weights in ((np.int64(2), None), (Strengths(3, folds=2), np.full(60, 1e-3))):
        points = FederatedLasso(cv=cv).fit(X, y, weights).path_.points
        assert points[-1].strength == pytest.approx(ratio * points[0].strength)
    short = FederatedLasso(cv=Strengths(3, 0.9, folds=2)).fit(X, y).summary()
    assert "it is the smallest one, so that a smaller one may be better" in short


# --- solutions --------------------------------------------------------------------------------------------------------

EXACT = {"tol": 1e-14, "max_iter": 10**6}
FACTORS = np.array([0.0, 1.0, 0.0, 3.0, 0.2, 1.0])
DRAWS = np.random.default_rng(3)
ROWS = DRAWS.normal(size=(120, 3))
SCORES = ROWS @ [1.0, 0.0, -2.0] + 0.5 * DRAWS.normal(size=120)
LABELS = (SCORES > 0.0).astype(int)
SITES = np.arange(120) % 3
TIMES = np.c_[DRAWS.exponential(np.exp(-SCORES)), DRAWS.random(120) < 0.7]


def parts(rows):
    return [rows[m == SITES] for m in range(3)]


def unequal_sites(sizes=(40, 33, 60), classes=False):
    """Sites that differ in location, and in what their rows have without a feature."""
    features, targets = [], []
    for m, n in enumerate(sizes):
        rng = np.random.default_rng(m)
        own = rng.normal(size=(n, 5)) + m
        scores = own @ [1.0, -1.0, 0.5, 0.0, 0.0] - 4.0 * m + rng.normal(size=n)
        features.append(own)
        targets.append(np.array(["no", "yes"])[(scores > np.median(scores) + 0.3) * 1] if classes else scores)
    return features, targets


def weighted_and_scaled(X, weighted, standardize):
    """Return weights of rows or none, the rows as scikit-learn's scaler has them, and their scales."""
    weights = np.arange(len(X)) % 4 * 0.7 if weighted else None
    scales = StandardScaler().fit(X, sample_weight=weights).scale_ if standardize else np.ones(X.shape[1])
    return weights, X / scales, scales


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning", "ignore:With alpha=0")
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("fit_intercept", "standardize"), [(True, False), (False, False), (True, True)])
@pytest.mark.parametrize("l1_ratio", [1.0, 0.4, 0.0])
def test_regression_is_scikit_learns(l1_ratio, fit_intercept, standardize, weighted):
    weights, Z, scales = weighted_and_scaled(X, weighted, standardize)
    options = {"l1_ratio": l1_ratio, "fit_intercept": fit_intercept}
    ours = FederatedElasticNet(0.1, **options, standardize=standardize, num_clients=3).fit(X, Y, weights)
    theirs = ElasticNet(0.1, **options, **EXACT).fit(Z, Y, weights)
    assert_allclose(ours.coef_ * scales, theirs.coef_, rtol=0, atol=1e-6)
    assert_array_equal(ours.coef_ == 0, theirs.coef_ == 0)
    assert ours.intercept_ == pytest.approx(theirs.intercept_, abs=1e-5)
    assert ours.score(X, Y, weights) == pytest.approx(theirs.score(Z, Y, weights), abs=1e-6)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("l1_ratio", "standardize"), [(0.0, False), (0.0, True), (0.4, True), (1.0, True)])
@pytest.mark.parametrize("classes", [2, 3])
def test_classification_is_scikit_learns(classes, l1_ratio, standardize, weighted):
    X, y = (own[50 * (classes == 2) :] for own in load_iris(return_X_y=True))
    y = np.array(["setosa", "versicolor", "virginica"])[y]
    weights, Z, scales = weighted_and_scaled(X, weighted, standardize)
    ours = FederatedLogisticRegression(0.2, l1_ratio=l1_ratio, standardize=standardize, num_clients=2)
    ours.fit(X, y, weights)
    Z = Z - np.average(Z, axis=0, weights=weights)
    options = {"solver": "saga", "tol": 1e-12, "max_iter": 10**6} if l1_ratio else {"solver": "newton-cg", "tol": 1e-10}
    theirs = LogisticRegression(C=0.2, l1_ratio=l1_ratio, **options).fit(Z, y, weights)
    assert ours.classes_.tolist() == theirs.classes_.tolist()
    assert_allclose(ours.coef_ * scales, theirs.coef_, rtol=0, atol=2e-5)
    assert_allclose(ours.predict_proba(X), theirs.predict_proba(Z), rtol=0, atol=2e-5)
    assert_array_equal(ours.predict(X), theirs.predict(Z))


@pytest.mark.parametrize("outputs", [1, 2, 3], ids=["squares", "two classes", "three classes"])
@pytest.mark.parametrize("l1_ratio", [1.0, 0.4, 0.0])
def test_a_factor_multiplies_the_penalty_of_its_feature(outputs, l1_ratio):
    """Optimality: the loss's slope balances the penalty's, and is 0 where there is none; whatever the units are."""
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    strength = 0.05
    options = {"l1_ratio": l1_ratio, "penalty_factor": FACTORS}
    if outputs == 1:
        model = FederatedElasticNet(strength, **options).fit(Z, Y)
        units = X.std(axis=0) * [1.0, 1e4, 1e-3, 30.0, 0.2, 7.0]
        scaled = FederatedElasticNet(strength, **options, standardize=True).fit((Z + 50.0) * units, Y)
        assert_allclose(scaled.coef_ * units, model.coef_, atol=1e-7)
        slopes = Z.T @ (model.predict(Z) - Y)[:, None] / 80
    else:
        y = np.digitize(Y, np.quantile(Y, [[0.5], [0.3, 0.6]][outputs - 2]) + 0.5)
        y[::9] = (y[::9] + 1) % outputs  # not separable
        model = FederatedLogisticRegression(1 / (80 * strength), **options).fit(Z, y)
        slopes = Z.T @ (model.predict_proba(Z) - np.eye(outputs)[y]) / 80
        slopes = slopes[:, 1:] if outputs == 2 else slopes
    w = np.atleast_2d(model.coef_).T
    pulls = slopes + strength * (1.0 - l1_ratio) * FACTORS[:, None] * w
    thresholds = np.broadcast_to(strength * l1_ratio * FACTORS[:, None], w.shape)
    assert_allclose(pulls[w != 0], -(thresholds * np.sign(w))[w != 0], atol=1e-7)
    assert (np.abs(pulls) <= thresholds + 1e-7).all()
    assert (w[FACTORS == 0.0] != 0.0).all()
    assert l1_ratio < 1.0 or (w == 0.0).any()
    if outputs == 3:
        assert_allclose(w[FACTORS == 0.0].sum(axis=1), 0.0, atol=1e-12)


@pytest.mark.parametrize("factors", [[0, 1, 1, 1, 1, 1], np.zeros(6)])
def test_without_a_penalty_on_a_feature_no_gap_is_known_or_zero_proved(factors):
    model = FederatedLasso(0.2, penalty_factor=factors).fit(X, Y)
    assert np.isnan(model.duality_gap_)
    assert "the length of a proximal gradient step; there is no" in model.summary()
    assert not model.proved_zero_.any()


def test_sparse_features_give_the_fit_of_dense_ones():
    X = rows(80, 12)
    y = np.random.default_rng(5).standard_normal(80)
    weights = 1.0 + np.arange(80) % 4
    scaled = FederatedLasso(0.005, standardize=True)
    for make, target in ((FederatedLasso(0.005), y), (scaled, y), (FederatedLogisticRegression(C=2.0), y > 0)):
        dense = clone(make).fit(X.toarray(), target, weights)
        halves = [[X[:30], X[30:].toarray()], *([own[:30], own[30:]] for own in (target, weights))]
        for given in ((X, target, weights), (sparse.csc_matrix(X), target, weights), halves):
            found = make.fit(*given)
            assert_allclose(*(np.append(own.coef_, own.intercept_) for own in (found, dense)), atol=1e-6)
        assert_allclose(found.predict(X), found.predict(X.toarray()), rtol=1e-12)


@pytest.mark.parametrize("classes", [2, 3])
def test_weights_that_balance_classes_over_sites_are_scikit_learns(classes):
    """With the counts of all sites that a first fit says; sites give the weights of their rows themselves."""
    rng = np.random.default_rng(0)
    parts = [rng.normal(0.3 * m, 1.0, size=(40 + 15 * m, 4)) for m in range(3)]
    scores = [own[:, 0] - own[:, 1] + rng.normal(size=len(own)) for own in parts]
    labels = [np.digitize(own, [0.9, 2.2][: classes - 1]) for own in scores]
    model = FederatedLogisticRegression(0.7, num_clients=3)
    known = {"classes": range(classes)}

    def over_a_grid(*columns, **way):
        return fit_over_a_grid(clone(model), [*zip(*columns, strict=True)], features=4, app=known, **known, **way)[0]

    for first in (clone(model).fit(parts, labels), over_a_grid(parts, labels)):
        assert_array_equal(first.class_count_, np.bincount(np.concatenate(labels)))
    weights = [first.class_count_.sum() / (classes * first.class_count_)[own] for own in labels]
    theirs = LogisticRegression(C=0.7, class_weight="balanced", tol=1e-10, max_iter=10**4)
    theirs.fit(np.vstack(parts), np.concatenate(labels))
    for ours in (clone(model).fit(parts, labels, weights), over_a_grid(parts, labels, weights)):
        assert_allclose(*(np.append(own.coef_, own.intercept_) for own in (ours, theirs)), atol=1e-6)
        assert "165 rows, weighted, of 3 sites" in ours.summary()
    weights[1] = weights[1] * 30.0
    message = r"site 1 says that its rows weigh .*at most 10 times as much"
    refused(message, over_a_grid, parts, labels, weights)
    nobody = altering(1, "mass", lambda vectors, numbers: numbers.update({"num-examples": 0}))
    refused(message, over_a_grid, parts, labels, grid=nobody)


# --- no penalty, or none with one minimum -----------------------------------------------------------------------------


def test_without_a_penalty_the_fit_is_scikit_learns():
    for cuts in ([0.0], [-0.5, 0.5]):
        y = np.digitize(SCORES + np.cos(9.0 * SCORES), cuts)
        ours = FederatedLogisticRegression(C=np.inf, standardize=True).fit(ROWS, y)
        theirs = LogisticRegression(C=np.inf, tol=1e-12, max_iter=10_000).fit(ROWS, y)
        assert_allclose(ours.coef_, theirs.coef_, atol=1e-6)
    # Eigenvalues of Hessians of such columns are rounding, and no sign of an outcome that is separable.
    units = np.array([1e-8, 1.0, 1e8])
    found = FederatedLasso(0.2, penalty_factor=np.zeros(3)).fit(ROWS * units, SCORES).coef_ * units
    assert_allclose(found, np.linalg.lstsq(np.c_[ROWS, np.ones(120)], SCORES)[0][:3], rtol=1e-9)
    for model, y in ((FederatedLasso(0.0), SCORES), (ours, SCORES > 0.0)):
        with pytest.warns(UserWarning, match="^x[345]: follows from other columns"):
            model.fit(np.c_[ROWS, np.eye(3)[np.arange(120) % 3]], y)
    # With more columns than rows any classes are separable.
    with pytest.warns(UserWarning, match="6 columns, 4 rows and no penalty"):
        refused("the outcome is separable by", ours.fit, X[:4], np.arange(4) % 3)


@pytest.mark.parametrize(("unit", "whole"), [(1.0, False), (1e-6, True), (1e6, False)])
def test_the_columns_that_tell_the_outcome_are_named(unit, whole):
    """A column that is the outcome, or one that no row without an event has; others are the same, or in other units."""
    rng = np.random.default_rng(1)
    table = pd.DataFrame(rng.normal(size=(200, 3))[:, [0, 1, 2, 2]], columns=["age", "sex", "bmi", "again"])
    y = table["age"] + rng.normal(size=200) > 0.0
    table["dead"] = unit * (2.0 - whole + (dead := y & (whole | (rng.random(200) < 0.3))))
    for options in ({"C": np.inf}, {"cv": 2, "penalty_factor": {"dead": 0, "sex": 0}}):
        refused("^the outcome is separable by 'dead':", FederatedLogisticRegression(**options).fit, table, y)
    refused("separable by 'dead':", tables.FederatedCoxRegression().fit, table[["dead"]], np.c_[table.index, dead])


def test_a_lasso_of_an_even_number_of_classes_is_unique():
    """Constants between the middle two coefficients cost nothing; the one in their middle is taken."""
    y = np.digitize(SCORES, [-2.0, 0.0, 2.0])
    model = FederatedLogisticRegression(0.3, l1_ratio=1.0).fit(parts(ROWS), parts(y))
    ordered = np.sort(model.coef_, axis=0)
    assert_allclose(ordered[1] + ordered[2], 0.0, atol=1e-12)
    other = FederatedLogisticRegression(0.3, l1_ratio=1.0, num_clients=1, max_rounds=4000).fit(ROWS[::-1], y[::-1])
    assert_allclose(other.coef_, model.coef_, atol=1e-6)
    theirs = LogisticRegression(C=0.3, l1_ratio=1.0, solver="saga", tol=1e-10, max_iter=100_000).fit(ROWS, y)
    assert_allclose(theirs.coef_ - np.sort(theirs.coef_, axis=0)[1:3].mean(axis=0), model.coef_, atol=1e-4)


# --- an intercept of each site ----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(("l1_ratio", "unit"), [(1.0, 1.0), (0.5, 1.0), (0.0, 1.0), (1.0, 1e-14)])
def test_squares_are_those_of_rows_about_their_sites_means(l1_ratio, unit):
    features, targets = unequal_sites()
    targets = [unit * own for own in targets]
    model = FederatedElasticNet(0.1 * unit, l1_ratio=l1_ratio, site_intercepts="local").fit(features, targets)
    X, y = (np.concatenate([own - own.mean(axis=0) for own in both]) for both in (features, targets))
    theirs = ElasticNet(0.1, l1_ratio=l1_ratio, fit_intercept=False, **EXACT).fit(X, y / unit)
    assert_allclose(model.coef_ / unit, theirs.coef_, atol=1e-8)
    assert model.duality_gap_ < 1e-10
    for own, y in zip(features, targets, strict=True):
        assert model.intercept_for(own, y) == pytest.approx((y - own @ model.coef_).mean(), abs=1e-12 * unit)


@pytest.mark.parametrize("penalised", [True, False])
@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
def test_classes_are_those_of_dummies(penalised):
    features, targets = unequal_sites(classes=True)
    factors = None if penalised else [0, 1, 1, 1, 1]
    model = FederatedLogisticRegression(0.3, l1_ratio=1.0, penalty_factor=factors, site_intercepts="local")
    model.fit(features, targets)
    w, b = cp.Variable(5), cp.Variable(3)
    loss = 0.0
    for m, (own, names) in enumerate(zip(features, targets, strict=True)):
        scores = own @ w + b[m]
        loss += cp.sum(cp.logistic(scores) - cp.multiply(names == "yes", scores))
    problem = cp.Problem(cp.Minimize(0.3 * loss + cp.norm1(w if penalised else w[1:])))
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
    assert_allclose(model.coef_[0], w.value, atol=1e-5)
    assert (model.duality_gap_ < 1e-10) == penalised
    found = [model.intercept_for(own, names) for own, names in zip(features, targets, strict=True)]
    assert_allclose(found, b.value[:, None], atol=1e-4)


CLASSES = {"classes": ["no", "yes"]}
LOCAL = FederatedLogisticRegression(0.3, l1_ratio=1.0, num_clients=3, site_intercepts="local")


def test_a_site_predicts_with_its_own_intercept_and_nobody_without():
    features, targets = unequal_sites(classes=True)
    first = features[0], targets[0]
    model = clone(LOCAL).set_params(C=1.0)
    refused("not fitted", model.intercept_for, *first, kind=NotFittedError)
    model.fit(features, targets)
    assert np.isnan(model.intercept_).all()
    for ask in (model.predict, model.predict_proba, model.decision_function):
        refused(r"has stayed there.*model\.intercept_for", ask, features[0])
    refused(r"intercept has stayed there; ask `score` at each site", model.quality, features, targets)
    assert "Intercepts: each site's own" in model.summary()
    assert "(intercept)" not in model.summary()
    model.intercept_ = model.intercept_for(features[2], targets[2])
    assert model.score(features[2], targets[2]) > 0.7
    assert model.predict_proba(features[2])[:, 1].mean() == pytest.approx((targets[2] == "yes").mean(), abs=1e-12)
    refused("all rows are of one class", model.intercept_for, *(own[targets[0] == "no"] for own in first))
    refused("sample_weight", model.intercept_for, *first, np.where(np.arange(40) == 3, -1.0, 1.0))
    refused("the model has a common intercept", FederatedLasso().fit(ROWS, SCORES).intercept_for, ROWS, SCORES)


def test_over_a_grid_no_message_holds_an_intercept():
    features, targets = unequal_sites(classes=True)
    sites = list(zip(features, targets, strict=True))
    here = clone(LOCAL).fit(features, targets)
    said = []
    given = {"features": 5, "app": CLASSES, **CLASSES}
    there, _ = fit_over_a_grid(clone(LOCAL), sites, grid=counting([], said), **given)
    assert_array_equal(there.coef_, here.coef_)
    own = [float(here.intercept_for(*site)[0]) for site in sites]
    assert said
    assert min(abs(number - b) for number in said for b in own) > 1e-9
    nameless, _ = fit_over_a_grid(clone(LOCAL), sites, grid=foreign, **given)
    assert_allclose(nameless.coef_, here.coef_, rtol=1e-9)


def test_sites_with_few_rows_are_named_and_those_with_fewer_refused():
    model = FederatedLogisticRegression(site_intercepts="local")
    with pytest.warns(UserWarning, match=r"few rows .*: site 1 has fewer than 25, and logistic .* 17 %"):
        model.fit(*unequal_sites((40, 24), True))
    refused(r"too few rows .*: site 1, site 2 has fewer than 10\. Leave", model.fit, *unequal_sites((40, 9, 5), True))
    with warnings.catch_warnings(action="error"):
        FederatedLasso(0.1, site_intercepts="local").fit(*unequal_sites((40, 9, 5)))
        model.fit(*unequal_sites((40, 30), True))


def test_who_adds_nothing_is_named_to_who_fits_and_of_many_sites_five():
    """Names are users' texts, and may hold what a terminal obeys."""
    sizes = 40, *[12] * 7
    features, targets = unequal_sites(sizes, classes=True)
    sites = np.repeat([f"\x1b{m}" for m in range(8)], sizes)
    y = np.concatenate([targets[0], *(np.full(12, "no") for _ in range(7))])
    model = FederatedLogisticRegression(site_intercepts="local")
    message = r"^site \\x1b1, (site \\x1b.(, | )){4}and 2 more: all rows of one class, which say nothing"
    with pytest.warns(UserWarning, match=message):
        model.fit(np.vstack(features), y, groups=sites)
    assert_allclose(model.coef_, clone(model).fit(features[:1], targets[:1]).coef_, atol=1e-7)


# --- columns far from 0, and columns that say nothing -----------------------------------------------------------------


@pytest.mark.parametrize("offset", [1e5, 1e8])
@pytest.mark.parametrize("standardize", [False, True])
def test_columns_far_from_0_have_the_digits_of_scikit_learn(offset, standardize):
    """Also over a grid, whose sites centre their columns, and end to do so; one that has lost the centre says so."""
    moved = ROWS + np.array([offset, 0.0, -offset])
    scales = ROWS.std(axis=0) if standardize else 1.0
    theirs = Lasso(0.1, tol=1e-13).fit(ROWS / scales, SCORES).coef_ / scales
    plain = FederatedLasso(0.1, standardize=standardize, num_clients=3)
    sites = list(zip(parts(moved), parts(SCORES), strict=True))
    with warnings.catch_warnings(action="error"):
        model = clone(plain).fit(parts(moved), parts(SCORES))
        there, _ = fit_over_a_grid(clone(plain), sites, features=3)
    assert_allclose(model.coef_, theirs, atol=1e-16 * offset + 1e-11)
    assert_array_equal(there.coef_, model.coef_)
    assert_allclose(model.predict(moved), plain.fit(ROWS, SCORES).predict(ROWS), atol=1e-6)
    restarted = {"grid": partial(FaultyGrid, faults={"restart": 1.0}, partitions=[1]), "features": 3}
    refused("site 1: .*lost its columns' centre", fit_over_a_grid, plain, sites, **restarted)


@pytest.mark.parametrize(("ask", "options"), [*product(["fit", "describe"], [{"features": 3}]), ("quality", {})])
def test_who_asks_a_grid_waits_for_a_fit_over_it_in_another_thread(ask, options):
    """Its sites have the centre of the fit's columns."""
    model, sites = FederatedLogisticRegression(num_clients=3), [*zip(parts(ROWS), parts(LABELS), strict=True)]
    model, grid = fit_over_a_grid(model, sites, features=3)
    with ThreadPoolExecutor(1) as other, grid.identity(), quiet(50):
        with TURN, pytest.raises(TimeoutError):
            (said := other.submit(getattr(model, ask), grid, **options)).result(0.5)
        said.result()


def test_times_classes_own_intercepts_and_paths_are_centred_too():
    moved = ROWS + np.array([1e7, 0.0, 1e6])
    for model, targets, level in (
        (tables.FederatedCoxRegression(), TIMES, 0),
        (FederatedLogisticRegression(0.5, l1_ratio=1.0), LABELS, 0),
        (FederatedLogisticRegression(0.5, l1_ratio=1.0, site_intercepts="local"), LABELS, 0),
        *((FederatedLasso(cv=Strengths(3, folds=2)), SCORES, level) for level in (0.0, 500.0, 2e3, 1e8)),
    ):
        far, near = (clone(model).fit(*map(parts, own)) for own in ((moved, targets + level), (ROWS, targets)))
        assert_allclose(far.coef_, near.coef_, atol=1e-7)
        for one, other in zip(*(own.path_.points if hasattr(own, "path_") else () for own in (far, near)), strict=True):
            (w, b), (v, c) = ([array.numpy() for array in at.result.arrays.values()] for at in (one, other))
            assert_allclose(moved @ w + b - level, ROWS @ v + c, atol=1e-5)
    model = FederatedLogisticRegression()
    far, near = (model.fit(parts(own), parts(LABELS)).quality(parts(own), parts(LABELS)) for own in (moved, ROWS))
    assert far.overall["Brier"] == pytest.approx(near.overall["Brier"], abs=1e-7)


@pytest.mark.parametrize("value", [0.0, *nightly(1e3), 1e6, 7.123])
def test_a_constant_column_gets_0_and_is_named(value):
    """Also where a mean of many rows is rounded."""
    copies = 60 if value == 7.123 else 1
    wide = np.c_[ROWS, np.full(120, value)]
    for model, targets, where in (
        (tables.FederatedCoxRegression(), TIMES, "stratum, whose own hazard takes it up: x3. Leave it out$"),
        (FederatedLasso(0.0), SCORES, "site, whose own level takes it up: x3. .* or give site_intercepts='common'"),
        (FederatedLogisticRegression(1.0, penalty_factor=[1, 1, 1, 0]), LABELS, "site, .*'common'"),
    ):
        more, fewer, y = ([np.concatenate([own] * copies) for own in parts(each)] for each in (wide, ROWS, targets))
        with pytest.warns(UserWarning, match=r"x3: constant at .*nothing is known of its coefficient"):
            model.fit(more, y)
        plain = clone(model).set_params(penalty_factor=None).fit(fewer, y)
        assert_allclose(np.ravel(model.coef_), [*np.ravel(plain.coef_), 0.0], atol=1e-6)
        assert_allclose(model.predict(wide), plain.predict(ROWS), atol=1e-6)
        refused(f"no intervals: a column is constant at each {where}", model.fit, more, y, intervals=True)
    with warnings.catch_warnings(action="error"):
        # A penalised column is 0 anyway, and has no deviation that could be in other units.
        fit_over_a_grid(FederatedLasso(0.1, standardize=True, num_clients=1), [(wide, SCORES)], features=4)
        assert FederatedLasso(0.1).fit(parts(wide), parts(SCORES)).coef_[3] == 0.0


@pytest.mark.parametrize("value", [1.0, 1e3])
@pytest.mark.parametrize("noise", [0.0, 1e-5])
def test_without_an_intercept_a_constant_column_is_one(value, noise):
    """Nothing else takes up what they add."""
    wide = np.c_[ROWS, value * (1.0 + noise * SCORES)]
    y = SCORES + 5.0
    ours = FederatedLasso(1e-3, fit_intercept=False).fit(parts(wide), parts(y))
    assert_allclose(ours.coef_, Lasso(1e-3, fit_intercept=False, **EXACT).fit(wide, y).coef_, atol=1e-9)
    assert abs(ours.coef_[3] * value) > 4.0
    ours = FederatedLogisticRegression(1e-2, fit_intercept=False).fit(parts(wide), parts(y > 4.0))
    theirs = LogisticRegression(C=1e-2, fit_intercept=False, tol=1e-10, solver="newton-cg").fit(wide, y > 4.0)
    assert_allclose(ours.coef_, theirs.coef_, atol=1e-6)
    table = FederatedLasso(0.0, fit_intercept=False).fit(parts(wide), parts(y), intervals=True).summary().rows
    assert_allclose([row["estimate"] for row in table], np.linalg.lstsq(wide, y)[0], rtol=1e-6)


def test_a_column_of_the_sites_of_strata_or_of_who_is_never_at_risk_tells_nothing():
    strata, early = (np.arange(120) % 2).astype(float), np.arange(120) % 40 < 2
    y = pd.DataFrame(TIMES, columns=["time", "event"]).assign(strata=strata)
    same, other = "constant at each site", "follows .*, or is the same in all rows at risk at each event"
    never = SCORES * early, TIMES * ~early[:, None], other
    for column, targets, why in ((SITES, TIMES, same), (SITES + 10.0 * strata, y, same), never):
        with pytest.warns(UserWarning, match=f"x3: {why}"):
            model = tables.FederatedCoxRegression().fit(parts(np.c_[ROWS, column]), parts(targets))
        plain = tables.FederatedCoxRegression().fit(parts(ROWS), parts(targets))
        assert model.coef_[3] == 0.0
        assert_allclose(model.coef_[:3], plain.coef_, atol=1e-7)


# --- standardize ------------------------------------------------------------------------------------------------------


def with_an_answer(name="means", change=lambda vectors, numbers: None):
    """Fit where the first site changes its first answer."""
    sites = list(zip(*unequal_sites(), strict=True))
    model = FederatedLasso(0.1, standardize=True, num_clients=3)
    return fit_over_a_grid(model, sites, features=5, grid=altering(0, name, change))


@pytest.mark.parametrize("name", ["means", "variances"])
def test_a_site_that_makes_a_deviation_up_is_named(name):
    """It would take all features out of the model, and no other number would show it."""
    with pytest.warns(UserWarning, match=r"deviation of x0 over all sites is .*: site 0 says .* check the unit"):
        with_an_answer(name, lambda own, _: own.update({name: (own[name] + 1.0) * 1e6}))
    with warnings.catch_warnings(action="error"):
        with_an_answer()
        message = r"is (inf|nan), .*: site 0 says a mean of 1e\+300"
        refused(message, with_an_answer, "means", lambda own, _: own["means"].fill(1e300))
    refused("says a variance of -", with_an_answer, "variances", lambda own, _: own["variances"].fill(-1.0))


def test_a_loss_that_a_site_makes_up_does_not_end_a_fit():
    lying = with_an_answer("mass", lambda _, numbers: numbers.update(loss=1e300))[0]
    assert_allclose(lying.coef_, with_an_answer()[0].coef_, rtol=1e-9)

"""The estimators: scikit-learn's own checks, summaries, runs that become one, fits over a grid, cross-validation."""

import re
import tracemalloc
from collections import Counter

import joblib
import numpy as np
import pytest
from federations import counting, fit_over_a_grid
from flwr.app import Array
from numpy.testing import assert_allclose, assert_array_equal
from problems import clients, refused, run
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import ElasticNet, Lasso, LogisticRegression, lasso_path
from sklearn.metrics import log_loss
from sklearn.model_selection import GroupKFold, KFold
from sklearn.utils.estimator_checks import parametrize_with_checks

from flwr_fco.messages.records import TABLE
from flwr_fco.objectives import LeastSquares, Logistic, MultinomialLogistic, TraceRegression
from flwr_fco.regularizers import L1
from flwr_fco.strategies import FedDualAvg, Strengths
from flwr_fco.tables import FederatedElasticNet, FederatedLasso, FederatedLogisticRegression, to_estimator

RNG = np.random.default_rng(0)
X = RNG.normal(size=(80, 6)) * np.array([1.0, 1.0, 10.0, 0.1, 1.0, 1.0]) + 5.0
Y = X @ np.array([1.0, -2.0, 0.3, 0.0, 0.0, 0.0]) + RNG.normal(size=80)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks([FederatedLasso(), FederatedElasticNet(0.1), FederatedLogisticRegression()])
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


def test_parameters_are_scikit_learns_and_only_the_strength_is_positional():
    own = {"num_clients", "max_rounds", "tol", "fit_intercept", "penalty_factor", "standardize"}
    own |= {"site_intercepts", "cluster", "cv", "codebook"}
    for ours, theirs, strength in (
        (FederatedLasso, Lasso, "alpha"),
        (FederatedElasticNet, ElasticNet, "alpha"),
        (FederatedLogisticRegression, LogisticRegression, "C"),
    ):
        assert ours().get_params().keys() - own <= theirs().get_params().keys()
        assert ours(3.0).get_params()[strength] == 3.0
        refused("positional", ours, 1.0, 0.5, kind=TypeError)


def test_a_fit_that_does_not_end_says_so():
    with pytest.warns(ConvergenceWarning, match="after 2 rounds; raise max_rounds"):
        model = FederatedLasso(0.1, max_rounds=2).fit(X, Y)
    assert model.n_iter_ == 2
    assert "Rounds: 2, not solved to tol=1e-14" in model.summary()


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
    assert model.proved_zero_.shape == (3, 4)
    assert [row["penalty_factor"] for row in rows] == [0, 1, 1, 1]


TWICE = [X, X], [Y, Y]
THREE = [np.arange(80) % 3] * 2
REFUSED = {
    "X has 2 parts": (FederatedLasso(), [X, X], [Y]),
    r"part 1: .*\[3, 80\]; .* entry for each row": (FederatedLasso(), [X, X[:3]], [Y, Y]),
    r"part 1: .*0 sam.* a row or more": (FederatedLasso(), [X, X[:0]], [Y, Y[:0]]),
    "alpha=-1.0": (FederatedLasso(-1.0), X, Y),
    "l1_ratio=2.0": (FederatedElasticNet(l1_ratio=2.0), X, Y),
    "C=0.0": (FederatedLogisticRegression(0.0), X, Y > 0),
    "1 class": (FederatedLogisticRegression(), X, np.ones(80, dtype=int)),
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
    "fit_intercept=False; expected None": (FederatedLasso(site_intercepts="local", fit_intercept=False), *TWICE),
    "site_intercepts=True": (FederatedLasso(site_intercepts=True), *TWICE),
    "of 3 classes; sites have their own of two": (FederatedLogisticRegression(site_intercepts="local"), [X, X], THREE),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_fitted_is_refused_with_what_was_given(message):
    model, features, targets = REFUSED[message]
    refused(message, model.fit, features, targets)


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


class Result:
    def __init__(self, **arrays):
        self.arrays = {name: Array(np.asarray(array, dtype=float)) for name, array in arrays.items()}


def test_a_run_becomes_an_estimator(tmp_path):
    objectives = clients()
    own = objectives[0]
    model = to_estimator(run(FedDualAvg(regularizer=L1(0.3), client_lr=0.05), objectives, 20), own)
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
    losses = [MultinomialLogistic(X, labels, num_classes=num_classes, intercept=intercept)]
    losses += [Logistic(X, own, intercept=intercept) for own in (labels, 2 * labels - 1)] if num_classes == 2 else []
    names = np.array(list("abcde"))[:num_classes]
    for objective in losses:
        result = Result(**objective.layout.views(w := rng.normal(size=objective.layout.size)))
        model = to_estimator(result, objective)
        assert log_loss(labels, model.predict_proba(X)) == pytest.approx(objective.value(w), rel=1e-12)
        assert_array_equal(model.predict(X), objective.predict(w))
        named = to_estimator(result, objective, classes=names)
        assert_array_equal(named.predict(X), names[np.maximum(objective.predict(w), 0)])


SQUARES = LeastSquares(np.eye(2), np.ones(2))
TWO = Result(coefficients=np.ones(2), intercept=[0.0])


@pytest.mark.parametrize(
    ("result", "objective", "options", "message"),
    [
        (None, SQUARES, {}, "result is a NoneType; expected what"),
        (TWO, Logistic(np.eye(2), [1, 1]), {}, "say which they are: classes="),
        (Result(), TraceRegression(np.ones((3, 2, 2)), np.ones(3)), {}, "has no estimator"),
        (Result(coefficients=np.ones(3)), SQUARES, {}, "of different runs"),
        (TWO, SQUARES, {"classes": [0, 1]}, "least squares have none"),
        (TWO, Logistic(np.eye(2), [0, 1]), {"classes": ["a"]}, "expected 2 of them"),
    ],
)
def test_what_is_no_estimator(result, objective, options, message):
    refused(message, to_estimator, result, objective, **options)


# --- over a grid ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("kind", ["lasso", "standardized", "two classes", "three classes"])
def test_over_a_grid_the_bits_are_those_of_a_fit_here(kind, form, caplog):
    """Every message to a site is counted but the first: the question before round 1, and rounds. No line is logged."""
    caplog.set_level("INFO", logger="flwr")
    rng = np.random.default_rng(0)
    parts = [rng.normal(0.2 * m, 1.0, size=(30 + m, 5)) for m in range(3)]
    targets = [features @ [1.0, -1.0, 0.5, 0.0, 0.0] + rng.normal(size=len(features)) for features in parts]
    parts = [form(own) for own in parts]
    options = {"num_clients": 3, "penalty_factor": [1, 2, 0, 1, 1]}
    model = FederatedLasso(0.1, standardize=kind == "standardized", **options)
    classes = {}
    if "classes" in kind:
        bins = {"two classes": [0.0], "three classes": [-1.0, 1.0]}[kind]
        targets = [np.array(["a", "b", "c"])[np.digitize(own, bins)] for own in targets]
        model = FederatedLogisticRegression(C=0.3, l1_ratio=1.0, **options)
        classes = {"classes": ["a", "b", "c"][: len(bins) + 1]}
    here = clone(model).fit(parts, targets)
    asked = []
    sites = list(zip(parts, targets, strict=True))
    there, _ = fit_over_a_grid(model, sites, features=list("vwxyz"), app=classes, grid=counting(asked), **classes)
    assert not [record for record in caplog.records if record.levelname == "INFO"]
    assert_array_equal(there.coef_, here.coef_)
    assert_array_equal(there.intercept_, here.intercept_)
    assert [node for node, message in asked if message == TABLE] == [2, 3, 4]
    assert there.n_iter_ == here.n_iter_ == max(Counter(n for n, message in asked if message != TABLE).values())
    assert there.feature_names_in_.tolist() == list("vwxyz")
    # The sites' columns have not been compared with these names.
    assert "taken on trust" in there.summary()
    np.testing.assert_equal(there.duality_gap_, here.duality_gap_)


def test_what_a_grid_needs_besides():
    model = FederatedLogisticRegression(num_clients=2)
    classes = {"classes": ["x", "y"]}
    for changes, labels, options, message in (
        ({}, "xyx", {}, r"no site names its columns, as arrays do not: .* features=30"),
        ({}, "xyx", {"features": 5.0}, r"features=5.0; expected .*, how many there are, or None"),
        ({"penalty_factor": {"age": 0}}, "xyx", {"features": list("abc")}, r"\['age'\], which X .* not have; .* c$"),
        ({}, "xyz", {"features": 3, **classes}, r"0 of num_clients=2 sites have answered.*a label is none of"),
    ):
        sites = [(np.eye(3), np.array(list(labels)))] * 2
        refused(message, fit_over_a_grid, clone(model).set_params(**changes), sites, app=classes, **options)


@pytest.mark.parametrize("loaded", [(1, 2, 3, 4), None, {"X": 1, "y": 2}])
def test_what_a_site_loads_is_rows_targets_and_perhaps_weights(loaded):
    message = rf"load returns a {type(loaded).__name__}.*; expected a tuple \(X, y\) or \(X, y, sample_weight\)"
    refused(message, fit_over_a_grid, FederatedLasso(num_clients=1), [loaded], features=5)


# --- cross-validation -------------------------------------------------------------------------------------------------


def losses_of(path):
    return [point.held_out for point in path.points]


@pytest.mark.parametrize(
    ("model", "kind", "columns"),
    [
        (FederatedElasticNet(l1_ratio=0.7, cv=Strengths(8, folds=3)), "regression", 6),
        (FederatedLogisticRegression(l1_ratio=1.0, cv=Strengths(8, folds=4)), "two", 6),
        (FederatedLogisticRegression(l1_ratio=1.0, cv=Strengths(8, folds=3, rule="one-standard-error")), "three", 6),
        # A null model without an intercept has no Hessian to ask for.
        (FederatedLasso(fit_intercept=False, cv=Strengths(6, folds=3)), "regression", 140),
        (FederatedLogisticRegression(l1_ratio=1.0, fit_intercept=False, cv=Strengths(6, folds=3)), "two", 140),
    ],
)
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
    assert min(losses_of(path)) < losses_of(path)[0]
    strength = {"alpha": model.strength_} if kind == "regression" else {"C": 1.0 / (120 * model.strength_)}
    found = model.coef_
    again = model.set_params(cv=None, **strength).fit(*parts)
    assert_allclose(found, again.coef_, atol=1e-6)
    assert not hasattr(again, "path_")
    assert not hasattr(again, "strength_")


def test_a_row_of_weight_2_is_two_rows_of_a_cross_validation():
    weights = 1 + np.arange(len(X)) % 3
    site = np.arange(len(X)) % 2
    splits = list(KFold(4).split(X))
    twice = np.repeat(np.arange(len(X)), weights)
    repeated = [[np.flatnonzero(np.isin(twice, side)) for side in split] for split in splits]
    one = FederatedLasso(cv=splits).fit(X, Y, sample_weight=weights, groups=site).path_
    other = FederatedLasso(cv=repeated).fit(X[twice], Y[twice], groups=site[twice]).path_
    assert_allclose([at[3:5] for at in one.points], [at[3:5] for at in other.points], rtol=1e-5)


def test_a_message_of_a_cross_validation_is_as_small_as_the_user_says():
    whole, small = (FederatedLasso(cv=Strengths(12, folds=3, max_bytes=size)).fit(X, Y).path_ for size in (2**25, 1))
    rounds = [len(path.points[0].result.train_metrics_clientapp) for path in (whole, small)]
    assert rounds[1] > 2 * rounds[0]
    assert_allclose(losses_of(whole), losses_of(small), rtol=1e-6)
    message = r"takes about \S+ MB of each client, above total_bytes=1000;"
    refused(message, FederatedLasso(cv=Strengths(folds=4, total_bytes=1000)).fit, X, Y)


def test_a_ridge_takes_strengths_of_scikit_learns_scale():
    X, y = load_breast_cancer(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    path = FederatedLogisticRegression(cv=Strengths(9, folds=3)).fit(X, y).path_
    assert_allclose([point.strength for point in path.points], np.logspace(3, -3, 9) / 569)
    model = FederatedLogisticRegression(cv=Strengths(values=[0.1, 0.01], folds=3)).fit(X, y)
    assert model.strength_ in (0.1, 0.01)
    X = np.random.default_rng(0).normal(size=(20, 2050))
    message = r"a ridge with 2051 coefficients.*above 2048 no .*l1_ratio > 0"
    refused(message, FederatedLogisticRegression(cv=3).fit, X, X[:, 0] > 0.0)


def test_folds_of_ones_own_are_those_of_the_rows():
    """Rows of one patient stay in one fold: the losses are those of scikit-learn's on the same splits."""
    splits = list(GroupKFold(4).split(X, Y, np.arange(len(X)) // 3))
    for point in FederatedLasso(num_clients=3, cv=splits).fit(X, Y).path_.points[::10]:
        lasso = Lasso(point.strength, tol=1e-12)
        errors = [lasso.fit(X[train], Y[train]).predict(X[test]) - Y[test] for train, test in splits]
        assert point.held_out == pytest.approx(0.5 * np.square(np.concatenate(errors)).mean(), rel=1e-4)
    refused("numbers are rows of one X", FederatedLasso(cv=splits).fit, [X[:20], X[20:]], [Y[:20], Y[20:]])
    refused("expected a partition", FederatedLasso(cv=splits[:2]).fit, X, Y)


def test_wide_squares_are_scikit_learns_and_send_little():
    """Far less than a triangle of each problem in each round."""
    rng = np.random.default_rng(0)
    sites = [rng.normal(0.2 * m, 1.0, (n, 200)) for m, n in enumerate((20, 31, 12))]
    targets = [own[:, :8] @ rng.choice([-1.0, 1.0], 8) + rng.normal(size=len(own)) for own in sites]
    points = FederatedLasso(cv=Strengths(10, folds=4)).fit(sites, targets).path_.points
    x, y = np.vstack(sites), np.concatenate(targets)
    strengths = [point.strength for point in points]
    expected = lasso_path(x - x.mean(axis=0), y - y.mean(), alphas=strengths, tol=1e-14, max_iter=100_000)[1]
    found = np.transpose([point.result.arrays["coefficients"].numpy() for point in points])
    assert_allclose(found, expected, atol=2e-5)
    assert ((np.abs(found) > 1e-4) == (np.abs(expected) > 1e-4)).all()
    history = points[0].result.train_metrics_clientapp
    triangles = len(history) * 5 * 4 * 60**2
    assert sum(each["bytes-up"] for each in history.values()) / 3 < triangles


@pytest.mark.parametrize(("features", "ratio"), [(4, 1e-4), (90, 1e-2)])
def test_the_smallest_strength_is_glmnets_and_a_short_path_says_so(features, ratio):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, features))
    y = X[:, 0] + 0.1 * rng.normal(size=60)
    points = FederatedLasso(cv=3).fit(X, y).path_.points
    assert points[-1].strength == pytest.approx(ratio * points[0].strength)
    short = FederatedLasso(cv=Strengths(3, 0.9, folds=3)).fit(X, y)
    assert "it is the smallest one, so that a smaller one may be better" in str(short.summary())

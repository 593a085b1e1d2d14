"""The estimators: scikit-learn's solutions and its own checks."""

import tracemalloc
import warnings
from collections import Counter

import joblib
import numpy as np
import pytest
from flwr.app import Array
from problems import clients, run
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import ElasticNet, Lasso, LogisticRegression
from sklearn.metrics import log_loss
from sklearn.utils.estimator_checks import check_estimator
from together import together

from flwr_fco.client_apps import Disclosure
from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives import LeastSquares, Logistic, MultinomialLogistic, TraceRegression
from flwr_fco.regularizers import L1
from flwr_fco.simulation import InProcessGrid
from flwr_fco.sklearn import FederatedElasticNet, FederatedLasso, FederatedLogisticRegression, to_estimator
from flwr_fco.strategies import FedDualAvg
from flwr_fco.wire import flower


def regression_data():
    """Features of different sizes, far from 0."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 6)) * np.array([1.0, 1.0, 10.0, 0.1, 1.0, 1.0]) + 5.0
    return X, X @ np.array([1.0, -2.0, 0.3, 0.0, 0.0, 0.0]) + rng.normal(size=80)


@pytest.mark.parametrize(
    ("ours", "theirs", "fit_intercept"),
    [
        (FederatedLasso(0.1, num_clients=2), Lasso(0.1), True),
        (FederatedElasticNet(0.2, l1_ratio=0.3, num_clients=2), ElasticNet(0.2, l1_ratio=0.3), False),
        (FederatedElasticNet(0.05, l1_ratio=0.9, num_clients=7), ElasticNet(0.05, l1_ratio=0.9), True),
    ],
)
def test_regression_is_scikit_learns(ours, theirs, fit_intercept):
    X, y = regression_data()
    ours = clone(ours).set_params(fit_intercept=fit_intercept, max_rounds=20_000).fit(X, y)
    theirs = clone(theirs).set_params(fit_intercept=fit_intercept, tol=1e-13, max_iter=1_000_000).fit(X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(ours.coef_ == 0, theirs.coef_ == 0)
    assert ours.intercept_ == pytest.approx(theirs.intercept_, abs=1e-5)
    assert ours.score(X, y) == pytest.approx(theirs.score(X, y), abs=1e-6)


@pytest.mark.parametrize("l1_ratio", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("classes", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_classification_is_scikit_learns(classes, l1_ratio):
    X, y = load_iris(return_X_y=True)
    X, y = X[50 * (classes == 2) :], np.array(["setosa", "versicolor", "virginica"])[y[50 * (classes == 2) :]]
    C = 0.5
    ours = FederatedLogisticRegression(C, l1_ratio=l1_ratio, num_clients=2, max_rounds=30_000, tol=1e-11)
    ours.fit(X, y)
    options = {"solver": "saga", "tol": 1e-13, "max_iter": 1_000_000} if l1_ratio else {"solver": "newton-cg"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = LogisticRegression(C=C, l1_ratio=l1_ratio, **{"tol": 1e-10, **options}).fit(X, y)
    assert ours.classes_.tolist() == theirs.classes_.tolist()
    assert ours.coef_.shape == theirs.coef_.shape
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=0, atol=1e-6)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), rtol=0, atol=1e-5)
    np.testing.assert_array_equal(ours.predict(X), theirs.predict(X))


def test_parts_of_ones_own_are_pooled():
    """How the rows are divided has no effect on the solution, also where a client has one class."""
    X, y = load_iris(return_X_y=True)
    whole = FederatedLogisticRegression(0.1).fit(X, y)
    parts = FederatedLogisticRegression(0.1).fit([X[:50], X[50:70], X[70:]], [y[:50], y[50:70], y[70:]])
    np.testing.assert_allclose(parts.coef_, whole.coef_, rtol=0, atol=1e-6)
    X, y = regression_data()
    whole, parts = FederatedLasso(0.1).fit(X, y), FederatedLasso(0.1).fit([X[:10], X[10:]], [y[:10], y[10:]])
    np.testing.assert_allclose(parts.coef_, whole.coef_, rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "estimator",
    [FederatedLasso(), FederatedElasticNet(0.1), FederatedLogisticRegression()],
    ids=lambda e: type(e).__name__,
)
def test_scikit_learns_own_checks(estimator):
    """All of them, none expected to fail; scikit-learn skips that of array API input, which needs a switch of SciPy."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(estimator, on_skip=None)
    assert {r["check_name"] for r in results if r["status"] != "passed"} <= {"check_array_api_input"}
    assert len(results) > 40


def test_their_parameters_are_those_of_scikit_learns():
    """In its order, and with its defaults where it has them; ours come by name alone."""
    own = {"num_clients": 4, "max_rounds": 5000, "tol": 1e-14, "fit_intercept": True}
    for ours, theirs, first in (
        (FederatedLasso, Lasso, {"alpha": 1.0}),
        (FederatedElasticNet, ElasticNet, {"alpha": 1.0, "l1_ratio": 0.5}),
        (FederatedLogisticRegression, LogisticRegression, {"C": 1.0, "l1_ratio": 0.0}),
    ):
        assert ours().get_params() == {**own, **first}
        name = next(iter(first))
        assert ours(3.0).get_params()[name] == 3.0
        assert set(ours().get_params()) - set(own) <= set(theirs().get_params())
        with pytest.raises(TypeError):
            ours(1.0, 0.5)


def test_a_fit_that_does_not_end_says_so():
    X, y = regression_data()
    with pytest.warns(ConvergenceWarning, match="after 2 rounds; raise max_rounds"):
        model = FederatedLasso(0.1, max_rounds=2).fit(X, y)
    assert model.n_iter_ == 2


def test_rounding_is_no_solution_where_the_gap_is_far_from_the_tolerance():
    """Features of 1e8: no step decreases the objective by more than its rounding error."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 5)) + 1e8
    with pytest.warns(ConvergenceWarning, match="raise max_rounds or scale the features"):
        model = FederatedLogisticRegression(1.0, l1_ratio=1.0).fit(X, X[:, 0] > X[:, 0].mean())
    assert model.duality_gap_ > 1e-9


def test_columns_without_text_names_are_not_reordered_in_silence():
    pandas = pytest.importorskip("pandas")
    first = pandas.DataFrame(np.eye(4)[:, :2], columns=[0, 1])
    targets = [np.array([0.0, 1.0, 2.0, 1.0])] * 2
    with pytest.raises(ConfigurationError, match="other columns, and their names are no texts"):
        FederatedLasso(0.1).fit([first, first[[1, 0]]], targets)
    FederatedLasso(0.1).fit([first, first], targets)


def test_joblib(tmp_path):
    X, y = load_iris(return_X_y=True)
    model = FederatedLogisticRegression(0.01).fit(X, y)
    joblib.dump(model, tmp_path / "model")
    np.testing.assert_array_equal(joblib.load(tmp_path / "model").predict_proba(X), model.predict_proba(X))


@together(
    ("fit", "message"),
    [
        (lambda X, y: FederatedLasso().fit([X, X], [y]), "X has 2 parts"),
        (lambda X, y: FederatedLasso().fit([X, X[:3]], [y, y]), "part 1 has 3 rows in X and 80 in y"),
        (lambda X, y: FederatedLasso().fit([X, X[:0]], [y, y[:0]]), "part 1 has no rows"),
        (lambda X, y: FederatedLasso().fit([X, X[:, 1:]], [y, y]), "part 1 has . columns in X and part 0 has"),
        (lambda X, y: FederatedLasso(-1.0).fit(X, y), "alpha=-1.0"),
        (lambda X, y: FederatedElasticNet(l1_ratio=2.0).fit(X, y), "l1_ratio=2.0"),
        (lambda X, y: FederatedLogisticRegression(0.0).fit(X, y > 0), "C=0.0"),
        (lambda X, y: FederatedLogisticRegression().fit(X, np.ones(80, dtype=int)), "1 class"),
        (lambda X, y: FederatedLasso(num_clients=0).fit(X, y), "num_clients=0"),
        (lambda X, y: FederatedLasso(num_clients=3.0).fit(X, y), "num_clients=3.0 is a float; expected a whole number"),
        (lambda X, y: FederatedLasso("0.1").fit(X, y), "alpha='0.1' is a str; expected a number"),
        (lambda X, y: FederatedLogisticRegression("1").fit(X, y > 0), "C='1' is a str; expected a number"),
    ],
)
def test_what_cannot_be_fitted(fit, message):
    with pytest.raises(ConfigurationError, match=message):
        fit(*regression_data())


class Result:
    def __init__(self, **arrays):
        self.arrays = {name: Array(np.asarray(array, dtype=float)) for name, array in arrays.items()}


def test_a_run_becomes_an_estimator(tmp_path):
    objectives = clients()
    result = run(FedDualAvg(regularizer=L1(0.3), client_lr=0.05), objectives, 20)
    own = objectives[0]
    model = to_estimator(result, own)
    joblib.dump(model, tmp_path / "model")
    w = np.concatenate([model.coef_, [model.intercept_]])
    np.testing.assert_allclose(joblib.load(tmp_path / "model").predict(own.features), own.predict(w), rtol=1e-12)
    assert model.score(own.features, own.targets) == pytest.approx(own.metrics(w)["r2"])


def test_classifiers_of_a_run():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 4))
    for labels in (np.arange(30) % 2, 2 * (np.arange(30) % 2) - 1):
        own, w = Logistic(X, labels), rng.normal(size=5)
        model = to_estimator(Result(coefficients=w[:4], intercept=w[4:]), own)
        np.testing.assert_array_equal(model.predict(X), own.predict(w))
        assert model.score(X, labels) == pytest.approx(own.metrics(w)["accuracy"])
    own, w = MultinomialLogistic(X, np.arange(30) % 3), rng.normal(size=15)
    result = Result(coefficients=w[:12].reshape(4, 3), intercept=w[12:])
    model = to_estimator(result, own, classes=["a", "b", "c"])
    np.testing.assert_array_equal(model.predict(X), np.array(["a", "b", "c"])[own.predict(w)])
    assert model.predict_proba(X).shape == (30, 3)
    own = LeastSquares(X, X[:, 0], intercept=False)
    assert to_estimator(Result(coefficients=w[:4]), own).intercept_ == 0.0


@pytest.mark.parametrize("num_classes", [2, 3, 5])
@pytest.mark.parametrize("intercept", [True, False])
def test_the_probabilities_of_a_classifier_are_those_of_the_loss(num_classes, intercept):
    """Two classes of a multinomial model too, of which scikit-learn keeps one row and not two."""
    rng = np.random.default_rng(num_classes)
    X, labels = rng.normal(size=(40, 4)), np.arange(40) % num_classes
    own = MultinomialLogistic(X, labels, num_classes=num_classes, intercept=intercept)
    objectives = [own, Logistic(X, labels, intercept=intercept)] if num_classes == 2 else [own]
    for objective in objectives:
        w = rng.normal(size=objective.layout.size)
        model = to_estimator(Result(**objective.layout.views(w)), objective)
        assert log_loss(labels, model.predict_proba(X)) == pytest.approx(objective.value(w), rel=1e-12)
        np.testing.assert_array_equal(model.predict(X), objective.predict(w))


@pytest.mark.parametrize(
    ("result", "objective", "options", "message"),
    [
        (None, LeastSquares(np.eye(2), np.ones(2)), {}, "result is a NoneType; expected what"),
        ({"coefficients": np.ones(2)}, LeastSquares(np.eye(2), np.ones(2)), {}, "result is a dict; expected what"),
        (
            Result(coefficients=np.ones(2), intercept=[0.0]),
            Logistic(np.eye(2), [1, 1]),
            {},
            "say which they are: classes=",
        ),
        (Result(), TraceRegression(np.ones((3, 2, 2)), np.ones(3)), {}, "has no estimator"),
        (Result(coefficients=np.ones(3)), LeastSquares(np.eye(2), np.ones(2)), {}, "of different runs"),
        (
            Result(coefficients=np.ones(2), intercept=[0.0]),
            LeastSquares(np.eye(2), np.ones(2)),
            {"classes": [0, 1]},
            "least squares have none",
        ),
        (
            Result(coefficients=np.ones(2), intercept=[0.0]),
            Logistic(np.eye(2), [0, 1]),
            {"classes": ["a"]},
            "expected 2 of them",
        ),
    ],
)
def test_what_is_no_estimator(result, objective, options, message):
    with pytest.raises(ConfigurationError, match=message):
        to_estimator(result, objective, **options)


def test_few_rounds_no_joint_array_and_no_square_of_the_features():
    """p = 3,000: a square of the features would take 72 MB, the rows of all clients 4 MB."""
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=(60, 3000)) for _ in range(3)]
    labels = [features[:, 0] - features[:, 1] + rng.normal(size=60) > 0.0 for features in parts]
    FederatedLogisticRegression(C=0.2, l1_ratio=1.0).fit([part[:, :9] for part in parts], labels)  # compiles
    tracemalloc.start()
    model = FederatedLogisticRegression(C=0.2, l1_ratio=1.0).fit(parts, labels)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # A centred copy of each client's rows, and a few vectors and blocks of the working set.
    assert most < 4 * sum(part.nbytes for part in parts)
    assert model.n_iter_ <= 14
    assert model.duality_gap_ < 1e-12
    assert 0 < np.count_nonzero(model.coef_) < 100
    X, y = np.vstack(parts), np.concatenate(labels)
    expected = LogisticRegression(C=0.2, l1_ratio=1.0, solver="liblinear", tol=1e-12, max_iter=10**5)
    strength = 1.0 / (0.2 * len(y))

    def objective(coef, intercept):
        return log_loss(y, 1.0 / (1.0 + np.exp(-(X @ coef + intercept)))) + strength * np.abs(coef).sum()

    expected.fit(np.column_stack([X, np.full(len(y), 1e4)]), y)  # liblinear's intercept is penalised unless it is tiny
    theirs = objective(expected.coef_[0, :-1], expected.intercept_[0] + 1e4 * expected.coef_[0, -1])
    assert objective(model.coef_[0], model.intercept_[0]) <= theirs + 1e-9


def test_a_ridge_of_many_features_asks_for_no_square():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 2500))
    y = X[:, 0] > 0.0
    model = FederatedLogisticRegression(num_clients=2, tol=1e-8).fit(X, y)
    expected = LogisticRegression(tol=1e-10, max_iter=1000).fit(X, y)
    np.testing.assert_allclose(model.coef_, expected.coef_, atol=1e-4)


@pytest.mark.parametrize("share", [0.5, 0.0])
@pytest.mark.parametrize("kind", ["lasso", "ridge", "two classes"])
def test_over_a_grid_where_sites_allow_few_columns_the_solution_is_that_of_scikit_learn(kind, share):
    rng = np.random.default_rng(0)
    parts = [rng.normal(0.2 * m, 1.0, size=(40 + m, 8)) for m in range(3)]
    scores = [features @ np.r_[1.0, -1.0, 0.5, np.zeros(5)] + rng.normal(size=len(features)) for features in parts]
    X, y = np.vstack(parts), np.concatenate(scores)
    model, theirs = FederatedLasso(0.1, num_clients=3), Lasso(0.1, tol=1e-12)
    if kind != "lasso":
        ratio = float(kind == "two classes")
        scores, y = [own > 0.0 for own in scores], y > 0.0
        model = FederatedLogisticRegression(C=0.3, l1_ratio=ratio, num_clients=3)
        theirs = LogisticRegression(
            C=0.3, l1_ratio=ratio, solver="saga" if ratio else "lbfgs", tol=1e-10, max_iter=10**5
        )

    def load(context):
        return parts[context.node_config["partition-id"]], scores[context.node_config["partition-id"]].astype(float)

    grid = InProcessGrid(model.client_app(load, disclosure=Disclosure(hessian_share=share)), 3)
    with flower.identity(grid.run_id), flower.quiet(50), warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        model.fit(grid, features=8)
    theirs.fit(X, y)
    np.testing.assert_allclose(np.ravel(model.coef_), np.ravel(theirs.coef_), atol=1e-5)
    assert model.duality_gap_ <= 1e-9


@pytest.mark.parametrize("limit", ["min_rows", "min_class_rows"])
def test_over_a_grid_a_site_with_few_rows_is_named_with_its_limit(limit):
    parts = [np.random.default_rng(m).normal(size=(20 + 10 * m, 3)) for m in range(3)]
    model = FederatedLogisticRegression(num_clients=3)

    def load(context):
        features = parts[context.node_config["partition-id"]]
        return features, np.arange(len(features)) % 2

    app = model.client_app(load, disclosure=Disclosure(**{limit: 15 if limit == "min_class_rows" else 30}))
    grid = InProcessGrid(app, 3, raise_errors=False)
    told = rf"2 of num_clients=3 sites have answered; the reasons.*question .*{limit}="
    with flower.identity(grid.run_id), flower.quiet(50), pytest.raises(ConfigurationError, match=told):
        model.fit(grid, features=3)


@pytest.mark.parametrize("kind", ["lasso", "two classes", "three classes"])
def test_over_a_grid_the_bits_are_those_of_a_fit_here(kind):
    """And every message to a site is counted: the question before round 1, and the rounds."""
    rng = np.random.default_rng(0)
    parts = [rng.normal(0.2 * m, 1.0, size=(30 + m, 5)) for m in range(3)]
    scores = [features @ [1.0, -1.0, 0.5, 0.0, 0.0] + rng.normal(size=len(features)) for features in parts]
    bins = {"lasso": None, "two classes": [0.0], "three classes": [-1.0, 1.0]}[kind]
    targets = scores if bins is None else [np.array(["a", "b", "c"])[np.digitize(own, bins)] for own in scores]
    model, more, app_options = FederatedLasso(0.1, num_clients=3), {}, {}
    if bins is not None:
        model = FederatedLogisticRegression(C=0.3, l1_ratio=1.0, num_clients=3)
        more = app_options = {"classes": ["a", "b", "c"][: len(bins) + 1]}
    here = clone(model).fit(parts, targets)
    asked = []

    class Counting(InProcessGrid):
        def _deliver(self, message):
            asked.append(message.metadata.dst_node_id)
            return super()._deliver(message)

    def load(context):
        return parts[context.node_config["partition-id"]], targets[context.node_config["partition-id"]]

    grid = Counting(model.client_app(load, **app_options), 3)
    with flower.identity(grid.run_id), flower.quiet(50):
        there = clone(model).fit(grid, features=list("vwxyz"), **more)
    assert np.array_equal(there.coef_, here.coef_)
    assert np.array_equal(there.intercept_, here.intercept_)
    assert there.n_iter_ == here.n_iter_ == max(Counter(asked).values())
    assert there.feature_names_in_.tolist() == list("vwxyz")
    assert there.duality_gap_ == here.duality_gap_
    np.testing.assert_array_equal(there.predict(parts[0]), here.predict(parts[0]))


def test_what_a_grid_needs_besides():
    model = FederatedLogisticRegression(num_clients=2)
    app = model.client_app(lambda context: (np.eye(3), np.array(["x", "y", "z"])), classes=["x", "y"])
    grid = InProcessGrid(app, 2, raise_errors=False)
    with flower.identity(grid.run_id), flower.quiet(50):
        with pytest.raises(ConfigurationError, match="features=None: the sites have the data"):
            model.fit(grid)
        with pytest.raises(ConfigurationError, match=r"features=5.0: .* or how many there are"):
            model.fit(grid, features=5.0)
        with pytest.raises(ConfigurationError, match=r"0 of num_clients=2 sites have answered.*a label is none of"):
            model.fit(grid, features=3, classes=["x", "y"])

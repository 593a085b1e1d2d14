"""The estimators: scikit-learn's solutions and its own checks."""

import pickle
import re
import tracemalloc
import warnings
from collections import Counter

import joblib
import numpy as np
import pytest
from flwr.app import Array
from problems import clients, run
from scipy import sparse
from scipy.special import expit
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import ElasticNet, Lasso, LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import GroupKFold, KFold
from sklearn.utils.estimator_checks import check_estimator
from sparse_rows import rows
from together import together

from flwr_fco.client_apps import Disclosure
from flwr_fco.core.logs import quiet
from flwr_fco.errors import ConfigurationError
from flwr_fco.messages.records import TABLE
from flwr_fco.objectives import LeastSquares, Logistic, MultinomialLogistic, TraceRegression
from flwr_fco.regularizers import L1
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import FedDualAvg, Strengths
from flwr_fco.tables import FederatedElasticNet, FederatedLasso, FederatedLogisticRegression, to_estimator


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


FACTORS = np.array([0.0, 1.0, 0.0, 3.0, 0.2, 1.0])


@pytest.mark.parametrize("outputs", [1, 2, 3], ids=["squares", "two classes", "three classes"])
@pytest.mark.parametrize("l1_ratio", [1.0, 0.4, 0.0])
def test_a_factor_multiplies_the_penalty_of_its_feature(outputs, l1_ratio):
    """Optimality: the loss's slope balances the penalty's, and is 0 where there is none."""
    X, y = regression_data()
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    strength = 0.05
    if outputs == 1:
        model = FederatedElasticNet(strength, l1_ratio=l1_ratio, penalty_factor=FACTORS).fit(X, y)
        slopes = X.T @ (model.predict(X) - y)[:, None] / 80
    else:
        y = np.digitize(y, np.quantile(y, [[0.5], [0.3, 0.6]][outputs - 2]) + 0.5)
        y[::9] = (y[::9] + 1) % outputs  # not separable
        model = FederatedLogisticRegression(1 / (80 * strength), l1_ratio=l1_ratio, penalty_factor=FACTORS).fit(X, y)
        slopes = X.T @ (model.predict_proba(X) - np.eye(outputs)[y]) / 80
        slopes = slopes[:, 1:] if outputs == 2 else slopes
    w = np.atleast_2d(model.coef_).T
    pulls = slopes + strength * (1.0 - l1_ratio) * FACTORS[:, None] * w
    thresholds = np.broadcast_to(strength * l1_ratio * FACTORS[:, None], w.shape)
    np.testing.assert_allclose(pulls[w != 0], -(thresholds * np.sign(w))[w != 0], atol=1e-7)
    assert (np.abs(pulls) <= thresholds + 1e-7).all()
    assert (w[FACTORS == 0.0] != 0.0).all()
    if l1_ratio == 1.0:
        assert (w == 0.0).any()
    if outputs == 3:
        np.testing.assert_allclose(w[FACTORS == 0.0].sum(axis=1), 0.0, atol=1e-12)


def test_a_factor_is_a_scale_of_the_column_and_0_takes_the_column_out():
    """By the substitution v_j = f_j w_j; and a confounder of squares is projected out of the others and of y."""
    X, y = regression_data()
    factors = np.array([1.0, 0.5, 2.0, 4.0, 0.2, 1.0])
    ours = FederatedLasso(0.2, penalty_factor=factors).fit(X, y)
    theirs = Lasso(0.2, tol=1e-13, max_iter=10**6).fit(X / factors, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_ / factors, atol=1e-6)
    assert ours.duality_gap_ < 1e-12
    ours = FederatedLasso(0.2, penalty_factor=[0, 1, 1, 1, 1, 1]).fit(X, y)
    beside = np.column_stack([np.ones(80), X[:, 0]])
    X, y = (part - beside @ np.linalg.lstsq(beside, part)[0] for part in (X[:, 1:], y))
    theirs = Lasso(0.2, tol=1e-13, max_iter=10**6, fit_intercept=False).fit(X, y)
    np.testing.assert_allclose(ours.coef_[1:], theirs.coef_, atol=1e-6)
    # Where a column has no penalty no gap is known, and nothing is proved.
    assert np.isnan(ours.duality_gap_)
    assert re.search(r"Residual: [0-9.e-]+, the length of a proximal gradient step; there is no", ours.summary())
    assert not ours.proved_zero_.any()


def test_factors_of_0_alone_are_no_penalty():
    X, y = regression_data()
    ours = FederatedLasso(0.2, penalty_factor=np.zeros(6)).fit(X, y)
    expected = np.linalg.lstsq(np.column_stack([X, np.ones(80)]), y)[0]
    np.testing.assert_allclose([*ours.coef_, ours.intercept_], expected, atol=1e-8)
    assert np.isnan(ours.duality_gap_)
    assert re.search(r"Residual: .*; there is no duality gap", ours.summary())


def test_sparse_features_give_the_fit_of_dense_ones():
    X, y = rows(80, 12), np.random.default_rng(5).standard_normal(80)
    for make, target in ((FederatedLasso(0.005), y), (FederatedLogisticRegression(C=2.0), y > 0)):
        dense = make.fit(X.toarray(), target)
        expected = dense.coef_.copy(), np.copy(dense.intercept_)
        for given in (X, sparse.csc_matrix(X), [X[:30], X[30:].toarray()]):
            parts = target if sparse.issparse(given) else [target[:30], target[30:]]
            found = make.fit(given, parts)
            np.testing.assert_allclose(found.coef_, expected[0], atol=1e-6)
            np.testing.assert_allclose(found.intercept_, expected[1], atol=1e-6)
        np.testing.assert_allclose(found.predict(X), found.predict(X.toarray()), rtol=1e-12)


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
    own = {
        "num_clients": 4,
        "max_rounds": 5000,
        "tol": 1e-14,
        "fit_intercept": True,
        "penalty_factor": None,
        "standardize": False,
        "site_intercepts": None,
        "cluster": None,
        "cv": None,
        "codebook": None,
    }
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
    """Sparse features of 1e8, which nobody centres: no step decreases the objective by more than its rounding error."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 5)) + 1e8
    y, X = X[:, 0] > X[:, 0].mean(), sparse.csr_array(X)
    with pytest.warns(ConvergenceWarning, match="raise max_rounds or scale the features"):
        model = FederatedLogisticRegression(1.0, l1_ratio=1.0, max_rounds=20).fit(X, y)
    assert model.duality_gap_ > 1e-9


def test_columns_without_text_names_are_not_reordered_in_silence():
    pandas = pytest.importorskip("pandas")
    first = pandas.DataFrame(np.eye(4)[:, :2], columns=[0, 1])
    targets = [np.array([0.0, 1.0, 2.0, 1.0])] * 2
    with pytest.raises(ConfigurationError, match="other columns, and their names are no texts"):
        FederatedLasso(0.1).fit([first, first[[1, 0]]], targets)
    FederatedLasso(0.1).fit([first, first], targets)


def test_a_summary_says_what_was_found_and_of_what():
    X, y = regression_data()
    model = FederatedElasticNet(0.2, l1_ratio=0.7)
    with pytest.raises(NotFittedError):
        model.summary()
    model.fit([X[:50], X[50:]], [y[:50], y[50:]])
    summary = model.summary()
    assert summary == str(summary) == repr(summary)
    lines = summary.splitlines()
    zeros, gap = np.count_nonzero(model.coef_ == 0.0), rf"{model.duality_gap_:.3g}, of an objective of (\S+)$"
    assert 0 < zeros < 6
    for line in (
        r"Strength: 0.2 \(alpha=0.2, l1_ratio=0.7\)",
        r"Data: 80 rows, of 2 sites$",
        rf"Rounds: {model.n_iter_}$",
        f"Duality gap: {gap}",
        rf"Coefficients: {6 - zeros} of 6 are not 0",
        r"matched by position: .* at all sites is taken on trust",
    ):
        assert re.search(f"(?m){line}", summary), line
    w = model.coef_
    value = ((model.predict(X) - y) ** 2).mean() / 2 + 0.2 * (0.7 * np.abs(w).sum() + 0.15 * w @ w)
    assert float(re.search(gap, summary, re.M)[1]) == pytest.approx(value, rel=1e-5)
    largest = np.argsort(-np.abs(w))[: 6 - zeros]
    reported = [line.split() for line in lines if re.match(r"    (x\d|\(intercept\)) ", line)]
    assert [name for name, _ in reported] == ["(intercept)", *(f"x{j}" for j in largest)]
    np.testing.assert_allclose([float(number) for _, number in reported], [model.intercept_, *w[largest]], rtol=1e-5)
    assert [row["coefficient"] for row in summary.rows] == w.tolist()
    assert list(summary.table()["feature"]) == [f"x{j}" for j in range(6)]
    np.testing.assert_array_equal(model.proved_zero_, model.coef_ == 0.0)
    assert f"Proved zero: {zeros} features, which no optimum" in summary
    # One array has one order; later changes of the parameters are not those of the fit.
    model.fit(X, y).set_params(alpha=3.0)
    assert "trust" not in model.summary()
    assert "alpha=0.2" in model.summary()


@pytest.mark.parametrize(
    "model", [FederatedLasso(1e3, fit_intercept=False), FederatedLasso(1e3, site_intercepts="local")]
)
def test_a_summary_without_any_coefficient_has_no_table(model):
    model.fit(*regression_data())
    assert not model.coef_.any()
    assert re.search(r"Coefficients: 0 of \d+ are not 0", model.summary())


def test_a_summary_of_many_classes_of_weights_and_of_a_fit_that_did_not_end():
    X, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])
    model = FederatedLogisticRegression(0.3, l1_ratio=1.0, penalty_factor=[0, 1, 1, 1]).fit(X, names[y])
    rows = model.summary().rows
    np.testing.assert_array_equal([[row[name] for name in names] for row in rows], model.coef_.T)
    assert model.proved_zero_.shape == (3, 4)
    assert [row["penalty_factor"] for row in rows] == [0, 1, 1, 1]
    assert re.search(r"Strength: 0.0222222 \(C=0.3, .*\n.*\n.*\n.*Residual: ", model.summary())
    assert re.search(r"(?m)^ +setosa +versicolor +virginica +penalty_factor$", model.summary())
    with pytest.warns(ConvergenceWarning):
        model = FederatedLogisticRegression(0.3, l1_ratio=1.0, max_rounds=3).fit(X, y, sample_weight=np.full(150, 2.0))
    assert "Rounds: 3, not solved to tol=1e-14" in model.summary()
    assert "Data: 150 rows, weighted, of 4 sites" in model.summary()
    wide = np.random.default_rng(0).normal(size=(30, 60))
    model = FederatedElasticNet(0.01, l1_ratio=0.0, fit_intercept=False).fit(wide, wide[:, 0])
    assert "    and 20 more; all features: .table()" in model.summary()
    assert "intercept" not in model.summary()
    assert len(model.summary().table()["feature"]) == 60


def test_joblib(tmp_path):
    X, y = load_iris(return_X_y=True)
    model = FederatedLogisticRegression(0.01).fit(X, y)
    joblib.dump(model, tmp_path / "model")
    np.testing.assert_array_equal(joblib.load(tmp_path / "model").predict_proba(X), model.predict_proba(X))


@together(
    ("fit", "message"),
    [
        (lambda X, y: FederatedLasso().fit([X, X], [y]), "X has 2 parts"),
        (
            lambda X, y: FederatedLasso().fit([X, X[:3]], [y, y]),
            r"part 1: .*\[3, 80\]; .* entry for each row",
        ),
        (
            lambda X, y: FederatedLasso().fit([X, X[:0]], [y, y[:0]]),
            r"part 1: .*0 sam.* a row or more",
        ),
        (
            lambda X, y: FederatedLasso().fit([X, X[:, 1:]], [y, y]),
            "part 1: .*5 .* expecting 6 .*; .* columns of the first",
        ),
        (lambda X, y: FederatedLasso(-1.0).fit(X, y), "alpha=-1.0"),
        (lambda X, y: FederatedElasticNet(l1_ratio=2.0).fit(X, y), "l1_ratio=2.0"),
        (lambda X, y: FederatedLogisticRegression(0.0).fit(X, y > 0), "C=0.0"),
        (lambda X, y: FederatedLogisticRegression().fit(X, np.ones(80, dtype=int)), "1 class"),
        (lambda X, y: FederatedLasso(num_clients=0).fit(X, y), "num_clients=0"),
        (lambda X, y: FederatedLasso(num_clients=3.0).fit(X, y), "num_clients=3.0 is a float; expected a whole number"),
        (lambda X, y: FederatedLasso("0.1").fit(X, y), "alpha='0.1' is a str; expected a number"),
        (lambda X, y: FederatedLogisticRegression("1").fit(X, y > 0), "C='1' is a str; expected a number"),
        (
            lambda X, y: FederatedLasso(penalty_factor={"age": 0}).fit(X, y),
            "those of X have no names; give a data frame",
        ),
        (lambda X, y: FederatedLasso(penalty_factor=[1.0, 0.0]).fit(X, y), r"shape \(2,\).*each of the 6 features"),
        (lambda X, y: FederatedLasso(penalty_factor="age").fit(X, y), "dtype <U3; expected a number"),
        (lambda X, y: FederatedLasso(penalty_factor=["0"] * 6).fit(X, y), "dtype <U1; expected a number"),
        (lambda X, y: FederatedLasso(penalty_factor=[1, 1, -2, 1, 1, 1]).fit(X, y), "factor=-2 of feature 2; expected"),
        (lambda X, y: FederatedLasso(penalty_factor=[np.nan] * 6).fit(X, y), "factor=nan of feature 0"),
        (lambda X, y: FederatedLasso(penalty_factor=[1, np.inf] * 3).fit(X, y), "factor=inf of feature 1"),
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
    # What makes a point optimal, on the rows of all clients: liblinear takes minutes to be within 1e-9.
    X, y, w = np.vstack(parts), np.concatenate(labels), model.coef_[0]
    strength, residuals = 1.0 / (0.2 * len(y)), (expit(X @ w + model.intercept_[0]) - y) / len(y)
    slopes, on = X.T @ residuals, w != 0.0
    np.testing.assert_allclose(slopes[on], -strength * np.sign(w[on]), rtol=1e-7)
    assert np.abs(slopes[~on]).max() < strength
    assert abs(residuals.sum()) < 1e-9


@pytest.mark.parametrize("limit", ["min_rows", "min_class_rows"])
def test_over_a_grid_a_site_with_few_rows_is_named_with_its_limit(limit):
    parts = [np.random.default_rng(m).normal(size=(20 + 10 * m, 3)) for m in range(3)]
    model = FederatedLogisticRegression(num_clients=3)

    def load(context):
        features = parts[context.node_config["partition-id"]]
        return features, np.arange(len(features)) % 2

    app = model.client_app(load, disclosure=Disclosure(**{limit: 15 if limit == "min_class_rows" else 30}))
    grid = InProcessGrid(app, 3, raise_errors=False)
    reported = rf"2 of num_clients=3 sites have answered; the reasons.*asks for the names and scales .*{limit}="
    with grid.identity(), quiet(50), pytest.raises(ConfigurationError, match=reported):
        model.fit(grid, features=3)


@pytest.mark.parametrize("kind", ["lasso", "two classes", "three classes"])
def test_over_a_grid_the_bits_are_those_of_a_fit_here(kind):
    """And every message to a site is counted but the first: the question before round 1, and the rounds."""
    rng = np.random.default_rng(0)
    parts = [rng.normal(0.2 * m, 1.0, size=(30 + m, 5)) for m in range(3)]
    scores = [features @ [1.0, -1.0, 0.5, 0.0, 0.0] + rng.normal(size=len(features)) for features in parts]
    bins = {"lasso": None, "two classes": [0.0], "three classes": [-1.0, 1.0]}[kind]
    targets = scores if bins is None else [np.array(["a", "b", "c"])[np.digitize(own, bins)] for own in scores]
    options = {"num_clients": 3, "penalty_factor": [1, 2, 0, 1, 1]}
    model, more, app_options = FederatedLasso(0.1, **options), {}, {}
    if bins is not None:
        model = FederatedLogisticRegression(C=0.3, l1_ratio=1.0, **options)
        more = app_options = {"classes": ["a", "b", "c"][: len(bins) + 1]}
    here = clone(model).fit(parts, targets)
    first, asked = [], []

    class Counting(InProcessGrid):
        direct = None  # messages

        def reply(self, message):
            (first if message.metadata.message_type == TABLE else asked).append(message.metadata.dst_node_id)
            return super().reply(message)

    def load(context):
        return parts[context.node_config["partition-id"]], targets[context.node_config["partition-id"]]

    grid = Counting(model.client_app(load, **app_options), 3)
    with grid.identity(), quiet(50):
        there = clone(model).fit(grid, features=list("vwxyz"), **more)
    assert np.array_equal(there.coef_, here.coef_)
    assert np.array_equal(there.intercept_, here.intercept_)
    assert there.n_iter_ == here.n_iter_ == max(Counter(asked).values())
    assert first == [2, 3, 4]
    assert there.feature_names_in_.tolist() == list("vwxyz")
    # The sites' columns have not been compared with these names.
    assert "taken on trust" in there.summary()
    assert f"{sum(map(len, parts))} rows, of 3 sites" in there.summary()
    np.testing.assert_equal(there.duality_gap_, here.duality_gap_)
    np.testing.assert_array_equal(there.predict(parts[0]), here.predict(parts[0]))


def test_what_a_grid_needs_besides():
    model = FederatedLogisticRegression(num_clients=2)
    app = model.client_app(lambda context: (np.eye(3), np.array(["x", "y", "z"])), classes=["x", "y"])
    grid = InProcessGrid(app, 2, raise_errors=False)
    loads = model.client_app(lambda context: (np.eye(3), np.array(["x", "y", "x"])), classes=["x", "y"])
    nameless = InProcessGrid(loads, 2, raise_errors=False)
    refused = pytest.raises(ConfigurationError, match=r"no site names its columns, as arrays do not: .* features=30")
    with nameless.identity(), quiet(50), refused:
        model.fit(nameless)
    with grid.identity(), quiet(50):
        with pytest.raises(ConfigurationError, match=r"features=5.0; expected .*, how many there are, or None"):
            model.fit(grid, features=5.0)
        with pytest.raises(
            ConfigurationError, match=r"names \['age'\], which X does not have; its features are a, b, c$"
        ):
            clone(model).set_params(penalty_factor={"age": 0}).fit(grid, features=["a", "b", "c"])
        with pytest.raises(ConfigurationError, match=r"0 of num_clients=2 sites have answered.*a label is none of"):
            model.fit(grid, features=3, classes=["x", "y"])


@together(
    ("make", "kind"),
    [
        (lambda: FederatedLasso(cv=4), "regression"),
        (lambda: FederatedElasticNet(l1_ratio=0.7, cv=Strengths(8, folds=3)), "regression"),
        (lambda: FederatedLogisticRegression(l1_ratio=1.0, cv=Strengths(8, folds=4)), "two"),
        (
            lambda: FederatedLogisticRegression(l1_ratio=1.0, cv=Strengths(8, folds=3, rule="one-standard-error")),
            "three",
        ),
    ],
)
def test_a_cross_validation_fits_at_the_strength_that_it_chooses(make, kind):
    """The fit is that of a model of this strength, and in scikit-learn's scale."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 6))
    scores = X @ np.array([2.0, -1.0, 0.5, 0.0, 0.0, 0.0]) + rng.normal(size=120)
    y = {"regression": scores, "two": scores > 0.0, "three": np.digitize(scores, [-1.0, 1.0])}[kind]
    parts = [X[:50], X[50:90], X[90:]], [y[:50], y[50:90], y[90:]]
    model = make().fit(*parts)
    path, rule = model.path_, getattr(model.cv, "rule", "best")
    assert model.strength_ == (path.best if rule == "best" else path.one_standard_error).strength
    if kind == "regression":
        again = clone(model).set_params(cv=None, alpha=model.strength_).fit(*parts)
    else:
        again = clone(model).set_params(cv=None, C=1.0 / (120 * model.strength_)).fit(*parts)
    np.testing.assert_allclose(model.coef_, again.coef_, atol=1e-6)
    assert model.n_iter_ > again.n_iter_ - 3
    assert model.duality_gap_ <= 1e-9
    losses = [point.held_out for point in path.points]
    assert min(losses) < losses[0]


@pytest.mark.parametrize("kind", ["regression", "two", "three"])
def test_a_cross_validation_of_many_columns_without_an_intercept(kind):
    """A null model without an intercept has no Hessian to ask for."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(66, 80))
    scores = X[:, 0] - X[:, 1] + 0.3 * rng.normal(size=66)
    y = {"regression": scores, "two": scores > 0.0, "three": np.digitize(scores, [-0.5, 0.5])}[kind]
    kinds = {"regression": FederatedLasso, "two": FederatedLogisticRegression, "three": FederatedLogisticRegression}
    ratio = {} if kind == "regression" else {"l1_ratio": 1.0}
    model = kinds[kind](fit_intercept=False, num_clients=3, cv=Strengths(6, folds=3), **ratio).fit(X, y)
    strength = {"alpha": model.strength_} if kind == "regression" else {"C": 1.0 / (66 * model.strength_)}
    again = clone(model).set_params(cv=None, **strength).fit(X, y)
    np.testing.assert_allclose(model.coef_, again.coef_, atol=1e-6)
    assert np.count_nonzero(model.coef_) >= 2


def test_a_cross_validation_over_a_grid_and_with_weights():
    X, y = regression_data()
    parts, targets = [X[:20], X[20:]], [y[:20], y[20:]]
    model = FederatedLasso(num_clients=2, cv=Strengths(8, folds=3))
    here = clone(model).fit(parts, targets)
    grid = InProcessGrid(
        model.client_app(lambda context: [own[context.node_config["partition-id"]] for own in (parts, targets)]), 2
    )
    with grid.identity(), quiet(50):
        there = clone(model).fit(grid, features=X.shape[1])
    np.testing.assert_array_equal(there.coef_, here.coef_)
    assert (there.strength_, there.n_iter_) == (here.strength_, here.n_iter_)
    weighted = clone(model).fit(parts, targets, sample_weight=[np.ones(20), np.ones(len(X) - 20)])
    # Folds are dealt by the rows' numbers, with weights too.
    np.testing.assert_allclose(weighted.strength_, here.strength_, rtol=1e-9)
    np.testing.assert_allclose(weighted.coef_, here.coef_, atol=1e-5)
    again = pickle.loads(pickle.dumps(there))
    np.testing.assert_array_equal(again.predict(X), here.predict(X))


@together(
    ("cv", "message"),
    [
        (1, r"Strengths.folds=1"),
        ("5", r"cv='5' is a str"),
        (True, r"cv=True is a bool"),
        (Strengths(8), r"has no folds; give Strengths\(folds=5\)"),
        (0, r"Strengths.folds=0"),
    ],
)
def test_a_cross_validation_that_is_none(cv, message):
    X, y = regression_data()
    with pytest.raises(ConfigurationError, match=message):
        FederatedLasso(cv=cv).fit(X, y)
    with pytest.raises(ConfigurationError, match="penalty_factor is 0 for all features, so that cv has nothing"):
        FederatedLasso(cv=3, penalty_factor=np.zeros(6)).fit(X, y)


def test_a_row_of_weight_2_is_two_rows_of_a_cross_validation():
    X, y = regression_data()
    weights, site, splits = 1 + np.arange(len(X)) % 3, np.arange(len(X)) % 2, list(KFold(4).split(X))
    twice = np.repeat(np.arange(len(X)), weights)
    repeated = [(np.flatnonzero(np.isin(twice, train)), np.flatnonzero(np.isin(twice, test))) for train, test in splits]
    one = FederatedLasso(cv=splits).fit(X, y, sample_weight=weights, groups=site).path_
    other = FederatedLasso(cv=repeated).fit(X[twice], y[twice], groups=site[twice]).path_
    np.testing.assert_allclose([at[3:5] for at in one.points], [at[3:5] for at in other.points], rtol=1e-5)


def test_a_message_of_a_cross_validation_is_as_small_as_the_user_says():
    X, y = regression_data()
    whole, small = (FederatedLasso(cv=Strengths(12, folds=3, max_bytes=size)).fit(X, y).path_ for size in (2**25, 1))
    rounds = [len(path.points[0].result.train_metrics_clientapp) for path in (whole, small)]
    assert rounds[1] > 2 * rounds[0]
    np.testing.assert_allclose(*([at.held_out for at in path.points] for path in (whole, small)), rtol=1e-6)


def test_a_ridge_of_many_features_is_not_cross_validated():
    X = np.random.default_rng(0).normal(size=(20, 2050))
    with pytest.raises(
        ConfigurationError, match=r"cv=3 of a ridge with 2051 coefficients.*above 2048 no .*l1_ratio > 0"
    ):
        FederatedLogisticRegression(cv=3).fit(X, X[:, 0] > 0.0)


def test_a_ridge_takes_strengths_of_scikit_learns_scale():
    X, y = load_breast_cancer(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    model = FederatedLogisticRegression(cv=Strengths(9, folds=3)).fit(X, y)
    np.testing.assert_allclose([point.strength for point in model.path_.points], np.logspace(3, -3, 9) / 569)
    theirs = LogisticRegression(C=1.0 / (569 * model.strength_), tol=1e-10, max_iter=10_000).fit(X, y)
    np.testing.assert_allclose(model.coef_, theirs.coef_, atol=1e-4)
    model = FederatedLogisticRegression(cv=Strengths(values=[0.1, 0.01], folds=3)).fit(X, y)
    assert model.strength_ in (0.1, 0.01)


def test_folds_of_ones_own_are_those_of_the_rows():
    """Rows of one patient stay in one fold: the losses are those of scikit-learn's on the same splits."""
    X, y = regression_data()
    patient = np.arange(len(X)) // 3
    splits = list(GroupKFold(4).split(X, y, patient))
    model = FederatedLasso(num_clients=3, cv=splits).fit(X, y)
    for point in model.path_.points[::10]:
        losses = []
        for train, test in splits:
            theirs = Lasso(point.strength, tol=1e-12).fit(X[train], y[train])
            losses.append(0.5 * np.mean((theirs.predict(X[test]) - y[test]) ** 2) * len(test))
        assert point.held_out == pytest.approx(sum(losses) / len(y), rel=1e-4)
    with pytest.raises(ConfigurationError, match="numbers are rows of one X"):
        FederatedLasso(cv=splits).fit([X[:20], X[20:]], [y[:20], y[20:]])
    with pytest.raises(ConfigurationError, match="expected a partition"):
        FederatedLasso(cv=splits[:2]).fit(X, y)


@pytest.mark.parametrize("target", [1.0, 3.3, 1e6, -1e-9])
def test_targets_that_are_all_the_same_have_an_intercept_alone(target):
    X = np.random.default_rng(0).standard_normal((90, 6))
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        model = FederatedLasso(alpha=0.1).fit(X, np.full(len(X), target))
    assert not model.coef_.any()
    np.testing.assert_allclose(model.intercept_, target, rtol=1e-14)
    assert model.n_iter_ <= 6


def test_a_fit_without_cv_forgets_that_of_one_with_it():
    X, y = regression_data()
    model = FederatedLasso(cv=3).fit(X, y)
    assert model.path_.points
    model.set_params(cv=None).fit(X, y)
    assert not hasattr(model, "path_")
    assert not hasattr(model, "strength_")


@pytest.mark.parametrize("classes", [2, 3])
def test_weights_that_balance_classes_over_sites_are_scikit_learns(classes):
    """With the counts of all sites that a first fit says; sites give the weights of their rows themselves."""
    rng = np.random.default_rng(0)
    parts = [rng.normal(0.3 * m, 1.0, size=(40 + 15 * m, 4)) for m in range(3)]
    scores = [own[:, 0] - own[:, 1] + rng.normal(size=len(own)) for own in parts]
    labels = [np.digitize(own, [0.9, 2.2][: classes - 1]) for own in scores]
    model = FederatedLogisticRegression(0.7, num_clients=3)

    def over_a_grid(sites):
        app = model.client_app(lambda context: sites[context.node_config["partition-id"]], range(classes))
        grid = InProcessGrid(app, 3, raise_errors=False)
        with grid.identity(), quiet(50):
            return clone(model).fit(grid, features=4, classes=range(classes))

    for first in (clone(model).fit(parts, labels), over_a_grid(list(zip(parts, labels, strict=True)))):
        np.testing.assert_array_equal(first.class_count_, np.bincount(np.concatenate(labels)))
    factors = first.class_count_.sum() / (classes * first.class_count_)
    weights = [factors[own] for own in labels]
    theirs = LogisticRegression(C=0.7, class_weight="balanced", tol=1e-10, max_iter=10**4)
    theirs.fit(np.vstack(parts), np.concatenate(labels))
    here = clone(model).fit(parts, labels, weights)
    there = over_a_grid(list(zip(parts, labels, weights, strict=True)))
    for ours in (here, there):
        np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-6)
        np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-6)
        np.testing.assert_allclose(ours.class_count_, np.full(classes, len(np.concatenate(labels)) / classes))
        assert "165 rows, weighted, of 3 sites" in ours.summary()
    np.testing.assert_allclose(there.coef_, here.coef_, atol=1e-9)
    weights[1] = weights[1] * 30.0
    with pytest.raises(ConfigurationError, match=r"partition 1 says that its rows weigh .*at most 10 times as much"):
        over_a_grid(list(zip(parts, labels, weights, strict=True)))

"""The estimators: scikit-learn's solutions and its own checks."""

import pickle
import re
import tracemalloc
import warnings
from collections import Counter

import joblib
import numpy as np
import pytest
from federations import counting, fit_over_a_grid
from flwr.app import Array
from problems import clients, run
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import ElasticNet, Lasso, LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import GroupKFold, KFold
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from sparse_rows import rows

from flwr_fco.errors import ConfigurationError
from flwr_fco.messages.records import TABLE
from flwr_fco.objectives import LeastSquares, Logistic, MultinomialLogistic, TraceRegression
from flwr_fco.regularizers import L1
from flwr_fco.strategies import FedDualAvg, Strengths
from flwr_fco.tables import FederatedElasticNet, FederatedLasso, FederatedLogisticRegression, to_estimator


def regression_data():
    """Features of different sizes, far from 0."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 6)) * np.array([1.0, 1.0, 10.0, 0.1, 1.0, 1.0]) + 5.0
    return X, X @ np.array([1.0, -2.0, 0.3, 0.0, 0.0, 0.0]) + rng.normal(size=80)


def weights_of(rows, weighted):
    return np.arange(rows) % 4 * 0.7 if weighted else None


def scaled(X, weights, standardize):
    """Return the rows as scikit-learn's scaler has them, and their scales."""
    scales = StandardScaler().fit(X, sample_weight=weights).scale_ if standardize else np.ones(X.shape[1])
    return X / scales, scales


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning", "ignore:With alpha=0")
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("fit_intercept", "standardize"), [(True, False), (False, False), (True, True)])
@pytest.mark.parametrize("l1_ratio", [1.0, 0.4, 0.0])
def test_regression_is_scikit_learns(l1_ratio, fit_intercept, standardize, weighted):
    X, y = regression_data()
    weights = weights_of(80, weighted)
    options = {"l1_ratio": l1_ratio, "fit_intercept": fit_intercept}
    ours = FederatedElasticNet(0.1, **options, standardize=standardize, num_clients=3).fit(X, y, weights)
    Z, scales = scaled(X, weights, standardize)
    theirs = ElasticNet(0.1, **options, tol=1e-14, max_iter=1_000_000).fit(Z, y, weights)
    np.testing.assert_allclose(ours.coef_ * scales, theirs.coef_, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(ours.coef_ == 0, theirs.coef_ == 0)
    assert ours.intercept_ == pytest.approx(theirs.intercept_, abs=1e-5)
    assert ours.score(X, y, weights) == pytest.approx(theirs.score(Z, y, weights), abs=1e-6)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("l1_ratio", "standardize"), [(0.0, False), (0.0, True), (0.4, True), (1.0, True)])
@pytest.mark.parametrize("classes", [2, 3])
def test_classification_is_scikit_learns(classes, l1_ratio, standardize, weighted):
    X, y = load_iris(return_X_y=True)
    X = X[50 * (classes == 2) :]
    y = np.array(["setosa", "versicolor", "virginica"])[y[50 * (classes == 2) :]]
    weights = weights_of(len(y), weighted)
    ours = FederatedLogisticRegression(0.2, l1_ratio=l1_ratio, standardize=standardize, num_clients=2)
    ours.fit(X, y, weights)
    Z, scales = scaled(X, weights, standardize)
    Z = Z - np.average(Z, axis=0, weights=weights)
    options = {"solver": "saga", "tol": 1e-12, "max_iter": 10**6} if l1_ratio else {"solver": "newton-cg", "tol": 1e-10}
    theirs = LogisticRegression(C=0.2, l1_ratio=l1_ratio, **options).fit(Z, y, weights)
    assert ours.classes_.tolist() == theirs.classes_.tolist()
    np.testing.assert_allclose(ours.coef_ * scales, theirs.coef_, rtol=0, atol=2e-5)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(Z), rtol=0, atol=2e-5)
    np.testing.assert_array_equal(ours.predict(X), theirs.predict(Z))


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


@pytest.mark.parametrize("factors", [[0, 1, 1, 1, 1, 1], np.zeros(6)])
def test_without_a_penalty_on_a_feature_no_gap_is_known_or_zero_proved(factors):
    X, y = regression_data()
    model = FederatedLasso(0.2, penalty_factor=factors).fit(X, y)
    assert np.isnan(model.duality_gap_)
    assert re.search(r"Residual: [0-9.e-]+, the length of a proximal gradient step; there is no", model.summary())
    assert not model.proved_zero_.any()
    if not np.any(factors):
        expected = np.linalg.lstsq(np.column_stack([X, np.ones(80)]), y)[0]
        np.testing.assert_allclose([*model.coef_, model.intercept_], expected, atol=1e-8)


def test_sparse_features_give_the_fit_of_dense_ones():
    X = rows(80, 12)
    y = np.random.default_rng(5).standard_normal(80)
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
@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks([FederatedLasso(), FederatedElasticNet(0.1), FederatedLogisticRegression()])
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (FederatedLasso, Lasso),
        (FederatedElasticNet, ElasticNet),
        (FederatedLogisticRegression, LogisticRegression),
    ],
)
def test_parameters_are_scikit_learns_and_only_the_strength_is_positional(ours, theirs):
    own = {"num_clients", "max_rounds", "tol", "fit_intercept", "penalty_factor", "standardize"}
    own |= {"site_intercepts", "cluster", "cv", "codebook"}
    strength = "C" if ours is FederatedLogisticRegression else "alpha"
    assert ours().get_params().keys() - own <= theirs().get_params().keys()
    assert ours(3.0).get_params()[strength] == 3.0
    with pytest.raises(TypeError):
        ours(1.0, 0.5)


def test_a_fit_that_does_not_end_says_so():
    X, y = regression_data()
    with pytest.warns(ConvergenceWarning, match="after 2 rounds; raise max_rounds"):
        model = FederatedLasso(0.1, max_rounds=2).fit(X, y)
    assert model.n_iter_ == 2
    assert "Rounds: 2, not solved to tol=1e-14" in model.summary()


def test_rounding_is_no_solution_where_the_gap_is_far_from_the_tolerance():
    """Sparse features of 1e8, which nobody centres: no step decreases the objective by more than its rounding error."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 5)) + 1e8
    y = X[:, 0] > X[:, 0].mean()
    X = sparse.csr_array(X)
    with pytest.warns(ConvergenceWarning, match="raise max_rounds or scale the features"):
        model = FederatedLogisticRegression(1.0, l1_ratio=1.0, max_rounds=20).fit(X, y)
    assert model.duality_gap_ > 1e-9


def test_a_summary_says_what_was_found_and_of_what():
    X, y = regression_data()
    model = FederatedElasticNet(0.2, l1_ratio=0.7)
    with pytest.raises(NotFittedError):
        model.summary()
    model.fit([X[:50], X[50:]], [y[:50], y[50:]])
    summary = model.summary()
    w = model.coef_
    zeros = np.count_nonzero(w == 0.0)
    gap = rf"{model.duality_gap_:.3g}, of an objective of (\S+)$"
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
    value = ((model.predict(X) - y) ** 2).mean() / 2 + 0.2 * (0.7 * np.abs(w).sum() + 0.15 * w @ w)
    assert float(re.search(gap, summary, re.M)[1]) == pytest.approx(value, rel=1e-5)
    largest = np.argsort(-np.abs(w))[: 6 - zeros]
    shown = dict(re.findall(r"^    (x\d|\(intercept\)) +(\S+)$", summary, re.M))
    assert list(shown) == ["(intercept)", *(f"x{j}" for j in largest)]
    # Three digits.
    np.testing.assert_allclose([*map(float, shown.values())], [model.intercept_, *w[largest]], rtol=5e-3)
    assert list(summary.table()["coefficient"]) == w.tolist()
    np.testing.assert_array_equal(model.proved_zero_, w == 0.0)
    # One array has one order; later changes of the parameters are not those of the fit.
    model.fit(X, y).set_params(alpha=3.0)
    assert "trust" not in model.summary()
    assert "alpha=0.2" in model.summary()


def test_a_summary_of_no_coefficient_of_many_and_of_classes():
    X, y = regression_data()
    assert re.search(r"Coefficients: 0 of \d+ are not 0", FederatedLasso(1e3).fit(X, y).summary())
    wide = np.random.default_rng(0).normal(size=(30, 60))
    summary = FederatedElasticNet(0.01, l1_ratio=0.0, fit_intercept=False).fit(wide, wide[:, 0]).summary()
    assert "    and 20 more; all features: .table()" in summary
    assert len(summary.table()["feature"]) == 60
    X, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])
    model = FederatedLogisticRegression(0.3, l1_ratio=1.0, penalty_factor=[0, 1, 1, 1]).fit(X, names[y])
    rows = model.summary().rows
    np.testing.assert_array_equal([[row[name] for name in names] for row in rows], model.coef_.T)
    assert model.proved_zero_.shape == (3, 4)
    assert [row["penalty_factor"] for row in rows] == [0, 1, 1, 1]


REFUSED = {
    "X has 2 parts": lambda X, y: FederatedLasso().fit([X, X], [y]),
    r"part 1: .*\[3, 80\]; .* entry for each row": lambda X, y: FederatedLasso().fit([X, X[:3]], [y, y]),
    r"part 1: .*0 sam.* a row or more": lambda X, y: FederatedLasso().fit([X, X[:0]], [y, y[:0]]),
    "part 1: .*5 .* expecting 6": lambda X, y: FederatedLasso().fit([X, X[:, 1:]], [y, y]),
    "alpha=-1.0": lambda X, y: FederatedLasso(-1.0).fit(X, y),
    "l1_ratio=2.0": lambda X, y: FederatedElasticNet(l1_ratio=2.0).fit(X, y),
    "C=0.0": lambda X, y: FederatedLogisticRegression(0.0).fit(X, y > 0),
    "1 class": lambda X, y: FederatedLogisticRegression().fit(X, np.ones(80, dtype=int)),
    "num_clients=0": lambda X, y: FederatedLasso(num_clients=0).fit(X, y),
    "alpha='0.1' is a str; expected a number": lambda X, y: FederatedLasso("0.1").fit(X, y),
    "standardize='yes'": lambda X, y: FederatedLasso(standardize="yes").fit(X, y),
    "those of X have no names": lambda X, y: FederatedLasso(penalty_factor={"age": 0}).fit(X, y),
    r"shape \(2,\).*each of the 6 features": lambda X, y: FederatedLasso(penalty_factor=[1.0, 0.0]).fit(X, y),
    "dtype <U3; expected a number": lambda X, y: FederatedLasso(penalty_factor="age").fit(X, y),
    "factor=-2 of feature 2": lambda X, y: FederatedLasso(penalty_factor=[1, 1, -2, 1, 1, 1]).fit(X, y),
    "factor=nan of feature 0": lambda X, y: FederatedLasso(penalty_factor=[np.nan] * 6).fit(X, y),
    "Strengths.folds=1": lambda X, y: FederatedLasso(cv=1).fit(X, y),
    "cv='5' is a str": lambda X, y: FederatedLasso(cv="5").fit(X, y),
    r"give Strengths\(folds=5\)": lambda X, y: FederatedLasso(cv=Strengths(8)).fit(X, y),
    "so that cv has nothing": lambda X, y: FederatedLasso(cv=3, penalty_factor=np.zeros(6)).fit(X, y),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_fitted_is_refused_with_what_was_given(message):
    with pytest.raises(ConfigurationError, match=message):
        REFUSED[message](*regression_data())


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


@pytest.mark.parametrize("num_classes", [2, 3, 5])
@pytest.mark.parametrize("intercept", [True, False])
def test_the_classifier_of_a_run_has_the_probabilities_of_its_loss(num_classes, intercept):
    """Two classes of a multinomial model too, of which scikit-learn keeps one row and not two."""
    rng = np.random.default_rng(num_classes)
    X = rng.normal(size=(40, 4))
    labels = np.arange(40) % num_classes
    losses = [MultinomialLogistic(X, labels, num_classes=num_classes, intercept=intercept)]
    losses += [Logistic(X, own, intercept=intercept) for own in (labels, 2 * labels - 1)] if num_classes == 2 else []
    for objective in losses:
        w = rng.normal(size=objective.layout.size)
        model = to_estimator(Result(**objective.layout.views(w)), objective)
        assert log_loss(labels, model.predict_proba(X)) == pytest.approx(objective.value(w), rel=1e-12)
        np.testing.assert_array_equal(model.predict(X), objective.predict(w))
    w = rng.normal(size=losses[0].layout.size)
    names = np.array(list("abcde"))[:num_classes]
    model = to_estimator(Result(**losses[0].layout.views(w)), losses[0], classes=names)
    np.testing.assert_array_equal(model.predict(X), names[losses[0].predict(w)])


SQUARES = LeastSquares(np.eye(2), np.ones(2))
TWO = Result(coefficients=np.ones(2), intercept=[0.0])


@pytest.mark.parametrize(
    ("result", "objective", "options", "message"),
    [
        (None, SQUARES, {}, "result is a NoneType; expected what"),
        ({"coefficients": np.ones(2)}, SQUARES, {}, "result is a dict; expected what"),
        (TWO, Logistic(np.eye(2), [1, 1]), {}, "say which they are: classes="),
        (Result(), TraceRegression(np.ones((3, 2, 2)), np.ones(3)), {}, "has no estimator"),
        (Result(coefficients=np.ones(3)), SQUARES, {}, "of different runs"),
        (TWO, SQUARES, {"classes": [0, 1]}, "least squares have none"),
        (TWO, Logistic(np.eye(2), [0, 1]), {"classes": ["a"]}, "expected 2 of them"),
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
    classes = {}
    if kind in ("lasso", "standardized"):
        model = FederatedLasso(0.1, standardize=kind == "standardized", **options)
    else:
        bins = {"two classes": [0.0], "three classes": [-1.0, 1.0]}[kind]
        targets = [np.array(["a", "b", "c"])[np.digitize(own, bins)] for own in targets]
        model = FederatedLogisticRegression(C=0.3, l1_ratio=1.0, **options)
        classes = {"classes": ["a", "b", "c"][: len(bins) + 1]}
    here = clone(model).fit(parts, targets)
    asked = []
    sites = list(zip(parts, targets, strict=True))
    there, _ = fit_over_a_grid(model, sites, features=list("vwxyz"), app=classes, grid=counting(asked), **classes)
    assert not [record for record in caplog.records if record.levelname == "INFO"]
    assert np.array_equal(there.coef_, here.coef_)
    assert np.array_equal(there.intercept_, here.intercept_)
    assert [node for node, message in asked if message == TABLE] == [2, 3, 4]
    assert there.n_iter_ == here.n_iter_ == max(Counter(n for n, message in asked if message != TABLE).values())
    assert there.feature_names_in_.tolist() == list("vwxyz")
    # The sites' columns have not been compared with these names.
    assert "taken on trust" in there.summary()
    np.testing.assert_equal(there.duality_gap_, here.duality_gap_)


def test_what_a_grid_needs_besides():
    model = FederatedLogisticRegression(num_clients=2)
    classes = {"classes": ["x", "y"]}
    sites = [(np.eye(3), np.array(["x", "y", "x"]))] * 2
    for changes, options, message in (
        ({}, {}, r"no site names its columns, as arrays do not: .* features=30"),
        ({}, {"features": 5.0}, r"features=5.0; expected .*, how many there are, or None"),
        ({"penalty_factor": {"age": 0}}, {"features": list("abc")}, r"\['age'\], which X does not have; .* a, b, c$"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            fit_over_a_grid(clone(model).set_params(**changes), sites, app=classes, **options)
    sites = [(np.eye(3), np.array(["x", "y", "z"]))] * 2
    with pytest.raises(ConfigurationError, match=r"0 of num_clients=2 sites have answered.*a label is none of"):
        fit_over_a_grid(model, sites, features=3, app=classes, **classes)


# --- cross-validation -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "kind", "columns"),
    [
        (FederatedLasso(cv=4), "regression", 6),
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
    rule = getattr(model.cv, "rule", "best")
    assert model.strength_ == (path.best if rule == "best" else path.one_standard_error).strength
    strength = {"alpha": model.strength_} if kind == "regression" else {"C": 1.0 / (120 * model.strength_)}
    again = clone(model).set_params(cv=None, **strength).fit(*parts)
    np.testing.assert_allclose(model.coef_, again.coef_, atol=1e-6)
    assert model.duality_gap_ <= 1e-9
    losses = [point.held_out for point in path.points]
    assert min(losses) < losses[0]
    model.set_params(cv=None, **strength).fit(*parts)
    assert not hasattr(model, "path_")
    assert not hasattr(model, "strength_")


def test_a_cross_validation_over_a_grid_and_with_weights():
    X, y = regression_data()
    parts, targets = [X[:20], X[20:]], [y[:20], y[20:]]
    model = FederatedLasso(num_clients=2, cv=Strengths(8, folds=3))
    here = clone(model).fit(parts, targets)
    there, _ = fit_over_a_grid(clone(model), list(zip(parts, targets, strict=True)), features=6)
    np.testing.assert_array_equal(there.coef_, here.coef_)
    assert (there.strength_, there.n_iter_) == (here.strength_, here.n_iter_)
    # Folds are dealt by the rows' numbers, with weights too.
    weighted = clone(model).fit(parts, targets, sample_weight=[np.ones(20), np.ones(60)])
    np.testing.assert_allclose(weighted.strength_, here.strength_, rtol=1e-9)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(there)).predict(X), here.predict(X))


def test_a_row_of_weight_2_is_two_rows_of_a_cross_validation():
    X, y = regression_data()
    weights = 1 + np.arange(len(X)) % 3
    site = np.arange(len(X)) % 2
    splits = list(KFold(4).split(X))
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


def test_a_ridge_takes_strengths_of_scikit_learns_scale():
    X, y = load_breast_cancer(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    model = FederatedLogisticRegression(cv=Strengths(9, folds=3)).fit(X, y)
    np.testing.assert_allclose([point.strength for point in model.path_.points], np.logspace(3, -3, 9) / 569)
    model = FederatedLogisticRegression(cv=Strengths(values=[0.1, 0.01], folds=3)).fit(X, y)
    assert model.strength_ in (0.1, 0.01)
    X = np.random.default_rng(0).normal(size=(20, 2050))
    with pytest.raises(ConfigurationError, match=r"a ridge with 2051 coefficients.*above 2048 no .*l1_ratio > 0"):
        FederatedLogisticRegression(cv=3).fit(X, X[:, 0] > 0.0)


def test_folds_of_ones_own_are_those_of_the_rows():
    """Rows of one patient stay in one fold: the losses are those of scikit-learn's on the same splits."""
    X, y = regression_data()
    splits = list(GroupKFold(4).split(X, y, np.arange(len(X)) // 3))
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


@pytest.mark.parametrize("classes", [2, 3])
def test_weights_that_balance_classes_over_sites_are_scikit_learns(classes):
    """With the counts of all sites that a first fit says; sites give the weights of their rows themselves."""
    rng = np.random.default_rng(0)
    parts = [rng.normal(0.3 * m, 1.0, size=(40 + 15 * m, 4)) for m in range(3)]
    labels = [
        np.digitize(own[:, 0] - own[:, 1] + rng.normal(size=len(own)), [0.9, 2.2][: classes - 1]) for own in parts
    ]
    model = FederatedLogisticRegression(0.7, num_clients=3)
    options = {"classes": range(classes)}

    def over_a_grid(*columns):
        return fit_over_a_grid(clone(model), list(zip(*columns, strict=True)), features=4, app=options, **options)[0]

    for first in (clone(model).fit(parts, labels), over_a_grid(parts, labels)):
        np.testing.assert_array_equal(first.class_count_, np.bincount(np.concatenate(labels)))
    factors = first.class_count_.sum() / (classes * first.class_count_)
    weights = [factors[own] for own in labels]
    theirs = LogisticRegression(C=0.7, class_weight="balanced", tol=1e-10, max_iter=10**4)
    theirs.fit(np.vstack(parts), np.concatenate(labels))
    for ours in (clone(model).fit(parts, labels, weights), over_a_grid(parts, labels, weights)):
        np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-6)
        np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-6)
        assert "165 rows, weighted, of 3 sites" in ours.summary()
    weights[1] = weights[1] * 30.0
    with pytest.raises(ConfigurationError, match=r"partition 1 says that its rows weigh .*at most 10 times as much"):
        over_a_grid(parts, labels, weights)

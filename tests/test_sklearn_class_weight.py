"""`class_weight` of FederatedLogisticRegression: scikit-learn's, on all sites' rows."""

from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict
from sklearn.linear_model import LogisticRegression

from flwr_fco.client_apps import Disclosure
from flwr_fco.client_apps.balance import with_balance
from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives.scikit_learn import class_counts, weights_of_classes
from flwr_fco.simulation import InProcessGrid
from flwr_fco.sklearn import FederatedLogisticRegression
from flwr_fco.strategies import Strengths
from flwr_fco.wire import flower


def parts(classes=2):
    """Sites of unequal sizes and shares; the last one lacks a class."""
    features, targets = [], []
    for m, n in enumerate((40, 55, 30)):
        rng = np.random.default_rng(m)
        own = rng.normal(size=(n, 4)) - 0.4 * m
        bins = [0.9] if classes == 2 else [0.2, 1.4]
        labels = np.digitize(own @ [1.0, -1.0, 0.5, 0.0] + rng.normal(size=n), bins)
        features.append(own)
        targets.append(np.array(["a", "b", "c"])[np.minimum(labels, 0) if m == 2 else labels])
    return features, targets


def scikit_learns(features, targets, C, given, sample_weight=None):
    model = LogisticRegression(C=C, class_weight=given, tol=1e-10, max_iter=10**4)
    weights = None if sample_weight is None else np.concatenate(sample_weight)
    return model.fit(np.vstack(features), np.concatenate(targets), weights)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("given", ["balanced", {"b": 4.0}, {"a": 0.5, "b": 3}])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_fit_is_scikit_learns(classes, given, weighted):
    features, targets = parts(classes)
    weights = [np.random.default_rng(9).uniform(0.5, 2.0, len(y)) for y in targets] if weighted else None
    ours = FederatedLogisticRegression(0.7, class_weight=given).fit(features, targets, weights)
    theirs = scikit_learns(features, targets, 0.7, given, weights)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-6)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-6)
    assert ours.duality_gap_ < 1e-8
    plain = FederatedLogisticRegression(0.7).fit(features, targets, weights)
    assert np.abs(plain.intercept_ - ours.intercept_).max() > 0.1


def over_a_grid(model, features, targets, classes, site=None, **options):
    data = list(zip(features, targets, strict=True))
    app = (site or model).client_app(lambda c: data[c.node_config["partition-id"]], classes, **options)
    grid = InProcessGrid(app, len(data), raise_errors=False)
    with flower.identity(grid.run_id), flower.quiet(50):
        return model.fit(grid, features=4, classes=classes)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("standardize", [False, True])
def test_a_balance_over_a_grid_is_that_of_all_sites_rows(classes, standardize):
    features, targets = parts(classes)
    names = ["a", "b", "c"][:classes]
    options = {"num_clients": 3, "standardize": standardize}
    here = FederatedLogisticRegression(0.7, class_weight="balanced", standardize=standardize).fit(features, targets)
    # A second fit of the same grid counts the rows anew, which are not weighted then.
    model = FederatedLogisticRegression(0.7, class_weight="balanced", **options)
    site = FederatedLogisticRegression(0.7, class_weight="balanced", **options)
    data = list(zip(features, targets, strict=True))
    grid = InProcessGrid(site.client_app(lambda c: data[c.node_config["partition-id"]], names), 3, raise_errors=False)
    for _ in range(2):
        with flower.identity(grid.run_id), flower.quiet(50):
            model.fit(grid, features=4, classes=names)
        np.testing.assert_allclose(model.coef_, here.coef_, atol=1e-8)
        np.testing.assert_allclose(model.intercept_, here.intercept_, atol=1e-8)
    assert "125 rows, weighted, of 3 sites" in model.summary()
    _, counts = np.unique(np.concatenate(targets), return_counts=True)
    weights = dict(zip(names, (125 / classes / counts).tolist(), strict=True))
    there = over_a_grid(FederatedLogisticRegression(0.7, class_weight=weights, **options), features, targets, names)
    np.testing.assert_allclose(there.coef_, here.coef_, atol=1e-8)
    # The counts take one message more.
    assert model.n_iter_ == there.n_iter_ + 1
    # Weights whose sum is not that of the rows are a larger C.
    thrice = {name: 3.0 * weight for name, weight in weights.items()}
    there = over_a_grid(FederatedLogisticRegression(0.7, class_weight=thrice, **options), features, targets, names)
    here = FederatedLogisticRegression(2.1, class_weight="balanced", standardize=standardize).fit(features, targets)
    np.testing.assert_allclose(there.coef_, here.coef_, atol=1e-8)


def test_a_balance_over_a_grid_with_a_cross_validation_is_the_weights_own():
    features, targets = parts()
    _, counts = np.unique(np.concatenate(targets), return_counts=True)
    found = []
    for given in ("balanced", dict(zip("ab", (62.5 / counts).tolist(), strict=True))):
        model = FederatedLogisticRegression(l1_ratio=1.0, class_weight=given, num_clients=3, cv=Strengths(6, folds=3))
        found.append(over_a_grid(model, features, targets, ["a", "b"]))
    np.testing.assert_allclose(found[0].coef_, found[1].coef_, atol=1e-8)
    assert found[0].strength_ == pytest.approx(found[1].strength_)


def test_a_servers_balance_that_is_none_is_refused_at_the_site():
    features, targets = parts()
    model = FederatedLogisticRegression(class_weight="balanced", num_clients=3)
    for three in ([1.0, 2.0, 3.0], [1.0, -1.0]):
        model._balance = lambda answers, outputs, own=three: np.array(own)
        with pytest.raises(ConfigurationError, match=r"the server's weights of classes are .*; expected 2 numbers > 0"):
            over_a_grid(model, features, targets, ["a", "b"])


@pytest.mark.parametrize("weight", ["many", b"2", [1.0, 2.0], True])
def test_a_servers_weight_that_is_no_number_is_refused_at_the_site(weight):
    content = RecordDict({"config": ConfigRecord({"balance-0": weight})})
    message = SimpleNamespace(content=content, metadata=SimpleNamespace(message_type="query"))
    with pytest.raises(ConfigurationError, match=r"the server's weights of classes are \[.*\]; expected numbers > 0"):
        with_balance(message, SimpleNamespace(run_id=49), lambda *_: None)


def test_sites_of_other_weights_are_refused_and_small_classes_stay_unknown():
    features, targets = parts()
    model = FederatedLogisticRegression(class_weight={"b": 2.0}, num_clients=3)
    site = FederatedLogisticRegression(class_weight={"b": 3.0}, num_clients=3)
    with pytest.raises(ConfigurationError, match=r"has the classes .*'b' of weight 3.*, the ServerApp .*weight 2"):
        over_a_grid(model, features, targets, ["a", "b"], site=site)
    balanced = FederatedLogisticRegression(class_weight="balanced", num_clients=3)
    plain = FederatedLogisticRegression(num_clients=3)
    for server, site in ((balanced, plain), (plain, balanced)):
        with pytest.raises(ConfigurationError, match="'a' balanced"):
            over_a_grid(server, features, targets, ["a", "b"], site=site)
    with pytest.raises(ConfigurationError, match=r"1 of num_clients=3 sites have answered.*min_class_rows=20"):
        over_a_grid(balanced, features, targets, ["a", "b"], disclosure=Disclosure(min_class_rows=20))


def test_counts_are_those_of_the_rows():
    rng = np.random.default_rng(0)
    for k in (2, 3, 5):
        counts, weights = rng.integers(0, 1000, k) * 1.0, rng.uniform(0.1, 10.0, k)
        shares = counts * weights / (counts @ weights)
        slopes = 1.0 / k - shares if k > 2 else 0.5 - shares[1:]
        np.testing.assert_array_equal(class_counts(slopes, int(counts.sum()), weights), counts)


def test_weights_may_be_numpys_and_a_class_that_nobody_has_has_one():
    given = {"a": np.float32(0.5), "b": np.int64(3)}
    assert weights_of_classes(given, np.array(["a", "b"])).tolist() == [0.5, 3.0]
    assert weights_of_classes("balanced", np.arange(3), np.array([2.0, 0.0, 4.0])).tolist() == [1.0, 1.0, 0.5]


def test_what_is_refused():
    features, targets = parts()
    for given, told in (
        ("even", "class_weight='even'; expected None, 'balanced', or a weight of each class, such as {'b': 2.0}"),
        ({"d": 1.0}, r"class_weight names \['d'\], which are none of the classes \['a', 'b'\]"),
        ({"a": 0.0}, r"class_weight\['a'\]=0.0; expected a finite number > 0. Leave out the rows"),
        ({"a": float("nan")}, "=nan; expected"),
        ({"a": 1e-300}, "weights from 1e-300 to 1; expected none below 1e-12 of another. Leave out the rows"),
        ({"a": 1e300}, "weights from 1 to 1e.300; expected none"),
    ):
        with pytest.raises(ConfigurationError, match=told):
            FederatedLogisticRegression(class_weight=given).fit(features, targets)
    light = [np.where(y == "a", 1e-300, 1.0) for y in targets]
    with pytest.raises(ConfigurationError, match="class 0, or it weighs less than 1e-13 of all"):
        FederatedLogisticRegression().fit(features, targets, sample_weight=light)
    with pytest.raises(ConfigurationError, match="intervals with class_weight: rows"):
        FederatedLogisticRegression(class_weight="balanced").fit(features, targets, intervals=True)
    model = FederatedLogisticRegression(class_weight={"b": 2.0}, fit_intercept=False, num_clients=3)
    with pytest.raises(ConfigurationError, match="by a common intercept how many rows"):
        over_a_grid(model, features, targets, ["a", "b"])


def test_a_sites_own_intercept_is_that_of_the_weighted_rows():
    features, targets = (own[:2] for own in parts())
    model = FederatedLogisticRegression(class_weight={"b": 3.0}, site_intercepts="local").fit(features, targets)
    model.intercept_ = model.intercept_for(features[0], targets[0])
    weights = np.where(targets[0] == "b", 3.0, 1.0)
    chances = model.predict_proba(features[0])[:, 1]
    assert weights @ chances == pytest.approx(weights @ (targets[0] == "b"), abs=1e-9)
    twice = np.arange(len(weights)) % 3
    copies = model.intercept_for(np.repeat(features[0], twice, axis=0), np.repeat(targets[0], twice))
    np.testing.assert_allclose(model.intercept_for(features[0], targets[0], twice), copies, atol=1e-12)


def test_sites_judge_a_balanced_model_that_was_fitted_to_other_rows_here():
    features, targets = parts()
    model = FederatedLogisticRegression(class_weight="balanced", num_clients=3)
    data = list(zip(features, targets, strict=True))
    app = model.client_app(lambda c: data[c.node_config["partition-id"]], ["a", "b"])
    model.fit(features, targets)
    grid = InProcessGrid(app, 3, raise_errors=False)
    with flower.identity(grid.run_id), flower.quiet(50):
        assert model.quality(grid).overall == model.quality(features, targets).overall
        assert "Weights: none" in model.fit(grid, features=4, classes=["a", "b"]).quality(grid)

"""Estimators with `site_intercepts="local"`: an intercept of each site, which stays there."""

import warnings

import cvxpy as cp
import numpy as np
import pytest
from federations import fit_over_a_grid
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import ElasticNet

from flwr_fco.errors import ConfigurationError
from flwr_fco.simulation import InProcessGrid
from flwr_fco.tables import FederatedElasticNet, FederatedLasso, FederatedLogisticRegression

CLASSES = {"classes": ["no", "yes"]}


def parts(sizes=(40, 33, 60), classes=False):
    features, targets = [], []
    for m, n in enumerate(sizes):
        rng = np.random.default_rng(m)
        own = rng.normal(size=(n, 5)) + m
        scores = own @ [1.0, -1.0, 0.5, 0.0, 0.0] - 4.0 * m + rng.normal(size=n)
        features.append(own)
        targets.append(np.array(["no", "yes"])[(scores > np.median(scores) + 0.3) * 1] if classes else scores)
    return features, targets


@pytest.mark.parametrize("l1_ratio", [1.0, 0.5, 0.0])
def test_squares_are_those_of_rows_about_their_sites_means(l1_ratio):
    features, targets = parts()
    model = FederatedElasticNet(0.1, l1_ratio=l1_ratio, site_intercepts="local").fit(features, targets)
    X, y = (np.concatenate([own - own.mean(axis=0) for own in both]) for both in (features, targets))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = ElasticNet(0.1, l1_ratio=l1_ratio, fit_intercept=False, tol=1e-14, max_iter=10**6).fit(X, y)
    np.testing.assert_allclose(model.coef_, theirs.coef_, atol=1e-8)
    assert model.duality_gap_ < 1e-10
    common = FederatedElasticNet(0.1, l1_ratio=l1_ratio).fit(features, targets)
    assert np.abs(common.coef_ - model.coef_).max() > 0.1
    for own, y in zip(features, targets, strict=True):
        assert model.intercept_for(own, y) == pytest.approx((y - own @ model.coef_).mean(), abs=1e-12)


@pytest.mark.parametrize("penalised", [True, False])
@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
def test_classes_are_those_of_dummies(penalised):
    features, targets = parts(classes=True)
    factors = None if penalised else [0, 1, 1, 1, 1]
    options = {"l1_ratio": 1.0, "penalty_factor": factors, "site_intercepts": "local"}
    model = FederatedLogisticRegression(0.3, **options).fit(features, targets)
    w, b = cp.Variable(5), cp.Variable(3)
    loss = 0.0
    for m, (own, names) in enumerate(zip(features, targets, strict=True)):
        scores = own @ w + b[m]
        loss += cp.sum(cp.logistic(scores) - cp.multiply(names == "yes", scores))
    problem = cp.Problem(cp.Minimize(0.3 * loss + cp.norm1(w if penalised else w[1:])))
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
    np.testing.assert_allclose(model.coef_[0], w.value, atol=1e-5)
    assert (model.duality_gap_ < 1e-10) == penalised
    for m, (own, names) in enumerate(zip(features, targets, strict=True)):
        found = model.intercept_for(own, names)
        assert found.shape == (1,)
        assert found[0] == pytest.approx(b.value[m], abs=1e-4)


def test_a_site_predicts_with_its_own_intercept_and_nobody_without():
    features, targets = parts(classes=True)
    model = FederatedLogisticRegression(1.0, site_intercepts="local")
    with pytest.raises(NotFittedError):
        model.intercept_for(features[0], targets[0])
    model.fit(features, targets)
    assert np.isnan(model.intercept_).all()
    for ask in (model.predict, model.predict_proba, model.decision_function):
        with pytest.raises(ConfigurationError, match=r"has stayed there.*model\.intercept_for"):
            ask(features[0])
    assert "Intercepts: each site's own" in model.summary()
    assert "(intercept)" not in model.summary()
    model.intercept_ = model.intercept_for(features[2], targets[2])
    assert model.score(features[2], targets[2]) > 0.7
    probabilities = model.predict_proba(features[2])[:, 1]
    assert probabilities.mean() == pytest.approx((targets[2] == "yes").mean(), abs=1e-12)
    with pytest.raises(ConfigurationError, match="all rows are of one class"):
        model.intercept_for(features[0][targets[0] == "no"], targets[0][targets[0] == "no"])
    with pytest.raises(ConfigurationError, match="sample_weight"):
        model.intercept_for(features[0], targets[0], np.where(np.arange(len(features[0])) == 3, -1.0, 1.0))
    with pytest.raises(ConfigurationError, match="the model has a common intercept"):
        FederatedLasso().fit(features, [np.arange(len(own)) for own in features]).intercept_for(features[0], targets[0])


def test_over_a_grid_no_message_holds_an_intercept():
    features, targets = parts(classes=True)
    model = FederatedLogisticRegression(0.3, l1_ratio=1.0, num_clients=3, site_intercepts="local")
    here = FederatedLogisticRegression(0.3, l1_ratio=1.0, site_intercepts="local").fit(features, targets)
    numbers = []

    class Listening(InProcessGrid):
        direct = None  # messages

        def reply(self, message):
            answer = super().reply(message)
            content = answer.content
            for record in content.array_records.values():
                numbers.extend(np.concatenate([np.ravel(array.numpy()) for array in record.values()]).tolist())
            for record in content.metric_records.values():
                numbers.extend(float(value) for value in record.values())
            return answer

    fit_over_a_grid(
        model, list(zip(features, targets, strict=True)), features=5, app=CLASSES, grid=Listening, **CLASSES
    )
    np.testing.assert_array_equal(model.coef_, here.coef_)
    own = [float(here.intercept_for(X, y)[0]) for X, y in zip(features, targets, strict=True)]
    assert numbers
    assert min(abs(number - b) for number in numbers for b in own) > 1e-9


def test_over_a_grid_whose_sites_have_no_partition_ids_too():
    features, targets = parts(classes=True)
    model = FederatedLogisticRegression(0.3, l1_ratio=1.0, num_clients=3, site_intercepts="local")
    here = FederatedLogisticRegression(0.3, l1_ratio=1.0, site_intercepts="local").fit(features, targets)

    class Nameless:
        def __init__(self, *arguments, **options):
            self.grid = InProcessGrid(*arguments, **options)
            self.partition_ids = {}

        def __getattr__(self, name):
            return getattr(self.grid, name)

    fit_over_a_grid(model, list(zip(features, targets, strict=True)), features=5, app=CLASSES, grid=Nameless, **CLASSES)
    np.testing.assert_allclose(model.coef_, here.coef_, rtol=1e-9)


def test_sites_with_few_rows_are_named_and_those_with_fewer_refused():
    model = FederatedLogisticRegression(site_intercepts="local")
    with pytest.warns(UserWarning, match=r"few rows .*: part 1 has fewer than 25, and logistic .* 17 %"):
        model.fit(*parts((40, 24), classes=True))
    with pytest.raises(ConfigurationError, match=r"too few rows .*: part 1, part 2 has fewer than 10\. Leave"):
        model.fit(*parts((40, 9, 5), classes=True))
    features, targets = parts((40, 30), classes=True)
    sites = np.repeat(["north", "south"], [40, 30])
    targets[1][:] = "no"
    with pytest.warns(UserWarning, match="^south: all rows of one class, which say nothing"):
        model.fit(np.vstack(features), np.concatenate(targets), groups=sites)
    alone = FederatedLogisticRegression(site_intercepts="local").fit(features[:1], targets[:1])
    np.testing.assert_allclose(model.coef_, alone.coef_, atol=1e-7)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FederatedLasso(0.1, site_intercepts="local").fit(*parts((40, 9, 5)))
        model.fit(*parts((40, 30), classes=True))


def test_who_adds_nothing_is_named_to_who_fits_and_of_many_sites_five():
    """Names are users' texts, and may hold what a terminal obeys."""
    features, targets = parts((40, *[12] * 7), classes=True)
    sites = np.repeat([f"\x1b{m}" for m in range(8)], [40, *[12] * 7])
    y = np.concatenate([targets[0], *(np.full(12, "no") for _ in range(7))])
    message = r"^\\x1b1, \\x1b2, \\x1b3, \\x1b4, \\x1b5 and 2 more: all rows of one class, which say nothing"
    with pytest.warns(UserWarning, match=message):
        FederatedLogisticRegression(site_intercepts="local").fit(np.vstack(features), y, groups=sites)


def test_what_cannot_go_together():
    features, targets = parts(classes=True)
    for options, message in (
        ({"site_intercepts": "local", "fit_intercept": False}, "fit_intercept=False; expected None, or"),
        ({"site_intercepts": True}, "site_intercepts=True"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            FederatedLogisticRegression(**options).fit(features, targets)
    model = FederatedLogisticRegression(site_intercepts="local")
    with pytest.raises(ConfigurationError, match="of 3 classes; sites have their own of two only"):
        model.fit(features, [np.arange(len(own)) % 3 for own in targets])
    with pytest.raises(ConfigurationError, match=r"intercept has stayed there; ask `score` at each site"):
        model.fit(features, targets).quality(features, targets)


@pytest.mark.parametrize("loaded", [(1, 2, 3, 4), None, {"X": 1, "y": 2}])
def test_what_a_site_loads_is_rows_targets_and_perhaps_weights(loaded):
    model = FederatedLasso(num_clients=1)
    message = rf"load returns a {type(loaded).__name__}.*; expected a tuple \(X, y\) or \(X, y, sample_weight\)"
    with pytest.raises(ConfigurationError, match=message):
        fit_over_a_grid(model, [loaded], features=5)

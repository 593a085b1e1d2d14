"""Estimators with `standardize=True`: against a StandardScaler before scikit-learn's, on features in any unit."""

import warnings

import numpy as np
import pytest
from flwr.app import Array
from scipy.sparse import csr_array, random_array
from sklearn.base import clone
from sklearn.linear_model import ElasticNet, LogisticRegression
from sklearn.preprocessing import StandardScaler

from flwr_fco.core.logs import quiet
from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives.design import as_rows, moments
from flwr_fco.simulation import InProcessGrid
from flwr_fco.tables import FederatedElasticNet, FederatedLasso, FederatedLogisticRegression

UNITS = np.array([1.0, 1e4, 1e-3, 30.0, 0.2, 7.0])


def parts(number=3):
    """Sites that differ in location and scale, and whose features have other units than each other."""
    features, targets = [], []
    for m in range(number):
        rng = np.random.default_rng(m)
        own = rng.normal(0.5 * m, 1.0 + 0.3 * m, size=(40 + 7 * m, 6))
        features.append(own * UNITS + 50.0 * UNITS)
        targets.append(own[:, 0] - 2.0 * own[:, 1] + 0.5 * own[:, 4] + rng.normal(size=len(own)))
    return features, targets


@pytest.mark.parametrize("l1_ratio", [1.0, 0.4, 0.0])
def test_an_elastic_net_is_that_of_scaled_features(l1_ratio):
    features, targets = parts()
    model = FederatedElasticNet(0.1, l1_ratio=l1_ratio, standardize=True).fit(features, targets)
    X, y = np.vstack(features), np.concatenate(targets)
    scaler = StandardScaler().fit(X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = ElasticNet(0.1, l1_ratio=l1_ratio, tol=1e-14, max_iter=10**6).fit(scaler.transform(X), y)
    np.testing.assert_allclose(model.coef_ * scaler.scale_, theirs.coef_, atol=1e-7)
    np.testing.assert_allclose(model.predict(X), theirs.predict(scaler.transform(X)), atol=1e-6)
    assert model.duality_gap_ < 1e-11
    assert model.n_iter_ <= 6
    np.testing.assert_allclose(model.summary().table()["deviation"], scaler.scale_, rtol=1e-10)


@pytest.mark.parametrize("l1_ratio", [1.0, 0.4, 0.0])
@pytest.mark.parametrize("classes", [2, 3])
def test_classes_are_those_of_scaled_features(classes, l1_ratio):
    features, targets = parts()
    labels = [np.digitize(own, [0.0] if classes == 2 else [-1.0, 1.0]) for own in targets]
    C = 0.05 if classes == 3 else 0.1
    model = FederatedLogisticRegression(C, l1_ratio=l1_ratio, standardize=True).fit(features, labels)
    X, y = np.vstack(features), np.concatenate(labels)
    scaler = StandardScaler().fit(X)
    options = {"solver": "saga", "tol": 1e-12, "max_iter": 10**6} if l1_ratio else {"tol": 1e-10}
    theirs = LogisticRegression(C=C, l1_ratio=l1_ratio, **options).fit(scaler.transform(X), y)
    np.testing.assert_allclose(model.coef_ * scaler.scale_, theirs.coef_, atol=2e-5)
    np.testing.assert_allclose(model.predict_proba(X), theirs.predict_proba(scaler.transform(X)), atol=1e-5)


def test_units_change_the_coefficients_alone():
    features, targets = parts()
    model = FederatedLasso(0.2, standardize=True, penalty_factor=[0.0, 1.0, 2.0, 1.0, 1.0, 1.0])
    one = clone(model).fit(features, targets)
    other = clone(model).fit([own / UNITS for own in features], targets)
    np.testing.assert_allclose(one.coef_ * UNITS, other.coef_, atol=1e-7)
    assert (one.coef_ != 0.0).tolist() == (other.coef_ != 0.0).tolist()
    assert one.coef_[0] != 0.0
    plain = FederatedLasso(0.2).fit(features, targets)
    assert (plain.coef_ != 0.0).tolist() != (one.coef_ != 0.0).tolist()


def test_a_constant_feature_and_one_that_is_constant_at_each_site():
    features, targets = parts()
    features = [
        np.column_stack([own, np.full(len(own), 1e8 / 3.0), np.full(len(own), float(m))])
        for m, own in enumerate(features)
    ]
    model = FederatedLasso(0.05, standardize=True).fit(features, targets)
    assert model.coef_[6] == 0.0
    deviations = model.summary().table()["deviation"]
    assert deviations[6] == 1.0
    assert deviations[7] == pytest.approx(np.concatenate([own[:, 7] for own in features]).std(), rel=1e-12)


def test_row_weights_are_those_of_the_scaler():
    features, targets = parts()
    weights = [1.0 + np.arange(len(own)) % 3 for own in targets]
    model = FederatedLasso(0.1, standardize=True).fit(features, targets, sample_weight=weights)
    twice = [np.repeat(np.arange(len(own)), own.astype(int)) for own in weights]
    repeated = FederatedLasso(0.1, standardize=True).fit(
        [own[rows] for own, rows in zip(features, twice, strict=True)],
        [own[rows] for own, rows in zip(targets, twice, strict=True)],
    )
    np.testing.assert_allclose(model.coef_ * UNITS, repeated.coef_ * UNITS, atol=1e-7)


@pytest.mark.parametrize("weights", [None, 1.0 + np.arange(50) % 4])
def test_moments_of_dense_and_sparse_columns(weights):
    sparse = random_array((50, 8), density=0.3, rng=np.random.default_rng(0), format="csr") * 1e3
    dense, shares = sparse.toarray(), np.full(50, 1.0 / 50) if weights is None else weights / weights.sum()
    dense[:, 3] += 1e9
    expected = (
        np.average(dense, axis=0, weights=weights),
        np.average((dense - np.average(dense, axis=0, weights=weights)) ** 2, axis=0, weights=weights),
    )
    for own in (dense, csr_array(dense)):
        for reported, true in zip(moments(as_rows(own), shares), expected, strict=True):
            np.testing.assert_allclose(reported, true, rtol=1e-12)


def over_a_grid(model, features, targets, change=None, name="variances"):
    load = lambda context: (features[context.node_config["partition-id"]], targets[context.node_config["partition-id"]])  # noqa: E731

    class Changed(InProcessGrid):
        direct = None  # messages

        def reply(self, message):
            reply = super().reply(message)
            if change is not None and message.metadata.message_type.startswith("query"):
                for arrays in reply.content.array_records.values():
                    if name in arrays and message.metadata.dst_node_id == 2:
                        arrays[name] = Array(change(arrays[name].numpy().copy()))
            return reply

    grid = Changed(model.client_app(load), len(features), raise_errors=False)
    with grid.identity(), quiet(50):
        return model.fit(grid, features=6)


@pytest.mark.parametrize("form", [np.asarray, csr_array])
def test_over_a_grid_the_bits_are_those_of_a_fit_here(form):
    features, targets = parts()
    features = [form(own) for own in features]
    model = FederatedElasticNet(0.1, standardize=True, num_clients=3)
    here, there = clone(model).fit(features, targets), over_a_grid(clone(model), features, targets)
    assert np.array_equal(there.coef_, here.coef_)
    assert there.n_iter_ == here.n_iter_


def test_a_variance_that_is_none_is_named():
    features, targets = parts()
    model = FederatedLasso(0.1, standardize=True, num_clients=3)
    with pytest.raises(ConfigurationError, match=r"partition 0 says a variance of -"):
        over_a_grid(model, features, targets, lambda own: own - 1e9)


@pytest.mark.parametrize("name", ["means", "variances"])
def test_a_site_that_makes_a_deviation_up_is_named(name):
    """It would take all features out of the model, and no other number would show it."""
    features, targets = parts()
    model = FederatedLasso(0.1, standardize=True, num_clients=3)
    with pytest.warns(UserWarning, match=r"deviation of 0 over all sites is .*: partition 0 says .* check the unit"):
        over_a_grid(model, features, targets, lambda own: own * 1e6, name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        over_a_grid(model, features, targets)
        with pytest.raises(
            ConfigurationError, match=r"over all sites is (inf|nan), .*: partition 0 says a mean of 1e\+300"
        ):
            over_a_grid(model, features, targets, lambda own: np.full_like(own, 1e300), "means")


def test_the_default_says_nothing_of_deviations_and_other_words_are_refused():
    features, targets = parts()
    assert "deviation" not in FederatedLasso(0.1).fit(features, targets).summary().table()
    with pytest.raises(ConfigurationError, match="standardize"):
        FederatedLasso(standardize="yes").fit(features, targets)

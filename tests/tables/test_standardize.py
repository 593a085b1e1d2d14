"""Estimators with `standardize=True`: against a StandardScaler before scikit-learn's, on features in any unit."""

import warnings

import numpy as np
import pytest
from federations import altering, fit_over_a_grid
from scipy.sparse import csr_array, random_array
from sklearn.base import clone

from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives.design import as_rows, moments
from flwr_fco.simulation import InProcessGrid
from flwr_fco.tables import FederatedLasso

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


@pytest.mark.parametrize("weights", [None, 1.0 + np.arange(50) % 4])
def test_moments_of_dense_and_sparse_columns(weights):
    sparse = random_array((50, 8), density=0.3, rng=np.random.default_rng(0), format="csr") * 1e3
    dense = sparse.toarray()
    shares = np.full(50, 1.0 / 50) if weights is None else weights / weights.sum()
    dense[:, 3] += 1e9
    expected = (
        np.average(dense, axis=0, weights=weights),
        np.average((dense - np.average(dense, axis=0, weights=weights)) ** 2, axis=0, weights=weights),
    )
    for own in (dense, csr_array(dense)):
        for found, true in zip(moments(as_rows(own), shares), expected, strict=True):
            np.testing.assert_allclose(found, true, rtol=1e-12)


def over_a_grid(features, targets, change=None, name="variances"):
    """Fit where the first site changes a vector of its first answer."""
    grid = altering(0, name, lambda vectors, numbers: vectors.update({name: change(vectors[name])}))
    model = FederatedLasso(0.1, standardize=True, num_clients=3)
    sites = list(zip(features, targets, strict=True))
    return fit_over_a_grid(model, sites, features=6, grid=InProcessGrid if change is None else grid)


def test_a_variance_that_is_none_is_named():
    features, targets = parts()
    with pytest.raises(ConfigurationError, match=r"partition 0 says a variance of -"):
        over_a_grid(features, targets, lambda own: own - 1e9)


@pytest.mark.parametrize("name", ["means", "variances"])
def test_a_site_that_makes_a_deviation_up_is_named(name):
    """It would take all features out of the model, and no other number would show it."""
    features, targets = parts()
    with pytest.warns(UserWarning, match=r"deviation of 0 over all sites is .*: partition 0 says .* check the unit"):
        over_a_grid(features, targets, lambda own: own * 1e6, name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        over_a_grid(features, targets)
        with pytest.raises(ConfigurationError, match=r"is (inf|nan), .*: partition 0 says a mean of 1e\+300"):
            over_a_grid(features, targets, lambda own: np.full_like(own, 1e300), "means")

"""The data sets: every example in one place, the same client in any order, the draws that are documented."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from problems import refused
from sklearn.datasets import load_breast_cancer, load_digits

from flwr_fco.datasets import breast_cancer, digits, dirichlet_partition, iid_partition, lasso
from flwr_fco.objectives import LeastSquares


def _covers(parts, n):
    return np.array_equal(np.sort(np.concatenate(parts)), np.arange(n))


@pytest.mark.parametrize("alpha", [0.1, 0.3, 1.0, 100.0])
def test_dirichlet_partition_is_a_partition(alpha):
    labels = np.random.default_rng(0).integers(0, 10, 1000)
    parts = dirichlet_partition(np.where(labels < 9, labels, np.nan), 10, alpha, np.random.default_rng(1), min_size=7)
    assert [part.size >= 7 for part in parts] == [True] * 10
    assert _covers(parts, 1000)
    assert all(part.dtype == np.int64 and (np.diff(part) > 0).all() for part in parts)


NO_SPLITS = [
    (lambda labels, rng: dirichlet_partition(labels, 11, 0.3, rng), "at most 10"),
    (lambda labels, rng: dirichlet_partition(labels, 2, 0.0, rng), "alpha"),
    (lambda labels, rng: dirichlet_partition(labels.reshape(50, 2), 2, 1.0, rng), r"\(50, 2\)"),
    (lambda labels, rng: dirichlet_partition(labels, 10, 0.01, rng), "Raise alpha"),
    (lambda labels, rng: iid_partition(10, 0, rng), "num_clients=0"),
    (lambda labels, rng: digits(train_fraction=1e-3), r"train_fraction=0\.001: The train_size = 1 .* of each class"),
    (lambda labels, rng: iid_partition(labels, 2, 0), "rng=0 is an int; expected a Generator"),
]


@pytest.mark.parametrize(("split", "said"), NO_SPLITS)
def test_a_partition_that_cannot_be_is_refused(split, said):
    refused(said, split, np.zeros(100), np.random.default_rng(0))


@pytest.mark.parametrize(("make", "source"), [(digits, load_digits), (breast_cancer, load_breast_cancer)])
@pytest.mark.parametrize("alpha", [0.3, None])
def test_every_example_is_in_one_place(make, source, alpha):
    data = make(num_clients=8, alpha=alpha)
    _, labels = source(return_X_y=True)
    assert _covers(data.partition, data.train.targets.size)
    assert [own.targets.size for own in (data.train, data.test)] == [len(labels) * 3 // 4, len(labels) // 4 + 1]
    # Stratified: classes are as frequent in the test split as in all.
    tested, all_of_them = (np.bincount(own) / own.size for own in (data.test.targets, labels))
    assert_allclose(tested, all_of_them, atol=5e-3)
    assert min(data.client(index).targets.size for index in range(8)) >= 10
    assert all(map(np.array_equal, data.client(3), (own[data.partition[3]] for own in data.train)))


@pytest.mark.parametrize("make", [digits, breast_cancer])
def test_seeds_change_the_split_over_clients_only(make):
    a, b, again = make(seed=0), make(seed=1), make(seed=0)
    assert np.array_equal(a.test.features, b.test.features)
    assert not all(map(np.array_equal, a.partition, b.partition))
    assert all(map(np.array_equal, a.partition, again.partition))


def test_a_client_of_the_regression_is_the_same_in_any_order():
    data = lasso(seed=3)
    first, other = data.client(40), data.client(5)
    assert all(map(np.array_equal, first, lasso(seed=3).client(40)))
    for another in (other, lasso(seed=4).client(40)):
        assert not np.array_equal(first.features, another.features)


def test_the_regression_has_standard_normal_means_features_and_noise():
    data = lasso(200, num_features=50, num_ones=10, examples_per_client=80)
    parts = [data.client(index) for index in range(200)]
    means = np.array([part.features.mean(axis=0) for part in parts])
    # 10,000 coordinates of means: N(0, 1 + 1/80). Standard errors are about 0.01 and 0.014.
    assert abs(means.mean()) < 0.04
    assert_allclose(means.var(), 1.0 + 1 / 80, atol=0.06)
    assert_allclose(np.mean([part.features.var(axis=0, ddof=1) for part in parts]), 1.0, atol=0.01)
    residuals = np.concatenate([part.targets - part.features @ data.coefficients for part in parts])
    assert_allclose(residuals.std(), 1.0, atol=0.02)
    assert data.coefficients.tolist() == [1.0] * 10 + [0.0] * 40
    assert isinstance(data.objective(0), LeastSquares)

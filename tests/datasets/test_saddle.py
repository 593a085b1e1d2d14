"""The saddle-point problems' data: the mean over clients, ranks, starts, one client at a time; CIFAR-10's formats."""

import os
from pathlib import Path

import numpy as np
import pytest

from flwr_fco.datasets import (
    AdversarialImages,
    cifar10,
    digits,
    low_rank_bilinear,
    matrix_games,
    quadratic_saddles,
    sparse_bilinear,
)
from flwr_fco.errors import ConfigurationError, DataNotFoundError
from flwr_fco.objectives import BilinearSaddle, MatrixGame, QuadraticSaddle


@pytest.mark.parametrize("make", [sparse_bilinear, low_rank_bilinear, matrix_games, quadratic_saddles])
@pytest.mark.parametrize("num_clients", [1, 4, 5])
def test_the_clients_differ_around_their_mean(make, num_clients):
    data = make(num_clients, rows=3, columns=5, spread=0.7, seed=2)
    clients = [data.client(index) for index in range(num_clients)]
    np.testing.assert_allclose(np.mean([c.features for c in clients], axis=0), data.matrix, atol=1e-14)
    if data.kind != "game":
        np.testing.assert_allclose(np.mean([c.targets for c in clients], axis=0), data.offset, atol=1e-14)
    if num_clients > 1:
        assert np.abs(clients[0].features - data.matrix).max() > 0.1
    if num_clients > 3:
        assert not np.array_equal(clients[0].features, clients[2].features)
    again = make(num_clients, rows=3, columns=5, spread=0.7, seed=2)
    assert np.array_equal(again.client(num_clients - 1).features, clients[-1].features)


def test_equal_clients_share_memory():
    data = sparse_bilinear(3, rows=4, columns=6)
    objectives = data.objectives()
    assert all(objective.matrix is data.matrix for objective in objectives)
    assert {objective.noise for objective in objectives} == {0.1}
    assert data.objective(0, noise=0.0).noise == 0.0


def test_the_papers_sizes_ranks_and_starts():
    data = low_rank_bilinear()
    objective = data.objective(0)
    assert isinstance(objective, BilinearSaddle)
    assert objective.layout.shapes == {"x": (600, 20), "y": (300, 20)}
    assert np.linalg.matrix_rank(data.offset) == 10
    start = data.start(0)
    assert {name: array.shape for name, array in start.items()} == objective.layout.shapes
    assert 0.99 < np.abs(start["x"]).max() <= 1.0
    sparse = sparse_bilinear()
    assert sparse.objective(0).layout.shapes == {"x": (600,), "y": (300,)}
    assert np.abs(sparse.start(1)["x"]).max() <= 0.05
    assert not np.array_equal(sparse.start(1)["x"], sparse.start(2)["x"])
    assert (np.abs(sparse.matrix).max(), np.abs(sparse.offset).max()) <= (1.0, 1.0)


def test_games_start_at_the_uniform_distributions():
    data = matrix_games(2, rows=3, columns=4)
    assert isinstance(data.objective(0), MatrixGame)
    assert {name: array.sum() for name, array in data.start().items()} == pytest.approx({"x": 1.0, "y": 1.0})
    assert data.objective(0).layout.shapes == {"x": (3,), "y": (4,)}


def test_quadratics_are_bilinear_functions_with_curvature_for_both_players():
    data = quadratic_saddles(2, rows=3, columns=4, curvature=0.5, spread=0.3)
    curved, own = data.objective(1), data.client(1)
    assert isinstance(curved, QuadraticSaddle)
    plain = BilinearSaddle(own.features, own.targets)
    w = data.objective(0).layout.flatten(data.start())
    x, y = w[:4], w[4:]
    assert curved.value(w) == pytest.approx(plain.value(w) + 0.25 * (x @ x) - 0.25 * (y @ y))
    assert curved.noise == 0.1
    assert 0.05 < np.abs(w).max() <= 1.0
    with pytest.raises(ConfigurationError, match="curvature=0"):
        quadratic_saddles(2, curvature=0.0)


@pytest.mark.parametrize(
    "options", [{"num_clients": 0}, {"rows": 0}, {"bound": 0.0}, {"noise": -1.0}, {"spread": np.inf}, {"rows": True}]
)
def test_errors(options):
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        sparse_bilinear(**options)


def test_there_is_no_such_client():
    with pytest.raises(ConfigurationError, match="no client 2"):
        sparse_bilinear(2).client(2)
    with pytest.raises(ConfigurationError, match="width"):
        low_rank_bilinear(width=1)


def test_adversarial_images_are_those_of_the_classification():
    images = digits(num_clients=3)
    data = AdversarialImages(images)
    assert data.num_clients == 3
    objective = data.objective(1, intercept=False)
    assert objective.layout.shapes == {"coefficients": (64, 10), "perturbation": (64,)}
    assert objective.num_examples == images.client(1).targets.size
    zero = np.zeros(objective.layout.size)
    assert objective.value(zero) == pytest.approx(np.log(10.0))
    test = data.test_objective()
    assert test.num_examples == images.test.targets.size
    model = np.random.default_rng(0).normal(size=test.layout.size)
    model[test.split :] = 0.0
    assert test.metrics(model)["loss"] == pytest.approx(images.test_objective().value(model[: test.split]))


def _write(directory, part, seed=0):
    """Write a binary batch of 20 images whose red plane counts up, and return its labels."""
    labels = np.arange(20, dtype=np.uint8) % 10
    images = np.random.default_rng(seed).integers(0, 256, (20, 3, 32, 32), dtype=np.uint8)
    np.column_stack([labels, images.reshape(20, -1)]).astype(np.uint8).tofile(directory / part)
    return images, labels


def test_cifar_from_binary_batches_and_from_npz_is_the_same(tmp_path):
    train = [_write(tmp_path, f"data_batch_{number}.bin", number) for number in range(1, 6)]
    images, labels = _write(tmp_path, "test_batch.bin", 6)
    data = cifar10(tmp_path, num_clients=4)
    assert (data.num_clients, data.train.features.shape, data.test.features.shape) == (4, (100, 3072), (20, 3072))
    # Red, green and blue of the first pixel, then of the one to its right.
    assert data.test.features[0, :6].tolist() == [*images[0, :, 0, 0], *images[0, :, 0, 1]]
    assert data.test.targets.tolist() == labels.tolist()
    assert sorted(np.concatenate(data.partition)) == list(range(100))
    assert 0.0 <= data.client(0).features.min() <= data.client(0).features.max() <= 1.0

    def stacked(parts):
        return np.concatenate([part.transpose(0, 2, 3, 1) for part in parts])

    np.savez(
        tmp_path / "all.npz",
        train_images=stacked([part[0] for part in train]),
        train_labels=np.concatenate([part[1] for part in train]),
        test_images=stacked([images]),
        test_labels=labels,
    )
    twin = cifar10(tmp_path / "all.npz", num_clients=4)
    assert np.array_equal(twin.train.features, data.train.features)
    assert np.array_equal(twin.client(2).features, data.client(2).features)
    assert cifar10(tmp_path, num_clients=2, num_examples=30).train.targets.size == 30


def test_cifar_says_what_is_missing_or_damaged(tmp_path):
    with pytest.raises(DataNotFoundError, match=r"data_batch_1\.bin"):
        cifar10(tmp_path)
    with pytest.raises(DataNotFoundError, match=r"none\.npz"):
        cifar10(tmp_path / "none.npz")
    (tmp_path / "data_batch_1.bin").write_bytes(b"short")
    with pytest.raises(ConfigurationError, match="cut short"):
        cifar10(tmp_path)
    np.savez(tmp_path / "part.npz", train_images=np.zeros((2, 32, 32, 3), np.uint8))
    with pytest.raises(ConfigurationError, match="lacks"):
        cifar10(tmp_path / "part.npz")


def test_cifar_that_is_here():
    file = Path(os.environ.get("FLWR_FCO_DATA", ""), "cifar10", "cifar10_subset.npz")
    if not os.environ.get("FLWR_FCO_DATA") or not file.is_file():
        pytest.skip("FLWR_FCO_DATA names no directory with cifar10/cifar10_subset.npz")
    data = cifar10(file, num_clients=100)
    assert data.client(3).features.shape == (100, 3072)
    assert np.bincount(data.train.targets).min() > 900

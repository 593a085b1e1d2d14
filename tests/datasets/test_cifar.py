"""CIFAR-10's formats."""

import os
from pathlib import Path

import numpy as np
import pytest

from flwr_fco.datasets import cifar10
from flwr_fco.errors import ConfigurationError, DataNotFoundError


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

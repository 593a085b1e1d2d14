"""Images: MNIST and CIFAR-10 from their own files."""

import gzip
import struct

import numpy as np
import pytest

from flwr_fco.errors import ConfigurationError
from reproduction.data import DataNotFoundError
from reproduction.data.images import cifar10, mnist, on_clients


def write_idx(file, array):
    header = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    file.write_bytes(gzip.compress(header + array.tobytes()))


@pytest.fixture
def tiny(tmp_path):
    rng = np.random.default_rng(0)
    for part, count in (("train", 200), ("t10k", 30)):
        write_idx(tmp_path / f"{part}-images-idx3-ubyte.gz", rng.integers(0, 256, (count, 4, 4), dtype=np.uint8))
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte.gz", (np.arange(count) % 10).astype(np.uint8))
    return tmp_path


SHORT = struct.pack(">HBBI", 0, 8, 1, 9) + b"123"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train-labels-idx1-ubyte", b"hello world", "68656c6c"),
        ("train-labels-idx1-ubyte", SHORT, "damaged: cannot reshape"),
        ("train-labels-idx1-ubyte", b"", "damaged: unpack_from"),
        ("train-labels-idx1-ubyte.gz", gzip.compress(bytes(50))[:-6], "damaged"),
    ],
)
def test_damaged_files_of_mnist_are_named(tiny, name, content, message):
    (tiny / name).write_bytes(content)
    with pytest.raises(ConfigurationError, match=message):
        mnist(tiny)
    for file in tiny.glob("train-labels*"):
        file.unlink()
    with pytest.raises(DataNotFoundError, match=r"train-labels-idx1-ubyte\.gz does not exist; expected the directory"):
        mnist(tiny)


@pytest.mark.parametrize("options", [{"alpha": 50.0}, {"alpha": None}])
def test_every_image_goes_to_one_client(tiny, options):
    images = mnist(tiny)
    data = on_clients(images, num_clients=10, **options)
    assert np.array_equal(np.sort(np.concatenate(data.partition)), np.arange(200))
    client = data.client(3)
    assert client.features.dtype == np.float32
    # The bytes come back: scaling to [0, 1] loses nothing.
    assert 0.0 <= client.features.min() <= client.features.max() <= 1.0
    assert np.array_equal(np.rint(client.features * 255).astype(np.uint8), data.train.features[data.partition[3]])
    assert data.test_objective().num_examples == 30
    first, again, other = (on_clients(images, 3, num_examples=90, seed=seed, **options) for seed in (1, 1, 2))
    assert np.array_equal(first.client(2).features, again.client(2).features)
    assert not np.array_equal(first.train.features, other.train.features)
    with pytest.raises(ConfigurationError, match="num_examples=201"):
        on_clients(images, num_examples=201)


def test_cifar_from_binary_batches_and_from_npz_is_the_same(tmp_path):
    rng = np.random.default_rng(0)
    parts = []
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        images = rng.integers(0, 256, (20, 3, 32, 32), dtype=np.uint8)
        labels = np.arange(20, dtype=np.uint8) % 10
        np.column_stack([labels, images.reshape(20, -1)]).tofile(tmp_path / f"{name}.bin")
        parts.append((images.transpose(0, 2, 3, 1), labels))
    data = on_clients(cifar10(tmp_path), num_clients=4)
    assert (data.num_clients, data.train.features.shape, data.test.features.shape) == (4, (100, 3072), (20, 3072))
    # Red, green and blue of the first pixel, then of the one to its right.
    assert data.test.features[0, :6].tolist() == [*images[0, :, 0, 0], *images[0, :, 0, 1]]
    assert data.test.targets.tolist() == labels.tolist()
    train = [np.concatenate(part) for part in zip(*parts[:5], strict=True)]
    names = ("train_images", "train_labels", "test_images", "test_labels")
    np.savez(tmp_path / "all.npz", **dict(zip(names, (*train, *parts[5]), strict=True)))
    twin = on_clients(cifar10(tmp_path / "all.npz"), num_clients=4)
    assert np.array_equal(twin.train.features, data.train.features)
    assert np.array_equal(twin.client(2).features, data.client(2).features)


def test_cifar_says_what_is_missing(tmp_path):
    with pytest.raises(DataNotFoundError, match=r"data_batch_1\.bin does not exist; expected"):
        cifar10(tmp_path)
    np.savez(tmp_path / "part.npz", train_images=np.zeros((2, 32, 32, 3), np.uint8))
    with pytest.raises(ConfigurationError, match="train_labels"):
        cifar10(tmp_path / "part.npz")

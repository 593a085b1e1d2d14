"""Images: MNIST, FEMNIST and CIFAR-10 from their own files and from Flower Datasets."""

import gzip
import struct

import numpy as np
import pytest

from flwr_fco.errors import ConfigurationError
from reproduction.data import DataNotFoundError
from reproduction.data.images import cifar10, femnist, mnist
from reproduction.tests import stand_ins


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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"hello world", "68656c6c"),
        (struct.pack(">HBBI", 0, 8, 1, 9) + b"123", "damaged: cannot reshape"),
        (b"", "damaged: unpack_from"),
        (struct.pack(">HBBI", 0, 8, 1, 9) + bytes(9), "damaged"),
    ],
)
def test_damaged_files_of_mnist_are_named(tiny, content, message):
    file = tiny / "train-labels-idx1-ubyte"
    file.write_bytes(content)
    with pytest.raises(ConfigurationError, match=message):
        mnist(tiny)
    file.unlink()
    file.with_name(f"{file.name}.gz").write_bytes(gzip.compress(bytes(50))[:-6])
    with pytest.raises(ConfigurationError, match="damaged"):
        mnist(tiny)
    file.with_name(f"{file.name}.gz").unlink()
    with pytest.raises(DataNotFoundError, match=r"train-labels-idx1-ubyte\.gz does not exist; expected the directory"):
        mnist(tiny)


@pytest.mark.parametrize("options", [{"alpha": 0.5, "min_size": 1}, {"alpha": None}])
def test_every_image_goes_to_one_client(tiny, options):
    data = mnist(tiny, num_clients=10, **options)
    assert np.array_equal(np.sort(np.concatenate(data.partition)), np.arange(200))
    client = data.client(3)
    assert client.features.dtype == np.float32
    # The bytes come back: scaling to [0, 1] loses nothing.
    assert 0.0 <= client.features.min() <= client.features.max() <= 1.0
    assert np.array_equal(np.rint(client.features * 255).astype(np.uint8), data.train.features[data.partition[3]])
    assert data.test_objective().num_examples == 30
    first, again, other = (mnist(tiny, 5, num_examples=50, seed=seed, **options) for seed in (1, 1, 2))
    assert np.array_equal(first.client(2).features, again.client(2).features)
    assert not np.array_equal(first.train.features, other.train.features)
    with pytest.raises(ConfigurationError, match="num_examples=201"):
        mnist(tiny, num_examples=201)


def test_the_real_files(real_data):
    data = mnist(real_data("mnist"), num_clients=100, alpha=0.3)
    assert (data.train.features.shape, data.test.features.shape) == ((60_000, 784), (10_000, 784))
    # The class sizes of the published training set.
    assert np.bincount(data.train.targets).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]


def test_femnist_keeps_the_digits_of_each_writer(monkeypatch):
    writers = [[0, 1, 2, 40], [50, 51], [3, 4, 5, 6], [7, 8, 9]]
    hub = stand_ins.install_flwr_datasets(monkeypatch, writers)
    data = femnist(num_clients=3)
    assert np.sort(np.concatenate([data.train.targets, data.test.targets])).tolist() == list(range(10))
    for index in range(3):
        client = data.client(index)
        assert sum({*client.targets.tolist()} <= {*writer} for writer in writers) == 1
        # Turned to white on black: the stand-in's paper is 255, and its ink 255 - label.
        assert np.allclose(client.features.max(axis=1) * 255, client.targets)
    # With letters everybody has written something.
    data = femnist(num_clients=4, num_classes=62)
    everything = np.concatenate([data.train.targets, data.test.targets])
    assert np.sort(everything).tolist() == sorted(np.concatenate(writers).tolist())
    for wrong, message in (({"num_clients": 4}, "num_clients=4"), ({"num_classes": 26}, "num_classes=26; expected 10")):
        with pytest.raises(ConfigurationError, match=message):
            femnist(**wrong)
    hub.unreachable = True
    with pytest.raises(DataNotFoundError, match="Hugging Face"):
        femnist()


def test_cifar_from_binary_batches_and_from_npz_is_the_same(tmp_path):
    rng, parts = np.random.default_rng(0), []
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        images, labels = rng.integers(0, 256, (20, 3, 32, 32), dtype=np.uint8), np.arange(20, dtype=np.uint8) % 10
        np.column_stack([labels, images.reshape(20, -1)]).tofile(tmp_path / f"{name}.bin")
        parts.append((images.transpose(0, 2, 3, 1), labels))
    data = cifar10(tmp_path, num_clients=4)
    assert (data.num_clients, data.train.features.shape, data.test.features.shape) == (4, (100, 3072), (20, 3072))
    # Red, green and blue of the first pixel, then of the one to its right.
    assert data.test.features[0, :6].tolist() == [*images[0, :, 0, 0], *images[0, :, 0, 1]]
    assert data.test.targets.tolist() == labels.tolist()
    train = [np.concatenate(part) for part in zip(*parts[:5], strict=True)]
    names = ("train_images", "train_labels", "test_images", "test_labels")
    np.savez(tmp_path / "all.npz", **dict(zip(names, (*train, *parts[5]), strict=True)))
    twin = cifar10(tmp_path / "all.npz", num_clients=4)
    assert np.array_equal(twin.train.features, data.train.features)
    assert np.array_equal(twin.client(2).features, data.client(2).features)


def test_cifar_says_what_is_missing_or_damaged(tmp_path):
    with pytest.raises(DataNotFoundError, match=r"data_batch_1\.bin does not exist; expected"):
        cifar10(tmp_path)
    with pytest.raises(DataNotFoundError, match=r"none\.npz"):
        cifar10(tmp_path / "none.npz")
    for number in range(1, 6):
        (tmp_path / f"data_batch_{number}.bin").write_bytes(b"short")
    with pytest.raises(ConfigurationError, match="is damaged"):
        cifar10(tmp_path)
    np.savez(tmp_path / "part.npz", train_images=np.zeros((2, 32, 32, 3), np.uint8))
    with pytest.raises(ConfigurationError, match="train_labels"):
        cifar10(tmp_path / "part.npz")
    (tmp_path / "part.npz").write_bytes(b"PK\x03\x04 short")
    with pytest.raises(ConfigurationError, match="damaged"):
        cifar10(tmp_path / "part.npz")

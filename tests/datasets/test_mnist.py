import gzip
import inspect
import struct
import sys
from types import SimpleNamespace
from urllib.error import URLError

import numpy as np
import pytest
import sklearn.datasets

from flwr_fco.datasets import femnist, label_partition, mnist, read_idx
from flwr_fco.errors import ConfigurationError, DataNotFoundError


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


def test_idx_round_trip(tmp_path):
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    write_idx(tmp_path / "x.gz", array)
    assert np.array_equal(read_idx(tmp_path / "x.gz"), array)


def test_damaged_files_are_named(tmp_path):
    with pytest.raises(DataNotFoundError, match=r"x\.gz does not exist"):
        read_idx(tmp_path / "x.gz")
    (tmp_path / "x.gz").write_bytes(b"hello world")
    with pytest.raises(ConfigurationError, match="68656c6c"):
        read_idx(tmp_path / "x.gz")
    (tmp_path / "x.gz").write_bytes(struct.pack(">HBBI", 0, 8, 1, 9) + b"123")
    with pytest.raises(ConfigurationError, match="cut short"):
        read_idx(tmp_path / "x.gz")
    with pytest.raises(DataNotFoundError, match="train-images"):
        mnist(tmp_path)


@pytest.mark.parametrize("options", [{"alpha": 0.5, "min_size": 1}, {"alpha": None}, {"by_label": True}])
def test_every_image_goes_to_one_client(tiny, options):
    data = mnist(tiny, num_clients=10, **options)
    rows = np.concatenate(data.partition)
    assert np.array_equal(np.sort(rows), np.arange(200))
    client = data.client(3)
    assert client.features.dtype == np.float32
    assert client.features.min() >= 0.0
    assert client.features.max() <= 1.0
    # The bytes come back: scaling loses nothing.
    assert np.array_equal(np.rint(client.features * 255).astype(np.uint8), data.train.features[data.partition[3]])
    assert data.test_objective().num_examples == 30


def test_subset_and_split_follow_the_seed(tiny):
    first, again, other = (mnist(tiny, 5, None, num_examples=50, seed=seed) for seed in (1, 1, 2))
    assert first.train.targets.size == 50
    assert np.array_equal(first.train.features, again.train.features)
    assert not np.array_equal(first.train.features, other.train.features)
    with pytest.raises(ConfigurationError, match="num_examples=201"):
        mnist(tiny, num_examples=201)


def test_label_partition_gives_few_labels():
    labels = np.repeat(np.arange(10), 60)
    parts = label_partition(labels, 30, 2, np.random.default_rng(0))
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(600))
    assert max(np.unique(labels[part]).size for part in parts) <= 2
    with pytest.raises(ConfigurationError, match="labels_per_client=0"):
        label_partition(labels, 30, 0, np.random.default_rng(0))


def test_the_real_files(real_data):
    data = mnist(real_data("mnist"), num_clients=100, alpha=0.3)
    assert data.train.features.shape == (60_000, 784)
    assert data.test.features.shape == (10_000, 784)
    # The class sizes of the published training set.
    assert np.bincount(data.train.targets).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert sum(data.client(index).targets.size for index in range(100)) == 60_000


def test_openml_has_the_test_images_last(tiny, monkeypatch):
    files = mnist(tiny, 5, None)
    size = files.train.targets.size // 6
    images = np.concatenate([files.train.features[: 6 * size], files.test.features[:1].repeat(size, axis=0)])
    labels = np.concatenate([files.train.targets[: 6 * size], files.test.targets[:1].repeat(size)])
    asked, real = {}, inspect.signature(sklearn.datasets.fetch_openml)

    def fetch(name, **options):
        asked.update(real.bind(name, **options).arguments)
        return images.astype(np.float64), labels.astype(str).astype(object)

    monkeypatch.setattr(sklearn.datasets, "fetch_openml", fetch)
    data = mnist(None, 5, None)
    assert (asked["name"], asked["version"], asked["as_frame"]) == ("mnist_784", 1, False)
    assert np.array_equal(data.train.features, images[: 6 * size])
    assert np.array_equal(data.test.targets, labels[6 * size :])

    def unreachable(name, **options):
        raise URLError("no route to host")

    monkeypatch.setattr(sklearn.datasets, "fetch_openml", unreachable)
    with pytest.raises(DataNotFoundError, match="no route to host"):
        mnist(None)


class Part:
    """A Hugging Face data set of one writer, as far as it is used."""

    def __init__(self, labels):
        self.labels = labels

    def with_format(self, kind):
        return self

    def __getitem__(self, key):
        if key == "character":
            return self.labels
        return {"image": np.full((28, 28), 255 - self.labels[key], dtype=np.uint8)}


def test_femnist_keeps_the_digits_of_each_writer(monkeypatch):
    writers = [[0, 1, 2, 40], [50, 51], [3, 4, 5, 6], [7, 8, 9]]

    class Hub:
        def __init__(self, dataset, partitioners, seed):
            assert dataset == "flwrlabs/femnist"

        def load_partition(self, index):
            return Part(np.array(writers[index]))

    partitioner = SimpleNamespace(NaturalIdPartitioner=lambda partition_by: SimpleNamespace(num_partitions=4))
    monkeypatch.setitem(sys.modules, "flwr_datasets", SimpleNamespace(FederatedDataset=Hub))
    monkeypatch.setitem(sys.modules, "flwr_datasets.partitioner", partitioner)
    data = femnist(num_clients=3)
    everything = np.concatenate([data.train.targets, data.test.targets])
    assert np.sort(everything).tolist() == list(range(10))
    for index in range(3):
        client = data.client(index)
        owners = [writer for writer in writers if set(client.targets.tolist()) <= set(writer)]
        assert len(owners) == 1
        # Turned to white on black: the stand-in's pixels are 255 - label, so ours are label / 255.
        assert np.allclose(client.features * 255, client.targets[:, None])
    with pytest.raises(ConfigurationError, match="num_clients=4"):
        femnist(num_clients=4)
    # With letters everybody has written something.
    data = femnist(num_clients=4, num_classes=62)
    assert data.num_classes == 62
    everything = np.concatenate([data.train.targets, data.test.targets])
    assert np.sort(everything).tolist() == sorted(np.concatenate(writers).tolist())
    with pytest.raises(ConfigurationError, match="num_classes=26; expected 10"):
        femnist(num_classes=26)
    monkeypatch.setitem(sys.modules, "flwr_datasets", None)
    with pytest.raises(ConfigurationError, match="pip install"):
        femnist()

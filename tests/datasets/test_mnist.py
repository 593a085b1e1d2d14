import gzip
import struct
import sys
from urllib.error import URLError

import numpy as np
import pytest
import sklearn.datasets
import stand_ins

from flwr_fco.datasets import femnist, label_partition, mnist, read_idx
from flwr_fco.errors import ConfigurationError, DataNotFoundError, NotInstalledError


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
    for wrong in (0, None, 1.5):
        with pytest.raises(ConfigurationError, match=f"labels_per_client={wrong}"):
            label_partition(labels, 30, wrong, np.random.default_rng(0))


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
    asked = stand_ins.install_openml(monkeypatch, images, labels)
    data = mnist(None, 5, None)
    assert [(own["name"], own["version"], own["as_frame"]) for own in asked] == [("mnist_784", 1, False)]
    assert np.array_equal(data.train.features, images[: 6 * size])
    assert np.array_equal(data.test.targets, labels[6 * size :])

    def unreachable(name, **options):
        raise URLError("no route to host")

    monkeypatch.setattr(sklearn.datasets, "fetch_openml", unreachable)
    with pytest.raises(DataNotFoundError, match="no route to host"):
        mnist(None)


def test_femnist_keeps_the_digits_of_each_writer(monkeypatch):
    writers = [[0, 1, 2, 40], [50, 51], [3, 4, 5, 6], [7, 8, 9]]
    stand_ins.install_flwr_datasets(monkeypatch, writers)
    data = femnist(num_clients=3)
    assert data.train.features.shape[1] == 784
    everything = np.concatenate([data.train.targets, data.test.targets])
    assert np.sort(everything).tolist() == list(range(10))
    for index in range(3):
        client = data.client(index)
        owners = [writer for writer in writers if set(client.targets.tolist()) <= set(writer)]
        assert len(owners) == 1
        # Turned to white on black: the stand-in's paper is 255, and its ink 255 - label.
        assert np.allclose(client.features.max(axis=1) * 255, client.targets)
    with pytest.raises(ConfigurationError, match="num_clients=4"):
        femnist(num_clients=4)
    # With letters everybody has written something.
    data = femnist(num_clients=4, num_classes=62)
    assert data.num_classes == 62
    everything = np.concatenate([data.train.targets, data.test.targets])
    assert np.sort(everything).tolist() == sorted(np.concatenate(writers).tolist())
    with pytest.raises(ConfigurationError, match="num_classes=26; expected 10"):
        femnist(num_classes=26)


def test_what_cannot_be_had_of_femnist_is_named(monkeypatch):
    stand_ins.install_flwr_datasets(monkeypatch, [[0, 1, 2], [3, 4, 5]], shape=(28, 28, 3))
    with pytest.raises(ConfigurationError, match="images of 2352 numbers; expected 784"):
        femnist(num_clients=2)
    hub = stand_ins.install_flwr_datasets(monkeypatch, [[0, 1, 2], [3, 4, 5]])
    hub.unreachable = True
    with pytest.raises(DataNotFoundError, match="Couldn't reach 'flwrlabs/femnist'"):
        femnist(num_clients=2)
    monkeypatch.setitem(sys.modules, "flwr_datasets", None)
    with pytest.raises(NotInstalledError, match="pip install"):
        femnist()


def test_the_stand_ins_are_called_as_flower_datasets():
    real = pytest.importorskip("flwr_datasets")
    assert stand_ins.parameters(stand_ins.FederatedDataset) == stand_ins.parameters(real.FederatedDataset)
    assert stand_ins.parameters(stand_ins.FederatedDataset.load_partition) == stand_ins.parameters(
        real.FederatedDataset.load_partition
    )
    partitioner = real.partitioner.NaturalIdPartitioner
    assert stand_ins.parameters(stand_ins.NaturalIdPartitioner) == stand_ins.parameters(partitioner)
    assert isinstance(partitioner.num_partitions, property)


def test_the_stand_in_is_called_as_openml():
    assert stand_ins.parameters(stand_ins.fetch_openml) == stand_ins.parameters(sklearn.datasets.fetch_openml)

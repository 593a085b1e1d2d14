"""Images of handwriting and of objects, from their own files or from OpenML: MNIST and CIFAR-10."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from flwr_fco.datasets import PartitionedClassification, Samples, dirichlet_partition, iid_partition
from flwr_fco.errors import ConfigurationError
from reproduction.data import DataNotFoundError
from reproduction.data.samples import stream

#: Spawn keys of one seed; the split over clients uses the first, as in all data sets.
_SPLIT = 0
_SUBSET = 1


@dataclass(frozen=True, eq=False)
class PartitionedImages(PartitionedClassification):
    """Images stored as bytes; a client's images are scaled to float32 in [0, 1] when they are requested.

    This takes an eighth of float64's memory: MNIST takes 47 MB, and each client's objective adds only its own share.

    Parameters
    ----------
    train : Samples
        Features of dtype uint8, shape (examples, pixels); labels 0 .. num_classes - 1.
    test : Samples
        The test split.
    partition : tuple of ndarray of int64
        Rows of `train`, one array per client.
    num_classes : int
        Number of classes in the whole federation.

    Examples
    --------
    >>> import numpy as np
    >>> images = Samples(np.array([[0, 255], [255, 0], [0, 51]], dtype=np.uint8), np.array([0, 1, 2]))
    >>> data = PartitionedImages(images, images, (np.array([0, 2]), np.array([1])), 3)
    >>> data.client(0).features
    array([[0. , 1. ],
           [0. , 0.2]], dtype=float32)
    """

    def client(self, index: int) -> Samples:
        """Return the training images of a client as float32 in [0, 1], with their labels."""
        return _scaled(super().client(index))

    def test_examples(self) -> Samples:
        """Return the test images as float32 in [0, 1], with their labels."""
        return _scaled(self.test)


@contextmanager
def _reading(place: Path, expected: str) -> Iterator[None]:
    """Say what is missing or damaged where files are read."""
    try:
        yield
    except FileNotFoundError as error:
        raise DataNotFoundError(f"{error.filename} does not exist; expected {expected}") from error
    except (OSError, EOFError, zlib.error, BadZipFile, struct.error, KeyError, ValueError) as error:
        raise ConfigurationError(f"{place} is damaged: {error}; expected {expected}. Fetch it again.") from error


def read_idx(file: Path) -> NDArray[np.uint8]:
    """Return the array of an IDX file of bytes, compressed or not.

    Examples
    --------
    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp(), "tiny-idx1-ubyte")
    >>> _ = file.write_bytes(struct.pack(">HBBI3B", 0, 8, 1, 3, 7, 2, 1))
    >>> read_idx(file)
    array([7, 2, 1], dtype=uint8)
    """
    content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    zeros, kind, dimensions = struct.unpack_from(">HBB", content)
    if zeros or kind != 8:
        raise ValueError(f"it begins with {content[:4].hex()}, not with 000008..")
    shape = struct.unpack_from(f">{dimensions}I", content, 4)
    return np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def mnist(path: Path | None) -> tuple[Samples, Samples]:
    """Return MNIST's training and test images (60,000 + 10,000, 28 x 28 pixels, 10 classes).

    Parameters
    ----------
    path : Path or None
        Directory of the four files ``{train,t10k}-{images-idx3,labels-idx1}-ubyte``, with or without ``.gz``, as in
        torchvision's ``MNIST/raw``. None: download from OpenML with scikit-learn, which stores a copy in its data home
        (requires internet access the first time).

    Raises
    ------
    DataNotFoundError
        If a file is missing, or OpenML cannot be reached.
    ConfigurationError
        If a file is damaged.
    """
    return _from_openml() if path is None else _from_idx(path)


def on_clients(
    images: tuple[Samples, Samples],
    num_clients: int = 100,
    alpha: float | None = None,
    *,
    num_examples: int | None = None,
    seed: int = 0,
) -> PartitionedImages:
    """Return training images split over clients, with the test images.

    Parameters
    ----------
    images : tuple of Samples
        Training and test images: of :func:`mnist` or :func:`cifar10`.
    num_clients : int, default 100
        Number of clients.
    alpha : float or None, default None
        Concentration of :func:`flwr_fco.datasets.dirichlet_partition`; None for an even random split.
    num_examples : int, optional
        Train on a random subset of this size, drawn from the seed (the first paper uses a tenth of its data).
    seed : int, default 0
        Seed of the subset and the split.

    Raises
    ------
    ConfigurationError
        If the images cannot be split this way.

    Examples
    --------
    >>> data = on_clients(mnist(Path("data/mnist")), 200, 0.3, num_examples=6000)  # doctest: +SKIP
    >>> data.num_clients, data.train.features.shape  # doctest: +SKIP
    (200, (6000, 784))
    """
    train, test = images
    if num_examples is not None:
        if not 1 <= num_examples <= train.targets.size:
            raise ConfigurationError(f"num_examples={num_examples}; expected 1 .. {train.targets.size}")
        # In the original order.
        rows = np.sort(stream(seed, _SUBSET).choice(train.targets.size, num_examples, replace=False))
        train = Samples(train.features[rows], train.targets[rows])
    rng = stream(seed, _SPLIT)
    if alpha is None:
        parts = iid_partition(train.targets.size, num_clients, rng)
    else:
        parts = dirichlet_partition(train.targets, num_clients, alpha, rng, 10)
    return PartitionedImages(train, test, tuple(parts), 10)


def _scaled(samples: Samples) -> Samples:
    return Samples(samples.features.astype(np.float32) / np.float32(255.0), samples.targets)


def _from_openml() -> tuple[Samples, Samples]:
    """Return MNIST's training and test parts from OpenML, stacked in the original order."""
    from sklearn.datasets import fetch_openml

    try:
        images, labels = fetch_openml("mnist_784", version=1, return_X_y=True, as_frame=False, parser="pandas")
    except OSError as error:
        raise DataNotFoundError(
            f"MNIST could not be fetched from OpenML: {error}. Give the directory of its four IDX files instead"
        ) from error
    rows = Samples(np.asarray(images, dtype=np.uint8), np.asarray(labels).astype(np.int64))
    cut = 6 * len(labels) // 7
    return Samples(rows.features[:cut], rows.targets[:cut]), Samples(rows.features[cut:], rows.targets[cut:])


def _from_idx(directory: Path) -> tuple[Samples, Samples]:
    parts = []
    with _reading(directory, "the directory of MNIST's four IDX files, as torchvision keeps them in MNIST/raw"):
        for part in ("train", "t10k"):
            names = (f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte")
            plain = [directory / name for name in names]
            images, labels = (read_idx(file if file.is_file() else file.with_name(f"{file.name}.gz")) for file in plain)
            parts.append(Samples(images.reshape(len(labels), -1), labels.astype(np.int64)))
    return parts[0], parts[1]


def cifar10(path: Path) -> tuple[Samples, Samples]:
    """Return CIFAR-10's training and test images (50,000 + 10,000, 32 x 32 pixels, 3 channels, 10 classes).

    Each image is a row of 3,072 numbers: the pixels row by row, each with its red, green and blue values.

    Parameters
    ----------
    path : Path
        Directory of the binary version, ``data_batch_1.bin`` .. ``data_batch_5.bin`` and ``test_batch.bin``, or an
        ``.npz`` file with the uint8 arrays ``train_images`` and ``test_images`` of shape (n, 32, 32, 3),
        ``train_labels`` and ``test_labels``. The ``.npz`` file may contain only some of the images.

    Raises
    ------
    DataNotFoundError
        If a file is missing.
    ConfigurationError
        If a file is damaged.
    """
    parts = {}
    with _reading(path, "the directory of CIFAR-10's binary version, or an .npz file with its arrays"):
        if path.suffix == ".npz":
            with np.load(path) as archive:
                parts = {part: (archive[f"{part}_images"], archive[f"{part}_labels"]) for part in ("train", "test")}
        else:
            batches = {"train": [f"data_batch_{number}.bin" for number in range(1, 6)], "test": ["test_batch.bin"]}
            for part, names in batches.items():
                # A label, then the red, green and blue planes.
                raw = np.concatenate([np.fromfile(path / name, dtype=np.uint8) for name in names]).reshape(-1, 3073)
                parts[part] = raw[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), raw[:, 0]
        train, test = (
            Samples(np.ascontiguousarray(images).reshape(len(labels), 3072), labels.astype(np.int64))
            for images, labels in parts.values()
        )
    return train, test

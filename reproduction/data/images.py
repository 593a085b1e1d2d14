"""Images of handwriting and of objects, from their own files or from Flower Datasets: MNIST, FEMNIST, CIFAR-10."""

from __future__ import annotations

import gzip
import itertools
import struct
import zlib
from dataclasses import dataclass
from importlib.util import find_spec
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flwr_fco.datasets import PartitionedClassification, Samples, dirichlet_partition, iid_partition
from flwr_fco.errors import ConfigurationError, NotInstalledError
from reproduction.data import DataNotFoundError
from reproduction.data.samples import stream, together

_PARTS = {"train": "train", "test": "t10k"}
#: Image size of MNIST and FEMNIST.
_PIXELS = 28 * 28
#: Spawn keys of one seed; the split over clients uses the first, as in all data sets.
_SPLIT, _SUBSET = 0, 1


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


def read_idx(path: str | PathLike[str]) -> NDArray[np.uint8]:
    """Return the array of an IDX file of bytes, compressed or not.

    Parameters
    ----------
    path : path-like
        A file such as ``train-images-idx3-ubyte.gz``.

    Returns
    -------
    ndarray of uint8
        The array, with the shape in the file's header.

    Raises
    ------
    DataNotFoundError
        If the file does not exist.
    ConfigurationError
        If it is not an IDX file of unsigned bytes, or is truncated.

    Examples
    --------
    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp(), "tiny-idx1-ubyte")
    >>> _ = file.write_bytes(struct.pack(">HBBI3B", 0, 8, 1, 3, 7, 2, 1))
    >>> read_idx(file)
    array([7, 2, 1], dtype=uint8)
    """
    file = Path(path)
    if not file.is_file():
        raise DataNotFoundError(
            f"{file} does not exist; expected an IDX file, such as MNIST's train-images-idx3-ubyte.gz"
        )
    try:
        content = file.read_bytes()
        content = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigurationError(f"{file} is damaged: {error}. Fetch it again.") from error
    if len(content) < 4 or content[:3] != b"\x00\x00\x08":
        raise ConfigurationError(
            f"{file} begins with {content[:4].hex()}; expected 000008..: an IDX file of unsigned bytes. Fetch it again."
        )
    dimensions = content[3]
    shape = struct.unpack_from(f">{dimensions}I", content, 4) if len(content) >= 4 + 4 * dimensions else ()
    body = np.frombuffer(content, dtype=np.uint8, offset=min(len(content), 4 + 4 * dimensions))
    if len(shape) != dimensions or body.size != int(np.prod(shape, dtype=np.int64)):
        raise ConfigurationError(
            f"{file} has {body.size} bytes of data, its header says {shape}; the file is cut short. Fetch it again."
        )
    return body.reshape(shape)


def mnist(
    path: str | PathLike[str] | None,
    num_clients: int = 100,
    alpha: float | None = 0.3,
    *,
    num_examples: int | None = None,
    seed: int = 0,
    min_size: int = 10,
) -> PartitionedImages:
    """Return MNIST (60,000 + 10,000 images, 28 x 28 pixels, 10 classes), split over clients.

    Parameters
    ----------
    path : path-like or None
        Directory of the four files ``{train,t10k}-{images-idx3,labels-idx1}-ubyte``, with or without ``.gz``, as in
        torchvision's ``MNIST/raw``. None: download from OpenML with scikit-learn, which stores a copy in its data home
        (requires internet access the first time).
    num_clients : int, default 100
        Number of clients.
    alpha : float or None, default 0.3
        Concentration of :func:`flwr_fco.datasets.dirichlet_partition`; None for an even random split.
    num_examples : int, optional
        Train on a random subset of this size, drawn from the seed (the first paper uses a tenth of its data).
    seed : int, default 0
        Seed of the subset and the split.
    min_size : int, default 10
        Minimum number of images per client.

    Raises
    ------
    DataNotFoundError
        If a file is missing, or OpenML cannot be reached.
    ConfigurationError
        If a file is damaged or the images cannot be split this way.

    Examples
    --------
    >>> data = mnist("data/mnist", num_clients=200, num_examples=6000)  # doctest: +SKIP
    >>> data.num_clients, data.train.features.shape  # doctest: +SKIP
    (200, (6000, 784))
    """
    train, test = _from_openml() if path is None else (_read_part(Path(path), part) for part in ("train", "test"))
    return _split(train, test, num_clients, alpha, num_examples, seed, min_size)


def _split(
    train: Samples, test: Samples, num_clients: int, alpha: float | None, size: int | None, seed: int, least: int
) -> PartitionedImages:
    """Return a random subset of the training images on clients: a Dirichlet split, or an even one if alpha is None."""
    if size is not None:
        if not 1 <= size <= train.targets.size:
            raise ConfigurationError(f"num_examples={size}; expected 1 .. {train.targets.size}")
        # In the original order.
        rows = np.sort(stream(seed, _SUBSET).choice(train.targets.size, size, replace=False))
        train = Samples(train.features[rows], train.targets[rows])
    rng = stream(seed, _SPLIT)
    if alpha is None:
        parts = iid_partition(train.targets.size, num_clients, rng)
    else:
        parts = dirichlet_partition(train.targets, num_clients, alpha, rng, least)
    return PartitionedImages(train, test, tuple(parts), 10)


def femnist(
    num_clients: int = 100, *, num_classes: int = 10, test_fraction: float = 0.1, seed: int = 0
) -> PartitionedImages:
    """Return Federated EMNIST with one writer per client, from Flower Datasets (requires internet access).

    Parameters
    ----------
    num_clients : int, default 100
        Number of writers, drawn at random from the seed.
    num_classes : {10, 62}, default 10
        10 for digits only, 62 for digits and upper- and lower-case letters.
    test_fraction : float, default 0.1
        Share of these writers' images in the test part.
    seed : int, default 0
        Seed of the problem.

    Returns
    -------
    PartitionedImages
        Ink is 255 on a background of 0, as in MNIST.

    Raises
    ------
    NotInstalledError
        If ``flwr-datasets`` is not installed.
    DataNotFoundError
        If the Hugging Face hub cannot be reached.
    ConfigurationError
        If the data set has fewer than `num_clients` writers, its images do not have 28 x 28 pixels, or `num_classes` is
        neither 10 nor 62.

    Examples
    --------
    >>> data = femnist(num_clients=100)  # doctest: +SKIP
    """
    try:
        from flwr_datasets import FederatedDataset as HubDataset
        from flwr_datasets.partitioner import NaturalIdPartitioner
    except ImportError as error:
        raise NotInstalledError("FEMNIST needs Flower Datasets: pip install 'flwr-datasets[vision]'") from error
    if num_classes not in (10, 62):
        raise ConfigurationError(f"num_classes={num_classes!r}; expected 10 (digits) or 62 (the alphabet too)")
    if not 0.0 < test_fraction < 1.0:
        raise ConfigurationError(f"test_fraction={test_fraction!r}; expected a number between 0 and 1")
    writers = NaturalIdPartitioner(partition_by="writer_id")
    hub = HubDataset(dataset="flwrlabs/femnist", partitioners={"train": writers}, seed=seed)
    try:
        hub.load_partition(0)
    except OSError as error:
        raise DataNotFoundError(
            f"FEMNIST could not be fetched from the Hugging Face hub: {error}. Try again where there is internet"
        ) from error
    if not 1 <= num_clients <= writers.num_partitions:
        raise ConfigurationError(f"num_clients={num_clients}; expected 1 .. {writers.num_partitions}, one a writer")
    rng = stream(seed, _SPLIT)
    kept: list[Samples] = []
    held_out: list[Samples] = []
    for writer in rng.permutation(writers.num_partitions):
        part = hub.load_partition(int(writer)).with_format("numpy")
        labels = np.asarray(part["character"], dtype=np.int64)
        rows = np.flatnonzero(labels < num_classes)
        # At least two images: one for training and one for the test part.
        if rows.size < 2:
            continue
        pixels = np.stack([np.asarray(part[int(row)]["image"], dtype=np.uint8).reshape(-1) for row in rows])
        if pixels.shape[1] != _PIXELS:
            raise ConfigurationError(
                f"flwrlabs/femnist has images of {pixels.shape[1]} numbers; expected {_PIXELS}, one a pixel of 28 x "
                "28. The data set on the hub has changed; report it to flwr-fco"
            )
        order = rng.permutation(rows.size)
        cut = max(1, round(test_fraction * rows.size))
        # FEMNIST is black on white.
        images = 255 - pixels
        held_out.append(Samples(images[order[:cut]], labels[rows][order[:cut]]))
        kept.append(Samples(images[order[cut:]], labels[rows][order[cut:]]))
        if len(kept) == num_clients:
            break
    if len(kept) < num_clients:
        raise ConfigurationError(f"num_clients={num_clients}, but only {len(kept)} writers wrote digits; ask for fewer")
    bounds = np.cumsum([0, *(part.targets.size for part in kept)])
    partition = tuple(np.arange(a, b, dtype=np.int64) for a, b in itertools.pairwise(bounds))
    return PartitionedImages(together(kept), together(held_out), partition, num_classes)


def _scaled(samples: Samples) -> Samples:
    return Samples(samples.features.astype(np.float32) / np.float32(255.0), samples.targets)


def _from_openml() -> tuple[Samples, Samples]:
    """Return MNIST's training and test parts from OpenML, stacked in the original order."""
    from sklearn.datasets import fetch_openml

    # pandas would read the file several times faster, but is not needed elsewhere.
    parser = "pandas" if find_spec("pandas") else "liac-arff"
    try:
        images, labels = fetch_openml("mnist_784", version=1, return_X_y=True, as_frame=False, parser=parser)
    except OSError as error:
        raise DataNotFoundError(
            f"MNIST could not be fetched from OpenML: {error}. Give the directory of its four IDX files instead"
        ) from error
    rows, cut = Samples(np.asarray(images, dtype=np.uint8), np.asarray(labels).astype(np.int64)), 6 * len(labels) // 7
    return Samples(rows.features[:cut], rows.targets[:cut]), Samples(rows.features[cut:], rows.targets[cut:])


def _read_part(directory: Path, part: str) -> Samples:
    arrays = []
    for kind in ("images-idx3", "labels-idx1"):
        name = f"{_PARTS[part]}-{kind}-ubyte"
        paths = [directory / f"{name}{ending}" for ending in ("", ".gz") if (directory / f"{name}{ending}").is_file()]
        if not paths:
            raise DataNotFoundError(
                f"{directory} has no {name}.gz; expected the directory of MNIST's four IDX files. Download them from "
                "any mirror (torchvision keeps them in MNIST/raw) and give their directory."
            )
        arrays.append(read_idx(paths[0]))
    images, labels = arrays
    if images.ndim != 3 or labels.shape != images.shape[:1]:
        raise ConfigurationError(
            f"{directory}: {part} images have shape {images.shape}, labels {labels.shape}; "
            "expected (n, 28, 28) and (n,)"
        )
    return Samples(images.reshape(len(images), -1), labels.astype(np.int64))


#: Record layout: a label, then the red, green and blue planes of 32 x 32 pixels.
_RECORD = 1 + 3 * 1024
_KEYS = ("train_images", "train_labels", "test_images", "test_labels")


def cifar10(
    path: str | PathLike[str],
    num_clients: int = 100,
    alpha: float | None = None,
    *,
    num_examples: int | None = None,
    seed: int = 0,
    min_size: int = 10,
) -> PartitionedImages:
    """Return CIFAR-10 (50,000 + 10,000 images, 32 x 32 pixels, 3 channels, 10 classes), split over clients.

    Parameters
    ----------
    path : path-like
        Directory of the binary version, ``data_batch_1.bin`` .. ``data_batch_5.bin`` and ``test_batch.bin``, or an
        ``.npz`` file with the uint8 arrays ``train_images`` and ``test_images`` of shape (n, 32, 32, 3),
        ``train_labels`` and ``test_labels``. The ``.npz`` file may contain only some of the images.
    num_clients : int, default 100
        Number of clients.
    alpha : float or None, default None
        Concentration of :func:`flwr_fco.datasets.dirichlet_partition`; None for an even random split.
    num_examples : int, optional
        Train on a random subset of this size, drawn from the seed.
    seed : int, default 0
        Seed of the subset and the split.
    min_size : int, default 10
        Minimum number of images per client.

    Returns
    -------
    PartitionedImages
        Each image is a row of 3,072 numbers: the pixels row by row, each with its red, green and blue values.

    Raises
    ------
    DataNotFoundError
        If a file is missing.
    ConfigurationError
        If a file is damaged or the images cannot be split this way.

    Examples
    --------
    >>> data = cifar10("data/cifar-10-batches-bin", num_clients=100)  # doctest: +SKIP
    >>> data.client(0).features.shape  # doctest: +SKIP
    (500, 3072)
    """
    train, test = _from_npz(Path(path)) if Path(path).suffix == ".npz" else _from_batches(Path(path))
    return _split(train, test, num_clients, alpha, num_examples, seed, min_size)


def _from_npz(file: Path) -> tuple[Samples, Samples]:
    if not file.is_file():
        raise DataNotFoundError(f"{file} does not exist; expected an .npz file with the arrays {', '.join(_KEYS)}")
    try:
        with np.load(file) as archive:
            arrays = {key: archive[key] for key in _KEYS if key in archive}
    except Exception as error:  # zipfile, zlib and NumPy have no error in common for bytes that are none of theirs
        raise ConfigurationError(f"{file} is damaged: {error}. Fetch it again.") from error
    missing = [key for key in _KEYS if key not in arrays]
    if missing:
        raise ConfigurationError(f"{file} lacks {missing}; expected the arrays {', '.join(_KEYS)}")
    return tuple(  # type: ignore[return-value]
        _checked(file, arrays[f"{part}_images"], arrays[f"{part}_labels"]) for part in ("train", "test")
    )


def _from_batches(directory: Path) -> tuple[Samples, Samples]:
    train = [_read_batch(directory / f"data_batch_{number}.bin") for number in range(1, 6)]
    images, labels = (np.concatenate(part) for part in zip(*train, strict=True))
    return _checked(directory, images, labels), _checked(directory, *_read_batch(directory / "test_batch.bin"))


def _read_batch(file: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    if not file.is_file():
        raise DataNotFoundError(
            f"{file} does not exist; expected CIFAR-10's binary version, data_batch_1.bin .. data_batch_5.bin and "
            "test_batch.bin, or an .npz file. Unpack cifar-10-binary.tar.gz and give its directory."
        )
    raw = np.fromfile(file, dtype=np.uint8)
    if raw.size == 0 or raw.size % _RECORD:
        raise ConfigurationError(
            f"{file} has {raw.size} bytes, not a multiple of {_RECORD}: it is cut short or no binary CIFAR-10 batch. "
            "Fetch it again."
        )
    records = raw.reshape(-1, _RECORD)
    return records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), records[:, 0]


def _checked(file: Path, images: NDArray[np.uint8], labels: NDArray[np.uint8]) -> Samples:
    if images.shape[1:] != (32, 32, 3) or images.dtype != np.uint8 or labels.shape != images.shape[:1]:
        raise ConfigurationError(
            f"{file}: images have shape {images.shape} and dtype {images.dtype}, labels {labels.shape}; expected "
            "(n, 32, 32, 3) of uint8 and (n,)"
        )
    return Samples(np.ascontiguousarray(images).reshape(len(images), -1), labels.astype(np.int64))

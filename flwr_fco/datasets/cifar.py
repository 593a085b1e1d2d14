"""CIFAR-10 from its binary batches or from one .npz file, split over clients."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flwr_fco.core.files import read_npz
from flwr_fco.datasets.base import Samples, random_partition, stream
from flwr_fco.datasets.mnist import SPLIT, PartitionedImages, random_subset
from flwr_fco.errors import ConfigurationError, DataNotFoundError

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
        Concentration of :func:`dirichlet_partition`; None for an even random split.
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
    train = random_subset(train, num_examples, seed)
    partition = random_partition(train.targets, num_clients, alpha, stream(seed, SPLIT), min_size)
    return PartitionedImages(train, test, partition, 10)


def _from_npz(file: Path) -> tuple[Samples, Samples]:
    if not file.is_file():
        raise DataNotFoundError(f"{file} does not exist; expected an .npz file with the arrays {', '.join(_KEYS)}")
    arrays = read_npz(file, _KEYS, compressed=True)
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

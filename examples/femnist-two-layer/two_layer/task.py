"""The network, its loss, and each node's images."""

import gzip
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from flwr_fco.datasets import PartitionedClassification, Samples, dirichlet_partition
from flwr_fco.torch import TorchObjective


class Net(nn.Sequential):
    """Two hidden layers, fully connected."""

    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__(
            nn.Linear(28 * 28, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, num_classes)
        )


def loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    """Return the cross entropy."""
    return functional.cross_entropy(model(batch[0]), batch[1])


def scores(model: nn.Module, batch: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return what is reported besides the loss."""
    return {"accuracy": (model(batch[0]).argmax(1) == batch[1]).float().mean()}


@cache
def load_images(data: str, num_nodes: int, num_images: int) -> PartitionedClassification:
    """Return FEMNIST with a writer on each node, or images of MNIST, labels unequal from node to node."""
    if data == "femnist":
        return load_femnist(num_nodes)
    (images, labels), test = (read_mnist(Path(data), part) for part in ("train", "t10k"))
    of_split, of_images = (np.random.default_rng(np.random.SeedSequence(0, spawn_key=(key,))) for key in (0, 1))
    rows = np.sort(of_images.choice(len(labels), num_images, replace=False))
    parts = dirichlet_partition(labels[rows], num_nodes, 0.3, of_split)
    return PartitionedClassification(scaled(images[rows], labels[rows]), scaled(*test), tuple(parts), 10)


def read_mnist(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Return images and labels of two of MNIST's files, packed or not."""
    contents = []
    for kind in ("images-idx3", "labels-idx1"):
        file = folder / f"{part}-{kind}-ubyte"
        packed = file.with_name(f"{file.name}.gz")
        contents.append(file.read_bytes() if file.is_file() else gzip.decompress(packed.read_bytes()))
    # A file begins with its kind and its sizes, of four bytes each.
    images, labels = (np.frombuffer(c, np.uint8, offset=at) for c, at in zip(contents, (16, 8), strict=True))
    return images.reshape(len(labels), 28 * 28), labels


def load_femnist(num_nodes: int) -> PartitionedClassification:
    """Return FEMNIST from Flower Datasets: the images of a writer on each node, a tenth of them for the test."""
    from flwr_datasets import FederatedDataset
    from flwr_datasets.partitioner import NaturalIdPartitioner

    hub = FederatedDataset(
        dataset="flwrlabs/femnist", partitioners={"train": NaturalIdPartitioner(partition_by="writer_id")}
    )
    train, test = [], []
    for node in range(num_nodes):
        part = hub.load_partition(node).with_format("numpy")
        labels = np.asarray(part["character"])
        images = np.stack([np.asarray(part[row]["image"]) for row in range(len(labels))])
        order = np.random.default_rng(node).permutation(len(labels))
        for rows, kept in zip(np.split(order, [max(1, len(labels) // 10)]), (test, train), strict=True):
            # FEMNIST is black on white.
            kept.append((255 - images[rows].reshape(-1, 28 * 28), labels[rows]))
    ends = np.cumsum([len(labels) for _, labels in train])
    parts = np.split(np.arange(ends[-1]), ends[:-1])
    both = (scaled(*map(np.concatenate, zip(*kept, strict=True))) for kept in (train, test))
    return PartitionedClassification(*both, tuple(parts), 62)


def scaled(images: np.ndarray, labels: np.ndarray) -> Samples:
    """Return pixels in [0, 1]."""
    return Samples(images.astype(np.float32) / np.float32(255.0), labels.astype(np.int64))


def load_file(path: str) -> Samples:
    """Return the images of an ``.npz``: ``images`` (28 x 28 pixels from 0 to 255 each) and ``labels``."""
    with np.load(path) as file:
        return scaled(file["images"].reshape(len(file["labels"]), 28 * 28), file["labels"])


def num_classes(data: str) -> int:
    """Return how many kinds of characters there are."""
    return 62 if data == "femnist" else 10


def objective_on(images: np.ndarray, labels: np.ndarray, width: int, classes: int) -> TorchObjective:
    """Return the loss on some images, as a function of the network's parameters."""
    tensors = torch.from_numpy(images), torch.from_numpy(labels)
    return TorchObjective(Net(width, classes), loss, tensors, scores=scores)

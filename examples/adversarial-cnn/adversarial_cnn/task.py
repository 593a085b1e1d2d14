"""The network with its opponent, the loss that they play for, and each node's images."""

from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from flwr_fco.datasets import PartitionedClassification, Samples, iid_partition
from flwr_fco.torch import TorchObjective


class Attacked(nn.Module):
    """Three convolutions, and a perturbation that is added to all images."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * 4 * 4, 10),
        )
        self.perturbation = nn.Parameter(torch.zeros(3, 32, 32))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the scores of perturbed images."""
        return self.classifier(images + self.perturbation)


def loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    """Return the cross entropy: the network descends it, the perturbation ascends it."""
    return functional.cross_entropy(model(batch[0]), batch[1])


def scores(model: Attacked, batch: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return what is reported besides the loss: the accuracy with and without the perturbation."""
    images, labels = batch
    attacked = model(images).argmax(1)
    clean = model.classifier(images).argmax(1)
    return {"attacked": (attacked == labels).float().mean(), "clean": (clean == labels).float().mean()}


@cache
def load_images(data: str, num_nodes: int, num_images: int) -> PartitionedClassification:
    """Return some images of CIFAR-10, evenly and at random on the nodes, and its test images."""
    (images, labels), test = (read_cifar(Path(data), part) for part in ("train", "test"))
    of_split, of_images = (np.random.default_rng(np.random.SeedSequence(0, spawn_key=(key,))) for key in (0, 1))
    rows = np.sort(of_images.choice(len(labels), num_images, replace=False))
    parts = iid_partition(num_images, num_nodes, of_split)
    return PartitionedClassification(scaled(images[rows], labels[rows]), scaled(*test), tuple(parts), 10)


def read_cifar(place: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Return images (rows of pixels, each red, green and blue) and labels, of the binary batches or of an ``.npz``."""
    if place.suffix == ".npz":
        with np.load(place) as file:
            images, labels = file[f"{part}_images"], file[f"{part}_labels"]
    else:
        names = ["test_batch.bin"] if part == "test" else [f"data_batch_{number}.bin" for number in range(1, 6)]
        # A record is a label, then the red, green and blue planes.
        records = np.concatenate([np.fromfile(place / name, np.uint8) for name in names]).reshape(-1, 1 + 3 * 32 * 32)
        images = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        labels = records[:, 0]
    return rows_of(images), labels


def rows_of(images: np.ndarray) -> np.ndarray:
    """Return the images as rows; those with three planes of colour, or grey ones, are refused, not read as others."""
    if images.shape[1:] not in ((32, 32, 3), (32 * 32 * 3,)):
        raise ValueError(f"images of shape {images.shape}; expected (count, 32, 32, 3): red, green and blue of a pixel")
    return images.reshape(len(images), 32 * 32 * 3)


def scaled(images: np.ndarray, labels: np.ndarray) -> Samples:
    """Return pixels in [0, 1]."""
    return Samples(images.astype(np.float32) / np.float32(255.0), labels.astype(np.int64))


def load_file(path: str) -> Samples:
    """Return the images of an ``.npz``: ``images`` (32 x 32 pixels of 3 numbers from 0 to 255 each) and ``labels``."""
    with np.load(path) as file:
        return scaled(rows_of(file["images"]), file["labels"])


def objective_on(pixels: np.ndarray, labels: np.ndarray) -> TorchObjective:
    """Return the saddle function on some images: rows of pixels, red, green and blue of a pixel side by side."""
    images = np.ascontiguousarray(pixels.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2))
    tensors = torch.from_numpy(images), torch.from_numpy(labels)
    return TorchObjective(Attacked(), loss, tensors, scores=scores, maximize="perturbation", chunk_size=500)

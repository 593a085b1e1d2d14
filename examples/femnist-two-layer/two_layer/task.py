"""The network, its loss, and each node's images."""

from functools import cache

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from flwr_fco.datasets import PartitionedImages, Samples, femnist, mnist
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
def load_images(data: str, num_nodes: int, num_images: int) -> PartitionedImages:
    """Return FEMNIST with a writer on each node, or images of MNIST, labels unequal from node to node."""
    if data == "femnist":
        return femnist(num_nodes, num_classes=num_classes(data))
    return mnist(data, num_nodes, alpha=0.3, num_examples=num_images)


def load_file(path: str) -> Samples:
    """Return the images of an ``.npz``: ``images`` (28 x 28 pixels from 0 to 255 each) and ``labels``."""
    with np.load(path) as file:
        labels = file["labels"].astype(np.int64)
        return Samples(file["images"].reshape(len(labels), 28 * 28).astype(np.float32) / 255.0, labels)


def num_classes(data: str) -> int:
    """Return how many kinds of characters there are."""
    return 62 if data == "femnist" else 10


def objective_on(images: np.ndarray, labels: np.ndarray, width: int, classes: int) -> TorchObjective:
    """Return the loss on some images, as a function of the network's parameters."""
    tensors = torch.from_numpy(images), torch.from_numpy(labels)
    return TorchObjective(Net(width, classes), loss, tensors, scores=scores)

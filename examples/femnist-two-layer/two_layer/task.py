"""The network, its loss, and each node's images."""

from functools import cache

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from flwr_fco.datasets import PartitionedImages, femnist, mnist
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
        return femnist(num_nodes, num_classes=62)
    return mnist(data, num_nodes, alpha=0.3, num_examples=num_images)


def objective_on(images: np.ndarray, labels: np.ndarray, width: int, num_classes: int) -> TorchObjective:
    """Return the loss on some images, as a function of the network's parameters."""
    tensors = torch.from_numpy(images), torch.from_numpy(labels)
    return TorchObjective(Net(width, num_classes), loss, tensors, scores=scores)

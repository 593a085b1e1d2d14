"""The data on each node and the model."""

from functools import cache

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from flwr_fco.objectives import UniversalAdversarialLogistic


@cache
def load_images() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return training images, test images, training labels, test labels: 1,797 digits of 8 x 8 pixels in [0, 1]."""
    images, labels = load_digits(return_X_y=True)
    return tuple(train_test_split(images / 16.0, labels, random_state=0, stratify=labels))


def load_client(partition_id: int, num_partitions: int) -> UniversalAdversarialLogistic:
    """Return the loss on a node's share of the digits."""
    images, _, labels, _ = load_images()
    own = slice(partition_id, None, num_partitions)
    return UniversalAdversarialLogistic(images[own], labels[own], num_classes=10)


def load_file(path: str) -> UniversalAdversarialLogistic:
    """Return the loss on an ``.npz`` with ``images`` (64 pixels from 0 to 16 each) and ``labels`` (0 to 9)."""
    with np.load(path) as file:
        return UniversalAdversarialLogistic(file["images"].reshape(-1, 64) / 16.0, file["labels"], num_classes=10)


def load_server() -> tuple[UniversalAdversarialLogistic, UniversalAdversarialLogistic]:
    """Return the losses on all training and all test digits, to attack and to score models on the server."""
    train, test, train_labels, test_labels = load_images()
    return UniversalAdversarialLogistic(train, train_labels), UniversalAdversarialLogistic(test, test_labels)


def initial_model(bound: float = 0.0) -> dict[str, np.ndarray]:
    """Return the start point, the perturbation at random in its box: from 0 it could not leave 0."""
    perturbation = np.random.default_rng(0).uniform(-bound, bound, 64)
    return {"coefficients": np.zeros((64, 10)), "intercept": np.zeros(10), "perturbation": perturbation}

"""Model and data, in the shape of Flower's scikit-learn quickstart; nothing here knows of flwr_fco."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

NUM_CLASSES = 10
NUM_PIXELS = 64


def get_model(local_epochs: int) -> LogisticRegression:
    """Return an untrained model that will go on from the parameters it is given."""
    model = LogisticRegression(max_iter=local_epochs, warm_start=True)
    set_initial_params(model)
    return model


def get_model_params(model: LogisticRegression) -> list[np.ndarray]:
    """Return the parameters as a list of arrays."""
    return [model.coef_, model.intercept_]


def set_model_params(model: LogisticRegression, params: list[np.ndarray]) -> LogisticRegression:
    """Set the parameters from a list of arrays."""
    model.coef_, model.intercept_ = params
    return model


def set_initial_params(model: LogisticRegression) -> None:
    """Set the parameters to zeros: scikit-learn has none before the first fit, the server asks for them."""
    model.classes_ = np.arange(NUM_CLASSES)
    model.coef_ = np.zeros((NUM_CLASSES, NUM_PIXELS))
    model.intercept_ = np.zeros(NUM_CLASSES)


def load_images() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return training images, test images, training labels, test labels: 1,797 digits of 8 x 8 pixels."""
    images, labels = load_digits(return_X_y=True)
    return train_test_split(images / 16.0, labels, train_size=0.8, random_state=42, stratify=labels)


def load_data(node_config: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the node's own file, if it has a ``data-path``, else its share, split at random (IID): in the same order.

    The file is an ``.npz`` with ``images`` (one row of 64 pixels from 0 to 16 each) and ``labels`` (0 to 9).
    """
    if "data-path" in node_config:
        with np.load(str(node_config["data-path"])) as file:
            labels = file["labels"]
            images = file["images"].reshape(len(labels), NUM_PIXELS) / 16.0
        rows = np.random.default_rng(42).permutation(len(labels))
    else:
        images, _, labels, _ = load_images()
        parts = np.array_split(np.random.default_rng(42).permutation(len(labels)), int(node_config["num-partitions"]))
        rows = parts[int(node_config["partition-id"])]
    cut = int(0.8 * len(rows))
    return images[rows[:cut]], images[rows[cut:]], labels[rows[:cut]], labels[rows[cut:]]

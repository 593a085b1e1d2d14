"""The data on each node and the model."""

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from flwr_fco.objectives import Logistic


def load_patients() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return training measurements, test measurements, training labels, test labels of 569 patients."""
    features, labels = load_breast_cancer(return_X_y=True)
    train, test, train_labels, test_labels = train_test_split(features, labels, random_state=0, stratify=labels)
    scaler = StandardScaler().fit(train)
    return scaler.transform(train), scaler.transform(test), train_labels, test_labels


def load_client(partition_id: int, num_partitions: int) -> Logistic:
    """Return the loss on a node's share of the patients. In your project: read the node's own data here."""
    features, _, labels, _ = load_patients()
    return Logistic(features[partition_id::num_partitions], labels[partition_id::num_partitions])


def load_test() -> Logistic:
    """Return the loss on the test patients, for evaluation on the server."""
    _, features, _, labels = load_patients()
    return Logistic(features, labels)


def initial_model() -> dict[str, np.ndarray]:
    """Return the start point; the names and shapes are those of `Logistic`."""
    return {"coefficients": np.zeros(30), "intercept": np.zeros(1)}

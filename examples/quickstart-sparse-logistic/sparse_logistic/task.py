"""The model that both sides share, and the patients of each node."""

from typing import Any

import numpy as np
from flwr.app import Context
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

from flwr_fco.sklearn import FederatedLogisticRegression


def new_model(**options: Any) -> FederatedLogisticRegression:
    """Return the model: a lasso, in which each measurement counts per standard deviation over all nodes."""
    return FederatedLogisticRegression(l1_ratio=1.0, standardize=True, **options)


def load_patients() -> tuple[list[str], np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return names, training and test measurements, training and test labels (1: benign) of 569 patients."""
    data = load_breast_cancer()
    train, test, labels, test_labels = train_test_split(data.data, data.target, random_state=0, stratify=data.target)
    return data.feature_names.tolist(), train, test, labels, test_labels


def load_client(context: Context) -> tuple[np.ndarray, np.ndarray]:
    """Return a node's patients: those of its file, if it has a ``data-path``; else its share of the bundled ones.

    The file is a CSV with a line of names, the measurements in the order of scikit-learn's, and 1 (benign) or 0 last.
    """
    path = context.node_config.get("data-path")
    if path is not None:
        table = np.loadtxt(str(path), delimiter=",", skiprows=1, ndmin=2)
        return table[:, :-1], table[:, -1]
    _, features, _, labels, _ = load_patients()
    own = slice(int(context.node_config["partition-id"]), None, int(context.node_config["num-partitions"]))
    return features[own], labels[own]

"""The model that both sides share, and the patients of each node."""

import csv
from typing import Any

import numpy as np
from flwr.app import Context
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

from flwr_fco.tables import FederatedLogisticRegression


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

    The file is a CSV whose first line names its columns: scikit-learn's measurements and ``benign``, which is 1 or 0.
    """
    names, features, _, labels, _ = load_patients()
    path = context.node_config.get("data-path")
    if path is not None:
        # Excel begins a file with a byte order mark.
        with open(str(path), encoding="utf-8-sig", newline="") as file:
            table = csv.DictReader(file)
            lacks = [name for name in (*names, "benign") if name not in (table.fieldnames or ())]
            if lacks:
                raise ValueError(f"the file lacks the columns {lacks[:5]}; expected a line of names, with commas")
            rows = list(table)
        # By name: the columns of a file may come in any order. An empty cell is an error that says in which.
        numbers = [float(row[name] or "nan") for row in rows for name in (*names, "benign")]
        patients = np.reshape(numbers, (-1, len(names) + 1))
        return patients[:, :-1], patients[:, -1]
    own = slice(int(context.node_config["partition-id"]), None, int(context.node_config["num-partitions"]))
    return features[own], labels[own]

"""Ten hospitals' patients, of unequal number, and the pooled problem that none of them can see."""

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler

from flwr_fco.objectives import Logistic

#: Patients of each hospital; 569 together.
PATIENTS = (130, 95, 80, 70, 55, 45, 35, 28, 20, 11)
#: Weight of l2/2 ||w||^2 in every hospital's loss; it is also the modulus of strong convexity that DualFL asks for.
L2 = 0.1


def load_patients() -> tuple[np.ndarray, np.ndarray]:
    """Return 30 standardised measurements and a column of ones of 569 patients, and their labels."""
    features, labels = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    features = StandardScaler().fit_transform(features[order])
    # The intercept is a coefficient like the others, so that the l2 term makes the loss strongly convex in it too.
    return np.column_stack([features, np.ones(len(features))]), labels[order]


def load_client(partition_id: int, l2: float = L2) -> Logistic:
    """Return a hospital's loss. In your project: read the node's own data here."""
    features, labels = load_patients()
    end = sum(PATIENTS[: partition_id + 1])
    rows = slice(end - PATIENTS[partition_id], end)
    return Logistic(features[rows], labels[rows], intercept=False, l2=l2)


def load_pooled(l2: float = L2) -> Logistic:
    """Return the loss of all patients together, which only this example can compute."""
    features, labels = load_patients()
    return Logistic(features, labels, intercept=False, l2=l2)


def initial_model() -> dict[str, np.ndarray]:
    """Return the start point; the name and the shape are those of `Logistic`."""
    return {"coefficients": np.zeros(31)}

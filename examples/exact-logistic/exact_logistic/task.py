"""Ten hospitals' patients, of unequal number, and the pooled problem that none of them can see."""

import csv

import numpy as np
from sklearn.datasets import load_breast_cancer

from flwr_fco.objectives import Logistic

#: Patients of each hospital; 569 together.
PATIENTS = (130, 95, 80, 70, 55, 45, 35, 28, 20, 11)
#: Weight of l2/2 ||w||^2 in every hospital's loss; it is also the modulus of strong convexity that DualFL asks for.
L2 = 0.1

#: About the mean and the standard deviation of each measurement. The hospitals agree on them before the study, so that
#: nobody needs all patients to scale its own.
# fmt: off
MEANS = np.array([
    14.13, 19.29, 91.97, 654.9, 0.09636, 0.1043, 0.0888, 0.04892, 0.1812, 0.0628, 0.4052, 1.217, 2.866, 40.34, 0.007041,
    0.02548, 0.03189, 0.0118, 0.02054, 0.003795, 16.27, 25.68, 107.3, 880.6, 0.1324, 0.2543, 0.2722, 0.1146, 0.2901,
    0.08395,
])
DEVIATIONS = np.array([
    3.521, 4.297, 24.28, 351.6, 0.01405, 0.05277, 0.07965, 0.03877, 0.02739, 0.007054, 0.2771, 0.5512, 2.02, 45.45,
    0.003, 0.01789, 0.03016, 0.006165, 0.008259, 0.002644, 4.829, 6.141, 33.57, 568.9, 0.02281, 0.1572, 0.2084, 0.06567,
    0.06181, 0.01805,
])
# fmt: on


def load_patients() -> tuple[np.ndarray, np.ndarray]:
    """Return 30 scaled measurements and a column of ones of 569 patients, and their labels."""
    features, labels = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    return scaled(features[order]), labels[order]


def scaled(measurements: np.ndarray) -> np.ndarray:
    """Return scaled measurements and a column of ones."""
    # The intercept is a coefficient like the others, so that the l2 term makes the loss strongly convex in it too.
    return np.column_stack([(measurements - MEANS) / DEVIATIONS, np.ones(len(measurements))])


def load_client(partition_id: int, l2: float = L2) -> Logistic:
    """Return the loss of a hospital's share of the bundled patients."""
    features, labels = load_patients()
    end = sum(PATIENTS[: partition_id + 1])
    rows = slice(end - PATIENTS[partition_id], end)
    return Logistic(features[rows], labels[rows], intercept=False, l2=l2)


def load_file(path: str) -> Logistic:
    """Return the loss of the patients of a CSV with scikit-learn's names of the measurements and ``benign``, 1 or 0."""
    names = load_breast_cancer().feature_names.tolist()
    # Excel begins a file with a byte order mark.
    with open(path, encoding="utf-8-sig", newline="") as file:
        table = csv.DictReader(file)
        lacks = [name for name in (*names, "benign") if name not in (table.fieldnames or ())]
        if lacks:
            raise ValueError(f"the file lacks the columns {lacks[:5]}; expected a line of names, with commas")
        rows = list(table)
    # By name: the columns of a file may come in any order. An empty cell is an error that says where.
    measurements = np.array([[float(row[name] or "nan") for name in names] for row in rows]).reshape(-1, len(names))
    return Logistic(scaled(measurements), [float(row["benign"]) for row in rows], intercept=False, l2=L2)


def load_pooled(l2: float = L2) -> Logistic:
    """Return the loss of all patients together, which only this example can compute."""
    features, labels = load_patients()
    return Logistic(features, labels, intercept=False, l2=l2)


def initial_model() -> dict[str, np.ndarray]:
    """Return the start point; the name and the shape are those of `Logistic`."""
    return {"coefficients": np.zeros(31)}

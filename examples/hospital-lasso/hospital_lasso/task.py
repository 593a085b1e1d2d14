"""The model that both sides share, and the rows of a hospital.

The rows are scikit-learn's diabetes data (Efron, Hastie, Johnstone, Tibshirani 2004): 442 patients, and how far their
disease was a year later. Five hospitals hold them, the heavier patients in the later ones. ``python -m
hospital_lasso.task data`` writes them as five CSV files.
"""

import csv
import sys
from pathlib import Path

import numpy as np
from flwr.app import Context
from sklearn.datasets import load_diabetes

from flwr_fco.strategies import Strengths
from flwr_fco.tables import FederatedLasso

HOSPITALS = 5
TARGET = "progression"
#: The features, and the unit in which each is penalised: about one standard deviation, agreed on before the study. The
#: lasso compares coefficients, so units matter; no hospital needs to tell its own means for it.
UNITS = {
    "age": 10.0,
    "sex": 1.0,
    "bmi": 5.0,
    "blood_pressure": 15.0,
    "total_cholesterol": 35.0,
    "ldl": 30.0,
    "hdl": 13.0,
    "cholesterol_ratio": 1.3,
    "log_triglycerides": 0.5,
    "glucose": 11.0,
}


def new_model() -> FederatedLasso:
    """Return the model: age and sex are confounders, the strength is chosen by the hospitals' own folds."""
    return FederatedLasso(
        cv=Strengths(folds=5, rule="one-standard-error"),
        penalty_factor={"age": 0.0, "sex": 0.0},
        num_clients=HOSPITALS,
    )


def load(context: Context) -> tuple[np.ndarray, np.ndarray]:
    """Return a hospital's rows and targets: its file, if the node has a ``data-path``; else those of its partition."""
    path = context.node_config.get("data-path")
    if path is None:
        rows = rows_of(int(context.node_config["partition-id"]))
    else:
        # Excel begins a file with a byte order mark.
        with open(str(path), encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file))
    # By name: the columns of a file may come in any order.
    features = [float(row[name]) / unit for row in rows for name, unit in UNITS.items()]
    return np.reshape(features, (-1, len(UNITS))), np.array([float(row[TARGET]) for row in rows])


def rows_of(hospital: int) -> list[dict[str, float]]:
    """Return the patients of a hospital."""
    features, progression = load_diabetes(return_X_y=True, scaled=False)
    order = np.argsort(features[:, 2] + 4.0 * np.random.default_rng(0).standard_normal(len(features)))
    sizes = np.cumsum([60, 110, 90, 120])
    names = [*UNITS, TARGET]
    table = np.column_stack([features, progression])[np.split(order, sizes)[hospital]]
    return [dict(zip(names, row, strict=True)) for row in table.tolist()]


def main(folder: str) -> None:
    """Write the rows of each hospital to a CSV file."""
    for hospital in range(HOSPITALS):
        rows = rows_of(hospital)
        with open(Path(folder) / f"hospital-{hospital + 1}.csv", "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The model that both sides share, and the rows of a hospital.

The rows are scikit-learn's diabetes data (Efron, Hastie, Johnstone, Tibshirani 2004): 442 patients, and how far their
disease was a year later. Five hospitals hold them, the heavier patients in the later ones. ``python -m
hospital_lasso.task data`` writes them as five CSV files.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from flwr.app import Context
from sklearn.datasets import load_diabetes

from flwr_fco.strategies import Strengths
from flwr_fco.tables import Codebook, FederatedLasso

#: What each hospital's table has, with ranges, units and the numbers by which columns are scaled.
CODEBOOK = Codebook.from_toml(Path(__file__).parent / "codebook.toml")
HOSPITALS = len(CODEBOOK.sites)
TARGET = "progression"


def new_model() -> FederatedLasso:
    """Return the model: age and sex are confounders, the strength is chosen by the hospitals' own folds."""
    return FederatedLasso(
        codebook=CODEBOOK,
        cv=Strengths(folds=5, rule="one-standard-error"),
        penalty_factor={"age": 0.0, "sex": 0.0},
        num_clients=HOSPITALS,
    )


def load(context: Context) -> pd.DataFrame:
    """Return a hospital's table: its file, if the node has a ``data-path``; else the rows of its partition."""
    path = context.node_config.get("data-path")
    if path is None:
        return rows_of(int(context.node_config["partition-id"]))
    # Excel begins a file with a byte order mark.
    return pd.read_csv(str(path), encoding="utf-8-sig")


def rows_of(hospital: int) -> pd.DataFrame:
    """Return the patients of a hospital."""
    features, progression = load_diabetes(return_X_y=True, scaled=False)
    order = np.argsort(features[:, 2] + 4.0 * np.random.default_rng(0).standard_normal(len(features)))
    sizes = np.cumsum([60, 110, 90, 120])
    table = np.column_stack([features, progression])[np.split(order, sizes)[hospital]]
    return pd.DataFrame(table, columns=[*CODEBOOK.columns, TARGET])


def main(folder: str) -> None:
    """Write the rows of each hospital to a CSV file."""
    for hospital in range(HOSPITALS):
        rows_of(hospital).to_csv(Path(folder) / f"hospital-{hospital + 1}.csv", index=False, lineterminator="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

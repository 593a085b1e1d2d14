"""The model that both sides share, and the rows of an institution.

The rows are lifelines' copy of the lung cancer data of the North Central Cancer Treatment Group (Loprinzi and others
1994): 228 patients of 18 institutions, and how long they lived.
"""

import pandas as pd
from flwr.app import Context

from flwr_fco.tables import FederatedCoxRegression

#: The institutions by partition id. The owners of the last five refuse: they have fewer than 5 patients or 3 deaths.
INSTITUTIONS = (1, 2, 3, 5, 6, 7, 11, 12, 13, 15, 16, 21, 22, 4, 10, 26, 32, 33)
TAKING_PART = 13
#: What is in the model: ten years of age, being female, a step of the ECOG performance score.
FEATURES = ("age", "female", "ecog")


def new_model(sites: int = TAKING_PART) -> FederatedCoxRegression:
    """Return the model: no penalty, and a baseline hazard of its own for each institution."""
    return FederatedCoxRegression(num_clients=sites)


def load(context: Context) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return an institution's features and its times and events: of its file, or of its partition's patients."""
    partition = context.node_config.get("partition-id")
    path = context.node_config.get("data-path")
    patients = rows_of(INSTITUTIONS[int(partition)]) if path is None else pd.read_csv(str(path))
    features, targets = prepared(patients)
    if partition is not None and partition == context.run_config.get("misaligned"):
        features = features.rename(columns={"female": "sex"})
    return features, targets


def prepared(patients: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the features, in the units of `FEATURES`, and the times and events of complete rows."""
    complete = patients.dropna(subset=["time", "status", "age", "sex", "ph.ecog"])
    columns = {"age": complete["age"] / 10.0, "female": complete["sex"] == 2, "ecog": complete["ph.ecog"]}
    return pd.DataFrame(columns)[list(FEATURES)], complete[["time", "status"]]


def rows_of(institution: int) -> pd.DataFrame:
    """Return the patients of an institution."""
    from lifelines.datasets import load_lung

    patients = load_lung()
    return patients[patients["inst"] == institution]

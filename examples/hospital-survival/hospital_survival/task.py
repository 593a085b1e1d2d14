"""The model that both sides share, and the rows of an institution.

The rows are lifelines' copy of the lung cancer data of the North Central Cancer Treatment Group (Loprinzi and others
1994): 228 patients of 18 institutions, and how long they lived.
"""

from pathlib import Path

import pandas as pd
from flwr.app import Context

from flwr_fco.tables import Codebook, FederatedCoxRegression

#: What each institution's table has: ten years of age, being female and a step of the ECOG score are in the model.
CODEBOOK = Codebook.from_toml(Path(__file__).parent / "codebook.toml")
#: The institutions by partition id, and how many of them take part.
INSTITUTIONS = CODEBOOK.sites
TAKING_PART = 13


def new_model(sites: int = TAKING_PART) -> FederatedCoxRegression:
    """Return the model: no penalty, and a baseline hazard of its own for each institution."""
    return FederatedCoxRegression(codebook=CODEBOOK, num_clients=sites)


def load(context: Context) -> pd.DataFrame:
    """Return an institution's table: its file, or its partition's patients."""
    partition = context.node_config.get("partition-id")
    path = context.node_config.get("data-path")
    patients = rows_of(INSTITUTIONS[int(partition)]) if path is None else pd.read_csv(str(path))
    if partition is not None and partition == context.run_config.get("misaligned"):
        patients = patients.rename(columns={"ph.ecog": "ecog"})
    return patients


def rows_of(institution: str) -> pd.DataFrame:
    """Return the patients of an institution."""
    from lifelines.datasets import load_lung

    patients = load_lung()
    return patients[patients["inst"] == int(institution)]

"""What the owners refuse, and the federated hazard ratios beside the pooled rows' and a meta-analysis.

    python compare.py [--picture forest.png]    (in one process, a few seconds)

Only this script has all rows in one place, which a federation is there to avoid.
"""

import argparse
import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from lifelines import CoxPHFitter

sys.path.insert(0, str(Path(__file__).parent))

from hospital_survival import client_app, task
from hospital_survival.forest import forest

from flwr_fco.errors import ConfigurationError
from flwr_fco.simulation import InProcessGrid


def fitted(sites: int, **config: Any) -> Any:
    """Return the model of the first institutions, described and fitted as the ServerApp does."""
    grid = InProcessGrid(client_app.app, sites, run_config=config, raise_errors=False)
    with grid.identity():
        model = task.new_model(sites)
        model.describe(grid)
        return model.fit(grid, intervals=True)


def refusal(sites: int, **config: Any) -> str:
    """Return why such a run ends."""
    try:
        fitted(sites, **config)
    except ConfigurationError as error:
        return str(error)
    raise AssertionError("expected a refusal")


def pooled() -> CoxPHFitter:
    """Return lifelines' fit of the rows of all institutions that take part, stratified by institution."""
    parts = []
    for institution in task.INSTITUTIONS[: task.TAKING_PART]:
        rows = task.rows_of(institution).dropna(subset=[*task.CODEBOOK.columns, *task.CODEBOOK.outcome])
        targets = {name: rows[name].to_numpy() for name in task.CODEBOOK.outcome}
        parts.append(task.CODEBOOK.read(rows).assign(**targets, institution=institution))
    options = {"duration_col": "time", "event_col": "status", "strata": ["institution"]}
    return CoxPHFitter().fit(pd.concat(parts), **options, fit_options={"precision": 1e-12})


def main() -> None:
    """Print both refusals and the table, and draw the forest plot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--picture", default="forest.png", help="where the forest plot goes: a PNG, SVG or PDF")
    picture = parser.parse_args().picture
    if not picture.lower().endswith((".png", ".svg", ".pdf")):
        parser.error(f"--picture {picture}: expected a name that ends in .png, .svg or .pdf")
    logging.getLogger("flwr").setLevel(logging.ERROR)
    logging.getLogger("flwr.disclosure").setLevel(logging.ERROR)
    print("All 18 institutions:", refusal(len(task.INSTITUTIONS)), sep="\n", end="\n\n")
    print("One with its old column names:", refusal(task.TAKING_PART, misaligned=3), sep="\n", end="\n\n")
    summary = fitted(task.TAKING_PART).summary()
    forest(summary.rows).savefig(picture, dpi=200)
    own = pd.DataFrame(summary.rows).set_index("feature")
    together = pooled()
    columns = {
        "federated": own["estimate"],
        "pooled": together.params_[own.index],
        "meta-analysis": own["DerSimonian-Laird"],
    }
    print("Hazard ratios:", pd.DataFrame(columns).apply(np.exp).round(4).to_string(), sep="\n", end="\n\n")
    errors = {
        "federated": own["standard error"],
        "pooled": together.standard_errors_[own.index],
        "meta-analysis": own["DerSimonian-Laird error"],
    }
    print("Standard errors of their logarithms:", pd.DataFrame(errors).round(4).to_string(), sep="\n", end="\n\n")
    apart = (own["estimate"] - together.params_[own.index]).abs().max()
    print(f"Federated and pooled differ by {apart:.0e}. {picture} is the forest plot.")


if __name__ == "__main__":
    main()

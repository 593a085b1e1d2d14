"""The ServerApp: look at all tables, choose the strength, fit the model, print and perhaps write its table."""

import csv

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from hospital_lasso.task import CODEBOOK, new_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Fit the lasso where the rows are."""
    model = new_model()
    # Ends the run if a hospital's table cannot be right, and warns if it is far from the others'.
    print(model.describe(grid))
    model.fit(grid)
    print(model.summary())
    print(model.path_)
    if context.run_config["table"]:
        with open(str(context.run_config["table"]), "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["feature", "coefficient"])
            # A FederatedLogisticRegression has rows of them.
            writer.writerow(["(intercept)", *np.ravel(model.intercept_).tolist()])
            writer.writerows(zip(CODEBOOK.features, np.ravel(model.coef_).tolist(), strict=True))

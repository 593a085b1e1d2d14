"""The ServerApp: look at all tables, choose the strength, fit the model, print and perhaps write its table."""

import numpy as np
import pandas as pd
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
        # A FederatedLogisticRegression has rows of them: one, or one for each of three classes and more.
        rows = np.column_stack([np.atleast_1d(model.intercept_), np.atleast_2d(model.coef_)])
        names = ["coefficient"] if len(rows) == 1 else model.classes_
        table = pd.DataFrame(rows.T, index=["(intercept)", *CODEBOOK.features], columns=names)
        table.to_csv(str(context.run_config["table"]), index_label="feature")

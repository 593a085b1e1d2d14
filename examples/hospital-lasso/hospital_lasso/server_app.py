"""The ServerApp: choose the strength, fit the model, print and perhaps write its table."""

import csv

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from hospital_lasso.task import UNITS, new_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Fit the lasso where the rows are."""
    model = new_model()
    model.fit(grid, features=list(UNITS))
    print(model.summary())
    print(model.path_)
    if context.run_config["table"]:
        with open(str(context.run_config["table"]), "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["feature", "coefficient", "per"])
            writer.writerow(["(intercept)", float(model.intercept_), ""])
            writer.writerows(zip(UNITS, model.coef_.tolist(), UNITS.values(), strict=True))

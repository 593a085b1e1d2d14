"""The ServerApp: describe the tables, fit the model where they are, print and perhaps write its table, draw it."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from hospital_survival.task import new_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Describe all tables, and fit the model, with intervals."""
    config = context.run_config
    model = new_model(int(config["sites"]))
    # Ends the run if an institution's table cannot be right, and warns if it is far from the others'.
    print(model.describe(grid))
    model.fit(grid, intervals=True)
    summary = model.summary()
    print(summary)
    if config["table"]:
        summary.table().to_csv(str(config["table"]), index=False)
    if config["picture"]:
        from hospital_survival.forest import forest

        forest(summary.rows).savefig(str(config["picture"]), dpi=200)

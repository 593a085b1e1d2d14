"""The ServerApp: fit the model where the rows are, print and perhaps write its table, draw it."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from hospital_survival.task import FEATURES, new_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Fit the model, with intervals."""
    config = context.run_config
    model = new_model(int(config["sites"]))
    model.fit(grid, features=list(FEATURES), intervals=True)
    summary = model.summary()
    print(summary)
    if config["table"]:
        summary.table().to_csv(str(config["table"]), index=False)
    if config["picture"]:
        from hospital_survival.forest import forest

        forest(summary.rows).savefig(str(config["picture"]), dpi=200)

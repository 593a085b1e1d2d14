"""The ServerApp: fit the model where the data are, and print what it uses."""

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from sparse_logistic.task import load_patients, new_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Fit the model; print which measurements it uses, and how good it is."""
    names, _, test, _, test_labels = load_patients()
    model = new_model(
        C=context.run_config["C"],
        num_clients=context.run_config["num-clients"],
        max_rounds=context.run_config["num-server-rounds"],
    )
    model.fit(grid, features=len(names))
    used = np.flatnonzero(model.coef_)
    print(f"The model uses {used.size} of 30 measurements: {', '.join(names[j] for j in used)}")
    if context.run_config["bundled"]:
        print(f"It classifies {model.score(test, test_labels):.1%} of the test patients correctly")

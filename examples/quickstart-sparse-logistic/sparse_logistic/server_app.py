"""The ServerApp: a Flower ServerApp with another strategy."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from flwr_fco.pooled import density
from flwr_fco.regularizers import L1
from flwr_fco.strategies import FedDualAvg
from sparse_logistic.task import initial_model, load_test

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for some rounds; print what the model uses."""
    test = load_test()

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        model = {name: array.numpy() for name, array in arrays.items()}
        scores = test.metrics(test.layout.flatten(model))
        return MetricRecord({"accuracy": scores["accuracy"], "density": density(model["coefficients"])})

    strategy = FedDualAvg(
        regularizer=L1(float(context.run_config["strength"])),
        client_lr=float(context.run_config["client-lr"]),
        server_lr=float(context.run_config["server-lr"]),
        fraction_evaluate=0.0,
    )
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord({name: Array(array) for name, array in initial_model().items()}),
        num_rounds=int(context.run_config["num-server-rounds"]),
        evaluate_fn=evaluate,
    )
    used = np.flatnonzero(result.arrays["coefficients"].numpy())
    print(f"The model uses {used.size} of 30 measurements: {used.tolist()}")

"""The ServerApp: a Flower ServerApp with another strategy."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from flwr_fco.regularizers import L1
from flwr_fco.strategies import Epochs, FedDualAvg
from sparse_text.task import initial_model, load_test

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for some rounds; print what the model uses and what travelled."""
    config = context.run_config
    rounds, nodes = config["num-server-rounds"], config["num-clients"]
    test = load_test(nodes)

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        if server_round % 10:
            return None
        model = {name: array.numpy() for name, array in arrays.items()}
        return MetricRecord({"accuracy": test.metrics(test.layout.flatten(model))["accuracy"]})

    strategy = FedDualAvg(
        regularizer=L1(config["strength"]),
        client_lr=config["client-lr"],
        work=Epochs(1, batch_size=10),
        fraction_train=config["fraction-train"],
        fraction_evaluate=0.0,
    )
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord({name: Array(array) for name, array in initial_model().items()}),
        num_rounds=rounds,
        evaluate_fn=evaluate if config["bundled"] else None,
    )
    coefficients = result.arrays["coefficients"].numpy()
    last = result.train_metrics_clientapp[rounds]
    whole = 8 * coefficients.size * int(last["num-replies"])
    print(f"The model uses {np.count_nonzero(coefficients)} of {coefficients.size} columns.")
    print(f"The last round's uplinks took {last['bytes-up'] / 1e6:.1f} MB; whole vectors take {whole / 1e6:.0f}.")

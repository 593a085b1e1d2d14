"""A ServerApp as Flower's scikit-learn quickstart has it, but for the strategy."""

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from flwr_fco.regularizers import L1
from flwr_fco.strategies import FedDualAvg, Steps
from one_line_sklearn.task import get_model, get_model_params, load_images, set_model_params

app = ServerApp()


def central_evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Return accuracy on the test images and the share of the coefficients that are not 0."""
    model = set_model_params(get_model(local_epochs=1), arrays.to_numpy_ndarrays())
    _, images, _, labels = load_images()
    density = float((model.coef_ != 0).mean())
    return MetricRecord({"accuracy": float(model.score(images, labels)), "density": density})


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for some rounds."""
    num_rounds = context.run_config["num-server-rounds"]
    arrays = ArrayRecord(get_model_params(get_model(context.run_config["local-epochs"])))

    # Flower's quickstart has `strategy = FedAvg()` here.
    strategy = FedDualAvg(client="unmodified", regularizer=L1(0.1), client_lr=1.0, work=Steps(1))

    evaluate_fn = central_evaluate if context.run_config["bundled"] else None
    strategy.start(grid=grid, initial_arrays=arrays, num_rounds=num_rounds, evaluate_fn=evaluate_fn)

"""The ServerApp: DualFL until the hospitals agree on the pooled solution."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from exact_logistic.task import L2, initial_model, load_pooled
from flwr_fco.engines import Minimise, minimise
from flwr_fco.strategies import DualFL

app = ServerApp()


def pooled_solution() -> np.ndarray:
    """Return what a hospital that had all patients would compute, certified by a gradient of norm 1e-13."""
    return minimise(load_pooled(), Minimise(tolerance=1e-13)).point


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train; print how far the model is from the pooled solution, which only a simulation can know."""
    bundled = bool(context.run_config["bundled"])
    solution = pooled_solution() if bundled else None

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        distance = np.abs(arrays["coefficients"].numpy() - solution).max()
        return MetricRecord({"distance-to-pooled": float(distance)})

    strategy = DualFL(
        nu=L2,
        rho=context.run_config["rho"],
        work=Minimise(tolerance=1e-11),
        min_train_nodes=context.run_config["num-hospitals"],
        min_available_nodes=context.run_config["num-hospitals"],
        fraction_evaluate=0.0,
    )
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord({name: Array(array) for name, array in initial_model().items()}),
        num_rounds=context.run_config["num-server-rounds"],
        evaluate_fn=evaluate if bundled else None,
    )
    if not bundled:
        print("Coefficients:", *result.arrays["coefficients"].numpy().tolist())
        return
    distances = {number: scores["distance-to-pooled"] for number, scores in result.evaluate_metrics_serverapp.items()}
    # The first round that is near enough; the last one, where none is.
    after = min([number for number, distance in distances.items() if distance <= 1e-8], default=max(distances))
    within = "1e-8" if distances[after] <= 1e-8 else f"{distances[after]:.2g}"
    print(f"Every coefficient is within {within} of the pooled solution after {after} rounds")

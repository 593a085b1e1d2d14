"""The ServerApp: dual extrapolation against the attack, and FedAvg without one, on the same nodes."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from flwr_fco.regularizers import L1, Box, PerParameter
from flwr_fco.strategies import CompositeStrategy, FedAvgS, FeDualEx
from robust_logistic.task import initial_model, load_server, strongest_attack

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train both, attack both, print a table and draw the attacks."""
    config = context.run_config
    penalty = L1(float(config["strength"]), bound=float(config["bound"]))
    shared = {
        "client_lr": float(config["client-lr"]),
        "local_steps": int(config["local-steps"]),
        "batch_size": int(config["batch-size"]),
        "apply_to": ("coefficients", "perturbation"),
        "fraction_evaluate": 0.0,
    }
    strategies: dict[str, CompositeStrategy] = {
        # An attack in a box of side 0 is none: federated averaging of plain stochastic gradient steps.
        "FedAvg": FedAvgS(regularizer=PerParameter({"perturbation": Box(0.0, 0.0)}), **shared),
        "FeDualEx": FeDualEx(regularizer=PerParameter({"perturbation": penalty}), **shared),
    }
    train, test = load_server()
    attacks = {}
    bounds = {"FedAvg": 0.0, "FeDualEx": penalty.bound}
    for name, strategy in strategies.items():
        start = ArrayRecord({key: Array(array) for key, array in initial_model(bounds[name]).items()})
        result = strategy.start(grid=grid, initial_arrays=start, num_rounds=int(config["num-server-rounds"]))
        w = test.layout.flatten({key: array.numpy() for key, array in result.arrays.items()})
        # The attacker knows the model and the training images; both are scored on the test images.
        attacked = strongest_attack(train, w, penalty)
        scores = test.metrics(attacked)
        attacks[name] = attacked[test.split :]
        print(
            f"{name}: clean accuracy {scores['clean-accuracy']:.3f}, attacked {scores['accuracy']:.3f}, "
            f"attacked loss {scores['loss']:.3f}; the attack changes {np.count_nonzero(attacks[name])} of 64 pixels"
        )
    if config["picture"]:
        draw(attacks, float(config["bound"]), str(config["picture"]))


def draw(attacks: dict[str, np.ndarray], bound: float, path: str) -> None:
    """Write a picture of the strongest attacks, from blue (-bound) over white to red."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.0, 3.2), layout="constrained")
    for place, (name, attack) in zip(figure.subplots(1, len(attacks)), attacks.items(), strict=True):
        shown = place.imshow(attack.reshape(8, 8), cmap="bwr", vmin=-bound, vmax=bound)
        place.set_title(f"strongest attack on {name}", fontsize=9)
        place.set_axis_off()
    figure.colorbar(shown, ax=figure.axes)
    figure.savefig(path, dpi=100)

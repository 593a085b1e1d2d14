"""The ServerApp: FedAvg without an opponent, and two methods that train against one, on the same nodes."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from flwr_fco.mirror_maps import DiagonalMetric, Euclidean, Product
from flwr_fco.regularizers import L1, Box, PerParameter
from flwr_fco.strategies import Arrays, Average, CompositeStrategy, FedMid, FedMiP, FeDualEx, Steps
from robust_logistic.task import PIXELS, SHAPE, initial_model, load_server, strongest_attack

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train three models, attack each, print a table and draw the attacks."""
    config = context.run_config
    strength, bound = config["strength"], config["bound"]
    shared = {
        "client_lr": config["client-lr"],
        "work": Steps(config["local-steps"], batch_size=config["batch-size"]),
        "arrays": Arrays(apply_to=("coefficients", "perturbation")),
        # Where the server has no images, the nodes score the model and the attack that was trained with it.
        "fraction_evaluate": 0.0 if config["bundled"] else 1.0,
    }
    # Small weights move fast: the opponent answers the model, which then has no time to lean on one attack.
    fast = DiagonalMetric(np.full(PIXELS, 1.0) / config["attack-speed"])
    geometry = Product({"perturbation": fast, "*": Euclidean()})
    opponent = PerParameter({"perturbation": L1(strength, bound=bound)})
    strategies: dict[str, CompositeStrategy] = {
        # An attack in a box of side 0 is none: federated averaging of plain stochastic gradient steps.
        "FedAvg": FedMid(regularizer=PerParameter({"perturbation": Box(0.0, 0.0)}), **shared),
        "FeDualEx": FeDualEx(regularizer=opponent, **shared),
        "FedMiP": FedMiP(regularizer=opponent, mirror_map=geometry, server_prox=False, output=Average(), **shared),
    }
    rounds = config["num-server-rounds"]
    if config["bundled"]:
        train, test = load_server()
    attacks = {}
    for name, strategy in strategies.items():
        model = initial_model(0.0 if name == "FedAvg" else bound)
        start = ArrayRecord({key: Array(array) for key, array in model.items()})
        result = strategy.start(grid=grid, initial_arrays=start, num_rounds=rounds)
        if not config["bundled"]:
            scores = result.evaluate_metrics_clientapp[rounds]
            reported = f"clean accuracy {scores['clean-accuracy']:.3f}, attacked {scores['accuracy']:.3f}"
            print(f"{name}, at the nodes: {reported}")
            continue
        w = test.layout.flatten({key: array.numpy() for key, array in result.arrays.items()})
        # The attacker knows the model and the training images; both are scored on the test images.
        attacked = strongest_attack(train, w, strength, bound)
        scores = test.metrics(attacked)
        attacks[name] = attacked[test.split :]
        changed = np.count_nonzero(attacks[name])
        print(
            f"{name}: clean accuracy {scores['clean-accuracy']:.3f}, attacked {scores['accuracy']:.3f}, "
            f"attacked loss {scores['loss']:.2f}; the attack changes {changed} of {PIXELS} pixels"
        )
    if attacks and config["picture"]:
        draw(attacks, bound, str(config["picture"]))


def draw(attacks: dict[str, np.ndarray], bound: float, path: str) -> None:
    """Write a picture of the strongest attacks, from blue (-bound) over white to red."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.0 * len(attacks), 3.2), layout="constrained")
    for place, (name, attack) in zip(figure.subplots(1, len(attacks)), attacks.items(), strict=True):
        shown = place.imshow(attack.reshape(SHAPE), cmap="bwr", vmin=-bound, vmax=bound)
        place.set_title(f"strongest attack on {name}", fontsize=9)
        place.set_axis_off()
    figure.colorbar(shown, ax=figure.axes)
    figure.savefig(path, dpi=100)

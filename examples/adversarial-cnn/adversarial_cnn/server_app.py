"""The ServerApp: min over the network, max over the perturbation, which pays for each pixel that it changes."""

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from adversarial_cnn.task import Attacked, load_images, objective_on
from flwr_fco import strategies
from flwr_fco.regularizers import L1, PerParameter
from flwr_fco.strategies import Arrays, Steps

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and print accuracies and the share of pixels that the attack changes."""
    config = context.run_config
    bound = config["bound"]
    strategy = getattr(strategies, str(config["strategy"]))(
        # The penalty is the opponent's: it enters the game with a minus, and is written with a plus.
        regularizer=PerParameter({"perturbation": L1(config["strength"], bound=bound)}),
        arrays=Arrays(apply_to="perturbation"),
        client_lr=config["client-lr"],
        server_lr=config["server-lr"],
        work=Steps(config["local-steps"], batch_size=config["batch-size"]),
        fraction_evaluate=0.0,
        seed=config["seed"],
    )
    torch.manual_seed(config["seed"])
    model = Attacked()
    with torch.no_grad():
        model.perturbation.uniform_(-bound, bound)
    tested = None
    if config["data"]:
        images = load_images(str(config["data"]), len(list(grid.get_node_ids())), int(config["num-images"]))
        tested = objective_on(*images.test_examples())

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        found = {name: array.numpy() for name, array in arrays.items()}
        metrics = tested.metrics(tested.layout.flatten(found))
        metrics["density"] = float((abs(found["perturbation"]) > 1e-5).mean())
        print(
            f"round {server_round}: clean accuracy {metrics['clean']:.4f}, attacked {metrics['attacked']:.4f}, "
            f"the attack changes {metrics['density']:.1%} of the numbers of an image",
            flush=True,
        )
        return MetricRecord(metrics)

    rounds = config["num-server-rounds"]
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(model.state_dict()),
        num_rounds=rounds,
        evaluate_fn=evaluate if tested else None,
    )

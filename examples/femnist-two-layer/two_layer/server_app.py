"""The ServerApp: every kernel of the global network stays in its l1 ball."""

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from flwr_fco import strategies
from flwr_fco.regularizers import L1Ball
from flwr_fco.strategies import Epochs
from two_layer.task import Net, load_images, num_classes, objective_on

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and print accuracy, norms and density after each round."""
    config = context.run_config
    # A deployment may begin without nodes; the strategy waits for them.
    num_nodes = max(1, len(list(grid.get_node_ids())))
    data = str(config["data"])
    strategy = getattr(strategies, str(config["strategy"]))(
        # By itself on every array of two dimensions: the kernels, not the biases.
        regularizer=L1Ball(config["radius"]),
        client_lr=config["client-lr"],
        server_lr=config["server-lr"],
        work=Epochs(config["local-epochs"], batch_size=config["batch-size"]),
        fraction_train=min(1.0, int(config["clients-per-round"]) / num_nodes),
        fraction_evaluate=0.0,
        seed=config["seed"],
    )
    torch.manual_seed(config["seed"])
    net = Net(int(config["width"]), num_classes(data))
    if data:
        test = load_images(data, num_nodes, int(config["num-images"])).test_examples()
        tested = objective_on(test.features, test.targets, int(config["width"]), num_classes(data))

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        found = {name: array.numpy() for name, array in arrays.items()}
        metrics = tested.metrics(tested.layout.flatten(found)) if data else {}
        kernels = [array for array in found.values() if array.ndim == 2]
        norms = ", ".join(f"{abs(kernel).sum():.1f}" for kernel in kernels)
        metrics["density"] = sum((kernel != 0).sum() for kernel in kernels) / sum(kernel.size for kernel in kernels)
        tested_as = f"accuracy {metrics['accuracy']:.4f}, " if data else ""
        print(
            f"round {server_round}: {tested_as}l1 norms {norms}, density {metrics['density']:.4f}",
            flush=True,
        )
        return MetricRecord({name: float(value) for name, value in metrics.items()})

    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(net.state_dict()),
        num_rounds=config["num-server-rounds"],
        evaluate_fn=evaluate,
    )

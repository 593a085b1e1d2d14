"""The ClientApp: all it is given is where the data are. The server's messages say what to compute."""

from flwr.app import Context

from flwr_fco.client_apps import client_app
from robust_logistic.task import RobustLogistic, load_client, load_file


def load_objective(context: Context) -> RobustLogistic:
    """Return this node's loss."""
    config = context.node_config
    if "data-path" in config:
        return load_file(str(config["data-path"]))
    return load_client(int(config["partition-id"]), int(config["num-partitions"]))


app = client_app(load_objective)

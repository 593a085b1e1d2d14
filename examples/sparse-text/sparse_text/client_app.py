"""The ClientApp: all it is told is where the documents are. The server's messages say what to compute."""

from flwr.app import Context

from flwr_fco.client_apps import client_app
from flwr_fco.objectives import Logistic
from sparse_text.task import load_client


def load_objective(context: Context) -> Logistic:
    """Return this node's loss."""
    return load_client(int(context.node_config["partition-id"]), int(context.node_config["num-partitions"]))


app = client_app(load_objective)

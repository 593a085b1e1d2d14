"""The ClientApp: all it is given is where the documents are. The server's messages say what to compute."""

from flwr.app import Context

from flwr_fco.client_apps import client_app
from flwr_fco.objectives import Logistic
from sparse_text.task import load_client, load_file


def load_objective(context: Context) -> Logistic:
    """Return this node's loss."""
    config = context.node_config
    if "data-path" in config:
        return load_file(str(config["data-path"]))
    return load_client(int(config["partition-id"]))


app = client_app(load_objective)

"""The ClientApp: all it is given is where the data are. The server's messages say what to minimise."""

from flwr.app import Context

from exact_logistic.task import load_client, load_file
from flwr_fco.client_apps import client_app
from flwr_fco.objectives import Logistic


def load_objective(context: Context) -> Logistic:
    """Return this hospital's loss."""
    path = context.node_config.get("data-path")
    return load_client(int(context.node_config["partition-id"])) if path is None else load_file(str(path))


app = client_app(load_objective)

"""The ClientApp: all it is told is where the data are. The server's messages say what to minimise."""

from flwr.app import Context

from exact_logistic.task import load_client
from flwr_fco.client_apps import client_app
from flwr_fco.objectives import Logistic


def load_objective(context: Context) -> Logistic:
    """Return this hospital's loss."""
    return load_client(int(context.node_config["partition-id"]))


app = client_app(load_objective)

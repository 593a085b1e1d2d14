"""The ClientApp: it says where the data are. The server's messages say what to compute."""

from flwr.app import Context

from adversarial_cnn.task import load_file, load_images, objective_on
from flwr_fco.client_apps import client_app
from flwr_fco.errors import ConfigurationError
from flwr_fco.torch import TorchObjective


def load_objective(context: Context) -> TorchObjective:
    """Return this node's saddle function."""
    config, node = context.run_config, context.node_config
    if "data-path" in node:
        return objective_on(*load_file(str(node["data-path"])))
    if not config["data"]:
        raise ConfigurationError("no images: give the run -c \"data='FOLDER'\", or the node a data-path (README.md)")
    images = load_images(str(config["data"]), int(node["num-partitions"]), int(config["num-images"]))
    return objective_on(*images.client(int(node["partition-id"])))


app = client_app(load_objective)

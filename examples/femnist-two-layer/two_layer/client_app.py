"""The ClientApp: it says where the data are. The server's messages say what to compute."""

from flwr.app import Context

from flwr_fco.client_apps import client_app
from flwr_fco.errors import ConfigurationError
from flwr_fco.torch import TorchObjective
from two_layer.task import load_file, load_images, num_classes, objective_on


def load_objective(context: Context) -> TorchObjective:
    """Return this node's loss."""
    config, node = context.run_config, context.node_config
    if "data-path" in node:
        own = load_file(str(node["data-path"]))
    elif not config["data"]:
        raise ConfigurationError("no images: give the run -c \"data='FOLDER'\", or the node a data-path (README.md)")
    else:
        images = load_images(str(config["data"]), int(node["num-partitions"]), int(config["num-images"]))
        own = images.client(int(node["partition-id"]))
    return objective_on(own.features, own.targets, int(config["width"]), num_classes(str(config["data"])))


app = client_app(load_objective)

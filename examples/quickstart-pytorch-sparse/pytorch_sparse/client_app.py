"""The ClientApp of a PyTorch project; what differs from a FedAvg client is marked."""

import torch
from flwr.app import Context, Message, MetricRecord, RecordDict

from flwr_fco.errors import ConfigurationError
from flwr_fco.torch import ClientApp, local_training  # instead of: from flwr.clientapp import ClientApp
from pytorch_sparse.task import Net, load_data, load_file
from pytorch_sparse.task import test as test_fn
from pytorch_sparse.task import train as train_fn

app = ClientApp()


def _loaders(context):
    config, node = context.run_config, context.node_config
    if "data-path" in node:
        return load_file(node["data-path"], config["batch-size"])
    if not config["mnist"]:
        # This error ends the run; after any other the server goes on, with the nodes that are left.
        raise ConfigurationError("no images: give the run -c \"mnist='FOLDER'\", or the node a data-path (README.md)")
    return load_data(
        node["partition-id"], node["num-partitions"], config["batch-size"], config["mnist"], config["num-images"]
    )


@app.train()
def train(msg: Message, context: Context):
    """Train on this node's images."""
    model = Net()
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    model.to(device)
    trainloader, _ = _loaders(context)
    with local_training(msg, context, model) as training:  # instead of: model.load_state_dict(...)
        train_loss = train_fn(model, trainloader, context.run_config["local-epochs"], training.optimizer, device)
    metrics = {"train_loss": train_loss, "num-examples": len(trainloader.dataset)}
    return training.reply(metrics)  # instead of: Message(RecordDict({"arrays": ..., "metrics": ...}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    """Evaluate on this node's other images; nothing is different here."""
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    model.to(device)
    _, testloader = _loaders(context)
    loss, accuracy = test_fn(model, testloader, device)
    metrics = {"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(testloader.dataset)}
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)

"""The ClientApp of the root Flower App: this package's ClientApp with a function that loads the node's data."""

from __future__ import annotations

from flwr.app import Context

from flwr_fco.client_apps import client_app
from flwr_fco.objectives import Objective
from main_job.run_config import checked_config
from main_job.task import Task


def load_objective(context: Context) -> Objective:
    """Return the loss on this node's share of the data."""
    task = Task(checked_config(context.run_config), int(context.node_config["num-partitions"]))
    return task.data.objective(int(context.node_config["partition-id"]))


app = client_app(load_objective)

"""The ClientApp of the root Flower App: this package's ClientApp with a function that loads the node's data."""

from __future__ import annotations

from flwr.app import Context

from flwr_fco.client_apps import client_app
from flwr_fco.objectives import Objective
from main_job.run_config import run_settings
from reproduction.runs.run import partition_of


def load_objective(context: Context) -> Objective:
    """Return the loss on this node's share of the data."""
    settings = run_settings(context.run_config, int(context.node_config["num-partitions"]))
    return settings.load().dataset.objective(partition_of(context))


app = client_app(load_objective)

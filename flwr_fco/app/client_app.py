"""The ClientApp of the root Flower App: the package's own, told where its data are."""

from __future__ import annotations

from flwr.app import Context

from flwr_fco.app.problems import load_dataset
from flwr_fco.app.settings import Settings
from flwr_fco.client_apps import client_app
from flwr_fco.objectives import Objective

__all__ = ["app", "load_objective"]


def load_objective(context: Context) -> Objective:
    """Return the loss on this node's share of the data."""
    settings = Settings.from_run_config(context.run_config)
    dataset = load_dataset(settings, int(context.node_config["num-partitions"]))
    return dataset.objective(int(context.node_config["partition-id"]))


app = client_app(load_objective)

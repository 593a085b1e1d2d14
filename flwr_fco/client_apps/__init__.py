"""Client apps: what runs on a client, for every strategy."""

from flwr_fco.algorithms.contract import Disclosure
from flwr_fco.client_apps.app import client_app
from flwr_fco.client_apps.numpy_client import numpy_client_app
from flwr_fco.client_apps.training import find_solver

__all__ = ["Disclosure", "client_app", "find_solver", "numpy_client_app"]

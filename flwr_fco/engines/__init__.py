"""Engines: what runs a client half, each with its plain, compiled and sparse form once."""

from flwr_fco.engines.client import LocalClient
from flwr_fco.engines.minimise import Minimum, minimise
from flwr_fco.engines.run import ENGINES
from flwr_fco.work import FirstOrder, Minimise

__all__ = [
    "ENGINES",
    "FirstOrder",
    "LocalClient",
    "Minimise",
    "Minimum",
    "minimise",
]

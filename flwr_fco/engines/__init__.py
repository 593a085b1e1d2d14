"""Engines: the loops of a client, each with its plain, compiled and sparse form once."""

from flwr_fco.engines.client import Client
from flwr_fco.engines.minimise import Minimum, minimise
from flwr_fco.work import FirstOrder, Minimise

__all__ = ["Client", "FirstOrder", "Minimise", "Minimum", "minimise"]

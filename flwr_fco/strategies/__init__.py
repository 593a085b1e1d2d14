"""Strategies: the server half of every algorithm, subclasses of Flower's ``FedAvg``."""

from flwr_fco.strategies.base import CompositeStrategy
from flwr_fco.strategies.fed_avg_subgradient import FedAvgSubgradient
from flwr_fco.strategies.fed_da_gt import FedDA, FedDAGT
from flwr_fco.strategies.fed_dual_avg import FedDualAvg, FedDualAvgOSP
from flwr_fco.strategies.fed_mid import FedMid, FedMidOSP

__all__ = [
    "CompositeStrategy",
    "FedAvgSubgradient",
    "FedDA",
    "FedDAGT",
    "FedDualAvg",
    "FedDualAvgOSP",
    "FedMid",
    "FedMidOSP",
]

"""Strategies: the server half of every algorithm, subclasses of Flower's ``FedAvg``."""

from flwr_fco.strategies.base import CompositeStrategy
from flwr_fco.strategies.decentralized import DFedDA, DFedDAGT, DFedMid, DReFedDAGT, DScaffold
from flwr_fco.strategies.fast_fed_da import CFedDA, FastFedDA, MCFedDA, ModelStage
from flwr_fco.strategies.fed_avg_subgradient import FedAvgSubgradient
from flwr_fco.strategies.fed_da_gt import FedDA, FedDAGT
from flwr_fco.strategies.fed_dual_avg import FedDualAvg, FedDualAvgOSP
from flwr_fco.strategies.fed_mid import FedMid, FedMidOSP
from flwr_fco.strategies.limits import Limit
from flwr_fco.strategies.plateau import Plateau
from flwr_fco.strategies.re_fed_da_gt import MultistepReFedDAGT, ReFedDAGT, Stage, theorem_stages
from flwr_fco.strategies.scaffold import Scaffold

__all__ = [
    "CFedDA",
    "CompositeStrategy",
    "DFedDA",
    "DFedDAGT",
    "DFedMid",
    "DReFedDAGT",
    "DScaffold",
    "FastFedDA",
    "FedAvgSubgradient",
    "FedDA",
    "FedDAGT",
    "FedDualAvg",
    "FedDualAvgOSP",
    "FedMid",
    "FedMidOSP",
    "Limit",
    "MCFedDA",
    "ModelStage",
    "MultistepReFedDAGT",
    "Plateau",
    "ReFedDAGT",
    "Scaffold",
    "Stage",
    "theorem_stages",
]

#: All strategies by name, for run configs and command lines.
STRATEGIES: dict[str, type[CompositeStrategy]] = {
    name: value
    for name in __all__
    if isinstance(value := globals()[name], type)
    and issubclass(value, CompositeStrategy)
    and value is not CompositeStrategy
}

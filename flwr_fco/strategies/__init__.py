"""Strategies: the server half of every algorithm, subclasses of Flower's ``FedAvg``."""

from flwr_fco.strategies.apda_inexact import APDAInexact
from flwr_fco.strategies.base import CompositeStrategy
from flwr_fco.strategies.decentralized import DFedDA, DFedDAGT, DFedMid, DReFedDAGT, DScaffold
from flwr_fco.strategies.dual_fl import DualFL
from flwr_fco.strategies.fast_fed_da import CFedDA, FastFedDA, MCFedDA, ModelStage
from flwr_fco.strategies.fe_dual_ex import FeDualEx
from flwr_fco.strategies.fed_avg import LocalSGD
from flwr_fco.strategies.fed_avg_subgradient import FedAvgSubgradient
from flwr_fco.strategies.fed_cm import FedCM
from flwr_fco.strategies.fed_da_gt import FedDA, FedDAGT
from flwr_fco.strategies.fed_dr import FedDR
from flwr_fco.strategies.fed_dual_avg import FedDualAvg, FedDualAvgOSP
from flwr_fco.strategies.fed_dyn import FedDyn
from flwr_fco.strategies.fed_mid import FedMid, FedMidOSP
from flwr_fco.strategies.fed_mip import FedMiP
from flwr_fco.strategies.fed_pd import FedPD
from flwr_fco.strategies.fed_prox import FedProx
from flwr_fco.strategies.fed_sam import FedSAM
from flwr_fco.strategies.five_gcs import FiveGCS
from flwr_fco.strategies.limits import Limit
from flwr_fco.strategies.plateau import Plateau
from flwr_fco.strategies.re_fed_da_gt import MultistepReFedDAGT, ReFedDAGT, Stage, theorem_stages
from flwr_fco.strategies.saddle_baselines import DistributedPGDA, ExtraStepLocalSGD, FedAvgS
from flwr_fco.strategies.scaffnew import Scaffnew
from flwr_fco.strategies.scaffold import Scaffold
from flwr_fco.strategies.scaffold_s import ScaffoldS

__all__ = [
    "APDAInexact",
    "CFedDA",
    "CompositeStrategy",
    "DFedDA",
    "DFedDAGT",
    "DFedMid",
    "DReFedDAGT",
    "DScaffold",
    "DistributedPGDA",
    "DualFL",
    "ExtraStepLocalSGD",
    "FastFedDA",
    "FeDualEx",
    "FedAvgS",
    "FedAvgSubgradient",
    "FedCM",
    "FedDA",
    "FedDAGT",
    "FedDR",
    "FedDualAvg",
    "FedDualAvgOSP",
    "FedDyn",
    "FedMiP",
    "FedMid",
    "FedMidOSP",
    "FedPD",
    "FedProx",
    "FedSAM",
    "FiveGCS",
    "Limit",
    "LocalSGD",
    "MCFedDA",
    "ModelStage",
    "MultistepReFedDAGT",
    "Plateau",
    "ReFedDAGT",
    "Scaffnew",
    "Scaffold",
    "ScaffoldS",
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

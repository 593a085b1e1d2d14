"""Strategies: the server half of every algorithm, subclasses of Flower's ``FedAvg``."""

from flwr_fco.server.convergence import Limit
from flwr_fco.server.strategy import CompositeStrategy
from flwr_fco.strategies.dual_averaging.fast_fed_da import CFedDA, FastFedDA, MCFedDA, ModelStage
from flwr_fco.strategies.dual_averaging.fed_dual_avg import FedDualAvg, FedDualAvgOSP
from flwr_fco.strategies.gradient_tracking.fed_da_gt import FedDA, FedDAGT
from flwr_fco.strategies.gradient_tracking.re_fed_da_gt import MultistepReFedDAGT, ReFedDAGT, Stage, theorem_stages
from flwr_fco.strategies.gradient_tracking.scaffold import Scaffold
from flwr_fco.strategies.local_minimisation.apda_inexact import APDAInexact
from flwr_fco.strategies.local_minimisation.dual_fl import DualFL
from flwr_fco.strategies.local_minimisation.fed_dr import FedDR
from flwr_fco.strategies.local_minimisation.fed_dyn import FedDyn
from flwr_fco.strategies.local_minimisation.fed_pd import FedPD
from flwr_fco.strategies.local_minimisation.fed_prox import FedProx
from flwr_fco.strategies.local_minimisation.five_gcs import FiveGCS
from flwr_fco.strategies.local_minimisation.scaffnew import Scaffnew
from flwr_fco.strategies.on_graphs.decentralized import DFedDA, DFedDAGT, DFedMid, DReFedDAGT, DScaffold
from flwr_fco.strategies.primal_averaging.fed_avg import LocalSGD
from flwr_fco.strategies.primal_averaging.fed_avg_subgradient import FedAvgSubgradient
from flwr_fco.strategies.primal_averaging.fed_cm import FedCM
from flwr_fco.strategies.primal_averaging.fed_mid import FedMid, FedMidOSP
from flwr_fco.strategies.primal_averaging.fed_sam import FedSAM
from flwr_fco.strategies.saddle_points.fe_dual_ex import FeDualEx
from flwr_fco.strategies.saddle_points.fed_mip import FedMiP
from flwr_fco.strategies.saddle_points.saddle_baselines import DistributedPGDA, ExtraStepLocalSGD, FedAvgS
from flwr_fco.strategies.saddle_points.scaffold_s import ScaffoldS

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

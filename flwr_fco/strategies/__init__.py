"""Strategies: the server half of every algorithm, subclasses of `flwr.serverapp.strategy.FedAvg`."""

from flwr_fco.algorithms.contract.choices import (
    Arrays,
    Average,
    Bounds,
    Density,
    Everyone,
    Last,
    Ledger,
    Participation,
    Reference,
    Strengths,
    Trimmed,
    Wire,
)
from flwr_fco.algorithms.contract.limits import Biased, Exact, Limit, ShiftedBy, Subgradient
from flwr_fco.algorithms.contract.theorems import theorem_rate
from flwr_fco.algorithms.fast_dual_averaging import ModelStage
from flwr_fco.algorithms.restricted_gradient_tracking import Stage, theorem_stages
from flwr_fco.core.validation import AT_LEAST_ONE, POSITIVE
from flwr_fco.server.method import method_of
from flwr_fco.server.options import (
    EveryoneOptions,
    GraphOptions,
    MemoryOptions,
    MinimiseOptions,
    Rate,
    RateOptions,
    TrackerOptions,
    WorkOptions,
)
from flwr_fco.server.strategy import CompositeStrategy, run_of
from flwr_fco.strategies.dual_averaging import CFedDA, FastFedDA, FedDA, FedDualAvg, FedDualAvgOSP, MCFedDA
from flwr_fco.strategies.gradient_tracking import (
    DFedDA,
    DFedDAGT,
    DFedMid,
    DReFedDAGT,
    DScaffold,
    FedDAGT,
    MultistepReFedDAGT,
    ReFedDAGT,
    Scaffold,
)
from flwr_fco.strategies.local_minimisation import DualFL, FedDR, FedDyn, FedProx, Scaffnew
from flwr_fco.strategies.newton import FedNewton, proved_zero
from flwr_fco.strategies.primal_averaging import FedAvgSubgradient, FedMid, FedMidOSP, FedMiP, FeDualEx, LocalSGD
from flwr_fco.work import Epochs, Minimise, Steps

__all__ = [
    "AT_LEAST_ONE",
    "POSITIVE",
    "Arrays",
    "Average",
    "Biased",
    "Bounds",
    "CFedDA",
    "CompositeStrategy",
    "DFedDA",
    "DFedDAGT",
    "DFedMid",
    "DReFedDAGT",
    "DScaffold",
    "Density",
    "DualFL",
    "Epochs",
    "Everyone",
    "EveryoneOptions",
    "Exact",
    "FastFedDA",
    "FeDualEx",
    "FedAvgSubgradient",
    "FedDA",
    "FedDAGT",
    "FedDR",
    "FedDualAvg",
    "FedDualAvgOSP",
    "FedDyn",
    "FedMiP",
    "FedMid",
    "FedMidOSP",
    "FedNewton",
    "FedProx",
    "GraphOptions",
    "Last",
    "Ledger",
    "Limit",
    "LocalSGD",
    "MCFedDA",
    "MemoryOptions",
    "Minimise",
    "MinimiseOptions",
    "ModelStage",
    "MultistepReFedDAGT",
    "Participation",
    "Rate",
    "RateOptions",
    "ReFedDAGT",
    "Reference",
    "Scaffnew",
    "Scaffold",
    "ShiftedBy",
    "Stage",
    "Steps",
    "Strengths",
    "Subgradient",
    "TrackerOptions",
    "Trimmed",
    "Wire",
    "WorkOptions",
    "method_of",
    "proved_zero",
    "run_of",
    "theorem_rate",
    "theorem_stages",
]

#: All strategies by name, for run configs and command lines.
STRATEGIES: dict[str, type[CompositeStrategy]] = {
    name: globals()[name] for name in __all__ if method_of(globals()[name]).algorithm is not None
}

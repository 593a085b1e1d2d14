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
from flwr_fco.strategies.dual_averaging import FedDA, FedDualAvg, FedDualAvgOSP
from flwr_fco.strategies.gradient_tracking import (
    DFedDA,
    DFedDAGT,
    DReFedDAGT,
    FedDAGT,
    MultistepReFedDAGT,
    ReFedDAGT,
    Scaffold,
)
from flwr_fco.strategies.local_minimisation import DualFL, FedDR
from flwr_fco.strategies.newton import FedNewton, proved_zero
from flwr_fco.strategies.primal_averaging import FedAvgSubgradient, FedMid, FedMidOSP, FedMiP, FeDualEx, LocalSGD
from flwr_fco.work import Epochs, Minimise, Steps

__all__ = [
    "AT_LEAST_ONE",
    "POSITIVE",
    "Arrays",
    "Average",
    "Bounds",
    "CompositeStrategy",
    "DFedDA",
    "DFedDAGT",
    "DReFedDAGT",
    "Density",
    "DualFL",
    "Epochs",
    "Everyone",
    "EveryoneOptions",
    "FeDualEx",
    "FedAvgSubgradient",
    "FedDA",
    "FedDAGT",
    "FedDR",
    "FedDualAvg",
    "FedDualAvgOSP",
    "FedMiP",
    "FedMid",
    "FedMidOSP",
    "FedNewton",
    "GraphOptions",
    "Last",
    "Ledger",
    "LocalSGD",
    "MemoryOptions",
    "Minimise",
    "MinimiseOptions",
    "MultistepReFedDAGT",
    "Participation",
    "Rate",
    "RateOptions",
    "ReFedDAGT",
    "Reference",
    "Scaffold",
    "Stage",
    "Steps",
    "Strengths",
    "TrackerOptions",
    "Trimmed",
    "Wire",
    "WorkOptions",
    "method_of",
    "proved_zero",
    "run_of",
    "theorem_stages",
]

#: All strategies by name, for run configs and command lines.
STRATEGIES: dict[str, type[CompositeStrategy]] = {
    name: globals()[name] for name in __all__ if method_of(globals()[name]).algorithm is not None
}

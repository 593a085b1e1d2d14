"""Strategies: the server half of every method, subclasses of `flwr.serverapp.strategy.FedAvg`."""

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
from flwr_fco.strategies.methods.dual_averaging import FedDA, FedDualAvg, FedDualAvgOSP
from flwr_fco.strategies.methods.gradient_tracking import (
    DFedDA,
    DFedDAGT,
    DReFedDAGT,
    FedDAGT,
    MultistepReFedDAGT,
    ReFedDAGT,
    Scaffold,
)
from flwr_fco.strategies.methods.local_minimisation import DualFL, FedDR
from flwr_fco.strategies.methods.newton import FedNewton, proved_zero
from flwr_fco.strategies.methods.primal_averaging import (
    FedAvgSubgradient,
    FedMid,
    FedMidOSP,
    FedMiP,
    FeDualEx,
    LocalSGD,
)
from flwr_fco.strategies.options import Options, Rate, strategy
from flwr_fco.strategies.strategy import CompositeStrategy, MinimiseStrategy, StepStrategy, run_of
from flwr_fco.work import Epochs, Minimise, Steps

#: All strategies by name, for run configs and command lines.
STRATEGIES: dict[str, type[CompositeStrategy]] = {
    kind.__name__: kind
    for kind in (
        *(DFedDA, DFedDAGT, DReFedDAGT, DualFL, FeDualEx, FedAvgSubgradient, FedDA, FedDAGT, FedDR, FedDualAvg),
        *(FedDualAvgOSP, FedMiP, FedMid, FedMidOSP, FedNewton, LocalSGD, MultistepReFedDAGT, ReFedDAGT, Scaffold),
    )
}

__all__ = [
    "AT_LEAST_ONE",
    "POSITIVE",
    "STRATEGIES",
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
    "Last",
    "Ledger",
    "LocalSGD",
    "Minimise",
    "MinimiseStrategy",
    "MultistepReFedDAGT",
    "Options",
    "Participation",
    "Rate",
    "ReFedDAGT",
    "Reference",
    "Scaffold",
    "Stage",
    "StepStrategy",
    "Steps",
    "Strengths",
    "Trimmed",
    "Wire",
    "proved_zero",
    "run_of",
    "strategy",
    "theorem_stages",
]

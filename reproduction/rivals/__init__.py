"""Methods that the papers compare with, and that nobody would pick for data of their own: one file each, both halves.

They build on what ``flwr_fco`` offers to everybody. A client process finds a half by its name if this package is
imported there.
"""

from flwr_fco import strategies
from flwr_fco.strategies import CompositeStrategy
from reproduction.rivals.apda_inexact import APDAInexact
from reproduction.rivals.decoupled_prox import DecoupledProx
from reproduction.rivals.fast_fed_da import CFedDA, FastFedDA, MCFedDA
from reproduction.rivals.fed_cm import FedCM
from reproduction.rivals.fed_dyn import FedDyn
from reproduction.rivals.fed_pd import FedPD
from reproduction.rivals.fed_prox import FedProx
from reproduction.rivals.fed_sam import FedSAM
from reproduction.rivals.five_gcs import FiveGCS
from reproduction.rivals.on_graphs import DFedMid, DScaffold
from reproduction.rivals.saddle_points import DistributedPGDA, ExtraStepLocalSGD, FedAvgS, ScaffoldS
from reproduction.rivals.scaffnew import Scaffnew

__all__ = [
    "APDAInexact",
    "CFedDA",
    "DFedMid",
    "DScaffold",
    "DecoupledProx",
    "DistributedPGDA",
    "ExtraStepLocalSGD",
    "FastFedDA",
    "FedAvgS",
    "FedCM",
    "FedDyn",
    "FedPD",
    "FedProx",
    "FedSAM",
    "FiveGCS",
    "MCFedDA",
    "Scaffnew",
    "ScaffoldS",
]

#: The rivals by name.
RIVALS: dict[str, type[CompositeStrategy]] = {name: globals()[name] for name in __all__}
#: All strategies that the experiments know, by name.
STRATEGIES: dict[str, type[CompositeStrategy]] = dict(sorted({**strategies.STRATEGIES, **RIVALS}.items()))

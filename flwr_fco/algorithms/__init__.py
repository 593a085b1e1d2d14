"""Algorithms: both halves of every method, one file each, and the contract for your own."""

from flwr_fco.algorithms.contract import Algorithm, Change, Downlink, LossFacts, Problem, Replies, Setting, To
from flwr_fco.algorithms.contract.client import ORIGIN, Client, ClientHalf, Memory, Moved, Start, Step
from flwr_fco.algorithms.decentralized import (
    DecentralizedDualAveraging,
    DecentralizedGradientTracking,
    DecentralizedRestricted,
)
from flwr_fco.algorithms.density import SparseDualAveraging
from flwr_fco.algorithms.dual_averaging import DualAveraging
from flwr_fco.algorithms.dual_fl import DualAcceleration
from flwr_fco.algorithms.fed_dr import DouglasRachford
from flwr_fco.algorithms.gradient_tracking import GradientTracking, trackers
from flwr_fco.algorithms.mirror_descent import MirrorDescent
from flwr_fco.algorithms.newton import ProximalNewton
from flwr_fco.algorithms.primal_averaging import (
    GradientSteps,
    MeanOfMemories,
    MeanState,
    PrimalAveraging,
    PrimalState,
    SubgradientSteps,
    rescaled,
)
from flwr_fco.algorithms.restricted_gradient_tracking import MultistepGradientTracking, RestrictedGradientTracking
from flwr_fco.algorithms.saddle_points import DualExtrapolation, MirrorProx

__all__ = [
    "ORIGIN",
    "Algorithm",
    "Change",
    "Client",
    "ClientHalf",
    "DecentralizedDualAveraging",
    "DecentralizedGradientTracking",
    "DecentralizedRestricted",
    "DouglasRachford",
    "Downlink",
    "DualAcceleration",
    "DualAveraging",
    "DualExtrapolation",
    "GradientSteps",
    "GradientTracking",
    "LossFacts",
    "MeanOfMemories",
    "MeanState",
    "Memory",
    "MirrorDescent",
    "MirrorProx",
    "Moved",
    "MultistepGradientTracking",
    "PrimalAveraging",
    "PrimalState",
    "Problem",
    "ProximalNewton",
    "Replies",
    "RestrictedGradientTracking",
    "Setting",
    "SparseDualAveraging",
    "Start",
    "Step",
    "SubgradientSteps",
    "To",
    "rescaled",
    "trackers",
]

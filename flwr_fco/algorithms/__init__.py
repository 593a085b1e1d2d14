"""Algorithms: both halves of every method, one file each, and the contract for your own."""

from flwr_fco.algorithms.contract import Algorithm, Change, Client, Memory, Moved, Problem, Sent, Setting, Step, To
from flwr_fco.algorithms.contract.replies import Rejected, Replies
from flwr_fco.algorithms.decentralized import (
    DecentralizedDualAveraging,
    DecentralizedGradientTracking,
    DecentralizedRestricted,
)
from flwr_fco.algorithms.density import SparseDualAveraging
from flwr_fco.algorithms.dual_averaging import DualAveraging
from flwr_fco.algorithms.dual_fl import DualAcceleration
from flwr_fco.algorithms.fed_dr import DouglasRachford, MeanOfMemories, MeanState, rescaled
from flwr_fco.algorithms.gradient_tracking import GradientTracking, trackers
from flwr_fco.algorithms.newton import ProximalNewton
from flwr_fco.algorithms.primal_averaging import (
    GradientSteps,
    MirrorDescent,
    PrimalAveraging,
    PrimalState,
    SubgradientSteps,
)
from flwr_fco.algorithms.restricted_gradient_tracking import MultistepGradientTracking, RestrictedGradientTracking
from flwr_fco.algorithms.saddle_points import DualExtrapolation, MirrorProx
from flwr_fco.messages.protocol import Downlink

__all__ = ["Algorithm", "Change", "Client", "DecentralizedDualAveraging", "DecentralizedGradientTracking"]
__all__ += ["DecentralizedRestricted", "DouglasRachford", "Downlink", "DualAcceleration", "DualAveraging"]
__all__ += ["DualExtrapolation", "GradientSteps", "GradientTracking", "MeanOfMemories", "MeanState", "Memory"]
__all__ += ["MirrorDescent", "MirrorProx", "Moved", "MultistepGradientTracking", "PrimalAveraging", "PrimalState"]
__all__ += ["Problem", "ProximalNewton", "Rejected", "Replies", "RestrictedGradientTracking", "Sent", "Setting"]
__all__ += ["SparseDualAveraging", "Step", "SubgradientSteps", "To", "rescaled", "trackers"]

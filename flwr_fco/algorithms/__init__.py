"""Methods: what a client does in a round and what it remembers, once for both sides."""

from flwr_fco.algorithms.client_momentum import ClientMomentum
from flwr_fco.algorithms.contract import ClientHalf, Moved, Start
from flwr_fco.algorithms.dual_averaging import DualAveraging
from flwr_fco.algorithms.dual_fl import DualFLClient
from flwr_fco.algorithms.fast_dual_averaging import FastDualAveraging
from flwr_fco.algorithms.fed_dr import FedDRClient
from flwr_fco.algorithms.fed_dyn import FedDynClient
from flwr_fco.algorithms.gradient_tracking import GradientTracking, TrackedDualAveraging
from flwr_fco.algorithms.mirror_descent import MirrorDescent, Subgradient
from flwr_fco.algorithms.proximal_point import ProximalPoint
from flwr_fco.algorithms.rivals.apda_inexact import APDAClient
from flwr_fco.algorithms.rivals.fed_pd import FedPDClient
from flwr_fco.algorithms.rivals.five_gcs import FiveGCSClient
from flwr_fco.algorithms.rivals.saddle_baselines import DescentAscent, ExtraStep
from flwr_fco.algorithms.rivals.sharpness_aware import SharpnessAware
from flwr_fco.algorithms.saddle_points import DualExtrapolation, MirrorProx
from flwr_fco.algorithms.scaffnew import ScaffnewClient

__all__ = [
    "APDAClient",
    "ClientHalf",
    "ClientMomentum",
    "DescentAscent",
    "DualAveraging",
    "DualExtrapolation",
    "DualFLClient",
    "ExtraStep",
    "FastDualAveraging",
    "FedDRClient",
    "FedDynClient",
    "FedPDClient",
    "FiveGCSClient",
    "GradientTracking",
    "MirrorDescent",
    "MirrorProx",
    "Moved",
    "ProximalPoint",
    "ScaffnewClient",
    "SharpnessAware",
    "Start",
    "Subgradient",
    "TrackedDualAveraging",
]

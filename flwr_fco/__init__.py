"""flwr_fco: federated composite optimisation for Flower.

The main names are exported here: strategies, regularizers, mirror maps, objectives, ``client_app`` and ``simulate``.
Each is imported on first use, so that ``import flwr_fco`` is fast and needs neither Flower nor Numba.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

__version__: str

if TYPE_CHECKING:
    # For type checkers; the same names are below. (Flower ships no .pyi where it runs this repository as an app.)
    from flwr_fco.client_apps import client_app as client_app, short_mod as short_mod  # noqa: I001 (short lines, not a name a line)
    from flwr_fco.mirror_maps import DiagonalMetric as DiagonalMetric, Euclidean as Euclidean, MirrorMap as MirrorMap
    from flwr_fco.mirror_maps import PNorm as PNorm, Product as Product, SimplexEntropy as SimplexEntropy
    from flwr_fco.objectives import BilinearSaddle as BilinearSaddle, CoxRegression as CoxRegression
    from flwr_fco.objectives import FunctionSaddle as FunctionSaddle, Huber as Huber
    from flwr_fco.objectives import LeastSquares as LeastSquares, Linear as Linear, Link as Link, Logistic as Logistic
    from flwr_fco.objectives import MultinomialLogistic as MultinomialLogistic, Objective as Objective
    from flwr_fco.objectives import Poisson as Poisson, SaddleObjective as SaddleObjective
    from flwr_fco.objectives import SiteIntercept as SiteIntercept, SquaredHinge as SquaredHinge
    from flwr_fco.objectives import TraceRegression as TraceRegression
    from flwr_fco.privacy import GaussianDP as GaussianDP
    from flwr_fco.regularizers import L1 as L1, L2 as L2, Adapter as Adapter, BoundRegularizer as BoundRegularizer
    from flwr_fco.regularizers import Box as Box, ElasticNet as ElasticNet
    from flwr_fco.regularizers import GroupLasso as GroupLasso, HardSparsity as HardSparsity, L1Ball as L1Ball
    from flwr_fco.regularizers import L2Ball as L2Ball, L2Squared as L2Squared, LInfinityBall as LInfinityBall
    from flwr_fco.regularizers import NofM as NofM, NonNegative as NonNegative, Nuclear as Nuclear
    from flwr_fco.regularizers import NuclearBall as NuclearBall
    from flwr_fco.regularizers import PerParameter as PerParameter, Regularizer as Regularizer
    from flwr_fco.regularizers import Separable as Separable, Simplex as Simplex
    from flwr_fco.regularizers import SparseGroupLasso as SparseGroupLasso, SpectralBall as SpectralBall
    from flwr_fco.regularizers import Terms as Terms, Zero as Zero
    from flwr_fco.simulation.fit_path import fit_path as fit_path
    from flwr_fco.simulation.simulate import simulate as simulate
    from flwr_fco.strategies import Arrays as Arrays, Average as Average, Bounds as Bounds
    from flwr_fco.strategies import CompositeStrategy as CompositeStrategy, Density as Density, DFedDA as DFedDA
    from flwr_fco.strategies import DFedDAGT as DFedDAGT, DReFedDAGT as DReFedDAGT, DualFL as DualFL, Epochs as Epochs
    from flwr_fco.strategies import Everyone as Everyone
    from flwr_fco.strategies import FedAvgSubgradient as FedAvgSubgradient, FedDA as FedDA, FedDAGT as FedDAGT
    from flwr_fco.strategies import FedDR as FedDR, FedDualAvg as FedDualAvg, FedDualAvgOSP as FedDualAvgOSP
    from flwr_fco.strategies import FedMid as FedMid, FedMidOSP as FedMidOSP, FedMiP as FedMiP
    from flwr_fco.strategies import FedNewton as FedNewton, FeDualEx as FeDualEx, Last as Last, Ledger as Ledger
    from flwr_fco.strategies import LocalSGD as LocalSGD, Minimise as Minimise
    from flwr_fco.strategies import MultistepReFedDAGT as MultistepReFedDAGT, Participation as Participation
    from flwr_fco.strategies import Reference as Reference, ReFedDAGT as ReFedDAGT, Scaffold as Scaffold, Short as Short
    from flwr_fco.strategies import Steps as Steps
    from flwr_fco.strategies import Strengths as Strengths, Trimmed as Trimmed, Wire as Wire
else:
    #: What each module provides: the names above, where they are imported from.
    _NAMES = {
        "client_apps": "client_app short_mod",
        "mirror_maps": "DiagonalMetric Euclidean MirrorMap PNorm Product SimplexEntropy",
        "objectives": (
            "BilinearSaddle CoxRegression FunctionSaddle Huber LeastSquares Linear Link Logistic MultinomialLogistic "
            "Objective Poisson SaddleObjective SiteIntercept SquaredHinge TraceRegression"
        ),
        "privacy": "GaussianDP",
        "regularizers": (
            "Adapter BoundRegularizer Box ElasticNet GroupLasso HardSparsity L1 L1Ball L2 L2Ball L2Squared "
            "LInfinityBall NofM NonNegative Nuclear NuclearBall PerParameter Regularizer Separable Simplex "
            "SparseGroupLasso SpectralBall Terms Zero"
        ),
        "simulation.fit_path": "fit_path",
        "simulation.simulate": "simulate",
        "strategies": (
            "Arrays Average Bounds CompositeStrategy DFedDA DFedDAGT DReFedDAGT Density DualFL Epochs Everyone "
            "FeDualEx FedAvgSubgradient FedDA FedDAGT FedDR FedDualAvg FedDualAvgOSP FedMiP FedMid FedMidOSP FedNewton "
            "Last Ledger LocalSGD Minimise MultistepReFedDAGT Participation ReFedDAGT Reference Scaffold Short Steps "
            "Strengths Trimmed Wire"
        ),
    }
    _HOMES = {name: f"flwr_fco.{module}" for module, names in _NAMES.items() for name in names.split()}
    __all__ = sorted(_HOMES)

    def __getattr__(name):
        if name == "__version__":
            try:
                return version("flwr-fco")
            except PackageNotFoundError:
                # A clone on the path that was never installed.
                return "0+unknown"
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        # The next look-up does not come here.
        value = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return value

    def __dir__():
        return sorted({*globals(), *__all__, "__version__"})

"""flwr_fco: federated composite optimisation for Flower.

The main names are exported here: strategies, regularizers, mirror maps, objectives, ``client_app`` and ``simulate``.
Each is imported on first use, so that ``import flwr_fco`` is fast and needs neither Flower nor Numba.
"""

from __future__ import annotations

from ast import ImportFrom, parse, walk
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

__version__: str

if TYPE_CHECKING:
    # The one list of names: type checkers read it, and so does the code below. (A stub file, as `lazy_loader` reads it,
    # would be missing where Flower runs this repository as an app: it ships no .pyi.)
    from flwr_fco.client_apps import client_app as client_app  # noqa: I001 (short lines, not a name a line)
    from flwr_fco.mirror_maps import DiagonalMetric as DiagonalMetric, Euclidean as Euclidean, MirrorMap as MirrorMap
    from flwr_fco.mirror_maps import OrthantEntropy as OrthantEntropy, PNorm as PNorm, Product as Product
    from flwr_fco.mirror_maps import SimplexEntropy as SimplexEntropy, TermwiseMap as TermwiseMap
    from flwr_fco.objectives import BilinearSaddle as BilinearSaddle, CoxRegression as CoxRegression
    from flwr_fco.objectives import FunctionSaddle as FunctionSaddle, Hinge as Hinge, Huber as Huber
    from flwr_fco.objectives import LeastSquares as LeastSquares, Logistic as Logistic, MatrixGame as MatrixGame
    from flwr_fco.objectives import MultinomialLogistic as MultinomialLogistic, Objective as Objective
    from flwr_fco.objectives import Poisson as Poisson, QuadraticSaddle as QuadraticSaddle
    from flwr_fco.objectives import SaddleObjective as SaddleObjective, SiteIntercept as SiteIntercept
    from flwr_fco.objectives import TraceRegression as TraceRegression
    from flwr_fco.objectives import UniversalAdversarialLogistic as UniversalAdversarialLogistic
    from flwr_fco.privacy import GaussianDP as GaussianDP
    from flwr_fco.regularizers import L1 as L1, L2 as L2, Adapter as Adapter, AffineSubspace as AffineSubspace
    from flwr_fco.regularizers import BoundRegularizer as BoundRegularizer, Box as Box, ElasticNet as ElasticNet
    from flwr_fco.regularizers import FlatRegularizer as FlatRegularizer, FusedLasso as FusedLasso
    from flwr_fco.regularizers import GroupLasso as GroupLasso, HardSparsity as HardSparsity, L1Ball as L1Ball
    from flwr_fco.regularizers import L2Ball as L2Ball, L2Squared as L2Squared, LInfinity as LInfinity
    from flwr_fco.regularizers import LInfinityBall as LInfinityBall, LpNorm as LpNorm, Monotone as Monotone
    from flwr_fco.regularizers import NonNegative as NonNegative, Nuclear as Nuclear, NuclearBall as NuclearBall
    from flwr_fco.regularizers import PerParameter as PerParameter, Proximable as Proximable, Regularizer as Regularizer
    from flwr_fco.regularizers import SeparableTerms as SeparableTerms, Simplex as Simplex
    from flwr_fco.regularizers import SparseGroupLasso as SparseGroupLasso, SpectralBall as SpectralBall
    from flwr_fco.regularizers import TotalVariation as TotalVariation, Zero as Zero
    from flwr_fco.simulation.fit_path import fit_path as fit_path
    from flwr_fco.simulation.simulate import simulate as simulate
    from flwr_fco.strategies import CompositeStrategy as CompositeStrategy, DFedDA as DFedDA, DFedDAGT as DFedDAGT
    from flwr_fco.strategies import DReFedDAGT as DReFedDAGT, DualFL as DualFL, Epochs as Epochs
    from flwr_fco.strategies import FedAvgSubgradient as FedAvgSubgradient, FedDA as FedDA, FedDAGT as FedDAGT
    from flwr_fco.strategies import FedDR as FedDR, FedDualAvg as FedDualAvg, FedDualAvgOSP as FedDualAvgOSP
    from flwr_fco.strategies import FedMid as FedMid, FedMidOSP as FedMidOSP, FedMiP as FedMiP
    from flwr_fco.strategies import FedNewton as FedNewton, FeDualEx as FeDualEx, LocalSGD as LocalSGD
    from flwr_fco.strategies import MultistepReFedDAGT as MultistepReFedDAGT, ReFedDAGT as ReFedDAGT
    from flwr_fco.strategies import Scaffold as Scaffold, Steps as Steps
else:
    _HOMES = {
        alias.name: node.module
        for node in walk(parse(Path(__file__).read_text(encoding="utf-8")))
        if isinstance(node, ImportFrom)
        for alias in node.names
        if alias.asname == alias.name
    }
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

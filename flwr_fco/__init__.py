"""flwr_fco: federated composite optimisation for Flower.

What one starts with is here: strategies, regularizers, mirror maps, objectives, ``client_app`` and ``simulate``. Each
is imported when it is first used, so that ``import flwr_fco`` takes no time and needs neither Flower nor Numba.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from flwr_fco.core.moved import OldNames

if TYPE_CHECKING:
    # The same names as in _EXPORTS, for editors and type checkers.
    from flwr_fco.client_apps import client_app
    from flwr_fco.mirror_maps import (
        DiagonalMetric,
        Euclidean,
        MirrorMap,
        OrthantEntropy,
        PNorm,
        Product,
        SimplexEntropy,
        TermwiseMap,
    )
    from flwr_fco.objectives import (
        BilinearSaddle,
        FunctionSaddle,
        Hinge,
        LeastSquares,
        Logistic,
        MatrixGame,
        MultinomialLogistic,
        Objective,
        QuadraticSaddle,
        SaddleObjective,
        TraceRegression,
        UniversalAdversarialLogistic,
    )
    from flwr_fco.regularizers import (
        L1,
        L2,
        Adapter,
        AffineSubspace,
        BoundRegularizer,
        Box,
        ElasticNet,
        FlatRegularizer,
        FusedLasso,
        GroupLasso,
        HardSparsity,
        L1Ball,
        L2Ball,
        L2Squared,
        LInfinity,
        LInfinityBall,
        NonNegative,
        Nuclear,
        NuclearBall,
        PerParameter,
        Proximable,
        Regularizer,
        SeparableTerms,
        Simplex,
        SparseGroupLasso,
        SpectralBall,
        TotalVariation,
        Zero,
    )
    from flwr_fco.simulation.fit_path import fit_path
    from flwr_fco.simulation.simulate import simulate
    from flwr_fco.strategies import (
        APDAInexact,
        CFedDA,
        CompositeStrategy,
        DFedDA,
        DFedDAGT,
        DFedMid,
        DistributedPGDA,
        DReFedDAGT,
        DScaffold,
        DualFL,
        ExtraStepLocalSGD,
        FastFedDA,
        FedAvgS,
        FedAvgSubgradient,
        FedCM,
        FedDA,
        FedDAGT,
        FedDR,
        FedDualAvg,
        FedDualAvgOSP,
        FedDyn,
        FedMid,
        FedMidOSP,
        FedMiP,
        FedPD,
        FedProx,
        FedSAM,
        FeDualEx,
        FiveGCS,
        LocalSGD,
        MCFedDA,
        MultistepReFedDAGT,
        ReFedDAGT,
        Scaffnew,
        Scaffold,
        ScaffoldS,
    )

__version__: str

__all__ = [
    "L1",
    "L2",
    "APDAInexact",
    "Adapter",
    "AffineSubspace",
    "BilinearSaddle",
    "BoundRegularizer",
    "Box",
    "CFedDA",
    "CompositeStrategy",
    "DFedDA",
    "DFedDAGT",
    "DFedMid",
    "DReFedDAGT",
    "DScaffold",
    "DiagonalMetric",
    "DistributedPGDA",
    "DualFL",
    "ElasticNet",
    "Euclidean",
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
    "FlatRegularizer",
    "FunctionSaddle",
    "FusedLasso",
    "GroupLasso",
    "HardSparsity",
    "Hinge",
    "L1Ball",
    "L2Ball",
    "L2Squared",
    "LInfinity",
    "LInfinityBall",
    "LeastSquares",
    "LocalSGD",
    "Logistic",
    "MCFedDA",
    "MatrixGame",
    "MirrorMap",
    "MultinomialLogistic",
    "MultistepReFedDAGT",
    "NonNegative",
    "Nuclear",
    "NuclearBall",
    "Objective",
    "OrthantEntropy",
    "PNorm",
    "PerParameter",
    "Product",
    "Proximable",
    "QuadraticSaddle",
    "ReFedDAGT",
    "Regularizer",
    "SaddleObjective",
    "Scaffnew",
    "Scaffold",
    "ScaffoldS",
    "SeparableTerms",
    "Simplex",
    "SimplexEntropy",
    "SparseGroupLasso",
    "SpectralBall",
    "TermwiseMap",
    "TotalVariation",
    "TraceRegression",
    "UniversalAdversarialLogistic",
    "Zero",
    "client_app",
    "fit_path",
    "simulate",
]

_EXPORTS = {
    "client_apps": "client_app",
    "mirror_maps": "DiagonalMetric Euclidean MirrorMap OrthantEntropy PNorm Product SimplexEntropy TermwiseMap",
    "objectives": (
        "BilinearSaddle FunctionSaddle Hinge LeastSquares Logistic MatrixGame MultinomialLogistic Objective "
        "QuadraticSaddle SaddleObjective TraceRegression UniversalAdversarialLogistic"
    ),
    "simulation.fit_path": "fit_path",
    "regularizers": (
        "L1 L2 Adapter AffineSubspace BoundRegularizer Box ElasticNet FlatRegularizer FusedLasso GroupLasso "
        "HardSparsity L1Ball L2Ball L2Squared LInfinity LInfinityBall NonNegative Nuclear NuclearBall PerParameter "
        "Proximable Regularizer SeparableTerms Simplex SparseGroupLasso SpectralBall TotalVariation Zero"
    ),
    "simulation": "simulate",
    "strategies": (
        "APDAInexact CFedDA CompositeStrategy DFedDA DFedDAGT DFedMid DReFedDAGT DScaffold "
        "DistributedPGDA DualFL ExtraStepLocalSGD FastFedDA FeDualEx FedAvgS FedAvgSubgradient FedCM "
        "FedDA FedDAGT FedDR FedDualAvg FedDualAvgOSP FedDyn FedMiP FedMid FedMidOSP FedPD FedProx "
        "FedSAM FiveGCS LocalSGD MCFedDA MultistepReFedDAGT ReFedDAGT Scaffnew Scaffold ScaffoldS"
    ),
}
sys.meta_path.append(OldNames)
_HOMES = {name: part for part, names in _EXPORTS.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        try:
            return version("flwr-fco")
        except PackageNotFoundError:
            # A clone on the path that was never installed.
            return "0+unknown"
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    # The next look-up does not come here.
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})

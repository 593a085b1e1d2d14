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
    # For type checkers: the names below, and of losses and strategies a few more. (Flower ships no .pyi where it runs
    # this repository as an app.)
    from flwr_fco.client_apps import client_app as client_app, short_mod as short_mod  # noqa: I001 (in one line)
    from flwr_fco.mirror_maps import *  # noqa: F403
    from flwr_fco.objectives import *  # noqa: F403
    from flwr_fco.privacy import *  # noqa: F403
    from flwr_fco.regularizers import *  # noqa: F403
    from flwr_fco.simulation.fit_path import fit_path as fit_path
    from flwr_fco.simulation.simulate import simulate as simulate
    from flwr_fco.strategies import *  # noqa: F403
else:
    #: What each module provides, in as many rows as it takes.
    _ROWS = """
    client_apps client_app short_mod
    mirror_maps DiagonalMetric Euclidean MirrorMap PNorm Product SimplexEntropy
    objectives BilinearSaddle CoxRegression FunctionSaddle Huber LeastSquares Linear Link Logistic
    objectives MultinomialLogistic Objective Poisson SaddleObjective SiteIntercept SquaredHinge TraceRegression
    privacy GaussianDP
    regularizers Adapter BoundRegularizer Box ElasticNet GroupLasso HardSparsity L1 L1Ball L2 L2Ball L2Squared
    regularizers LInfinityBall NofM NonNegative Nuclear NuclearBall PerParameter Regularizer Separable Simplex
    regularizers SparseGroupLasso SpectralBall Terms Zero
    simulation.fit_path fit_path
    simulation.simulate simulate
    strategies Arrays Average Bounds CompositeStrategy DFedDA DFedDAGT DReFedDAGT Density DualFL Epochs Everyone
    strategies FeDualEx FedAvgSubgradient FedDA FedDAGT FedDR FedDualAvg FedDualAvgOSP FedMiP FedMid FedMidOSP
    strategies FedNewton Last Ledger LocalSGD Minimise MultistepReFedDAGT Participation ReFedDAGT Reference
    strategies Scaffold Short Steps Strengths Trimmed Wire
    """.strip().splitlines()
    _HOMES = {name: f"flwr_fco.{module}" for module, *names in map(str.split, _ROWS) for name in names}
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
        return [*__all__, "__version__"]

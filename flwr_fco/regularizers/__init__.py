"""Regularizers psi: value, exact proximal map, and how they act on a model's arrays."""

from flwr_fco.regularizers.base import BoundRegularizer, Regularizer, Terms
from flwr_fco.regularizers.named import Adapter, PerParameter
from flwr_fco.regularizers.norms import L2, GroupLasso, Nuclear, NuclearBall, SparseGroupLasso, SpectralBall
from flwr_fco.regularizers.separable import L1, Box, ElasticNet, L2Squared, LInfinityBall, NonNegative, Separable, Zero
from flwr_fco.regularizers.sets import HardSparsity, L1Ball, L2Ball, NofM, Simplex

__all__ = ["L1", "L2", "Adapter", "BoundRegularizer", "Box", "ElasticNet", "GroupLasso", "HardSparsity", "L1Ball"]
__all__ += ["L2Ball", "L2Squared", "LInfinityBall", "NofM", "NonNegative", "Nuclear", "NuclearBall", "PerParameter"]
__all__ += ["Regularizer", "Separable", "Simplex", "SparseGroupLasso", "SpectralBall", "Terms", "Zero"]

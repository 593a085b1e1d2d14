"""Regularizers psi: value, exact proximal map, and how they act on a model's arrays."""

from flwr_fco.regularizers.base import BoundRegularizer, PerParameter, Regularizer, Separable, Terms, Zero
from flwr_fco.regularizers.kinds import (
    L1,
    L2,
    Adapter,
    Box,
    ElasticNet,
    GroupLasso,
    HardSparsity,
    L1Ball,
    L2Ball,
    L2Squared,
    LInfinityBall,
    NofM,
    NonNegative,
    Nuclear,
    NuclearBall,
    Simplex,
    SparseGroupLasso,
    SpectralBall,
)

__all__ = ["L1", "L2", "Adapter", "BoundRegularizer", "Box", "ElasticNet", "GroupLasso", "HardSparsity", "L1Ball"]
__all__ += ["L2Ball", "L2Squared", "LInfinityBall", "NofM", "NonNegative", "Nuclear", "NuclearBall", "PerParameter"]
__all__ += ["Regularizer", "Separable", "Simplex", "SparseGroupLasso", "SpectralBall", "Terms", "Zero"]

"""Regularizers psi: value, exact proximal map, and how they act on a model's arrays."""

from flwr_fco.regularizers.adapter import Adapter
from flwr_fco.regularizers.base import BoundRegularizer, FlatRegularizer, Proximable, Regularizer, SeparableTerms
from flwr_fco.regularizers.conjugates import conjugate
from flwr_fco.regularizers.constraints import (
    Box,
    HardSparsity,
    L1Ball,
    L2Ball,
    LInfinityBall,
    NonNegative,
    Simplex,
)
from flwr_fco.regularizers.groups import L2, GroupLasso, SparseGroupLasso
from flwr_fco.regularizers.per_parameter import PerParameter
from flwr_fco.regularizers.separable import L1, ElasticNet, L2Squared, Zero
from flwr_fco.regularizers.spectral import Nuclear, NuclearBall, SpectralBall

__all__ = [
    "L1",
    "L2",
    "Adapter",
    "BoundRegularizer",
    "Box",
    "ElasticNet",
    "FlatRegularizer",
    "GroupLasso",
    "HardSparsity",
    "L1Ball",
    "L2Ball",
    "L2Squared",
    "LInfinityBall",
    "NonNegative",
    "Nuclear",
    "NuclearBall",
    "PerParameter",
    "Proximable",
    "Regularizer",
    "SeparableTerms",
    "Simplex",
    "SparseGroupLasso",
    "SpectralBall",
    "Zero",
    "conjugate",
]

"""Regularizers psi: value, exact proximal map, and how they act on a model's arrays."""

from flwr_fco.regularizers.balls import L1Ball, L2Ball, Simplex
from flwr_fco.regularizers.base import BoundRegularizer, Proximable, Regularizer, SeparableTerms
from flwr_fco.regularizers.boxes import Box, LInfinityBall, NonNegative
from flwr_fco.regularizers.per_parameter import PerParameter
from flwr_fco.regularizers.separable import L1, ElasticNet, L2Squared, Zero
from flwr_fco.regularizers.spectral import Nuclear

__all__ = [
    "L1",
    "BoundRegularizer",
    "Box",
    "ElasticNet",
    "L1Ball",
    "L2Ball",
    "L2Squared",
    "LInfinityBall",
    "NonNegative",
    "Nuclear",
    "PerParameter",
    "Proximable",
    "Regularizer",
    "SeparableTerms",
    "Simplex",
    "Zero",
]

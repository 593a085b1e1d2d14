"""Regularizers psi: value, exact proximal map, and how they act on a model's arrays."""

from flwr_fco.regularizers import kinds
from flwr_fco.regularizers.base import BoundRegularizer, PerParameter, Regularizer, Separable, Terms, Zero
from flwr_fco.regularizers.kinds import *  # noqa: F403

__all__ = ["BoundRegularizer", "PerParameter", "Regularizer", "Separable", "Terms", "Zero"]
__all__ += kinds.__all__

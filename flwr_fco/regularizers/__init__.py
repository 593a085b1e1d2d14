"""Regularizers psi: value, exact proximal map, and how they act on a model's arrays."""

from flwr_fco.regularizers.base import BoundRegularizer, Proximable, Regularizer, SeparableTerms

__all__ = ["BoundRegularizer", "Proximable", "Regularizer", "SeparableTerms"]

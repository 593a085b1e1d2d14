"""Functions that need all data in one place: certificates of optimality, minimisers, scores of a solution.

An experiment has the data of all clients; a deployment never does.
"""

from reproduction.pooled.certificates import certify, client_weights, composite_objective, pooled_gradient, stationarity
from reproduction.pooled.reference import centralized_solution
from reproduction.pooled.saddle import duality_gap, saddle_metrics, strongest_perturbation
from reproduction.pooled.scores import SupportScores, density, numerical_rank, recovery_error, support_scores

__all__ = [
    "SupportScores",
    "centralized_solution",
    "certify",
    "client_weights",
    "composite_objective",
    "density",
    "duality_gap",
    "numerical_rank",
    "pooled_gradient",
    "recovery_error",
    "saddle_metrics",
    "stationarity",
    "strongest_perturbation",
    "support_scores",
]

"""Functions that need all data in one place: certificates of optimality, reference solutions, scores of a solution.

An experiment has the data of all clients; a deployment never does, so no strategy or client app imports this package.
"""

from flwr_fco.pooled.certificates import (
    certify,
    client_weights,
    composite_objective,
    lasso_duality_gap,
    logistic_duality_gap,
    pooled_gradient,
    stationarity,
)
from flwr_fco.pooled.reference import centralized_solution, sklearn_solution
from flwr_fco.pooled.saddle import (
    duality_gap,
    game_solution,
    natural_residual,
    saddle_metrics,
    saddle_point,
    strongest_perturbation,
)
from flwr_fco.pooled.scores import SupportScores, density, numerical_rank, recovery_error, support, support_scores

__all__ = [
    "SupportScores",
    "centralized_solution",
    "certify",
    "client_weights",
    "composite_objective",
    "density",
    "duality_gap",
    "game_solution",
    "lasso_duality_gap",
    "logistic_duality_gap",
    "natural_residual",
    "numerical_rank",
    "pooled_gradient",
    "recovery_error",
    "saddle_metrics",
    "saddle_point",
    "sklearn_solution",
    "stationarity",
    "strongest_perturbation",
    "support",
    "support_scores",
]

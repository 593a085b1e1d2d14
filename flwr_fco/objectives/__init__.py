"""Objectives F_m: a client's loss, its stochastic gradients and its metrics."""

from flwr_fco.objectives.base import Batch, Objective
from flwr_fco.objectives.least_squares import LeastSquares, TraceRegression
from flwr_fco.objectives.logistic import Logistic, MultinomialLogistic
from flwr_fco.objectives.saddle import (
    BilinearSaddle,
    FunctionSaddle,
    MatrixGame,
    QuadraticSaddle,
    SaddleObjective,
    UniversalAdversarialLogistic,
)

__all__ = [
    "Batch",
    "BilinearSaddle",
    "FunctionSaddle",
    "LeastSquares",
    "Logistic",
    "MatrixGame",
    "MultinomialLogistic",
    "Objective",
    "QuadraticSaddle",
    "SaddleObjective",
    "TraceRegression",
    "UniversalAdversarialLogistic",
]

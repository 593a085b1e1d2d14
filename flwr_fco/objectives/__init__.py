"""Objectives F_m: a client's loss, its stochastic gradients and its metrics."""

from flwr_fco.core.layout import Layout, Vector
from flwr_fco.objectives.base import Batch, DualTerms, Line, Objective
from flwr_fco.objectives.design import Design, LinearData
from flwr_fco.objectives.hinge import Hinge
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
    "Design",
    "DualTerms",
    "FunctionSaddle",
    "Hinge",
    "Layout",
    "LeastSquares",
    "Line",
    "LinearData",
    "Logistic",
    "MatrixGame",
    "MultinomialLogistic",
    "Objective",
    "QuadraticSaddle",
    "SaddleObjective",
    "TraceRegression",
    "UniversalAdversarialLogistic",
    "Vector",
]

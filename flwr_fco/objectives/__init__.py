"""Objectives F_m: a client's loss, its stochastic gradients and its metrics."""

from flwr_fco.core.layout import Layout, Vector
from flwr_fco.objectives.base import Batch, DualTerms, Line, Objective
from flwr_fco.objectives.classification import Logistic, MultinomialLogistic
from flwr_fco.objectives.design import Design, LinearData
from flwr_fco.objectives.duality import duality_terms
from flwr_fco.objectives.regression import Huber, LeastSquares, Poisson, TraceRegression
from flwr_fco.objectives.saddle import BilinearSaddle, FunctionSaddle, SaddleObjective
from flwr_fco.objectives.site_intercept import SiteIntercept
from flwr_fco.objectives.survival import CoxRegression

__all__ = [
    "Batch",
    "BilinearSaddle",
    "CoxRegression",
    "Design",
    "DualTerms",
    "FunctionSaddle",
    "Huber",
    "Layout",
    "LeastSquares",
    "Line",
    "LinearData",
    "Logistic",
    "MultinomialLogistic",
    "Objective",
    "Poisson",
    "SaddleObjective",
    "SiteIntercept",
    "TraceRegression",
    "Vector",
    "duality_terms",
]

"""Objectives F_m: a client's loss, its stochastic gradients and its metrics."""

from flwr_fco.core.layout import Layout, Vector  # noqa: I001 (short lines, not a name a line)
from flwr_fco.objectives.base import Batch, Line, Objective
from flwr_fco.objectives.linear import Huber, LeastSquares, Linear, Logistic, MultinomialLogistic, Poisson
from flwr_fco.objectives.linear import SquaredHinge, TraceRegression
from flwr_fco.objectives.links import Link
from flwr_fco.objectives.saddle import BilinearSaddle, FunctionSaddle, SaddleObjective
from flwr_fco.objectives.site_intercept import SiteIntercept
from flwr_fco.objectives.survival import CoxRegression

__all__ = ["Batch", "BilinearSaddle", "CoxRegression", "FunctionSaddle", "Huber", "Layout", "LeastSquares", "Line"]
__all__ += ["Linear", "Link", "Logistic", "MultinomialLogistic", "Objective", "Poisson", "SaddleObjective"]
__all__ += ["SiteIntercept", "SquaredHinge", "TraceRegression", "Vector"]

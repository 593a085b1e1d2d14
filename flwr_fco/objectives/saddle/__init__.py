"""Saddle-point objectives min over x, max over y of f(x, y); their gradient is the operator (grad_x f, -grad_y f)."""

from flwr_fco.objectives.saddle.adversarial import UniversalAdversarialLogistic
from flwr_fco.objectives.saddle.base import FunctionSaddle, SaddleObjective
from flwr_fco.objectives.saddle.bilinear import BilinearSaddle
from flwr_fco.objectives.saddle.game import MatrixGame
from flwr_fco.objectives.saddle.quadratic import QuadraticSaddle

__all__ = [
    "BilinearSaddle",
    "FunctionSaddle",
    "MatrixGame",
    "QuadraticSaddle",
    "SaddleObjective",
    "UniversalAdversarialLogistic",
]

"""A federated proximal Newton method on a working set.

========================  ============================================================
:mod:`.method`            both halves of the method
:mod:`.path`              all strengths of a path, and the folds of a cross-validation, in each message
:mod:`.halves`            the same for complementary halves of a stability selection
:mod:`.dealing`           how a client deals its rows into folds and halves
:mod:`.accelerated`       the same exchanges without a Hessian
:mod:`.quasi_newton`      these for an l2 term
:mod:`.model`             the quadratic model of a step, and its minimiser
:mod:`.working_set`       the coordinates of a step
:mod:`.terms`             what a duality gap takes of an exchange
:mod:`.exchange`          whose an exchange is, what is possible, how far the run is
========================  ============================================================
"""

from flwr_fco.algorithms.newton.gradient_steps import (
    AcceleratedGradient,
    AcceleratedState,
    QuasiNewton,
    QuasiNewtonState,
)
from flwr_fco.algorithms.newton.method import NewtonState, ProximalNewton
from flwr_fco.algorithms.newton.path import NewtonPath, PathState

__all__ = [
    "AcceleratedGradient",
    "AcceleratedState",
    "NewtonPath",
    "NewtonState",
    "PathState",
    "ProximalNewton",
    "QuasiNewton",
    "QuasiNewtonState",
]

"""A federated proximal Newton method on a working set.

========================  ============================================================
:mod:`.method`            both halves of the method
:mod:`.path`              all strengths of a path, and the folds of a cross-validation, in each message
:mod:`.information`       one exchange about one point, with the whole Hessian
:mod:`.gradient_steps`    the same exchanges without a Hessian, and L-BFGS for an l2 term
:mod:`.model`             the quadratic model of a step, its minimiser, and the coordinates of a step
:mod:`.terms`             what a duality gap takes of an exchange
:mod:`.exchange`          whose an exchange is, what is possible, how far the run is
========================  ============================================================
"""

from flwr_fco.algorithms.newton.method import ProximalNewton as ProximalNewton
from flwr_fco.algorithms.newton.path import NewtonPath as NewtonPath
from flwr_fco.algorithms.newton.path import newton_method as newton_method

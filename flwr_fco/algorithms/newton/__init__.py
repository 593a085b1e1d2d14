"""A federated proximal Newton method on a working set.

========================  ============================================================
:mod:`.method`            both halves of the method, and the same exchanges without a Hessian
:mod:`.model`             the quadratic model of a step, its minimiser, and the coordinates of a step
:mod:`.asking`            a client's answer and folds, what of it is possible, and the gap that it gives
:mod:`.path`              all strengths of a path, and the folds of a cross-validation, in each message
========================  ============================================================
"""

from flwr_fco.algorithms.newton.method import ProximalNewton as ProximalNewton
from flwr_fco.algorithms.newton.method import QuasiNewton as QuasiNewton
from flwr_fco.algorithms.newton.path import NewtonPath as NewtonPath

"""SCAFFOLD-S: control variates against client drift, on saddle points.

Hou, Thekumparampil, Fanti, Oh: Efficient algorithms for federated saddle point optimization (2021): SCAFFOLD with the
operator g = (grad_x f, -grad_y f) instead of the gradient. A local solver steps against whatever the objective returns
as its gradient, so this is exactly :class:`Scaffold`; the name makes it easy to find.

Without an extra step it needs strong convexity and strong concavity: on bilinear problems it diverges, as
descent-ascent does.

Differs from the paper in: 1. the paper's main method wraps SCAFFOLD-S in proximal point problems (Catalyst); this is
the inner method; 2. the differences listed in :class:`Scaffold`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flwr_fco.strategies.gradient_tracking.scaffold import Scaffold


@dataclass(repr=False, eq=False, kw_only=True)
class ScaffoldS(Scaffold):
    """SCAFFOLD on the operator of a saddle function: exact for any local work if the operator is strongly monotone.

    References
    ----------
    Hou, Thekumparampil, Fanti, Oh: Efficient algorithms for federated saddle point optimization (2021), SCAFFOLD-S.

    Examples
    --------
    >>> ScaffoldS(client_lr=0.1, local_steps=5).local_solver
    'gradient_tracking'
    """

    source: ClassVar[str] = "Hou and others 2021"

"""Federated dual extrapolation: dual averaging with an extra step, for saddle points with structure.

Algorithm 1 (FeDualEx) of Bai, Bullins: Local Composite Saddle Point Optimization (ICLR 2024), their symbols in
brackets; the dual is their auxiliary variable omega = sigma-bar - sigma::

    server: dual [omega_0] = grad h(primal [z_0]), elapsed [t_0] = 0
    each round:
        each client: start at dual; for k = 0, 1, ..., K-1, with t = elapsed + client_lr k and two fresh batches, g the
            operator (grad_x f, -grad_y f) [g_m]:
            half [z_{k+1/2}] = retrieve(dual - client_lr g(retrieve(dual, t)), t + client_lr)
            dual            <- dual - client_lr g(half)
            send the increment [omega_K - omega_0] and its own elapsed [eta_c K]
        server: dual    <- dual + server_lr mean(increment)
                elapsed <- elapsed + server_lr mean(elapsed)
                primal   = retrieve(dual, elapsed)

where retrieve(z, t) = argmin_w -<z, w> + t psi(w) + h(w). The problem is min over x, max over y of f(x, y) + psi_1(x) -
psi_2(y), one vector w = (x, y), psi(x, y) = psi_1(x) + psi_2(y); a convex loss to be minimised is the case without y.

The paper's theorems are about the average of the half steps, ``output="ergodic"``: the bound of theorem 4 does not hold
for last points. Its sparsity figures show the last point: an average is dense.

Unequal clients leave a bias of order client_lr even with one local step: the mean of g_m at the clients' own half steps
is not g at a common one.

Differs from the paper in: 1. elapsed is the sum of the step sizes that clients report, not eta_s eta_c r K (equal to
the paper's with equal K); 2. clients with more steps do not weigh more (``normalize_local_work``); 3. the default
output is the last point; 4. psi has the weight of step k + 1 in the half step, as in the paper's formula (2) and its
proofs: one sentence of its text has k + 1/2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from flwr_fco.errors import ConfigurationError
from flwr_fco.server.algorithm import Problem
from flwr_fco.server.convergence import ExtrapolationBias, Limit
from flwr_fco.server.options import PrivacyOptions, RateOptions, WorkOptions
from flwr_fco.server.strategy import CompositeStrategy
from flwr_fco.strategies.dual_averaging.fed_dual_avg import DualStrategy
from flwr_fco.wire.protocol import Option


@dataclass(repr=False, eq=False, kw_only=True)
class Extragradient(RateOptions, WorkOptions, CompositeStrategy):
    """A strategy whose clients take extragradient steps, and send all half steps for ``output="ergodic"``."""

    outputs: ClassVar[tuple[str, ...]] = ("last", "average", "moving-average", "ergodic")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.output == "ergodic" and self.local_steps is None:
            raise ConfigurationError(
                'output="ergodic" averages over the half steps, so all clients must take the same number: give '
                "local_steps instead of local_epochs"
            )

    def uplink_shapes(self, problem: Problem) -> dict[str, tuple[int, ...]]:
        """Return the shape of the increment and, for ``output="ergodic"``, of all half steps."""
        shapes = super().uplink_shapes(problem)
        if self.output == "ergodic":
            shapes["trajectory"] = (int(self.local_steps or 0), problem.layout.size)
        return shapes

    def solver_options(self) -> dict[str, Option]:
        """Return whether all half steps are sent."""
        return {"trajectory": self.output == "ergodic"}

    def client_rate(self, problem: Problem, smoothness: float, steps: int) -> tuple[float, str]:
        """Return 1/(sqrt(5) L) of theorem 1, where L is the operator's Lipschitz constant beta."""
        return 1.0 / (math.sqrt(5.0) * smoothness), "1/(sqrt(5) L)"


@dataclass(repr=False, eq=False, kw_only=True)
class FeDualEx(PrivacyOptions, Extragradient, DualStrategy):
    """Federated dual extrapolation, algorithm 1: composite saddle points with exact sparsity, low rank or feasibility.

    Parameters
    ----------
    output : {"last", "average", "moving-average", "ergodic"}, default "last"
        The primal point that evaluation and the user see: the last one, the mean over all rounds, or the mean over the
        last `window` rounds (an average is neither sparse nor of low rank). ``"ergodic"``: the mean over rounds r and
        local steps k of retrieve(mean_m omega_{r,k+1/2}^m, t_r + client_lr (k + 1)), which the theorems are about. For
        research: clients also send the duals of all half steps, so the uplink is K + 1 times as large and the server
        computes K more proximal maps a round. It needs `local_steps`.

    References
    ----------
    Bai, Bullins: Local Composite Saddle Point Optimization (ICLR 2024), algorithm 1.

    Examples
    --------
    >>> from flwr_fco.regularizers import L1, PerParameter
    >>> psi = PerParameter({"x": L1(0.1, bound=0.05), "y": L1(0.1, bound=0.05)})
    >>> FeDualEx(regularizer=psi, client_lr=0.1, server_lr=0.1, local_steps=10, batch_size=1).local_solver
    'dual_extrapolation'
    """

    local_solver: ClassVar[str] = "dual_extrapolation"
    limit: ClassVar[Limit] = ExtrapolationBias()
    source: ClassVar[str] = "[3], algorithm 1"

"""FedSAM: local steps along gradients taken a fixed radius uphill.

Qu, Li, Duan, Liu, Tang, Lu (ICML 2022), algorithm 1; their symbols in brackets::

    each client of the sample, K times: x <- x - client_lr [eta_l] g(x + radius [rho] g(x) / ||g(x)||)
                               send the increment
    server: primal <- primal + server_lr [eta_g] mean(increment)

Both gradients of a step use the same minibatch. The fixed points are not those of the loss: FedSAM looks for flat
minima, at a distance of the order of the radius.

Differs from the paper in: 1. weights p_i; 2. unequal local work is normalised (``normalize_local_work``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from flwr_fco.server.convergence import Limit, ShiftedBy
from flwr_fco.server.options import RateOptions, WorkOptions
from flwr_fco.strategies.primal_averaging.primal import PrimalState, PrimalStrategy


@dataclass(repr=False, eq=False, kw_only=True)
class FedSAM(RateOptions, WorkOptions, PrimalStrategy):
    """FedSAM: sharpness-aware local steps.

    Parameters
    ----------
    radius : float, default 0.05
        rho >= 0; 0 is FedAvg.

    References
    ----------
    Qu, Li, Duan, Liu, Tang, Lu: Generalized federated learning via sharpness aware minimization (ICML 2022),
    algorithm 1.

    Examples
    --------
    >>> FedSAM(radius=0.05, client_lr=0.1, local_steps=5).local_solver
    'sharpness_aware'
    """

    local_solver: ClassVar[str] = "sharpness_aware"
    limit: ClassVar[Limit] = ShiftedBy(
        "a flat point near the solution, at a distance of the order of the radius and of client rate x local steps",
        option="radius",
        values=(0.1, 0.01),
        problem="smooth",
    )
    source: ClassVar[str] = "Qu and others 2022"
    sends: ClassVar[str] = "x_K - x_0"
    no_psi: ClassVar[str | None] = "its local steps are plain gradient steps"

    radius: float = field(default=0.05, metadata={"range": (lambda r: 0.0 <= r < 1e308, "a finite number >= 0")})

    def numbers(self, state: PrimalState) -> dict[str, float]:
        """Return the radius."""
        return {"radius": self.radius}

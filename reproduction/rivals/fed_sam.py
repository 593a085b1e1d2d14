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

import numpy as np

from flwr_fco.algorithms import Client, Downlink, Memory, Moved, PrimalAveraging, Sent
from flwr_fco.objectives import Batch, Vector
from flwr_fco.strategies import StepStrategy, strategy


@dataclass(frozen=True, kw_only=True)
class SharpnessAware(PrimalAveraging):
    """Steps along gradients at points a radius uphill: x <- x - client_lr g(x + radius g(x) / ||g(x)||).

    Parameters
    ----------
    radius : float
        rho; 0 gives FedAvg.

    References
    ----------
    Qu and others: Generalized federated learning via sharpness aware minimization (ICML 2022), algorithm 1.
    """

    name = "sharpness_aware"
    refuses = {
        **PrimalAveraging.refuses,
        "regularizer": "its local steps are plain gradient steps",
        "server_lr": "its increments are no steps along gradients at the model",
    }

    radius: float = 0.05

    def local(self, client: Client, downlink: Downlink, memory: Memory | None) -> tuple[Sent, Moved]:
        """Take the steps and count the gradients, two in most of them."""
        gradient_of = client.objective.gradient
        gradients = 0

        def step(point: Vector, batch: Batch) -> None:
            nonlocal gradients
            gradient = gradient_of(point, batch)
            norm = float(np.linalg.norm(gradient))
            gradients += 1
            if self.radius > 0.0 and norm > 0.0:
                gradient = gradient_of(point + (self.radius / norm) * gradient, batch)
                gradients += 1
            point -= client.rate * gradient

        sent, moved = client.steps(downlink.vectors["primal"], step)
        return sent, moved._replace(metrics={"gradient-evaluations": float(gradients)})


@strategy
class FedSAM(StepStrategy):
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
    >>> from flwr_fco.strategies import Steps
    >>> FedSAM(radius=0.1, client_lr=0.1, work=Steps(5))
    FedSAM(work=Steps(5, batch_size=32), radius=0.1)
    """

    algorithm = SharpnessAware
    radius: float = field(default=0.05, metadata={"range": (lambda r: 0.0 <= r < 1e308, "a finite number >= 0")})

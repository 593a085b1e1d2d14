"""The client half of FedSAM."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from flwr_fco.algorithms.contract import Client, Memory, Moved
from flwr_fco.algorithms.mirror_descent import PrimalSteps
from flwr_fco.core.layout import Vector
from flwr_fco.objectives.base import Batch
from flwr_fco.wire.protocol import Downlink


class SharpnessAware(PrimalSteps):
    """Steps along gradients at points a radius uphill: x <- x - client_lr g(x + radius g(x) / ||g(x)||).

    The message has the vector ``primal`` and the number ``radius``; 0 gives FedAvg. Qu and others: Generalized
    federated learning via sharpness aware minimization (ICML 2022), algorithm 1.
    """

    name: ClassVar[str] = "sharpness_aware"
    engine: ClassVar[str | None] = None

    @staticmethod
    def local(client: Client, downlink: Downlink, memory: Memory | None) -> tuple[dict[str, Vector], Moved]:
        """Take the steps and count the gradients, two in most of them."""
        rate, radius, gradient_of = client.rate, downlink.numbers["radius"], client.objective.gradient
        gradients = 0

        def step(point: Vector, batch: Batch) -> None:
            nonlocal gradients
            gradient = gradient_of(point, batch)
            norm = float(np.linalg.norm(gradient))
            gradients += 1
            if radius > 0.0 and norm > 0.0:
                gradient = gradient_of(point + (radius / norm) * gradient, batch)
                gradients += 1
            point -= rate * gradient

        moved = client.take_steps(downlink.vectors["primal"], step)
        return {"increment": moved.increment}, moved._replace(metrics={"gradient-evaluations": float(gradients)})

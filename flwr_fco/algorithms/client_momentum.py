"""Gradient steps: the client half of local SGD (FedAvg) and FedCM."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from flwr_fco.algorithms.contract import Client, Memory, Start, Step
from flwr_fco.algorithms.mirror_descent import PrimalSteps
from flwr_fco.core.layout import Vector
from flwr_fco.objectives.base import Batch
from flwr_fco.wire.protocol import Downlink


class ClientMomentum(PrimalSteps):
    """Steps x <- x - client_lr (alpha g(x) + (1 - alpha) direction); alpha = 1 (the default) is FedAvg.

    The message has the number ``mix`` (alpha) and, with alpha < 1, the vector ``direction``: the federation's last.
    Xu, Wang, Wang, Yao: FedCM (2021), algorithm 2.
    """

    name: ClassVar[str] = "client_momentum"
    engine: ClassVar[str | None] = "gradient steps"

    @staticmethod
    def begin(downlink: Downlink, memory: Memory) -> Start:
        """Begin at the server's model, with the part of the steps that is the same in each of them."""
        mix = downlink.numbers.get("mix", 1.0)
        drift = None if mix == 1.0 else downlink.client_lr * (1.0 - mix) * downlink.vectors["direction"]
        return Start(downlink.vectors["primal"], drift)

    @staticmethod
    def step(client: Client, downlink: Downlink, start: Start) -> Step:
        """Return a gradient step."""
        rate, drift, gradient_of = (
            client.rate * downlink.numbers.get("mix", 1.0),
            start.shift,
            client.objective.gradient,
        )
        gradient = np.empty_like(start.point)

        def step(point: Vector, batch: Batch) -> None:
            point -= rate * gradient_of(point, batch, gradient)
            if drift is not None:
                point -= drift

        return step

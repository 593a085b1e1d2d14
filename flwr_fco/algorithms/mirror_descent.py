"""Mirror descent and subgradients: the client halves of FedMid, its OSP form, and FedAvg by subgradients."""

from __future__ import annotations

from typing import ClassVar

from flwr_fco.algorithms.contract import Client, ClientHalf, Memory, Start, Step
from flwr_fco.core.layout import Vector
from flwr_fco.objectives.base import Batch
from flwr_fco.wire.protocol import Downlink


class PrimalSteps(ClientHalf):
    """Local steps on the server's model."""

    engine: ClassVar[str | None] = "primal steps"

    @staticmethod
    def begin(downlink: Downlink, memory: Memory) -> Start:
        """Begin at the server's model."""
        return Start(downlink.vectors["primal"])


class MirrorDescent(PrimalSteps):
    """Proximal steps w <- retrieve(grad h(w) - client_lr g(w), client_lr).

    Without the plan's option ``client-prox`` psi does not act (OSP). Yuan, Zaheer, Reddi: Federated Composite
    Optimization (ICML 2021), algorithms 2 and 4.
    """

    name: ClassVar[str] = "mirror_descent"
    engine: ClassVar[str | None] = "proximal steps"

    @staticmethod
    def step(client: Client, downlink: Downlink, start: Start) -> Step:
        """Return a proximal step."""
        plan, rate, add_gradient = client.plan, client.rate, client.objective.add_gradient
        h, client_prox = plan.h, plan.options.get("client-prox", True)

        def step(primal: Vector, batch: Batch) -> None:
            dual = h.gradient(primal)
            add_gradient(primal, batch, -rate, dual)
            if client_prox:
                plan.point(dual, rate, primal)
            else:
                h.conjugate_gradient(dual, primal)

        return step


class Subgradient(PrimalSteps):
    """Subgradient steps w <- w - client_lr (g(w) + s(w)), s in the subdifferential of psi, sign(0) = 0.

    Yuan, Zaheer, Reddi: Federated Composite Optimization (ICML 2021), section 5, 'FedAvg'.
    """

    name: ClassVar[str] = "subgradient"

    @staticmethod
    def step(client: Client, downlink: Downlink, start: Start) -> Step:
        """Return a subgradient step."""
        psi, rate, add_gradient = client.plan.psi, client.rate, client.objective.add_gradient

        def step(primal: Vector, batch: Batch) -> None:
            direction = psi.subgradient(primal)
            add_gradient(primal, batch, 1.0, direction)
            primal -= rate * direction

        return step

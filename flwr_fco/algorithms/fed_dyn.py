"""Dynamic regularisation: the client half of FedDyn."""

from __future__ import annotations

from typing import ClassVar

from flwr_fco.algorithms.contract import ClientHalf, Memory, Start, zeros_like
from flwr_fco.core.layout import Vector
from flwr_fco.wire.protocol import Downlink


class FedDynClient(ClientHalf):
    """Minimise f(theta) - <own, theta> + alpha/2 ||theta - primal||^2; own <- own - alpha (theta - primal).

    `own` is the gradient of f at the client's last point. The message has the vector ``primal`` and the number
    ``penalty`` (alpha). Acar and others: Federated learning based on dynamic regularization (ICLR 2021), algorithm 1.
    """

    name: ClassVar[str] = "fed_dyn"
    engine: ClassVar[str | None] = "minimise"
    memory: ClassVar[tuple[str, ...]] = ("own", "local")

    @staticmethod
    def fresh(downlink: Downlink) -> Memory:
        """Return a gradient of 0, and the model."""
        return {"own": zeros_like(downlink), "local": downlink.vectors["primal"]}

    @staticmethod
    def begin(downlink: Downlink, memory: Memory) -> Start:
        """Begin at the client's last point."""
        primal = downlink.vectors["primal"]
        return Start(memory["local"], memory["own"], base=primal, center=primal, penalty=downlink.numbers["penalty"])

    @staticmethod
    def remember(downlink: Downlink, memory: Memory, sent: Memory, elapsed: float | None) -> dict[str, Vector]:
        """Return the gradient of f at the new point, and the point."""
        own = memory["own"] - downlink.numbers["penalty"] * sent["increment"]
        return {"own": own, "local": downlink.vectors["primal"] + sent["increment"]}

"""The client half of FedPD."""

from __future__ import annotations

from typing import ClassVar

from flwr_fco.algorithms.contract import ORIGIN, Client, ClientHalf, Memory, Moved, Start, zeros_like
from flwr_fco.core.layout import Vector
from flwr_fco.wire.protocol import Downlink


class FedPDClient(ClientHalf):
    """Minimise the augmented Lagrangian f(x) + <dual, x - x_0> + ||x - x_0||^2 / (2 eta), then update the dual.

    dual <- dual + (x - x_0)/eta; x_0 <- x + eta dual. This is repeated ``repeats`` times; the last x_0 is sent. The
    message has the vector ``primal`` (x_0) and the numbers ``step`` (eta) and ``repeats`` (default 1). Zhang, Hong,
    Dhople, Yin, Liu: FedPD (2021), algorithm 1.
    """

    name: ClassVar[str] = "fed_pd"
    engine: ClassVar[str | None] = None
    memory: ClassVar[tuple[str, ...]] = ("dual", "local")

    @staticmethod
    def fresh(downlink: Downlink) -> Memory:
        """Return a dual of 0, and the model."""
        return {"dual": zeros_like(downlink), "local": downlink.vectors["primal"]}

    @staticmethod
    def local(client: Client, downlink: Downlink, memory: Memory | None) -> tuple[dict[str, Vector], Moved]:
        """Minimise; what a client remembers after several minimisations is no function of what it sends."""
        primal, step = downlink.vectors["primal"], downlink.numbers["step"]
        known = FedPDClient.fresh(downlink) if memory is None else memory
        dual, local, center = known["dual"], known["local"], primal
        repeats = int(downlink.numbers.get("repeats", 1.0))
        for _ in range(repeats):
            moved = client.run("minimise", Start(local, -dual, center=center, penalty=1.0 / step, base=ORIGIN))
            local = moved.increment
            dual = dual + (local - center) / step
            center = local + step * dual
        kept = {"dual": dual, "local": local} if repeats > 1 else {}
        return {"increment": center - primal}, moved._replace(kept=kept)

    @staticmethod
    def remember(downlink: Downlink, memory: Memory, sent: Memory, elapsed: float | None) -> dict[str, Vector]:
        """Return dual and x after one minimisation: x_0+ - x_0 = 2 (x - x_0) + eta dual."""
        step = downlink.numbers["step"]
        moved = 0.5 * (sent["increment"] - step * memory["dual"])
        return {"dual": memory["dual"] + moved / step, "local": downlink.vectors["primal"] + moved}

"""The client half of 5GCS."""

from __future__ import annotations

from typing import ClassVar

from flwr_fco.algorithms.contract import ORIGIN, Client, ClientHalf, Memory, Moved, Start, zeros_like
from flwr_fco.core.layout import Vector
from flwr_fco.wire.protocol import Downlink


class FiveGCSClient(ClientHalf):
    """Minimise f(y) - mu/2 ||y||^2 + tau/2 ||y - (x_hat + u/tau)||^2; u <- u + tau (x_hat - y), send its change.

    u is M times the paper's u_m, and tau is M times the paper's, so that clients need to know neither M nor their
    weights. The message has the vector ``primal`` (x_hat) and the numbers ``dual-step`` (tau) and ``convexity`` (mu).
    Grudzien, Malinovsky, Richtarik: Can 5th generation local training methods support client sampling? Yes! (2022),
    algorithm 1.
    """

    name: ClassVar[str] = "five_gcs"
    engine: ClassVar[str | None] = "minimise"
    memory: ClassVar[tuple[str, ...]] = ("dual", "local")

    @staticmethod
    def fresh(downlink: Downlink) -> Memory:
        """Return u = 0, and the model."""
        return {"dual": zeros_like(downlink), "local": downlink.vectors["primal"]}

    @staticmethod
    def begin(downlink: Downlink, memory: Memory) -> Start:
        """Begin at the last y."""
        tau = downlink.numbers["dual-step"]
        shift = memory["dual"] + tau * downlink.vectors["primal"]
        return Start(memory["local"], shift, penalty=tau - downlink.numbers["convexity"], base=ORIGIN)

    @staticmethod
    def send(client: Client, downlink: Downlink, memory: Memory, moved: Moved) -> dict[str, Vector]:
        """Send the change of u."""
        return {"increment": downlink.numbers["dual-step"] * (downlink.vectors["primal"] - moved.increment)}

    @staticmethod
    def remember(downlink: Downlink, memory: Memory, sent: Memory, elapsed: float | None) -> dict[str, Vector]:
        """Return u and y."""
        tau, increment = downlink.numbers["dual-step"], sent["increment"]
        return {"dual": memory["dual"] + increment, "local": downlink.vectors["primal"] - increment / tau}

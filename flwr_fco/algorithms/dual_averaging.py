"""Dual averaging: the client half of FedDualAvg, its OSP form, FedDA and the graph's untracked form."""

from __future__ import annotations

from typing import ClassVar

from flwr_fco.algorithms.contract import Client, ClientHalf, Memory, Moved, Start
from flwr_fco.core.layout import Vector
from flwr_fco.wire.protocol import Downlink


class DualAveraging(ClientHalf):
    """Local steps z <- z - client_lr g(retrieve(z, t + client_lr k)) from the server's dual.

    Without the plan's option ``client-prox`` psi does not act (OSP); ``trajectory`` asks for z_k - z_0, k = 1..K, too.
    Yuan, Zaheer, Reddi: Federated Composite Optimization (ICML 2021), algorithms 3 and 5.
    """

    name: ClassVar[str] = "dual_averaging"
    sparse: ClassVar[tuple[str, bool] | None] = ("sparse-wire", True)

    @staticmethod
    def begin(downlink: Downlink, memory: Memory) -> Start:
        """Begin at the server's dual."""
        return Start(downlink.vectors["dual"])

    @staticmethod
    def send(client: Client, downlink: Downlink, memory: Memory, moved: Moved) -> dict[str, Vector]:
        """Send z_K - z_0 and, if they are asked for, all z_k - z_0."""
        sent = {"increment": moved.increment}
        if moved.trajectory is not None:
            sent["trajectory"] = moved.trajectory
        return sent

"""Douglas-Rachford splitting: the client half of FedDR."""

from __future__ import annotations

from typing import ClassVar

from flwr_fco.algorithms.contract import ORIGIN, Client, ClientHalf, Memory, Moved, Start, zeros_like
from flwr_fco.core.layout import Vector
from flwr_fco.wire.protocol import Downlink


def _center(downlink: Downlink, memory: Memory) -> Vector:
    return memory["center"] + downlink.numbers["relaxation"] * (downlink.vectors["primal"] - memory["local"])


def _last(memory: Memory) -> Vector:
    """Return 2 x - y of the client's last round."""
    return 2.0 * memory["local"] - memory["center"]


class FedDRClient(ClientHalf):
    """Take a Douglas-Rachford step: y <- y + alpha (primal - x), x <- prox_{eta f}(y), send the change of 2 x - y.

    The message has the vector ``primal`` (x-bar) and the numbers ``step`` (eta) and ``relaxation`` (alpha).
    Tran-Dinh, Pham, Phan, Nguyen: FedDR (NeurIPS 2021), algorithm 1.
    """

    name: ClassVar[str] = "fed_dr"
    engine: ClassVar[str | None] = "minimise"
    memory: ClassVar[tuple[str, ...]] = ("center", "local")

    @staticmethod
    def fresh(downlink: Downlink) -> Memory:
        """Return x = y = 0; the minimisation begins at the model all the same."""
        zeros = zeros_like(downlink)
        return {"center": zeros, "local": zeros, "start": downlink.vectors["primal"]}

    @staticmethod
    def begin(downlink: Downlink, memory: Memory) -> Start:
        """Begin at the last x, with the proximal term around the new y."""
        start = memory["start"] if "start" in memory else memory["local"]
        return Start(start, center=_center(downlink, memory), penalty=1.0 / downlink.numbers["step"], base=ORIGIN)

    @staticmethod
    def send(client: Client, downlink: Downlink, memory: Memory, moved: Moved) -> dict[str, Vector]:
        """Send the change of 2 x - y."""
        return {"increment": 2.0 * moved.increment - _center(downlink, memory) - _last(memory)}

    @staticmethod
    def remember(downlink: Downlink, memory: Memory, sent: Memory, elapsed: float | None) -> dict[str, Vector]:
        """Return y and x, from the change that was sent."""
        center = _center(downlink, memory)
        return {"center": center, "local": 0.5 * (_last(memory) + sent["increment"] + center)}

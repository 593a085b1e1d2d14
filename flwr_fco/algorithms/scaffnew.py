"""Steps between rare averages: the client half of Scaffnew (ProxSkip)."""

from __future__ import annotations

from typing import ClassVar

from flwr_fco.algorithms.contract import Client, ClientHalf, Memory, Start, Step, zeros_like
from flwr_fco.core.layout import Vector
from flwr_fco.objectives.base import Batch
from flwr_fco.wire.protocol import Downlink


class ScaffnewClient(ClientHalf):
    """Update the shift with the new average, then take steps x <- x - client_lr (g(x) - shift) until the next one.

    shift <- shift + p/last-rate (primal - local) ends the round before. The message has the vector ``primal`` and the
    numbers ``probability`` (p) and ``last-rate`` (client_lr of the last round that counted); its work has the number of
    steps that the server drew. Mishchenko, Malinovsky, Stich, Richtarik: ProxSkip (ICML 2022), algorithm 2.
    """

    name: ClassVar[str] = "scaffnew"
    engine: ClassVar[str | None] = "primal steps"
    memory: ClassVar[tuple[str, ...]] = ("shift", "local")

    @staticmethod
    def fresh(downlink: Downlink) -> Memory:
        """Return a shift of 0, and the model."""
        return {"shift": zeros_like(downlink), "local": downlink.vectors["primal"]}

    @staticmethod
    def begin(downlink: Downlink, memory: Memory) -> Start:
        """Begin at the average, with the shift that it completes."""
        primal, numbers = downlink.vectors["primal"], downlink.numbers
        gain = numbers["probability"] / numbers["last-rate"]
        return Start(primal, memory["shift"] + gain * (primal - memory["local"]))

    @staticmethod
    def step(client: Client, downlink: Downlink, start: Start) -> Step:
        """Return a shifted gradient step."""
        rate, gradient_of, shift = client.rate, client.objective.gradient, start.shift
        assert shift is not None

        def step(point: Vector, batch: Batch) -> None:
            gradient = gradient_of(point, batch)
            gradient -= shift
            point -= rate * gradient

        return step

    @staticmethod
    def remember(downlink: Downlink, memory: Memory, sent: Memory, elapsed: float | None) -> dict[str, Vector]:
        """Return the shift of the round, which the next message changes, and the point before averaging."""
        shift = ScaffnewClient.begin(downlink, memory).shift
        assert shift is not None
        return {"shift": shift, "local": downlink.vectors["primal"] + sent["increment"]}

"""Nesterov's method on the dual: the client half of DualFL."""

from __future__ import annotations

from typing import ClassVar

from flwr_fco.algorithms.contract import ClientHalf, Memory, Start, zeros_like
from flwr_fco.core.layout import Vector
from flwr_fco.wire.protocol import Downlink


def _arrived(downlink: Downlink, memory: Memory) -> tuple[Vector, Vector]:
    """Return zeta and a of this round: the round before ends with the average that this message brings."""
    momentum = downlink.numbers["momentum"]
    anchor = memory["control"] + downlink.vectors["primal"] - memory["local"]
    return (1.0 + momentum) * anchor - momentum * memory["anchor"], anchor


class DualFLClient(ClientHalf):
    """Update the control zeta with the new average, then minimise f(theta) + alpha/2 ||theta||^2 - nu <zeta, theta>.

    ::

        a+ <- zeta + primal - local                 zeta <- (1 + momentum) a+ - momentum a

    The message has the vector ``primal`` (the averaged theta) and the numbers ``duality`` (nu), ``momentum`` (beta) and
    ``regularization`` (alpha, default 0). Park, Xu: DualFL, algorithm 1.
    """

    name: ClassVar[str] = "dual_fl"
    engine: ClassVar[str | None] = "minimise"
    memory: ClassVar[tuple[str, ...]] = ("control", "anchor", "local")

    @staticmethod
    def fresh(downlink: Downlink) -> Memory:
        """Return zeta = a = 0, and the model: the average that it completes is the model itself."""
        zeros = zeros_like(downlink)
        return {"control": zeros, "anchor": zeros, "local": downlink.vectors["primal"]}

    @staticmethod
    def begin(downlink: Downlink, memory: Memory) -> Start:
        """Begin at the client's last solution, with the linear term nu zeta."""
        control, _ = _arrived(downlink, memory)
        return Start(
            memory["local"],
            downlink.numbers["duality"] * control,
            base=downlink.vectors["primal"],
            penalty=downlink.numbers.get("regularization", 0.0),
        )

    @staticmethod
    def remember(downlink: Downlink, memory: Memory, sent: Memory, elapsed: float | None) -> dict[str, Vector]:
        """Return zeta and a as they were in the round, and theta; the next message changes them."""
        control, anchor = _arrived(downlink, memory)
        return {"control": control, "anchor": anchor, "local": downlink.vectors["primal"] + sent["increment"]}

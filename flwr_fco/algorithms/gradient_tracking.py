"""Gradient tracking: the client halves of FedDA-GT, ReFedDA-GT, SCAFFOLD, and of their forms on graphs."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from flwr_fco.algorithms.contract import Client, ClientHalf, Memory, Moved, Start, zeros_like
from flwr_fco.core.layout import Vector
from flwr_fco.errors import ProtocolError
from flwr_fco.wire.protocol import Downlink


class GradientTracking(ClientHalf):
    """Local steps z <- z - client_lr (g(retrieve(z, t)) + control - own).

    `own` is the mean of the client's gradients when it last took part, `control` the mean of `own` over all clients.
    Afterwards own <- own - control - D, where D is the increment divided by the elapsed time: the mean of its gradients
    in this round. `control` is in the message, or follows from two successive broadcasts:
    control = (z_{r-1} - z_r) / advance. The number ``gradient`` asks for one gradient at the start instead (round 0).
    With the plan's option ``variate="gradient"``, own becomes the full gradient at the start of the round.

    Liang, Peng, Zhang: Gradient tracking for high dimensional federated optimization, algorithms 1 and 2; Karimireddy
    and others: SCAFFOLD (ICML 2020), algorithm 1.
    """

    name: ClassVar[str] = "gradient_tracking"
    memory: ClassVar[tuple[str, ...]] = ("own",)
    common: ClassVar[str | None] = "control"
    sparse: ClassVar[tuple[str, bool] | None] = ("control-apart", False)

    @staticmethod
    def hear(downlink: Downlink, memory: Memory | None) -> Downlink:
        """Return the message with the dual and the control."""
        variate = downlink.plan.options.get("variate", "average")
        if variate not in ("average", "gradient"):
            raise ProtocolError(f"the plan's variate is {variate!r}; expected 'average' or 'gradient'")
        vectors, numbers = downlink.vectors, downlink.numbers
        start = vectors["dual"] if "dual" in vectors or memory is None else memory["dual"]
        if "control" in vectors:
            control = vectors["control"]
        elif "advance" in numbers and memory is not None:
            if not numbers["advance"] > 0:
                raise ProtocolError(f"the server's advance is {numbers['advance']!r}; expected a number > 0")
            control = (memory["dual"] - start) / numbers["advance"]
        else:
            control = np.zeros_like(start)
        return downlink._replace(vectors={"dual": start, "control": control})

    @staticmethod
    def fresh(downlink: Downlink) -> Memory:
        """Return a variate of 0."""
        return {"own": zeros_like(downlink)}

    @staticmethod
    def begin(downlink: Downlink, memory: Memory) -> Start:
        """Begin at the server's dual, with the tracker control - own."""
        return Start(downlink.vectors["dual"], downlink.vectors["control"] - memory["own"])

    @staticmethod
    def send(client: Client, downlink: Downlink, memory: Memory, moved: Moved) -> dict[str, Vector]:
        """Send z_K - z_0 and, if it is no function of it, the change of the variate."""
        sent = {"increment": moved.increment}
        if downlink.plan.options.get("variate", "average") == "gradient" and "gradient" not in downlink.numbers:
            gradient = client.objective.gradient(client.point(downlink.vectors["dual"], downlink.elapsed))
            sent["variate-increment"] = gradient - memory["own"]
        return sent

    @staticmethod
    def remember(downlink: Downlink, memory: Memory, sent: Memory, elapsed: float | None) -> dict[str, Vector]:
        """Return the mean of the client's gradients in this round, or the gradient that it has sent."""
        if "gradient" in downlink.numbers:
            return {"own": sent["increment"]}
        if "variate-increment" in sent:
            return {"own": memory["own"] + sent["variate-increment"]}
        assert elapsed is not None
        return {"own": memory["own"] - downlink.vectors["control"] - sent["increment"] / elapsed}

    @staticmethod
    def change(downlink: Downlink, sent: Memory, elapsed: float | None) -> Vector:
        """Return the change of the client's variate, which the server's control is the mean of."""
        if "variate-increment" in sent:
            return sent["variate-increment"]
        assert elapsed is not None
        return -downlink.vectors["control"] - sent["increment"] / elapsed

    @staticmethod
    def keep(downlink: Downlink) -> Memory:
        """Keep the broadcast, from which the next one gives the control."""
        return {"dual": downlink.vectors["dual"]} if downlink.plan.options.get("remember", False) else {}


class TrackedDualAveraging(ClientHalf):
    """Local steps z <- z - client_lr (g(retrieve(z, t)) + tracker), with a tracker that a graph's relay stores.

    Liang, Peng, Zhang: Gradient tracking for high dimensional federated optimization, algorithm 1.
    """

    name: ClassVar[str] = "tracked_dual_averaging"

    @staticmethod
    def begin(downlink: Downlink, memory: Memory) -> Start:
        """Begin at the node's dual; a tracker that is 0 is not in the message."""
        return Start(downlink.vectors["dual"], downlink.vectors.get("tracker"))
